-- Part: what a reservation holds, and how a hold is replaced. Included by a script with the locals root and call
-- (redis.call), after period.part.lua.
--
-- A claim is one line of fields parted by one space, none of them empty (an empty one is written %):
--   state     o open, x expired and charged at its hold, r opened again after that
--   owner     the replica, percent-encoded
--   at_ms     when it was admitted
--   tokens    held tokens, top-ups included
--   prompt    of these, the prompt's estimate
--   hold_nusd held money
--   scopes    scope:id:second:period[,period…] joined by ";" (second: the cell of the sliding minute, 0: not counted there;
--             a t behind it: tokens are counted there too)
--   tops      second:tokens joined by "," of the top-ups whose cell may still be in the sum, oldest first; - for none
--   out       granted tokens of output, 0: not held in tranches
--   price     pico-dollars per token of output, in tranches
--   key team user   identity
--   label     the fixed part of a usage record: JSON members, percent-encoded
--
-- parse(text)                     the claim as a table; nil: unreadable
-- load(c, given, tokens)          reads, and so type-checks, every counter of c that a change touches: the first half.
--                                 given: the request is taken out of the minutes again; tokens: by how much more it used
-- store_spend(c, changes)         adds to the spend counters: field, amount as text, …; the second half, it cannot fail
-- store_rate(c, given)            corrects the sliding minutes
-- store_running(c, n)             counts running requests, n is 1 or -1
-- lapse(rid, text, now)           charges an open reservation at its hold and writes a `lost` record; true: done, false: there
--                                 is nothing to charge, nil: a key it needs cannot be read, it is to be tried again
local function parse(text)
  local state, at, tokens, prompt, hold, scopes, tops = string.match(text,
    '^([oxr]) %S+ (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) ')
  if not state then return nil end
  return { state = state, at = tonumber(at), tokens = tonumber(tokens), prompt = tonumber(prompt), hold = tonumber(hold),
    scopes = scopes, tops = tops, cells = false, counters = false, fields = false, running = false }
end

