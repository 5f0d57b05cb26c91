-- The score of a backend in seconds, and what a lease adds to its figures. Included after slots.part.lua.
--
--   score = (backlog + external · mean + uncached prompt MU of the request + WEIGHT · output_held) / rate
--
-- rate: rate_mu where it was corrected, within a factor 4 of capacity_mu where that is known; else capacity_mu; else the
-- median of the known capacities; else START.
local START = 200000 -- MU per second of a backend nobody knows anything of
local WEIGHT = 0.1 -- of output in the score: with 0.05 a burst's p99 was a third higher, with 0.15 little changed (bench/replay)
local NEAR, NEARLY = 0.01, 1.02 -- seconds, factor: scores this close to the smallest are equal
local EASY = 0.05 -- seconds: the first in ring order is taken without a look at the others when its score is no more
local LONG = 4096 -- tokens: a prompt of which a backend would have to compute so many goes where its KV cache has room for them
local GUESS = 4 -- the rate is never corrected beyond this factor of the registered one

-- pace sets the rate of b, and drains its backlog to now.
local function pace(b, median)
  local speed = b.rate
  if b.capacity > 0 then
    speed = speed > 0 and math.min(math.max(speed, b.capacity / GUESS), b.capacity * GUESS) or b.capacity
  elseif speed == 0 then
    speed = median or START
    b.guess = speed
  end
  b.speed = speed
  local elapsed = now - b.touched
  if elapsed > 0 then -- the clock may have been set back: nothing drains then
    b.touched = now
    if b.backlog > 0 then b.backlog = math.max(0, math.floor(b.backlog - speed * elapsed / 1000)) end
  end
end

-- touch makes b one that commit() writes. more: further fields and values.
local function touch(b)
  dirty[b.id], b.more = b, b.more or {}
  if b.readable and not b.speed then pace(b) end
end

-- uncached is the prompt MU of w that b would have to compute; b.matched: prompt tokens that are warm there.
local function uncached(b, w)
  return math.max(0, w.mu - w.output - (b.matched or 0) * w.save)
end

local function score(b, w, mean)
  return (b.backlog + b.external * mean + (b.matched and uncached(b, w) or w.mu - w.output) + WEIGHT * b.output) / b.speed
end

-- survey paces all of list and returns the mean MU of a request of the pool, if anybody's requests but the fleet's run.
local function survey(list, w)
  local median, external
  for i = 1, #list do
    local b = list[i]
    external = external or b.external > 0
    if not b.speed then
      if b.rate == 0 and b.capacity == 0 and not median then
        local known = {}
        for k = 1, #list do
          if list[k].capacity > 0 then known[#known + 1] = list[k].capacity end
        end
        table.sort(known)
        median = known[math.ceil(#known / 2)] or START
      end
      pace(b, median)
    end
  end
  local means, sum = 0, 0
  for i = 1, external and #list or 0 do
    local mean = history(list[i]).mean
    if mean > 0 then means, sum = means + 1, sum + mean end
  end
  return means > 0 and sum / means or w.mu
end

-- roomy: what b would have to compute of w fits into what its KV cache has free, as last read.
local function roomy(b, w)
  local new = w.tokens - (b.matched or 0)
  return b.kv == 0 or new < LONG or new <= history(b).room * (1 - b.kv / 10000)
end

-- best is the first of list (usable, in ring order) that has a slot free, is not to be avoided, and whose score is as
-- good as the smallest. Where a long prompt has room, those where it has none are left out.
local function best(list, w, avoid)
  local mean, smallest, room = survey(list, w), math.huge, false
  for i = 1, #list do
    local b = list[i]
    b.score = b.id ~= avoid and free(b) and score(b, w, mean)
    if b.score and w.tokens >= LONG then room = roomy(b, w) or room end
  end
  for i = 1, #list do
    local b = list[i]
    if b.score and room and not roomy(b, w) then b.score = false end
    if b.score and b.score < smallest then smallest = b.score end
  end
  local equal = math.max(smallest + NEAR, smallest * NEARLY)
  for i = 1, #list do
    if list[i].score and list[i].score <= equal then return list[i] end
  end
end

-- near: no other backend's score could be so much smaller that it is worth the look, b being the first in ring order.
local function near(b, w)
  if b.external > 0 or b.capacity == 0 and b.rate == 0 then return false end
  pace(b)
  b.score = score(b, w, 0)
  return b.score <= EASY and roomy(b, w)
end

-- claim plans the lease of w on b.
local function claim(b, w)
  touch(history(b))
  local own, more = uncached(b, w), b.more
  b.held, b.output, b.backlog = b.held + 1, b.output + w.output, b.backlog + own
  b.sent = b.sent + math.max(0, w.tokens - (b.matched or 0))
  if b.matched and b.age > 0 then b.sent = b.sent + math.floor(b.matched * math.min(1, b.age / b.room)) end -- prefixes.part.lua says why
  b.mean = b.mean == 0 and w.mu or math.floor(b.mean + (w.mu - b.mean) / 32 + 0.5)
  more[#more + 1], more[#more + 2], more[#more + 3], more[#more + 4] = 'tokens_sent', int(b.sent), 'mean_mu', int(b.mean)
  if b.guess then more[#more + 1], more[#more + 2], b.guess = 'rate_mu', int(b.guess), nil end
  later('HSET', root .. ':held:' .. w.replica, w.rid, string.format('%d %s %d %d %d %d %d %s', w.attempt, b.id, w.mu, now,
    w.output, own, b.backlog, w.tenant))
end

-- give_back plans the end of a lease, given its value; the backend that has a slot more, or nil, and the lease's part
-- of its backlog, if it can be read: placed_at, prompt_mu, work_mu.
local function give_back(replica, rid, value)
  later('HDEL', root .. ':held:' .. replica, rid)
  local _, id, rest = lease_of(value)
  local b = id and backend(id)
  if not b or not b.held or b.held == 0 then return nil end
  touch(b)
  b.held = b.held - 1
  local at, output, prompt, work = string.match(rest, '^%d+ (%d+) (%d+) (%d+) (%d+) ')
  if b.readable and output then b.output = math.max(0, b.output - tonumber(output)) end
  return b, tonumber(at), tonumber(prompt), tonumber(work)
end
