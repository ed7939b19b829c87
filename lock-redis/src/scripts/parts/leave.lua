-- Removes what there is of an id in QUEUE and WAITERS. Returns the server's refusal; a key of another program contains nothing
-- of ours.
local function leave(id)
  local function refusal(answer)
    return type(answer) == 'table' and not string.find(answer.err, 'WRONGTYPE ', 1, true) and answer
  end
  local score = redis.pcall('ZSCORE', QUEUE, id)
  local refused = refusal(redis.pcall('ZREM', QUEUE, id)) or refusal(redis.pcall('HDEL', WAITERS, id))
  if not refused and type(score) == 'string' and tonumber(score) < FIRST_ARRIVAL then give_back(id) end
  return refused
end
