//! Taking the lock once or twice, and trying without waiting.
use crate::failure::{Outcome, failure, holds, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{Acquired, HOLDER, LONG, Stage, tries, waits};

pub(crate) fn a_free_lock_is_granted_in_one_call(scripts: &Scripts, server: &Server) -> Outcome {
    for request in [tries("a"), waits("a")] {
        let mut stage = Stage::new(scripts, server)?;
        stage.must_get(&request)?;
        same("the holder", &stage.holder()?, &Some("a".to_owned()))?;
        let remaining = stage.remaining()?;
        holds("the lease is the one asked for", 0 < remaining && remaining <= LONG.cast_signed())?;
        same("what is left in the queue", &stage.queue()?, &vec![])?;
        same("what is left of the waiters", &stage.states()?, &vec![])?;
    }
    Ok(())
}

pub(crate) fn an_attempt_sent_twice_holds_once(scripts: &Scripts, server: &Server) -> Outcome {
    for again in ["try", "wait", "beat"] {
        let mut stage = Stage::new(scripts, server)?;
        let first = stage.must_get(&tries("a").lease(LONG / 2))?;
        let mut second = tries("a");
        second.intent = again;
        same("the token of the second", &stage.must_get(&second)?, &first)?;
        holds("the second renews", stage.remaining()? > (LONG / 2).cast_signed())?;
        same("the queue", &stage.queue()?, &vec![])?;
        same("one release", &stage.release("a")?, &(1, 0))?;
        same("and it is free", &stage.holder()?, &None)?;
    }
    Ok(())
}

pub(crate) fn an_attempt_sent_twice_waits_once(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    let first = stage.must_wait(&waits("a"))?;
    stage.must_wait(&waits("b"))?;
    let Acquired::Waits { remaining, rank, score } = stage.acquire(&waits("a"))? else {
        return Err(failure("the second does not wait"));
    };
    same("the rank and score of the second", &(rank, score), &(0, first))?;
    holds("it tells the holder's lease", 0 < remaining && remaining <= LONG.cast_signed())?;
    same("the queue", &stage.queue()?, &vec!["a".to_owned(), "b".to_owned()])
}

pub(crate) fn a_try_never_waits(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    let answer = stage.acquire(&tries("a"))?;
    holds("it does not get it", matches!(answer, Acquired::Waits { remaining: 1.., rank: 0, score: 0 }))?;
    same("the queue", &stage.queue()?, &vec![])?;
    same("the waiters", &stage.states()?, &vec![])
}

pub(crate) fn a_hold_says_who_and_since_when(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let before = stage.server_time()?;
    let token = stage.must_get(&waits("a").on("channel"))?;
    let after = stage.server_time()?;
    let hold = stage.hold()?.unwrap_or_default();
    let parts: Vec<&str> = hold.splitn(6, ' ').collect();
    same("who", &parts[..3], &["a", "v1", &token.to_string()][..])?;
    let since: u64 = parts[3].parse()?;
    holds("since when, in microseconds", before <= since && since <= after)?;
    same("where and who", &parts[4..], &["channel", HOLDER][..])
}

/// All ids have the same length; the text that the script compares one with contains more than an id.
pub(crate) fn an_id_inside_of_the_hold_is_not_the_owner(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("abc").on("distlock:c:def:1"))?;
    for other in ["def", "bc ", "a b"] {
        holds("it does not hold", matches!(stage.acquire(&tries(other))?, Acquired::Waits { .. }))?;
        same("its renewal", &stage.renew(other, 1)?, &2)?;
        same("its release", &stage.release(other)?, &(2, 0))?;
        same("its break", &stage.break_holder(other)?, &(0, 0))?;
        stage.cancel(other)?;
    }
    same("the holder", &stage.holder()?, &Some("abc".to_owned()))
}
