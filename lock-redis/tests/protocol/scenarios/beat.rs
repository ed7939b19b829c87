//! Heartbeats of waiters.
use crate::failure::{Outcome, failure, holds, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{Acquired, LONG, Stage, beats, tries, waits};

pub(crate) fn a_heartbeat_of_a_place_that_is_gone_makes_none(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    for held in [true, false] {
        if held {
            stage.must_get(&tries("holder"))?;
        } else {
            stage.release("holder")?;
        }
        same("the answer", &stage.acquire(&beats("a"))?, &Acquired::Gone)?;
        same("the queue", &stage.queue()?, &vec![])?;
        same("the waiters", &stage.states()?, &vec![])?;
    }
    same("the holder", &stage.holder()?, &None)
}

/// The owner never read its grant, and the lease is over. It must not come back as a waiter with a fresh deadline, because a
/// message that it then finds refers to the hold that is over.
pub(crate) fn a_heartbeat_of_an_expired_hold_makes_no_place(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a"))?;
    stage.release("holder")?;
    stage.expire_hold()?;
    stage.must_get(&tries("b"))?;
    same("the answer", &stage.acquire(&beats("a"))?, &Acquired::Gone)?;
    same("the queue", &stage.queue()?, &vec![])
}

pub(crate) fn a_heartbeat_takes_a_free_lock(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a"))?;
    stage.expire_hold()?;
    stage.must_get(&beats("a"))?;
    same("the holder", &stage.holder()?, &Some("a".to_owned()))?;
    same("the queue", &stage.queue()?, &vec![])
}

pub(crate) fn a_heartbeat_of_a_place_that_is_gone_passes_the_lock_on(
    scripts: &Scripts,
    server: &Server,
) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a"))?;
    stage.expire_hold()?;
    same("the answer", &stage.acquire(&beats("b"))?, &Acquired::Gone)?;
    same("the holder", &stage.holder()?, &Some("a".to_owned()))
}

pub(crate) fn a_heartbeat_finds_a_grant_whose_push_was_lost(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let first = stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a").lease(LONG / 2))?;
    stage.release("holder")?;
    let token = stage.must_get(&beats("a").beat(2))?;
    holds("its token is the grant's", token > first && stage.must_get(&beats("a").beat(3))? == token)?;
    holds("it renews", stage.remaining()? > (LONG / 2).cast_signed())
}

pub(crate) fn a_heartbeat_moves_the_deadline_and_the_channel(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let (old, new) = (stage.channel("old"), stage.channel("new"));
    let mut listener = stage.listen(&new)?;
    stage.must_get(&tries("holder"))?;
    // Keeps the queue in existence, however long the next steps take.
    stage.must_wait(&waits("keeper"))?;
    let place = stage.must_wait(&waits("a").on(&old).lease(200))?;
    let kept = stage.must_wait(&beats("a").on(&new).beat(7))?;
    same("the score", &kept, &place)?;
    stage.pass_milliseconds(250)?;
    stage.cancel("keeper")?;
    stage.release("holder")?;
    same("the holder", &stage.holder()?, &Some("a".to_owned()))?;
    let message = listener.next()?;
    if !message.starts_with("a granted 7 ") {
        return Err(failure(format!("the message is {message}")));
    }
    holds("the lease is the heartbeat's", stage.remaining()? > 200)
}
