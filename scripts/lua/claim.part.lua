-- Part: what a reservation holds, and how a hold is replaced. Included after period.part.lua.
--
-- A claim is one line of fields parted by one space, none of them empty (an empty one is written %):
--   state     o open, x expired and charged at its hold, r opened again after that
--   owner     the replica, percent-encoded
--   at_ms     when it was admitted
--   tokens    held tokens
--   prompt    of these, the prompt's estimate
--   hold_nusd held money
--   key team user   identity
--   scopes    scope:id:second:period[,period…] joined by ";" (second: the cell of the sliding minute, 0: not counted there;
--             a t behind it: tokens are counted there too)
--   label     the fixed part of a usage record: JSON members, percent-encoded
--
-- parse(text)          the claim as a table; nil: unreadable
-- load(root, c, sec)   reads, and so type-checks, every counter of c: the first half
-- store(root, c, …)    adds to them: the second half, cannot fail
-- lapse(root, rid, text, now)  charges an open reservation at its hold and writes a `lost` record; true: done
local function parse(text)
  local state, owner, at, tokens, prompt, hold, key, team, user, scopes, label = string.match(text,
    '^([oxr]) (%S+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  if not state then return nil end
  return { state = state, owner = owner, at = tonumber(at), tokens = tonumber(tokens), prompt = tonumber(prompt),
    hold = tonumber(hold), key = key, team = team, user = user, scopes = scopes, label = label }
end

-- given: the request stays counted, so a minute that counts requests only stays as it is.
local function load(root, c, sec, given)
  local call = redis.call
  local rates, spends, fields, n, m = {}, {}, {}, 0, 0
  for name, second, t, periods in string.gmatch(c.scopes, '([^:;]+:[^:;]+):(%d+)(t?):([^;]+)') do
    n = n + 1
    fields[n] = name
    -- A cell older than 61 s leaves before anything is decided on it again.
    if second ~= '0' and (t == 't' or not given) and sec - second <= 61 then
      local key = root .. ':rate:' .. name
      local v = call('HMGET', key, 'requests', 'tokens', second)
      if v[3] then rates[#rates + 1] = { key, second, v, t == 't' } end
    end
    local from = 1
    repeat
      local comma = string.find(periods, ',', from, true)
      local period = comma and string.sub(periods, from, comma - 1) or from == 1 and periods or string.sub(periods, from)
      local key = root .. ':spend:' .. name .. ':' .. period
      m = m + 1
      spends[m] = { key, period, call('HMGET', key, 'spent_nusd', 'reserved_nusd', 'requests', 'prompt_tokens',
        'cached_tokens', 'completion_tokens') }
      from = comma and comma + 1
    until not from
  end
  c.rates, c.spends, c.fields = rates, spends, fields
  c.running = call('HMGET', root .. ':parallel', unpack(fields))
end

-- The sum as it is written. A counter never goes below 0, whatever somebody deleted by hand; one that stays as it is keeps
-- its text, for turning numbers into text is what these scripts spend most of their time on.
local function plus(value, n)
  if n == 0 and value then return value end
  local sum = (tonumber(value) or 0) + n
  if sum > 0 then return string.format('%d', sum) end
  return '0'
end

local function store_spend(c, spent, reserved, requests, prompt, cached, completion)
  for i = 1, #c.spends do
    local key, period, v = c.spends[i][1], c.spends[i][2], c.spends[i][3]
    redis.call('HSET', key, 'spent_nusd', plus(v[1], spent), 'reserved_nusd', plus(v[2], reserved), 'requests',
      plus(v[3], requests), 'prompt_tokens', plus(v[4], prompt), 'cached_tokens', plus(v[5], cached), 'completion_tokens',
      plus(v[6], completion))
    if not v[1] and not v[2] then
      local ends = period_end(period)
      if ends then redis.call('PEXPIREAT', key, string.format('%d', ends + 35 * 86400000)) end
    end
  end
end

local function store_rate(c, requests, tokens)
  for i = 1, #c.rates do
    local rate = c.rates[i]
    local key, second, v = rate[1], rate[2], rate[3]
    local r, t, at = string.match(v[3], '^(%d+) (%d+) (%d+)$')
    if r then
      local nr, nt = plus(r, requests), plus(t, rate[4] and tokens or 0)
      if nr == '0' and nt == '0' then
        redis.call('HSET', key, 'requests', plus(v[1], nr - r), 'tokens', plus(v[2], nt - t))
        redis.call('HDEL', key, second)
      elseif nr ~= r or nt ~= t then
        redis.call('HSET', key, 'requests', plus(v[1], nr - r), 'tokens', plus(v[2], nt - t), second,
          nr .. ' ' .. nt .. ' ' .. at)
      end
    end
  end
end

local function store_running(root, c, n)
  local set, del, k, d = {}, {}, 0, 0
  for i = 1, #c.fields do
    local v = plus(c.running[i], n)
    if v == '0' then
      d = d + 1
      del[d] = c.fields[i]
    else
      set[k + 1], set[k + 2] = c.fields[i], v
      k = k + 2
    end
  end
  if k > 0 then redis.call('HSET', root .. ':parallel', unpack(set)) end
  if d > 0 then redis.call('HDEL', root .. ':parallel', unpack(del)) end
end

local function lost_record(c, now)
  local day = math.floor(now / 86400000)
  local y, m, d = civil(day)
  local rest = now - day * 86400000
  local text = function(v) return v == '%' and '' or v end
  return string.format('{%s,"time":"%04d-%02d-%02dT%02d:%02d:%02d.%03dZ","team":"%s","user":"%s","key_id":"%s","outcome":"lost",'
    .. '"usage_source":"estimated","prompt_tokens":%.0f,"cached_tokens":0,"completion_tokens":%.0f,"cost_nusd":%.0f}',
    (string.gsub(c.label, '%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)), y, m, d,
    math.floor(rest / 3600000), math.floor(rest / 60000) % 60, math.floor(rest / 1000) % 60, rest % 1000,
    text(c.team), text(c.user), c.key, c.prompt, c.tokens - c.prompt, c.hold)
end

local function lapse(root, rid, text, now)
  local c = parse(text)
  if not c or c.state == 'x' then return false end
  -- One counter of the wrong type must not keep all others of the tenant from being settled.
  local readable = pcall(function()
    load(root, c, math.floor(now / 1000))
    redis.call('XLEN', root .. ':usage')
    redis.call('ZCARD', root .. ':settled')
    redis.call('ZCARD', root .. ':reservations')
    redis.call('HLEN', root .. ':open')
  end)
  if not readable then return false end
  redis.call('ZADD', root .. ':settled', string.format('%d', now), rid)
  redis.call('ZREM', root .. ':reservations', rid)
  redis.call('HSET', root .. ':open', rid, 'x' .. string.sub(text, 2))
  store_spend(c, c.hold, -c.hold, 1, c.prompt, 0, c.tokens - c.prompt)
  store_running(root, c, -1)
  local record = lost_record(c, now)
  if c.state == 'r' then record = string.sub(record, 1, -2) .. ',"replaces":true}' end
  redis.call('XADD', root .. ':usage', 'MAXLEN', '~', 100000, '*', 'record', record)
  return true
end
