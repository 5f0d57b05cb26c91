#!lua
-- admit: may this request run and spend? Identity, model list, limits and budgets of every scope that has a policy are
-- checked together; all pass and the request is counted and reserved in all of them, or nothing is touched.
--
-- KEYS[1]   root       hg:{t:<tenant>}, the tenant's policy; the keys below it are derived:
--                      key:<hash> team:<id> (policies) · rate:<scope>:<id> spend:<scope>:<id>:<period> parallel (counters)
--                      open reservations settled (reservations) · usage (only when it settles what has lapsed)
-- ARGV[1]   rid        32 hex digits
-- ARGV[2]   hash       of the API key, 64 hex digits
-- ARGV[3]   owner      the replica; no space
-- ARGV[4]   model      public name, an alias already replaced
-- ARGV[5]   known      1: the model exists
-- ARGV[6]   priced     1: its price is known
-- ARGV[7]   prompt     tokens, estimate, ≥ 0
-- ARGV[8]   cap        tokens, declared bound of the output, 0: none declared
-- ARGV[9]   usual      tokens, usual length of the output
-- ARGV[10]  hold_nusd  money to hold, ≤ 9e15
-- ARGV[11]  label      of the claim, see claim.part.lua; no space
-- ARGV[12]  now_ms     absent; tests put their clock here
--
-- reply    1 verdict     see admit.go
--          2 key 3 name 4 team 5 user    identity, "" where there is none
--          6 priority    0 to 9 of the first scope that sets it, -1: none
--          7 isolate     1: some scope sets isolate_prefix
--          8 claim       the reservation as filed; "" unless admitted
--          9 at          ms, Redis' clock
--         10 tokens 11 hold_nusd    what is held
--         12 budgeted    1: some scope has a budget
--         13 scope 14 id   of the first that refused; "" otherwise
--         15 limit 16 remaining   requests, tokens, running requests or nano-dollars
--         17 reset       ms until the refusal may end, 0: never by itself
--         18 lasting     1: until then nothing but a change of policy can end it (requests, spent money)
--         19 limit 20 remaining 21 reset (ms until the minute is empty) of the tightest rpm; limit -1: none
--         22 limit 23 remaining 24 reset of the tightest tpm
-- repeat   of an open rid: replies as admitted with what is filed, changes nothing; of a settled one: verdict 13
-- cost     3 scopes with rpm and budget: 13 reads, 10 writes
local root, rid, model = KEYS[1], ARGV[1], ARGV[4]
local call, floor, find, match, format = redis.call, math.floor, string.find, string.match, string.format
local clock, time = nil, tonumber(ARGV[12])
if time then
  clock = format('%d', floor(time / 1000))
else
  local t = call('TIME')
  clock = t[1]
  time = clock * 1000 + floor(t[2] / 1000)
end
local sec = tonumber(clock)

-- Identity.
local key = call('HMGET', root .. ':key:' .. ARGV[2], 'rpm', 'tpm', 'parallel', 'budget_usd', 'period', 'budgets', 'models',
  'disabled', 'created_at', 'priority', 'isolate_prefix', 'id', 'team', 'user', 'name', 'expires_at')
local id, team, user = key[12], key[13], key[14]
local scopes, ids, policies, n = { 'key' }, { id }, { key }, 1
local rates, hold_tokens, budgeted = {}, 0, 0
local priority, isolate = -1, 0

local function answer(verdict, claim, hold_nusd, scope, limit, remaining, reset, lasting)
  local q, qleft, qreset, t, tleft, treset = -1, 0, 0, -1, 0, 0
  local mine = verdict == 1 and 1 or 0
  for i = 1, n do
    local rate = rates[i]
    if rate then
      local back = mine == 1 and 60000 or rate.last and math.max(rate.last + 60000 - rate.now, 0) or 0
      if rate.rpm then
        local left = math.max(rate.rpm - rate.requests - mine, 0)
        if q < 0 or left < qleft then q, qleft, qreset = rate.rpm, left, back end
      end
      if rate.tpm then
        local left = math.max(rate.tpm - rate.tokens - mine * hold_tokens, 0)
        if t < 0 or left < tleft then t, tleft, treset = rate.tpm, left, back end
      end
    end
  end
  return { verdict, id or '', key[15] or '', team or '', user or '', priority, isolate, claim, time, mine * hold_tokens,
    mine * hold_nusd, budgeted, scope and scopes[scope] or '', scope and ids[scope] or '', limit, remaining, reset, lasting,
    q, qleft, qreset, t, tleft, treset }
