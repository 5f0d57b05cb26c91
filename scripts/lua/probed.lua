#!lua flags=allow-oom
-- probed: what a probe of a backend said. The second failure in a row takes it out of use, and as long as its probes fail it
-- stays out: the next one ends before the cool-down does. The waits grow until a probe or a request is answered.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  backend
-- ARGV[2]  well     1 it was answered · 0 it failed
-- ARGV[3]  idle     ms until the next after an answer
-- ARGV[4]  again    ms until the next after the first failure
-- ARGV[5]  first    ms until the next after the second one; each further one is twice as far
-- ARGV[6]  longest  ms
-- ARGV[7]  lasts    ms that a probe takes at most
--
-- reply    now      ms
--          failed   probes in a row
--          until    ms, the end of the cool-down; 0: there is none of ours
-- repeat   a failure counts again; an answer changes nothing more
-- cost     1 read, 1 write
--
-- fields   probe_until (ms; the cooldown_until that this script set last), and those of probe.lua

-- include slots.part.lua
local KEEP = '86400000' -- ms, of a record nobody else writes
local key = BACKEND .. ARGV[1]
local f = read('HMGET', key, 'cooldown_until', 'probe_until', 'probes_failed', 'slots', 'cooled_until')
if not f then return { int(now), 0, 0 } end
local cool, mine, failed, ends = figure(f[1], 0) or 0, figure(f[2]), figure(f[3], 0) or 0, 0
if ARGV[2] == '1' then
  failed = 0
  later('HSET', key, 'probes_failed', '0', 'probe_at', int(now + tonumber(ARGV[3])), 'probe_until', '')
  if mine and mine == cool then later('HSET', key, 'cooldown_until', '0') end
  if mine and mine == figure(f[5]) then later('HSET', key, 'cooled_until', '0') end
else
  failed = failed + 1
  local wait = tonumber(ARGV[4])
  if failed > 1 then
    wait = math.min(tonumber(ARGV[5]) * 2 ^ math.min(failed - 2, 40), tonumber(ARGV[6]))
    ends = now + wait + 2 * tonumber(ARGV[7])
    if ends > cool then later('HSET', key, 'cooldown_until', int(ends), 'probe_until', int(ends)) end
  end
  later('HSET', key, 'probes_failed', int(failed), 'probe_at', int(now + wait))
end
if not f[4] then later('PEXPIRE', key, KEEP) end
commit()
return { int(now), failed, int(ends) }
