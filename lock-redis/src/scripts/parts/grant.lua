-- The layout of the keys, and how a lock is given. The usual case of a script comes before this, because the server creates
-- each function anew in each call.
--
-- An id says how it holds or waits: "…" exclusively, "…+99" exclusively and with 99 tokens more, "…:r" shared, "…:2/5" with 2 of 5
-- permits.
-- HOLD     the exclusive hold: "id v1 token since channel holder". v1 is the layout of all keys.
-- QUEUE    by score: "/5" with the number of permits that are taken; the ids of those that hold it together, by the end of
--          their lease (ms); the ids of the waiters, by their arrival (microseconds)
-- WAITERS  by id: "token since channel holder" of those that hold it together, "deadline beat channel holder" of the waiters
-- FENCE    "v1 token", the last token
-- BROKEN   the ids whose holds were broken, by the moment until which that is remembered (ms)

-- Scores below it are ends of leases, and scores from it on are arrivals.
local ARRIVALS = '100000000000000'
local FIRST_ARRIVAL = tonumber(ARRIVALS)

--#include time.lua

-- Formats a number in full: Lua's own conversion loses digits of a time in microseconds.
local function whole(number)
  return string.format('%.0f', number)
end

-- The number of permits that an id takes, and of how many; nil for one of a lock.
local function permits(id)
  return string.match(id, ':(%d+)/(%d+)$')
end

-- The error in the answer to a command on `key`, if it is one. A script never overwrites a key of another program: the error
-- names the key.
local function error_of(key, answer)
  if type(answer) ~= 'table' or not answer.err then return nil end
  if not string.find(answer.err, 'WRONGTYPE ', 1, true) then return answer end
  return {err = 'WRONGTYPE another program uses the key ' .. key}
end

-- The error for a text with the mark of another layout than this one.
local function other_layout(key, text, mark)
  local layout = text and string.match(text, mark)
  if not layout or layout == '1' then return nil end
  return {err = 'LAYOUT the key ' .. key .. ' has the layout ' .. layout .. ', and this client knows the layout 1'}
end

--#include token.lua

-- Gives the lock, which must be free for it, to `id` until `ends`, and returns its fencing token. `who` is "channel holder".
local function grant(id, who, ends)
  local token = mint(id)
  local text = whole(token) .. ' ' .. whole(now) .. ' ' .. who
  if not string.find(id, ':', 1, true) then
    hold = id .. ' v1 ' .. text
    call('SET', HOLD, hold, 'PXAT', ends)
    return token
  end
  local take, of = permits(id)
  if take then call('ZINCRBY', QUEUE, take, '/' .. of) end
  call('ZADD', QUEUE, ends, id)
  call('HSET', WAITERS, id, text)
  return token
end

-- A key with waiters, or with those that hold the lock together, lives as long as the longest lease.
local function keep_until_lease_ends(key, lease)
  if redis.call('PTTL', key) < tonumber(lease) then redis.call('PEXPIRE', key, lease) end
end
