#!lua flags=allow-oom
-- adopt: a living replica was cleared by mistake, or Redis lost what it held: requests that still run there get their leases
-- back. They run whatever is written here, so a backend may then hold more than its slots; nothing new goes there until
-- that is over.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  replica
-- ARGV[2…]          rid, attempt, backend, mu, output_mu, tenant, rid … (at most 100)
--
-- reply    adopted  leases written
--          over     of these, how many are beyond their backend's slots
-- repeat   a rid that has a lease, of whatever attempt, is passed over
-- cost     2 reads and 2 writes per lease

-- include slots.part.lua
-- include score.part.lua
local replica, adopted, over = ARGV[1], 0, 0
local held = root .. ':held:' .. replica
if not redis.call('ZSCORE', replicas, replica) then later('ZADD', replicas, int(now), replica) end

local seen = {}
for i = 2, #ARGV, 6 do
  local rid, b = ARGV[i], backend(ARGV[i + 2])
  if not seen[rid] and not redis.call('HGET', held, rid) and b.typed and b.held then
    seen[rid] = true
    touch(b)
    b.held, adopted = b.held + 1, adopted + 1
    if b.readable then b.output = b.output + tonumber(ARGV[i + 4]) end
    if b.slots and b.held > b.slots then over = over + 1 end
    later('HSET', held, rid, string.format('%d %s %d %d %d 0 0 %s', tonumber(ARGV[i + 1]), b.id, tonumber(ARGV[i + 3]), now,
      tonumber(ARGV[i + 4]), ARGV[i + 5]))
  end
end

commit()
return { adopted, over }
