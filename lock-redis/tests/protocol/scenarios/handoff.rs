//! The call that leaves the lock free also gives it to the next waiter.
use crate::failure::{Failure, Outcome, holds, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{Acquired, LONG, Stage, beats, tries, waits};

/// "holder" holds the lock, and "a" waits for it on a channel with a subscriber.
fn ends_by(scripts: &Scripts, server: &Server, end: impl FnOnce(&mut Stage<'_>) -> Outcome) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let channel = stage.channel("a");
    let mut listener = stage.listen(&channel)?;
    let last = stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a").on(&channel).beat(41))?;
    stage.must_wait(&waits("b"))?;
    end(&mut stage)?;

    same("the holder", &stage.holder()?, &Some("a".to_owned()))?;
    let message = listener.next()?;
    let token: u64 = message.strip_prefix("a granted 41 ").unwrap_or_default().parse()?;
    holds("the token rises", token > last)?;
    holds(
        "the hold has the token",
        stage.hold()?.is_some_and(|hold| hold.starts_with(&format!("a v1 {token} "))),
    )?;
    let fence = stage.key("f");
    same("the fence", &stage.ask::<String>(&["GET", &fence])?, &format!("v1 {token}"))?;
    same("the queue", &stage.queue()?, &vec!["b".to_owned()])?;
    same("the waiters", &stage.states()?, &vec!["b".to_owned()])?;
    holds("the lease is the waiter's", stage.remaining()? > (LONG / 2).cast_signed())
}

pub(crate) fn release_hands_over_with_a_message(scripts: &Scripts, server: &Server) -> Outcome {
    ends_by(scripts, server, |stage| same("release", &stage.release("holder")?, &(1, 0)))
}

pub(crate) fn cancel_of_a_hold_hands_over(scripts: &Scripts, server: &Server) -> Outcome {
    ends_by(scripts, server, |stage| same("cancel", &stage.cancel("holder")?, &0))
}

pub(crate) fn break_hands_over(scripts: &Scripts, server: &Server) -> Outcome {
    ends_by(scripts, server, |stage| same("break", &stage.break_holder("holder")?, &(1, 0)))
}

pub(crate) fn renewal_of_a_lost_hold_hands_over(scripts: &Scripts, server: &Server) -> Outcome {
    ends_by(scripts, server, |stage| {
        stage.expire_hold()?;
        same("the renewal", &stage.renew("holder", LONG)?, &0)
    })
}

pub(crate) fn a_release_that_is_late_hands_over(scripts: &Scripts, server: &Server) -> Outcome {
    ends_by(scripts, server, |stage| {
        stage.expire_hold()?;
        same("release", &stage.release("holder")?, &(0, 0))
    })
}

pub(crate) fn a_try_hands_an_expired_lock_over(scripts: &Scripts, server: &Server) -> Outcome {
    ends_by(scripts, server, |stage| {
        stage.expire_hold()?;
        let answer = stage.acquire(&tries("late"))?;
        holds("the try does not get it", matches!(answer, Acquired::Waits { remaining: 1.., .. }))
    })
}

fn dead_head<'a>(scripts: &'a Scripts, server: &'a Server) -> Result<Stage<'a>, Failure> {
    let mut stage = Stage::new(scripts, server)?;
    let channel = stage.channel("dead");
    let listener = stage.listen(&channel)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("dead").on(&channel))?;
    stage.must_wait(&waits("b"))?;
    stage.hang_up(listener, &channel)?;
    Ok(stage)
}

pub(crate) fn a_head_without_connection_is_skipped(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = dead_head(scripts, server)?;
    stage.release("holder")?;
    same("the holder", &stage.holder()?, &Some("b".to_owned()))?;
    same("the queue", &stage.queue()?, &vec![])?;
    same("the waiters", &stage.states()?, &vec![])
}

pub(crate) fn a_subscriber_to_everything_keeps_no_dead_head(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = dead_head(scripts, server)?;
    let everything = stage.listen_to_all()?;
    stage.release("holder")?;
    same("the holder", &stage.holder()?, &Some("b".to_owned()))?;
    drop(everything);
    Ok(())
}

pub(crate) fn a_head_past_its_deadline_is_skipped(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let channel = stage.channel("silent");
    let listener = stage.listen(&channel)?;
    stage.must_get(&tries("holder"))?;
    // Keeps the queue in existence, however long the next steps take.
    stage.must_wait(&waits("keeper"))?;
    stage.must_wait(&waits("silent").on(&channel).lease(20))?;
    stage.must_wait(&waits("b"))?;
    stage.cancel("keeper")?;
    stage.pass_milliseconds(30)?;
    let listed = stage.queue()?;
    same("release", &stage.release("holder")?, &(1, 0))?;
    same("who was in the queue", &listed.join(" "), &"silent b".to_owned())?;
    same("the holder", &stage.holder()?, &Some("b".to_owned()))?;
    drop(listener);
    Ok(())
}

pub(crate) fn a_waiter_that_polls_is_granted(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("polls").on("-"))?;
    stage.release("holder")?;
    same("the holder", &stage.holder()?, &Some("polls".to_owned()))?;
    stage.must_get(&beats("polls"))?;
    Ok(())
}

