-- Notes which server is the primary, and for how long the holds of an earlier one may last. Every client behind sentinels or of a
-- cluster calls it before it takes anything on a connection, and again when the hash slots of the node have changed.
--
-- KEYS: the note of the prefix, instead of a lock's: "reign longest first-last:from …"
--   reign       the run of the server, its replication id, which changes at each promotion, and the epoch of the failover
--   longest     how long the hold of any client may outlast its last contact (ms)
--   first-last  hash slots that it has in this reign; all of them without a cluster
--   from        when it begins to grant there, by its own clock (ms)
-- ARGV: reign, longest, first and last of each range of hash slots
-- Returns the ranges: {first, last, for how much longer nothing may be granted there (ms)}.
local NOTE, reign, longest = KEYS[1], ARGV[1], tonumber(ARGV[2])
--#include time.lua
local note = call('GET', NOTE)
local is, most, ranges = string.match(note or '', '^(%S+) (%d+)([ %d:-]*)$')
if note and not is then return {err = 'WRONGTYPE another program uses the key ' .. NOTE} end
longest = math.max(longest, tonumber(most) or 0)
local known = {}
if is == reign and tonumber(most) == longest then
  for first, last, from in string.gmatch(ranges, '(%d+)-(%d+):(%d+)') do
    for slot = tonumber(first), tonumber(last) do known[slot] = tonumber(from) end
  end
end
local text, answer = string.format('%s %.0f', reign, longest), {}
local function add(first, last, from)
  text = text .. string.format(' %d-%d:%.0f', first, last, from)
  table.insert(answer, {first, last, math.max(0, math.min(longest, from - now_ms))})
end
-- A slot that is new here may have come from a node that is gone.
local function start(slot)
  return known[slot] or now_ms + longest
end
for index = 3, #ARGV, 2 do
  local first, last = tonumber(ARGV[index]), tonumber(ARGV[index + 1])
  local from = start(first)
  for slot = first + 1, last do
    if start(slot) ~= from then
      add(first, slot - 1, from)
      first, from = slot, start(slot)
    end
  end
  add(first, last, from)
end
if text ~= note then call('SET', NOTE, text) end
return answer
