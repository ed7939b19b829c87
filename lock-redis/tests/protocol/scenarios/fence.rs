//! Fencing tokens rise from one holder to the next.
use crate::failure::{Outcome, failure, holds, same};
use crate::scripts::Scripts;
use crate::server::Server;
use crate::stage::{LONG, Stage, beats, tries, waits};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

pub(crate) fn tokens_rise_over_releases_and_hand_offs(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let mut last = 0;
    for round in 0..20 {
        let (first, second) = (format!("first-{round}"), format!("second-{round}"));
        let token = stage.must_get(&tries(&first))?;
        stage.must_wait(&waits(&second))?;
        stage.release(&first)?;
        let next = stage.must_get(&beats(&second))?;
        stage.release(&second)?;
        holds(&format!("{last} < {token} < {next}"), last < token && token < next)?;
        last = next;
    }
    Ok(())
}

pub(crate) fn tokens_rise_over_expiry(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let first = stage.must_get(&tries("a").lease(10))?;
    stage.until_hold_ends()?;
    let second = stage.must_get(&tries("b"))?;
    holds("the token rises", first < second)
}

pub(crate) fn tokens_rise_when_all_keys_are_deleted(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let first = stage.must_get(&tries("a"))?;
    let keys = stage.keys();
    let _: i64 = stage.ask(&["DEL", &keys[0], &keys[1], &keys[2], &keys[3], &keys[4]])?;
    let second = stage.must_get(&tries("b"))?;
    stage.must_wait(&waits("c"))?;
    let _: i64 = stage.ask(&["DEL", &keys[3]])?;
    stage.release("b")?;
    let third = stage.must_get(&beats("c"))?;
    holds(&format!("{first} < {second} < {third}"), first < second && second < third)
}

pub(crate) fn tokens_rise_after_a_flush(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[])?;
    let mut stage = Stage::new(scripts, &server)?;
    let first = stage.must_get(&tries("a"))?;
    let _: String = stage.ask(&["FLUSHALL"])?;
    same("the renewal", &stage.renew("a", LONG)?, &0)?;
    let second = stage.must_get(&tries("b"))?;
    holds("the token rises", first < second)
}

pub(crate) fn tokens_rise_after_a_restart_without_data(scripts: &Scripts, _: &Server) -> Outcome {
    let server = Server::start(&[])?;
    let first = {
        let mut stage = Stage::new(scripts, &server)?;
        stage.must_get(&tries("a"))?;
        stage.release("a")?;
        stage.must_get(&tries("b"))?
    };
    server.restart_empty()?;
    let second = Stage::new(scripts, &server)?.must_get(&tries("c"))?;
    holds("the token rises", first < second)
}

pub(crate) fn tokens_rise_when_the_clock_is_behind(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let ahead = stage.server_time()? + 3_600_000_000;
    let fence = stage.key("f");
    let _: String = stage.ask(&["SET", &fence, &format!("v1 {ahead}")])?;
    same("the next", &stage.must_get(&tries("a"))?, &(ahead + 1))?;
    stage.must_wait(&waits("b"))?;
    stage.release("a")?;
    same("the one after", &stage.must_get(&beats("b"))?, &(ahead + 2))
}

/// The tokens of the sections that follow are no other grant's, whether the clock is ahead of them or not.
pub(crate) fn a_series_has_its_tokens_alone(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let (fence, channel) = (stage.key("f"), stage.channel("c"));
    let token = stage.must_get(&tries("now+999"))?;
    same("the fence", &stage.ask::<String>(&["GET", &fence])?, &format!("v1 {}", token + 999))?;
    stage.release("now+999")?;
    holds("the next is above them", stage.must_get(&tries("next"))? >= token + 1000)?;
    stage.release("next")?;
    let ahead = stage.server_time()? + 3_600_000_000;
    let mut listener = stage.listen(&channel)?;
    let _: String = stage.ask(&["SET", &fence, &format!("v1 {ahead}")])?;
    same("the token", &stage.must_get(&tries("a+99").lease(LONG / 2))?, &(ahead + 1))?;
    same("the token when asked again", &stage.must_get(&waits("a+99"))?, &(ahead + 1))?;
    holds("the lease begins anew", stage.remaining()? > (LONG / 2).cast_signed())?;
    same("the fence", &stage.ask::<String>(&["GET", &fence])?, &format!("v1 {}", ahead + 100))?;
    stage.must_wait(&waits("b"))?;
    stage.must_wait(&waits("c+999").on(&channel))?;
    stage.must_wait(&waits("d"))?;
    stage.release("a+99")?;
    same("the next", &stage.must_get(&beats("b"))?, &(ahead + 101))?;
    stage.release("b")?;
    same("the message", &listener.next()?, &format!("c+999 granted 1 {}", ahead + 102))?;
    same("the token of a hand-off", &stage.must_get(&beats("c+999"))?, &(ahead + 102))?;
    stage.release("c+999")?;
    same("the next", &stage.must_get(&beats("d"))?, &(ahead + 1102))?;
    stage.release("d")?;
    same("the token", &stage.must_get(&tries("e+9"))?, &(ahead + 1103))?;
    let (token, _) = stage.downgrade("e+9", "e:r", LONG)?;
    same("the token of the reader", &token, &(ahead + 1113).cast_signed())
}

