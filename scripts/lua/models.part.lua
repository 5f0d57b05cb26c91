-- Part: does a list of patterns name `model` (a local of the script that includes this)? Comma-separated; * stands for one
-- or more characters, everything else for itself, case included. It
-- never goes back in the text, whatever the pattern.
local function matches(pattern)
  local at, star = 1, find(pattern, '*', 1, true)
  if not star then return pattern == model end
  if string.sub(model, 1, star - 1) ~= string.sub(pattern, 1, star - 1) then return false end
  at = star
  while true do
    local from = star + 1
    star = find(pattern, '*', from, true)
    if not star then
      local tail = string.sub(pattern, from)
      return #model - #tail >= at and string.sub(model, #model - #tail + 1) == tail
    end
    local _, last = find(model, string.sub(pattern, from, star - 1), at + 1, true)
    if not last or at > #model then return false end
    at = last + 1
  end
end

local function listed(models)
  for pattern in string.gmatch(models, '[^,%s]+') do
    if matches(pattern) then return true end
  end
  return false
end
