//! A call declares all keys that it uses, and they are on one node.
use std::collections::BTreeSet;

use crate::failure::{Outcome, failure, holds, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{LONG, Stage, beats, tries, waits};

/// Takes every path through the scripts that touches a further key.
fn play_all(stage: &mut Stage<'_>) -> Outcome {
    stage.must_get(&tries("a"))?;
    stage.must_wait(&waits("b"))?;
    stage.must_wait(&waits("c"))?;
    stage.acquire(&tries("d"))?;
    stage.must_wait(&beats("c"))?;
    same("renewal", &stage.renew("a", LONG)?, &1)?;
    same("renewal by another", &stage.renew("b", LONG)?, &2)?;
    same("release", &stage.release("a")?, &(1, 0))?;
    same("inspect", &stage.inspect()?.len(), &5)?;
    same("break", &stage.break_holder("b")?, &(1, 0))?;
    same("renewal of the broken", &stage.renew("b", LONG)?, &3)?;
    same("cancel", &stage.cancel("c")?, &0)?;
    same("a late release", &stage.release("c")?, &(0, 0))?;
    stage.must_get(&tries("a+9"))?;
    stage.must_wait(&waits("b:r"))?;
    let (token, _) = stage.downgrade("a+9", "c:r", LONG)?;
    holds("it is shared", token > 3)?;
    same("renewals", &stage.renew_all(&["b:r", "c:r", "d:r"], LONG)?, &vec![1, 1, 0])?;
    stage.must_wait(&waits("d"))?;
    same("break of a reader", &stage.break_holder("b:r")?, &(1, 0))?;
    same("a late release", &stage.release("b:r")?, &(3, 0))?;
    same("release", &stage.release("c:r")?, &(1, 0))?;
    same("cancel", &stage.cancel("d")?, &0)?;
    for id in ["a:2/3", "b:1/3"] {
        stage.must_get(&tries(id))?;
        stage.acquire(&waits("c:3/3"))?;
        same("release", &stage.release(id)?, &(1, 0))?;
        same("cancel", &stage.cancel("c:3/3")?, &0)?;
    }
    Ok(())
}

pub(crate) fn one_node_of_a_cluster_has_them_all(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[("cluster-enabled", "yes"), ("cluster-require-full-coverage", "no")])?;
    let mut stage = Stage::new(scripts, &server)?;
    let mut slots = BTreeSet::new();
    for key in stage.keys() {
        slots.insert(stage.ask::<u16>(&["CLUSTER", "KEYSLOT", &key])?);
    }
    same("the number of slots", &slots.len(), &1)?;
    // The node has no other slot.
    for slot in slots {
        let _: String = stage.ask(&["CLUSTER", "ADDSLOTS", &slot.to_string()])?;
    }
    stage.until("the cluster is ready", |stage| {
        Ok(stage.ask::<String>(&["CLUSTER", "INFO"])?.contains("cluster_state:ok"))
    })?;
    play_all(&mut stage)
}

/// `MONITOR` shows what the server runs for a script: each command's first key is one of the declared ones.
pub(crate) fn every_key_is_declared(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[])?;
    let mut stage = Stage::new(scripts, &server)?;
    let mut monitor = server.connect()?;
    monitor.send_packed_command(&redis::cmd("MONITOR").get_packed_command())?;
    monitor.recv_response()?;
    play_all(&mut stage)?;
    let _: String = stage.ask(&["ECHO", "nothing follows"])?;

    let mut seen = BTreeSet::new();
    loop {
        let line: String = redis::from_redis_value(monitor.recv_response()?)?;
        if line.contains("nothing follows") {
            break;
        }
        let Some((_, command)) = line.split_once(" lua] ") else { continue };
        let words: Vec<&str> = command.split('"').skip(1).step_by(2).collect();
        match words[..] {
            ["TIME"] | ["PUBSUB" | "PUBLISH", ..] => {}
            ["MGET" | "EXISTS", ref keys @ ..] => seen.extend(keys.iter().map(|key| (*key).to_owned())),
            [_, key, ..] => {
                seen.insert(key.to_owned());
            }
            _ => return Err(failure(format!("a command without a key: {line}"))),
        }
    }
    let declared = BTreeSet::from(stage.keys());
    holds(&format!("all keys of {seen:?} are declared"), seen.is_subset(&declared))?;
    same("the keys that were used", &seen, &declared)
}
