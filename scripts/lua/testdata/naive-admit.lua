-- The yardstick of the cost benchmarks: what a first version of an admission for key, team and tenant looks like. It looks at a
-- minute of sixty cells, at tokens and at one budget for each, counts, and reserves. It is not right (a lost reply counts
-- twice, nobody notices a dead replica, calendars are fixed) and no part of the product: it says what a microsecond is here.
-- KEYS[1] root · ARGV key, tokens, nano-dollars, rid
local root, tokens, money = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local second = tonumber(clock[1])
local key = redis.call('HMGET', root .. ':key:' .. ARGV[1], 'id', 'team', 'disabled', 'expires_at', 'models', 'rpm', 'tpm', 'parallel', 'budget', 'period')
if not key[1] then return { 0, 'unknown' } end
local team = redis.call('HMGET', root .. ':team:' .. key[2], 'disabled', 'models', 'rpm', 'tpm', 'parallel', 'budget', 'period')
local tenant = redis.call('HMGET', root, 'disabled', 'models', 'rpm', 'tpm', 'parallel', 'budget', 'period')
local scopes = {
  { name = 'key:' .. key[1], rpm = key[6], tpm = key[7], budget = key[9] },
  { name = 'team:' .. key[2], rpm = team[3], tpm = team[4], budget = team[6] },
  { name = 'tenant:', rpm = tenant[3], tpm = tenant[4], budget = tenant[6] },
}
for _, s in ipairs(scopes) do
  s.minute, s.money = root .. ':rate:' .. s.name, root .. ':spend:' .. s.name .. ':2026-11'
  local m = redis.call('HMGET', s.minute, 'second', 'requests', 'tokens')
  local last
  last, s.requests, s.tokens = tonumber(m[1] or second), tonumber(m[2] or 0), tonumber(m[3] or 0)
  if last < second then
    local old = {}
    for t = math.max(last, second - 60) + 1, second do
      old[#old + 1] = 'r' .. t % 60
      old[#old + 1] = 't' .. t % 60
    end
    local cells = redis.call('HMGET', s.minute, unpack(old))
    for i = 1, #cells, 2 do
      s.requests = s.requests - tonumber(cells[i] or 0)
      s.tokens = s.tokens - tonumber(cells[i + 1] or 0)
    end
    redis.call('HDEL', s.minute, unpack(old))
  end
  if s.rpm and s.requests >= tonumber(s.rpm) then return { 0, 'requests', s.name } end
  if s.tpm and s.tokens + tokens > tonumber(s.tpm) then return { 0, 'tokens', s.name } end
  local sums = redis.call('HMGET', s.money, 'spent', 'reserved')
  if s.budget and tonumber(sums[1] or 0) + tonumber(sums[2] or 0) + money > tonumber(s.budget) then return { 0, 'budget', s.name } end
end
local cell = second % 60
for _, s in ipairs(scopes) do
  redis.call('HSET', s.minute, 'second', second, 'requests', s.requests + 1, 'tokens', s.tokens + tokens)
  redis.call('HINCRBY', s.minute, 'r' .. cell, 1)
  redis.call('HINCRBY', s.minute, 't' .. cell, tokens)
  redis.call('EXPIRE', s.minute, 120)
  redis.call('HINCRBY', s.money, 'reserved', ARGV[3])
end
redis.call('ZADD', root .. ':reservations', second * 1000 + 30000, ARGV[4])
return { 1, key[1], key[2], cell }
