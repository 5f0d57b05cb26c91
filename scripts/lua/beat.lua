#!lua flags=allow-oom
-- beat: says that a replica lives, publishes what it knows of backends, hands free slots to the waiting, and tells the
-- replica which of its waiting requests have been granted a slot meanwhile.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  replica
-- ARGV[2]  w        number of rids, 0 to 100
-- ARGV[3…2+w]       rids the replica was told to wait for
-- ARGV[3+w…]        backend, address, slots, draining (0 or 1), capacity_mu (MU per second, in thousandths; 0 = not
--                   said), models (percent-encoded, parted by spaces; "" = not known to this replica), backend … (at most
--                   64). All but models are written when the record has no slots or the registration has changed since it
--                   was last written, so a figure set by hand holds until then; then now_ms, absent: tests put theirs here
--
-- reply    now         ms
--          leases      of this replica
--          grants      flat: rid, attempt, backend, matched, … of the rids that hold a slot; matched: prompt tokens that are warm there,
--                      if this beat granted it, else 0
--          lost        rids that hold no slot and are not in the queue
--          replicas    flat: replica, last beat (ms), …: those with the oldest beats: 256 in hg:{p:}, where all are listed who
--                      live; elsewhere 32, and 256 once the beats of so many are a second late
--          unreadable  backends of ARGV whose record cannot be read
--          granted     slots handed over to anybody, 0 to 64
-- repeat   moves the beat on, else changes nothing that is not free to be handed over
-- cost     7 + 2 · backends reads, 16 more once prompts have left fingerprints, 1 + backends writes; 6 more of each for every
--          slot handed over

-- include slots.part.lua
-- include score.part.lua
-- include prefixes.part.lua
-- include queue.part.lua
local replica, n = ARGV[1], tonumber(ARGV[2])
if (#ARGV - 2 - n) % 6 == 1 then now = tonumber(ARGV[#ARGV]) end
local held, waiting = root .. ':held:' .. replica, root .. ':waiting:' .. replica
local KEEP = '86400000' -- ms; the record of a backend that nobody has seen for a day goes

-- First half: the backends.
local offered, unreadable = {}, {}
for i = 3 + n, #ARGV - 5, 6 do
  local address, slots, draining, capacity, models = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local b = backend(ARGV[i], slots)
  local registered = table.concat({ slots, draining, capacity, address }, ' ')
  if b.typed then
    local before = redis.call('HMGET', b.key, 'registered', 'models')
    if not b.recorded or before[1] ~= registered then
      later('HSET', b.key, 'address', address, 'slots', slots, 'draining', draining, 'capacity_mu', capacity, 'registered',
        registered)
      if b.capacity ~= whole(capacity) then -- what was learned corrected another figure
        later('HDEL', b.key, 'rate_mu')
        b.rate = 0
      end
      b.slots, b.draining, b.recorded, b.capacity = whole(slots), draining == '1', slots, whole(capacity)
      judge(b)
      if b.held then touch(b) end
    end
    if models ~= '' and models ~= before[2] then later('HSET', b.key, 'models', models) end
    if models ~= '' then b.models = ' ' .. models .. ' ' end
    later('PEXPIRE', b.key, KEEP)
  end
  if b.readable then offered[#offered + 1] = b else unreadable[#unreadable + 1] = b.id end
end

-- The slots that are free though somebody waits: a cool-down that ended, a backend that is back.
local granted_now = hand_over(offered, 64, ALL)

-- The prefix index: a new generation begins when the newer one is full or old, and the older goes.
local FILLED, OLD = 1000000, 1800000 -- entries, ms
if redis.call('HGET', turns, 'generation') then
  local t, entries = counters(), 0
  for i = 0, 15 do entries = entries + (read('HLEN', prefix_key(t.generation, i)) or 0) end
  if entries >= FILLED or entries > 0 and now - t.at >= OLD then
    local older = { 'UNLINK' }
    for i = 0, 15 do older[i + 2] = prefix_key(t.generation - 1, i) end
    plan[#plan + 1] = older
    t.generation, t.at, t.changed = t.generation + 1, now, true
  end
end

-- What this replica holds. The reads also check the types of what a grant writes.
local leases, grants, lost = redis.call('HLEN', held), {}, {}
for _, w in pairs(granted) do
  if w.replica == replica then leases = leases + 1 end
end
if n > 0 then
  local rids = { unpack(ARGV, 3, 2 + n) }
  local values, entries = redis.call('HMGET', held, unpack(rids)), redis.call('HMGET', waiting, unpack(rids))
  for i, rid in ipairs(rids) do
    local attempt, id, matched
    if values[i] then attempt, id = lease_of(values[i]) end
    if granted[rid] then attempt, id, matched = granted[rid].attempt, granted[rid].on, granted[rid].matched end
    if id then
      local k = #grants
      grants[k + 1], grants[k + 2], grants[k + 3], grants[k + 4] = rid, int(attempt), id, int(matched or 0)
    elseif not entries[i] then
      lost[#lost + 1] = rid
    end
  end
end

-- The replicas, this one with the beat it is about to have. Every replica reads them every second in every pool, so that the
-- list costs by the square of the fleet: the dead come first, and only of the whole fleet everybody wants to know who lives.
local FEW, LATE = 32, 1000
local others = redis.call('ZRANGE', replicas, '0', root == 'hg:{p:}' and '255' or '31', 'WITHSCORES')
if #others == 2 * FEW and tonumber(others[#others]) + LATE < now then
  others = redis.call('ZRANGE', replicas, '0', '255', 'WITHSCORES')
end
for i = 1, #others, 2 do
  others[i + 1] = int(others[i] == replica and now or tonumber(others[i + 1]))
end
later('ZADD', replicas, int(now), replica)

settle_turns()
commit()
return { int(now), leases, grants, lost, others, unreadable, granted_now }
