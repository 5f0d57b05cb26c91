#!lua
-- reading: publishes what engines say of themselves, for the whole fleet. Requests that are not the fleet's (external)
-- are what an engine has beyond the leases there were when it was asked; where the fleet placed or released since the
-- reading before that one began, the smaller of the two counts.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1…]          backend, running, waiting, kv (percent × 100), held and asked_ms (as replied by before.lua), started (any
--                   text that is another after the engine's process was; "" = not known), kv_tokens (0 = not known),
--                   prefix_queries and prefix_hits (tokens since the process began), backend … (at most 64); then now_ms,
--                   absent: tests put their clock here
--
-- reply    now      ms
--          taken    readings that were newer than what was there
-- repeat   the same readings change nothing
-- cost     1 read and 1 write per reading
--
-- fields   external, kv, kv_tokens, prefix_queries, prefix_hits, restarts, running, waiting, read_at (ms, now), and for the
--          next reading: asked_at, beyond (what the engine had beyond the leases, as read), started

-- include slots.part.lua
if #ARGV % 10 == 1 then now = tonumber(ARGV[#ARGV]) end
local KEEP = '86400000' -- ms, of a record nobody else writes
local taken = 0

for i = 1, #ARGV - 9, 10 do
  local key, running, waiting = BACKEND .. ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local f = read('HMGET', key, 'asked_at', 'beyond', 'read_at', 'backlog_at', 'started', 'restarts', 'slots')
  local asked, before = tonumber(ARGV[i + 5]), f and figure(f[1], 0) or 0
  if f and asked > before then
    local beyond, last = math.max(0, running + waiting - tonumber(ARGV[i + 4])), figure(f[2])
    local read_at, touched, restarts = figure(f[3], 0) or 0, figure(f[4], 0) or 0, figure(f[6], 0) or 0
    local external = beyond
    if last and now - read_at <= FRESH and touched >= before then external = math.min(beyond, last) end
    local started = ARGV[i + 6]
    if started == '' then started = f[5] or '' elseif f[5] and f[5] ~= '' and f[5] ~= started then restarts = restarts + 1 end
    later('HSET', key, 'external', int(external), 'kv', ARGV[i + 3], 'restarts', int(restarts), 'running', int(running), 'waiting',
      int(waiting), 'read_at', int(now), 'asked_at', int(asked), 'beyond', int(beyond), 'started', started)
    if ARGV[i + 7] ~= '0' then later('HSET', key, 'kv_tokens', ARGV[i + 7]) end
    if ARGV[i + 8] ~= '0' then later('HSET', key, 'prefix_queries', ARGV[i + 8], 'prefix_hits', ARGV[i + 9]) end
    if not f[7] then later('PEXPIRE', key, KEEP) end
    taken = taken + 1
  end
end

commit()
return { int(now), taken }
