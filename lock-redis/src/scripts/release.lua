-- Ends a hold, if it is still this owner's, and gives the lock to the next waiter.
--
-- ARGV: id
-- Answers {1, more}, released; else {why not, more}. `more`: call again, there are waiters that nobody has looked at.
local id = ARGV[1]
local hold = redis.call('GET', hold_key)
local result
if is_held_by(hold, id) then
  -- The first write: after it a server that is out of memory lets the rest of the script write too.
  redis.call('DEL', hold_key)
  hold, result = nil, 1
else
  result = why_not_held(hold, id)
end
if hold then return {result, 0} end
local owner, more = promote()
return {result, owner and 0 or more}
