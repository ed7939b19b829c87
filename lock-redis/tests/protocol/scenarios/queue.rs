//! The order of the waiters.
use crate::failure::{Failure, Outcome, failure, holds, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{Acquired, LONG, Stage, beats, tries, waits};

const HOUR_US: i64 = 3_600_000_000;

/// Twice as many waiters as one call checks, and some more.
const MANY: usize = 250;

pub(crate) fn waiters_are_served_in_order(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    // Not in alphabetical order.
    let ids = ["m", "z", "a", "q", "b"];
    for (rank, id) in (0_i64..).zip(ids) {
        let answer = stage.acquire(&waits(id))?;
        holds("the rank counts up", matches!(answer, Acquired::Waits { rank: found, .. } if found == rank))?;
    }
    let mut before = "holder";
    for id in ids {
        same("release", &stage.release(before)?, &(1, 0))?;
        same("the next", &stage.holder()?, &Some(id.to_owned()))?;
        before = id;
    }
    Ok(())
}

/// A clock that stands still is like one that has stepped back: the first waiter's score is not below the time of the others.
pub(crate) fn two_arrivals_in_one_microsecond_keep_their_order(
    scripts: &Scripts,
    server: &Server,
) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    let score = stage.must_wait(&waits("z"))? + HOUR_US;
    let queue = stage.key("q");
    let _: i64 = stage.ask(&["ZADD", &queue, &score.to_string(), "z"])?;
    same("the second's score", &stage.must_wait(&waits("b"))?, &(score + 1))?;
    same("the third's score", &stage.must_wait(&waits("a"))?, &(score + 2))?;
    same("the queue", &stage.queue()?.join(" "), &"z b a".to_owned())
}

pub(crate) fn a_lost_place_comes_before_later_arrivals(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    let place = stage.must_wait(&waits("z"))?;
    stage.must_wait(&waits("b"))?;
    stage.cancel("z")?;
    same("the score", &stage.must_wait(&waits("y").place(place))?, &place)?;
    same("the queue", &stage.queue()?.join(" "), &"y b".to_owned())
}

pub(crate) fn a_place_in_the_future_is_now(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    let now = stage.server_time()?.cast_signed();
    let score = stage.must_wait(&waits("a").place(now + HOUR_US))?;
    let after = stage.server_time()?.cast_signed();
    holds("the score is the time of the arrival", now <= score && score <= after)?;
    // It does not send later waiters into the future either.
    let later = stage.must_wait(&waits("b"))?;
    let after = stage.server_time()?.cast_signed();
    holds("the next comes now too", score < later && later <= after.max(score + 1))
}

pub(crate) fn a_free_lock_is_the_first_waiters(scripts: &Scripts, server: &Server) -> Outcome {
    for late in [waits("late"), tries("late"), beats("second")] {
        let mut stage = Stage::new(scripts, server)?;
        stage.must_get(&tries("holder"))?;
        stage.must_wait(&waits("first"))?;
        stage.must_wait(&waits("second"))?;
        stage.expire_hold()?;
        let answer = stage.acquire(&late)?;
        holds("the late one does not get it", matches!(answer, Acquired::Waits { remaining: 1.., .. }))?;
        same("the holder", &stage.holder()?, &Some("first".to_owned()))?;
    }
    Ok(())
}

/// A free lock whose queue contains only dead waiters.
fn with_dead_waiters<'a>(
    scripts: &'a Scripts,
    server: &'a Server,
    count: usize,
) -> Result<Stage<'a>, Failure> {
    let mut stage = Stage::new(scripts, server)?;
    let nobody = stage.channel("nobody");
    stage.must_get(&tries("holder"))?;
    for number in 0..count {
        stage.must_wait(&waits(&format!("dead-{number}")).on(&nobody))?;
    }
    let hold = stage.key("l");
    let _: i64 = stage.ask(&["DEL", &hold])?;
    Ok(stage)
}

