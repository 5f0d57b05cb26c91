#!lua
-- place: takes a slot of the backend where the request is best off (score.part.lua), or joins the queue of the pool. Who
-- waits goes first: free slots are handed to the first 16 waiting before a new request may take one.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  rid      [0-9a-f]+
-- ARGV[2]  attempt  1, 2, …; what a lower attempt of the rid holds is given back first, and handed over
-- ARGV[3]  replica  no space, no |
-- ARGV[4]  tenant   no space, no |; may be ""
-- ARGV[5]  model    percent-encoded
-- ARGV[6]  mu       thousandths of a model unit, whole: all of the request, nothing of it cached
-- ARGV[7]  not      backend that is used only if no other candidate can be; "" = none; =<backend>: the one candidate,
--                   and who waits gets no other
-- ARGV[8]  wait     1 = join the queue when no slot is free
-- ARGV[9]  limit    of the queue, waiting requests
-- ARGV[10] class    0 to 9, lower first
-- ARGV[11] output   thousandths of a model unit: the part of mu that is output
-- ARGV[12] tokens   of the prompt
-- ARGV[13] save     thousandths of a model unit saved by each prompt token that is warm
-- ARGV[14] least    prompt tokens; a shorter match does not count
-- ARGV[15] bucket   0 to 15: the hash of the fingerprints, the same for all prompts that may share one
-- ARGV[16] f        number of fingerprints, 0 to 12
-- ARGV[17…]         fingerprint (no space), prompt tokens up to it, fingerprint …: f pairs, shortest first; then backend,
--                   slots, tag, backend … (at most 32) in ring order; slots count, and are written, where the record has
--                   none; tag as in prefixes.part.lua, "" = not known; then now_ms, absent: tests put their clock here
--
-- reply    state    1 placed · 2 queued · 3 queue full, or wait = 0 and no slot free · 4 no candidate can run it, now or
--                   later (draining, no slots, unreadable) · 5 a later attempt of this rid was there: nothing changed
--          backend  of the slot; "" unless placed
--          ahead    waiting requests whose turn is first, as of now; 0 unless queued
--          now      ms
--          seq      of the queue entry; 0 unless queued
--          matched  prompt tokens that are warm on the backend; 0 unless placed now
--          expected ms, the backend's score; 0 unless placed now
-- repeat   the same (rid, attempt) again: the same slot or place in the queue; nothing changes
-- cost     3 reads and 2 writes; 1 read for each candidate, or for the first alone if its score is within 50 ms; with
--          fingerprints 3 reads and 1 write; about 6 of each for every slot handed over

-- include slots.part.lua
-- include score.part.lua
-- include prefixes.part.lua
-- include queue.part.lua
if (#ARGV - 16 - 2 * ARGV[16]) % 3 == 1 then now = tonumber(ARGV[#ARGV]) end
local rid, attempt, replica = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local held, waiting = root .. ':held:' .. replica, root .. ':waiting:' .. replica

-- First half: what this rid holds.
local lease, member = redis.call('HGET', held, rid), redis.call('HGET', waiting, rid)
member = member and member_of(member)
local length, freed = redis.call('ZCARD', queue), {}
if lease then
  local had, id = lease_of(lease)
  if had > attempt then return { 5, '', 0, int(now), 0, 0, 0 } end
  if had == attempt then return { 1, id, 0, int(now), 0, 0, 0 } end
  freed[1] = give_back(replica, rid, lease)
end
if member then
  local v = waiter_of(member)
  local ahead = v and redis.call('ZRANK', queue, member)
  if ahead and v.attempt > attempt then return { 5, '', 0, int(now), 0, 0, 0 } end
  if ahead and v.attempt == attempt then return { 2, '', ahead, int(now), v.seq, 0, 0 } end
  if ahead then unqueue(member, replica, rid) else later('HDEL', waiting, rid) end
end

-- A replica that holds something must be seen by those who clear the dead, also before its first beat.
if not redis.call('ZSCORE', replicas, replica) then later('ZADD', replicas, int(now), replica) end

local prints = 2 * tonumber(ARGV[16])
local w = { rid = rid, attempt = attempt, replica = replica, tenant = ARGV[4], model = ARGV[5], mu = tonumber(ARGV[6]),
  output = math.min(tonumber(ARGV[11]), tonumber(ARGV[6])), tokens = tonumber(ARGV[12]), save = tonumber(ARGV[13]),
  least = tonumber(ARGV[14]), bucket = ARGV[15], prints = {}, lengths = {} }
for i = 1, prints / 2 do
  w.prints[i], w.lengths[i] = ARGV[15 + 2 * i], tonumber(ARGV[16 + 2 * i])
end
if prints > 0 then look_up(w, counters().generation) end

-- The candidates. Often the first is as good as any, and nobody waits.
local candidates, by_tag, avoid, chosen = {}, {}, ARGV[7], nil
local others, first = false, length <= left_queue and avoid == ''
for i = 17 + prints, #ARGV - 2, 3 do
  local b = backend(ARGV[i], ARGV[i + 1])
  b.tag = ARGV[i + 2]
  if prints > 0 then by_tag[tag_of(b)] = b end
  if first and free(b) then
    first = false
    if prints > 0 then match(w, by_tag) end
    if near(b, w) then
      chosen, candidates[1] = b, b
      break
    end
    b.matched = false
  end
  if b.usable then
    candidates[#candidates + 1] = b
    others = others or b.id ~= avoid
  end
end
if not chosen then
  if not others then avoid = '' end
  if length > left_queue then -- those who wait go first
    local offered = { unpack(candidates) }
    offered[#offered + 1] = freed[1]
    hand_over(offered, 16)
  end
  for _, b in ipairs(candidates) do b.matched = false end
  match(w, by_tag)
  chosen = best(candidates, w, avoid)
end

local function outcome()
  if #candidates == 0 then return { 4, '', 0, int(now), 0, 0, 0 } end
  if chosen then
    claim(chosen, w)
    remember(w, chosen)
    return { 1, chosen.id, 0, int(now), 0, int(chosen.matched or 0), int(chosen.score * 1000) }
  end
  if ARGV[8] ~= '1' or length - left_queue >= tonumber(ARGV[9]) then return { 3, '', 0, int(now), 0, 0, 0 } end
  w.avoid = avoid
  local seq, ahead = join(w, length, { class = ARGV[10], packed = table.concat(ARGV, ' ', 10, 16 + prints) })
  return { 2, '', ahead, int(now), seq, 0, 0 }
end

local reply = outcome()
settle_turns()
commit()
return reply
