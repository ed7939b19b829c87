-- Remembers a slot of a lock, unless the server remembers it already; or looks it up; or forgets it. The slot is a key of its own with the
-- lock's hash tag, which the server deletes when its time is over; the keys of the lock are left alone.
--
-- KEYS: the slot's, instead of the lock's
-- ARGV: for how long (ms); 'look' or 'forget' instead
-- Returns 0, if it was not remembered; for how much longer (ms), if it was already.
local SLOT = KEYS[1]
local keep = tonumber(ARGV[1])
if keep and call('SET', SLOT, '1', 'NX', 'PX', ARGV[1]) then return 0 end
local left = call('PTTL', SLOT)
if left == -1 then return {err = 'WRONGTYPE another program uses the key ' .. SLOT} end
if left < 0 then return 0 end
if ARGV[1] == 'forget' then call('DEL', SLOT) end
return math.max(left, 1)
