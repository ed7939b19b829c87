if not score then
  if place then
    score = math.max(100000000000000, math.min(tonumber(place), now))
  else
    local tail = call('ZRANGE', QUEUE, '-1', '-1', 'WITHSCORES')
    score = math.max(now, (tonumber(tail[2]) or 0) + 1)
  end
  call('ZADD', QUEUE, string.format('%.0f', score), id)
else
  -- The first write, and one that needs no memory: after it a server that is out of memory lets the heartbeat through.
  call('HDEL', WAITERS, id)
end
--#include waiter.lua
