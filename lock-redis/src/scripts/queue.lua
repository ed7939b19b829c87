--#include promote.lua
--#include leave.lua
--#include again.lua
-- The rest of an acquisition, in all modes: others hold the lock, or wait for it.
local score = redis.pcall('ZSCORE', QUEUE, id)
if hold then
  trouble = other_layout(HOLD, hold, '^%S+ v(%d+) ')
else
  trouble = error_of(HOLD, redis.pcall('GET', HOLD)) or trouble or error_of(WAITERS, redis.pcall('HGET', WAITERS, id))
end
trouble = trouble or error_of(QUEUE, score)
if trouble then return trouble end

score = tonumber(score)
local ends, place = whole(now_ms + lease), tonumber(ARGV[6] or 0)

if score and score < FIRST_ARRIVAL then
  local token = held_together(id, lease)
  if token then
    promote()
    return token
  end
  leave(id)
  score = nil
end

-- What there is to know for one that waits, or that does not.
local function answer(rank, more)
  if hold then return {call('PTTL', HOLD), rank, score or 0, hold} end
  local next = call('ZRANGE', QUEUE, '(' .. now_ms, ARRIVALS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
  -- The lock is free: there are more dead ones than one call looks at.
  if more == 1 or not next[1] then return {-2, rank, score or 0, ''} end
  local left = next[2] - now_ms
  if rank > 0 then
    -- A head that is silent stands in the way until its deadline.
    local head = call('ZRANGE', QUEUE, ARRIVALS, '+inf', 'BYSCORE', 'LIMIT', '0', '1')[1]
    local deadline = string.match(call('HGET', WAITERS, head) or '', '^%d+')
    left = math.min(left, math.max(1, (tonumber(deadline) or 0) - now_ms))
  end
  return {left, rank, score or 0, next[1] .. ' v1 ' .. (call('HGET', WAITERS, next[1]) or '')}
end

local more, is_new = 0, not score and place == 0
if is_new and intent ~= 'beat' and not hold then
  local token
  token, more = promote(id, who, ends)
  if token then
    if not hold then
      keep_until_lease_ends(QUEUE, lease)
      keep_until_lease_ends(WAITERS, lease)
    end
    return token
  end
  local _, of = permits(id)
  local is = of and string.match(call('ZRANGE', QUEUE, '0', '0')[1] or '', '/(%d+)$')
  if is ~= of and more == 0 then return {-1, tonumber(is)} end
end
if intent == 'try' then return answer(0, more) end

if not score then
  if intent == 'beat' then
    if not hold then promote() end
    return -1
  end
  if place > 0 then
    score = math.max(FIRST_ARRIVAL, math.min(place, now))
  else
    local tail = call('ZRANGE', QUEUE, '-1', '-1', 'WITHSCORES')
    score = math.max(now, (tonumber(tail[2]) or 0) + 1)
  end
  call('ZADD', QUEUE, whole(score), id)
else
  -- The first write, and one that needs no memory: after it a server that is out of memory lets the heartbeat through.
  call('HDEL', WAITERS, id)
end
keep_until_lease_ends(QUEUE, lease)
call('HSET', WAITERS, id, ends .. ' ' .. ARGV[5] .. ' ' .. who)
keep_until_lease_ends(WAITERS, lease)

if not is_new and not hold then
  local token
  token, more = promote(id)
  if token then return token end
end
return answer(call('ZCOUNT', QUEUE, ARRIVALS, '(' .. whole(score)), more)
