#!lua flags=allow-oom
-- unwell: what the readers of backends found of their health, and who is out of use for the whole fleet: a backend that all
-- its readers (one or two) found unwell within the last 5 s. Its cool-down runs on while they say so, so that nobody places
-- there and no waiting request is granted a slot; it ends when one of them finds it well, unless it is another's.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  replica  who found it; no space
-- ARGV[2…]          backend, place (host:port where it was asked; no space), readers (1 or 2), unwell (1, or 0: it is well
--                   again), backend … (at most 64)
--
-- reply    now      ms
--          out      flat: backend, place, …: who is out of use, at most 500
-- repeat   the same findings again prolong what they began
-- cost     2 reads; 1 read and 1 write for each finding, 1 write for each that changes nothing any more
--
-- fields   out_until (ms; the cooldown_until that this script set last), cooled_until (what it was before)

-- include slots.part.lua
local KEEP = '86400000' -- ms, of a record nobody else writes
local LASTS = '60000' -- ms, of findings that nobody renews
local OUT = FRESH -- ms
local unwell, replica = root .. ':unwell', ARGV[1]

-- parse takes a value apart: place, readers, and by replica when it was found unwell there, of late.
local function parse(value)
  local place, readers, rest = string.match(value or '', '^(%S+) (%d+)(.*)$')
  local found, n = {}, 0
  for who, at in string.gmatch(rest or '', '(%S+) (%d+)') do
    if tonumber(at) + FRESH >= now then found[who], n = at, n + 1 end
  end
  return { place = place, readers = tonumber(readers or 2), found = found, n = n }
end

local function text(u)
  local parts = { u.place, int(u.readers) }
  for who, at in pairs(u.found) do parts[#parts + 1], parts[#parts + 2] = who, at end
  return table.concat(parts, ' ')
end

local all, known = {}, redis.call('HGETALL', unwell)
for i = 1, #known, 2 do
  local u = parse(known[i + 1])
  if u.n > 0 then all[known[i]] = u elseif i < 200 then later('HDEL', unwell, known[i]) end
end

-- shut has the backend of record f cool down for as long as it is found unwell; open ends what shut began.
local function shut(key, f)
  local cool, mine = figure(f[1], 0) or 0, figure(f[2], 0)
  if cool > now + OUT then return end
  local before = cool
  if mine and mine == cool then before = figure(f[3], 0) or 0 end
  later('HSET', key, 'cooldown_until', int(now + OUT), 'out_until', int(now + OUT), 'cooled_until', int(before))
  if not f[4] then later('PEXPIRE', key, KEEP) end
end

local function open(key, f)
  if f[2] and f[2] ~= '' and f[2] == f[1] then
    later('HSET', key, 'cooldown_until', int(figure(f[3], 0) or 0), 'out_until', '')
  end
end

for i = 2, #ARGV, 4 do
  local id, place, readers, is_unwell = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3] == '1'
  local u, key = all[id], BACKEND .. id
  if not u or u.place ~= place then u = { place = place, found = {}, n = 0 } end
  u.readers = readers
  if u.found[replica] then u.n = u.n - 1 end
  u.found[replica] = nil
  if is_unwell then u.found[replica], u.n = int(now), u.n + 1 end
  local f = read('HMGET', key, 'cooldown_until', 'out_until', 'cooled_until', 'slots')
  if u.n > 0 then later('HSET', unwell, id, text(u)) else later('HDEL', unwell, id) end
  all[id] = u.n > 0 and u or nil
  if f and u.n >= readers then shut(key, f) elseif f then open(key, f) end
end
if #ARGV > 1 then later('PEXPIRE', unwell, LASTS) end

local out = {}
for id, u in pairs(all) do
  if u.n >= u.readers and #out < 1000 then out[#out + 1], out[#out + 2] = id, u.place end
end
commit()
return { int(now), out }
