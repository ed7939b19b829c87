-- The token of an id that holds the lock together with others, and that asks again: its lease begins anew.
local function held_together(id, lease)
  local score = tonumber(call('ZSCORE', QUEUE, id))
  if not score or score <= now_ms or score >= FIRST_ARRIVAL then return nil end
  local token = string.match(call('HGET', WAITERS, id) or '', '^(%d+) ')
  if not token then return nil end
  keep_until_lease_ends(QUEUE, lease)
  call('ZADD', QUEUE, whole(now_ms + lease), id)
  keep_until_lease_ends(WAITERS, lease)
  return tonumber(token)
end
