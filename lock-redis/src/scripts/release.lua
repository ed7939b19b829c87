-- Ends a hold, if it is still this owner's, and gives the lock to the next waiter.
--
-- ARGV: id
-- Returns {1, more}, if released; {why not, more}, if not; just 1, if released and there is no waiter. `more`: call again, as
-- there are waiters that this call has not looked at.
local id = ARGV[1]
local hold = call('GET', HOLD)
local is_ours = hold and string.find(hold, id, 1, true) == 1
if is_ours then
  -- The first write: after it a server that is out of memory lets the rest of the script write too.
  call('DEL', HOLD)
  if call('EXISTS', QUEUE) == 0 then return 1 end
end

--#include promote.lua

local result = is_ours and 1 or why_not_held(hold, id)
if hold and not is_ours then return {result, 0} end
local owner, more = promote()
return {result, owner and 0 or more}
