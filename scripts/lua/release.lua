#!lua flags=allow-oom
-- release: ends all that a request holds in the pool for attempts up to one (slot, grant, place in the queue) and hands
-- the slot to whoever waits and can use it.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  rid
-- ARGV[2]  attempt  what a later attempt holds stays
-- ARGV[3]  replica  that placed it
--
-- reply    released  1 if a slot was given back
--          dequeued  1 if a place in the queue was given up
--          granted   slots handed over, 0 to 16
--          now       ms
-- repeat   replies 0, 0, 0 and changes nothing
-- cost     2 reads when nothing is held; else 4 reads and 2 writes, and about 4 of each for a slot handed over

-- include slots.part.lua
local rid, attempt, replica = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local held, waiting = root .. ':held:' .. replica, root .. ':waiting:' .. replica

-- First half.
local lease, member = redis.call('HGET', held, rid), redis.call('HGET', waiting, rid)
local released, dequeued, grants, freed = 0, 0, 0, nil
if lease and lease_of(lease) <= attempt then
  freed, released = give_back(replica, rid, lease), 1
end
if member then
  local w = waiter_of(member)
  if not w or w.attempt <= attempt then
    redis.call('ZCARD', queue)
    unqueue(member, replica, rid)
    dequeued = 1
  end
end
if freed then grants = hand_over({ freed }, WINDOW) end

commit()
return { released, dequeued, grants, int(now) }
