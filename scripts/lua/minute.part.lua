-- Part: the sliding minute of one scope, a hash:
--   requests tokens  sums of the cells
--   <second>         a cell: "<requests> <tokens> <ms of its last admission>"; it leaves the sums 60 s after that admission
--   last             ms of the last admission; time does not run back behind it
--   leaves           ms, a lower bound of the instant at which the next cell leaves: before it, no cell has to be read
-- Included by a script whose local `call` is redis.call. A rate is the table that admit makes of it.
--
-- leave(rate)                      takes out of the sums what has left by rate.now, and lists it in rate.gone
-- wait(rate, field, sum, allowed)  ms until the sum of `field` (r or t) has fallen to `allowed`; 0: never
local function cells_of(rate)
  local list, all = {}, call('HGETALL', rate.key)
  for j = 1, #all, 2 do
    if find(all[j], '^%d+$') then
      local r, t, at = match(all[j + 1], '^(%d+) (%d+) (%d+)$')
      if r then list[#list + 1] = { name = all[j], r = tonumber(r), t = tonumber(t), at = tonumber(at) } end
    end
  end
  table.sort(list, function(a, b) return a.at < b.at end)
  return list
end

local function leave(rate)
  local from, to = floor(rate.leaves / 1000) - 60, rate.second - 60
  local gone, found = {}, nil
  if to - from > 4 then
    found = cells_of(rate)
  else
    found = {}
    local wanted = {}
    for s = from, to do wanted[#wanted + 1] = format('%d', s) end
    local v = call('HMGET', rate.key, unpack(wanted))
    for j = 1, #wanted do
      if v[j] then
        local r, t, at = match(v[j], '^(%d+) (%d+) (%d+)$')
        found[#found + 1] = { name = wanted[j], r = tonumber(r) or 0, t = tonumber(t) or 0, at = tonumber(at) or 0 }
      end
    end
  end
  rate.leaves = (to + 61) * 1000
  for j = 1, #found do
    local c = found[j]
    if c.at + 60000 <= rate.now then
      gone[#gone + 1] = c.name
      rate.requests = math.max(rate.requests - c.r, 0)
      rate.tokens = math.max(rate.tokens - c.t, 0)
    else
      rate.leaves = math.min(rate.leaves, c.at + 60000)
    end
  end
  if gone[1] then rate.gone = gone end
end

local function wait(rate, field, sum, allowed)
  if allowed < 0 then return 0 end
  local list = cells_of(rate)
  for j = 1, #list do
    local c = list[j]
    if c.at + 60000 > rate.now then
      sum = sum - c[field]
      if sum <= allowed then return c.at + 60000 - rate.now end
    end
  end
  return 60000
end
