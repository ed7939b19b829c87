-- Ends an exclusive hold, if it is still this owner's, and gives the lock to the next waiters.
--
-- ARGV: id, passes
--   passes   for an id with more tokens than one: how many of these were used. The others go back, so that the fence does not run
--            ahead of the clock; no other grant has had a token since
-- Returns {1, more}, if released; {why not, more}, if not; just 1, if released and there is nothing more to do. `more`: call again,
-- as there are waiters that this call has not looked at.
local id = ARGV[1]
local hold = call('GET', HOLD)
local is_ours = hold and string.find(hold, id, 1, true) == 1
local first = is_ours and redis.pcall('ZRANGE', QUEUE, '0', '0')[1]

-- The usual case with waiters, as `promote` does it: the first waits for the lock alone, and is there.
local waiter = first and not string.find(first, '[+:/]') and redis.pcall('HGET', WAITERS, first)
if type(waiter) == 'string' then
  local deadline, beat, its, channel = string.match(waiter, '^(%d+) (%d+) ((%S+) .*)$')
--#include token_usual.lua
  if is_minted and deadline and deadline * 1000 > tonumber(token) and (redis.pcall('PUBSUB', 'NUMSUB', channel)[2] or 0) > 0 then
    -- The first write, and one that needs no memory: after it a server that is out of memory lets the others through.
    call('ZREM', QUEUE, first)
    call('HDEL', WAITERS, first)
    call('SET', HOLD, first .. ' ' .. minted .. ' ' .. token .. ' ' .. its, 'PXAT', deadline)
    call('SET', FENCE, minted, 'PX', '86400000')
    redis.pcall('PUBLISH', channel, first .. ' granted ' .. beat .. ' ' .. token)
    return 1
  end
end

if is_ours then
  -- The first write: after it a server that is out of memory lets the rest of the script write too.
  call('DEL', HOLD)
  if ARGV[2] then
    local token, more = string.match(hold, '^%S+ v1 (%d+)'), string.match(id, '%+(%d+)$')
    if redis.pcall('GET', FENCE) == 'v1 ' .. string.format('%.0f', token + more) then
      call('SET', FENCE, 'v1 ' .. string.format('%.0f', token + ARGV[2]), 'KEEPTTL')
    end
  end
  if not first then return 1 end
  hold = nil
end

--#include promote.lua
--#include lost.lua

local result = is_ours and 1 or why_not_held(id)
local _, more = promote()
return {result, more}
