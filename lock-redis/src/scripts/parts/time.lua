-- The server's time in microseconds and in milliseconds.
time = time or call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)
