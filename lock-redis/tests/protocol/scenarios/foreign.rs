//! Keys that somebody else has written.
use redis::Value;

use crate::failure::{Outcome, failure, holds, same};
use crate::scripts::{CANCEL, RELEASE, Scripts};
use crate::server::Server;
use crate::stage::{Acquired, LONG, Stage, beats, tries, waits};

pub(crate) fn a_hold_by_another_program_is_respected(scripts: &Scripts, server: &Server) -> Outcome {
    for thief in ["thief", "", "thief of 3 words", "b a 1 - x"] {
        let mut stage = Stage::new(scripts, server)?;
        stage.must_get(&tries("a"))?;
        let key = stage.key("l");
        let _: String = stage.ask(&["SET", &key, thief])?;
        same("the owner's renewal", &stage.renew("a", LONG)?, &2)?;
        same("the owner's release", &stage.release("a")?, &(2, 0))?;
        same("the owner's cancel", &stage.cancel("a")?, &0)?;
        let answer = stage.acquire(&waits("w"))?;
        holds(
            "a newcomer waits without end",
            matches!(answer, Acquired::Waits { remaining: -1, rank: 0, .. }),
        )?;
        same("inspect", &stage.inspect()?.first(), &Some(&Value::BulkString(thief.into())))?;
        same("the hold", &stage.hold()?, &Some(thief.to_owned()))?;
    }
    let mut stage = Stage::new(scripts, server)?;
    let key = stage.key("l");
    let _: String = stage.ask(&["SET", &key, "thief"])?;
    stage.must_wait(&waits("w"))?;
    same("break", &stage.break_holder("thief")?, &(1, 0))?;
    same("the holder", &stage.holder()?, &Some("w".to_owned()))
}

pub(crate) fn a_queue_of_another_type_is_an_error_before_any_write(
    scripts: &Scripts,
    server: &Server,
) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let queue = stage.key("q");
    let _: String = stage.ask(&["SET", &queue, "x"])?;
    for request in [tries("a"), waits("a"), beats("a")] {
        let answer = stage.acquire_command(&request).query::<Value>(&mut stage.connection);
        let refused = answer.is_err_and(|error| error.to_string().contains("WRONGTYPE"));
        holds("the server says WRONGTYPE", refused)?;
        same("the holder", &stage.holder()?, &None)?;
        same("the waiters", &stage.states()?, &vec![])?;
    }
    Ok(())
}

/// The state of a waiter cannot be kept then; what was written of its place before ends by itself.
pub(crate) fn waiters_of_another_type_leave_nothing_for_ever(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let waiters = stage.key("w");
    let _: String = stage.ask(&["SET", &waiters, "x"])?;
    stage.must_get(&tries("holder"))?;
    let answer = stage.acquire_command(&waits("a")).query::<Value>(&mut stage.connection);
    holds("the server says WRONGTYPE", answer.is_err_and(|error| error.to_string().contains("WRONGTYPE")))?;
    holds("the queue has an end", stage.lifetime("q")? != -1)
}

/// A hold of another type makes no hold; a program that asks for one is told, or replaces it.
pub(crate) fn a_hold_of_another_type_ends_nothing(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let hold = stage.key("l");
    let _: i64 = stage.ask(&["RPUSH", &hold, "x"])?;
    for name in [RELEASE, CANCEL] {
        let answer = stage.script(name, &["a"]).query::<Value>(&mut stage.connection);
        holds(
            "the server says WRONGTYPE",
            answer.is_err_and(|error| error.to_string().contains("WRONGTYPE")),
        )?;
    }
    same("its type", &stage.ask::<String>(&["TYPE", &hold])?, &"list".to_owned())
}

pub(crate) fn a_waiter_by_another_program_is_skipped(scripts: &Scripts, server: &Server) -> Outcome {
    for garbage in ["", "x", "99999999999999", "99999999999999 x - h", "99999999999999 1"] {
        let mut stage = Stage::new(scripts, server)?;
        stage.must_get(&tries("holder"))?;
        stage.must_wait(&waits("a"))?;
        stage.must_wait(&waits("b"))?;
        let waiters = stage.key("w");
        let _: i64 = stage.ask(&["HSET", &waiters, "a", garbage])?;
        let answer = stage.script(RELEASE, &["holder"]).query::<(i64, i64)>(&mut stage.connection);
        let answer =
            answer.map_err(|error| failure(format!("release with a waiter '{garbage}': {error}")))?;
        same("release", &answer, &(1, 0))?;
        same("the holder", &stage.holder()?, &Some("b".to_owned()))?;
    }
    let mut stage = Stage::new(scripts, server)?;
    let queue = stage.key("q");
    let _: i64 = stage.ask(&["ZADD", &queue, "1", "no state"])?;
    stage.must_get(&tries("a"))?;
    Ok(())
}
