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
-- cost     3 reads when nothing is held; else 4 reads and 2 writes, and about 6 of each for a slot handed over; up to 6 reads
--          more where many wait who cannot use it

local call, tonumber, floor = redis.call, tonumber, math.floor
local root, rid, attempt, replica, ran = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local held, waiting = root .. ':held:' .. replica, root .. ':waiting:' .. replica
local TELLING = 100 -- ms; a shorter time to the first token, as expected, says nothing of the rate
local SLOWEST, FASTEST = 1000, 1e9 -- MU per second
-- STEP is how far one sample moves the rate at most. Samples come when requests end, many seconds after the backlog they
-- speak of: with a twentieth, rates swung between a fifth and three times the true one (bench/replay).
local STEP = 0.005

-- First half.
local lease, member, length = call('HGET', held, rid), call('HGET', waiting, rid), call('ZCARD', root .. ':queue')

-- The usual case, without what the others need: a lease ends, and nobody waits. It does what the general case below does;
-- TestReleaseQuickOrNot holds them to each other. Whatever is unusual leaves it.
repeat
  if not lease or member or length > 0 then break end
  local had, id, at, prompt_output, prompt, work = string.match(lease, '^(%d+) (%S+) %d+ (%d+) (%d+) (%d+) (%d+) ')
  if not had or tonumber(had) > attempt then break end
  local key = root .. ':backend:' .. id
  local f = redis.pcall('HMGET', key, 'slots', 'held', 'cooldown_until', 'capacity_mu', 'rate_mu', 'backlog', 'backlog_at',
    'output_held', 'tokens_sent', 'external', 'kv', 'read_at')
  if f.err then break end
  local slots, used, cool, capacity, rate = tonumber(f[1]), tonumber(f[2] or 0), tonumber(f[3] or 0), tonumber(f[4] or 0), tonumber(f[5] or 0)
  local backlog, touched, output, sent = tonumber(f[6] or 0), tonumber(f[7] or 0), tonumber(f[8] or 0), tonumber(f[9] or 0)
  if not (slots and used and cool and capacity and rate and backlog and touched and output and sent)
    or not (slots >= 0 and used > 0 and cool >= 0 and capacity >= 0 and rate >= 0 and capacity + rate > 0 and backlog >= 0 and backlog < 1e15
    and touched >= 0 and touched < 1e15 and output >= 0 and output < 1e15 and sent >= 0 and sent < 1e15)
    or (slots + used + cool + capacity + rate + backlog + touched + output) % 1 + sent % 1 > 0
    or string.find((f[10] or '') .. (f[11] or ''), '%D') or #(f[10] or '') > 15 or #(f[11] or '') > 15 or not tonumber(f[12] or 0) then
    break
  end
  local clock = call('TIME')
  local now = tonumber(ARGV[7]) or clock[1] * 1000 + floor(clock[2] / 1000)
  local speed = capacity
  if capacity == 0 then
    speed = rate
  elseif rate > 0 then
    speed = math.min(math.max(rate, capacity / 4), capacity * 4)
  end
  if now > touched then
    if backlog > 0 then
      backlog = floor(backlog - speed * (now - touched) / 1000)
      if backlog < 0 then backlog = 0 end
    end
    touched = now
  end
  local format = string.format
  output = output - prompt_output
  local figures = { 'HSET', key, 'held', format('%d', used - 1), 'backlog_at', format('%d', touched), 'output_held',
    format('%d', output > 0 and output or 0), 'backlog', 0 }
  if ran == '1' then -- it came last, so it is what is left of work
    local rest = work - speed * (now - at) / 1000
    backlog = math.max(0, backlog - floor(math.min(math.max(rest, 0), tonumber(prompt))))
  elseif ran == '2' then
    local ttft = tonumber(ARGV[5])
    work = tonumber(work)
    figures[11], figures[12], figures[13], figures[14], figures[15] = 'failures', '0', 'silent', '0', 'tokens_sent'
    figures[16] = format('%d', sent + ARGV[6])
    -- The work that lay before the request's first token took it ttft ms.
    if ttft > 0 and work > 0 and math.max(ttft, work * 1000 / speed) >= TELLING then
      local step = math.min(math.max((work * 1000 / ttft / speed - 1) / 8, -STEP), STEP)
      figures[17], figures[18] = 'rate_mu', format('%d', math.min(math.max(floor(speed * (1 + step)), SLOWEST), FASTEST))
    end
  end
  figures[10] = format('%d', backlog)

  -- Second half: both keys were read.
  call(unpack(figures))
  call('HDEL', held, rid)
  return { 1, 0, 0, now }
until true

-- include slots.part.lua
-- include score.part.lua
-- include prefixes.part.lua
-- include queue.part.lua
now = tonumber(ARGV[7]) or now

-- learn corrects the rate of b: the work that lay before the request's first token took it ttft ms.
local function learn(b, work, ttft)
  if ttft <= 0 or work <= 0 or math.max(ttft, work * 1000 / b.speed) < TELLING then return end
  local step = math.min(math.max((work * 1000 / ttft / b.speed - 1) / 8, -STEP), STEP)
  local rate = math.min(math.max(math.floor(b.speed * (1 + step)), SLOWEST), FASTEST)
  b.more[#b.more + 1], b.more[#b.more + 2] = 'rate_mu', int(rate)
end

member = member and member_of(member)
local released, dequeued, grants, freed = 0, 0, 0, nil
if lease and lease_of(lease) <= attempt then
  local b, at, prompt, work = give_back(replica, rid, lease)
  freed, released = b, 1
  if b and b.readable and at then
    if ran == '1' then -- it came last, so it is what is left of work
      b.backlog = math.max(0, b.backlog - math.floor(math.min(math.max(work - b.speed * (now - at) / 1000, 0), prompt)))
    elseif ran == '2' then
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
    unqueue(member, replica, rid)
    dequeued = 1
  end
end
if freed then grants = hand_over({ freed }, 16, FAR) end

settle_turns()
commit()
return { released, dequeued, grants, int(now) }
