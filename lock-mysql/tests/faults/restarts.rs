//! Servers that restart, and then know nothing of locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conformance_tests::Outcome;
use test_servers::{Data, MySqlFlavour, ServerOptions};

use crate::case::{cases, ensure};
use crate::stage::{ROOM, Stage, soon};

cases!("restarts":
    while_several_connections_are_unused_and_a_try_does_not_notice,
    and_who_has_the_old_number_is_left_alone,
    before_summer_time_ends_and_who_has_the_old_number_is_left_alone,
);

async fn while_several_connections_are_unused_and_a_try_does_not_notice(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client("lease=10m&locks_per_connection=1").await?;
    let mut guards = Vec::new();
    for number in 0..4 {
        guards.push(client.mutex(format!("room {number}"))?.acquire().await?);
    }
    for guard in guards {
        guard.release().await?;
    }
    ensure!(stage.connections().await? == 4, "{} connections", stage.connections().await?);
    stage.server.restart(Data::Kept).await?;
    let guard = client.mutex(ROOM)?.try_acquire().await?;
    ensure!(guard.is_some(), "a free lock was refused");
    Ok(())
}

/// The server numbers connections anew, and the client ends connections by their numbers.
async fn and_who_has_the_old_number_is_left_alone(flavour: MySqlFlavour) -> Outcome {
    leaves_the_old_numbers_alone(&Stage::alone(flavour).await?).await
}

/// In that hour each local time of the server belongs to two moments.
async fn before_summer_time_ends_and_who_has_the_old_number_is_left_alone(flavour: MySqlFlavour) -> Outcome {
    let zone = time_zone_whose_summer_ends_after(Duration::from_mins(30));
    let stage = Stage::with(ServerOptions::new().flavour(flavour).property("TZ", &zone)).await?;
    let shift = stage.number("SELECT ROUND((UNIX_TIMESTAMP(NOW()) - UNIX_TIMESTAMP()) / 60)").await?;
    ensure!(shift == 60, "in {zone} the local time is misread by {shift} minutes");
    leaves_the_old_numbers_alone(&stage).await
}

/// A time zone that is one hour ahead of universal time, and returns to it after `left`.
fn time_zone_whose_summer_ends_after(left: Duration) -> String {
    const DAY: u64 = 86_400;
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + left;
    // In summer time.
    let local = end.as_secs() + 3600;
    let (mut day, mut year) = (local / DAY, 1970_u64);
    let days_in = |year: u64| if year.is_multiple_of(4) { 366 } else { 365 };
    while day >= days_in(year) {
        day -= days_in(year);
        year += 1;
    }
    let begin = if day >= 2 { day - 2 } else { 363 };
    let (hours, minutes) = (local % DAY / 3600, local % 3600 / 60);
    format!("XST0XDT-1,{begin}/0,{day}/{hours:02}:{minutes:02}:00")
}

async fn leaves_the_old_numbers_alone(stage: &Stage) -> Outcome {
    let options = "lease=10m&locks_per_connection=1";
    let (ours, theirs) = (stage.client(options).await?, stage.client(options).await?);
    let mut lost = Vec::new();
    let mut old = Vec::new();
    for number in 0..10 {
        let name = format!("old{number}");
        lost.push(ours.mutex(name.as_str())?.acquire().await?);
        old.extend(connection_of(stage, &name).await?);
    }
    stage.server.restart(Data::Kept).await?;
    let mut held = Vec::new();
    let mut new = Vec::new();
    // Looks at the server also use up numbers.
    while old.iter().filter(|number| new.contains(*number)).count() < 3 && new.len() < 60 {
        let name = format!("new{}", held.len());
        held.push((soon("the lock", theirs.mutex(name.as_str())?.acquire()).await??, name.clone()));
        new.extend(connection_of(stage, &name).await?);
    }
    ensure!(old.iter().any(|number| new.contains(number)), "no number is used again: {old:?}, {new:?}");
    // The holders have not noticed the restart yet.
    for guard in lost {
        // An error reports that the lock was lost.
        let _ = soon("the release", guard.release()).await?;
    }
    soon("the undoing", ours.idle()).await?;
    for ((guard, name), number) in held.into_iter().zip(new) {
        let holder = connection_of(stage, &name).await?;
        ensure!(holder == Some(number), "{name} was held by {number}, and is by {holder:?}");
        ensure!(guard.hold().is_valid(), "{name} is lost");
        guard.release().await?;
    }
    Ok(())
}

async fn connection_of(stage: &Stage, name: &str) -> Outcome<Option<u64>> {
    Ok(stage.holder_of(name).await?.and_then(|number| number.parse().ok()))
}
