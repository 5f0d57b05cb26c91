-- The gateway's work in Lua, as somebody would write it who knows nginx well: key check by SHA-256, limits and budgets of
-- three scopes, the body read for model and affinity, stream_options inserted, a backend chosen by hash with its load
-- bounded, time to first token and usage taken from the answer, one usage line per request with headgate's fields.
-- site.lua beside it is generated: the engines, the key's hash, where to log, and store: nil, or the address of Redis.
local ffi = require "ffi"
local cjson = require "cjson.safe"
local balancer = require "ngx.balancer"
local site = require "site"
local store = site.redis and require "store"

ffi.cdef "unsigned char *SHA256(const unsigned char *d, size_t n, unsigned char *md);"
local digest = ffi.new("unsigned char[32]")
local hexed = {}
for i = 0, 255 do hexed[i] = string.format("%02x", i) end

local counters = ngx.shared.counters
local engines, count = site.engines, #site.engines
local policies = { [site.hash] = { id = "key_1", team = "search", tenant = "acme", rpm = 1e9, tpm = 1e12, budget = 1e15 } }
local models = { ["qwen-7b"] = { prompt = 200, completion = 600 } } -- nano-dollars per token

local M = {}
local lines, n, out = {}, 0, nil

local function flush()
	if n > 0 then
		out:write(table.concat(lines, "\n", 1, n), "\n")
		out:flush()
		n = 0
	end
end

function M.start()
	out = io.open(site.log, "a")
	ngx.timer.every(1, flush)
end

