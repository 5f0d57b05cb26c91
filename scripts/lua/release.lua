#!lua flags=allow-oom
-- release: ends all that a request holds in the pool for attempts up to one (slot, grant, place in the queue), lets the
-- backend's figures learn from how it went, and hands the slot to whoever waits and can use it.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  rid
-- ARGV[2]  attempt  what a later attempt holds stays
-- ARGV[3]  replica  that placed it
-- ARGV[4]  ran      0 nothing is known of how it went · 1 it was never sent to the backend: its work leaves the backlog ·
--                   2 the backend gave a first token: its failures in a row are over
-- ARGV[5]  ttft     ms from the slot to the first token of a stream; 0 = not known
-- ARGV[6]  tokens   that were generated
-- ARGV[7]  now_ms   absent; tests put their clock here
--
-- reply    released  1 if a slot was given back
--          dequeued  1 if a place in the queue was given up
--          granted   slots handed over, 0 to 16
--          now       ms
-- repeat   replies 0, 0, 0 and changes nothing
-- cost     2 reads when nothing is held; else 4 reads and 2 writes, and about 6 of each for a slot handed over

-- include slots.part.lua
-- include score.part.lua
-- include prefixes.part.lua
-- include queue.part.lua
now = tonumber(ARGV[7]) or now
local rid, attempt, replica = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local held, waiting = root .. ':held:' .. replica, root .. ':waiting:' .. replica
local TELLING = 100 -- ms; a shorter time to the first token, as expected, says nothing of the rate
local SLOWEST, FASTEST = 1000, 1e9 -- MU per second

-- learn corrects the rate of b: the work that lay before the request's first token took it ttft ms. One sample moves it
-- by a twentieth at most.
local function learn(b, work, ttft)
  if ttft <= 0 or work <= 0 or math.max(ttft, work * 1000 / b.speed) < TELLING then return end
  local step = math.min(math.max((work * 1000 / ttft / b.speed - 1) / 8, -0.05), 0.05)
  local rate = math.min(math.max(math.floor(b.speed * (1 + step)), SLOWEST), FASTEST)
  b.more[#b.more + 1], b.more[#b.more + 2] = 'rate_mu', int(rate)
end

-- First half.
local lease, member = redis.call('HGET', held, rid), redis.call('HGET', waiting, rid)
member = member and member_of(member)
local released, dequeued, grants, freed = 0, 0, 0, nil
if lease and lease_of(lease) <= attempt then
  local b, at, prompt, work = give_back(replica, rid, lease)
  freed, released = b, 1
  if b and b.readable and at then
    if ARGV[4] == '1' then -- it came last, so it is what is left of work
      b.backlog = math.max(0, b.backlog - math.floor(math.min(math.max(work - b.speed * (now - at) / 1000, 0), prompt)))
    elseif ARGV[4] == '2' then
      local tokens = tonumber(ARGV[6])
      learn(b, work, tonumber(ARGV[5]))
      history(b).sent = b.sent + tokens
      local n = #b.more
      b.more[n + 1], b.more[n + 2], b.more[n + 3], b.more[n + 4] = 'failures', '0', 'silent', '0'
      b.more[n + 5], b.more[n + 6] = 'tokens_sent', int(b.sent)
    end
  end
end
if member then
  local w = waiter_of(member)
  if not w or w.attempt <= attempt then
    redis.call('ZCARD', queue)
    unqueue(member, replica, rid)
    dequeued = 1
  end
end
if freed then grants = hand_over({ freed }, 16) end

settle_turns()
commit()
return { released, dequeued, grants, int(now) }
