-- Acquires the lock exclusively, or takes or keeps a place in its queue. Idempotent by the attempt's id.
--
-- ARGV: id, intent, lease (ms), who, beat, place; the last two not with "try"
--   intent   "try"   takes the lock if it is free now, and never waits
--            "wait"  takes it, or a place in the queue
--            "beat"  keeps the place, or takes the lock; never makes a new place: a place that is gone may have been
--                    granted meanwhile, to an attempt that must not be taken for this one
--   who      "channel holder": the channel for a pushed grant, "-" for a waiter that polls; and the holder, for people
--   beat     the number of this request, which comes back with a pushed grant: only the client knows when it sent it
--   place    the score of a place that was lost with the connection, or 0
--
-- Returns the token, if held; {time until it is worth asking again (ms), rank in the queue, score, a holder}, if not; -1, if the
-- place is gone; {-1, permits}, if the semaphore has that many.
local id, intent, lease, who = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local found = call('MGET', HOLD, FENCE)
local hold, fence = found[1], found[2]

if hold then
  if string.find(hold, id, 1, true) == 1 then
    call('PEXPIRE', HOLD, lease)
    return tonumber(string.match(hold, '^%S+ v1 (%d+)'))
  end
elseif intent ~= 'beat' and call('EXISTS', QUEUE) == 0 then
  -- The usual case: the lock is free, there is no waiter before us, so no place is needed, and the clock is ahead of the fence.
  time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  local past = fence and tonumber(string.match(fence, '^v1 (%d+)$'))
  if not fence or past and past < now then
    local token = string.format('%.0f', now)
    -- Both are refused where another program's key holds a value that is no text.
    if call('SET', HOLD, id .. ' v1 ' .. token .. ' ' .. token .. ' ' .. who, 'NX', 'PX', lease) then
      if call('SET', FENCE, 'v1 ' .. token, fence and 'XX' or 'NX', 'PX', '86400000') then return now end
      call('DEL', HOLD)
    end
  end
end

--#include queue.lua
