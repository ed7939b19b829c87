-- Ends a hold that is shared, if it is still this owner's, and lets the next waiters in. As `release`.
--
-- ARGV: id
local id = ARGV[1]
local score = call('ZSCORE', QUEUE, id)
local is_ours = score and tonumber(score) < 100000000000000
-- Also what an operator has left who deleted QUEUE.
if is_ours or not score then redis.pcall('HDEL', WAITERS, id) end
if is_ours then
  call('ZREM', QUEUE, id)
  local take, of = string.match(id, ':(%d+)/(%d+)$')
  if take and tonumber(call('ZINCRBY', QUEUE, '-' .. take, '/' .. of)) <= 0 then call('ZREM', QUEUE, '/' .. of) end
  if call('ZCOUNT', QUEUE, '100000000000000', '+inf') == 0 then return 1 end
end
local hold = call('GET', HOLD)

--#include promote.lua
--#include lost.lua

local result = is_ours and 1 or why_not_held(id)
local _, more = promote()
return {result, more}
