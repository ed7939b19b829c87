-- Extends the lease of an exclusive hold, if it is still this owner's.
--
-- ARGV: id, lease (ms)
-- Returns 1, if extended; otherwise why not, as `why_not_held` says.
local id = ARGV[1]
local hold = call('GET', HOLD)
if hold and string.find(hold, id, 1, true) == 1 then return call('PEXPIRE', HOLD, ARGV[2]) end

--#include promote.lua
--#include lost.lua

local result = why_not_held(id)
if not hold then promote() end
return result
