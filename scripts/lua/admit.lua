#!lua
-- admit: may this request run and spend? Identity, model list, limits and budgets of every scope that has a policy are
-- checked together; all pass and the request is counted and reserved in all of them, or nothing is touched.
-- size: one decision, top to bottom; a function for each step would cost every request a closure each
--
-- KEYS[1]   root       hg:{t:<tenant>}, the tenant's policy; the keys below it are derived:
--                      key:<hash> user:<id> team:<id> enduser:<id> tag:<name> (policies) · learned (estimates) ·
--                      rate:<scope>:<id> spend:<scope>:<id>:<period> parallel (counters) ·
--                      open reservations settled (reservations) · usage (only when it settles what has lapsed)
-- ARGV[1]   rid        32 hex digits
-- ARGV[2]   hash       of the API key, 64 hex digits
-- ARGV[3]   owner      the replica; no space
-- ARGV[4]   model      public name, an alias already replaced
-- ARGV[5]   mode       p: known and priced; u: known, without a price; n: known nowhere
-- ARGV[6]   prompt     bytes of what can become prompt; 0: ARGV[7] and ARGV[9] are tokens, nothing learned is read
-- ARGV[7]   tokens     of the prompt, estimate, when ARGV[6] is 0
-- ARGV[8]   cap        tokens, declared bound of the output, 0: none declared
-- ARGV[9]   usual      tokens, usual length of the output; with ARGV[6], the number of choices (1 to 1,000)
-- ARGV[10]  hold_nusd  money to hold, ≤ 9e15; in tranches, of the prompt alone. Where no scope has a budget it protects
--                      nothing and is cut to 1e12 (1,000 USD), so that no sum of absurd ones leaves the numbers
-- ARGV[11]  label      of the claim, see claim.part.lua; no space
-- ARGV[12]  now_ms     absent or "": Redis' clock; tests put theirs here. What follows is absent together
-- ARGV[13]  bound      tokens, the most the output can have, when it is held in tranches; 0: ARGV[10] is all
-- ARGV[14]  price_pico of one output token, when it is held in tranches
-- ARGV[15]  least      tokens, of the first tranche
-- ARGV[16]  end user   as in key names; "" none
-- ARGV[17]  tags       as in key names, comma-separated, at most 8; "" none
-- ARGV[18]  detail     1: field 14 of the reply
--
-- reply, admitted
--           1 verdict    1
--           2 claim      the reservation as filed
--           3 name       of the key
--           4 flags      4·(priority + 1) + 2·isolate_prefix + budgeted; priority 0 to 9 of the first scope that sets it,
--                        -1: none; budgeted: some scope has a budget
--           5 limit 6 remaining 7 reset (ms until the minute is empty) of the tightest rpm; limit -1: none
--           8 limit 9 remaining 10 reset of the tightest tpm
--           11 bytes     thousandths per token, learned for the model; 0: not read
--           12 usual     tokens, learned for key and model and one choice; 0: not read
--           13 tags      of the key's policy, comma-separated
--           14 detail    "<scope>:<id> <rpm> <tpm> <parallel> <money left>" of each scope, joined by ";"; - for no limit
-- reply, refused
--           1 verdict    see admit.go
--           2 key 3 name 4 team 5 user    identity, "" where there is none
--           6 flags
--           7 scope 8 id     of the first that refused; "" otherwise
--           9 limit 10 remaining  requests, tokens, running requests or nano-dollars
--           11 reset     ms until the refusal may end, 0: never by itself
--           12 lasting   1: until then nothing but a change of policy can end it (requests, spent money)
--           13 limit 14 remaining 15 reset of the tightest rpm; limit -1: none
--           16 limit 17 remaining 18 reset of the tightest tpm
-- repeat    of an open rid: replies as admitted with what is filed, changes nothing; of a settled one: verdict 13
-- cost      3 scopes with rpm, tpm and budget: 12 reads, 11 writes; 3 more in the first of a second
local root, rid, model = KEYS[1], ARGV[1], ARGV[4]
local call, floor, find, match, format, tonumber = redis.call, math.floor, string.find, string.match, string.format, tonumber
local now, sec, clock = tonumber(ARGV[12]), nil, nil
if now then
  sec = floor(now / 1000)
  clock = format('%d', sec)
else
  local t = call('TIME')
  clock = t[1]
  sec = tonumber(clock)
  now = sec * 1000 + floor(t[2] / 1000)
