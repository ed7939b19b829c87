-- Reports who holds the lock and who waits for it. Changes nothing.
--
-- Returns {hold or "", remaining lease (ms), waiter, score, state, waiter, score, state, …}, the waiters in the order of the
-- queue.
local MOST_AT_ONCE = 500

local now = server_time() / 1000
local answer = {call('GET', HOLD) or '', call('PTTL', HOLD)}
local queue = call('ZRANGE', QUEUE, 0, -1, 'WITHSCORES')
local waiters = {}
for index = 1, #queue, 2 do waiters[#waiters + 1] = queue[index] end
for first = 1, #waiters, MOST_AT_ONCE do
  local last = math.min(first + MOST_AT_ONCE - 1, #waiters)
  local states = call('HMGET', WAITERS, unpack(waiters, first, last))
  for index = first, last do
    local state = states[index - first + 1]
    local ends = state and tonumber(string.match(state, '^%d+'))
    if ends and ends > now then
      answer[#answer + 1] = waiters[index]
      answer[#answer + 1] = queue[2 * index]
      answer[#answer + 1] = state
    end
  end
end
return answer
