-- Takes the lock away from one holder, if that one holds it, and gives it to the next waiters.
--
-- ARGV: id, how long the holder may take to ask (ms)
-- Returns {1, more}, if taken away; {0, 0}, if that one does not hold it.
local id = ARGV[1]
local hold = call('GET', HOLD)

--#include promote.lua
--#include leave.lua

local is_alone = hold and string.match(hold, '^%S+') == id
local ends = not is_alone and tonumber(call('ZSCORE', QUEUE, id))
local is_together = ends and ends > now_ms and ends < FIRST_ARRIVAL
if not is_alone and not is_together then return {0, 0} end
local foreign = error_of(BROKEN, redis.pcall('ZSCORE', BROKEN, ''))
if foreign then return foreign end

local channel
if is_alone then
  channel = string.match(hold, '^%S+ v1 %d+ %d+ (%S+)')
  call('DEL', HOLD)
  hold = nil
  last, trouble = look()
else
  channel = string.match(call('HGET', WAITERS, id) or '', '^%d+ %d+ (%S+)')
  leave(id)
end
-- For a holder that the message does not reach: its next renewal finds the reason here.
for _, old in ipairs(call('ZRANGE', BROKEN, '-inf', whole(now_ms), 'BYSCORE', 'LIMIT', '0', MOST_LOOKED_AT)) do
  call('ZREM', BROKEN, old)
end
call('ZADD', BROKEN, whole(now_ms + ARGV[2]), id)
call('PEXPIRE', BROKEN, ARGV[2])
if channel then tell(channel, id .. ' broken') end
local _, more = promote()
return {1, more}