pub(crate) fn a_grant_ends_at_the_waiters_deadline(scripts: &Scripts, server: &Server) -> Outcome {
    for polls in [false, true] {
        let mut stage = Stage::new(scripts, server)?;
        let channel = if polls { "-".to_owned() } else { stage.channel("a") };
        let listener = (!polls).then(|| stage.listen(&channel)).transpose()?;
        stage.must_get(&tries("holder"))?;
        stage.must_wait(&waits("a").on(&channel))?;
        let waiters = stage.key("w");
        let written: String = stage.ask(&["HGET", &waiters, "a"])?;
        let deadline: i64 = written.split(' ').next().unwrap_or_default().parse()?;
        stage.pass_milliseconds(50)?;
        stage.release("holder")?;
        let hold = stage.key("l");
        let ends = "local time = redis.call('TIME')
            return math.floor(time[1] * 1000 + time[2] / 1000) + redis.call('PTTL', KEYS[1])";
        let ends: i64 = stage.ask(&["EVAL", ends, "1", &hold])?;
        holds(&format!("the hold ends at {deadline}: {ends}"), (ends - deadline).abs() <= 5)?;
        drop(listener);
    }
    Ok(())
}

/// It looks at no clock, fence or waiter twice, and needs none of the functions for what is unusual.
pub(crate) fn a_release_in_the_usual_case_is_short(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[])?;
    let mut stage = Stage::new(scripts, &server)?;
    let channel = stage.channel("a");
    let listener = stage.listen(&channel)?;
    stage.must_get(&tries("holder"))?;
    stage.must_wait(&waits("a").on(&channel))?;
    let _: String = stage.ask(&["CONFIG", "RESETSTAT"])?;
    same("release", &stage.release("holder")?, &(1, 0))?;
    let stats: String = stage.ask(&["INFO", "commandstats"])?;
    let called = |command| stats.contains(&format!("cmdstat_{command}:calls=1,"));
    for command in ["time", "zrange", "hget", "zrem", "hdel", "publish"] {
        holds(&format!("one {command}: {stats}"), called(command))?;
    }
    drop(listener);
    Ok(())
}

/// Plays as a user that has all permissions but one.
fn play_as(
    stage: &mut Stage<'_>,
    user: &str,
    forbidden: &str,
    play: impl FnOnce(&mut Stage<'_>) -> Outcome,
) -> Outcome {
    let _: String =
        stage.ask(&["ACL", "SETUSER", user, "reset", "on", ">secret", "~*", "&*", "+@all", forbidden])?;
    stage.connection = stage.server.connect_as(&format!("{user}:secret@"))?;
    play(stage)
}

pub(crate) fn a_refused_look_at_the_channel_grants(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let unheard = stage.channel("unheard");
    play_as(&mut stage, "blind", "-pubsub", |stage| {
        stage.must_get(&tries("holder"))?;
        stage.must_wait(&waits("a").on(&unheard))?;
        same("release", &stage.release("holder")?, &(1, 0))?;
        same("the holder", &stage.holder()?, &Some("a".to_owned()))
    })
}

pub(crate) fn a_refused_message_grants(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let channel = stage.channel("a");
    let listener = stage.listen(&channel)?;
    play_as(&mut stage, "mute", "-publish", |stage| {
        stage.must_get(&tries("holder"))?;
        stage.must_wait(&waits("a").on(&channel))?;
        same("release", &stage.release("holder")?, &(1, 0))?;
        same("the holder", &stage.holder()?, &Some("a".to_owned()))?;
        same("break", &stage.break_holder("a")?, &(1, 0))
    })?;
    drop(listener);
    Ok(())
}