end

local function refuse(verdict, scope, limit, remaining, reset, lasting)
  return answer(verdict, '', 0, scope, limit or 0, remaining or 0, reset or 0, lasting or 0)
end

if not id then
  for i = 1, 16 do
    if key[i] then return refuse(12, 1) end
  end
  return refuse(2)
end
if team == '' then team = nil end
if user == '' then user = nil end
local function readable(name) return #name <= 64 and find(name, '^[%w._@~-]+$') end
if not readable(id) or team and not readable(team) or user and not readable(user) then return refuse(12, 1) end

-- What has lapsed is settled first, so that it does not stand in the way: each in two halves of its own.
local due = call('ZRANGEBYSCORE', root .. ':reservations', '-inf', format('%d', time), 'LIMIT', '0', '2')
-- include period.part.lua
if due[1] then
  -- include claim.part.lua
  for i = 1, #due do
    local text = call('HGET', root .. ':open', due[i])
    if not text or not lapse(root, due[i], text, time) then call('ZREM', root .. ':reservations', due[i]) end
  end
end

local filed = call('HGET', root .. ':open', rid)
if filed then
  local state, at, tokens, nusd = match(filed, '^(%a) %S+ (%d+) (%d+) %d+ (%d+) ')
  if state == 'x' then return refuse(13) end
  if not state then return refuse(12) end
  time, hold_tokens = tonumber(at), tonumber(tokens)
  return answer(1, filed, tonumber(nusd), nil, 0, 0, 0, 0)
end
if call('ZSCORE', root .. ':settled', rid) then return refuse(13) end

if team then
  local p = call('HMGET', root .. ':team:' .. team, 'rpm', 'tpm', 'parallel', 'budget_usd', 'period', 'budgets', 'models',
    'disabled', 'created_at', 'priority', 'isolate_prefix')
  n = n + 1
  scopes[n], ids[n], policies[n] = 'team', team, p
end
n = n + 1
scopes[n], ids[n] = 'tenant', string.sub(root, 7, -2)
policies[n] = call('HMGET', root, 'rpm', 'tpm', 'parallel', 'budget_usd', 'period', 'budgets', 'models', 'disabled',
  'created_at', 'priority', 'isolate_prefix')

-- include models.part.lua
-- Scopes without a policy are left out; the lists stay dense.
local kept, barred = 0, nil
for i = 1, n do
  local p = policies[i]
  if i == 1 or p[1] or p[2] or p[3] or p[4] or p[5] or p[6] or p[7] or p[8] or p[9] or p[10] or p[11] then
    kept = kept + 1
    scopes[kept], ids[kept], policies[kept] = scopes[i], ids[i], p
    if p[8] and p[8] ~= '0' and p[8] ~= '' then barred = barred or kept end
    if p[10] and priority < 0 then priority = tonumber(match(p[10], '^%d$')) or -1 end
    if p[11] and p[11] ~= '0' and p[11] ~= '' then isolate = 1 end
  end
end
n = kept
if barred then return refuse(3, barred) end
local expires = key[16]
if expires and expires ~= '' and (not find(expires, '^%d+$') or time >= tonumber(expires)) then return refuse(4, 1) end

-- Model.
for i = 1, n do
  local models = policies[i][7]
  if models and not listed(models) then return refuse(5, i) end
end
if ARGV[5] ~= '1' then return refuse(6) end

-- Policies as numbers. A field that cannot be read refuses.
local garbled
local function count(text)
  if not text then return nil end
  if #text <= 15 and find(text, '^%d+$') then return tonumber(text) end
  garbled = true
end

local function nusd(text)
  local whole, part = match(text, '^(%d+)%.?(%d*)$')
  if not whole or #whole > 7 or tonumber(whole) > 9000000 or whole == '9000000' and tonumber(part .. '0') > 0 then
    garbled = true
    return nil
  end
  return whole * 1000000000 + tonumber(string.sub(part .. '000000000', 1, 9))
