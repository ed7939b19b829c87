//! Cancel and break.
use crate::failure::{Outcome, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{Acquired, Stage, beats, tries, waits};

pub(crate) fn cancel_of_nothing_changes_nothing(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    same("cancel at a free lock", &stage.cancel("a")?, &0)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("b"))?;
    let before = stage.hold()?;
    same("cancel at a held lock", &stage.cancel("a")?, &0)?;
    same("cancel of the beginning of an id", &stage.cancel("hold")?, &0)?;
    same("the hold", &stage.hold()?, &before)?;
    same("the queue", &stage.queue()?, &vec!["b".to_owned()])
}

pub(crate) fn cancel_of_a_place(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a"))?;
    stage.must_wait(&waits("b"))?;
    for _ in 0..2 {
        same("cancel", &stage.cancel("a")?, &0)?;
        same("the queue", &stage.queue()?, &vec!["b".to_owned()])?;
        same("the waiters", &stage.states()?, &vec!["b".to_owned()])?;
        same("the holder", &stage.holder()?, &Some("holder".to_owned()))?;
    }
    same("a heartbeat", &stage.acquire(&beats("a"))?, &Acquired::Gone)
}

pub(crate) fn cancel_of_a_hold(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("a"))?;
    for _ in 0..2 {
        same("cancel", &stage.cancel("a")?, &0)?;
        same("the holder", &stage.holder()?, &None)?;
    }
    Ok(())
}

pub(crate) fn break_of_another_changes_nothing(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    same("break at a free lock", &stage.break_holder("a")?, &(0, 0))?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a"))?;
    let before = stage.hold()?;
    for id in ["a", "nobody"] {
        same("break", &stage.break_holder(id)?, &(0, 0))?;
        same("the hold", &stage.hold()?, &before)?;
        same("the queue", &stage.queue()?, &vec!["a".to_owned()])?;
        same("the waiters", &stage.states()?, &vec!["a".to_owned()])?;
    }
    same("the holder's renewal", &stage.renew("holder", 1000)?, &1)
}

pub(crate) fn break_tells_the_holder(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let channel = stage.channel("holder");
    let mut listener = stage.listen(&channel)?;
    stage.must_get(&tries("holder").on(&channel))?;
    same("break", &stage.break_holder("holder")?, &(1, 0))?;
    same("the message", &listener.next()?, &"holder broken".to_owned())?;
    same("the holder", &stage.holder()?, &None)?;
    same("break again", &stage.break_holder("holder")?, &(0, 0))
}

pub(crate) fn break_keeps_the_queue(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    for id in ["c", "b", "a"] {
        stage.must_wait(&waits(id))?;
    }
    stage.break_holder("holder")?;
    same("the holder", &stage.holder()?, &Some("c".to_owned()))?;
    same("the queue", &stage.queue()?.join(" "), &"b a".to_owned())?;
    same("the waiters", &stage.states()?.join(" "), &"a b".to_owned())
}
