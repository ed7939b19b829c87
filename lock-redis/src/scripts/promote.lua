-- How many waiters one call looks at: a script that runs for long blocks the server for all clients.
local MOST_LOOKED_AT = 100

-- Whether a client is still subscribed to the channel. The count that PUBLISH answers would not do: it includes subscribers to
-- a pattern. If the server refuses to tell, only the waiter's deadline counts.
local function is_listening(channel)
  local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return count.err ~= nil or count[2] > 0
end

-- If the server refuses PUBLISH, the grant stays valid: the waiter finds it at its next heartbeat.
local function tell(channel, message)
  if channel ~= '-' then redis.pcall('PUBLISH', channel, message) end
end

-- The error in the answer to a command on `key`, if it is one. For another program's key the error names the key.
local function error_of(key, answer)
  if type(answer) ~= 'table' or not answer.err then return nil end
  return string.find(answer.err, 'WRONGTYPE ', 1, true) and {err = FOREIGN .. key} or answer
end

-- The text in `key`, if it is one of ours. Otherwise nil, and the error to return.
local function ours(key, is_ours)
  local text = redis.pcall('GET', key)
  local trouble = error_of(key, text)
  if trouble or not text then return nil, trouble end
  if not is_ours(text) then return nil, {err = FOREIGN .. key} end
  return text
end

-- The last token; and the error to return if another program's key prevents a hand-off.
local function look()
  local last, trouble = ours(FENCE, is_token)
  return last, trouble or error_of(QUEUE, redis.pcall('ZSCORE', QUEUE, ''))
    or error_of(WAITERS, redis.pcall('HGET', WAITERS, ''))
end

-- Gives the free lock to the first waiter that is still there, for as long as that waiter's last heartbeat is good for.
-- Every script that writes calls this when it leaves the lock free, because nothing else would hand it over.
-- If another program's key is in the way, the lock stays free, and the waiters find out why when they ask.
-- Returns the new owner and its token; or nil, and whether there are more waiters to look at.
local function promote(now, me)
  local last, trouble = look()
  if trouble then return nil, 0 end
  for _ = 1, MOST_LOOKED_AT do
    local id = call('ZPOPMIN', QUEUE)[1]
    if not id then return nil, 0 end
    now = now or server_time()
    local waiter = call('HGET', WAITERS, id)
    call('HDEL', WAITERS, id)
    if waiter then
      local ends, beat, who, channel = string.match(waiter, '^(%d+) (%d+) ((%S+) .*)$')
      local is_in_time = ends and tonumber(ends) > now / 1000
      -- A waiter that polls ("-") has no channel that would show its death.
      if is_in_time and (id == me or channel == '-' or is_listening(channel)) then
        local token = grant(id, who, last, now, 'PXAT', ends)
        if id ~= me then tell(channel, id .. ' granted ' .. beat .. ' ' .. whole(token)) end
        return id, token
      end
    end
  end
  return nil, 1
end

-- Why `id` does not hold the lock: 0 its hold is gone, 2 another client holds it, 3 it was broken.
local function why_not_held(hold, id)
  if redis.pcall('GET', BROKEN) == id .. ' broken' then return 3 end
  return hold and 2 or 0
end
