-- Notes which server is the primary, and for how long the holds of an earlier one may last. Every client behind sentinels calls
-- it before it takes anything on a connection.
--
-- KEYS: the note of the prefix, instead of a lock's: "reign longest from"
--   reign    the run of the server, its replication id, which changes at each promotion, and the epoch of the failover
--   longest  how long the hold of any client may outlast its last contact (ms)
--   from     when this reign begins to grant, by its own clock (ms)
-- ARGV: reign, longest
-- Returns for how much longer nothing may be granted (ms).
local NOTE, reign, longest = KEYS[1], ARGV[1], tonumber(ARGV[2])
--#include time.lua
local note = call('GET', NOTE)
local is, most, from = string.match(note or '', '^(%S+) (%d+) (%d+)$')
if note and not is then return {err = 'WRONGTYPE another program uses the key ' .. NOTE} end
longest = math.max(longest, tonumber(most) or 0)
if is ~= reign or tonumber(most) < longest then
  from = now_ms + longest
  call('SET', NOTE, string.format('%s %.0f %.0f', reign, longest, from))
end
return math.max(0, math.min(longest, from - now_ms))
