-- The beginning of every script. All scripts but `remember` take the same keys, those of one lock, which share one hash tag.
local HOLD, QUEUE, WAITERS, FENCE, BROKEN = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local call = redis.call

-- The error that a script returns instead of overwriting a key that the scripts did not write.
local FOREIGN = 'WRONGTYPE another program uses the key '

-- Whether a text is a token that has a successor: from 2^53 on Lua cannot tell a number from the next.
local function is_token(text)
  return string.find(text, '^%d+$') and tonumber(text) < 9007199254740991
end

-- The server's time in microseconds.
local function server_time()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Formats a number in full: Lua's own conversion loses digits of a time in microseconds.
local function whole(number)
  return string.format('%.0f', number)
end

-- Gives the lock to `id`, for as long as `expiry` and `ends` say, and returns its fencing token: above the last one, and at
-- least the server's time, so that it rises even when the fence is lost. Returns an error if another program's key is in the
-- way, and leaves that key as it is.
--
-- A hold is "owner token since channel holder"; `who` is its end, "channel holder".
local function grant(id, who, last, now, expiry, ends)
  if last and not is_token(last) then return {err = FOREIGN .. FENCE} end
  local since, token, fence_lasts = whole(now), now, '86400000'
  local text = since
  last = tonumber(last)
  if last and last >= now then
    -- The clock has stepped back. The fence outlives the last grant by a day of its own time.
    token = last + 1
    text, fence_lasts = whole(token), whole(86400000 + math.ceil((token - now) / 1000))
  end
  if not call('SET', HOLD, id .. ' ' .. text .. ' ' .. since .. ' ' .. who, 'NX', expiry, ends) then
    -- The key holds a value that is no text.
    return {err = FOREIGN .. HOLD}
  end
  -- With GET the server refuses to overwrite a value that is no text.
  local before = redis.pcall('SET', FENCE, text, 'PX', fence_lasts, 'GET')
  if type(before) == 'table' then
    call('DEL', HOLD)
    return string.find(before.err, 'WRONGTYPE ', 1, true) and {err = FOREIGN .. FENCE} or before
  end
  return token
end
