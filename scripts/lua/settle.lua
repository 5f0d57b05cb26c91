#!lua flags=allow-oom
-- settle: replaces a request's hold by what it really used, once, and writes its usage record.
--
-- KEYS[1]   root        hg:{t:<tenant>}; below it: open reservations settled usage doubtful parallel learned · the rate and
--                       spend counters the claim names
-- ARGV[1]   rid         32 hex digits
-- ARGV[2]   claim       as admit returned it; "" when its reply was lost
-- ARGV[3]   keep        1: the request stays counted; 0: it is given back, with all it held
-- ARGV[4]   prompt      tokens
-- ARGV[5]   cached      tokens, of these
-- ARGV[6]   completion  tokens
-- ARGV[7]   cost_nusd   ≤ 9e15
-- ARGV[8]   record      the usage record, one JSON object; "" writes none
-- ARGV[9]   never       1: it was served while Redis could not be asked, on a claim the replica wrote itself
-- ARGV[10]  bytes       of the prompt, for what is learned from this request; 0: nothing
-- ARGV[11]  model       public name, as in admit
-- ARGV[12]  choices     answers the completion tokens belong to, ≥ 1
-- ARGV[13]  tokens      the claim's own figures once more, taken apart by the replica; "": the script takes it apart
-- ARGV[14]  hold_nusd
-- ARGV[15]  now_ms      "": Redis' clock; tests put theirs here
-- ARGV[16…] counters    three fields for each spend counter of the claim: name of the scope ("": as the one before), period, and
--                       t<second> where its tokens are counted ("" else, and with a name of "")
--
-- reply     1 what      1 replaced the open hold
--                       2 replaced the charge of one that had lapsed (the record says "replaces":true)
--                       3 settled before: nothing changed
--                       4 unknown here and never admitted, or admitted less than an hour ago (the admission was lost with a
--                         primary): charged
--                       5 unknown and older, or unknown, without a claim and not free: nothing charged, filed as doubtful
--                       6 unknown, without a claim and free: the admission was never applied; it will not be any more
-- joined    several at once, see joined.part.lua: *, then for each the number of its arguments and these; the reply is a list
-- repeat    3
-- cost      3 scopes with rpm, tpm and budget: 10 reads, 26 writes; 1 and 1 more to learn; of several at once each further one
--           that names the same counters: 1 write
local root, rid = KEYS[1], ARGV[1]
local call = redis.call
local now = tonumber(ARGV[rid == '*' and 17 or 15])
if not now then
  local t = call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local stamp = string.format('%d', now)
local open, reservations, settled, usage = root .. ':open', root .. ':reservations', root .. ':settled', root .. ':usage'

-- moved_mean is a learned figure (kind 1: bytes per token, 2: output length, both in thousandths) after one more sample: it
-- moves by a sixteenth of their distance, and by 5 % of itself at most.
local function moved_mean(was, kind, sample)
  local max, min = math.max, math.min
  local least, start, most = kind == 1 and 2000 or 64000, kind == 1 and 4000 or 256000, kind == 1 and 6000 or 2048000
  was = tonumber(was or start) or start
  local step = (max(least, min(most, sample)) - was) / 16
  return max(least, min(most, was + max(-was / 20, min(was / 20, step))))
end
if rid == '*' then
  local argv = ARGV
  -- include joined.part.lua
end

local keep, prompt, completion, cost, record = ARGV[3], ARGV[4], ARGV[6], ARGV[7], ARGV[8]

-- First half.
local filed = call('HGET', open, rid)
call('ZCARD', reservations)
call('XLEN', usage)
-- What was settled more than an hour ago is forgotten, in one settlement of eight.
local old
if now % 8 == 0 then old = call('ZRANGEBYSCORE', settled, '-inf', string.format('%d', now - 3600000), 'LIMIT', '0', '100') end
local learned, figures, lengths
if ARGV[10] ~= '0' and filed then
  local key = string.match(filed, '^%l %S+ %d+ %d+ %d+ %d+ %S+ %S+ %d+ %d+ (%S+)') or ''
  figures, lengths = 'bytes:' .. ARGV[11], 'length:' .. key .. ':' .. ARGV[11]
  learned = call('HMGET', root .. ':learned', figures, lengths)
