-- Undoes an attempt, whatever became of it: nothing, a place in the queue, a hold.
--
-- ARGV: id
-- Answers `more`: call again, there are waiters that nobody has looked at.
local id = ARGV[1]
local hold = redis.call('GET', hold_key)
if is_held_by(hold, id) then
  redis.call('DEL', hold_key)
  hold = nil
end
redis.call('ZREM', queue_key, id)
redis.call('HDEL', waiters_key, id)
if hold then return 0 end
local owner, more = promote()
return owner and 0 or more
