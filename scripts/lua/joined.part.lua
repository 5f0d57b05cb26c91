-- Part: several settlements at once, as pipeline joins them: * in place of the rid, then for each the number of its arguments
-- and these. What many of them add to the same counter is added once. Included by settle.lua, with its locals root, call, now,
-- stamp and argv (its ARGV).
--
-- Only the usual ones are done here (the claim is filed as the replica has it, the request stays counted, no sum can leave
-- the numbers); for any other the reply is nil, nothing of it is touched, and it is sent alone.
-- TestSettleTogetherOrAlone holds both ways to each other.
local format, pcall, at, rids, n, i = string.format, redis.pcall, {}, {}, 0, 2
while argv[i] do
  n = n + 1
  at[n], rids[n] = i, argv[i + 1]
  i = i + 1 + argv[i]
end
at[n + 1] = i

-- First half: sums of what they add.
local filed = call('HMGET', open, unpack(rids))
call('ZCARD', reservations)
call('XLEN', usage)
local old
if now % 8 < n then old = call('ZRANGEBYSCORE', settled, '-inf', format('%d', now - 3600000), 'LIMIT', '0', '100') end
local reply, done, seen = {}, {}, {}
local odd = {} -- counters, by index, that are to be made (false), or to which HINCRBY could not add so much money
local sums, counters, cells, moved, counts, names, figures, asked = {}, {}, {}, {}, {}, {}, {}, {}
for j = 1, n do
  local a, rid = at[j], rids[j]
  local claim, prompt, cached, completion, cost, hold = argv[a + 2], argv[a + 4], argv[a + 5], argv[a + 6], argv[a + 7], argv[a + 14]
  reply[j] = false
  if filed[j] and filed[j] == claim and argv[a + 3] == '1' and argv[a + 13] ~= '' and not seen[rid] and #cost <= 13 and #hold <= 13
    and #prompt <= 13 and #cached <= 13 and #completion <= 13 then
    done[#done + 1], reply[j] = j, { 1 }
    local by = prompt + completion - argv[a + 13]
    local scope
    for i = a + 16, at[j + 1] - 1, 3 do
      local name, cell = argv[i], argv[i + 2]
      if name ~= '' then scope = ':spend:' .. name .. ':' end
      local spend = scope .. argv[i + 1]
      local c = sums[spend]
      if not c then
        c = { 0, 0, 0, 0, 0, 0 }
        sums[spend], counters[#counters + 1] = c, spend
        if call('HEXISTS', root .. spend, 'spent_nusd') == 0 then odd[#odd + 1], odd[#odd + 2] = #counters, false end
      end
      c[1], c[2], c[3], c[4], c[5], c[6] = c[1] + hold, c[2] + cost, c[3] + 1, c[4] + prompt, c[5] + cached, c[6] + completion
      if name ~= '' then
        if not counts[name] then
          counts[name], names[#names + 1] = 0, name
        end
        counts[name] = counts[name] + 1
        if by ~= 0 and cell ~= '' then
          local rate = name .. ' ' .. cell
          local m = cells[rate]
          if m == nil then
            local key = root .. ':rate:' .. name
            m = call('HEXISTS', key, cell) == 1 and { key, cell, 0 }
            cells[rate] = m
            if m then moved[#moved + 1] = m end
          end
          if m then m[3] = m[3] + by end
        end
      end
    end
    if argv[a + 10] ~= '0' then
      local key = string.match(claim, '^%l %S+ %d+ %d+ %d+ %d+ %S+ %S+ %d+ %d+ (%S+)') or ''
      for k = 1, 2 do
        local field = k == 1 and 'bytes:' .. argv[a + 11] or 'length:' .. key .. ':' .. argv[a + 11]
        if not figures[field] then
          figures[field], asked[#asked + 1] = true, field
        end
        at[-2 * j + k - 1] = field
      end
    end
  end
  seen[rid] = true
end
if not done[1] then return reply end
local running = call('HMGET', root .. ':parallel', unpack(names))
local learned = asked[1] and call('HMGET', root .. ':learned', unpack(asked))

-- Second half. The first write is its own check; nothing after it can fail, every other key was read above.
local stamped, gone = {}, {}
for k = 1, #done do
  gone[k], stamped[2 * k - 1], stamped[2 * k] = rids[done[k]], stamp, rids[done[k]]
end
call('ZADD', settled, unpack(stamped))
if old then
  if old[1] then
    call('ZREM', settled, unpack(old))
    call('HDEL', open, unpack(old))
  end
  call('XTRIM', usage, 'MAXLEN', '~', '100000')
end
local fields = { 'reserved_nusd', 'spent_nusd', 'requests', 'prompt_tokens', 'cached_tokens', 'completion_tokens' }
for k = 1, #counters do
  local counter, c = root .. counters[k], sums[counters[k]]
  if c[1] ~= 0 then
    local left = pcall('HINCRBY', counter, 'reserved_nusd', format('%d', -c[1]))
    -- Nothing goes below 0, whatever somebody deleted by hand.
    if type(left) == 'table' or left < 0 then call('HSET', counter, 'reserved_nusd', '0') end
  end
  for f = 2, 6 do
    if c[f] ~= 0 and type(pcall('HINCRBY', counter, fields[f], format('%d', c[f]))) == 'table' and f == 2 then
      odd[#odd + 1], odd[#odd + 2] = k, c[f]
    end
  end
end
if odd[1] then
  -- include period.part.lua
  -- include spend.part.lua
  for k = 1, #odd, 2 do
    local counter = root .. counters[odd[k]]
    if odd[k + 1] then
      typed(counter, 'spent_nusd', odd[k + 1])
    else
      born(counter, string.match(counter, '[^:]+$'))
    end
  end
end
for k = 1, #moved do
  local m = moved[k]
  if m[3] ~= 0 then
    local by = format('%d', m[3])
    call('HINCRBY', m[1], m[2], by)
    call('HINCRBY', m[1], 'tokens', by)
  end
end
local left, none = {}, {}
for k = 1, #names do
  local v = running[k]
  local still = v and (tonumber(v) or 0) - counts[names[k]] or 0
  if still > 0 then
    left[#left + 1], left[#left + 2] = names[k], format('%d', still)
  elseif v then
    none[#none + 1] = names[k]
  end
end
if left[1] then call('HSET', root .. ':parallel', unpack(left)) end
if none[1] then call('HDEL', root .. ':parallel', unpack(none)) end
call('HDEL', open, unpack(gone))
call('ZREM', reservations, unpack(gone))
if learned then
  for k = 1, #asked do figures[asked[k]] = learned[k] end
  for k = 1, #done do
    local j = done[k]
    local a = at[j]
    for f = 1, at[-2 * j] and 2 or 0 do
      local field = at[-2 * j + f - 1]
      local sample = f == 1 and argv[a + 10] * 1000 / argv[a + 4] or argv[a + 6] * 1000 / argv[a + 12]
      figures[field] = format('%d', moved_mean(figures[field], f, sample))
    end
  end
  local values = {}
  for k = 1, #asked do
    values[2 * k - 1], values[2 * k] = asked[k], figures[asked[k]]
  end
  call('HSET', root .. ':learned', unpack(values))
end
for k = 1, #done do
  local record = argv[at[done[k]] + 8]
  if record ~= '' then call('XADD', usage, '*', 'record', record) end
end
return reply
