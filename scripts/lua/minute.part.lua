-- Part: the sliding minute of one scope, a hash:
--   requests tokens  sums of the cells
--   <second>         a cell: "<requests> <ms of its last admission or top-up>"; it leaves the sums 60 s after that
--   t<second>        its tokens, where tokens are limited
--   last             ms of the last admission or top-up; time does not run back behind it
--   wide             a long text, where the minute has more than 20 requests: by default Redis keeps a hash of up to 128 fields as
--                    a list, and looking up the last ones takes 5 to 10 times as long as in a table, which this makes it
--   leaves           ms, a lower bound of the instant at which the next cell leaves: before it, no cell has to be read
-- Included by a script with the locals call (redis.call), find, match, format and floor. A rate is the list that admit makes.
--
-- leave_minute(rate)                    takes out of the sums what has left by now, and lists it in rate[13]
-- wait_minute(rate, requests, allowed)  ms until the sum of requests (or tokens) has fallen to `allowed`; 0: never
local function cells_of(rate)
  local list, tokens, all = {}, {}, call('HGETALL', rate[1])
  for j = 1, #all, 2 do
    local kind, second = match(all[j], '^(t?)(%d+)$')
    if kind == 't' then
      tokens[second] = tonumber(all[j + 1]) or 0
    elseif second then
      local r, at = match(all[j + 1], '^(%d+) (%d+)$')
      if r then list[#list + 1] = { name = second, r = tonumber(r), t = 0, at = tonumber(at) } end
    end
  end
  for j = 1, #list do list[j].t = tokens[list[j].name] or 0 end
  table.sort(list, function(a, b) return a.at < b.at end)
  return list
end

local function leave_minute(rate)
  local now, second = rate[10], floor(rate[10] / 1000)
  local from, to = floor(rate[12] / 1000) - 60, second - 60
  local gone, found = {}, nil
  if to - from > 4 then
    found = cells_of(rate)
  else
    found = {}
    local wanted = {}
    for s = from, to do
      local name = format('%d', s)
      wanted[#wanted + 1], wanted[#wanted + 2] = name, 't' .. name
    end
    local v = call('HMGET', rate[1], unpack(wanted))
    for j = 1, #wanted, 2 do
      if v[j] then
        local r, at = match(v[j], '^(%d+) (%d+)$')
        found[#found + 1] = { name = wanted[j], r = tonumber(r) or 0, t = tonumber(v[j + 1] or 0) or 0, at = tonumber(at) or 0 }
      end
    end
  end
  local leaves = (to + 61) * 1000
  for j = 1, #found do
    local c = found[j]
    if c.at + 60000 <= now then
      gone[#gone + 1], gone[#gone + 2] = c.name, 't' .. c.name
      rate[4] = math.max(rate[4] - c.r, 0)
      rate[5] = math.max(rate[5] - c.t, 0)
    elseif c.at + 60000 < leaves then
      leaves = c.at + 60000
    end
  end
  rate[12], rate[15] = leaves, true
  if gone[1] then rate[13] = gone end
end

local function wait_minute(rate, requests, allowed)
  if allowed < 0 then return 0 end
  local sum, list = requests and rate[4] or rate[5], cells_of(rate)
  for j = 1, #list do
    local c = list[j]
    if c.at + 60000 > rate[10] then
      sum = sum - (requests and c.r or c.t)
      if sum <= allowed then return c.at + 60000 - rate[10] end
    end
  end
  return 60000
end
