#!lua flags=allow-oom
-- clear: takes from a replica all it holds in the pool, a bounded number per call, and forgets the replica when nothing is
-- left. Its waiters go first, so that no slot is handed to the dead.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  replica
-- ARGV[2]  beat     ms, the last beat its judge saw: if it has another by now, nothing is changed; "" = whatever it is,
--                   for a replica that leaves by itself
-- ARGV[3]  most     waiters and leases to take in this call, 1 to 500
--
-- reply    state     1 done so far · 0 the replica has beaten since, or is not known
--          left      waiters and leases it still has; 0: it is forgotten
--          released  leases given back
--          dequeued  waiters removed
--          granted   slots handed over, 0 to 64
-- repeat   takes the next ones; replies 0 when the replica is forgotten
-- cost     4 reads and 3 writes per waiter or lease, 4 of each per slot handed over

-- include slots.part.lua
-- include score.part.lua
-- include prefixes.part.lua
-- include queue.part.lua
local replica, most = ARGV[1], tonumber(ARGV[3])
local held, waiting = root .. ':held:' .. replica, root .. ':waiting:' .. replica

-- First half.
local beat = redis.call('ZSCORE', replicas, replica)
if ARGV[2] ~= '' and (not beat or int(tonumber(beat)) ~= ARGV[2]) then return { 0, 0, 0, 0, 0 } end
local left = redis.call('HLEN', waiting) + redis.call('HLEN', held)
redis.call('ZCARD', queue)

-- some is up to `of` fields of a hash with their values, flat.
local function some(key, of)
  if of < 1 then return {} end
  local fields = redis.call('HRANDFIELD', key, int(of))
  local values = #fields > 0 and redis.call('HMGET', key, unpack(fields)) or {}
  return fields, values
end

-- Leases only when no waiter is left: what they free must not be granted to the dead.
local dequeued, released, freed, seen = 0, 0, {}, {}
local rids, values = some(waiting, most)
for i, rid in ipairs(rids) do
  unqueue(member_of(values[i]), replica, rid)
  dequeued = dequeued + 1
end
rids, values = some(held, most - dequeued)
for i, rid in ipairs(rids) do
  local b = give_back(replica, rid, values[i])
  released = released + 1
  if b and not seen[b.id] then
    seen[b.id] = true
    freed[#freed + 1] = b
  end
end
left = left - dequeued - released
local grants = hand_over(freed, 64, FAR)
if left == 0 then later('ZREM', replicas, replica) end

settle_turns()
commit()
return { 1, left, released, dequeued, grants }
