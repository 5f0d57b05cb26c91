-- Who waits, and whose turn it is. Included after prefixes.part.lua.
--
-- turns: seq (the last that joined), grants, v (the largest turn granted), and <class>|<tenant> (that tenant's last turn
-- in the class) while anybody waits. A member's score is its turn + 100 · class, its turn max(v, the tenant's last + 1).
-- So tenants take turns inside a class and equal ones go by arrival; and as every 16th grant goes to the first that
-- arrived of those who can use it, nobody waits for more than 16 grants per entry that was ahead.
--
-- A value of waiting:<replica> is the member, then, parted by spaces: class, output_mu, prompt tokens, MU saved by a
-- cached token, least match in tokens, bucket, number of fingerprints, fingerprint, its tokens, …
-- WINDOW: of the waiting, so many are asked whether they could use a slot before a new request may have it; when one comes
-- free, FAR; by each beat, ALL. A pool may serve several models, and a backend not all of them: behind many who wait for
-- one, who waits for another would be passed by all that are new, and starve beside an idle backend.
local WINDOW, FAR, ALL = 16, 256, 1024
local CHUNK, LARGE = 4, 64 -- of a line, read at a time: at first, and at most
local ELDEST = 16 -- every so many grants one goes by arrival

local turn -- the counters, once read
local function counters()
  if not turn then
    local f = redis.call('HMGET', turns, 'seq', 'grants', 'v', 'generation', 'generation_at')
    turn = { seq = whole(f[1]), grants = whole(f[2]) or 0, v = whole(f[3]) or 0, generation = whole(f[4]), at = whole(f[5]) }
    if not turn.generation or not turn.at then turn.generation, turn.at, turn.changed = turn.generation or 1, now, true end
  end
  return turn
end

-- waiter_of takes a member of the queue apart, or is nil.
local function waiter_of(member)
  local seq, rid, attempt, replica, tenant, model, mu, avoid =
    string.match(member, '^(%d+)|([^| ]+)|(%d+)|([^| ]+)|([^|]*)|([^|]*)|(%d+)|([^| ]*)')
  if not seq then return nil end
  return { seq = tonumber(seq), rid = rid, attempt = tonumber(attempt), replica = replica, tenant = tenant, model = model,
    mu = tonumber(mu), avoid = avoid, output = 0, tokens = 0, save = 0, least = 0, prints = {}, lengths = {} }
end

local function member_of(value) return string.match(value, '^%S*') end

local gone, left_queue, joined = {}, 0, 0 -- members of the queue that the plan takes out; how many; how many it puts in
local function unqueue(member, replica, rid)
  if left_queue == 0 then redis.call('ZCARD', arrivals) end -- its type
  later('ZREM', queue, member)
  later('ZREM', arrivals, member)
  if replica then later('HDEL', root .. ':waiting:' .. replica, rid) end
  gone[member], left_queue = true, left_queue + 1
end

