-- Remembers a slot of a lock, unless the server remembers it already. The slot is a key of its own with the lock's hash tag,
-- which the server deletes when its time is over; the keys of the lock are left alone.
--
-- KEYS: the slot's, instead of the lock's
-- ARGV: for how long (ms)
-- Returns 0, if it is remembered from now on; for how much longer (ms), if it was already.
local SLOT = KEYS[1]
if call('SET', SLOT, '1', 'NX', 'PX', ARGV[1]) then return 0 end
local left = call('PTTL', SLOT)
if left < 0 then return {err = 'WRONGTYPE another program uses the key ' .. SLOT} end
return math.max(left, 1)
