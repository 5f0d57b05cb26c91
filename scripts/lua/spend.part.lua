-- Part: a spend counter that is not as admissions make them. Included by a script with the local call (redis.call), after
-- period.part.lua.
--
-- born(key, period)       makes a counter that was not there (nothing was held in it, or somebody deleted it): it counts from 0,
--                         and goes 35 days after its period
-- typed(key, field, by)   adds to a figure that HINCRBY cannot add to, since somebody typed it (1.5, 1e9): it counts as the whole
--                         number it says, as 0 where it says none. Nothing goes below 0, or above 9e15
local function born(key, period)
  call('HINCRBY', key, 'spent_nusd', '0')
  local ends = period_end(period)
  if ends then call('PEXPIREAT', key, string.format('%d', ends + 35 * 86400000)) end
end

local function typed(key, field, by)
  local n = tonumber(call('HGET', key, field) or 0)
  if not n or n ~= n then n = 0 end
  n = math.floor(math.max(-9e15, math.min(n, 9e15))) + by
  call('HSET', key, field, string.format('%d', math.max(0, math.min(n, 9e15))))
end
