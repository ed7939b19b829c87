-- Acquires the lock exclusively, or takes or keeps a place in its queue. Idempotent by the attempt's id.
--
-- ARGV: id, lease (ms), who, beat, place; the last two as far as there are any
--   who      "channel holder": the channel for a pushed grant, "-" for a waiter that polls; and the holder, for people
--   beat     the number of this request, which comes back with a pushed grant: only the client knows when it sent it. Without
--            one the script takes the lock if it is free now, and never waits
--   place    the score of a place that was lost with the connection; or "-" for a heartbeat, which keeps the place, or takes the
--            lock, and never makes a new place: a place that is gone may have been granted meanwhile, to an attempt that must
--            not be taken for this one
--
-- Returns the token as a text, if held; {time until it is worth asking again (ms), rank in the queue, score, a holder}, if not;
-- -1, if the place is gone; {-1, permits}, if the semaphore has that many.
local id, lease, who, beat, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if place ~= '-' and call('EXISTS', HOLD, QUEUE) == 0 then
  -- The usual case: the lock is free, there is no waiter before us, so no place is needed, and the clock is ahead of the fence.
  -- The token stays a text: the server formats a number more slowly than it executes a command.
  time = call('TIME')
  local fraction = time[2]
  if #fraction < 6 then fraction = string.sub('00000' .. fraction, -6) end
  local token = time[1] .. fraction
  local text, fence = 'v1 ' .. token, redis.pcall('GET', FENCE)
  -- The error of a key of another type has no length.
  if not fence or #fence == #text and fence < text and string.find(fence, '^v1 %d+$') then
    call('SET', FENCE, text, 'PX', '86400000')
    call('SET', HOLD, id .. ' ' .. text .. ' ' .. token .. ' ' .. who, 'PX', lease)
    return token
  end
end

-- This finds nothing in a key of another type, which the rest names.
local hold = call('MGET', HOLD)[1]
if hold and string.find(hold, id, 1, true) == 1 then
  call('PEXPIRE', HOLD, lease)
  return string.match(hold, '^%S+ v1 (%d+)')
end

--#include queue.lua