/// Used tokens stay, and the fence is not ahead of the clock by the others.
pub(crate) fn what_a_series_has_not_used_goes_back(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let ahead = stage.server_time()? + 3_600_000_000;
    let fence = stage.key("f");
    let _: String = stage.ask(&["SET", &fence, &format!("v1 {ahead}"), "EX", "100"])?;
    stage.must_get(&tries("a+99"))?;
    stage.release_after("a+99", 3)?;
    same("the fence", &stage.ask::<String>(&["GET", &fence])?, &format!("v1 {}", ahead + 4))?;
    holds("the fence still ends", stage.ask::<i64>(&["TTL", &fence])? > 0)?;
    // Not if another program, or another grant, has changed it.
    stage.must_get(&tries("b+99"))?;
    let _: String = stage.ask(&["SET", &fence, &format!("v1 {}", ahead + 500)])?;
    stage.release_after("b+99", 3)?;
    same("the fence", &stage.ask::<String>(&["GET", &fence])?, &format!("v1 {}", ahead + 500))
}

/// Early in a second the server's time has fewer digits of microseconds.
pub(crate) fn a_time_with_few_microseconds_has_all_digits(scripts: &Scripts, server: &Server) -> Outcome {
    loop {
        // Without a fence, which would show that the token is too low.
        let mut stage = Stage::new(scripts, server)?;
        stage.until("a second begins", |stage| Ok(stage.server_time()? % 1_000_000 < 50_000))?;
        let before = stage.server_time()?;
        let token = stage.must_get(&tries("a"))?;
        let after = stage.server_time()?;
        holds(&format!("{before} <= {token} <= {after}"), before <= token && token <= after)?;
        if token % 1_000_000 < 100_000 {
            return Ok(());
        }
    }
}

/// A token in microseconds has sixteen digits, and Lua keeps fourteen when it converts a number to text.
pub(crate) fn tokens_keep_all_their_digits(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    let (fence, channel) = (stage.key("f"), stage.channel("b"));
    let mut listener = stage.listen(&channel)?;
    let last = 4_123_456_789_123_457_u64;
    let _: String = stage.ask(&["SET", &fence, &format!("v1 {last}")])?;
    same("the token", &stage.must_get(&tries("a"))?, &(last + 1))?;
    same("the token when asked again", &stage.must_get(&tries("a"))?, &(last + 1))?;
    same("the fence", &stage.ask::<String>(&["GET", &fence])?, &format!("v1 {}", last + 1))?;
    stage.must_wait(&waits("b").on(&channel))?;
    stage.release("a")?;
    same("the message", &listener.next()?, &format!("b granted 1 {}", last + 2))?;
    same("the fence", &stage.ask::<String>(&["GET", &fence])?, &format!("v1 {}", last + 2))?;
    let since = stage.hold()?.and_then(|hold| hold.split(' ').nth(3).map(str::to_owned));
    let since = since.ok_or_else(|| failure("no time in the hold"))?;
    holds("the time in the hold is written out", since.len() >= 16 && since.parse::<u64>().is_ok())
}

pub(crate) fn the_fence_outlasts_its_own_value_by_a_day(scripts: &Scripts, server: &Server) -> Outcome {
    let mut stage = Stage::new(scripts, server)?;
    stage.must_get(&tries("a"))?;
    let day = DAY_MS.cast_signed();
    let lifetime = stage.lifetime("f")?;
    holds("a day from now", day - 60_000 < lifetime && lifetime <= day + 1)?;
    // A fence that is an hour ahead of the clock has to last an hour longer.
    let ahead = stage.server_time()? + 3_600_000_000;
    let fence = stage.key("f");
    let _: String = stage.ask(&["SET", &fence, &format!("v1 {ahead}")])?;
    stage.must_wait(&waits("b"))?;
    stage.release("a")?;
    let lifetime = stage.lifetime("f")? - 3_600_000;
    holds("a day from its value", day - 60_000 < lifetime && lifetime <= day + 1)
}
