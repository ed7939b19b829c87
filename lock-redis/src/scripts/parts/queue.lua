-- The rest of an acquisition, in all modes: others hold the lock, or wait for it.
--#include time.lua
local ends = string.format('%.0f', now_ms + lease)

-- The usual case: the lock is held exclusively. A newcomer comes after all others, unless the clock has stepped back.
if hold and string.match(hold, '^%S+ v(%d+) ') == '1' then
  if not beat and not redis.pcall('ZSCORE', QUEUE, id) then return {call('PTTL', HOLD), 0, 0, hold} end
  if beat and not place and redis.pcall('ZADD', QUEUE, 'NX', string.format('%.0f', now), id) == 1 then
    if call('ZRANGE', QUEUE, '-1', '-1')[1] == id then
--#include waiter.lua
      return {call('PTTL', HOLD), call('ZCARD', QUEUE) - 1, now, hold}
    end
    call('ZREM', QUEUE, id)
  end
end

--#include promote.lua
--#include leave.lua
--#include again.lua
local score = redis.pcall('ZSCORE', QUEUE, id)
if hold then
  trouble = other_layout(HOLD, hold, '^%S+ v(%d+) ')
else
  trouble = error_of(HOLD, redis.pcall('GET', HOLD)) or trouble or error_of(WAITERS, redis.pcall('HGET', WAITERS, id))
end
trouble = trouble or error_of(QUEUE, score)
if trouble then return trouble end

score = tonumber(score)
if score and score < FIRST_ARRIVAL then
  local _, token = held_together(id, lease)
  if token then
    promote()
    return whole(token)
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

local more, is_new = 0, not score and not place
if is_new and not hold then
  local token
  token, more = promote(id, who, ends)
  if token then
    if not hold then
      keep_until_lease_ends(QUEUE, lease)
      keep_until_lease_ends(WAITERS, lease)
    end
    return whole(token)
  end
  local _, of = permits(id)
  local is = of and string.match(call('ZRANGE', QUEUE, '0', '0')[1] or '', '/(%d+)$')
  if is ~= of and more == 0 then return {-1, tonumber(is)} end
end
if not beat then return answer(0, more) end

if not score and place == '-' then
  promote()
  return -1
end
--#include place.lua

if not is_new and not hold then
  local token
  token, more = promote(id)
  if token then return whole(token) end
end
return answer(call('ZCOUNT', QUEUE, ARRIVALS, '(' .. whole(score)), more)