local function sha256(s)
	ffi.C.SHA256(s, #s, digest)
	local hex = {}
	for i = 0, 31 do hex[i + 1] = hexed[digest[i]] end
	return table.concat(hex)
end

local function refuse(status, code, message)
	ngx.status = status
	ngx.header["Content-Type"] = "application/json"
	ngx.print(cjson.encode { error = { message = message, type = "invalid_request_error", code = code } })
	return ngx.exit(status)
end

local function first_text(doc)
	local m = doc.messages and doc.messages[1]
	if m and type(m.content) == "string" then return m.content end
	return type(doc.prompt) == "string" and doc.prompt or ""
end

-- admit counts the request against its three scopes; false when one of them has no room.
local function admit(c)
	local p, minute = c.policy, math.floor(ngx.time() / 60)
	for i = 1, 3 do
		local s = c.scopes[i]
		if counters:incr("r:" .. s .. ":" .. minute, 1, 0, 120) > p.rpm then return false end
		if counters:incr("t:" .. s .. ":" .. minute, c.estimate, 0, 120) > p.tpm then return false end
		if (counters:get("s:" .. s) or 0) + (counters:incr("h:" .. s, c.hold, 0)) > p.budget then return false end
		counters:incr("p:" .. s, 1, 0)
	end
	return true
end

local function settle(c, cost, tokens)
	local minute = c.minute
	for i = 1, 3 do
		local s = c.scopes[i]
		counters:incr("t:" .. s .. ":" .. minute, tokens - c.estimate, 0, 120)
		counters:incr("h:" .. s, -c.hold, 0)
		counters:incr("s:" .. s, cost, 0)
		counters:incr("n:" .. s, 1, 0)
		counters:incr("p:" .. s, -1, 0)
	end
end

-- place walks from the hash's engine on to the first with a free slot.
local function place(c)
	for i = 0, count - 1 do
		local at = (c.affinity + i) % count + 1
		local held = counters:incr("b:" .. at, 1, 0)
		if held <= site.slots then
			c.at = at
			return true
		end
		counters:incr("b:" .. at, -1, 0)
	end
	return false
end

function M.access()
	local c = { start = ngx.now() }
	ngx.ctx.c = c
	local auth = ngx.var.http_authorization
	if not auth or string.sub(auth, 1, 7) ~= "Bearer " then return refuse(401, "invalid_api_key", "No API key.") end
	c.hash = sha256(string.sub(auth, 8))
	local p = policies[c.hash]
	if not p then return refuse(401, "invalid_api_key", "Unknown API key.") end
	ngx.req.read_body()
	local body = ngx.req.get_body_data()
	if not body then return refuse(413, "body_too_large", "The body is too large.") end
	local doc = cjson.decode(body)
	if type(doc) ~= "table" then return refuse(400, "invalid_json", "The body is not valid JSON.") end
	local price = models[doc.model]
	if not price then return refuse(404, "model_not_found", "No such model.") end
	c.policy, c.doc_model, c.stream, c.user = p, doc.model, doc.stream == true, doc.user
	c.bytes, c.minute, c.price = #body, math.floor(ngx.time() / 60), price
	c.prompt_estimate = math.ceil(#body / 4)
	c.estimate = c.prompt_estimate + (tonumber(doc.max_tokens) or 4096)
	c.hold = c.prompt_estimate * price.prompt + (c.estimate - c.prompt_estimate) * price.completion
	c.scopes = { "key:" .. p.id, "team:" .. p.team, "tenant:" .. p.tenant }
	c.affinity = ngx.crc32_long(doc.model .. string.sub(first_text(doc), 1, 2048))
	c.rid = ngx.var.request_id
	if store then
		local ok, at = store.before(c)
		if not ok then return refuse(429, "rate_limit_exceeded", "Over the limit.") end
		c.at = at
	elseif not admit(c) then
		return refuse(429, "rate_limit_exceeded", "Over the limit.")
	elseif not place(c) then
		return refuse(503, "queue_full", "No engine has a free slot.")
	end
	c.admitted = true
	if c.stream and not (doc.stream_options and doc.stream_options.include_usage) then
		local brace = string.find(body, "{", 1, true)
		ngx.req.set_body_data(string.sub(body, 1, brace) .. '"stream_options":{"include_usage":true},' .. string.sub(body, brace + 1))
	end
	ngx.req.set_header("X-Request-Id", c.rid)
	c.sent = ngx.now()
end

function M.balance()
	local e = engines[ngx.ctx.c.at]
	balancer.set_current_peer(e[1], e[2])
end

function M.head()
	local c = ngx.ctx.c
	if c and c.at then
		ngx.header["X-Request-Id"] = c.rid
		ngx.header["X-Gate-Backend"] = c.at
	end
end

-- body looks at each piece of the answer: the first is the first token, and usage stands in the last ones.
function M.body()
	local c = ngx.ctx.c
	local piece = ngx.arg[1]
	if not c or not c.admitted or piece == "" then return end
	if not c.first then c.first = ngx.now() end
	c.events = (c.events or 0) + 1
	if string.find(piece, '"usage":{', 1, true) then c.tail = piece end
end

local function number(s, name)
	return tonumber(string.match(s, '"' .. name .. '":%s*(%d+)')) or 0
end

local function quoted(s)
	return s and cjson.encode(s) or '""'
end

function M.log()
	local c = ngx.ctx.c
	if not c or not c.admitted then return end
	local now, tail = ngx.now(), c.tail or ""
	local prompt, completion, cached = number(tail, "prompt_tokens"), number(tail, "completion_tokens"), number(tail, "cached_tokens")
	local cost = prompt * c.price.prompt + completion * c.price.completion
	local tpot = 0
	if c.stream and completion > 1 then tpot = (now - c.first) / (completion - 1) end
	local line = string.format(
		'{"time":"%s","request_id":%s,"rid":"%s","replica":"peer","tenant":"%s","team":"%s","user":"","key_id":"%s","end_user":%s,"tags":[],"route":"/v1/chat/completions","model":%s,"pool":%s,"backend":"%d","attempts":1,"status":%d,"outcome":"%s","error_code":"","stream":%s,"cache":"off","prompt_tokens":%d,"cached_tokens":%d,"completion_tokens":%d,"usage_source":"%s","cost_nusd":%d,"queue_ms":0,"ttft_ms":%.1f,"tpot_ms":%.2f,"duration_ms":%.1f,"redis_ms":%.2f,"round_trips":%d,"request_bytes":%d,"response_bytes":%s,"client_ip":"%s","user_agent":%s}',
		ngx.utctime(), quoted(c.rid), c.rid, c.policy.tenant, c.policy.team, c.policy.id, quoted(c.user), quoted(c.doc_model), quoted(c.doc_model), c.at,
		ngx.status, ngx.status == 200 and "ok" or "upstream_error", c.stream and "true" or "false", prompt, cached, completion,
		tail ~= "" and "backend" or "none", cost, ((c.first or now) - c.start) * 1000, tpot * 1000, (now - c.start) * 1000, c.redis_ms or 0,
		store and 1 or 0, c.bytes, ngx.var.body_bytes_sent, ngx.var.remote_addr, quoted(ngx.var.http_user_agent))
	if store then
		store.after(c, cost, prompt, completion, line)
	else
		settle(c, cost, prompt + completion)
		counters:incr("b:" .. c.at, -1, 0)
	end
	n = n + 1
	lines[n] = line
	if n >= 128 then flush() end
end

return M
