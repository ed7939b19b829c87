//! Keys that another program has written.
use redis::{Cmd, Value};

use crate::failure::{Failure, Outcome, failure, holds, same};
use crate::scripts::{BREAK, CANCEL, RELEASE, Scripts};
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

/// The script cannot keep the state of a waiter then; what it wrote of the place before expires by itself.
pub(crate) fn waiters_of_another_type_leave_nothing_for_ever(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let waiters = stage.key("w");
    let _: String = stage.ask(&["SET", &waiters, "x"])?;
    stage.must_get(&tries("holder"))?;
    let answer = stage.acquire_command(&waits("a")).query::<Value>(&mut stage.connection);
    holds("the server says WRONGTYPE", answer.is_err_and(|error| error.to_string().contains("WRONGTYPE")))?;
    holds("the queue has an end", stage.lifetime("q")? != -1)
}

/// A key of another type is not a hold; a client that asks gets an error, and a waiter keeps its place.
pub(crate) fn a_hold_of_another_type_ends_nothing(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let hold = stage.key("l");
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("w"))?;
    let _: i64 = stage.ask(&["DEL", &hold])?;
    let _: i64 = stage.ask(&["RPUSH", &hold, "x"])?;
    for name in [RELEASE, CANCEL] {
        let answer = stage.script(name, &["a"]).query::<Value>(&mut stage.connection);
        holds(
            "the server says WRONGTYPE",
            answer.is_err_and(|error| error.to_string().contains("WRONGTYPE")),
        )?;
    }
    for request in [tries("b"), waits("b"), beats("w")] {
        must_name(&stage.acquire_command(&request), &mut stage, "l")?;
        same("the queue", &stage.queue()?, &vec!["w".to_owned()])?;
    }
    let mut empty = Stage::new(scripts, server)?;
    let other = empty.key("l");
    let _: i64 = empty.ask(&["RPUSH", &other, "x"])?;
    must_name(&empty.acquire_command(&tries("b")), &mut empty, "l")?;
    same("the fence", &empty.lifetime("f")?, &-2)?;
    same("its type", &stage.ask::<String>(&["TYPE", &hold])?, &"list".to_owned())
}

/// Checks that the answer to the command is an error that names the key.
fn must_name(command: &Cmd, stage: &mut Stage<'_>, suffix: &str) -> Outcome {
    let key = stage.key(suffix);
    match command.query::<Value>(&mut stage.connection) {
        Err(error) if error.code() == Some("WRONGTYPE") && error.to_string().contains(&key) => Ok(()),
        answer => Err(failure(format!("{key} is not named: {answer:?}"))),
    }
}

/// Values of another program where the scripts expect a text of their own.
const FOREIGN: [&[&str]; 11] = [
    &["HSET", "field", "value"],
    &["SET", "hello"],
    &["SET", ""],
    &["SET", "12.5"],
    &["SET", "12 of them"],
    &["SET", "v1 12.5"],
    // As long as a token with its mark, and before it.
    &["SET", "another program's!!"],
    &["SET", "v1 1000000000000.00"],
    &["SET", "v1 12345678901234567890"],
    // Even the server's time stays below these numbers; above them Lua cannot represent the next one.
    &["SET", "v1 9007199254740991"],
    &["SET", "v1 9999999999999999"],
];

/// Writes the value into the key. Returns the key and its whole content.
fn put(stage: &mut Stage<'_>, suffix: &str, foreign: &[&str]) -> Result<(String, Vec<u8>), Failure> {
    let key = stage.key(suffix);
    let _: i64 = stage.ask(&["DEL", &key])?;
    let words: Vec<_> = [foreign[0], &key].into_iter().chain(foreign[1..].iter().copied()).collect();
    let _: Value = stage.ask(&words)?;
    let content = stage.ask(&["DUMP", &key])?;
    Ok((key, content))
}

pub(crate) fn a_fence_by_another_program_is_an_error_before_any_write(
    scripts: &Scripts,
    server: &Server,
) -> Outcome {
    for foreign in FOREIGN {
        let mut stage = Stage::new(scripts, server)?;
        let (fence, content) = put(&mut stage, "f", foreign)?;
        for request in [tries("a"), waits("a")] {
            must_name(&stage.acquire_command(&request), &mut stage, "f")?;
            same("the holder", &stage.holder()?, &None)?;
            same("the queue", &stage.queue()?, &vec![])?;
        }
        same("what was there", &stage.ask::<Vec<u8>>(&["DUMP", &fence])?, &content)?;
        holds("it ends as it did", stage.lifetime("f")? == -1)?;
    }
    Ok(())
}

