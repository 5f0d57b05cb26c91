#!lua flags=allow-oom
-- probe: files on which backends requests were answered of late, and gives out the probes that are due: of backends on which
-- none was for a while. Each probe is given to one replica.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  idle     ms without an answered request after which a backend is probed
-- ARGV[2]  lasts    ms that a probe takes at most: nobody else gets it until then
-- ARGV[3]  most     probes wanted, 0 to 64
-- ARGV[4]  n        number of answered, 0 to 64
-- ARGV[5…]          n backends on which requests were answered, then those that may be probed (at most 64)
--
-- reply    now      ms
--          due      backends to be probed now
--          failing  flat: backend, failed probes in a row: of those that may be probed, where it is not 0
-- repeat   gives out nothing more
-- cost     1 read for each backend, 1 write for each answered or due
--
-- fields   answered_at, probe_at (ms, not before), probes_failed (in a row)

-- include slots.part.lua
local KEEP = '86400000' -- ms, of a record nobody else writes
local idle, n, fresh = tonumber(ARGV[1]), tonumber(ARGV[4]), {}

for i = 5, 4 + n do
  local key = BACKEND .. ARGV[i]
  local f = read('HMGET', key, 'slots')
  fresh[ARGV[i]] = true
  if f then
    later('HSET', key, 'answered_at', int(now), 'probes_failed', '0')
    if not f[1] then later('PEXPIRE', key, KEEP) end
  end
end

local due, failing, most = {}, {}, tonumber(ARGV[3])
for i = 5 + n, #ARGV do
  local key = BACKEND .. ARGV[i]
  local f = read('HMGET', key, 'answered_at', 'probe_at', 'probes_failed', 'slots', 'held', 'external', 'read_at')
  if f then
    local answered, at, failed = figure(f[1], 0) or 0, figure(f[2]), figure(f[3], 0) or 0
    if fresh[ARGV[i]] then answered, failed = now, 0 end
    local external = (figure(f[7], 0) or 0) + FRESH >= now and figure(f[6], 0) or 0
    local room = failed > 0 or (figure(f[5], 0) or 0) + external < (figure(f[4], 1) or 1)
    if not at then -- never seen: it has its time
      later('HSET', key, 'probe_at', int(now + idle))
      if not f[4] then later('PEXPIRE', key, KEEP) end
    elseif room and #due < most and at <= now and answered + idle <= now then
      later('HSET', key, 'probe_at', int(now + tonumber(ARGV[2])))
      due[#due + 1] = ARGV[i]
    end
    if failed > 0 then failing[#failing + 1], failing[#failing + 2] = ARGV[i], int(failed) end
  end
end

commit()
return { int(now), due, failing }
