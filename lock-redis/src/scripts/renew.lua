-- Extends the lease of a hold, if it is still this owner's.
--
-- ARGV: id, lease (ms)
-- Answers 1, extended; else why not, as `why_not_held` says.
local id = ARGV[1]
local hold = redis.call('GET', hold_key)
if is_held_by(hold, id) then
  redis.call('PEXPIRE', hold_key, ARGV[2])
  return 1
end
if not hold then promote() end
return why_not_held(hold, id)
