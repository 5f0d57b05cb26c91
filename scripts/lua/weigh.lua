#!lua flags=no-writes
-- weigh: what place would weigh for a request now, for people who ask why. Changes nothing.
--
-- KEYS[1]  root     hg:{p:<pool>}; the keys below it are named in slots.part.lua
-- ARGV[1]  mu       thousandths of a model unit
-- ARGV[2]  output   the part of mu that is output
-- ARGV[3]  tokens   of the prompt
-- ARGV[4]  save     thousandths of a model unit saved by each prompt token that is warm
-- ARGV[5]  least    prompt tokens; a shorter match does not count
-- ARGV[6]  bucket   of the fingerprints
-- ARGV[7]  not      backend to avoid; "" = none
-- ARGV[8]  f        number of fingerprints, 0 to 12
-- ARGV[9…]          fingerprint, prompt tokens warm where it is found, …: f pairs as in place.lua; then backend, slots, tag, …
--                   (at most 32) in ring order
--
-- reply    now      ms
--          mean     MU of a request of the pool
--          waiting  requests in the queue, which go first
--          rows     of each candidate: backend, chosen (1: this one), why not (0 it may be · 1 unreadable · 2 draining or no
--                   slots · 3 cools down · 4 its KV cache is full · 5 no slot is free · 6 to be avoided), slots, held, external,
--                   kv, cooldown_until, backlog (drained to now), uncached (prompt MU to compute), matched (prompt tokens that
--                   are warm), output_held, rate (MU per second), score (ms)
-- repeat   reads only
-- cost     4 reads, 2 per candidate

-- include slots.part.lua
-- include score.part.lua
-- include prefixes.part.lua
local prints = 2 * tonumber(ARGV[8])
local w = { mu = tonumber(ARGV[1]), output = math.min(tonumber(ARGV[2]), tonumber(ARGV[1])), tokens = tonumber(ARGV[3]),
  save = tonumber(ARGV[4]), least = tonumber(ARGV[5]), bucket = ARGV[6], prints = {}, lengths = {} }
for i = 9, 8 + prints, 2 do
  w.prints[#w.prints + 1], w.lengths[#w.lengths + 1] = ARGV[i], tonumber(ARGV[i + 1])
end
look_up(w, whole(redis.call('HGET', turns, 'generation')) or 1)

local all, usable, by_tag, avoid, others = {}, {}, {}, ARGV[7], false
for i = 9 + prints, #ARGV, 3 do
  local b = backend(ARGV[i], ARGV[i + 1])
  b.tag = ARGV[i + 2]
  all[#all + 1], by_tag[tag_of(b)] = b, b
  if b.usable then
    usable[#usable + 1] = b
    others = others or b.id ~= avoid
  end
end
if not others then avoid = '' end
match(w, by_tag)
local mean = survey(usable, w)
local chosen = best(usable, w, avoid)

local function why_not(b)
  if not b.readable then return 1 end
  if not b.usable then return 2 end
  if b.cool > now then return 3 end
  if b.kv > FULL then return 4 end
  if not free(b) then return 5 end
  return b.id == avoid and 6 or 0
end

local rows = {}
for i, b in ipairs(all) do
  local why = why_not(b)
  if why == 1 then
    rows[i] = { b.id, 0, why, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
  else
    if not b.speed then pace(b) end
    rows[i] = { b.id, b == chosen and 1 or 0, why, int(b.slots), int(b.held), int(b.external), int(b.kv), int(b.cool),
      int(b.backlog), int(uncached(b, w)), int(b.matched or 0), int(b.output), int(b.speed), int(score(b, w, mean) * 1000) }
  end
end
return { int(now), int(mean), redis.call('ZCARD', queue), rows }
