//! Permits of a semaphore.
use crate::failure::{Outcome, failure, holds, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{Acquired, LONG, Stage, beats, tries, waits};

fn is_refused(stage: &mut Stage<'_>, id: &str) -> Outcome {
    match stage.acquire(&tries(id))? {
        Acquired::Waits { remaining: 1.., .. } => Ok(()),
        other => Err(failure(format!("{id}: {other:?}"))),
    }
}

pub(crate) fn no_more_are_taken_than_there_are(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let first = stage.must_get(&tries("a:2/5"))?;
    let second = stage.must_get(&waits("b:3/5"))?;
    holds("the tokens rise", first < second)?;
    is_refused(&mut stage, "c:1/5")?;
    same("the token when asked again", &stage.must_get(&tries("a:2/5"))?, &first)?;
    same("release", &stage.release("a:2/5")?, &(1, 0))?;
    same("release again", &stage.release("a:2/5")?, &(0, 0))?;
    is_refused(&mut stage, "c:3/5")?;
    for id in ["c:1/5", "d:1/5"] {
        stage.must_get(&tries(id))?;
    }
    is_refused(&mut stage, "e:1/5")?;
    same("cancel", &stage.cancel("d:1/5")?, &0)?;
    stage.must_get(&waits("e:1/5"))?;
    for id in ["b:3/5", "c:1/5", "e:1/5"] {
        same("release", &stage.release(id)?, &(1, 0))?;
    }
    same("the queue", &stage.queue()?, &vec![])?;
    same("the waiters", &stage.states()?, &vec![])
}

pub(crate) fn the_head_takes_all_or_nothing(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    for id in ["a:1/3", "b:1/3"] {
        stage.must_get(&tries(id))?;
    }
    stage.must_wait(&waits("large:3/3"))?;
    for id in ["c:1/3", "d:2/3", "e:1/3"] {
        is_refused(&mut stage, id)?;
        stage.must_wait(&waits(id))?;
    }
    stage.release("a:1/3")?;
    same("the queue", &stage.queue()?.join(" "), &"/3 b:1/3 large:3/3 c:1/3 d:2/3 e:1/3".to_owned())?;
    stage.release("b:1/3")?;
    same("the queue", &stage.queue()?.join(" "), &"/3 large:3/3 c:1/3 d:2/3 e:1/3".to_owned())?;
    same("renewal", &stage.renew("large:3/3", LONG)?, &1)?;
    same("renewal of a waiter", &stage.renew("c:1/3", LONG)?, &0)?;
    same("release of a waiter", &stage.release("c:1/3")?, &(0, 0))?;
    stage.release("large:3/3")?;
    same("renewals", &stage.renew_all(&["c:1/3", "d:2/3", "e:1/3"], LONG)?, &vec![1, 1, 0])
}

pub(crate) fn a_large_one_that_gives_up_lets_the_small_in(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("a:2/3"))?;
    stage.must_wait(&waits("b:2/3"))?;
    stage.must_wait(&waits("c:1/3"))?;
    same("cancel", &stage.cancel("b:2/3")?, &0)?;
    same("renewal", &stage.renew("c:1/3", LONG)?, &1)?;
    is_refused(&mut stage, "d:1/3")
}

pub(crate) fn the_permits_of_the_silent_come_back(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("keeper:1/4"))?;
    stage.must_get(&tries("a:2/4").lease(20))?;
    stage.must_get(&tries("b:1/4").lease(20))?;
    stage.pass_milliseconds(30)?;
    stage.must_get(&waits("c:3/4"))?;
    is_refused(&mut stage, "d:1/4")?;
    same("renewals", &stage.renew_all(&["a:2/4", "b:1/4", "keeper:1/4"], LONG)?, &vec![0, 0, 1])?;
    same("break", &stage.break_holder("c:3/4")?, &(1, 0))?;
    stage.must_get(&waits("d:3/4"))?;
    is_refused(&mut stage, "e:1/4")
}

/// The number lives as long as there is a holder or a waiter.
pub(crate) fn another_number_is_reported(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("a:1/3"))?;
    for request in [tries("b:1/5"), waits("b:1/5"), tries("b:1/2"), waits("b:2/2")] {
        same("the answer", &stage.acquire(&request)?, &Acquired::OtherPermits(3))?;
    }
    same("the queue", &stage.queue()?.join(" "), &"/3 a:1/3".to_owned())?;
    stage.release("a:1/3")?;
    stage.must_get(&tries("b:5/5"))?;
    same("the answer", &stage.acquire(&waits("a:1/3"))?, &Acquired::OtherPermits(5))?;
    stage.release("b:5/5")?;

    // Those that are gone have no number any more.
    stage.must_get(&waits("c:1/3"))?;
    stage.must_wait(&waits("d:3/3"))?;
    stage.expire_reader("c:1/3")?;
    stage.expire_waiter("d:3/3")?;
    stage.must_get(&waits("e:2/2"))?;
    same("a heartbeat", &stage.acquire(&beats("d:3/3"))?, &Acquired::Gone)
}