end

local spends, names, current = {}, {}, {} -- spends: scope, period, limit (false: only counted), three by three

local function period_of(spec, created)
  local name = current[spec]
  if name then return name end
  local from = 0
  if created then
    from = floor((tonumber(created) or 0) / 1000)
    if not find(created, '^%d+$') then garbled = true end
  end
  name = period_name(spec, sec, from)
  if not name then
    garbled = true
  elseif not find(name, '@', 1, true) then
    current[spec] = name
  end
  return name
end

-- The smallest limit of one scope and period decides.
local function budget(i, name, limit)
  for j = #spends - 2, 1, -3 do
    if spends[j] ~= i then break end
    if spends[j + 1] == name then
      spends[j + 2] = math.min(spends[j + 2], limit or 0)
      return
    end
  end
  local at = #spends
  spends[at + 1], spends[at + 2], spends[at + 3] = i, name, limit
  names[i] = names[i] and names[i] .. ',' .. (name or '') or name
end

local parallel = {}
for i = 1, n do
  local p = policies[i]
  local rpm, tpm = count(p[1]), count(p[2])
  parallel[i] = count(p[3])
  if rpm or tpm then
    -- All fields at once: a table that grows field by field is built anew four times.
    rates[i] = { rpm = rpm, tpm = tpm, key = root .. ':rate:' .. scopes[i] .. ':' .. ids[i], now = time, second = sec, cell = clock,
      requests = 0, tokens = 0, last = false, leaves = false, r = 0, t = 0, gone = false, stale = false }
  end
  if p[4] then
    budget(i, period_of(p[5] or 'month', p[9]), nusd(p[4]))
    budgeted = 1
  end
  if p[6] then
    for usd, spec in string.gmatch(p[6], '([^%s,/]+)/([^%s,/]+)') do
      budget(i, period_of(spec, p[9]), nusd(usd))
      budgeted = 1
    end
    if find(string.gsub(p[6], '[^%s,/]+/[^%s,/]+', ''), '[^%s,]') then garbled = true end
  end
  if not p[4] and not names[i] then budget(i, period_of('month'), false) end
  if garbled then
    rates = {}
    return refuse(12, i)
  end
end

-- A figure somebody wrote by hand that is none.
local function number(v)
  if not v then return 0 end
  local x = tonumber(v)
  if x and x >= 0 and x <= 9e15 then return x end
  garbled = true
  return 0
end

-- The sliding minutes as they stand at this instant.
-- include minute.part.lua
for i = 1, n do
  local rate = rates[i]
  if rate then
    local v = call('HMGET', rate.key, 'requests', 'tokens', 'last', 'leaves', clock)
    local last, cell = v[3] and number(v[3]), v[5]
    if last and time - last < 60000 and last - time <= 60000 then
      rate.last, rate.requests, rate.tokens, rate.leaves = last, number(v[1]), number(v[2]), number(v[4])
      if last > time then
        rate.now, rate.second = last, floor(last / 1000)
        rate.cell = format('%d', rate.second)
        cell = call('HGET', rate.key, rate.cell)
      end
      if cell then
        local r, t = match(cell, '^(%d+) (%d+) ')
        rate.r, rate.t = tonumber(r), tonumber(t)
        if not r then garbled = true end
      end
      if rate.now >= rate.leaves then leave(rate) end
    else
      -- Nothing in it counts any more, or the clock was set back by more than a minute.
      rate.stale = v[1] or v[2] or last or v[4]
    end
    if garbled then return refuse(12, i) end
  end
end

-- Limits: requests, tokens, running requests.
for i = 1, n do
  local rate = rates[i]
  if rate and rate.rpm and rate.requests >= rate.rpm then
    return refuse(7, i, rate.rpm, 0, wait(rate, 'r', rate.requests, rate.rpm - 1), 1)
  end
end

