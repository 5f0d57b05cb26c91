-- Gives back what naive-place.lua took; a yardstick only.
-- KEYS[1] pool root; ARGV: request id, backend
local root=KEYS[1]
if redis.call('HDEL',root..':held',ARGV[1])==0 then return 0 end
redis.call('HINCRBY',root..':backend:'..ARGV[2],'held',-1)
return 1
