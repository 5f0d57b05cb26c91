#!lua
-- place: takes a slot of the first backend that has one free, or joins the queue of the pool. Who waits goes first: free
-- slots are handed to the first 16 waiting before a new request may take one.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  rid      [0-9a-f]+
-- ARGV[2]  attempt  1, 2, …; what a lower attempt of the rid holds is given back first, and handed over
-- ARGV[3]  replica  no space, no |
-- ARGV[4]  tenant   no space, no |; may be ""
-- ARGV[5]  model    percent-encoded
-- ARGV[6]  mu       thousandths of a model unit, whole
-- ARGV[7]  not      backend that is used only if no other candidate can be; "" = none
-- ARGV[8]  wait     1 = join the queue when no slot is free
-- ARGV[9]  limit    of the queue, waiting requests
-- ARGV[10…]         backend, slots, backend, slots … (at most 32) in order of preference; slots count, and are written,
--                   where the record has none
--
-- reply    state    1 placed · 2 queued · 3 queue full, or wait = 0 and no slot free · 4 no candidate can run it, now or
--                   later (draining, no slots, unreadable) · 5 a later attempt of this rid was there: nothing changed
--          backend  of the slot; "" unless placed
--          ahead    waiting requests ahead; 0 unless queued
--          now      ms
--          seq      of the queue entry; 0 unless queued
-- repeat   the same (rid, attempt) again: the same slot or place in the queue; nothing changes
-- cost     2 + candidates reads, 2 writes; 4 more of each for every slot handed over

-- include slots.part.lua
local rid, attempt, replica = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local held, waiting = root .. ':held:' .. replica, root .. ':waiting:' .. replica

-- First half: what this rid holds.
local lease, member = redis.call('HGET', held, rid), redis.call('HGET', waiting, rid)
local length, freed = redis.call('ZCARD', queue), {}
if lease then
  local had, id = lease_of(lease)
  if had > attempt then return { 5, '', 0, int(now), 0 } end
  if had == attempt then return { 1, id, 0, int(now), 0 } end
  freed[1] = give_back(replica, rid, lease)
end
if member then
  local w = waiter_of(member)
  local ahead = w and redis.call('ZRANK', queue, member)
  if ahead and w.attempt > attempt then return { 5, '', 0, int(now), 0 } end
  if ahead and w.attempt == attempt then return { 2, '', ahead, int(now), w.seq } end
  if ahead then unqueue(member, replica, rid) else later('HDEL', waiting, rid) end
end

-- A replica that holds something must be seen by those who clear the dead, also before its first beat.
if not redis.call('ZSCORE', replicas, replica) then later('ZADD', replicas, int(now), replica) end

-- The candidates, without the one to avoid if another will do.
local candidates, others, avoid = {}, false, ARGV[7]
for i = 10, #ARGV, 2 do
  local b = backend(ARGV[i], ARGV[i + 1])
  if usable(b) then
    candidates[#candidates + 1] = b
    others = others or b.id ~= avoid
  end
end
if not others then avoid = '' end

-- Those who wait go first.
local offered = { unpack(candidates) }
offered[#offered + 1] = freed[1]
if length > left_queue then hand_over(offered, WINDOW) end

local function choose()
  for _, b in ipairs(candidates) do
    if b.id ~= avoid and free(b) then return b end
  end
end

local function outcome()
  if #candidates == 0 then return { 4, '', 0, int(now), 0 } end
  local b = choose()
  local w = { rid = rid, attempt = int(attempt), replica = replica, tenant = ARGV[4], mu = ARGV[6] }
  if b then
    claim(b, w)
    return { 1, b.id, 0, int(now), 0 }
  end
  local ahead = length - left_queue
  if ARGV[8] ~= '1' or ahead >= tonumber(ARGV[9]) then return { 3, '', 0, int(now), 0 } end
  local seq = whole(redis.call('HGET', turns, 'seq'))
  if not seq then -- never used, or lost: behind everybody who waits
    local last = redis.call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')
    seq = tonumber(last[2] or 0)
  end
  seq = seq + 1
  local entry = table.concat({ string.format('%012.0f', seq), rid, w.attempt, replica, ARGV[4], ARGV[5], ARGV[6], avoid }, '|')
  later('ZADD', queue, int(seq), entry)
  later('HSET', waiting, rid, entry)
  later('HSET', turns, 'seq', int(seq))
  return { 2, '', ahead, int(now), seq }
end

local reply = outcome()
commit()
return reply
