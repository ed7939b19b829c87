-- The beginning of every script. All scripts but `remember` and `greet` take the same keys, those of one lock or one semaphore, which
-- share one hash tag.
local KEYS, ARGV = KEYS, ARGV
local HOLD, QUEUE, WAITERS, FENCE, BROKEN = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local call = redis.call
-- Asked for once in a call. The numbers in calls are texts, because the server converts them slowly.
local time
