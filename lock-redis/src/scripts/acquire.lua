-- Acquires the lock, or takes or keeps a place in its queue. Idempotent by the attempt's id.
--
-- ARGV: id, intent, lease (ms), beat, who, place
--   intent   "try"   takes the lock if it is free now, and never waits
--            "wait"  takes it, or a place in the queue
--            "beat"  keeps the place, or takes the lock; never makes a new place: a place that is gone may have been
--                    granted meanwhile, to an attempt that must not be taken for this one
--   beat     the number of this request, which comes back with a pushed grant: only the client knows when it sent it
--   who      "channel holder": the channel for a pushed grant, "-" for a waiter that polls; and the holder, for people
--   place    the score of a place that was lost with the connection, or 0
--
-- Returns the token, if held; {remaining lease of the holder (ms), rank in the queue, score, holder}, if not; -1, if the place is
-- gone.
local id, intent, lease, beat, who, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local found = call('MGET', HOLD, FENCE)
local hold, last = found[1], found[2]

-- The usual case: the lock is free and there is no waiter before us, so no place is needed.
if not hold and intent ~= 'beat' and call('EXISTS', QUEUE) == 0 then
  return grant(id, who, last, server_time(), 'PX', lease)
end

if hold and string.find(hold, id, 1, true) == 1 then
  call('PEXPIRE', HOLD, lease)
  return tonumber(string.match(hold, '^%S+ (%d+)'))
end

--#include promote.lua

if not hold then
  local _, trouble = look()
  trouble = error_of(HOLD, redis.pcall('GET', HOLD)) or trouble
  if trouble then return trouble end
end

local now = server_time()

if intent == 'try' then
  if not hold then
    local owner, more = promote(now)
    if not owner and more == 0 then return grant(id, who, call('GET', FENCE), now, 'PX', lease) end
  end
  return {call('PTTL', HOLD), 0, 0, hold or call('GET', HOLD) or ''}
end

lease, place = tonumber(lease), tonumber(place)

local function keep_until_lease_ends(key)
  if call('PTTL', key) < lease then call('PEXPIRE', key, lease) end
end

local score = call('ZSCORE', QUEUE, id)
if not score then
  if intent == 'beat' then
    if not hold then promote(now) end
    return -1
  end
  if place > 0 then
    score = math.min(place, now)
  else
    local tail = call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')
    score = math.max(now, (tonumber(tail[2]) or 0) + 1)
  end
  call('ZADD', QUEUE, whole(score), id)
else
  -- The first write, and one that needs no memory: after it a server that is out of memory lets the heartbeat through.
  call('HDEL', WAITERS, id)
end
keep_until_lease_ends(QUEUE)
call('HSET', WAITERS, id, whole(math.floor(now / 1000) + lease) .. ' ' .. beat .. ' ' .. who)
keep_until_lease_ends(WAITERS)

-- We take the place first, then the grant: if all waiters before us are dead, the lock is ours.
if not hold then
  local owner, token = promote(now, id)
  if owner == id then return token end
end
return {call('PTTL', HOLD), call('ZRANK', QUEUE, id) or 0, tonumber(score), hold or call('GET', HOLD) or ''}
