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
-- ARGV[17…]         fingerprint (no space), prompt tokens that are warm where it is found (up to its end, or to that of the
--                   answer behind it), fingerprint …: f pairs, shortest beginning first, none warmer than the last; then
--                   backend, slots and tag of the first candidate, and all others in one text, as few requests need them:
--                   "<backend> <slots> <tag>|" each (at most 32 candidates, in ring order; a backend of "": none at all).
--                   slots count, and are written, where the record has none; tag as in prefixes.part.lua, "" = not known;
--                   then now_ms, absent: tests put their clock here
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
-- cost     4 reads and 2 writes if nobody waits and the first candidate's score is within 50 ms, with fingerprints 3 reads and 1
--          write more; else 1 read for each candidate more, and about 6 of each for every slot handed over

local call, pcall, tonumber, floor = redis.call, redis.pcall, tonumber, math.floor
local root, rid, attempt, replica, avoid, prints = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[7], 2 * ARGV[16]
local clock = call('TIME')
local now = clock[1] * 1000 + floor(clock[2] / 1000)
if #ARGV > 20 + prints then now = tonumber(ARGV[#ARGV]) end
local held, turns = root .. ':held:' .. replica, root .. ':turns'

-- First half: what this rid holds. A replica that holds something must be seen by those who clear the dead, also before its
-- first beat.
local lease = call('HGET', held, rid)
local length, beaten = call('ZCARD', root .. ':queue'), call('ZSCORE', root .. ':replicas', replica)

-- The usual case, without what the others need: nobody waits, and the first candidate is as good as any. It does what the
-- general case below does; TestPlaceQuickOrNot holds them to each other. Whatever is unusual leaves it.
repeat
  if lease or length > 0 or avoid ~= '' or ARGV[prints + 17] == '' then break end
  local id, tag = ARGV[prints + 17], ARGV[prints + 19]
  local key = root .. ':backend:' .. id
  local f = pcall('HMGET', key, 'slots', 'held', 'draining', 'cooldown_until', 'capacity_mu', 'rate_mu', 'backlog', 'backlog_at',
    'output_held', 'read_at', 'external', 'kv', 'tokens_sent', 'restarts', 'kv_tokens', 'mean_mu')
  if f.err or f[3] and f[3] ~= '0' then break end
  local slots, used, cool, capacity, rate = tonumber(f[1]), tonumber(f[2] or 0), tonumber(f[4] or 0), tonumber(f[5] or 0), tonumber(f[6] or 0)
  local backlog, touched, output, at = tonumber(f[7] or 0), tonumber(f[8] or 0), tonumber(f[9] or 0), tonumber(f[10] or 0)
  local sent, restarts, room, mean = tonumber(f[13] or 0), tonumber(f[14] or 0), tonumber(f[15] or 262144), tonumber(f[16] or 0)
  if not (slots and used and cool and capacity and rate and backlog and touched and output and at and sent and restarts and room and mean)
    or not (used >= 0 and used < slots and cool >= 0 and cool <= now and capacity >= 0 and rate >= 0 and capacity + rate > 0
    and backlog >= 0 and backlog < 1e15 and touched >= 0 and touched < 1e15 and output >= 0 and output < 1e15 and sent >= 0 and sent < 1e15
    and restarts >= 0 and restarts < 1e15 and room >= 0 and room < 1e15 and mean >= 0 and mean < 1e15)
    or (slots + used + cool + capacity + rate + backlog + touched + output) % 1 + (sent + restarts + room + mean) % 1 > 0 then
    break
  end
  local kv = 0
  if at + 5000 >= now then
    kv = tonumber(f[12] or 0)
    if f[11] and f[11] ~= '0' or not (kv and kv >= 0 and kv <= 9500 and kv % 1 == 0) then break end
  end
  if capacity > 0 then
    if rate == 0 then
      rate = capacity
    elseif rate > capacity * 4 then
      rate = capacity * 4
    elseif rate < capacity / 4 then
      rate = capacity / 4
    end
  end
  if now > touched then
    if backlog > 0 then
      backlog = floor(backlog - rate * (now - touched) / 1000)
      if backlog < 0 then backlog = 0 end
    end
    touched = now
  end

  -- Where the prompt's beginning is warm.
  local mu, more, save = tonumber(ARGV[6]), tonumber(ARGV[11]), ARGV[13]
  if more > mu then more = mu end
  local matched, age, name, found, older = 0, 0, nil, nil, nil
  if prints > 0 then
    -- What it costs at least, if all of it is warm.
    if (backlog + math.max(0, mu - more - ARGV[16 + prints] * save) + 0.1 * output) / rate > 0.05 then break end
    if tag == '' then break end
    local t = pcall('HMGET', turns, 'generation', 'generation_at')
    if t.err or not (t[1] and t[2] and string.find(t[1] .. ' ' .. t[2], '^[1-9]%d* [1-9]%d*$')) or #t[1] > 15 or #t[2] > 15 then break end
    name = root .. ':prefix:' .. t[1] .. ':' .. ARGV[15]
    local names, n, k = {}, 0, 0
    for i = 17, 15 + prints, 2 do
      n = n + 1
      names[n] = ARGV[i]
    end
    found = pcall('HMGET', name, unpack(names))
    if found.err then break end
    -- What the newer generation has not, the older may have.
    local asked = {}
    for i = 1, n do
      if not found[i] then
        k = k + 1
        asked[k] = i
        names[k] = names[i]
      end
    end
    if k > 0 then
      local old = pcall('HMGET', string.format('%s:prefix:%d:%s', root, t[1] - 1, ARGV[15]), unpack(names, 1, k))
      older = { fresh = k == n }
      for j = 1, old.err and 0 or k do
        if old[j] then found[asked[j]], older[asked[j]] = old[j], true end
      end
    end
    local least, last = tonumber(ARGV[14]), false
    for i = n, 1, -1 do
      local entry, tokens = found[i], tonumber(ARGV[16 + 2 * i])
      if entry and entry ~= last and tokens >= least then
        last = entry
        for whose, restart, as_of in string.gmatch(entry, '(%x%x%x%x%x)(%x+)%.(%x+)') do
          if whose == tag and matched == 0 and tonumber(restart, 16) == restarts and sent - tonumber(as_of, 16) * 1000 < room then
            matched, age = tokens, sent - tonumber(as_of, 16) * 1000
          end
        end
        if matched > 0 then break end
      end
    end
  end
  local own = mu - more - matched * save
  if own < 0 then own = 0 end
  local score = (backlog + own + 0.1 * output) / rate
  local tokens = ARGV[12] - matched
  if score > 0.05 or kv > 0 and tokens >= 4096 and tokens > room * (1 - kv / 10000) then break end

  -- Second half: every key was read.
  local format = string.format
  if tokens > 0 then sent = sent + tokens end
  if age > 0 then sent = sent + floor(matched * (age < room and age / room or 1)) end
  backlog = backlog + own
  if not beaten then call('ZADD', root .. ':replicas', format('%d', now), replica) end
  call('HSET', key, 'tokens_sent', format('%d', sent), 'mean_mu', format('%d', mean == 0 and mu or floor(mean + (mu - mean) / 32 + 0.5)),
    'held', format('%d', used + 1), 'backlog', format('%d', backlog), 'backlog_at', format('%d', touched), 'output_held',
    format('%d', output + more))
  call('HSET', held, rid, format('%d %s %d %d %d %d %d %s', attempt, id, mu, now, more, own, backlog, ARGV[4]))
  if prints > 0 then
    local n, k, values, last, value, recent = prints / 2, 0, {}, nil, nil, false
    local mine = format('%s%x.%x', tag, restarts, floor(sent / 1000))
    for i = 1, n do
      local entry = found[i]
      if entry ~= last then
        last, value, recent = entry, nil, false
        if entry then
          local first, restart, as_of = string.match(entry, '^(%x%x%x%x%x)(%x+)%.(%x+)')
          recent = first == tag and tonumber(restart, 16) == restarts and (sent - tonumber(as_of, 16) * 1000) * 16 < room
        end
      end
      if not recent or older and older[i] then
        if not value then
          value = mine
          local named = 1
          for other in string.gmatch(entry or '', '%S+') do
            if named < 3 and string.sub(other, 1, 5) ~= tag then value, named = value .. ' ' .. other, named + 1 end
          end
        end
        values[k + 1], values[k + 2] = ARGV[15 + 2 * i], value
        k = k + 2
      end
    end
    if k > 0 then call('HSET', name, unpack(values, 1, k)) end
    if older and older.fresh then call('PEXPIRE', name, '3900000') end
  end
  return { 1, id, 0, now, 0, matched, floor(score * 1000) }
