//! Holds that are shared: readers and their writers.
use redis::Value;

use crate::failure::{Failure, Outcome, failure, holds, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{Acquired, HOLDER, LONG, Stage, beats, tries, waits};

/// The remaining time in the answer to an attempt that does not get the lock.
fn told(answer: Acquired) -> Result<i64, Failure> {
    match answer {
        Acquired::Waits { remaining, .. } => Ok(remaining),
        other => Err(failure(format!("it does not wait: {other:?}"))),
    }
}

fn nothing_is_left(stage: &mut Stage<'_>) -> Outcome {
    same("the holder", &stage.holder()?, &None)?;
    same("the queue", &stage.queue()?, &vec![])?;
    same("the waiters", &stage.states()?, &vec![])
}

pub(crate) fn readers_are_beside_each_other(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let mut last = stage.must_get(&tries("before"))?;
    holds("a reader waits", matches!(stage.acquire(&tries("a:r"))?, Acquired::Waits { remaining: 1.., .. }))?;
    stage.release("before")?;
    for id in ["a:r", "b:r"] {
        let token = stage.must_get(&tries(id))?;
        holds("the token rises", token > last)?;
        same("the token when asked again", &stage.must_get(&waits(id))?, &token)?;
        last = token;
    }
    let answer = stage.acquire(&tries("w"))?;
    holds("a writer waits", matches!(answer, Acquired::Waits { remaining: 1.., rank: 0, score: 0 }))?;
    for id in ["a:r", "b:r"] {
        holds("a writer waits", matches!(stage.acquire(&tries("w"))?, Acquired::Waits { .. }))?;
        same("release", &stage.release(id)?, &(1, 0))?;
        same("release again", &stage.release(id)?, &(0, 0))?;
    }
    nothing_is_left(&mut stage)?;
    holds("the token rises", stage.must_get(&tries("w"))? > last)
}

pub(crate) fn a_reader_stands_behind_a_writer_that_waits(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("a:r"))?;
    stage.must_wait(&waits("w"))?;
    told(stage.acquire(&tries("b:r"))?)?;
    let answer = stage.acquire(&waits("b:r"))?;
    holds("it is behind the writer", matches!(answer, Acquired::Waits { rank: 1, .. }))?;
    same("the queue", &stage.queue()?.join(" "), &"a:r w b:r".to_owned())?;
    same("release", &stage.release("a:r")?, &(1, 0))?;
    same("the holder", &stage.holder()?, &Some("w".to_owned()))?;
    same("the queue", &stage.queue()?.join(" "), &"b:r".to_owned())?;
    same("release", &stage.release("w")?, &(1, 0))?;
    stage.must_get(&beats("b:r"))?;
    same("release", &stage.release("b:r")?, &(1, 0))?;
    nothing_is_left(&mut stage)
}

/// Those of one client learn of it in one message.
pub(crate) fn neighbours_that_read_enter_together(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let channel = stage.channel("readers");
    let mut listener = stage.listen(&channel)?;
    let last = stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a:r").on(&channel).beat(4))?;
    stage.must_wait(&waits("b:r").on(&channel).beat(5))?;
    stage.must_wait(&waits("w"))?;
    stage.must_wait(&waits("c:r").on(&channel))?;
    same("release", &stage.release("holder")?, &(1, 0))?;
    same("the queue", &stage.queue()?.join(" "), &"a:r b:r w c:r".to_owned())?;
    let tokens = [stage.must_get(&beats("a:r"))?, stage.must_get(&beats("b:r"))?];
    holds("the tokens rise", last < tokens[0] && tokens[0] < tokens[1])?;
    let message = format!("a:r granted 4 {}\nb:r granted 5 {}", tokens[0], tokens[1]);
    same("the message", &listener.next()?, &message)?;
    stage.release("b:r")?;
    same("the holder", &stage.holder()?, &None)?;
    stage.release("a:r")?;
    same("the holder", &stage.holder()?, &Some("w".to_owned()))
}

