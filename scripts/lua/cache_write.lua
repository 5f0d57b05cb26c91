#!lua
-- cache_write: stores one answer in place of what is there, and when it goes. Never a half entry, never one that stays.
--
-- KEYS[1]  root    hg:{t:<tenant>}; the entry is the hash <root>:cache:<ARGV[1]>
-- ARGV[1]  hash    of all that shapes the answer
-- ARGV[2]  ttl     ms, 1 or more
-- ARGV[3…]         field, value, field, value … (status, content_type, body, model, prompt, cached, completion)
--
-- reply    stored_at   ms; also a field of the entry
-- repeat   stores the same again; the time to live starts anew
-- cost     4 writes
local entry = KEYS[1] .. ':cache:' .. ARGV[1]
local clock = redis.call('TIME')
local now = string.format('%.0f', tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000))

-- First half: nothing to read; whatever is there, of any type, is replaced.
redis.call('DEL', entry)
redis.call('HSET', entry, 'stored_at', now, unpack(ARGV, 3))
redis.call('PEXPIRE', entry, ARGV[2])
return now