-- grantable: the hashes a grant of w writes have their types, and the rid has no lease already (else its entry is
-- stale). It reads what a grant needs to know.
local function grantable(w)
  if w.typed == nil then
    local lease = read('HGET', root .. ':held:' .. w.replica, w.rid)
    local value = read('HGET', root .. ':waiting:' .. w.replica, w.rid)
    w.typed, w.stale = lease ~= nil and value ~= nil, lease and true
    local class, output, tokens, save, least, bucket, prints =
      string.match(value or '', '^%S+ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ ?(.*)$')
    if class then
      w.class, w.output, w.tokens, w.save = tonumber(class), math.min(tonumber(output), w.mu), tonumber(tokens), tonumber(save)
      w.least, w.bucket = tonumber(least), bucket
      for print, length in string.gmatch(prints, '(%S+) (%d+)') do
        w.prints[#w.prints + 1], w.lengths[#w.lengths + 1] = print, tonumber(length)
      end
    end
  end
  return w.typed
end

-- serves: b lists the model of w, and w does not avoid it; behind a = stands the only backend that will do.
local function serves(b, w)
  if string.sub(w.avoid, 1, 1) == '=' then return w.avoid == '=' .. b.id end
  if w.avoid == b.id then return false end
  if b.models == nil then
    local f = read('HGET', b.key, 'models')
    b.models = f and f ~= '' and ' ' .. f .. ' ' or false
  end
  return not b.models or string.find(b.models, ' ' .. w.model .. ' ', 1, true)
end

local granted = {} -- rid -> waiter granted by this plan, with its backend in .on, its warm tokens in .matched

-- offer plans a grant for w on the first of these backends it may use, and says whether w leaves the queue.
local function offer(offered, w, member)
  for _, b in ipairs(offered) do
    if free(b) and serves(b, w) and grantable(w) then
      local score = tonumber(redis.call('ZSCORE', queue, member))
      unqueue(member, w.replica, w.rid)
      if w.stale or not score then return true end
      local t = counters()
      t.grants, t.changed = t.grants + 1, true
      if w.class then t.v = math.max(t.v, score - 100 * w.class) end
      look_up(w, t.generation)
      b.matched = nil
      if #w.prints > 0 then match(w, { [tag_of(b)] = b }) end
      claim(b, w)
      remember(w, b)
      announce('hg:grant:' .. w.replica, string.match(root, '^hg:{p:(.*)}$') .. ' ' .. w.rid .. ' '
        .. int(w.attempt) .. ' ' .. b.id .. ' ' .. int(b.matched or 0))
      w.on, w.matched, granted[w.rid] = b.id, b.matched or 0, w
      return true
    end
  end
  return false
end

local function any_free(offered)
  for _, b in ipairs(offered) do
    if free(b) then return true end
  end
  return false
end

-- walk gives out one slot of offered: to the first of a line (a sorted set, with the place where it was left) who can use
-- it. What it passes over cannot use them later either. False: nobody of the first line.window.
local function walk(line, offered)
  while true do
    line.at = line.at + 1
    if line.at > #line.members then
      if line.over then return false end
      line.members, line.at = redis.call('ZRANGE', line.key, int(line.from), int(line.from + line.chunk - 1)), 0
      line.from, line.over = line.from + line.chunk, #line.members < line.chunk
      if line.passed >= WINDOW then line.chunk = LARGE end
    else
      local member = line.members[line.at]
      if not gone[member] then
        local w = waiter_of(member)
        if not w then
          unqueue(member)
        elseif offer(offered, w, member) then
          return true
        else
          line.passed = line.passed + 1
          if line.passed == line.window then
            line.over, line.members = true, {}
            return false
          end
        end
      end
    end
  end
end

-- hand_over plans grants of the free slots of offered (backends in order of preference) to the first `window` waiting, at
-- most `most`. The result is how many were granted.
local function hand_over(offered, most, window)
  local by_turn = { key = queue, from = 0, at = 0, members = {}, passed = 0, window = window, chunk = CHUNK }
  local by_arrival = { key = arrivals, from = 0, at = 0, members = {}, passed = 0, window = window, chunk = CHUNK }
  local before, first = turn and turn.grants or nil, true
  while any_free(offered) do
    if first and redis.call('ZCARD', queue) <= left_queue then break end
    first = false
    local t = counters()
    before = before or t.grants
    if t.grants - before == most then break end
    if not ((t.grants + 1) % ELDEST == 0 and walk(by_arrival, offered)) and not walk(by_turn, offered) then break end
  end
  return turn and before and turn.grants - before or 0
end

-- join plans a place in the queue for w: its seq and how many are ahead. length: of the queue now; needs: what a grant
-- needs to know, as documented above.
local function join(w, length, needs)
  local t, alone = counters(), length - left_queue <= 0
  redis.call('ZCARD', arrivals) -- its type
  local field, last, seq = needs.class .. '|' .. w.tenant, nil, t.seq
  if alone then t.v, t.fresh = 0, true else last = whole(redis.call('HGET', turns, field)) end
  if not seq then -- never used, or lost: behind everybody who waits
    local eldest = redis.call('ZRANGE', arrivals, '-1', '-1', 'WITHSCORES')
    seq = tonumber(eldest[2] or 0)
  end
  seq = seq + 1
  local mine = math.max(t.v, last and last + 1 or 0)
  local score = int(mine + 100 * tonumber(needs.class))
  local member = table.concat({ string.format('%012d', seq), w.rid, int(w.attempt), w.replica, w.tenant, w.model, int(w.mu),
    w.avoid }, '|')
  local ahead = math.min(length - left_queue, redis.call('ZCOUNT', queue, '-inf', score))
  t.seq, t.changed, joined = seq, true, 1
  t.last = { field, int(mine) }
  later('ZADD', queue, score, member)
  later('ZADD', arrivals, int(seq), member)
  later('HSET', root .. ':waiting:' .. w.replica, w.rid, member .. ' ' .. needs.packed)
  return seq, ahead
end

-- settle plans the counters: it is called last before commit(). Turns start anew when nobody waits.
local function settle_turns()
  if left_queue > 0 and joined == 0 and redis.call('ZCARD', queue) <= left_queue then
    counters().v, turn.fresh = 0, true
  end
  if not turn or not (turn.changed or turn.fresh) then return end
  if turn.fresh then later('UNLINK', turns) end
  local f = { 'HSET', turns, 'grants', int(turn.grants), 'v', int(turn.v), 'generation', int(turn.generation),
    'generation_at', int(turn.at) }
  if turn.seq then f[#f + 1], f[#f + 2] = 'seq', int(turn.seq) end
  if turn.last then f[#f + 1], f[#f + 2] = turn.last[1], turn.last[2] end
  plan[#plan + 1] = f
end
