-- Takes the lock away from one holder, if that one holds it, and gives it to the next waiter.
--
-- ARGV: id, how long the holder may take to ask (ms)
-- Returns {1, more}, if taken away; {0, 0}, if that one does not hold it.

--#include promote.lua

local id = ARGV[1]
local hold = call('GET', HOLD)
if not hold or string.match(hold, '^%S+') ~= id then return {0, 0} end
local _, foreign = ours(BROKEN, function(text) return string.find(text, '^%S+ broken$') end)
if foreign then return foreign end
call('DEL', HOLD)
-- For a holder that the message does not reach: its next renewal finds the reason here.
call('SET', BROKEN, id .. ' broken', 'PX', ARGV[2])
local channel = string.match(hold, '^%S+ %d+ %d+ (%S+)')
if channel then tell(channel, id .. ' broken') end
local owner, more = promote()
return {1, owner and 0 or more}
