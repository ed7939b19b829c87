-- Acquires the lock together with others, or permits of a semaphore, or takes or keeps a place in the queue. As `acquire`, with
-- an id that says how it is shared.
local id, lease, who, beat, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local hold = call('GET', HOLD)

-- The usual case: no one holds the lock exclusively or waits, and there are enough permits.
if not hold and place ~= '-' and call('ZCOUNT', QUEUE, '100000000000000', '+inf') == 0 then
--#include token_usual.lua
  local take, of = string.match(id, ':(%d+)/(%d+)$')
  local first = take and call('ZRANGE', QUEUE, '0', '0', 'WITHSCORES')
  local fits = not take or not first[1] or first[1] == '/' .. of and first[2] + take <= tonumber(of)
  if is_minted and fits and not call('ZSCORE', QUEUE, id) then
    call('SET', FENCE, minted, 'PX', '86400000')
    call('HSET', WAITERS, id, token .. ' ' .. token .. ' ' .. who)
    if take then call('ZINCRBY', QUEUE, take, '/' .. of) end
    call('ZADD', QUEUE, string.format('%.0f', math.floor(token / 1000) + lease), id)
    if call('PTTL', QUEUE) < tonumber(lease) then call('PEXPIRE', QUEUE, lease) end
    if call('PTTL', WAITERS) < tonumber(lease) then call('PEXPIRE', WAITERS, lease) end
    return token
  end
end

--#include queue.lua
