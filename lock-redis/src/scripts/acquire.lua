-- Acquires the lock, or waits for it in the queue, or says that it still waits. Idempotent by the attempt's id.
--
-- ARGV: id, intent, lease (ms), beat, channel, holder, place
--   intent   "try"   takes the lock if it is to be had now, and never waits
--            "wait"  takes it, or a place in the queue
--            "beat"  keeps the place, or takes the lock; never makes a new place: a place that is gone may have been
--                    granted meanwhile, to an attempt that must not be taken for this one
--   beat     the number of this request, which comes back with a grant that is pushed: only the client knows when it sent it
--   channel  where the grant is pushed to; "-" for a waiter that polls
--   place    the score of a place that was lost with the connection, or 0
--
-- Answers {1, token}, held; {0, remaining lease of the holder (ms), rank in the queue, score}, not held; {-1}, the place is gone.
local id, intent, lease, beat, channel, holder, place =
  ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])

local found = redis.call('MGET', hold_key, fence_key)
local hold, last = found[1], found[2]

if is_held_by(hold, id) then
  redis.call('PEXPIRE', hold_key, lease)
  return {1, tonumber(string.match(hold, '^%S+ (%d+)'))}
end

local now = server_time()

local function take()
  local token = mint(last, now)
  write_hold(id, token, now, math.floor(now / 1000) + lease, channel, holder)
  return {1, tonumber(token)}
end

-- Nobody holds it and nobody is before us: no place is needed.
if not hold and intent ~= 'beat' and redis.call('EXISTS', queue_key) == 0 then return take() end

if intent == 'try' then
  if not hold then
    local owner, more = promote(now)
    if not owner and more == 0 then return take() end
  end
  return {0, redis.call('PTTL', hold_key), 0, 0}
end

local function keep_until_lease_ends(key)
  if redis.call('PTTL', key) < lease then redis.call('PEXPIRE', key, lease) end
end

local score = redis.call('ZSCORE', queue_key, id)
if not score then
  if intent == 'beat' then
    if not hold then promote(now) end
    return {-1}
  end
  if place > 0 then
    score = math.min(place, now)
  else
    local tail = redis.call('ZRANGE', queue_key, -1, -1, 'WITHSCORES')
    score = math.max(now, (tonumber(tail[2]) or 0) + 1)
  end
  redis.call('ZADD', queue_key, whole(score), id)
end
redis.call('HSET', waiters_key, id, whole(math.floor(now / 1000) + lease) .. ' ' .. beat .. ' ' .. channel .. ' ' .. holder)
keep_until_lease_ends(queue_key)
keep_until_lease_ends(waiters_key)

-- First in the queue, then the grant: with all the others before us dead, it is ours.
if not hold then
  local owner, token = promote(now, id)
  if owner == id then return {1, tonumber(token)} end
end
return {0, redis.call('PTTL', hold_key), redis.call('ZRANK', queue_key, id) or 0, tonumber(score)}
