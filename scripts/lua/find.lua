#!lua flags=no-writes
-- find: one page of the key names below a tenant. As a script it reaches the node that owns the tenant, on a cluster
-- too, where a plain SCAN goes to any.
--
-- KEYS[1]  tagged root, hg:{t:<tenant>}
-- ARGV[1]  cursor of the page before; "0" = first
-- ARGV[2]  suffix pattern (glob) below the root, e.g. ":key:*"
--
-- reply    array of strings: next cursor ("0" = that was the last page), then the full key names
-- repeat   reads only; a key may come twice
-- cost     1,000 keys of the node looked at, whatever their tenant
local page = redis.call('SCAN', ARGV[1], 'MATCH', KEYS[1] .. ARGV[2], 'COUNT', 1000)
local reply = { page[1] }
for i, name in ipairs(page[2]) do reply[i + 1] = name end
return reply
