-- Acquires the lock exclusively, for holds that follow each other without the server, or takes or keeps a place in the queue. As
-- `acquire`, with an id that says how many they are.
local id, lease, who, beat, place = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local hold = call('GET', HOLD)
if hold and string.find(hold, id, 1, true) == 1 then
  call('PEXPIRE', HOLD, lease)
  return string.match(hold, '^%S+ v1 (%d+)')
end

--#include queue.lua