/// "a" reads for a short time and "b" for a long one; the writer need not wait for longer than the first of them.
pub(crate) fn a_reader_that_is_silent_is_gone(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("b:r"))?;
    stage.must_get(&tries("a:r").lease(LONG / 2))?;
    let remaining = told(stage.acquire(&waits("w"))?)?;
    holds("it is told of the first end", 0 < remaining && remaining <= (LONG / 2).cast_signed())?;
    stage.release("b:r")?;
    stage.must_wait(&beats("w"))?;
    stage.expire_reader("a:r")?;
    stage.must_get(&beats("w"))?;
    same("a late renewal", &stage.renew("a:r", LONG)?, &2)?;
    same("a late release", &stage.release("a:r")?, &(2, 0))?;
    same("the states", &stage.states()?, &vec![])
}

pub(crate) fn a_late_renewal_of_a_reader_does_not_revive(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("keeper:r"))?;
    for again in [false, true] {
        stage.must_get(&tries("a:r").lease(20))?;
        stage.must_get(&tries("b:r"))?;
        stage.pass_milliseconds(30)?;
        if again {
            let answer = stage.acquire(&beats("a:r"))?;
            same("the answer", &answer, &Acquired::Gone)?;
        }
        same("renewals", &stage.renew_all(&["b:r", "a:r", "keeper:r"], LONG)?, &vec![1, 0, 1])?;
        same("who is there", &stage.queue()?.len(), &2)?;
        same("release", &stage.release("b:r")?, &(1, 0))?;
    }
    Ok(())
}

pub(crate) fn renewals_extend_the_leases_of_readers(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let names: Vec<String> = (0..500).map(|number| format!("{number}:r")).collect();
    for name in &names {
        stage.must_get(&tries(name).lease(LONG / 2))?;
    }
    let ids: Vec<&str> = names.iter().map(String::as_str).collect();
    same("renewals", &stage.renew_all(&ids, LONG)?, &vec![1; 500])?;
    for suffix in ["q", "w"] {
        holds("the key lives for the new lease", stage.lifetime(suffix)? > (LONG / 2).cast_signed())?;
    }
    let queue = stage.key("q");
    let ends: f64 = stage.ask(&["ZSCORE", &queue, "7:r"])?;
    let now = stage.server_time()? / 1000;
    #[allow(clippy::cast_precision_loss, reason = "milliseconds since the epoch are exact")]
    let extended = ends > (now + LONG / 2) as f64;
    holds("each has the new lease", extended)
}

/// A reader waits behind a writer beside a reader that holds the lock; then the writer is out of the way.
fn with_a_writer_between<'a>(scripts: &'a Scripts, server: &'a Server) -> Result<Stage<'a>, Failure> {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("a:r"))?;
    stage.must_wait(&waits("w").lease(LONG / 2))?;
    stage.must_wait(&waits("b:r"))?;
    Ok(stage)
}

fn is_held_by_both(stage: &mut Stage<'_>) -> Outcome {
    let mut queue = stage.queue()?;
    queue.sort();
    same("the queue", &queue.join(" "), &"a:r b:r".to_owned())?;
    same("renewals", &stage.renew_all(&["b:r", "a:r"], LONG)?, &vec![1, 1])
}

pub(crate) fn a_writer_that_gives_up_lets_those_behind_it_in(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = with_a_writer_between(scripts, server)?;
    same("cancel", &stage.cancel("w")?, &0)?;
    is_held_by_both(&mut stage)
}

/// The next that asks lets them in: the holder that renews, or a waiter.
pub(crate) fn a_silent_writer_at_the_head_stops_none(scripts: &Scripts, server: &Server) -> Outcome {
    for by in ["renewal", "repetition", "heartbeat", "arrival", "try", "release"] {
        let mut stage = with_a_writer_between(scripts, server)?;
        let remaining = told(stage.acquire(&beats("b:r"))?)?;
        let half = (LONG / 2).cast_signed();
        holds("it is told of the head's deadline", 0 < remaining && remaining <= half)?;
        stage.expire_waiter("w")?;
        match by {
            "renewal" => same("renewal", &stage.renew("a:r", LONG)?, &1)?,
            "repetition" => drop(stage.must_get(&waits("a:r"))?),
            "heartbeat" => drop(stage.must_get(&beats("b:r"))?),
            "arrival" => drop(stage.must_get(&waits("c:r"))?),
            "try" => told(stage.acquire(&tries("v"))?).map(drop)?,
            _ => same("release of nothing", &stage.release("c:r")?, &(0, 0))?,
        }
        if by == "arrival" {
            same("release", &stage.release("c:r")?, &(1, 0))?;
        }
        is_held_by_both(&mut stage).map_err(|wrong| failure(format!("after a {by}: {wrong:?}")))?;
    }
    Ok(())
}

