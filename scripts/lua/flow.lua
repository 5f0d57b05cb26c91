#!lua flags=allow-oom
-- flow: publishes what passes through a replica in a pool, and says what passes through the others: for /capacity.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  replica  no space
-- ARGV[2]  figures  any text, of this replica
-- ARGV[3]  advice   any text, of the pool; "" = it is kept
--
-- reply    now      ms
--          advice   the pool's; "" = none
--          figures  flat: replica, figures, …: of all that published in the last 15 s, this one included
-- repeat   the same again
-- cost     1 read, 2 writes
--
-- key      <root>:flow  hash  replica -> ms and figures; advice -> the pool's

-- include slots.part.lua
local key, LASTS = root .. ':flow', 15000
local known, others = redis.call('HGETALL', key), { ARGV[1], ARGV[2] }
local advice, gone = ARGV[3], {}
for i = 1, #known, 2 do
  local who, at, figures = known[i], string.match(known[i + 1], '^(%d+) (.*)$')
  if who == 'advice' then
    if advice == '' then advice = known[i + 1] end
  elseif not at or tonumber(at) + LASTS < now then
    if #gone < 100 then gone[#gone + 1] = who end
  elseif who ~= ARGV[1] and #others < 1000 then
    others[#others + 1], others[#others + 2] = who, figures
  end
end
if #gone > 0 then later('HDEL', key, unpack(gone)) end
later('HSET', key, ARGV[1], int(now) .. ' ' .. ARGV[2])
if ARGV[3] ~= '' then later('HSET', key, 'advice', ARGV[3]) end
later('PEXPIRE', key, '86400000')
commit()
return { int(now), advice, others }
