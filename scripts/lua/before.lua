#!lua flags=no-writes
-- before: what the fleet holds on some backends, read just before their engines are asked; it goes into reading.lua.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1…]          backends (at most 64)
--
-- reply    now      ms
--          held     of each, in order; -1 where the record cannot be read
-- repeat   reads only
-- cost     1 read per backend

-- include slots.part.lua
local held = {}
for i = 1, #ARGV do
  local reply = redis.pcall('HGET', BACKEND .. ARGV[i], 'held')
  held[i] = int(reply == false and 0 or type(reply) == 'string' and whole(reply) or -1)
end
return { int(now), held }
