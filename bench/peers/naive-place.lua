-- A naive choice of a backend among candidates, the first with a free slot; a yardstick only (no leases, no dead holders).
-- KEYS[1] pool root; ARGV: request id, slots, candidates in order of preference. Replies the backend, or 0.
local root=KEYS[1]
for i=3,#ARGV do
 local bk=root..':backend:'..ARGV[i]
 if (tonumber(redis.call('HGET',bk,'held')) or 0)<tonumber(ARGV[2]) then
  redis.call('HINCRBY',bk,'held',1)
  redis.call('HSET',root..':held',ARGV[1],ARGV[i])
  return tonumber(ARGV[i])
 end
end
return 0