local prompt, cap, usual = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
hold_tokens = prompt + (cap > 0 and math.min(cap, usual) or usual)
for i = 1, n do
  local rate = rates[i]
  local tpm = rate and rate.tpm
  if tpm then
    local left = tpm - rate.tokens
    if cap > 0 then
      if prompt + cap > tpm then return refuse(8, i, tpm, math.max(left, 0), 0) end
      if hold_tokens > left then
        return refuse(8, i, tpm, math.max(left, 0), wait(rate, 't', rate.tokens, tpm - hold_tokens))
      end
    else
      if left <= 0 then return refuse(8, i, tpm, 0, wait(rate, 't', rate.tokens, tpm - 1)) end
      hold_tokens = math.min(hold_tokens, left)
    end
  end
end

local fields = {}
for i = 1, n do fields[i] = scopes[i] .. ':' .. ids[i] end
local running = call('HMGET', root .. ':parallel', unpack(fields))
for i = 1, n do
  local now = number(running[i])
  if garbled then return refuse(12, i) end
  if parallel[i] and now >= parallel[i] then
    return refuse(9, i, parallel[i], 0, parallel[i] > 0 and 1000 or 0)
  end
  running[i] = now + 1
end

-- Budgets.
if budgeted == 1 and ARGV[6] ~= '1' then
  for j = 1, #spends, 3 do
    if spends[j + 2] then return refuse(10, spends[j], spends[j + 2]) end
  end
end
local hold = tonumber(ARGV[10])
local counters = {}
for j = 1, #spends, 3 do
  local i, limit = spends[j], spends[j + 2]
  if limit or hold > 0 then
    local counter = root .. ':spend:' .. fields[i] .. ':' .. spends[j + 1]
    local v = call('HMGET', counter, 'spent_nusd', 'reserved_nusd')
    local spent, reserved = number(v[1]), number(v[2])
    if garbled then return refuse(12, i) end
    if limit and spent + reserved + hold > limit then
      local ends = period_end(spends[j + 1])
      return refuse(11, i, limit, math.max(limit - spent - reserved, 0), ends and ends - time or 0, spent >= limit and 1 or 0)
    end
    counters[j], counters[j + 1], counters[j + 2] = counter, reserved + hold, not v[1] and not v[2]
  end
end

-- Second half: nothing below can fail, every key was read above.
local places = {}
for i = 1, n do
  local rate, second = rates[i], 0
  if rate then
    second = rate.cell
    if rate.stale then call('DEL', rate.key) end
    if rate.gone then call('HDEL', rate.key, unpack(rate.gone)) end
    -- Tokens are counted where they are limited: a scope without tpm needs no correction when the request is settled.
    local held = rate.tpm and hold_tokens or 0
    call('HSET', rate.key, 'requests', format('%d', rate.requests + 1), 'tokens', format('%d', rate.tokens + held), 'last',
      format('%d', rate.now), 'leaves', format('%d', rate.leaves or rate.now + 60000), rate.cell,
      format('%d %d %d', rate.r + 1, rate.t + held, rate.now))
    if rate.r == 0 and rate.t == 0 then call('EXPIRE', rate.key, 120) end
    if rate.tpm then second = second .. 't' end
  end
  places[i] = fields[i] .. ':' .. second .. ':' .. names[i]
end
if hold > 0 then
  for j = 1, #spends, 3 do
    if counters[j + 2] then
      call('HSET', counters[j], 'spent_nusd', '0', 'reserved_nusd', format('%d', counters[j + 1]))
      local ends = period_end(spends[j + 1])
      if ends then call('PEXPIREAT', counters[j], format('%d', ends + 35 * 86400000)) end
    else
      call('HSET', counters[j], 'reserved_nusd', format('%d', counters[j + 1]))
    end
  end
end
local flat = {}
for i = 1, n do flat[2 * i - 1], flat[2 * i] = fields[i], format('%d', running[i]) end
call('HSET', root .. ':parallel', unpack(flat))
local claim = format('o %s %d %d %d %d %s %s %s %s %s', ARGV[3], time, hold_tokens, math.min(prompt, hold_tokens),
  hold, id, team or '%', user or '%', table.concat(places, ';'), ARGV[11])
call('HSET', root .. ':open', rid, claim)
call('ZADD', root .. ':reservations', format('%d', time + 25000), rid)
return answer(1, claim, hold, nil, 0, 0, 0, 0)
