#!lua
-- fail: a backend failed a request. Connect errors, 5xx and answers cut before their first byte cool it down at once;
-- requests without a first token only when so many came in a row. The waits grow until a request gets its first token.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  backend
-- ARGV[2]  kind     1 it failed · 2 no first token came
-- ARGV[3]  row      requests in a row without a first token that cool it down
-- ARGV[4]  first    ms, the first wait; each further one is twice as long
-- ARGV[5]  longest  ms
--
-- reply    until    ms, when it is used again; 0: it does not cool down
--          failures in a row that cooled it down
--          now      ms
--          began    1 if this failure began the cool-down
-- repeat   while it cools down, nothing grows: those requests were sent before. A new cool-down never shortens one
-- cost     1 read, 1 write

-- include slots.part.lua
local KEEP = '86400000' -- ms, of a record nobody else writes
local key = BACKEND .. ARGV[1]
local f = read('HMGET', key, 'cooldown_until', 'failures', 'silent', 'slots')
if not f then return { 0, 0, int(now), 0 } end -- such a backend is not used
local before, failures, silent = figure(f[1], 0) or 0, figure(f[2], 0) or 0, figure(f[3], 0) or 0
if before > now then return { int(before), int(failures), int(now), 0 } end
if ARGV[2] == '2' then silent = silent + 1 end
if ARGV[2] == '2' and silent < tonumber(ARGV[3]) then
  redis.call('HSET', key, 'silent', int(silent))
  before = 0
else
  failures = failures + 1
  local wait = math.min(tonumber(ARGV[4]) * 2 ^ math.min(failures - 1, 40), tonumber(ARGV[5]))
  before = now + wait
  redis.call('HSET', key, 'cooldown_until', int(before), 'failures', int(failures), 'silent', '0')
end
if not f[4] then redis.call('PEXPIRE', key, KEEP) end
return { int(before), int(failures), int(now), before > 0 and 1 or 0 }
