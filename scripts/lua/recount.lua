#!lua flags=allow-oom
-- recount: makes the counts of backends what the leases say. They go apart only when somebody edits either by hand, or when
-- a primary is lost with a part of its writes.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1…]          backends
--
-- reply    leases   of the pool; -1: more than 20,000, nothing was done
--          repaired flat: backend, held before (-1: unreadable), held now, …
-- repeat   changes nothing
-- cost     2 reads per replica (at most 1,024), about 1 µs per lease, 1 read per backend, 1 write per repaired one

-- include slots.part.lua
-- include score.part.lua
local MOST = 20000
local counts, outputs, leases, repaired = {}, {}, 0, {}
for _, replica in ipairs(redis.call('ZRANGE', replicas, '0', '1023')) do
  local key = root .. ':held:' .. replica
  leases = leases + (read('HLEN', key) or 0)
  if leases > MOST then return { -1, {} } end
  for _, value in ipairs(read('HVALS', key) or {}) do
    local _, id, rest = lease_of(value)
    if id then
      counts[id] = (counts[id] or 0) + 1
      outputs[id] = (outputs[id] or 0) + tonumber(string.match(rest, '^%d+ %d+ (%d+) ') or 0)
    end
  end
end

for i = 1, #ARGV do
  local b = backend(ARGV[i])
  local held, output = counts[b.id] or 0, outputs[b.id] or 0
  if b.typed and (b.held ~= held or b.output ~= output) and (b.recorded or held > 0) then
    local n = #repaired
    repaired[n + 1], repaired[n + 2], repaired[n + 3] = b.id, int(b.held or -1), int(held)
    touch(b)
    b.held, b.output = held, output
    judge(b)
    if not b.readable then b.more[#b.more + 1], b.more[#b.more + 2] = 'output_held', int(output) end
  end
end

commit()
return { leases, repaired }