/// The holder has released; each waiter learns why the lock is not granted, and gets it when the key is gone.
pub(crate) fn a_fence_by_another_program_undoes_no_release(scripts: &Scripts, server: &Server) -> Outcome {
    for foreign in FOREIGN {
        for name in [RELEASE, CANCEL, BREAK] {
            let mut stage = Stage::new(scripts, server)?;
            stage.must_get(&tries("a"))?;
            stage.must_wait(&waits("b"))?;
            let (fence, content) = put(&mut stage, "f", foreign)?;
            match name {
                RELEASE => same("release", &stage.release("a")?, &(1, 0))?,
                CANCEL => same("cancel", &stage.cancel("a")?, &0)?,
                _ => same("break", &stage.break_holder("a")?, &(1, 0))?,
            }
            same("the holder", &stage.holder()?, &None)?;
            same("a late renewal", &stage.renew("a", LONG)?, &if name == BREAK { 3 } else { 0 })?;
            for request in [beats("b"), tries("c"), waits("c")] {
                must_name(&stage.acquire_command(&request), &mut stage, "f")?;
            }
            same("the queue", &stage.queue()?, &vec!["b".to_owned()])?;
            same("what was there", &stage.ask::<Vec<u8>>(&["DUMP", &fence])?, &content)?;
            let _: i64 = stage.ask(&["DEL", &fence])?;
            stage.must_get(&beats("b"))?;
        }
    }
    Ok(())
}

/// The same for the queue and the waiters. Of the waiters in them nothing is left to undo.
pub(crate) fn a_queue_or_waiters_by_another_program_undo_no_release(
    scripts: &Scripts,
    server: &Server,
) -> Outcome {
    for suffix in ["q", "w"] {
        for name in [RELEASE, CANCEL, BREAK] {
            let mut stage = Stage::new(scripts, server)?;
            stage.must_get(&tries("a"))?;
            stage.must_wait(&waits("b"))?;
            let (other, content) = put(&mut stage, suffix, &["SET", "hello"])?;
            match name {
                RELEASE => same("release", &stage.release("a")?, &(1, 0))?,
                CANCEL => same("cancel", &stage.cancel("a")?, &0)?,
                _ => same("break", &stage.break_holder("a")?, &(1, 0))?,
            }
            same("the holder", &stage.holder()?, &None)?;
            same("a late renewal", &stage.renew("a", LONG)?, &if name == BREAK { 3 } else { 0 })?;
            for request in [beats("b"), tries("c"), waits("c")] {
                must_name(&stage.acquire_command(&request), &mut stage, suffix)?;
            }
            same("cancel of a place", &stage.cancel("c")?, &0)?;
            same("what was there", &stage.ask::<Vec<u8>>(&["DUMP", &other])?, &content)?;
            let _: i64 = stage.ask(&["DEL", &other])?;
            let freed = if suffix == "q" { tries("c") } else { waits("b") };
            stage.must_get(&freed)?;
        }
    }
    Ok(())
}

pub(crate) fn a_mark_by_another_program_is_left_as_it_is(scripts: &Scripts, server: &Server) -> Outcome {
    for foreign in FOREIGN {
        let mut stage = Stage::new(scripts, server)?;
        stage.must_get(&tries("a"))?;
        let (mark, content) = put(&mut stage, "b", foreign)?;
        must_name(&stage.script(BREAK, &["a", "1000"]), &mut stage, "b")?;
        same("the holder", &stage.holder()?, &Some("a".to_owned()))?;
        same("renewal by another", &stage.renew("b", LONG)?, &2)?;
        same("release by another", &stage.release("b")?, &(2, 0))?;
        same("renewal", &stage.renew("a", LONG)?, &1)?;
        same("release", &stage.release("a")?, &(1, 0))?;
        same("renewal after the release", &stage.renew("a", LONG)?, &0)?;
        same("what was there", &stage.ask::<Vec<u8>>(&["DUMP", &mark])?, &content)?;
    }
    Ok(())
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
    for score in ["1", "1700000000000000"] {
        let mut stage = Stage::new(scripts, server)?;
        let queue = stage.key("q");
        let _: i64 = stage.ask(&["ZADD", &queue, score, "no state"])?;
        stage.must_get(&tries("a"))?;
    }
    Ok(())
}
