-- Ends an exclusive hold, if it is still this owner's, and gives the lock to the next waiters.
--
-- ARGV: id, passes
--   passes   for an id with more tokens than one: how many of these were used. The others go back, so that the fence does not run
--            ahead of the clock; no other grant has had a token since
-- Returns {1, more}, if released; {why not, more}, if not; just 1, if released and there is no waiter. `more`: call again, as
-- there are waiters that this call has not looked at.
local id = ARGV[1]
local hold = call('GET', HOLD)
local is_ours = hold and string.find(hold, id, 1, true) == 1
if is_ours then
  -- The first write: after it a server that is out of memory lets the rest of the script write too.
  call('DEL', HOLD)
  local token, more = string.match(hold, '^%S+ v1 (%d+)'), string.match(id, '%+(%d+)$')
  if more and ARGV[2] and redis.pcall('GET', FENCE) == 'v1 ' .. string.format('%.0f', token + more) then
    call('SET', FENCE, 'v1 ' .. string.format('%.0f', token + ARGV[2]), 'KEEPTTL')
  end
  if call('EXISTS', QUEUE) == 0 then return 1 end
  hold = nil
end

--#include promote.lua
--#include lost.lua

local result = is_ours and 1 or why_not_held(id)
if hold then return {result, 0} end
local _, more = promote()
return {result, more}
