-- Mints the next token in the usual case: the clock is ahead of the fence. Otherwise `token.lua` does. The token stays a text: the
-- server formats a number more slowly than it executes a command.
time = call('TIME')
local fraction = time[2]
if #fraction < 6 then fraction = string.sub('00000' .. fraction, -6) end
local token = time[1] .. fraction
local minted, fence = 'v1 ' .. token, redis.pcall('GET', FENCE)
-- The error of a key of another type has no length.
local is_minted = not fence or #fence == #minted and fence < minted and string.find(fence, '^v1 %d+$')
