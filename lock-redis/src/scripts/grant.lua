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

-- The last token, or 0; and the error to return if the contents of the fence prevent a grant. A token has a successor: from 2^53
-- on Lua cannot tell a number from the next.
local function look()
  local text = redis.pcall('GET', FENCE)
  local trouble = error_of(FENCE, text) or other_layout(FENCE, text, '^v(%d+) ')
  if trouble or not text then return 0, trouble end
  local token = tonumber(string.match(text, '^v1 (%d+)$'))
  if token and token < 9007199254740991 then return token, nil end
  return 0, {err = 'WRONGTYPE another program uses the key ' .. FENCE}
end

local last, trouble = 0, nil
if not hold then last, trouble = look() end
local kept = last

-- Gives the lock, which must be free for it, to `id` until `ends`, and returns its fencing token: above the last one, and at
-- least the server's time, so that it rises even when the fence is lost. `who` is "channel holder". `promote` has to follow,
-- which keeps the fence.
local function grant(id, who, ends)
  last = math.max(last + 1, now)
  local token = last
  -- No other grant gets the tokens of the holds that follow this one.
  last = last + (string.match(id, '%+(%d+)$') or 0)
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