pub(crate) fn a_newcomer_gets_a_free_lock_past_the_dead(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = with_dead_waiters(scripts, server, 3)?;
    stage.must_get(&waits("new"))?;
    same("the holder", &stage.holder()?, &Some("new".to_owned()))?;
    same("the queue", &stage.queue()?, &vec![])?;
    same("the waiters", &stage.states()?, &vec![])
}

pub(crate) fn a_try_gets_a_free_lock_past_the_dead(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = with_dead_waiters(scripts, server, 3)?;
    stage.must_get(&tries("new"))?;
    same("the queue", &stage.queue()?, &vec![])
}

/// The answer is the grant: a message beside it would count as another one. The newcomer needs no channel either.
pub(crate) fn a_newcomer_is_granted_without_a_message(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = with_dead_waiters(scripts, server, 1)?;
    let channel = stage.channel("new");
    let mut listener = stage.listen(&channel)?;
    stage.must_get(&waits("new").on(&channel))?;
    let _: i64 = stage.ask(&["PUBLISH", &channel, "the end"])?;
    same("the first message", &listener.next()?, &"the end".to_owned())?;

    let mut stage = with_dead_waiters(scripts, server, 1)?;
    let unheard = stage.channel("unheard");
    stage.must_get(&waits("new").on(&unheard))?;

    // The same for one that has a place.
    for channel in [&channel, &unheard] {
        let mut stage = Stage::new(scripts, server)?;
        stage.must_get(&tries("holder"))?;
        stage.must_wait(&waits("a").on(channel))?;
        stage.expire_hold()?;
        stage.must_get(&beats("a").on(channel))?;
    }
    let _: i64 = stage.ask(&["PUBLISH", &channel, "the end"])?;
    same("the next message", &listener.next()?, &"the end".to_owned())
}

pub(crate) fn many_dead_waiters_are_looked_at_in_pieces(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = with_dead_waiters(scripts, server, MANY)?;
    let answer = stage.acquire(&tries("new"))?;
    same("a try", &answer, &Acquired::Waits { remaining: -2, rank: 0, score: 0 })?;
    same("what is left", &stage.queue()?.len(), &(MANY - 100))?;
    let Acquired::Waits { remaining: -2, rank: 50, .. } = stage.acquire(&waits("new"))? else {
        return Err(failure("the newcomer is not behind those that no script has looked at"));
    };
    stage.must_get(&beats("new"))?;

    let mut stage = with_dead_waiters(scripts, server, MANY)?;
    same("a late release", &stage.release("holder")?, &(0, 1))?;
    same("cancel", &stage.cancel("nobody")?, &1)?;
    same("cancel again", &stage.cancel("nobody")?, &0)?;
    same("what is left", &stage.queue()?, &vec![])?;

    let mut stage = with_dead_waiters(scripts, server, MANY)?;
    let hold = stage.key("l");
    let _: String = stage.ask(&["SET", &hold, "b v1 1 1 - x"])?;
    same("break", &stage.break_holder("b")?, &(1, 1))?;
    let _: String = stage.ask(&["SET", &hold, "c v1 1 1 - x"])?;
    same("release", &stage.release("c")?, &(1, 1))
}

pub(crate) fn the_queue_ends_with_its_last_waiter(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    let long = (LONG / 2).cast_signed();
    for (id, lease) in [("b", LONG / 2), ("a", 2000), ("c", 1000)] {
        stage.must_wait(&waits(id).lease(lease))?;
    }
    stage.must_wait(&beats("a").lease(1000))?;
    for suffix in ["q", "w"] {
        let lifetime = stage.lifetime(suffix)?;
        holds("the key lives as long as the longest lease", long - 60_000 < lifetime && lifetime <= long)?;
    }
    // A heartbeat extends the lifetime of both.
    stage.must_wait(&beats("b").lease(LONG))?;
    for suffix in ["q", "w"] {
        holds("a heartbeat prolongs the key", stage.lifetime(suffix)? > long)?;
    }
    Ok(())
}
