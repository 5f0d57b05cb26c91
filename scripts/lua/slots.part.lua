-- What place, release, beat and clear share.
--
-- Everything is read and planned first; commit() then runs the planned writes, each on a key whose type was read, so
-- none can fail and nothing is half done. A backend, waiter or replica that cannot be read is passed over.
--
-- <root>:backend:<id>        hash  slots, held (leases on it), draining (absent, "" or 0: no), cooldown_until (ms),
--                                  address, registered (slots draining address, as last registered)
-- <root>:held:<replica>      hash  rid -> attempt backend mu placed_at_ms tenant
-- <root>:waiting:<replica>   hash  rid -> member of the queue
-- <root>:queue               zset  <seq, 12 digits>|rid|attempt|replica|tenant|model|mu|not-backend by seq
-- <root>:turns               hash  seq of the last that joined, grants so far
-- <root>:replicas            zset  replica by last beat (ms)
local root = KEYS[1]
local pool = string.match(root, '^hg:{p:(.*)}$')
local queue, turns, replicas = root .. ':queue', root .. ':turns', root .. ':replicas'
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local WINDOW = 16 -- of the waiting, so many are asked whether they could use a slot
local CHUNK = 4 -- of the queue, read at a time

local function int(n) return string.format('%.0f', n) end

-- whole is the whole number in s, or nil; 15 digits are exact in a double.
local function whole(s)
  if type(s) == 'string' and #s <= 15 and string.match(s, '^%d+$') then return tonumber(s) end
end

-- read is a reply, or nil where the key has another type. Any other error ends the script: nothing is written yet.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then return nil end
    error(reply.err, 0)
  end
  return reply
end

local plan, dirty, backends = {}, {}, {}
local function later(...) plan[#plan + 1] = { ... } end

-- backend is the record of id as it will be after the plan. slots: what counts where the record has none (or nil).
-- usable: it may run requests now or later; open: a new request may go there now if a slot is free.
local function backend(id, slots)
  local b = backends[id]
  if b then return b end
  b = { id = id, key = root .. ':backend:' .. id }
  backends[id] = b
  local f = read('HMGET', b.key, 'slots', 'held', 'draining', 'cooldown_until', 'registered')
  if not f then return b end
  b.typed, b.registered, b.recorded = true, f[5], f[1]
  b.slots, b.held = whole(f[1] or slots), whole(f[2] or '0')
  b.draining = f[3] and f[3] ~= '' and f[3] ~= '0'
  if not f[4] or f[4] == '' then b.cool = 0 else b.cool = whole(f[4]) end
  return b
end

local function usable(b) return b.slots and b.slots > 0 and b.held and b.cool and not b.draining end
local function open(b) return usable(b) and b.cool <= now end
local function free(b) return open(b) and b.held < b.slots end

local function count(b, by)
  b.held = b.held + by
  dirty[b.id] = b
end

-- lease_of is attempt and backend of a value in held:<replica>; a value that cannot be read is attempt 0 on no backend.
local function lease_of(value)
  local attempt, id = string.match(value, '^(%d+) (%S+) ')
  return tonumber(attempt or 0), id
end

-- waiter_of takes a member of the queue apart, or is nil.
local function waiter_of(member)
  local seq, rid, attempt, replica, tenant, model, mu, avoid =
    string.match(member, '^(%d+)|([^| ]+)|(%d+)|([^| ]+)|([^|]*)|([^|]*)|(%d+)|([^|]*)$')
  if not seq then return nil end
  return { member = member, seq = tonumber(seq), rid = rid, attempt = tonumber(attempt), replica = replica,
    tenant = tenant, model = model, mu = mu, avoid = avoid }
end

-- claim plans the lease of w on b.
local function claim(b, w)
  count(b, 1)
  later('HSET', root .. ':held:' .. w.replica, w.rid,
    w.attempt .. ' ' .. b.id .. ' ' .. w.mu .. ' ' .. int(now) .. ' ' .. w.tenant)
end

local gone, left_queue = {}, 0 -- members of the queue that the plan takes out, and how many
local function unqueue(member, replica, rid)
  later('ZREM', queue, member)
  if replica then later('HDEL', root .. ':waiting:' .. replica, rid) end
  gone[member], left_queue = true, left_queue + 1
end

-- give_back plans the end of a lease, given its value; the backend that has a slot more, or nil.
local function give_back(replica, rid, value)
  later('HDEL', root .. ':held:' .. replica, rid)
  local _, id = lease_of(value)
  local b = id and backend(id)
  if not b or not b.held or b.held == 0 then return nil end
  count(b, -1)
  return b
end

local granted = {} -- rid -> waiter granted by this plan, with its backend in .on

-- grantable: the hashes a grant writes have their types, and the rid has no lease already (else its entry is stale).
local function grantable(w)
  if w.typed == nil then
    local lease = read('HGET', root .. ':held:' .. w.replica, w.rid)
    w.typed = lease ~= nil and read('HGET', root .. ':waiting:' .. w.replica, w.rid) ~= nil
    w.stale = lease and true
  end
  return w.typed
end

-- offer plans a grant for w on the first of these backends it may use, and says whether it did.
local function offer(offered, w)
  for _, b in ipairs(offered) do
    if free(b) and w.avoid ~= b.id and grantable(w) then
      unqueue(w.member, w.replica, w.rid)
      if w.stale then return true end
      claim(b, w)
      later('PUBLISH', 'hg:grant:' .. w.replica, pool .. ' ' .. w.rid .. ' ' .. int(w.attempt) .. ' ' .. b.id)
      w.on, granted[w.rid] = b.id, w
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

-- hand_over plans grants of the free slots of offered (backends in order of preference) to the waiting, by score: at
-- most `most`, and it gives up after WINDOW waiters who cannot use any. The result is how many were granted.
local function hand_over(offered, most)
  local grants, passed, from, more = 0, 0, 0, any_free(offered)
  while more do
    local members = redis.call('ZRANGE', queue, int(from), int(from + CHUNK - 1))
    for _, member in ipairs(members) do
      local w = not gone[member] and waiter_of(member)
      if w == nil then
        unqueue(member)
      elseif w and offer(offered, w) then
        grants = grants + (w.on and 1 or 0)
        more = grants < most and any_free(offered)
      elseif w then
        passed = passed + 1
        more = passed < WINDOW
      end
      if not more then break end
    end
    more = more and #members == CHUNK
    from = from + CHUNK
  end
  if grants > 0 then
    local before = whole(redis.call('HGET', turns, 'grants') or '0') or 0
    later('HSET', turns, 'grants', int(before + grants))
  end
  return grants
end

-- commit is the second half.
local function commit()
  for _, b in pairs(dirty) do
    redis.call('HSET', b.key, 'held', int(b.held))
    if not b.recorded and b.slots then redis.call('HSET', b.key, 'slots', int(b.slots)) end
  end
  for _, command in ipairs(plan) do redis.call(unpack(command)) end
end
