-- The settlement that goes with naive-admit.lua.
-- KEYS[1] root · ARGV rid, key id, team, cell, tokens by which the estimate was wrong, reserved (negative), spent, prompt tokens,
-- completion tokens
local root = KEYS[1]
if redis.call('ZREM', root .. ':reservations', ARGV[1]) == 0 then return 0 end
for _, name in ipairs({ 'key:' .. ARGV[2], 'team:' .. ARGV[3], 'tenant:' }) do
  local minute, money = root .. ':rate:' .. name, root .. ':spend:' .. name .. ':2026-11'
  redis.call('HINCRBY', minute, 'tokens', ARGV[5])
  redis.call('HINCRBY', minute, 't' .. ARGV[4], ARGV[5])
  redis.call('HINCRBY', money, 'reserved', ARGV[6])
  redis.call('HINCRBY', money, 'spent', ARGV[7])
  redis.call('HINCRBY', money, 'requests', 1)
  redis.call('HINCRBY', money, 'prompt_tokens', ARGV[8])
  redis.call('HINCRBY', money, 'completion_tokens', ARGV[9])
end
return 1
