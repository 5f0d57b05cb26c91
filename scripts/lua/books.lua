#!lua flags=no-writes
-- books: what a tenant's counters and reservations say at one instant, and how far its usage stream was then. A settlement
-- writes counters and stream together, so the two can be compared while requests run. Changes nothing.
--
-- KEYS[1]   root      hg:{t:<tenant>}; below it: usage open reservations parallel doubtful · the spend counters asked for
-- ARGV[1…]  counters  <scope>:<id>:<period>, as in the names of the spend counters
--
-- reply     1 now     ms
--           2 last    id of the last record of the stream, "" when there is none
--           3 oldest  id of the first one
--           4 gone    records that were trimmed off the stream; -1: the store does not say
--           5 overdue reservations whose deadline is more than a minute past
--           6 open    rid, claim, …
--           7 running field, value, … of parallel
--           8 doubtful records that were not charged, oldest first
--           9 figures of each counter: spent_nusd, reserved_nusd, requests, prompt_tokens, cached_tokens, completion_tokens as
--                     texts, "" where the field is not there; an empty list where the counter is no hash, or not there
-- repeat    reads only
-- cost      7 reads, 1 per counter
local root, call, pcall = KEYS[1], redis.call, redis.pcall
local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local usage = root .. ':usage'

local function id_of(page) return page[1] and page[1][1] or '' end

local gone = -1
local info = pcall('XINFO', 'STREAM', usage)
for i = 1, info.err and 0 or #info, 2 do
  if info[i] == 'entries-added' then gone = info[i + 1] - call('XLEN', usage) end
end

local figures = {}
for i = 1, #ARGV do
  local key = root .. ':spend:' .. ARGV[i]
  local v = pcall('HMGET', key, 'spent_nusd', 'reserved_nusd', 'requests', 'prompt_tokens', 'cached_tokens', 'completion_tokens')
  local any = false
  for j = 1, v.err and 0 or #v do
    any = any or v[j]
    v[j] = v[j] or ''
  end
  figures[i] = any and v or {}
end
return { string.format('%d', now), id_of(call('XREVRANGE', usage, '+', '-', 'COUNT', '1')), id_of(call('XRANGE', usage, '-', '+', 'COUNT', '1')), gone,
  call('ZCOUNT', root .. ':reservations', '-inf', string.format('%d', now - 60000)), call('HGETALL', root .. ':open'),
  call('HGETALL', root .. ':parallel'), call('LRANGE', root .. ':doubtful', '0', '-1'), figures }