until true

-- include slots.part.lua
-- include score.part.lua
-- include prefixes.part.lua
-- include queue.part.lua
if #ARGV > 20 + prints then now = tonumber(ARGV[#ARGV]) end
local waiting, freed = root .. ':waiting:' .. replica, {}
local member = call('HGET', waiting, rid)
member = member and member_of(member)
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

if not beaten then later('ZADD', replicas, int(now), replica) end
local w = { rid = rid, attempt = attempt, replica = replica, tenant = ARGV[4], model = ARGV[5], mu = tonumber(ARGV[6]),
  output = math.min(tonumber(ARGV[11]), tonumber(ARGV[6])), tokens = tonumber(ARGV[12]), save = tonumber(ARGV[13]),
  least = tonumber(ARGV[14]), bucket = ARGV[15], prints = {}, lengths = {} }
for i = 1, prints / 2 do
  w.prints[i], w.lengths[i] = ARGV[15 + 2 * i], tonumber(ARGV[16 + 2 * i])
end
if prints > 0 then look_up(w, counters().generation) end

-- The candidates. Often the first is as good as any, and nobody waits.
local candidates, by_tag, chosen = {}, {}, nil
local others, first = false, length <= left_queue and avoid == ''
local next_one, others_left = string.gmatch(ARGV[prints + 20], '([^ |]+) ([^ |]*) ([^|]*)|')
local name, known, tag = ARGV[prints + 17], ARGV[prints + 18], ARGV[prints + 19]
while name and name ~= '' do
  local b = backend(name, known)
  b.tag = tag
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
  name, known, tag = next_one(others_left)
end
if not chosen then
  if not others then avoid = '' end
  if length > left_queue then -- those who wait go first
    local offered = { unpack(candidates) }
    offered[#offered + 1] = freed[1]
    hand_over(offered, 16, WINDOW)
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
