-- Reports who holds the lock and who waits for it. Changes nothing.
--
-- Returns {exclusive hold or "", remaining lease (ms), id, score, state, id, score, state, …}: those that hold it together, then
-- the waiters in the order of the queue. With several holders the remaining lease is the longest.
local MOST_AT_ONCE = 500

local hold = call('GET', HOLD)

--#include grant.lua

local other = other_layout(HOLD, hold, '^%S+ v(%d+) ') or trouble
if other and string.find(other.err, 'LAYOUT ', 1, true) then return other end

local remaining = call('PTTL', HOLD)
local answer = {hold or '', remaining}
local queue = call('ZRANGE', QUEUE, 0, -1, 'WITHSCORES')
local ids = {}
for index = 1, #queue, 2 do ids[#ids + 1] = queue[index] end
for first = 1, #ids, MOST_AT_ONCE do
  local last = math.min(first + MOST_AT_ONCE - 1, #ids)
  local states = call('HMGET', WAITERS, unpack(ids, first, last))
  for index = first, last do
    local score, state = tonumber(queue[2 * index]), states[index - first + 1]
    local waits = score >= FIRST_ARRIVAL
    local ends = waits and tonumber(state and string.match(state, '^%d+')) or score
    if ends > now_ms and (state or not waits) and string.sub(ids[index], 1, 1) ~= '/' then
      answer[#answer + 1] = ids[index]
      answer[#answer + 1] = queue[2 * index]
      answer[#answer + 1] = state or ''
      if not waits and not hold then remaining = math.max(remaining, ends - now_ms) end
    end
  end
end
answer[2] = remaining
return answer
