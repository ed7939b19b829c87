-- Undoes an attempt in any mode, whatever it left behind: nothing, a place in the queue, or a hold.
--
-- ARGV: id
-- Returns `more`: call again, as there are waiters that this call has not looked at.
local id = ARGV[1]
local hold = call('GET', HOLD)
-- The whole id: after a break it is one that an operator wrote.
if hold and string.match(hold, '^%S+') == id then
  call('DEL', HOLD)
  hold = nil
end

--#include promote.lua
--#include leave.lua

local refused = leave(id)
if refused then return refused end
local _, more = promote()
return more
