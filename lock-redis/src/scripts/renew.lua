-- Extends the lease of a hold, if it is still this owner's.
--
-- ARGV: id, lease (ms)
-- Returns 1, if extended; otherwise why not, as `why_not_held` says.
local id = ARGV[1]
local hold = call('GET', HOLD)
if hold and string.find(hold, id, 1, true) == 1 then return call('PEXPIRE', HOLD, ARGV[2]) end

--#include promote.lua

if not hold then promote() end
return why_not_held(hold, id)
