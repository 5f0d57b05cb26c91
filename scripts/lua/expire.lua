#!lua flags=allow-oom
-- expire: a replica is gone: its open reservations are charged at their holds, whatever their deadline, each with a usage
-- record (outcome lost, estimated). Its late settlement, should it come, undoes that.
--
-- KEYS[1]  root    hg:{t:<tenant>}; below it: open reservations settled parallel usage · the counters the claims name
-- ARGV[1]  owner   as in admit
-- ARGV[2]  cursor  "0" for the first call, then as replied
-- ARGV[3]  now_ms  absent; tests put their clock here
--
-- reply    1 cursor  "0": that was the last
--          2 count   settled by this call, about 100 at most; on miniredis all
--          3 stuck   left open by this call, because a key they need cannot be read; they keep their deadlines
-- repeat   0, and what is stuck
-- cost     1 read; 10 reads and 10 writes for each that is settled
local root, owner, call = KEYS[1], ARGV[1], redis.call
local now = tonumber(ARGV[3])
if not now then
  local t = call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
-- include period.part.lua
-- include claim.part.lua
local page = call('HSCAN', root .. ':open', ARGV[2], 'COUNT', 100)
local count, stuck = 0, 0
for i = 1, #page[2], 2 do
  local state, held_by = string.match(page[2][i + 1], '^([oxr]) (%S+) ')
  if state and state ~= 'x' and held_by == owner then
    local done = lapse(page[2][i], page[2][i + 1], now)
    if done then count = count + 1 elseif done == nil then stuck = stuck + 1 end
  end
end
return { page[1], count, stuck }
