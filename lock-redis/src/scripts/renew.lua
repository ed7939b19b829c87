-- Extends the lease of a hold, if it is still this owner's.
--
-- ARGV: id, lease (ms)
-- Returns 1, if extended; otherwise why not, as `why_not_held` says.
local id, lease = ARGV[1], ARGV[2]
local hold = call('GET', HOLD)
if hold and string.find(hold, id, 1, true) == 1 then return call('PEXPIRE', HOLD, lease) end

--#include promote.lua
--#include again.lua
--#include lost.lua

local result = held_together(id, lease) and 1 or why_not_held(id)
promote()
return result
