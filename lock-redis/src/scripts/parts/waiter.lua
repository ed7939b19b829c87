-- Writes down what the script that lets a waiter in has to know of it. The keys live as long as the longest lease.
if call('PTTL', QUEUE) < tonumber(lease) then call('PEXPIRE', QUEUE, lease) end
call('HSET', WAITERS, id, ends .. ' ' .. beat .. ' ' .. who)
if call('PTTL', WAITERS) < tonumber(lease) then call('PEXPIRE', WAITERS, lease) end
