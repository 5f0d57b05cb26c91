-- Which prompts' beginnings are warm where. Included after score.part.lua.
--
-- <root>:prefix:<generation>:<0-15>  hash  fingerprint -> up to 3 of "<tag><restarts>.<tokens>", latest first, parted by
--                                          spaces: tag is 5 hex digits of the SHA-1 of the backend's id; restarts and
--                                          thousands of tokens_sent then, in hex
-- <root>:turns   generation (the newer of two), generation_at (ms)
--
-- All fingerprints of a request lie in one hash, which its beginning names: one read per generation, one write. An entry
-- is warm only if the backend's restarts are the same and fewer tokens than its KV cache holds came since. A cache drops what
-- was longest unused, so what is used again counts as come, too: not at all if it was the latest, in full if it was the next
-- to go, and in proportion between them.
local NAMED = 3 -- backends an entry names
local RECENT = 16 -- an entry whose first name is this part of a KV cache old, or less, is not written again
local PREFIX_KEEP = '3900000' -- ms; a generation that nobody writes goes by itself

local function prefix_key(generation, bucket) return root .. ':prefix:' .. int(generation) .. ':' .. bucket end

local function tag_of(b)
  b.tag = b.tag and b.tag ~= '' and b.tag or string.sub(redis.sha1hex(b.id), 1, 5)
  return b.tag
end

-- look_up reads the entries of w's fingerprints; false where there is none. older: which come from the older generation.
local function look_up(w, generation)
  w.entries, w.older = {}, {}
  if #w.prints == 0 then return end
  local found = read('HMGET', prefix_key(generation, w.bucket), unpack(w.prints))
  if not found then -- of another type: w leaves no prints
    w.prints = {}
    return
  end
  w.generation, w.entries, w.fresh = generation, found, true
  local missing = false
  for i = 1, #w.prints do
    if found[i] then w.fresh = false else missing = true end
  end
  if not missing then return end
  local older = read('HMGET', prefix_key(generation - 1, w.bucket), unpack(w.prints))
  for i = 1, older and #w.prints or 0 do
    if not found[i] then found[i], w.older[i] = older[i], true end
  end
end

-- match sets matched of the backends in by_tag to the prompt tokens of w that are warm there, unless they are less than the
-- least. A longer beginning may be warm for less than a shorter one with an answer behind it.
local function match(w, by_tag)
  local last
  for i = #w.prints, 1, -1 do
    local entry = w.entries[i]
    if entry and entry ~= last and w.lengths[i] >= w.least then
      last = entry
      for tag, restarts, sent in string.gmatch(entry, '(%x%x%x%x%x)(%x+)%.(%x+)') do
        local b = by_tag[tag]
        if b and not b.matched and tonumber(restarts, 16) == history(b).restarts and b.sent - tonumber(sent, 16) * 1000 < b.room then
          b.matched, b.age = w.lengths[i], math.max(0, b.sent - tonumber(sent, 16) * 1000)
        end
      end
    end
  end
end

-- remember plans that w's prompt is warm on b, to which it was just given.
local function remember(w, b)
  if #w.prints == 0 then return end
  local tag, n, command, last, value, recent = tag_of(b), 2, { 'HSET', prefix_key(w.generation, w.bucket) }, nil, nil, false
  local mine = string.format('%s%x.%x', tag, b.restarts, math.floor(b.sent / 1000))
  for i = 1, #w.prints do
    local entry = w.entries[i] or ''
    if entry ~= last then
      local first, restarts, sent = string.match(entry, '^(%x%x%x%x%x)(%x+)%.(%x+)')
      last, value = entry, mine
      recent = first == tag and tonumber(restarts, 16) == b.restarts and (b.sent - tonumber(sent, 16) * 1000) * RECENT < b.room
      local named = 1
      for other in string.gmatch(entry, '%S+') do
        if named < NAMED and string.sub(other, 1, 5) ~= tag then
          value, named = value .. ' ' .. other, named + 1
        end
      end
    end
    if not recent or w.older[i] then
      command[n + 1], command[n + 2], n = w.prints[i], value, n + 2
    end
  end
  if n > 2 then plan[#plan + 1] = command end
  if w.fresh then later('PEXPIRE', command[2], PREFIX_KEEP) end
end
