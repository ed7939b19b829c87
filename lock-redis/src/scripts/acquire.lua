-- Acquires the lock exclusively, or takes or keeps a place in its queue. Idempotent by the attempt's id.
--
-- ARGV: id, lease (ms), who, beat, place; the last two as far as there are any
--   who      "channel holder": the channel for a pushed grant, "-" for a waiter that polls; and the holder, for people
--   beat     a number that comes back with a pushed grant: when the client sent this request, by the client's clock. Without one
--            the script takes the lock if it is free now, and never waits
--   place    the score of a place that was lost with the connection; or "-" for a heartbeat, which keeps the place, or takes the
--            lock, and never makes a new place: a place that is gone may have been granted meanwhile, to an attempt that must
--            not be taken for this one
--
-- Returns the token as a text, if held; {time until it is worth asking again (ms), rank in the queue, score, a holder}, if not;
-- -1, if the place is gone; {-1, permits}, if the semaphore has that many.
local id, lease, who, beat, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- The usual case: the lock is free, there is no waiter before us, so no place is needed, and one token is wanted.
if place ~= '-' and call('EXISTS', HOLD, QUEUE) == 0 and not string.find(id, '+', 1, true) then
--#include token_usual.lua
  if is_minted then
    call('SET', FENCE, minted, 'PX', '86400000')
    call('SET', HOLD, id .. ' ' .. minted .. ' ' .. token .. ' ' .. who, 'PX', lease)
    return token
  end
end

local hold = redis.pcall('GET', HOLD)
-- The rest names a key of another type.
if hold and hold.err then hold = false end
if hold and string.find(hold, id, 1, true) == 1 then
  call('PEXPIRE', HOLD, lease)
  return string.match(hold, '^%S+ v1 (%d+)')
end

--#include queue.lua
