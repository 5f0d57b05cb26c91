-- The same work with its counters in Redis, so that several nginx share them: one pipeline before the request (admit and
-- place), one after it (settle, release, usage record), which no client waits for. Connections are kept alive. The scripts
-- are the naive yardsticks beside this file: they count and reserve, but lose replies, leases and running requests.
local site = require "site"

local M = {}
local tcp = ngx.socket.tcp
local count = #site.engines

local function pack(t)
	local b = { "*" .. #t .. "\r\n" }
	for i = 1, #t do
		local v = tostring(t[i])
		b[i + 1] = "$" .. #v .. "\r\n" .. v .. "\r\n"
	end
	return table.concat(b)
end

-- reply reads one reply: a string, a number, or a table of them; nil and a text for an error.
local function reply(sock)
	local line, err = sock:receive("*l")
	if not line then return nil, err end
	local kind, rest = string.byte(line), string.sub(line, 2)
	if kind == 36 then -- $
		local n = tonumber(rest)
		if n < 0 then return false end
		local data = sock:receive(n + 2)
		return data and string.sub(data, 1, n)
	elseif kind == 58 then -- :
		return tonumber(rest)
	elseif kind == 42 then -- *
		local t = {}
		for i = 1, tonumber(rest) do t[i] = reply(sock) end
		return t
	elseif kind == 45 then -- -
		return nil, rest
	end
	return rest
end

-- round sends the commands as one pipeline.
local function round(commands, replies)
	local sock = tcp()
	sock:settimeout(5000)
	local ok, err = sock:connect(site.redis[1], site.redis[2])
	if not ok then return nil, err end
	ok, err = sock:send(commands)
	if not ok then return nil, err end
	local out = {}
	for i = 1, replies do
		out[i], err = reply(sock)
		if out[i] == nil then
			sock:close()
			return nil, err
		end
	end
	sock:setkeepalive(60000, 256)
	return out
end

function M.before(c)
	local began = ngx.now()
	local place = { "EVALSHA", site.sha.place, 1, "peer:{p:" .. c.doc_model .. "}", c.rid, site.slots }
	for i = 0, count - 1 do place[#place + 1] = (c.affinity + i) % count + 1 end
	local out, err = round({
		pack { "EVALSHA", site.sha.admit, 1, "peer:{t:acme}", c.hash, c.estimate, string.format("%d", c.hold), c.rid },
		pack(place),
	}, 2)
	c.redis_ms = (ngx.now() - began) * 1000
	if not out then
		ngx.log(ngx.ERR, "redis: ", err)
		return false
	end
	if out[1][1] ~= 1 or out[2] == 0 then return false end
	c.cell = out[1][4]
	return true, out[2]
end

local function settle(_, commands)
	local ok, err = round(commands, 3)
	if not ok then ngx.log(ngx.ERR, "redis: ", err) end
end

function M.after(c, cost, prompt, completion, line)
	local ok, err = ngx.timer.at(0, settle, {
		pack { "EVALSHA", site.sha.settle, 1, "peer:{t:acme}", c.rid, c.policy.id, c.policy.team, c.cell, prompt + completion - c.estimate,
			string.format("%d", -c.hold), cost, prompt, completion },
		pack { "EVALSHA", site.sha.release, 1, "peer:{p:" .. c.doc_model .. "}", c.rid, c.at },
		pack { "XADD", "peer:{t:acme}:usage", "MAXLEN", "~", 100000, "*", "record", line },
	})
	if not ok then ngx.log(ngx.ERR, "timer: ", err) end
end

return M