pub(crate) fn a_writer_goes_on_reading(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("w"))?;
    stage.must_wait(&waits("a:r"))?;
    stage.must_wait(&waits("v"))?;
    stage.must_wait(&waits("b:r"))?;
    let (fence, ahead) = (stage.key("f"), stage.server_time()?.cast_signed() + 3_600_000_000);
    let _: String = stage.ask(&["SET", &fence, &format!("v1 {ahead}")])?;
    let (token, more) = stage.downgrade("w", "x:r", LONG)?;
    same("the token", &token, &(ahead + 1))?;
    same("more", &more, &Some(0))?;
    same("the holder", &stage.holder()?, &None)?;
    let mut queue = stage.queue()?;
    queue[..2].sort();
    same("the queue", &queue.join(" "), &"a:r x:r v b:r".to_owned())?;
    same("renewals", &stage.renew_all(&["a:r", "x:r"], LONG)?, &vec![1, 1])?;
    same("the same again", &stage.downgrade("w", "x:r", LONG)?, &(token, Some(0)))?;
    same("release of the writer", &stage.release("w")?, &(0, 0))?;
    for id in ["x:r", "a:r"] {
        same("release", &stage.release(id)?, &(1, 0))?;
    }
    same("the holder", &stage.holder()?, &Some("v".to_owned()))?;
    same("a late one", &stage.downgrade("w", "y:r", LONG)?, &(2, None))?;
    same("the queue", &stage.queue()?.join(" "), &"b:r".to_owned())?;
    stage.break_holder("v")?;
    same("one that was broken", &stage.downgrade("v", "y:r", LONG)?, &(3, None))
}

/// Two breaks shortly after each other: each holder learns of its own.
pub(crate) fn one_reader_is_broken_and_the_others_stay(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let channel = stage.channel("a");
    let mut listener = stage.listen(&channel)?;
    stage.must_get(&tries("a:r").on(&channel))?;
    stage.must_get(&tries("b:r"))?;
    stage.must_get(&tries("c:r"))?;
    stage.must_wait(&waits("w"))?;
    same("break of a waiter", &stage.break_holder("w")?, &(0, 0))?;
    for id in ["a:r", "b:r"] {
        same("break", &stage.break_holder(id)?, &(1, 0))?;
        same("break again", &stage.break_holder(id)?, &(0, 0))?;
    }
    same("the message", &listener.next()?, &"a:r broken".to_owned())?;
    same("renewals", &stage.renew_all(&["a:r", "b:r", "c:r"], LONG)?, &vec![3, 3, 1])?;
    same("release", &stage.release("b:r")?, &(3, 0))?;
    same("the queue", &stage.queue()?.join(" "), &"c:r w".to_owned())?;
    same("break", &stage.break_holder("c:r")?, &(1, 0))?;
    same("the holder", &stage.holder()?, &Some("w".to_owned()))
}

pub(crate) fn inspect_shows_who_shares(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let token = stage.must_get(&tries("a:r").lease(LONG / 2).on("channel"))?;
    stage.must_get(&tries("b:r"))?;
    stage.must_wait(&waits("w"))?;
    let shown = stage.inspect()?;
    same("what it answers", &shown.len(), &11)?;
    same("the exclusive hold", &shown[0], &Value::BulkString(Vec::new()))?;
    let remaining: i64 = redis::from_redis_value(shown[1].clone())?;
    holds("the longest lease", remaining > (LONG / 2).cast_signed())?;
    let texts: Vec<String> = redis::from_redis_value(Value::Array(shown[2..].to_vec()))?;
    same("the ids", &[&*texts[0], &*texts[3], &*texts[6]], &["a:r", "b:r", "w"])?;
    let (head, tail) = (format!("{token} "), format!(" channel {HOLDER}"));
    holds("the state", texts[2].starts_with(&head) && texts[2].ends_with(&tail))
}

