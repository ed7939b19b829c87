-- Undoes an attempt, whatever it left behind: nothing, a place in the queue, or a hold.
--
-- ARGV: id
-- Returns `more`: call again, as there are waiters that this call has not looked at.

--#include promote.lua

local id = ARGV[1]
local hold = call('GET', HOLD)
if hold and string.find(hold, id, 1, true) == 1 then
  call('DEL', HOLD)
  hold = nil
end
-- A key of another program contains nothing of ours.
local function failure(answer)
  return type(answer) == 'table' and not string.find(answer.err, 'WRONGTYPE ', 1, true) and answer
end
local failed = failure(redis.pcall('ZREM', QUEUE, id)) or failure(redis.pcall('HDEL', WAITERS, id))
if failed then return failed end
if hold then return 0 end
local owner, more = promote()
return owner and 0 or more