end
local what, store
local by, counters, rates, names, running, n, m, k = 0, { '', '', '' }, { '', '', '' }, { '', '', '' }, nil, 0, 0, 0
local odd -- counters that are to be made, and those whose money HINCRBY could not add: index in `counters`, which
if filed and filed == ARGV[2] and keep == '1' and ARGV[13] ~= '' then
  -- The usual case, without taking the claim apart: it is filed as the replica has it, and the request stays counted. It
  -- does what the general case does; TestSettleTakesTheClaimApart holds them to each other.
  what = 1
  by = prompt + completion - ARGV[13]
  local spend
  for i = 16, #ARGV, 3 do
    local name, cell = ARGV[i], ARGV[i + 2]
    m = m + 1
    if name ~= '' then spend = root .. ':spend:' .. name .. ':' end
    counters[m] = spend .. ARGV[i + 1]
    if call('HEXISTS', counters[m], 'spent_nusd') == 0 then
      odd = odd or {}
      odd[#odd + 1], odd[#odd + 2] = m, 'none'
    end
    if name ~= '' then
      n = n + 1
      names[n] = name
      if by ~= 0 and cell ~= '' then
        local rate = root .. ':rate:' .. name
        if call('HEXISTS', rate, cell) == 1 then
          rates[k + 1], rates[k + 2] = rate, cell
          k = k + 2
        end
      end
    end
  end
  running = call('HMGET', root .. ':parallel', unpack(names, 1, n))
else
  -- include period.part.lua
  -- include claim.part.lua
  local c = filed and parse(filed)
  if c then
    what = c.state == 'x' and 2 or 1
  elseif call('ZSCORE', settled, rid) then
    return { 3 }
  else
    c = parse(ARGV[2])
    if c and (ARGV[9] == '1' or now - c.at < 3600000) then
      what = 4
    elseif c or cost ~= '0' then
      what = 5
    else
      what = 6
    end
  end
  if what <= 4 then
    load(c, keep ~= '1' and what < 4, what < 4 and prompt + completion - c.tokens or 0)
  else
    call('LLEN', root .. ':doubtful')
  end
  store = function()
    if what == 5 and record ~= '' then
      call('RPUSH', root .. ':doubtful', record)
      call('LTRIM', root .. ':doubtful', -1000, -1)
    end
    if what >= 5 then return end
    if what == 2 then
      store_spend(c, { 'spent_nusd', string.format('%d', cost - c.hold), 'requests', keep == '1' and '0' or '-1',
        'prompt_tokens', string.format('%d', prompt - c.prompt), 'cached_tokens', ARGV[5],
        'completion_tokens', string.format('%d', completion - (c.tokens - c.prompt)) })
    else
      store_spend(c, { 'reserved_nusd', what == 1 and c.hold > 0 and string.format('%d', -c.hold) or '0', 'spent_nusd', cost,
        'requests', keep, 'prompt_tokens', prompt, 'cached_tokens', ARGV[5], 'completion_tokens', completion })
    end
    if what == 1 then store_running(c, -1) end
    store_rate(c)
    if c.state ~= 'o' and record ~= '' then record = string.sub(record, 1, -2) .. ',"replaces":true}' end
  end
end

-- Second half. The first write is its own check; nothing after it can fail, every other key was read above.
call('ZADD', settled, stamp, rid)
if old then
  if old[1] then
    call('ZREM', settled, unpack(old))
    call('HDEL', open, unpack(old))
  end
  call('XTRIM', usage, 'MAXLEN', '~', '100000')
end
if store then
  store()
  if what >= 5 then return { what } end
else
  local pcall, hold = redis.pcall, '-' .. ARGV[14]
  for i = 1, m do
    local counter = counters[i]
    if hold ~= '-0' then
      local left = pcall('HINCRBY', counter, 'reserved_nusd', hold)
      -- Nothing goes below 0, whatever somebody deleted by hand.
      if type(left) == 'table' or left < 0 then call('HSET', counter, 'reserved_nusd', '0') end
    end
    if cost ~= '0' and type(pcall('HINCRBY', counter, 'spent_nusd', cost)) == 'table' then
      odd = odd or {}
      odd[#odd + 1], odd[#odd + 2] = i, 'typed'
    end
    pcall('HINCRBY', counter, 'requests', '1')
    if prompt ~= '0' then pcall('HINCRBY', counter, 'prompt_tokens', prompt) end
    if ARGV[5] ~= '0' then pcall('HINCRBY', counter, 'cached_tokens', ARGV[5]) end
    if completion ~= '0' then pcall('HINCRBY', counter, 'completion_tokens', completion) end
  end
  if odd then
    -- include period.part.lua
    -- include spend.part.lua
    for i = 1, #odd, 2 do
      local counter = counters[odd[i]]
      if odd[i + 1] == 'none' then
        born(counter, string.match(counter, '[^:]+$'))
      else
        typed(counter, 'spent_nusd', cost)
      end
    end
  end
  by = string.format('%d', by)
  for i = 1, k, 2 do
    call('HINCRBY', rates[i], rates[i + 1], by)
    call('HINCRBY', rates[i], 'tokens', by)
  end
  local none
  for i = 1, n do
    local v = running[i]
    if v == '1' then
      none = none or {}
      none[#none + 1] = names[i]
    elseif v then
      call('HSET', root .. ':parallel', names[i], string.format('%d', math.max((tonumber(v) or 0) - 1, 0)))
    end
  end
  if none then call('HDEL', root .. ':parallel', unpack(none)) end
end
if what ~= 4 then
  call('HDEL', open, rid)
  call('ZREM', reservations, rid)
end
if learned then
  call('HSET', root .. ':learned', figures, string.format('%d', moved_mean(learned[1], 1, ARGV[10] * 1000 / prompt)), lengths,
    string.format('%d', moved_mean(learned[2], 2, completion * 1000 / ARGV[12])))
end
if record ~= '' then call('XADD', usage, '*', 'record', record) end
return { what }
