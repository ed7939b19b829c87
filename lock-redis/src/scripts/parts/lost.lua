-- Why `id` does not hold the lock: 0 its hold is gone, 2 another client holds it, 3 it was broken.
local function why_not_held(id)
  if type(redis.pcall('ZSCORE', BROKEN, id)) == 'string' then return 3 end
  return hold and 2 or 0
end