-- Where a difference of tokens is booked: what was not used comes off the last top-ups, everything else belongs to the
-- second of the admission. Pairs of second (false: of the admission) and amount.
local function moves_of(c, tokens)
  local moves, tops = {}, {}
  for second, n in string.gmatch(c.tops, '(%d+):(%d+)') do tops[#tops + 1], tops[#tops + 2] = second, tonumber(n) end
  if tokens > 0 then return { tops[#tops - 1], tokens } end
  for j = #tops - 1, 1, -2 do
    local n = math.min(tops[j + 1], -tokens)
    if n > 0 then
      moves[#moves + 1], moves[#moves + 2] = tops[j], -n
      tokens = tokens + n
    end
  end
  if tokens < 0 then moves[#moves + 1], moves[#moves + 2] = false, tokens end
  return moves
end

local function load(c, given, tokens)
  local cells, counters, fields, n, m, k = {}, {}, {}, 0, 0, 0
  local moves = c.tops ~= '-' and tokens ~= 0 and moves_of(c, tokens)
  local by = tokens ~= 0 and string.format('%d', tokens)
  for name, cell, t, periods in string.gmatch(c.scopes, '([^:;]+:[^:;]+):(%d+)(t?):([^;]+)') do
    n = n + 1
    fields[n] = name
    -- A cell that is there is in the sums.
    if given or by and t == 't' then
      local key = root .. ':rate:' .. name
      local v = call('HGET', key, cell)
      if v then
        cells[k + 1], cells[k + 2], cells[k + 3], cells[k + 4] = key, cell, not moves and t == 't' and by, given and v
        k = k + 4
      end
      for j = 1, moves and t == 't' and #moves or 0, 2 do
        local second = moves[j] or cell
        if call('HEXISTS', key, 't' .. second) == 1 then
          cells[k + 1], cells[k + 2], cells[k + 3], cells[k + 4] = key, second, string.format('%d', moves[j + 1]), false
          k = k + 4
        end
      end
    end
    local from = 1
    repeat
      local comma = string.find(periods, ',', from, true)
      local period = comma and string.sub(periods, from, comma - 1) or from == 1 and periods or string.sub(periods, from)
      local key = root .. ':spend:' .. name .. ':' .. period
      counters[m + 1], counters[m + 2], counters[m + 3] = key, period, call('HEXISTS', key, 'spent_nusd') == 1
      m = m + 3
      from = comma and comma + 1
    until not from
  end
  c.cells, c.counters, c.fields = cells, counters, fields
  c.running = call('HMGET', root .. ':parallel', unpack(fields))
end

-- include spend.part.lua
-- Nothing goes below 0, whatever somebody deleted by hand.
local function store_spend(c, changes)
  local counters, pcall = c.counters, redis.pcall
  for i = 1, #counters, 3 do
    local key, made = counters[i], counters[i + 2]
    for j = 1, #changes, 2 do
      local by = changes[j + 1]
      if by ~= '0' then
        local v = pcall('HINCRBY', key, changes[j], by)
        if type(v) == 'table' then
          typed(key, changes[j], by)
        elseif v < 0 then
          call('HSET', key, changes[j], '0')
        end
      end
    end
    if not made then born(key, counters[i + 1]) end
  end
end

local function store_rate(c)
  local cells = c.cells
  for i = 1, #cells, 4 do
    local key, second, by, v = cells[i], cells[i + 1], cells[i + 2], cells[i + 3]
    if by then
      call('HINCRBY', key, 't' .. second, by)
      call('HINCRBY', key, 'tokens', by)
    end
    local r, at = string.match(v or '', '^(%d+) (%d+)$')
    if r and r ~= '0' then
      call('HINCRBY', key, 'requests', '-1')
      if r == '1' and (tonumber(call('HGET', key, 't' .. second) or 0) or 0) <= 0 then
        call('HDEL', key, second, 't' .. second)
      else
        call('HSET', key, second, string.format('%d %s', r - 1, at))
      end
    end
  end
end

local function store_running(c, n)
  local fields, running, none = c.fields, c.running, nil
  for i = 1, #fields do
    local v = running[i]
    if n > 0 then
      if type(redis.pcall('HINCRBY', root .. ':parallel', fields[i], '1')) == 'table' then
        call('HSET', root .. ':parallel', fields[i], '1')
      end
    elseif v and (tonumber(v) or 0) > 1 then
      call('HSET', root .. ':parallel', fields[i], string.format('%d', v - 1))
    elseif v then
      none = none or {}
      none[#none + 1] = fields[i]
    end
  end
  if none then call('HDEL', root .. ':parallel', unpack(none)) end
end

-- What a hold is as a charge, and back.
local function charge(c, sign)
  local format = string.format
  return { 'reserved_nusd', format('%d', -sign * c.hold), 'spent_nusd', format('%d', sign * c.hold), 'requests', format('%d', sign),
    'prompt_tokens', format('%d', sign * c.prompt), 'completion_tokens', format('%d', sign * (c.tokens - c.prompt)) }
end

local function lost_record(c, text, now)
  local key, team, user, label = string.match(text, '^%l %S+ %d+ %d+ %d+ %d+ %S+ %S+ %d+ %d+ (%S+) (%S+) (%S+) (%S+)$')
  local day = math.floor(now / 86400000)
  local y, m, d = civil(day)
  local rest = now - day * 86400000
  local plain = function(v) return v == '%' and '' or v end
  local replaces = c.state == 'r' and ',"replaces":true' or ''
  local charged = {}
  for name, periods in string.gmatch(c.scopes, '([^:;]+:[^:;]+):%d+t?:([^;]+)') do
    for period in string.gmatch(periods, '[^,]+') do charged[#charged + 1] = '"' .. name .. ':' .. period .. '"' end
  end
  return string.format('{%s,"time":"%04d-%02d-%02dT%02d:%02d:%02d.%03dZ","team":"%s","user":"%s","key_id":"%s","outcome":"lost",'
    .. '"usage_source":"estimated","prompt_tokens":%.0f,"cached_tokens":0,"completion_tokens":%.0f,"cost_nusd":%.0f,"charged":[%s]%s}',
    (string.gsub(label or '', '%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)), y, m, d,
    math.floor(rest / 3600000), math.floor(rest / 60000) % 60, math.floor(rest / 1000) % 60, rest % 1000,
    plain(team), plain(user), key, c.prompt, c.tokens - c.prompt, c.hold,
    table.concat(charged, ','), replaces)
end

local function lapse(rid, text, now)
  local c = parse(text)
  if not c or c.state == 'x' then return false end
  -- One counter of the wrong type must not keep all others of the tenant from being settled.
  local readable = pcall(function()
    load(c, false, 0)
    call('XLEN', root .. ':usage')
    call('ZCARD', root .. ':settled')
    call('ZCARD', root .. ':reservations')
    call('HLEN', root .. ':open')
  end)
  if not readable then return nil end
  call('ZADD', root .. ':settled', string.format('%d', now), rid)
  call('ZREM', root .. ':reservations', rid)
  call('HSET', root .. ':open', rid, 'x' .. string.sub(text, 2))
  store_spend(c, charge(c, 1))
  store_running(c, -1)
  call('XADD', root .. ':usage', 'MAXLEN', '~', '100000', '*', 'record', lost_record(c, text, now))
  return true
end
