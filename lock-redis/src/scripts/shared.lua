-- What every script begins with. All of them take the same keys, those of one lock, which share one hash tag.
local hold_key, queue_key, waiters_key, fence_key, broken_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- How many waiters one call looks at: a script that runs for long blocks the server for everybody.
local MOST_LOOKED_AT = 100

-- How long the fence outlasts the last grant.
local FENCE_LASTS_MS = 24 * 60 * 60 * 1000

-- Lua's own conversion of a number to text loses digits of a time in microseconds.
local function whole(number)
  return string.format('%.0f', number)
end

-- The server's time in microseconds.
local function server_time()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A hold is "owner token since channel holder"; only the last of them may contain spaces.
local function is_held_by(hold, id)
  return hold and string.sub(hold, 1, #id + 1) == id .. ' '
end

-- The fencing token: above the last one, and at least the server's time, so that it rises although the fence is lost.
local function mint(last, now)
  return whole(math.max((tonumber(last) or 0) + 1, now))
end

-- The lock is given until `ends` (milliseconds), together with its token.
local function write_hold(id, token, now, ends, channel, holder)
  redis.call('SET', hold_key, id .. ' ' .. token .. ' ' .. whole(now) .. ' ' .. channel .. ' ' .. holder, 'PXAT', whole(ends))
  redis.call('SET', fence_key, token, 'PXAT', whole(math.floor(token / 1000) + FENCE_LASTS_MS))
end

-- Whether somebody still listens there. The count that PUBLISH answers would not do: it counts whoever subscribed to a
-- pattern as well. Where the server refuses to tell, the waiter's own deadline has to do.
local function is_listening(channel)
  local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return count.err ~= nil or count[2] > 0
end

-- A server that refuses PUBLISH does not undo the grant for it: the waiter finds it at its next heartbeat.
local function tell(channel, message)
  if channel ~= '-' then redis.pcall('PUBLISH', channel, message) end
end

-- Gives the free lock to the first waiter that is still there, for as long as that waiter's last heartbeat is good for.
-- Every script that writes does this when it leaves the lock free: nobody else would.
-- Answers the new owner and its token; or nil, and whether there are more to look at.
local function promote(now, me)
  for _ = 1, MOST_LOOKED_AT do
    local id = redis.call('ZPOPMIN', queue_key)[1]
    if not id then return nil, 0 end
    now = now or server_time()
    local waiter = redis.call('HGET', waiters_key, id)
    redis.call('HDEL', waiters_key, id)
    if waiter then
      local ends, beat, channel, holder = string.match(waiter, '^(%d+) (%d+) (%S+) (.*)$')
      -- A waiter that polls ("-") has no channel by which its death would show.
      local is_there = id == me or channel == '-' or is_listening(channel)
      if tonumber(ends) > now / 1000 and is_there then
        local token = mint(redis.call('GET', fence_key), now)
        write_hold(id, token, now, ends, channel, holder)
        if id ~= me then tell(channel, id .. ' granted ' .. beat .. ' ' .. token) end
        return id, token
      end
    end
  end
  return nil, 1
end

-- Why `id` does not hold the lock: 0 its hold is gone, 2 somebody else has it, 3 it was broken.
local function why_not_held(hold, id)
  if redis.call('GET', broken_key) == id then return 3 end
  return hold and 2 or 0
end
