-- Makes an exclusive hold a shared one with another id, and lets those in that wait for the same. Idempotent by the new id.
--
-- ARGV: id of the exclusive hold, id of the shared one, lease (ms), who
-- Returns {token, more}, if it is shared now; otherwise why the exclusive hold is gone, as `why_not_held` says. `more`: call
-- `cancel` with the old id, as there are waiters that this call has not looked at.
local held, id, lease, who = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local hold = call('GET', HOLD)

--#include promote.lua
--#include again.lua
--#include lost.lua

if hold and string.find(hold, held, 1, true) == 1 then
  last, trouble = look()
  trouble = trouble or error_of(QUEUE, redis.pcall('ZSCORE', QUEUE, id)) or error_of(WAITERS, redis.pcall('HGET', WAITERS, id))
  if trouble then return trouble end
  -- The first write: after it a server that is out of memory lets the rest of the script write too.
  call('DEL', HOLD)
  hold = nil
  local token = grant(id, who, whole(now_ms + lease))
  keep_until_lease_ends(QUEUE, lease)
  keep_until_lease_ends(WAITERS, lease)
  local _, more = promote()
  return {token, more}
end
local _, token = held_together(id, lease)
local result = why_not_held(held)
promote()
if token then return {token, 0} end
return result
