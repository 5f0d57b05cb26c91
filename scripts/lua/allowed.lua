#!lua flags=no-writes
-- allowed: whose key is this, and which model lists bind it? For /v1/models: it counts nothing and writes nothing.
--
-- KEYS[1]  root     hg:{t:<tenant>}; below it: key:<hash> team:<id>
-- ARGV[1]  hash     of the API key, 64 hex digits
-- ARGV[2]  now_ms   absent; tests put their clock here
--
-- reply    1 verdict   as admit's: 1 valid, 2 unknown, 3 disabled, 4 expired
--          2 key 3 team 4 user   identity, "" where there is none
--          5 lists     the `models` of key, team and tenant, those that have one
-- repeat   the same
-- cost     3 reads
local root, call = KEYS[1], redis.call
local now = tonumber(ARGV[2])
if not now then
  local t = call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local key = call('HMGET', root .. ':key:' .. ARGV[1], 'id', 'team', 'user', 'disabled', 'expires_at', 'models')
if not key[1] then return { 2, '', '', '', {} } end
local verdict, lists = 1, {}
local function bind(disabled, models)
  if disabled and disabled ~= '0' and disabled ~= '' then verdict = 3 end
  if models then lists[#lists + 1] = models end
end
bind(key[4], key[6])
if key[2] and key[2] ~= '' then bind(unpack(call('HMGET', root .. ':team:' .. key[2], 'disabled', 'models'))) end
bind(unpack(call('HMGET', root, 'disabled', 'models')))
local expires = key[5]
if verdict == 1 and expires and expires ~= '' and (#expires > 15 or not string.find(expires, '^%d+$') or now >= tonumber(expires)) then
  verdict = 4
end
return { verdict, key[1], key[2] or '', key[3] or '', lists }
