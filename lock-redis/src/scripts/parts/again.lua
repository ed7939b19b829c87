-- Whether an id holds the lock together with others, and its token, if that is known. Its lease begins anew.
local function held_together(id, lease)
  local score = tonumber(redis.pcall('ZSCORE', QUEUE, id))
  if not score or score <= now_ms or score >= FIRST_ARRIVAL then return false end
  -- The first write, and one that needs no memory: after it a server that is out of memory lets the others through.
  call('PEXPIRE', QUEUE, math.max(call('PTTL', QUEUE), tonumber(lease)))
  call('ZADD', QUEUE, whole(now_ms + lease), id)
  keep_until_lease_ends(WAITERS, lease)
  local state = redis.pcall('HGET', WAITERS, id)
  return true, type(state) == 'string' and tonumber(string.match(state, '^(%d+) ')) or nil
end
