#!lua
-- edit: makes, changes or removes one record of the directory (tenant, team, user, key) and its line in the index of
-- its kind, or does nothing. A record is never half there, and a change never brings back a record that is gone.
--
-- KEYS[1]  hash    tagged root, hg:{t:<tenant>}; the record is KEYS[1] .. ARGV[2], the index KEYS[1] .. ARGV[3]
-- ARGV[1]  mode    create: only if the record is not there · ensure: the same, meant for a record that may be there
--                  change: only if it is there · remove: whatever is there · file: writes the index alone, if it is there
-- ARGV[2]  suffix  of the record ("" for the tenant itself, ":team:<id>", ":user:<id>", ":key:<sha256>")
-- ARGV[3]  suffix  of the index (":teams", ":users", ":keys"); "" = none (the tenant's own is in another slot)
-- ARGV[4]  member  of the index
-- ARGV[5]  value   of that member; "" = the index is a set, else it is a hash
-- ARGV[6]  n       number of fields to write, 0 to 32
-- ARGV[7…6+2n]     field, value, field, value …
-- ARGV[7+2n…]      fields to remove
--
-- reply    1 done, 0 the record was not in the state that mode asks for
-- repeat   create replies 0; change, ensure, file and remove leave the same state
-- cost     two reads, two or three writes
local record, index = KEYS[1] .. ARGV[2], KEYS[1] .. ARGV[3]
local mode, member, value, n = ARGV[1], ARGV[4], ARGV[5], tonumber(ARGV[6])

-- First half: typed reads of what may be written.
local there = redis.call('HLEN', record) > 0
if ARGV[3] ~= '' then
  if value == '' then redis.call('SISMEMBER', index, member) else redis.call('HEXISTS', index, member) end
end
if (mode == 'create' or mode == 'ensure') and there then return 0 end
if (mode == 'change' or mode == 'file') and not there then return 0 end

-- Second half: writes.
if mode == 'remove' then
  redis.call('DEL', record)
  if ARGV[3] ~= '' then
    if value == '' then redis.call('SREM', index, member) else redis.call('HDEL', index, member) end
  end
  return there and 1 or 0
end
if mode ~= 'file' then
  if n > 0 then redis.call('HSET', record, unpack(ARGV, 7, 6 + 2 * n)) end
  if #ARGV > 6 + 2 * n then redis.call('HDEL', record, unpack(ARGV, 7 + 2 * n)) end
end
if ARGV[3] ~= '' then
  if value == '' then redis.call('SADD', index, member) else redis.call('HSET', index, member, value) end
end
return 1