/// A cycle of a reader costs the same number of commands, however many there are.
pub(crate) fn no_script_walks_the_readers(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[])?;
    let mut stage = Stage::new(scripts, &server)?;
    let mut commands = Vec::new();
    for count in [10, 300] {
        for number in 0..count {
            stage.must_get(&tries(&format!("{count}-{number}:r")))?;
        }
        stage.must_get(&tries("a:r"))?;
        stage.must_wait(&waits("w"))?;
        let _: String = stage.ask(&["CONFIG", "RESETSTAT"])?;
        stage.must_wait(&waits("b:r"))?;
        stage.must_wait(&beats("w"))?;
        same("renewal", &stage.renew("a:r", LONG)?, &1)?;
        same("cancel", &stage.cancel("w")?, &0)?;
        same("release", &stage.release("b:r")?, &(1, 0))?;
        same("release", &stage.release("a:r")?, &(1, 0))?;
        let stats: String = stage.ask(&["INFO", "commandstats"])?;
        // Whether a key has to live longer depends on the milliseconds that have passed.
        let lines = stats.lines().filter(|line| !line.starts_with("cmdstat_pexpire:"));
        let calls =
            lines.filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
        commands.push(calls.sum::<u64>());
    }
    same("the commands beside few and beside many", &commands[0], &commands[1])
}

pub(crate) fn without_memory_readers_go_on(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[])?;
    let mut stage = Stage::new(scripts, &server)?;
    stage.must_get(&tries("w"))?;
    stage.must_wait(&waits("a:r"))?;
    let _: String = stage.ask(&["CONFIG", "SET", "maxmemory", "1"])?;
    let (token, _) = stage.downgrade("w", "x:r", LONG)?;
    holds("it goes on reading", token > 3)?;
    same("renewals", &stage.renew_all(&["x:r", "a:r"], LONG)?, &vec![1, 1])?;
    same("release", &stage.release("x:r")?, &(1, 0))?;
    same("release", &stage.release("a:r")?, &(1, 0))
}

/// Those whose key is gone learn of it, and stand in the way of none; what says only who they are is not needed.
pub(crate) fn an_operator_deletes_keys(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let (queue, waiters) = (stage.key("q"), stage.key("w"));
    stage.must_get(&tries("a:r"))?;
    let _: i64 = stage.ask(&["DEL", &waiters])?;
    same("renewal", &stage.renew("a:r", LONG)?, &1)?;
    told(stage.acquire(&tries("w"))?)?;
    same("break", &stage.break_holder("a:r")?, &(1, 0))?;
    stage.must_get(&tries("b:r"))?;
    let _: i64 = stage.ask(&["DEL", &queue])?;
    stage.must_get(&tries("w"))?;
    same("renewal", &stage.renew("b:r", LONG)?, &2)?;
    stage.release("w")?;
    same("renewal", &stage.renew("b:r", LONG)?, &0)?;
    same("release", &stage.release("b:r")?, &(0, 0))
}

/// Another version of this program may keep its holders where this one does not look.
pub(crate) fn a_newer_layout_is_refused(scripts: &Scripts, server: &Server) -> Outcome {
    for (suffix, text) in [("l", "a v2 1 1 - x"), ("l", "a v17 hello"), ("f", "v2 12"), ("f", "v10 x y")] {
        let mut stage = Stage::new(scripts, server)?;
        let key = stage.key(suffix);
        let _: String = stage.ask(&["SET", &key, text])?;
        let mut commands = vec![stage.script("inspect", &[])];
        for id in ["b", "b:r"] {
            commands.extend([tries(id), waits(id), beats(id)].map(|request| stage.acquire_command(&request)));
        }
        for command in commands {
            match command.query::<Value>(&mut stage.connection) {
                Err(error) if error.code() == Some("LAYOUT") && error.to_string().contains(&key) => {}
                answer => return Err(failure(format!("{text}: {key} is not named: {answer:?}"))),
            }
        }
        same("the queue", &stage.queue()?, &vec![])?;
        same("what was there", &stage.ask::<String>(&["GET", &key])?, &text.to_owned())?;
    }
    Ok(())
}