end
local stamp = format('%d', now)

-- Identity.
-- A record has few of the fields it could have: all of it costs half of what asking for each costs.
local record, key = call('HGETALL', root .. ':key:' .. ARGV[2]), {}
for i = 1, #record, 2 do key[record[i]] = record[i + 1] end
local id, team, user, tags = key.id, key.team, key.user, key.tags
if team == '' then team = nil end
if user == '' then user = nil end
-- Making a closure costs as much as a small command: the functions of the parts are made where they are needed.
local name_of, end_of, leave
local function calendar()
  -- include period.part.lua
  return function(spec, created)
    local from = 0
    if created then
      if find(created, '%D') or created == '' or #created > 15 then return nil end
      from = floor(created / 1000)
    end
    return period_name(spec, sec, from)
  end, period_end
end

local verdict, who, limit, remaining, reset, lasting = 1, 0, 0, 0, 0, 0 -- who: index of the scope that refuses
local allowed -- the sum at which a refusal by the minute ends
local names, policies, rates, n = { '', false, false, false }, { key, false, false, false }, { false, false, false, false }, 1
local priority, isolate, budgeted = -1, 0, 0
local claim, per_token, usual, each, prompt, tokens, hold, out = nil, 0, 0, 0, 0, 0, 0, 0
local hold_text = ARGV[10]
-- Spend counters: key, smallest budget in nano-dollars (false: it only counts), period, index of the scope, to be made.
local counters, bounds, periods, owners, fresh, m = { '', '', '' }, { false, false, false }, { '', '', '' }, { 0, 0, 0 }, {}, 0
local extra = '' -- tags of the key's policy that the request does not name itself
local q, qleft, t, tleft = -1, 0, -1, 0
repeat
  if not id then
    verdict = 2
    if record[1] then verdict, who = 12, 1 end
    break
  end
  names[1] = 'key:' .. id
  if id == '' or #id > 64 or find(id, '[^%w._@~-]') or team and (#team > 64 or find(team, '[^%w._@~-]'))
    or user and (#user > 64 or find(user, '[^%w._@~-]')) or tags and find(tags, '[^%w._@~,%s-]') then
    verdict, who = 12, 1
    break
  end

  -- What has lapsed is settled first, so that it does not stand in the way: each in two halves of its own.
  local due = call('ZRANGEBYSCORE', root .. ':reservations', '-inf', stamp, 'LIMIT', '0', '2')
  if due[1] then
    -- include period.part.lua
    -- include claim.part.lua
    for i = 1, #due do
      local text = call('HGET', root .. ':open', due[i])
      local done = text and lapse(due[i], text, now)
      if done == nil and text then
        -- What cannot be charged now keeps a deadline: without one nobody would look at it again.
        call('ZADD', root .. ':reservations', format('%d', now + 25000), due[i])
      elseif not done then
        call('ZREM', root .. ':reservations', due[i])
      end
    end
  end

  -- A repeat.
  local filed = call('HGET', root .. ':open', rid)
  if filed then
    local state = match(filed, '^([oxr]) ')
    if state == 'x' then
      verdict = 13
    elseif not state then
      verdict = 12
    else
      claim = filed
    end
    break
  end
  if call('ZSCORE', root .. ':settled', rid) then
    verdict = 13
    break
  end

  -- Policies. Scopes without one are left out; the lists stay dense. Of a flag, whatever is not 0 or empty is yes: disabled
  -- and isolate_prefix then err to the safe side.
  local barred, restricted
  local p = key
  if p.disabled and p.disabled ~= '0' and p.disabled ~= '' then barred = 1 end
  if p.models then restricted = true end
  if p.priority then priority = tonumber(match(p.priority, '^%d$') or '') or -1 end
  if p.isolate_prefix and p.isolate_prefix ~= '0' and p.isolate_prefix ~= '' then isolate = 1 end
  local tenant = 'tenant:' .. string.sub(root, 7, -2)
  local asked, k = { user and 'user:' .. user or team and 'team:' .. team or tenant, false, false, false }, 1
  if user and team then
    k = 2
    asked[2] = 'team:' .. team
  end
  if user or team then
    k = k + 1
    asked[k] = tenant
  end
  if ARGV[16] and ARGV[16] ~= '' then
    k = k + 1
    asked[k] = 'enduser:' .. ARGV[16]
  end
  if ARGV[17] and ARGV[17] ~= '' or tags then
    local seen = {}
    for tag in string.gmatch(ARGV[17] or '', '[^,]+') do
      if not seen[tag] then
        seen[tag] = true
        k = k + 1
        asked[k] = 'tag:' .. tag
      end
    end
    if tags then
      for tag in string.gmatch(tags, '[^,%s]+') do
        if not seen[tag] then
          seen[tag] = true
          k = k + 1
          asked[k] = 'tag:' .. tag
          extra = extra == '' and tag or extra .. ',' .. tag
        end
      end
    end
  end
  for i = 1, k do
    local name = asked[i]
    record = call('HGETALL', name == tenant and root or root .. ':' .. name)
    if record[1] then
      p = {}
      for j = 1, #record, 2 do p[record[j]] = record[j + 1] end
      n = n + 1
      names[n], policies[n], rates[n] = name, p, false
      if p.disabled and p.disabled ~= '0' and p.disabled ~= '' then barred = barred or n end
      if p.models then restricted = true end
      if p.priority and priority < 0 then priority = tonumber(match(p.priority, '^%d$') or '') or -1 end
      if p.isolate_prefix and p.isolate_prefix ~= '0' and p.isolate_prefix ~= '' then isolate = 1 end
    end
  end
  if barred then
    verdict, who = 3, barred
    break
  end
  local expires = key.expires_at
  if expires and expires ~= '' and (#expires > 15 or find(expires, '%D') or now >= tonumber(expires)) then
    verdict, who = 4, 1
    break
  end

  -- Model.
  if restricted then
    -- include models.part.lua
    for i = 1, n do
      local models = policies[i].models
      if models and not listed(models) then
        verdict, who = 5, i
        break
      end
    end
    if verdict ~= 1 then break end
  end
  if ARGV[5] == 'n' then
    verdict = 6
    break
  end

  -- Policies as numbers, and the sliding minutes as they stand at this instant. What cannot be read refuses.
  local month, known, bad, limited
  for i = 1, n do
    p = policies[i]
    local rpm, tpm, parallel, usd = p.rpm, p.tpm, p.parallel, p.budget_usd
    if rpm then
      if #rpm > 15 or find(rpm, '%D') then rpm = nil else rpm = tonumber(rpm) end
      if not rpm then bad = true end
    end
    if tpm then
      if #tpm > 15 or find(tpm, '%D') then tpm = nil else tpm = tonumber(tpm) end
      if not tpm then bad = true end
    end
    if p.priority and not find(p.priority, '^%d$') then bad = true end
    if parallel then
      if #parallel > 15 or find(parallel, '%D') then parallel = nil else parallel = tonumber(parallel) end
      if not parallel then bad = true end
      p.parallel, limited = parallel, true
    end

    -- Budgets: one counter for each period, the smallest limit of those with the same one. Without a budget it only counts.
    local first = m + 1
    local list = p.budgets
    if usd or not list then
      local spec, name = usd and p.period or 'month', month
      if spec ~= 'month' then
        if not name_of then name_of, end_of = calendar() end
        name = name_of(spec, p.created_at)
      elseif not name then
        -- What period_name() says of a month: the calendar's functions cost as much as five commands.
        local z = floor(sec / 86400) + 719468
        local era = floor(z / 146097)
        local doe = z - era * 146097
        local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
        local mp = floor((5 * (doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))) + 2) / 153)
        month = format('%d-%02d', yoe + era * 400 + (mp < 10 and 0 or 1), mp < 10 and mp + 3 or mp - 9)
        name = month
      end
      m = first
      counters[m], bounds[m], periods[m], owners[m] = '', false, name or '', i
      if usd then
        budgeted = 1
        local whole, part = match(usd, '^(%d+)%.?(%d*)$')
        if not whole or not name or #whole > 7 or tonumber(whole) > 9000000 then
          bad = true
        elseif part == '' then
          bounds[m] = whole * 1000000000
        else
          bounds[m] = whole * 1000000000 + tonumber(string.sub(part .. '000000000', 1, 9))
          bad = bad or bounds[m] > 9000000000000000
        end
      end
    end
    if list then
      if not name_of then name_of, end_of = calendar() end
      for usd, spec in string.gmatch(list, '([^%s,/]+)/([^%s,/]+)') do
        local whole, part = match(usd, '^(%d+)%.?(%d*)$')
        local name = name_of(spec, p.created_at)
        if not whole or not name or #whole > 7 then
          bad = true
          break
        end
        local bound, at = whole * 1000000000 + tonumber(string.sub(part .. '000000000', 1, 9)), nil
        bad = bad or bound > 9000000000000000
        for j = first, m do
          if periods[j] == name then at = j end
        end
        if not at then
          m = m + 1
          counters[m], bounds[m], periods[m], owners[m] = '', bound, name, i
        elseif not bounds[at] or bound < bounds[at] then
          bounds[at] = bound
        end
        budgeted = 1
      end
      if m < first or find(string.gsub(list, '[^%s,/]+/[^%s,/]+', ''), '[^%s,]') then bad = true end
    end

    if (rpm or tpm) and not bad then
      known = known or 't' .. clock
      local at = root .. ':rate:' .. names[i]
      local v = call('HMGET', at, 'requests', 'tokens', 'last', 'leaves', clock, known)
      -- 1 key 2 rpm 3 tpm 4 requests 5 tokens 6 requests and 7 tokens of the cell 8 cell 9 its tokens 10 now 11 last 12 leaves
      -- 13 cells that have left 14 stale 15 leaves is to be written
      local rate = { at, rpm, tpm, 0, 0, 0, 0, clock, known, now, false, 0, false, false, false }
      rates[i] = rate
      local last = v[3]
      if last then
        last = tonumber(last)
        bad = bad or not last or last ~= last
      end
      if last and not bad and now - last < 60000 and last - now <= 60000 then
        local requests, sum, leaves = tonumber(v[1] or 0), tonumber(v[2] or 0), tonumber(v[4] or 0)
        local cell, held = v[5], v[6]
        if last > now then
          rate[10] = last
          rate[8] = format('%d', floor(last / 1000))
          rate[9] = 't' .. rate[8]
          v = call('HMGET', at, rate[8], rate[9])
          cell, held = v[1], v[2]
        end
        cell, held = tonumber(cell and match(cell, '^%d+') or not cell and 0), tonumber(held or 0)
        if not requests or not sum or not leaves or not cell or not held or requests ~= requests or sum ~= sum then
          bad = true
        else
          rate[4], rate[5], rate[6], rate[7], rate[11], rate[12] = requests, sum, cell, held, last, leaves
          if rate[10] >= leaves then
            if not leave then
              -- include minute.part.lua
              leave = leave_minute
            end
            leave(rate)
          end
        end
      else
        -- Nothing in it counts any more, or the clock was set back by more than a minute.
        rate[12], rate[14], rate[15] = now + 60000, last or v[1] or v[2] or v[4], true
      end
    end
    if bad then
      verdict, who = 12, i
      break
    end
  end
  if verdict ~= 1 then break end

  -- Requests.
  for i = 1, n do
    local rate = rates[i]
    if rate and rate[2] and rate[4] >= rate[2] then
      verdict, who, limit, lasting, allowed = 7, i, rate[2], 1, rate[2] - 1
      break
    end
  end
  if verdict ~= 1 then break end

  -- What it is likely to use.
  local cap = tonumber(ARGV[8])
  prompt, usual = tonumber(ARGV[7]), tonumber(ARGV[9])
  if ARGV[6] ~= '0' then
    local v = call('HMGET', root .. ':learned', 'bytes:' .. model, 'length:' .. id .. ':' .. model)
    local choices = usual
    per_token, usual = tonumber(v[1] or 4000), tonumber(v[2] or 256000)
    if not per_token or not (per_token >= 2000 and per_token <= 6000) then per_token = 4000 end
    if not usual or not (usual >= 64000 and usual <= 2048000) then usual = 256000 end
    prompt = math.max(floor(ARGV[6] * 1000 / per_token), 1)
    each = floor(usual / 1000)
    usual = each * choices
  end
  tokens = prompt + (cap > 0 and cap < usual and cap or usual)

  -- Tokens.
  for i = 1, n do
    local rate = rates[i]
    local tpm = rate and rate[3]
    if tpm then
      local left = tpm - rate[5]
      if cap > 0 then
        if prompt + cap > tpm then
          verdict, who, limit, remaining = 8, i, tpm, left > 0 and left or 0
          break
        elseif tokens > left then
          verdict, who, limit, remaining, allowed = 8, i, tpm, left > 0 and left or 0, tpm - tokens
          break
        end
      elseif left <= 0 then
        verdict, who, limit, allowed = 8, i, tpm, tpm - 1
        break
      elseif tokens > left then
        tokens = left
      end
    end
  end
  if verdict ~= 1 then break end

  -- Running requests. Where no scope limits them, the counter is not read: its first write is its check.
  if limited then
    local running = call('HMGET', root .. ':parallel', unpack(names, 1, n))
    for i = 1, n do
      local most = policies[i].parallel
      if most then
        local now = tonumber(running[i] or 0)
        if not now or now ~= now then
          verdict, who = 12, i
          break
        elseif now >= most then
          verdict, who, limit, reset = 9, i, most, most > 0 and 1000 or 0
          break
        end
      end
    end
    if verdict ~= 1 then break end
  end

  -- Budgets.
  if budgeted == 1 and ARGV[5] == 'u' then
    for j = 1, m do
      if bounds[j] then
        verdict, who, limit = 10, owners[j], bounds[j]
        break
      end
    end
    break
  end
  if budgeted == 0 and #hold_text > 12 then hold_text = '1000000000000' end
  hold = tonumber(hold_text)
  local price = 0
  local base = hold
  if ARGV[13] and ARGV[13] ~= '0' then
    local most, least = tonumber(ARGV[13]), tonumber(ARGV[15])
    price = tonumber(ARGV[14])
    out = math.min(math.max(usual, least, 1), most)
    hold = base + math.ceil(price / 1000)
  end
  local room
  if budgeted == 1 or hold > 0 then
    for j = 1, m do
      local bound = bounds[j]
      local at = root .. ':spend:' .. names[owners[j]] .. ':' .. periods[j]
      local v = call('HMGET', at, 'spent_nusd', 'reserved_nusd')
      counters[j] = at
      if bound then
        local spent, reserved = tonumber(v[1] or 0), tonumber(v[2] or 0)
        if not spent or not reserved or spent ~= spent or reserved ~= reserved then
          verdict, who = 12, owners[j]
          break
        end
        local left = bound - spent - reserved
        if hold > left then
          if not end_of then name_of, end_of = calendar() end
          local ends = end_of(periods[j])
          verdict, who, limit, remaining = 11, owners[j], bound, left > 0 and left or 0
          local fits = hold <= bound -- else a new period is too small as well
          reset, lasting = fits and ends and ends - now or 0, spent >= bound and (fits or bound == 0) and 1 or 0
          break
        end
        if not room or left < room then room = left end
      end
      fresh[j] = not v[1] and not v[2]
    end
    if verdict ~= 1 then break end
  end
  if out > 0 then
    if room and price > 0 then out = math.min(out, floor((room - base) * 1000 / price)) end
    hold = base + math.ceil(out * price / 1000)
    hold_text = format('%d', hold)
  end

  -- Second half. The first write is its own check; nothing after it can fail, every other key was read above.
  local scopes
  for i = 1, n do
    local name, rate, cell = names[i], rates[i], '0'
    local broken = redis.pcall('HINCRBY', root .. ':parallel', name, '1')
    if type(broken) == 'table' then
      if not find(broken.err, 'not an integer', 1, true) then return broken end
      call('HSET', root .. ':parallel', name, '1')
    end
    if rate then
      local at, requests, c, last = rate[1], rate[4] + 1, rate[8], stamp
      if rate[10] ~= now then last = format('%d', rate[10]) end
      if rate[14] then call('DEL', at) end
      if rate[13] then call('HDEL', at, unpack(rate[13])) end
      local tpm = rate[3]
      cell = c
      if tpm then
        cell = c .. 't'
        local sum = rate[5] + tokens
        call('HSET', at, 'requests', format('%d', requests), 'tokens', format('%d', sum), 'last', last, c,
          format('%d %s', rate[6] + 1, last), rate[9], format('%d', rate[7] + tokens))
        local left = tpm > sum and tpm - sum or 0
        if t < 0 or left < tleft then t, tleft = tpm, left end
      else
        -- Tokens are counted where they are limited.
        call('HSET', at, 'requests', format('%d', requests), 'last', last, c, format('%d %s', rate[6] + 1, last))
      end
      if rate[15] then call('HSET', at, 'leaves', format('%d', rate[12])) end
      if rate[6] == 0 then
        call('EXPIRE', at, '120')
        if requests > 20 then call('HSET', at, 'wide', 'A value of more than 64 bytes: Redis finds the seconds of a busy minute by a table then.') end
      end
      local rpm = rate[2]
      if rpm then
        local left = rpm - requests
        if q < 0 or left < qleft then q, qleft = rpm, left end
      end
    end
    name = name .. ':' .. cell .. ':'
    scopes = scopes and scopes .. ';' .. name or name
    local joined
    for j = 1, m do
      if owners[j] == i then
        scopes = scopes .. (joined and ',' or '') .. periods[j]
        joined = true
        if hold > 0 then
          if fresh[j] then
            call('HSET', counters[j], 'spent_nusd', '0', 'reserved_nusd', hold_text)
            if not end_of then name_of, end_of = calendar() end
            local ends = end_of(periods[j])
            if ends then call('PEXPIREAT', counters[j], format('%d', ends + 35 * 86400000)) end
          else
            -- A figure that is none starts anew; without a budget it was not looked at.
            if type(redis.pcall('HINCRBY', counters[j], 'reserved_nusd', hold_text)) == 'table' then
              call('HSET', counters[j], 'reserved_nusd', hold_text)
            end
          end
        end
      end
    end
  end
  local label = ARGV[11]
  if extra ~= '' then
    local list = '"tags":["' .. string.gsub(extra, ',', '","') .. '"'
    label = string.gsub(label, '"tags":%[(%]?)', function(none) return list .. (none == ']' and ']' or ',') end, 1)
  end
  claim = 'o ' .. ARGV[3] .. ' ' .. stamp .. ' ' .. format('%d %d ', tokens, prompt < tokens and prompt or tokens) .. hold_text .. ' '
    .. scopes .. (out > 0 and format(' - %d ', out) or ' - 0 ') .. (out > 0 and ARGV[14] or '0') .. ' ' .. id .. ' ' .. (team or '%') .. ' '
    .. (user or '%') .. ' ' .. label
  call('HSET', root .. ':open', rid, claim)
  call('ZADD', root .. ':reservations', format('%d', now + 25000), rid)
  local flags = 4 * priority + 4 + 2 * isolate + budgeted
  if ARGV[18] ~= '1' then
    return { 1, claim, key.name or '', flags, q, qleft, 60000, t, tleft, 60000, per_token, each, extra, '' }
  end
  local detail = {}
  for i = 1, n do
    local rate, left = rates[i], nil
    for j = 1, m do
      if owners[j] == i and bounds[j] then
        local v = call('HMGET', counters[j], 'spent_nusd', 'reserved_nusd')
        local rest = bounds[j] - (v[1] or 0) - (v[2] or 0)
        if not left or rest < left then left = rest end
      end
    end
    detail[i] = names[i] .. ' ' .. (rate and rate[2] or '-') .. ' ' .. (rate and rate[3] or '-') .. ' ' .. (policies[i].parallel or '-') .. ' '
      .. (left and format('%d', left) or '-')
  end
  return { 1, claim, key.name or '', flags, q, qleft, 60000, t, tleft, 60000, per_token, each, extra, table.concat(detail, ';') }
until true

local flags = 4 * priority + 4 + 2 * isolate + budgeted
if claim then return { 1, claim, key.name or '', flags, -1, 0, 0, -1, 0, 0, 0, 0, '', '' } end

-- A refusal.
if allowed then
  -- include minute.part.lua
  reset = wait_minute(rates[who], verdict == 7, allowed)
end
local qreset, treset = 0, 0
for i = 1, n do
  local rate = verdict ~= 12 and rates[i]
  if rate then
    local back = rate[11] and rate[11] + 60000 - rate[10] or 0
    if rate[2] then
      local left = rate[2] > rate[4] and rate[2] - rate[4] or 0
      if q < 0 or left < qleft then q, qleft, qreset = rate[2], left, back end
    end
    if rate[3] then
      local left = rate[3] > rate[5] and rate[3] - rate[5] or 0
      if t < 0 or left < tleft then t, tleft, treset = rate[3], left, back end
    end
  end
end
local scope, scope_id = '', ''
if who > 0 then scope, scope_id = match(id and names[who] or 'key:', '^(%l+):(.*)$') end
return { verdict, id or '', key.name or '', team or '', user or '', flags, scope or '', scope_id or '', limit, remaining, reset, lasting,
  q, qleft, qreset, t, tleft, treset }
