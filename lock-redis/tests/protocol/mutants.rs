//! Scripts with one rule removed, each with the scenario that must notice it.
use crate::scenarios::{
    Scenario, acquire, beat, faults, fence, foreign, handoff, inspect, keys, lease, queue, undo,
};
use crate::scripts::{ACQUIRE, BREAK, CANCEL, DESCRIBE, GRANT, INSPECT, PROMOTE, RELEASE, RENEW};

pub(crate) struct Mutant {
    /// What is wrong with the mutant.
    pub(crate) flaw: &'static str,
    pub(crate) file: &'static str,
    pub(crate) piece: &'static str,
    pub(crate) replacement: &'static str,
    /// The scenario that must fail.
    pub(crate) missed_by: Scenario,
}

macro_rules! mutants {
    ($($flaw:literal: $file:ident, $piece:literal => $replacement:literal, $scenario:path;)+) => {
        pub(crate) const ALL: &[Mutant] = &[
            $(Mutant {
                flaw: $flaw,
                file: $file,
                piece: $piece,
                replacement: $replacement,
                missed_by: $scenario,
            },)+
        ];
    };
}

mutants! {
    // Descriptions of holds.
    "a description ends the lease":
        DESCRIBE, ", 'KEEPTTL'" => "", lease::only_the_owner_describes_its_hold;
    "a description of another's hold is accepted":
        DESCRIBE, "string.find(hold, id, 1, true) == 1 and " => "", lease::only_the_owner_describes_its_hold;
    "a late description leaves the lock to no waiter":
        DESCRIBE, "if not hold then promote() end\n" => "", lease::a_late_description_changes_nothing_and_hands_over;
    // Attempts and places.
    "a heartbeat makes a place":
        ACQUIRE, "if intent == 'beat' then" => "if false then", beat::a_heartbeat_of_a_place_that_is_gone_makes_none;
    "a heartbeat makes a place for a hold that expired":
        ACQUIRE, "if intent == 'beat' then" => "if false then", beat::a_heartbeat_of_an_expired_hold_makes_no_place;
    "a heartbeat takes a free lock without a place":
        ACQUIRE, "intent ~= 'beat' and" => "", beat::a_heartbeat_of_a_place_that_is_gone_makes_none;
    "a heartbeat of a place that is gone leaves the lock free":
        ACQUIRE, "    if not hold then promote(now) end\n" => "", beat::a_heartbeat_of_a_place_that_is_gone_passes_the_lock_on;
    "a newcomer queues and promotes no waiter":
        ACQUIRE, "local owner, token = promote(now, id)" => "local owner, token",
        queue::a_newcomer_gets_a_free_lock_past_the_dead;
    "a newcomer promotes before it is in the queue":
        ACQUIRE, "local score = call('ZSCORE', QUEUE, id)" =>
        "if not hold and promote(now) then hold = 'x' end local score = call('ZSCORE', QUEUE, id) if not hold then hold = 'x' end",
        queue::a_newcomer_gets_a_free_lock_past_the_dead;
    "a newcomer overtakes the queue when the lock is free":
        ACQUIRE, "and call('EXISTS', QUEUE) == 0" => "", queue::a_free_lock_is_the_first_waiters;
    "a heartbeat promotes no waiter":
        ACQUIRE, "local owner, token = promote(now, id)" => "local owner, token", beat::a_heartbeat_takes_a_free_lock;
    "a try promotes no waiter":
        ACQUIRE, "local owner, more = promote(now)" => "local owner, more = nil, 1",
        queue::a_try_gets_a_free_lock_past_the_dead;
    "a try leaves an expired lock to no waiter":
        ACQUIRE, "local owner, more = promote(now)" => "local owner, more = nil, 1",
        handoff::a_try_hands_an_expired_lock_over;
    "a try takes the lock from those that no script has looked at":
        ACQUIRE, "if not owner and more == 0" => "if not owner", queue::many_dead_waiters_are_looked_at_in_pieces;
    "a try takes a place":
        ACQUIRE, "if intent == 'try' then" => "if false then", acquire::a_try_never_waits;
    "an attempt that holds is not known again":
        ACQUIRE, "string.find(hold, id, 1, true) == 1" => "false", acquire::an_attempt_sent_twice_holds_once;
    "an attempt sent twice does not renew":
        ACQUIRE, "  call('PEXPIRE', HOLD, lease)\n" => "", beat::a_heartbeat_finds_a_grant_whose_push_was_lost;
    "an id anywhere in the hold is the owner's":
        ACQUIRE, "string.find(hold, id, 1, true) == 1" => "string.find(hold, id, 1, true)",
        acquire::an_id_inside_of_the_hold_is_not_the_owner;
    "an attempt sent twice gets a new place":
        ACQUIRE, "if not score then" => "if intent == 'wait' then", acquire::an_attempt_sent_twice_waits_once;
    "a lost place is lost":
        ACQUIRE, "if place > 0 then" => "if false then", queue::a_lost_place_comes_before_later_arrivals;
    "a place may be in the future":
        ACQUIRE, "score = math.min(place, now)" => "score = place", queue::a_place_in_the_future_is_now;
    "two arrivals in one microsecond have one score":
        ACQUIRE, "math.max(now, (tonumber(tail[2]) or 0) + 1)" => "now",
        queue::two_arrivals_in_one_microsecond_keep_their_order;
    "the next has the score of the last":
        ACQUIRE, "(tonumber(tail[2]) or 0) + 1" => "tonumber(tail[2]) or 0",
        queue::two_arrivals_in_one_microsecond_keep_their_order;
    "scores lose digits":
        ACQUIRE, "call('ZADD', QUEUE, whole(score), id)" => "call('ZADD', QUEUE, '' .. score, id)",
        queue::two_arrivals_in_one_microsecond_keep_their_order;
    "the queue never ends":
        ACQUIRE, "keep_until_lease_ends(QUEUE)\n" => "\n", queue::the_queue_ends_with_its_last_waiter;
    "the waiters never end":
        ACQUIRE, "keep_until_lease_ends(WAITERS)\n" => "\n", queue::the_queue_ends_with_its_last_waiter;
    "the queue ends with the waiter that came last":
        ACQUIRE, "if call('PTTL', key) < lease then call('PEXPIRE', key, lease) end" => "call('PEXPIRE', key, lease)",
        queue::the_queue_ends_with_its_last_waiter;
    "the queue ends with the waiter that came first":
        ACQUIRE, "call('PTTL', key) < lease" => "call('PTTL', key) < 0", queue::the_queue_ends_with_its_last_waiter;
    "a waiter without a state stays in the queue for ever":
        ACQUIRE, "keep_until_lease_ends(QUEUE)\n" => "\n", foreign::waiters_of_another_type_leave_nothing_for_ever;
    "a heartbeat moves no deadline":
        ACQUIRE, "  call('HDEL', WAITERS, id)\nend" => "  return {call('PTTL', HOLD), 0, tonumber(score)}\nend",
        beat::a_heartbeat_moves_the_deadline_and_the_channel;
    "a heartbeat needs memory":
        ACQUIRE, "  call('HDEL', WAITERS, id)\nend\nkeep_until_lease_ends(QUEUE)\n" => "end\n", faults::without_memory_a_waiter_keeps_its_place;
    "a place is made before the server can refuse for want of memory":
        ACQUIRE, "local score = call('ZSCORE', QUEUE, id)" =>
        "call('DEL', BROKEN) local score = call('ZSCORE', QUEUE, id)", faults::without_memory_nothing_is_acquired;

    // Hand-offs.
    "a subscriber to everything counts as the waiter":
        PROMOTE, "local count = redis.pcall('PUBSUB', 'NUMSUB', channel)" =>
        "local count = {channel, redis.call('PUBLISH', channel, 'x')}",
        handoff::a_subscriber_to_everything_keeps_no_dead_head;
    "a head without a connection is granted":
        PROMOTE, "or is_listening(channel)" => "or true", handoff::a_head_without_connection_is_skipped;
    "a waiter that polls counts as dead":
        PROMOTE, "channel == '-' or" => "", handoff::a_waiter_that_polls_is_granted;
    "a newcomer must have a channel that is heard":
        PROMOTE, "id == me or channel" => "channel", queue::a_newcomer_is_granted_without_a_message;
    "a newcomer is notified twice":
        PROMOTE, "if id ~= me then tell" => "if true then tell", queue::a_newcomer_is_granted_without_a_message;
    "a waiter past its deadline is granted":
        PROMOTE, "tonumber(ends) > now / 1000" => "true", handoff::a_head_past_its_deadline_is_skipped;
    "a grant lasts from its own time":
        PROMOTE, "now, 'PXAT', ends)" => "now, 'PX', '600000')", handoff::a_grant_ends_at_the_waiters_deadline;
    "a grant names no request":
        PROMOTE, "' granted ' .. beat" => "' granted ' .. 0", handoff::release_hands_over_with_a_message;
    "a grant is not told":
        PROMOTE, "redis.pcall('PUBLISH', channel, message)" => "redis.pcall('PUBLISH', channel, 'nothing')",
        handoff::release_hands_over_with_a_message;
    "a refused message fails the call":
        PROMOTE, "redis.pcall('PUBLISH'" => "redis.call('PUBLISH'", handoff::a_refused_message_grants;
    "a refused look at the channel fails the call":
        PROMOTE, "redis.pcall('PUBSUB'" => "redis.call('PUBSUB'", handoff::a_refused_look_at_the_channel_grants;
    "a refused look at the channel means dead":
        PROMOTE, "count.err ~= nil or count[2]" => "count.err == nil and count[2]",
        handoff::a_refused_look_at_the_channel_grants;
    "the last in the queue comes first":
        PROMOTE, "ZPOPMIN" => "ZPOPMAX", queue::waiters_are_served_in_order;
    "one dead head ends the search":
        PROMOTE, "for _ = 1, MOST_LOOKED_AT do" => "for _ = 1, 1 do", handoff::a_head_without_connection_is_skipped;
    "a call looks at all, however many they are":
        PROMOTE, "MOST_LOOKED_AT = 100" => "MOST_LOOKED_AT = 1e9", queue::many_dead_waiters_are_looked_at_in_pieces;
    "no client learns that there are more":
        PROMOTE, "return nil, 1" => "return nil, 0", queue::many_dead_waiters_are_looked_at_in_pieces;
    "the state of a waiter that was granted stays":
        PROMOTE, "    call('HDEL', WAITERS, id)\n" => "", handoff::release_hands_over_with_a_message;
    "a state that is none fails the call":
        PROMOTE, "ends and tonumber" => "tonumber", foreign::a_waiter_by_another_program_is_skipped;
    "a place without a state fails the call":
        PROMOTE, "if waiter then" => "if true then", foreign::a_waiter_by_another_program_is_skipped;

    // Fencing.
    "the fence knows no time":
        GRANT, "whole(now), now, '86400000'" => "whole(now), 1, '86400000'", fence::tokens_rise_when_all_keys_are_deleted;
    "the fence knows no time after a flush":
        GRANT, "whole(now), now, '86400000'" => "whole(now), 1, '86400000'", fence::tokens_rise_after_a_flush;
    "the fence knows no time after a restart":
        GRANT, "whole(now), now, '86400000'" => "whole(now), 1, '86400000'",
        fence::tokens_rise_after_a_restart_without_data;
    "the fence knows no time after an expiry":
        GRANT, "redis.pcall('SET', FENCE, text, 'PX', fence_lasts, 'GET')" => "'' token = 1", fence::tokens_rise_over_expiry;
    "a hand-off has a token of its own":
        PROMOTE, "local token = grant(id, who, last, now," => "local token = grant(id, who, nil, 1e12,",
        fence::tokens_rise_over_releases_and_hand_offs;
    "the fence is the time alone":
        GRANT, "if last and last >= now then" => "if false then", fence::tokens_rise_when_the_clock_is_behind;
    "the fence repeats the last":
        GRANT, "token = last + 1" => "token = last", fence::tokens_rise_when_the_clock_is_behind;
    "the fence is not kept":
        GRANT, "redis.pcall('SET', FENCE, text, 'PX', fence_lasts, 'GET')" => "''", fence::tokens_rise_when_the_clock_is_behind;
    "the fence of a hand-off is not looked at":
        PROMOTE, "local last, trouble = look()" => "local last, trouble", fence::tokens_rise_when_the_clock_is_behind;
    "tokens lose digits":
        GRANT, "return string.format('%.0f', number)" => "return number .. ''", fence::tokens_keep_all_their_digits;
    "the token of the message loses digits":
        PROMOTE, "beat .. ' ' .. whole(token)" => "beat .. ' ' .. token", fence::tokens_keep_all_their_digits;
    "the fence lasts for a day of the clock's time":
        GRANT, "text, fence_lasts = whole(token), whole(86400000 + math.ceil((token - now) / 1000))" =>
        "text = whole(token)", fence::the_fence_outlasts_its_own_value_by_a_day;
    "the fence lasts for an hour":
        GRANT, "token, fence_lasts = whole(now), now, '86400000'" => "token, fence_lasts = whole(now), now, '3600000'",
        fence::the_fence_outlasts_its_own_value_by_a_day;

    // Ends of a hold.
    "every client renews":
        RENEW, "if hold and string.find(hold, id, 1, true) == 1 then" => "if hold then", lease::only_the_owner_renews;
    "every client renews, also what another client has meanwhile":
        RENEW, "if hold and string.find(hold, id, 1, true) == 1 then" => "if hold then",
        lease::a_late_renewal_does_not_revive;
    "a renewal does not look at the whole id":
        RENEW, "string.find(hold, id, 1, true) == 1" => "string.find(hold, id, 1, true)",
        acquire::an_id_inside_of_the_hold_is_not_the_owner;
    "a renewal of a lost hold leaves the lock free":
        RENEW, "if not hold then promote() end" => "", handoff::renewal_of_a_lost_hold_hands_over;
    "every client releases":
        RELEASE, "hold and string.find(hold, id, 1, true) == 1" => "hold", lease::release_by_another_changes_nothing;
    "a release does not look at the whole id":
        RELEASE, "string.find(hold, id, 1, true) == 1" => "string.find(hold, id, 1, true)",
        acquire::an_id_inside_of_the_hold_is_not_the_owner;
    "a release leaves the lock free":
        RELEASE, "local owner, more = promote()" => "local owner, more = nil, 0",
        handoff::release_hands_over_with_a_message;
    "a late release leaves the lock free":
        RELEASE, "if hold and not is_ours then" => "if not is_ours then", handoff::a_release_that_is_late_hands_over;
    "a release overlooks the queue":
        RELEASE, "if call('EXISTS', QUEUE) == 0 then" => "if true then", handoff::release_hands_over_with_a_message;
    "a release deletes after it has written":
        RELEASE, "  call('DEL', HOLD)\n" => "  call('SET', BROKEN, id, 'PX', 1) call('DEL', HOLD)\n",
        faults::without_memory_a_release_hands_over;
    "a broken holder learns that its hold is gone":
        PROMOTE, "if redis.pcall('GET', BROKEN) == id .. ' broken' then return 3 end" => "", lease::a_broken_holder_is_told_why;
    "every client learns that the hold was broken":
        PROMOTE, "redis.pcall('GET', BROKEN) == id .. ' broken'" => "redis.pcall('GET', BROKEN)", lease::a_broken_holder_is_told_why;
    "a cancel leaves the lock free":
        CANCEL, "local owner, more = promote()" => "local owner, more = nil, 0", handoff::cancel_of_a_hold_hands_over;
    "a cancel forgets the hold":
        CANCEL, "  call('DEL', HOLD)\n" => "", undo::cancel_of_a_hold;
    "a cancel forgets the place":
        CANCEL, "redis.pcall('ZREM', QUEUE, id)" => "nil", undo::cancel_of_a_place;
    "a cancel forgets the state":
        CANCEL, "redis.pcall('HDEL', WAITERS, id)" => "nil", undo::cancel_of_a_place;
    "a cancel ends any hold":
        CANCEL, "string.find(hold, id, 1, true) == 1" => "true", undo::cancel_of_nothing_changes_nothing;
    "a cancel passes on a lock that is held":
        CANCEL, "if hold then return 0 end" => "", undo::cancel_of_a_place;
    "a break ends any hold":
        BREAK, "or string.match(hold, '^%S+') ~= id" => "", undo::break_of_another_changes_nothing;
    "a break ends the waiters' wait":
        BREAK, "call('DEL', HOLD)" => "call('DEL', HOLD, QUEUE, WAITERS)", undo::break_keeps_the_queue;
    "a break leaves the lock free":
        BREAK, "local owner, more = promote()" => "local owner, more = nil, 0", handoff::break_hands_over;
    "a break is not told":
        BREAK, "channel, id .. ' broken'" => "channel, id", undo::break_tells_the_holder;
    "a break leaves no mark":
        BREAK, "call('SET', BROKEN, id .. ' broken', 'PX', ARGV[2])" => "", lease::a_broken_holder_is_told_why;
    "the mark of a break stays for ever":
        BREAK, "' broken', 'PX', ARGV[2])" => "' broken')", lease::a_broken_holder_is_told_why;
    "a break marks before it deletes":
        BREAK, "call('DEL', HOLD)" => "call('SET', BROKEN, id) call('DEL', HOLD)",
        faults::without_memory_a_break_hands_over;

    // Keys of other programs.
    "a fence of another type is overwritten":
        GRANT, "fence_lasts, 'GET')" => "fence_lasts)", foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a fence that is no number is overwritten":
        GRANT, "if last and not is_token(last) then" => "if false then",
        foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a fence that only begins with a number is overwritten":
        GRANT, "'^%d+$'" => "'^%d+'", foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a token that Lua cannot count on from is another program's neither":
        GRANT, " and tonumber(text) < 9007199254740991" => "",
        foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "the last token that Lua can count on from is repeated":
        GRANT, "9007199254740991" => "9007199254740992",
        foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a hold is left where there is no fence":
        GRANT, "    call('DEL', HOLD)\n" => "", foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a fence of another program makes a release an error":
        PROMOTE, "local last, trouble = look()" => "local last, trouble = call('GET', FENCE)",
        foreign::a_fence_by_another_program_undoes_no_release;
    "a fence of another program costs a waiter its place":
        PROMOTE, "  if trouble then return nil, 0 end\n" => "", foreign::a_fence_by_another_program_undoes_no_release;
    "a waiter is not told of a fence of another program":
        ACQUIRE, "or trouble\n" => "\n",
        foreign::a_fence_by_another_program_undoes_no_release;
    "a queue of another program makes a release an error":
        PROMOTE, "error_of(QUEUE, redis.pcall('ZSCORE', QUEUE, ''))" => "nil",
        foreign::a_queue_or_waiters_by_another_program_undo_no_release;
    "waiters of another program make a release an error":
        PROMOTE, "error_of(WAITERS, redis.pcall('HGET', WAITERS, ''))" => "nil",
        foreign::a_queue_or_waiters_by_another_program_undo_no_release;
    "a queue of another program makes a cancel an error":
        CANCEL, "redis.pcall('ZREM'" => "redis.call('ZREM'", foreign::a_queue_or_waiters_by_another_program_undo_no_release;
    "waiters of another program make a cancel an error":
        CANCEL, "redis.pcall('HDEL'" => "redis.call('HDEL'", foreign::a_queue_or_waiters_by_another_program_undo_no_release;
    "a cancel that a replica refuses is none":
        CANCEL, "if failed then return failed end\n" => "", faults::a_replica_refuses;
    "a waiter loses its place for a hold of another type":
        ACQUIRE, "error_of(HOLD, redis.pcall('GET', HOLD)) or trouble" => "trouble",
        foreign::a_hold_of_another_type_ends_nothing;
    "a hold of another type is not named":
        GRANT, "return {err = FOREIGN .. HOLD}" => "call('GET', HOLD)", foreign::a_hold_of_another_type_ends_nothing;
    "the mark of another program is overwritten":
        BREAK, "if foreign then return foreign end\n" => "", foreign::a_mark_by_another_program_is_left_as_it_is;
    "the mark of another program makes a renewal an error":
        PROMOTE, "redis.pcall('GET', BROKEN)" => "call('GET', BROKEN)",
        foreign::a_mark_by_another_program_is_left_as_it_is;
    "any text is a mark":
        BREAK, "'^%S+ broken$'" => "''", foreign::a_mark_by_another_program_is_left_as_it_is;

    // Inspection and keys.
    "inspect passes the lock on":
        INSPECT, "local MOST_AT_ONCE = 500" => "local MOST_AT_ONCE = 500 call('ZPOPMIN', QUEUE)",
        inspect::it_changes_nothing;
    "inspect writes on a replica":
        INSPECT, "local MOST_AT_ONCE = 500" => "local MOST_AT_ONCE = 500 call('PEXPIRE', HOLD, 1000)",
        faults::a_replica_refuses;
    "inspect shows the expired":
        INSPECT, "if ends and ends > now then" => "if ends then", inspect::it_leaves_the_expired_out;
    "inspect stops after the first group":
        INSPECT, "for first = 1, #waiters," => "for first = 1, math.min(#waiters, 1),", inspect::it_shows_a_long_queue;
    "inspect reads all states at once":
        INSPECT, "MOST_AT_ONCE = 500" => "MOST_AT_ONCE = 1e9", inspect::it_shows_a_very_long_queue;
    "inspect sorts by name":
        INSPECT, "call('ZRANGE', QUEUE, 0, -1, 'WITHSCORES')" =>
        "(function() local all = call('HKEYS', WAITERS) table.sort(all) local both = {} \
          for _, id in ipairs(all) do both[#both + 1] = id both[#both + 1] = call('ZSCORE', QUEUE, id) end return both end)()",
        inspect::it_shows_the_queue_in_order;
    "a key that is not declared":
        GRANT, "pcall('SET', FENCE, text" => "pcall('SET', FENCE .. 'x', text", keys::every_key_is_declared;
    "a key on another node":
        GRANT, "pcall('SET', FENCE, text" => "pcall('SET', 'fence', text", keys::one_node_of_a_cluster_has_them_all;
    "a hold does not say since when":
        GRANT, "' ' .. since .. ' ' .. who" => "' 0 ' .. who", acquire::a_hold_says_who_and_since_when;
    "a waiter holds as another client":
        PROMOTE, "grant(id, who," => "grant(id, channel .. ' ' .. id,", inspect::it_shows_who_was_granted;
    "the lock is given for ever":
        GRANT, "' ' .. who, 'NX', expiry, ends)" => "' ' .. who, 'NX')", acquire::a_free_lock_is_granted_in_one_call;
    "a hold by another program is none":
        ACQUIRE, "local hold, last = found[1], found[2]" =>
        "local hold, last = found[1], found[2] if hold and not string.match(hold, '^%S+ %d+ %d+ ') then hold = false end",
        foreign::a_hold_by_another_program_is_respected;
}
