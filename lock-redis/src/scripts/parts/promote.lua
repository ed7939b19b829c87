--#include grant.lua
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

-- Takes permits back from an id that is no longer in QUEUE.
local function give_back(id)
  local take, of = permits(id)
  if take and tonumber(call('ZINCRBY', QUEUE, '-' .. take, '/' .. of)) <= 0 then call('ZREM', QUEUE, '/' .. of) end
end

-- Gives the lock, unless one holds it exclusively, to the first waiters that are still there, as far as they fit: the first that
-- does not fit stops the queue. Each gets it for as long as its last heartbeat is good for.
-- Every script that writes calls this, because nothing else would hand the lock over. If one holds it exclusively, nothing happens.
-- If the contents of a key prevent it, the lock stays free, and the waiters find out why when they ask.
-- `me` is the id that asks: it has a place in the queue, or comes after all others with `who` and `ends`.
-- Returns the token of `me`, if it has been given the lock; and 1, if there are more to look at.
local function promote(me, who, ends)
  if hold or trouble then return nil, 0 end
  local first = redis.pcall('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
  if first.err then return nil, 0 end
  local mine, more = nil, 0

  -- Those whose lease is over hold it no longer. The number of taken permits has the lowest score.
  if first[1] and tonumber(first[2]) <= now_ms then
    local ended = call('ZRANGE', QUEUE, '-inf', whole(now_ms), 'BYSCORE', 'LIMIT', '0', MOST_LOOKED_AT)
    if #ended == MOST_LOOKED_AT then more = 1 end
    for _, id in ipairs(ended) do
      if string.sub(id, 1, 1) ~= '/' then
        call('ZREM', QUEUE, id)
        call('HDEL', WAITERS, id)
        give_back(id)
      end
    end
    first = call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
  end
  local is_held = first[1] and tonumber(first[2]) < FIRST_ARRIVAL
  local is, taken = is_held and string.match(first[1], '^/(%d+)$'), tonumber(first[2])

  -- Lets an id in, if the holders leave room for it, and returns its token.
  local function enter(id, who, ends)
    local take, of = permits(id)
    if take then
      if is and (is ~= of or taken + take > tonumber(of)) then return nil end
      is, taken = of, take + (is and taken or 0)
    elseif is_held and not string.find(id, ':', 1, true) then
      return nil
    end
    is_held = true
    return grant(id, who, ends)
  end

  local id, looked, messages, listening = not is_held and first[1], 0, {}, {}
  while not hold do
    id = id or call('ZRANGE', QUEUE, ARRIVALS, '+inf', 'BYSCORE', 'LIMIT', '0', '1')[1]
    if not id then
      if who then mine = enter(me, who, ends) end
      break
    end
    if looked == MOST_LOOKED_AT then more = 1 break end
    looked = looked + 1
    local waiter = redis.pcall('HGET', WAITERS, id)
    if type(waiter) == 'table' then break end
    local deadline, beat, its, channel = string.match(waiter or '', '^(%d+) (%d+) ((%S+) .*)$')
    local is_there = deadline and tonumber(deadline) > now_ms
    -- A waiter that polls ("-") has no channel that would show its death.
    if is_there and id ~= me and channel ~= '-' then
      if listening[channel] == nil then listening[channel] = is_listening(channel) end
      is_there = listening[channel]
    end
    local token = is_there and enter(id, its, deadline)
    if is_there and not token then break end
    if hold or not token then
      call('ZREM', QUEUE, id)
      call('HDEL', WAITERS, id)
    end
    if token and id == me then
      mine = token
    elseif token then
      messages[channel] = (messages[channel] or '') .. id .. ' granted ' .. beat .. ' ' .. whole(token) .. '\n'
    end
    id = nil
  end
  if last ~= kept then
    -- The fence outlives the last grant by a day, of its own time if the clock has stepped back.
    local lasts = 86400000 + math.max(0, math.ceil((last - now) / 1000))
    call('SET', FENCE, 'v1 ' .. whole(last), 'PX', whole(lasts))
    kept = last
  end
  for channel, message in pairs(messages) do tell(channel, string.sub(message, 1, -2)) end
  return mine, more
end
