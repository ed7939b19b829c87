-- Extends the leases of holds that are shared, as far as they are still there and not over.
--
-- ARGV: lease (ms), id, id, …
-- Returns for each id 1, if extended; otherwise why not, as `why_not_held` says.
local hold = call('GET', HOLD)

--#include promote.lua
--#include lost.lua

local lease = ARGV[1]
local until_then, answers, extended = whole(now_ms + lease), {}, {}
for index, score in ipairs(call('ZMSCORE', QUEUE, unpack(ARGV, 2))) do
  local id, ends = ARGV[index + 1], tonumber(score)
  if ends and ends > now_ms and ends < FIRST_ARRIVAL then
    extended[#extended + 1] = until_then
    extended[#extended + 1] = id
    answers[index] = 1
  else
    answers[index] = why_not_held(id)
  end
end
if extended[1] then
  -- The first write, and one that needs no memory: after it a server that is out of memory lets the others through.
  call('PEXPIRE', QUEUE, math.max(call('PTTL', QUEUE), tonumber(lease)))
  call('ZADD', QUEUE, unpack(extended))
  keep_until_lease_ends(WAITERS, lease)
end
if not hold then promote() end
return answers
