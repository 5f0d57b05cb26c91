#!lua
-- extend: a stream that is held in tranches goes on: its hold covers so many tokens of output in all, or as many as the
-- budgets have left. It sets a total and never adds, so a repeat does no harm.
--
-- KEYS[1]  root    hg:{t:<tenant>}; below it: open · the policies, rate and spend counters the claim names
-- ARGV[1]  rid     32 hex digits
-- ARGV[2]  hash    of the API key, 64 hex digits
-- ARGV[3]  total   tokens of output, 1 to 1e9
-- ARGV[4]  now_ms  absent; tests put their clock here
--
-- reply    1 granted  tokens of output held now, never fewer than before; 0: not open, or not held in tranches
--          2 claim    as filed now; "" with 0
-- repeat   the same, changes nothing
-- cost     3 scopes with tpm and budget: 10 reads, 10 writes; less when nothing is granted
local root, rid = KEYS[1], ARGV[1]
local call, match, format = redis.call, string.match, string.format
local now = tonumber(ARGV[4])
if not now then
  local t = call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local filed = call('HGET', root .. ':open', rid)
local state, owner, at, tokens, prompt, hold, scopes, tops, out, price, key, rest = match(filed or '',
  '^([or]) (%S+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%d+) (%d+) (%S+) (%S+ %S+ %S+)$')
if not state or out == '0' then return { 0, '' } end
tokens, prompt, hold, out, price = tonumber(tokens), tonumber(prompt), tonumber(hold), tonumber(out), tonumber(price)
local total, base = tonumber(ARGV[3]), hold - math.ceil(out * price / 1000)

-- Nano-dollars; nil: unreadable.
local function nusd(text)
  local whole, part = match(text, '^(%d+)%.?(%d*)$')
  if whole and #whole <= 7 then return whole * 1000000000 + tonumber(string.sub(part .. '000000000', 1, 9)) end
end

-- The budget that a policy sets for a period today, as the name of the period in a key stands for it; nil: none, false:
-- unreadable.
local function budget(policy, period)
  local spec = match(period, '^%d+%-%d+%-%d+$') and 'day' or match(period, '^%d+%-W') and 'week' or match(period, '^%d+%-%d+$') and 'month'
    or match(period, '^([^@]+)')
  local least = nil
  if policy[1] and (policy[2] or 'month') == spec then least = nusd(policy[1]) or false end
  for usd, its in string.gmatch(policy[3] or '', '([^%s,/]+)/([^%s,/]+)') do
    local bound = its == spec and (nusd(usd) or false)
    if its == spec and least ~= false and (not bound or not least or bound < least) then least = bound end
  end
  return least
end

-- First half.
local granted, counters, rates, second = total, {}, {}, math.floor(now / 1000)
for name, cell, t, periods in string.gmatch(scopes, '([^:;]+:[^:;]+):(%d+)(t?):([^;]+)') do
  local policy
  if name == 'key:' .. key then
    policy = call('HMGET', root .. ':key:' .. ARGV[2], 'budget_usd', 'period', 'budgets', 'id')
    if policy[4] ~= key then granted = out end
  else
    policy = call('HMGET', match(name, '^tenant:') and root or root .. ':' .. name, 'budget_usd', 'period', 'budgets')
  end
  for period in string.gmatch(periods, '[^,]+') do
    local counter = root .. ':spend:' .. name .. ':' .. period
    counters[#counters + 1] = counter
    local v = call('HMGET', counter, 'spent_nusd', 'reserved_nusd')
    local bound, spent, reserved = budget(policy, period), tonumber(v[1] or 0), tonumber(v[2] or 0)
    if bound == false or not spent or not reserved or spent ~= spent or reserved ~= reserved then
      granted = out
    elseif bound and price > 0 then
      granted = math.min(granted, math.floor((bound - spent - reserved + hold - base) * 1000 / price))
    end
  end
  if t == 't' then
    local v = call('HMGET', root .. ':rate:' .. name, 'tokens', 'last')
    local sum, last = tonumber(v[1] or 0) or 0, v[2] and tonumber(v[2])
    if last and (now - last >= 60000 or last - now > 60000) then last = nil end
    rates[#rates + 1] = { root .. ':rate:' .. name, last and sum or 0, last }
    -- Time does not run back in any of them.
    if last then second = math.max(second, math.floor(last / 1000)) end
  end
end
if granted <= out then return { out, filed } end
local more = base + math.ceil(granted * price / 1000) - hold
local add = math.max(granted - (tokens - prompt), 0)
local cell, stamp = format('%d', second), math.max(now, second * 1000)
for i = 1, #rates do
  local v = call('HMGET', rates[i][1], cell, 't' .. cell)
  local r, seen = match(v[1] or '', '^(%d+) (%d+)$')
  rates[i][4], rates[i][5], rates[i][6] = rates[i][3] and r or '0', rates[i][3] and tonumber(v[2] or 0) or 0, tonumber(seen or 0)
end
if add > 0 then
  -- Top-ups of one second are one; those whose cell has left cannot be corrected any more.
  local kept = {}
  for s, n in string.gmatch(tops, '(%d+):(%d+)') do
    if second - s <= 61 then kept[#kept + 1], kept[#kept + 2] = s, tonumber(n) end
  end
  if kept[#kept - 1] == cell then
    kept[#kept] = kept[#kept] + add
  else
    kept[#kept + 1], kept[#kept + 2] = cell, add
  end
  for j = 2, #kept, 2 do
    kept[j / 2] = format('%s:%d', kept[j - 1], kept[j])
  end
  tops = table.concat(kept, ',', 1, #kept / 2)
end

-- Second half: every key was read above.
local claim = format('%s %s %s %d %d %d %s %s %d %d %s %s', state, owner, at, tokens + add, prompt, hold + more, scopes, tops, granted,
  price, key, rest)
call('HSET', root .. ':open', rid, claim)
if more > 0 then
  for i = 1, #counters do call('HINCRBY', counters[i], 'reserved_nusd', format('%d', more)) end
end
for i = 1, add > 0 and #rates or 0 do
  local rate, sum, last, r, t, seen = unpack(rates[i], 1, 6)
  if not last then
    call('DEL', rate)
    call('HSET', rate, 'requests', '0', 'leaves', format('%d', stamp + 60000))
  end
  call('HSET', rate, 'tokens', format('%d', sum + add), 'last', format('%d', math.max(last or 0, stamp)), cell,
    format('%s %d', r, math.max(seen, stamp)), 't' .. cell, format('%d', t + add))
  call('EXPIRE', rate, '120')
end
return { granted, claim }
