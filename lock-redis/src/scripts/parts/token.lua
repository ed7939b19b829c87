-- Mints the fencing tokens of a call, unless the usual case has come first (`token_usual.lua`).

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

-- The next fencing token: above the last one, and at least the server's time, so that it rises even when the fence is lost. No other
-- grant gets the tokens of the holds that follow the one with this id. `promote` has to follow, which keeps the fence.
local function mint(id)
  local token = math.max(last + 1, now)
  last = token + (string.match(id, '%+(%d+)$') or 0)
  return token
end
