#!lua flags=allow-oom
-- renew: a replica still works on these requests: their deadlines move to 25 s from now. One that had lapsed meanwhile is
-- opened again and its charge becomes a hold again.
--
-- KEYS[1]   root    hg:{t:<tenant>}; below it: open reservations settled parallel · the counters the claims name
-- ARGV[1]   owner   as in admit; entries of another owner are left alone
-- ARGV[2]   now_ms  "": Redis' clock; tests put theirs here
-- ARGV[3…]  rids    at most 500
--
-- reply     1 renewed   still open, or opened again
--           2 reopened  of these
--           3… rids     of those that are not there any more
-- repeat    the same with a later deadline
-- cost      3 reads, 1 write; 8 to 20 more for each that had lapsed
local root, owner = KEYS[1], ARGV[1]
local call = redis.call
local now = tonumber(ARGV[2])
if not now then
  local t = call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local count = #ARGV - 2
if count <= 0 then return { 0, 0 } end
local rids = {}
for i = 1, count do rids[i] = ARGV[i + 2] end
local open, reservations, settled = root .. ':open', root .. ':reservations', root .. ':settled'

local filed = call('HMGET', open, unpack(rids))
call('ZCARD', reservations)
call('ZCARD', settled)
local deadline = string.format('%d', now + 25000)
local due, lapsed, reply = {}, {}, { 0, 0 }
for i = 1, count do
  local state, held_by = string.match(filed[i] or '', '^([oxr]) (%S+) ')
  if state and held_by == owner then
    due[#due + 1], due[#due + 2] = deadline, rids[i]
    if state == 'x' then lapsed[#lapsed + 1] = i end
  elseif not state then
    reply[#reply + 1] = rids[i]
  end
end
if due[1] then call('ZADD', reservations, unpack(due)) end
reply[1] = #due / 2

-- Each that had lapsed is opened again in two halves of its own.
if lapsed[1] then
  -- include period.part.lua
  -- include claim.part.lua
  for j = 1, #lapsed do
    local rid, text = rids[lapsed[j]], filed[lapsed[j]]
    local c = parse(text)
    -- One counter of the wrong type must not keep the others from being opened again.
    if c and pcall(load, c, false, 0) then
      call('ZREM', settled, rid)
      call('HSET', open, rid, 'r' .. string.sub(text, 2))
      store_spend(c, charge(c, -1))
      store_running(c, 1)
      reply[2] = reply[2] + 1
    end
  end
end
return reply
