-- What every script of placement shares: the records of backends, leases, and the plan.
--
-- Everything is read and planned first; commit() then runs the planned writes, each on a key whose type was read, so
-- none can fail and nothing is half done; announcements come last, and may fail. A backend, waiter or replica that cannot
-- be read is passed over.
-- MU are thousandths of a model unit, whole; a rate is MU per second.
--
-- <root>:backend:<id>        hash  address, slots, models (percent-encoded, parted by spaces; absent: all)
--                                  registered (as last registered), draining (absent, "" or 0: no)
--                                  held (leases on it), output_held (output MU of these leases)
--                                  capacity_mu (rate as registered), rate_mu (as corrected by what was measured)
--                                  backlog (prompt MU, as of backlog_at, ms: the last place or release there)
--                                  mean_mu (of a request there), tokens_sent (what came into its KV cache)
--                                  cooldown_until (ms), failures, silent (requests in a row without a first token)
--                                  external (requests of others), kv (use of the KV cache, percent × 100), kv_tokens,
--                                  restarts, read_at (ms), and what reading.lua says of them
-- <root>:held:<replica>      hash  rid -> attempt backend mu placed_at_ms output_mu prompt_mu work_mu tenant
--                                  (prompt_mu: what it added to the backlog; work_mu: the backlog with it)
-- <root>:waiting:<replica>   hash  rid -> member of the queue, then what a grant needs (queue.part.lua)
-- <root>:queue               zset  <seq, 12 digits>|rid|attempt|replica|tenant|model|mu|not-backend by turn
-- <root>:arrivals            zset  the same members by seq
-- <root>:turns               hash  the pool's counters (queue.part.lua, prefixes.part.lua)
-- <root>:replicas            zset  replica by last beat (ms)
local tonumber, min, call, pcall = tonumber, math.min, redis.call, redis.pcall -- a global costs a look-up each time
local root = KEYS[1]
local queue, arrivals, turns, replicas = root .. ':queue', root .. ':arrivals', root .. ':turns', root .. ':replicas'
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local FRESH = 5000 -- ms; an engine's reading older than this says nothing
local FULL = 9500 -- kv above which a backend gets no request
local ROOM = 262144 -- tokens in a KV cache whose size nobody told

local function int(n) return string.format('%d', n) end

-- whole is the whole number in s, or nil; below 1e15 a double is exact.
local function whole(s)
  local n = tonumber(s)
  if n and n >= 0 and n < 1e15 and n % 1 == 0 then return n end
end

-- figure is the whole number in a field that may be absent, or nil.
local function figure(s, absent)
  if not s or s == '' then return absent end
  return whole(s)
end

-- checked is a reply of pcall, or nil where the key has another type. Any other error ends the script: nothing is written
-- yet.
local function checked(reply)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then return nil end
    error(reply.err, 0)
  end
  return reply
end

local function read(...) return checked(pcall(...)) end

-- judge sets readable (all figures of b are whole numbers), usable (it may run requests now or later) and open (a new
-- request may go there now if a slot is free).
local function judge(b)
  local slots, held, cool, capacity, rate, backlog, touched, output =
    b.slots, b.held, b.cool, b.capacity, b.rate, b.backlog, b.touched, b.output
  b.readable = slots and held and cool and capacity and rate and backlog and touched and output and b.external and b.kv
    and min(slots, held, cool, capacity, rate, backlog, touched, output) >= 0
    and (slots + held + cool + capacity + rate + backlog + touched + output) % 1 == 0 and backlog < 1e15 and output < 1e15
  b.usable = b.readable and slots > 0 and not b.draining
  b.open = b.usable and cool <= now and b.kv <= FULL
end

local plan, dirty, backends, announced = {}, {}, {}, {}
local function later(...) plan[#plan + 1] = { ... } end

-- announce plans a message, which is sent last: a user without rights on channels loses it, and nothing else.
local function announce(channel, message) announced[#announced + 1], announced[#announced + 2] = channel, message end

-- backend is the record of id as it will be after the plan. slots: what counts where the record has none (or nil).
-- Its table is made in one piece, and its figures are judged together: a pool has many.
local BACKEND = root .. ':backend:'
local function backend(id, slots)
  local b = backends[id]
  if b then return b end
  local key = BACKEND .. id
  local f = checked(pcall('HMGET', key, 'slots', 'held', 'draining', 'cooldown_until', 'capacity_mu', 'rate_mu', 'backlog',
    'backlog_at', 'output_held', 'read_at', 'external', 'kv'))
  if not f then
    b = { id = id, key = key }
    backends[id] = b
    return b
  end
  local external, kv, at = 0, 0, tonumber(f[10] or 0)
  if at and at + FRESH >= now then external, kv = figure(f[11], 0), figure(f[12], 0) end
  b = { id = id, key = key, typed = true, readable = false, usable = false, open = false,
    recorded = f[1], draining = f[3] and f[3] ~= '' and f[3] ~= '0', slots = tonumber(f[1] or slots), held = tonumber(f[2] or 0), cool = tonumber(f[4] or 0), capacity = tonumber(f[5] or 0),
    rate = tonumber(f[6] or 0), backlog = tonumber(f[7] or 0), touched = tonumber(f[8] or 0), output = tonumber(f[9] or 0),
    external = external, kv = kv, speed = false, score = false, matched = false, tag = false, more = false, sent = false }
  backends[id] = b
  judge(b)
  if not b.readable then -- it may be an empty text; held counts on although others cannot be read
    b.slots, b.held, b.cool = whole(f[1] or slots), figure(f[2], 0), figure(f[4], 0)
    b.capacity, b.rate, b.output = figure(f[5], 0), figure(f[6], 0), figure(f[9], 0)
    b.backlog, b.touched = figure(f[7], 0), figure(f[8], 0)
    judge(b)
  end
  return b
end

-- history reads the figures of b that matter only where it is chosen or a prompt may be warm. Unreadable ones start anew.
local function history(b)
  if b.sent then return b end
  local f = redis.call('HMGET', b.key, 'tokens_sent', 'restarts', 'kv_tokens', 'mean_mu')
  b.sent, b.restarts, b.room, b.mean = figure(f[1], 0) or 0, figure(f[2], 0) or 0, figure(f[3], ROOM) or ROOM, figure(f[4], 0) or 0
  return b
end

local function free(b) return b.open and b.held + b.external < b.slots end

-- lease_of is attempt and backend of a value in held:<replica>, and the rest of it; a value that cannot be read is
-- attempt 0 on no backend.
local function lease_of(value)
  local attempt, id, rest = string.match(value, '^(%d+) (%S+) (.*)$')
  return tonumber(attempt or 0), id, rest
end

-- commit is the second half.
local function commit()
  for _, b in pairs(dirty) do
    local more = b.more
    more[#more + 1], more[#more + 2] = 'held', int(b.held)
    if b.readable then
      local n = #more
      more[n + 1], more[n + 2], more[n + 3], more[n + 4] = 'backlog', int(b.backlog), 'backlog_at', int(b.touched)
      more[n + 5], more[n + 6] = 'output_held', int(b.output)
    end
    if not b.recorded and b.slots then more[#more + 1], more[#more + 2] = 'slots', int(b.slots) end
    redis.call('HSET', b.key, unpack(more))
  end
  for i = 1, #plan do call(unpack(plan[i])) end
  for i = 1, #announced, 2 do pcall('PUBLISH', announced[i], announced[i + 1]) end
end
