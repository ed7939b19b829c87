//! A server that refuses commands.
use redis::Value;

use crate::failure::{Failure, Outcome, failure, holds, same};
use crate::scripts::{BREAK, CANCEL, RELEASE, RENEW, Scripts};
use crate::server::Server;
use crate::stage::{LONG, Stage, beats, tries, waits};

fn memory(stage: &mut Stage<'_>, most: &str) -> Outcome {
    let _: String = stage.ask(&["CONFIG", "SET", "maxmemory", most])?;
    Ok(())
}

fn refusal(answer: redis::RedisResult<Value>) -> Result<String, Failure> {
    match answer {
        Ok(value) => Err(failure(format!("not refused: {value:?}"))),
        Err(error) => Ok(error.to_string()),
    }
}

pub(crate) fn without_memory_nothing_is_acquired(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[])?;
    for held in [false, true] {
        let mut stage = Stage::new(scripts, &server)?;
        if held {
            stage.must_get(&tries("holder"))?;
        }
        memory(&mut stage, "1")?;
        for request in [tries("a"), waits("a")] {
            if held && request.intent == "try" {
                continue;
            }
            let why = refusal(stage.acquire_command(&request).query(&mut stage.connection))?;
            holds(&format!("the server says that it has no memory: {why}"), why.contains("OOM"))?;
            same("the holder", &stage.holder()?, &held.then(|| "holder".to_owned()))?;
            same("the queue", &stage.queue()?, &vec![])?;
            same("the waiters", &stage.states()?, &vec![])?;
        }
        memory(&mut stage, "0")?;
    }
    Ok(())
}

/// A holder, a dead first waiter, and a living one, on a server without memory.
fn without_memory<'a>(scripts: &'a Scripts, server: &'a Server) -> Result<Stage<'a>, Failure> {
    let mut stage = Stage::new(scripts, server)?;
    let nobody = stage.channel("nobody");
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("dead").on(&nobody))?;
    stage.must_wait(&waits("a"))?;
    memory(&mut stage, "1")?;
    Ok(stage)
}

pub(crate) fn without_memory_a_release_hands_over(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[])?;
    let mut stage = without_memory(scripts, &server)?;
    same("renewal", &stage.renew("holder", LONG)?, &1)?;
    same("release", &stage.release("holder")?, &(1, 0))?;
    same("the holder", &stage.holder()?, &Some("a".to_owned()))?;

    memory(&mut stage, "0")?;
    let mut stage = without_memory(scripts, &server)?;
    same("cancel", &stage.cancel("holder")?, &0)?;
    same("the holder", &stage.holder()?, &Some("a".to_owned()))
}

pub(crate) fn without_memory_a_break_hands_over(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[])?;
    let mut stage = without_memory(scripts, &server)?;
    same("break", &stage.break_holder("holder")?, &(1, 0))?;
    same("renewal", &stage.renew("holder", LONG)?, &3)?;
    same("the holder", &stage.holder()?, &Some("a".to_owned()))
}

/// A heartbeat takes no memory.
pub(crate) fn without_memory_a_waiter_keeps_its_place(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[])?;
    let mut stage = Stage::new(scripts, &server)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a").lease(LONG / 2))?;
    stage.pass_milliseconds(5)?;
    memory(&mut stage, "1")?;
    stage.must_wait(&beats("a").beat(2).lease(LONG / 2))?;
    stage.expire_hold()?;
    stage.must_get(&beats("a").beat(3).lease(LONG / 2))?;
    Ok(())
}

pub(crate) fn a_replica_refuses(scripts: &Scripts, master: &Server) -> Outcome {
    let replica = Server::start(&[("replicaof", &format!("127.0.0.1 {}", master.port()))])?;
    let mut at_master = Stage::new(scripts, master)?;
    at_master.must_get(&tries("holder"))?;
    at_master.must_wait(&waits("a"))?;
    let expected = at_master.hold()?;
    let mut stage = at_master.elsewhere(&replica)?;
    stage.until("the replica has the hold", |stage| {
        Ok(stage.hold()? == expected && !stage.queue()?.is_empty())
    })?;

    let asked = [
        stage.acquire_command(&waits("b")),
        stage.acquire_command(&beats("a")),
        stage.script(RENEW, &["holder", "1000"]),
        stage.script(RELEASE, &["holder"]),
        stage.script(CANCEL, &["a"]),
        stage.script(BREAK, &["holder", "1000"]),
    ];
    for command in asked {
        let why = refusal(command.query(&mut stage.connection))?;
        holds(&format!("the server says READONLY: {why}"), why.contains("read only replica"))?;
    }
    same("the hold", &stage.hold()?, &expected)?;
    same("the queue", &stage.queue()?, &vec!["a".to_owned()])?;
    same("inspect works", &stage.inspect()?.len(), &5)
}
