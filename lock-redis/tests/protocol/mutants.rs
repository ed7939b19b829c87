//! Scripts with one rule removed, each with the scenario that must notice it.
use crate::scenarios::{
    Scenario, acquire, beat, faults, fence, foreign, handoff, inspect, keys, lease, permits, queue, sharing,
    undo,
};
use crate::scripts::{
    ACQUIRE, ACQUIRE_SHARED, AGAIN, BREAK, CANCEL, DESCRIBE, DOWNGRADE, GRANT, INSPECT, LEAVE, LOST, PLACE,
    PROMOTE, QUEUE, RELEASE, RELEASE_SHARED, RENEW, TOKEN, TOKEN_USUAL, WAITER,
};

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
        DESCRIBE, "promote()\n" => "", lease::a_late_description_changes_nothing_and_hands_over;
    // Attempts and places.
    "a heartbeat makes a place":
        QUEUE, "if beat and not place and" => "if beat and", beat::a_heartbeat_of_a_place_that_is_gone_makes_none;
    "a heartbeat makes a place for a free lock":
        QUEUE, "if not score and place == '-' then" => "if place == '-' then place = nil end if false then", beat::a_heartbeat_of_a_place_that_is_gone_makes_none;
    "a heartbeat makes a place for a hold that expired":
        QUEUE, "if beat and not place and" => "if beat and", beat::a_heartbeat_of_an_expired_hold_makes_no_place;
    "a heartbeat takes a free lock without a place":
        ACQUIRE, "place ~= '-' and" => "", beat::a_heartbeat_of_a_place_that_is_gone_makes_none;
    "a heartbeat of a place that is gone leaves the lock free":
        QUEUE, "  promote()\n  return -1" => "  return -1", beat::a_heartbeat_of_a_place_that_is_gone_passes_the_lock_on;
    "a newcomer queues and promotes no waiter":
        QUEUE, "token, more = promote(id, who, ends)" => "", queue::a_newcomer_gets_a_free_lock_past_the_dead;
    "a newcomer is not let in behind those that are served":
        PROMOTE, "if who then mine = enter(me, who, ends) end" => "",
        queue::a_newcomer_gets_a_free_lock_past_the_dead;
    "a newcomer overtakes the queue when the lock is free":
        ACQUIRE, "call('EXISTS', HOLD, QUEUE) == 0" => "call('EXISTS', HOLD) == 0", queue::a_free_lock_is_the_first_waiters;
    "a newcomer takes a lock that is held":
        ACQUIRE, "call('EXISTS', HOLD, QUEUE) == 0" => "call('EXISTS', QUEUE) == 0", acquire::a_try_never_waits;
    "a fence of another program is overwritten":
        TOKEN_USUAL, " and string.find(fence, '^v1 %d+$')" => "",
        foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a time with few microseconds is a shorter token":
        TOKEN_USUAL, "if #fraction < 6 then" => "if false then", fence::a_time_with_few_microseconds_has_all_digits;
    "a newcomer that looks at the queue overtakes it":
        PROMOTE, "while not hold do" => "if who then mine = enter(me, who, ends) end while not hold do", queue::a_free_lock_is_the_first_waiters;
    "a heartbeat promotes no waiter":
        QUEUE, "token, more = promote(id)\n" => "\n", beat::a_heartbeat_takes_a_free_lock;
    "a try promotes no waiter":
        QUEUE, "token, more = promote(id, who, ends)" => "", queue::a_try_gets_a_free_lock_past_the_dead;
    "a try leaves an expired lock to no waiter":
        QUEUE, "token, more = promote(id, who, ends)" => "", handoff::a_try_hands_an_expired_lock_over;
    "a try takes the lock from those that no script has looked at":
        PROMOTE, "then more = 1 break end\n    looked" => "then more = 1 mine = enter(me, who, ends) break end\n    looked", queue::many_dead_waiters_are_looked_at_in_pieces;
    "a try takes a place":
        QUEUE, "if not beat and not redis.pcall('ZSCORE', QUEUE, id) then return {call('PTTL', HOLD), 0, 0, hold} end" => "beat = beat or '0'", acquire::a_try_never_waits;
    "an attempt that holds is not known again":
        ACQUIRE, "string.find(hold, id, 1, true) == 1" => "false", acquire::an_attempt_sent_twice_holds_once;
    "an attempt sent twice does not renew":
        ACQUIRE, "  call('PEXPIRE', HOLD, lease)\n" => "", beat::a_heartbeat_finds_a_grant_whose_push_was_lost;
    "an id anywhere in the hold is the owner's":
        ACQUIRE, "string.find(hold, id, 1, true) == 1" => "string.find(hold, id, 1, true)",
        acquire::an_id_inside_of_the_hold_is_not_the_owner;
    "an attempt sent twice gets a new place":
        PLACE, "if not score then" => "if place ~= '-' then", acquire::an_attempt_sent_twice_waits_once;
    "a lost place is lost":
        PLACE, "if place then" => "if false then", queue::a_lost_place_comes_before_later_arrivals;
    "a place may be in the future":
        PLACE, "math.min(tonumber(place), now)" => "tonumber(place)", queue::a_place_in_the_future_is_now;
    "two arrivals in one microsecond have one score":
        PLACE, "math.max(now, (tonumber(tail[2]) or 0) + 1)" => "now",
        queue::two_arrivals_in_one_microsecond_keep_their_order;
    "the next has the score of the last":
        PLACE, "(tonumber(tail[2]) or 0) + 1" => "tonumber(tail[2]) or 0",
        queue::two_arrivals_in_one_microsecond_keep_their_order;
    "scores lose digits":
        PLACE, "call('ZADD', QUEUE, string.format('%.0f', score), id)" => "call('ZADD', QUEUE, '' .. score, id)",
        queue::two_arrivals_in_one_microsecond_keep_their_order;
    "the queue never ends":
        WAITER, "if call('PTTL', QUEUE) < tonumber(lease) then call('PEXPIRE', QUEUE, lease) end\n" => "", queue::the_queue_ends_with_its_last_waiter;
    "the waiters never end":
        WAITER, "if call('PTTL', WAITERS) < tonumber(lease) then call('PEXPIRE', WAITERS, lease) end\n" => "", queue::the_queue_ends_with_its_last_waiter;
    "the queue ends with the waiter that came last":
        WAITER, "if call('PTTL', QUEUE) < tonumber(lease) then call('PEXPIRE', QUEUE, lease) end" => "call('PEXPIRE', QUEUE, lease)",
        queue::the_queue_ends_with_its_last_waiter;
    "the queue ends with the waiter that came first":
        WAITER, "call('PTTL', QUEUE) < tonumber(lease)" => "call('PTTL', QUEUE) < 0", queue::the_queue_ends_with_its_last_waiter;
    "a waiter without a state stays in the queue for ever":
        WAITER, "if call('PTTL', QUEUE) < tonumber(lease) then call('PEXPIRE', QUEUE, lease) end\n" => "",
        foreign::waiters_of_another_type_leave_nothing_for_ever;
    "a heartbeat moves no deadline":
        PLACE, "  call('HDEL', WAITERS, id)\nend" => "  return {1, 0, score, ''}\nend",
        beat::a_heartbeat_moves_the_deadline_and_the_channel;
    "a heartbeat needs memory":
        PLACE, "  call('HDEL', WAITERS, id)\nend\n--#include waiter.lua\n" =>
        "end\ncall('HSET', WAITERS, id, ends .. ' ' .. beat .. ' ' .. who)\n",
        faults::without_memory_a_waiter_keeps_its_place;
    "a place is made before the server can refuse for want of memory":
        QUEUE, "local ends =" => "call('DEL', BROKEN) local ends =", faults::without_memory_nothing_is_acquired;

    // Hand-offs.
    "a subscriber to everything counts as the waiter":
        PROMOTE, "local count = redis.pcall('PUBSUB', 'NUMSUB', channel)" =>
        "local count = {channel, redis.call('PUBLISH', channel, 'x')}",
        handoff::a_subscriber_to_everything_keeps_no_dead_head;
    "a head without a connection is granted":
        PROMOTE, "is_there = listening[channel]" => "is_there = true", handoff::a_head_without_connection_is_skipped;
    "a waiter that polls counts as dead":
        PROMOTE, "and id ~= me and channel ~= '-' then" => "and id ~= me then", handoff::a_waiter_that_polls_is_granted;
    "a newcomer must have a channel that is heard":
        PROMOTE, "is_there and id ~= me and channel" => "is_there and channel", queue::a_newcomer_is_granted_without_a_message;
    "a newcomer is notified twice":
        PROMOTE, "    elseif token then\n" => "    end\n    if token then\n", queue::a_newcomer_is_granted_without_a_message;
    "a waiter past its deadline is granted":
        PROMOTE, "tonumber(deadline) > now_ms" => "true", handoff::a_head_past_its_deadline_is_skipped;
    "a grant lasts from its own time":
        GRANT, "'PXAT', ends)" => "'PX', '600000')", handoff::a_grant_ends_at_the_waiters_deadline;
    "a grant names no request":
        PROMOTE, "' granted ' .. beat" => "' granted ' .. 0", handoff::cancel_of_a_hold_hands_over;
    "a grant is not told":
        PROMOTE, "redis.pcall('PUBLISH', channel, message)" => "redis.pcall('PUBLISH', channel, 'nothing')",
        handoff::cancel_of_a_hold_hands_over;
    "a refused message fails the call":
        PROMOTE, "redis.pcall('PUBLISH'" => "redis.call('PUBLISH'", handoff::a_refused_message_grants;
    "a refused look at the channel fails the call":
        PROMOTE, "redis.pcall('PUBSUB'" => "redis.call('PUBSUB'", handoff::a_refused_look_at_the_channel_grants;
    "a refused look at the channel means dead":
        PROMOTE, "count.err ~= nil or count[2]" => "count.err == nil and count[2]",
        handoff::a_refused_look_at_the_channel_grants;
    "the last in the queue comes first":
        PROMOTE, "not is_held and first[1], 0" => "call('ZRANGE', QUEUE, '-1', '-1')[1], 0",
        queue::waiters_are_served_in_order;
    "one dead head ends the search":
        PROMOTE, "if looked == MOST_LOOKED_AT" => "if looked == 1", handoff::a_head_without_connection_is_skipped;
    "a call looks at all, however many they are":
        PROMOTE, "MOST_LOOKED_AT = 100" => "MOST_LOOKED_AT = 1e9", queue::many_dead_waiters_are_looked_at_in_pieces;
    "no client learns that there are more":
        PROMOTE, "if looked == MOST_LOOKED_AT then more = 1 break end" => "if looked == MOST_LOOKED_AT then break end", queue::many_dead_waiters_are_looked_at_in_pieces;
    "the state of a waiter that was granted stays":
        PROMOTE, "      call('HDEL', WAITERS, id)\n    end\n    if token" => "    end\n    if token",
        handoff::cancel_of_a_hold_hands_over;
    "a state that is none fails the call":
        PROMOTE, "= deadline and tonumber" => "= tonumber", foreign::a_waiter_by_another_program_is_skipped;
    "a place without a state fails the call":
        PROMOTE, "string.match(waiter or ''" => "string.match(waiter", foreign::a_waiter_by_another_program_is_skipped;

    // Fencing.
    "the fence knows no time":
        TOKEN_USUAL, "local token = time[1] .. fraction" => "local token = '1'", fence::tokens_rise_when_all_keys_are_deleted;
    "the fence of a hand-off knows no time":
        TOKEN, "math.max(last + 1, now)" => "last + 1", fence::tokens_rise_when_all_keys_are_deleted;
    "the fence knows no time after a flush":
        TOKEN_USUAL, "local token = time[1] .. fraction" => "local token = '1'", fence::tokens_rise_after_a_flush;
    "the fence knows no time after a restart":
        TOKEN_USUAL, "local token = time[1] .. fraction" => "local token = '1'",
        fence::tokens_rise_after_a_restart_without_data;
    "the fence knows no time after an expiry":
        ACQUIRE, "    return token\n" => "    return '1'\n", fence::tokens_rise_over_expiry;
    "a hand-off has a token of its own":
        TOKEN, "math.max(last + 1, now)" => "1e12", fence::tokens_rise_over_releases_and_hand_offs;
    "the fence is the time alone":
        TOKEN_USUAL, "#fence == #minted and fence < minted and" => "", fence::tokens_rise_when_the_clock_is_behind;
    "the fence of a hand-off is the time alone":
        TOKEN, "math.max(last + 1, now)" => "now", fence::tokens_rise_when_the_clock_is_behind;
    "the fence repeats the last":
        TOKEN, "math.max(last + 1, now)" => "math.max(last, now)", fence::tokens_rise_when_the_clock_is_behind;
    "the fence is not kept":
        PROMOTE, "if last ~= kept then" => "if false then", fence::tokens_rise_when_the_clock_is_behind;
    "the fence of a hand-off is not kept":
        PROMOTE, "if last ~= kept then" => "if false then", fence::tokens_keep_all_their_digits;
    "the fence of a hand-off is not looked at":
        TOKEN, "if not hold then last, trouble = look() end" => "", fence::tokens_rise_when_the_clock_is_behind;
    "tokens lose digits":
        GRANT, "return string.format('%.0f', number)" => "return number .. ''", fence::tokens_keep_all_their_digits;
    "the token of the message loses digits":
        PROMOTE, "beat .. ' ' .. whole(token)" => "beat .. ' ' .. token", fence::tokens_keep_all_their_digits;
    "the fence lasts for a day of the clock's time":
        PROMOTE, "whole(lasts)" => "'86400000'", fence::the_fence_outlasts_its_own_value_by_a_day;
    "the fence lasts for an hour":
        ACQUIRE, "'86400000'" => "'3600000'", fence::the_fence_outlasts_its_own_value_by_a_day;

    "the tokens that a series has used go back, too":
        RELEASE, "token + ARGV[2]" => "token", fence::what_a_series_has_not_used_goes_back;
    "a fence that is another's goes back":
        RELEASE, "redis.pcall('GET', FENCE) == 'v1 ' .. string.format('%.0f', token + more)" => "true",
        fence::what_a_series_has_not_used_goes_back;
    "the tokens of a series are given again":
        TOKEN, "last = token + (string.match(id, '%+(%d+)$') or 0)" => "last = token", fence::a_series_has_its_tokens_alone;
    "a series begins with its last token":
        TOKEN, "math.max(last + 1, now)" => "math.max(last + 1, now) + (string.match(id, '%+(%d+)$') or 0)",
        fence::a_series_has_its_tokens_alone;
    "a series has one token":
        ACQUIRE, " and not string.find(id, '+', 1, true)" => "", fence::a_series_has_its_tokens_alone;

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
        RENEW, "promote()\n" => "", handoff::renewal_of_a_lost_hold_hands_over;
    "every client releases":
        RELEASE, "hold and string.find(hold, id, 1, true) == 1" => "hold", lease::release_by_another_changes_nothing;
    "a release does not look at the whole id":
        RELEASE, "string.find(hold, id, 1, true) == 1" => "string.find(hold, id, 1, true)",
        acquire::an_id_inside_of_the_hold_is_not_the_owner;
    "a release leaves the lock free":
        RELEASE, "local _, more = promote()" => "local more = 0", handoff::a_head_without_connection_is_skipped;
    "a late release leaves the lock free":
        RELEASE, "local _, more = promote()" => "local more = 0 if is_ours then _, more = promote() end", handoff::a_release_that_is_late_hands_over;
    "a release overlooks the queue":
        RELEASE, "if not first then return 1 end" => "if true then return 1 end",
        handoff::a_head_without_connection_is_skipped;
    "a release passes over a head that is there":
        RELEASE, "'[+:/]'" => "'.'", handoff::a_release_in_the_usual_case_is_short;
    "a release gives a reader the lock alone":
        RELEASE, "not string.find(first, '[+:/]') and " => "", sharing::neighbours_that_read_enter_together;
    "a release gives a head without a connection the lock":
        RELEASE, "(redis.pcall('PUBSUB', 'NUMSUB', channel)[2] or 0) > 0" => "true",
        handoff::a_head_without_connection_is_skipped;
    "a release gives a head past its deadline the lock":
        RELEASE, "deadline * 1000 > tonumber(token)" => "true", handoff::a_head_past_its_deadline_is_skipped;
    "a release gives the lock from its own time":
        RELEASE, "'PXAT', deadline)" => "'PX', '600000')", handoff::a_grant_ends_at_the_waiters_deadline;
    "a release overlooks that the clock is behind":
        RELEASE, "is_minted and deadline" => "deadline", fence::tokens_keep_all_their_digits;
    "a release keeps no fence":
        RELEASE, "    call('SET', FENCE, minted, 'PX', '86400000')\n" => "", handoff::release_hands_over_with_a_message;
    "a release leaves the place":
        RELEASE, "    call('ZREM', QUEUE, first)\n" => "", handoff::release_hands_over_with_a_message;
    "a release leaves the state":
        RELEASE, "    call('HDEL', WAITERS, first)\n" => "", handoff::release_hands_over_with_a_message;
    "a release names no request":
        RELEASE, "' granted ' .. beat" => "' granted ' .. 0", handoff::release_hands_over_with_a_message;
    "a release tells none":
        RELEASE, "redis.pcall('PUBLISH', channel" => "redis.pcall('PUBLISH', channel .. 'x'",
        handoff::release_hands_over_with_a_message;
    "a message that is refused undoes a release":
        RELEASE, "redis.pcall('PUBLISH'" => "redis.call('PUBLISH'", handoff::a_refused_message_grants;
    "waiters of another program undo a release":
        RELEASE, "redis.pcall('HGET'" => "redis.call('HGET'",
        foreign::a_queue_or_waiters_by_another_program_undo_no_release;
    "a queue of another program undoes a release":
        RELEASE, "redis.pcall('ZRANGE'" => "redis.call('ZRANGE'",
        foreign::a_queue_or_waiters_by_another_program_undo_no_release;
    "a newcomer overtakes a waiter whose place is ahead of the clock":
        QUEUE, "if call('ZRANGE', QUEUE, '-1', '-1')[1] == id then" => "if true then",
        queue::two_arrivals_in_one_microsecond_keep_their_order;
    "a release deletes after it has written":
        RELEASE, "  call('DEL', HOLD)\n" => "  call('ZADD', BROKEN, 1, id) call('DEL', HOLD)\n",
        faults::without_memory_a_release_hands_over;
    "a broken holder learns that its hold is gone":
        LOST, "if type(redis.pcall('ZSCORE', BROKEN, id)) == 'string' then return 3 end" => "", lease::a_broken_holder_learns_why;
    "every client learns that the hold was broken":
        LOST, "type(redis.pcall('ZSCORE', BROKEN, id)) == 'string'" => "call('EXISTS', BROKEN) == 1", lease::a_broken_holder_learns_why;
    "a cancel leaves the lock free":
        CANCEL, "local _, more = promote()" => "local more = 0", handoff::cancel_of_a_hold_hands_over;
    "a cancel forgets the hold":
        CANCEL, "  call('DEL', HOLD)\n" => "", undo::cancel_of_a_hold;
    "a cancel forgets the place":
        LEAVE, "refusal(redis.pcall('ZREM', QUEUE, id))" => "nil", undo::cancel_of_a_place;
    "a cancel forgets the state":
        LEAVE, "refusal(redis.pcall('HDEL', WAITERS, id))" => "nil", undo::cancel_of_a_place;
    "a cancel ends any hold":
        CANCEL, "string.match(hold, '^%S+') == id" => "true", undo::cancel_of_nothing_changes_nothing;
    "a cancel ends a hold whose id begins so":
        CANCEL, "string.match(hold, '^%S+') == id" => "string.find(hold, id, 1, true) == 1",
        undo::cancel_of_nothing_changes_nothing;
    "a cancel passes on a lock that is held":
        CANCEL, "local refused = leave(id)" => "local refused = leave(id) hold = nil", undo::cancel_of_a_place;
    "a break ends any hold":
        BREAK, "string.match(hold, '^%S+') == id" => "true", undo::break_of_another_changes_nothing;
    "a break ends the waiters' wait":
        BREAK, "call('DEL', HOLD)" => "call('DEL', HOLD, QUEUE, WAITERS)", undo::break_keeps_the_queue;
    "a break leaves the lock free":
        BREAK, "local _, more = promote()" => "local more = 0", handoff::break_hands_over;
    "a break is not told":
        BREAK, "channel, id .. ' broken'" => "channel, id", undo::break_tells_the_holder;
    "a break leaves no mark":
        BREAK, "call('ZADD', BROKEN, whole(now_ms + ARGV[2]), id)\n" => "", lease::a_broken_holder_learns_why;
    "the mark of a break stays for ever":
        BREAK, "call('PEXPIRE', BROKEN, ARGV[2])\n" => "", lease::a_broken_holder_learns_why;
    "a break marks before it deletes":
        BREAK, "call('DEL', HOLD)" => "call('ZADD', BROKEN, 1, id) call('DEL', HOLD)",
        faults::without_memory_a_break_hands_over;

    // Sharing.
    "a reader passes a writer that waits":
        ACQUIRE_SHARED, "call('ZCOUNT', QUEUE, '100000000000000', '+inf') == 0" => "true",
        sharing::a_reader_stands_behind_a_writer_that_waits;
    "a reader is beside a writer":
        ACQUIRE_SHARED, "not hold and place" => "place", sharing::readers_are_beside_each_other;
    "a writer is beside readers":
        PROMOTE, "elseif is_held and not string" => "elseif not is_held and not string", sharing::readers_are_beside_each_other;
    "a writer enters when the first reader goes":
        RELEASE_SHARED, "  call('ZREM', QUEUE, id)\n" => "  call('DEL', QUEUE)\n", sharing::readers_are_beside_each_other;
    "a reader that asks again is another one":
        AGAIN, ", type(state) == 'string' and tonumber(string.match(state, '^(%d+) ')) or nil" => "", sharing::readers_are_beside_each_other;
    "a reader's token does not rise":
        ACQUIRE_SHARED, "    call('SET', FENCE, minted, 'PX', '86400000')\n    call('HSET', WAITERS, id, token" =>
        "    call('HSET', WAITERS, id, 7", sharing::readers_are_beside_each_other;
    "readers enter one by one":
        PROMOTE, "    id = nil\n  end" => "    break\n  end", sharing::neighbours_that_read_enter_together;
    "readers pass the writer at the head":
        PROMOTE, "if is_there and not token then break end" => "", sharing::neighbours_that_read_enter_together;
    "each reader has a message of its own":
        PROMOTE, "messages[channel] = (messages[channel] or '') .." => "tell(channel, '') messages[channel] =",
        sharing::neighbours_that_read_enter_together;
    "the silent are not removed":
        PROMOTE, "tonumber(first[2]) <= now_ms then" => "false then", sharing::a_reader_that_is_silent_is_gone;
    "a waiter is told of the last end":
        QUEUE, "QUEUE, '(' .. now_ms, ARRIVALS, 'BYSCORE', 'LIMIT', '0', '1'," => "QUEUE, '0', '0',",
        permits::the_head_takes_all_or_nothing;
    "the readers end with the one that came last":
        ACQUIRE_SHARED, "if call('PTTL', QUEUE) < tonumber(lease) then call('PEXPIRE', QUEUE, lease) end" =>
        "call('PEXPIRE', QUEUE, lease)", permits::the_permits_of_the_silent_come_back;
    "a late renewal or heartbeat revives a reader":
        AGAIN, "score <= now_ms or " => "", sharing::a_late_renewal_of_a_reader_does_not_revive;
    "a renewal extends no key":
        AGAIN, "  call('PEXPIRE', QUEUE, math.max(call('PTTL', QUEUE), tonumber(lease)))\n" => "",
        sharing::renewals_extend_the_leases_of_readers;
    "a renewal extends no lease":
        AGAIN, "  call('ZADD', QUEUE, whole(now_ms + lease), id)\n" => "", sharing::renewals_extend_the_leases_of_readers;
    "a cancel under shared holds lets none in":
        CANCEL, "local _, more = promote()" => "local more = 0", sharing::a_writer_that_gives_up_lets_those_behind_it_in;
    "a renewal lets none in":
        RENEW, "promote()\n" => "", sharing::a_silent_writer_at_the_head_stops_none;
    "a heartbeat under shared holds lets none in":
        QUEUE, "if not is_new and not hold then" => "if false then", sharing::a_silent_writer_at_the_head_stops_none;
    "a release of nothing lets none in":
        RELEASE_SHARED, "local _, more = promote()" => "local more = 0", sharing::a_silent_writer_at_the_head_stops_none;
    "a reader that asks again lets none in":
        QUEUE, "    promote()\n    return whole(token)" => "    return whole(token)", sharing::a_silent_writer_at_the_head_stops_none;
    "a waiter is not told of the head's deadline":
        QUEUE, "if rank > 0 then" => "if false then", sharing::a_silent_writer_at_the_head_stops_none;
    "a silent head is looked at only if it fits":
        PROMOTE, "if is_there and not token then break end" => "if not token then break end",
        sharing::a_silent_writer_at_the_head_stops_none;
    "a downgrade lets none in":
        DOWNGRADE, "local _, more = promote()" => "local more = 0", sharing::a_writer_goes_on_reading;
    "a downgrade leaves the writer":
        DOWNGRADE, "  call('DEL', HOLD)\n" => "", sharing::a_writer_goes_on_reading;
    "any writer's hold is made a shared one":
        DOWNGRADE, "hold and string.find(hold, held, 1, true) == 1" => "hold", sharing::a_writer_goes_on_reading;
    "a downgrade that is sent twice is lost":
        DOWNGRADE, "if token then return {token, 0} end\n" => "", sharing::a_writer_goes_on_reading;
    "a downgrade does not look at the fence":
        DOWNGRADE, "  last, trouble = look()\n" => "", sharing::a_writer_goes_on_reading;
    "a break of a reader ends them all":
        BREAK, "  leave(id)\n" => "  call('DEL', QUEUE)\n", sharing::one_reader_is_broken_and_the_others_stay;
    "a break of a waiter":
        BREAK, " and ends < FIRST_ARRIVAL" => "", sharing::one_reader_is_broken_and_the_others_stay;
    "only the last break is remembered":
        BREAK, "call('ZADD', BROKEN, " => "call('DEL', BROKEN) call('ZADD', BROKEN, ",
        sharing::one_reader_is_broken_and_the_others_stay;
    "inspect shows no readers":
        INSPECT, "(state or not waits)" => "waits", sharing::inspect_shows_who_shares;
    "inspect shows the exclusive lease only":
        INSPECT, "remaining = math.max(remaining, ends - now_ms)" => "remaining = remaining", sharing::inspect_shows_who_shares;
    "readers are counted":
        TOKEN, "local kept = last\n" => "local kept = last\nfor _, one in ipairs(call('ZRANGE', QUEUE, '0', '-1')) do call('ZSCORE', QUEUE, one) end\n",
        sharing::no_script_walks_the_readers;
    "a renewal of readers needs memory":
        AGAIN, "  call('PEXPIRE', QUEUE, math.max(call('PTTL', QUEUE), tonumber(lease)))\n" => "",
        sharing::without_memory_readers_go_on;
    "a newer hold is anybody's":
        GRANT, "if not layout or layout == '1' then" => "if true then", sharing::a_newer_layout_is_refused;
    "a newer hold is waited for":
        QUEUE, " and string.match(hold, '^%S+ v(%d+) ') == '1' then" => " then", sharing::a_newer_layout_is_refused;
    "a newer fence is another program's":
        TOKEN, "other_layout(FENCE, text, '^v(%d+) ')" => "nil", sharing::a_newer_layout_is_refused;
    "a layout is compared by its first digit":
        GRANT, "layout == '1'" => "string.sub(layout, 1, 1) == '1'", sharing::a_newer_layout_is_refused;

    // Permits.
    "each takes one permit":
        ACQUIRE_SHARED, "call('ZINCRBY', QUEUE, take," => "call('ZINCRBY', QUEUE, 1,", permits::no_more_are_taken_than_there_are;
    "each waiter takes one permit":
        GRANT, "call('ZINCRBY', QUEUE, take," => "call('ZINCRBY', QUEUE, 1,", permits::the_permits_of_the_silent_come_back;
    "a waiter's permits are not counted with others'":
        PROMOTE, "taken + take > tonumber(of)" => "taken >= tonumber(of)", permits::the_head_takes_all_or_nothing;
    "a newcomer's permits are not counted with others'":
        ACQUIRE_SHARED, "first[2] + take <= tonumber(of)" => "tonumber(first[2]) < tonumber(of)",
        permits::no_more_are_taken_than_there_are;
    "permits are not given back":
        RELEASE_SHARED, "if take and" => "if false and", permits::no_more_are_taken_than_there_are;
    "a cancel gives no permits back":
        LEAVE, "then give_back(id) end" => "then end", permits::no_more_are_taken_than_there_are;
    "a place gives permits back":
        LEAVE, " and tonumber(score) < FIRST_ARRIVAL" => "", permits::a_large_one_that_gives_up_lets_the_small_in;
    "the permits of the silent are gone":
        PROMOTE, "        give_back(id)\n" => "", permits::the_permits_of_the_silent_come_back;
    "a release of a waiter ends its wait":
        RELEASE_SHARED, "score and tonumber(score) < 100000000000000" => "score", permits::the_head_takes_all_or_nothing;
    "a waiter is renewed":
        AGAIN, " or score >= FIRST_ARRIVAL" => "", permits::the_head_takes_all_or_nothing;
    "another number is accepted":
        QUEUE, "if is ~= of and more == 0 then" => "if false then", permits::another_number_is_reported;
    "another number is let in":
        ACQUIRE_SHARED, "first[1] == '/' .. of and " => "", permits::another_number_is_reported;
    "a number stays for ever":
        PROMOTE, "<= 0 then call('ZREM', QUEUE, '/' .. of) end" => "<= 0 then end", permits::another_number_is_reported;

    // Keys of other programs.
    "a fence of another type is not named":
        TOKEN_USUAL, "redis.pcall('GET', FENCE)" => "call('GET', FENCE)", foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a fence that is no number is overwritten":
        TOKEN_USUAL, "#fence == #minted and fence < minted and string.find(fence, '^v1 %d+$')" => "true", foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a fence that is no number is not named":
        TOKEN, "if token and token < 9007199254740991" => "if true",
        foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a fence that begins with a number is overwritten":
        TOKEN_USUAL, "'^v1 %d+$'" => "'^v1 %d+'", foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a fence that only begins with a number is overwritten":
        TOKEN, "'^v1 (%d+)$'" => "'^v1 (%d+)'", foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a token that Lua cannot count on from is another program's neither":
        TOKEN, "token and token < 9007199254740991" => "token",
        foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "the last token that Lua can count on from is repeated":
        TOKEN, "9007199254740991" => "9007199254740992",
        foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a hold is left where there is no fence":
        ACQUIRE, "if is_minted then" => "call('SET', HOLD, id, 'PX', lease) if is_minted then", foreign::a_fence_by_another_program_is_an_error_before_any_write;
    "a fence of another program makes a release an error":
        TOKEN, "last, trouble = look() end" => "last, trouble = call('HKEYS', FENCE), nil end",
        foreign::a_fence_by_another_program_undoes_no_release;
    "a fence of another program costs a waiter its place":
        PROMOTE, "if hold or trouble then" => "if hold then", foreign::a_fence_by_another_program_undoes_no_release;
    "a waiter is not told of a fence of another program":
        QUEUE, "redis.pcall('GET', HOLD)) or trouble" => "redis.pcall('GET', HOLD))",
        foreign::a_fence_by_another_program_undoes_no_release;
    "a queue of another program makes a release an error":
        PROMOTE, "local first = redis.pcall" => "local first = redis.call",
        foreign::a_queue_or_waiters_by_another_program_undo_no_release;
    "waiters of another program make a release an error":
        PROMOTE, "local waiter = redis.pcall" => "local waiter = redis.call",
        foreign::a_queue_or_waiters_by_another_program_undo_no_release;
    "a queue of another program makes a cancel an error":
        LEAVE, "redis.pcall('ZREM'" => "redis.call('ZREM'", foreign::a_queue_or_waiters_by_another_program_undo_no_release;
    "waiters of another program make a cancel an error":
        LEAVE, "redis.pcall('HDEL'" => "redis.call('HDEL'", foreign::a_queue_or_waiters_by_another_program_undo_no_release;
    "a cancel that a replica refuses is none":
        CANCEL, "if refused then return refused end\n" => "", faults::a_replica_refuses;
    "a waiter loses its place for a hold of another type":
        QUEUE, "error_of(HOLD, redis.pcall('GET', HOLD)) or trouble" => "trouble",
        foreign::a_hold_of_another_type_ends_nothing;
    "a hold of another type is not named":
        QUEUE, "error_of(HOLD, redis.pcall('GET', HOLD)) or trouble" => "call('GET', HOLD)", foreign::a_hold_of_another_type_ends_nothing;
    "the mark of another program is overwritten":
        BREAK, "if foreign then return foreign end\n" => "", foreign::a_mark_by_another_program_is_left_as_it_is;
    "the mark of another program makes a renewal an error":
        LOST, "redis.pcall('ZSCORE', BROKEN, id)" => "redis.call('ZSCORE', BROKEN, id)",
        foreign::a_mark_by_another_program_is_left_as_it_is;
    "a mark of another program is not looked for":
        BREAK, "error_of(BROKEN, redis.pcall('ZSCORE', BROKEN, ''))" => "nil", foreign::a_mark_by_another_program_is_left_as_it_is;

    // Inspection and keys.
    "inspect passes the lock on":
        INSPECT, "local MOST_AT_ONCE = 500" => "local MOST_AT_ONCE = 500 call('ZREM', QUEUE, 'a')",
        inspect::it_changes_nothing;
    "inspect writes on a replica":
        INSPECT, "local MOST_AT_ONCE = 500" => "local MOST_AT_ONCE = 500 call('PEXPIRE', HOLD, 1000)",
        faults::a_replica_refuses;
    "inspect shows the expired":
        INSPECT, "ends > now_ms and " => "", inspect::it_leaves_the_expired_out;
    "inspect stops after the first group":
        INSPECT, "for first = 1, #ids," => "for first = 1, math.min(#ids, 1),", inspect::it_shows_a_long_queue;
    "inspect reads all states at once":
        INSPECT, "MOST_AT_ONCE = 500" => "MOST_AT_ONCE = 1e9", inspect::it_shows_a_very_long_queue;
    "inspect sorts by name":
        INSPECT, "call('ZRANGE', QUEUE, 0, -1, 'WITHSCORES')" =>
        "(function() local all = call('HKEYS', WAITERS) table.sort(all) local both = {} \
          for _, id in ipairs(all) do both[#both + 1] = id both[#both + 1] = call('ZSCORE', QUEUE, id) end return both end)()",
        inspect::it_shows_the_queue_in_order;
    "a key that is not declared":
        PROMOTE, "call('SET', FENCE, " => "call('SET', FENCE .. 'x', ", keys::every_key_is_declared;
    "a key on another node":
        PROMOTE, "call('SET', FENCE, " => "call('SET', 'fence', ", keys::one_node_of_a_cluster_has_them_all;
    "a hold does not say since when":
        ACQUIRE, "' ' .. token .. ' ' .. who" => "' 0 ' .. who", acquire::a_hold_says_who_and_since_when;
    "a waiter holds as another client":
        PROMOTE, "enter(id, its, deadline)" => "enter(id, channel .. ' ' .. id, deadline)", inspect::it_shows_who_was_granted;
    "the lock is given for ever":
        ACQUIRE, "' ' .. who, 'PX', lease)" => "' ' .. who)", acquire::a_free_lock_is_granted_in_one_call;
    "a hold by another program is none":
        ACQUIRE, "call('EXISTS', HOLD, QUEUE) == 0" =>
        "(call('EXISTS', HOLD, QUEUE) == 0 or not string.match(call('GET', HOLD) or 'a v1 1 ', '^%S+ v1 %d+ '))",
        foreign::a_hold_by_another_program_is_respected;
}
