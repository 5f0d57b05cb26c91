-- Part: the calendar of budgets, in UTC, from Redis' clock. Included by scripts; it reads and writes no key.
--
-- civil(days)                  year, month, day of a day counted from 1970-01-01
-- period_name(spec, sec, from) the period of `spec` that holds second `sec`, as it stands in key names; nil: unreadable spec.
--                              spec: day, week (ISO), month, total, or <n>s|m|h|d counted from second `from`
-- period_end(name)             the Unix ms at which the period of that name ends; nil: never (total)
local function civil(days)
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  if mp < 10 then return yoe + era * 400, mp + 3, day end
  return yoe + era * 400 + 1, mp - 9, day
end

local function days_of(year, month, day)
  if month <= 2 then year, month = year - 1, month + 12 end
  local era = math.floor(year / 400)
  local yoe = year - era * 400
  local doy = math.floor((153 * (month - 3) + 2) / 5) + day - 1
  return era * 146097 + yoe * 365 + math.floor(yoe / 4) - math.floor(yoe / 100) + doy - 719468
end

-- The Monday of ISO week 1: the week that holds 4 January.
local function first_monday(year)
  local fourth = days_of(year, 1, 4)
  return fourth - (fourth + 3) % 7
end

local function seconds_of(count, unit)
  local length = unit == 's' and 1 or unit == 'm' and 60 or unit == 'h' and 3600 or unit == 'd' and 86400
  count = tonumber(count)
  if length and count >= 1 and count <= 9999999 then return count * length end
end

local function period_name(spec, sec, from)
  local today = math.floor(sec / 86400)
  if spec == 'month' then
    local y, m = civil(today)
    return y .. (m < 10 and '-0' or '-') .. m
  elseif spec == 'total' then
    return spec
  elseif spec == 'day' then
    return string.format('%04d-%02d-%02d', civil(today))
  elseif spec == 'week' then
    local thursday = today - (today + 3) % 7 + 3
    local y = civil(thursday)
    return string.format('%04d-W%02d', y, math.floor((thursday - first_monday(y)) / 7) + 1)
  end
  local count, unit = string.match(spec, '^(%d+)([smhd])$')
  local length = count and seconds_of(count, unit)
  if length then return string.format('%s@%.0f', spec, from + math.floor((sec - from) / length) * length) end
end

local function period_end(name)
  local y, m, d = string.match(name, '^(%d+)%-(%d+)%-(%d+)$')
  if y then return (days_of(tonumber(y), tonumber(m), tonumber(d)) + 1) * 86400000 end
  y, m = string.match(name, '^(%d+)%-(%d+)$')
  if y then
    y, m = tonumber(y), tonumber(m) + 1
    if m > 12 then y, m = y + 1, 1 end
    return days_of(y, m, 1) * 86400000
  end
  y, m = string.match(name, '^(%d+)%-W(%d+)$')
  if y then return (first_monday(tonumber(y)) + tonumber(m) * 7) * 86400000 end
  local count, unit, start = string.match(name, '^(%d+)([smhd])@(%-?%d+)$')
  if count then return (tonumber(start) + seconds_of(count, unit)) * 1000 end
end
