//! What `inspect` shows an operator.
use redis::Value;

use crate::failure::{Failure, Outcome, failure, holds, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{HOLDER, LONG, Stage, tries, waits};

/// More waiters than `inspect` reads the states of at once.
const MANY: usize = 1_100;

/// More arguments than Lua passes to one call.
const MORE_THAN_LUA_TAKES: usize = 8_500;

#[derive(Debug, PartialEq)]
struct Shown {
    hold: String,
    remaining: i64,
    /// The id, score and state of each waiter.
    waiters: Vec<[String; 3]>,
}

fn show(stage: &mut Stage<'_>) -> Result<Shown, Failure> {
    let mut values = stage.inspect()?.into_iter();
    let mut next = || values.next().ok_or_else(|| failure("inspect answers too little"));
    let (hold, remaining) = (redis::from_redis_value(next()?)?, redis::from_redis_value(next()?)?);
    let rest: Vec<String> = redis::from_redis_value(Value::Array(values.collect()))?;
    let (waiters, more) = rest.as_chunks();
    same("values without a waiter", &more.len(), &0)?;
    Ok(Shown { hold, remaining, waiters: waiters.to_vec() })
}

fn ids(shown: &Shown) -> String {
    shown.waiters.iter().map(|[id, ..]| id.as_str()).collect::<Vec<_>>().join(" ")
}

pub(crate) fn it_shows_the_queue_in_order(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let nothing = Shown { hold: String::new(), remaining: -2, waiters: vec![] };
    same("a lock that is free", &show(&mut stage)?, &nothing)?;

    stage.must_get(&tries("holder"))?;
    let places = ["m", "z", "a"].map(|id| stage.must_wait(&waits(id).beat(5).on("channel")));
    let shown = show(&mut stage)?;
    same("the hold", &Some(shown.hold.clone()), &stage.hold()?)?;
    holds("the lease", 0 < shown.remaining && shown.remaining <= LONG.cast_signed())?;
    same("the waiters", &ids(&shown), &"m z a".to_owned())?;
    for ([id, score, written], place) in shown.waiters.iter().zip(places) {
        same(&format!("the place of {id}"), score, &place?.to_string())?;
        let rest = written.split_once(' ').map(|(_, rest)| rest.to_owned());
        same("the state", &rest, &Some(format!("5 channel {HOLDER}")))?;
    }
    Ok(())
}

pub(crate) fn it_shows_who_was_granted(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a"))?;
    stage.release("holder")?;
    let shown = show(&mut stage)?;
    holds("it is the waiter", shown.hold.starts_with("a ") && shown.hold.ends_with(&format!(" - {HOLDER}")))
}

pub(crate) fn it_leaves_the_expired_out(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("keeper"))?;
    stage.must_wait(&waits("expired").lease(10))?;
    stage.must_wait(&waits("b"))?;
    stage.pass_milliseconds(20)?;
    same("the waiters", &ids(&show(&mut stage)?), &"keeper b".to_owned())?;
    same("the queue", &stage.queue()?.join(" "), &"keeper expired b".to_owned())
}

pub(crate) fn it_shows_a_long_queue(scripts: &Scripts, server: &Server) -> Outcome {
    shows(scripts, server, MANY)
}

pub(crate) fn it_shows_a_very_long_queue(scripts: &Scripts, server: &Server) -> Outcome {
    shows(scripts, server, MORE_THAN_LUA_TAKES)
}

fn shows(scripts: &Scripts, server: &Server, count: usize) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    let names: Vec<String> = (0..count).map(|number| format!("waiter-{}", count - number)).collect();
    let mut arrivals = redis::pipe();
    for name in &names {
        arrivals.add_command(stage.acquire_command(&waits(name))).ignore();
    }
    let () = arrivals.query(&mut stage.connection)?;
    holds("all waiters are there, in their order", ids(&show(&mut stage)?) == names.join(" "))
}

pub(crate) fn it_changes_nothing(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a"))?;
    stage.expire_hold()?;
    show(&mut stage)?;
    same("the holder", &stage.holder()?, &None)?;
    same("the queue", &stage.queue()?, &vec!["a".to_owned()])?;
    same("the waiters", &stage.states()?, &vec!["a".to_owned()])
}
