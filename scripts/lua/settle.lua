#!lua flags=allow-oom
-- settle: replaces a request's hold by what it really used, once, and writes its usage record.
--
-- KEYS[1]  root        hg:{t:<tenant>}; below it: open reservations settled usage doubtful parallel · the rate and spend
--                      counters the claim names
-- ARGV[1]  rid         32 hex digits
-- ARGV[2]  claim       as admit returned it; "" when its reply was lost
-- ARGV[3]  keep        1: the request stays counted; 0: it is given back, with all it held
-- ARGV[4]  prompt      tokens
-- ARGV[5]  cached      tokens, of these
-- ARGV[6]  completion  tokens
-- ARGV[7]  cost_nusd   ≤ 9e15
-- ARGV[8]  record      the usage record, one JSON object; "" writes none
-- ARGV[9]  now_ms      absent; tests put their clock here
--
-- reply    1 what      1 replaced the open hold
--                      2 replaced the charge of one that had lapsed (the record says "replaces":true)
--                      3 settled before: nothing changed
--                      4 unknown here and admitted less than an hour ago (the admission was lost with a primary): charged
--                      5 unknown and older, or unknown, without a claim and not free: nothing charged, filed as doubtful
--                      6 unknown, without a claim and free: the admission was never applied; it will not be any more
-- repeat   3
-- cost     3 scopes with rpm and budget: 8 reads, 8 writes; 3 and 3 more with tpm
local root, rid = KEYS[1], ARGV[1]
local call = redis.call
local now = tonumber(ARGV[9])
if not now then
  local t = call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
-- include period.part.lua
-- include claim.part.lua
local keep, prompt, cached, completion, cost, record = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]),
  tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local hour = 3600000
local open, reservations, settled, usage = root .. ':open', root .. ':reservations', root .. ':settled', root .. ':usage'

-- First half.
local filed = call('HGET', open, rid)
call('ZCARD', reservations)
call('XLEN', usage)
local c, what = filed and parse(filed), nil
if c then
  what = c.state == 'x' and 2 or 1
elseif call('ZSCORE', settled, rid) then
  return { 3 }
else
  c = parse(ARGV[2])
  if c and now - c.at < hour then
    what = 4
  elseif c or cost > 0 then
    what = 5
  else
    what = 6
  end
end
if what <= 4 then
  load(root, c, math.floor(now / 1000), keep == 1)
else
  call('LLEN', root .. ':doubtful')
end
-- What was settled more than an hour ago is forgotten, in one settlement of eight.
local old
if now % 8 == 0 then old = call('ZRANGEBYSCORE', settled, '-inf', string.format('%d', now - hour), 'LIMIT', '0', '100') end

-- Second half. The first write is its own check; nothing after it can fail, every other key was read above.
call('ZADD', settled, string.format('%d', now), rid)
if old and old[1] then
  call('ZREM', settled, unpack(old))
  call('HDEL', open, unpack(old))
end
if what == 5 and record ~= '' then
  call('RPUSH', root .. ':doubtful', record)
  call('LTRIM', root .. ':doubtful', -1000, -1)
end
if what >= 5 then return { what } end
if what ~= 4 then
  call('HDEL', open, rid)
  call('ZREM', reservations, rid)
end
if what == 1 then
  store_spend(c, cost, -c.hold, keep, prompt, cached, completion)
  store_running(root, c, -1)
elseif what == 2 then
  store_spend(c, cost - c.hold, 0, keep - 1, prompt - c.prompt, cached, completion - (c.tokens - c.prompt))
else
  store_spend(c, cost, 0, keep, prompt, cached, completion)
end
if what ~= 4 then store_rate(c, keep - 1, prompt + completion - c.tokens) end
if record ~= '' then
  if c.state ~= 'o' then record = string.sub(record, 1, -2) .. ',"replaces":true}' end
  call('XADD', usage, 'MAXLEN', '~', '100000', '*', 'record', record)
end
return { what }
