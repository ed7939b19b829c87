-- Replaces what an exclusive hold says of its holder, if it is still this owner's. The lease does not change.
--
-- ARGV: id, holder
-- Returns 1, if replaced; otherwise why not, as `why_not_held` says.
local id = ARGV[1]
local hold = call('GET', HOLD)
local head = hold and string.find(hold, id, 1, true) == 1 and string.match(hold, '^%S+ v1 %d+ %d+ %S+ ')
if head then
  call('SET', HOLD, head .. ARGV[2], 'KEEPTTL')
  return 1
end

--#include promote.lua
--#include lost.lua

local result = why_not_held(id)
promote()
return result
