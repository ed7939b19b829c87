//! Cases: one holder at a time, and different names are different locks.

use crate::{During, Failure, Outcome, ensure};
use lock_core::LockGuard;

use crate::case::cases;
use crate::history::{Acquisition, HoldInterval, Idling, Wait, disorders, idlings, overlaps};
use crate::stage::Stage;
use crate::worker::{Visit, Worker};

cases!("exclusion":
    unguarded_increments_lose_nothing,
    names_that_look_alike_are_different_locks,
    many_locks_are_held_at_once,
);

const WORKERS: usize = 8;
const TIMES: u32 = 200;

/// Eight clients increment a number in a file that only the lock protects.
async fn unguarded_increments_lose_nothing(stage: &Stage) -> Outcome {
    let file = Scratch::new()?;
    let mut workers = stage.workers(WORKERS).await?;
    let times = stage.rounds(TIMES);
    for worker in &mut workers {
        worker.cycle("counter", Some(&file.path), times)?;
    }
    let visits = histories(&mut workers).await?;
    check_history("counter", &visits, stage)?;
    let counted = std::fs::read_to_string(&file.path)?;
    let expected = (WORKERS * times as usize).to_string();
    ensure!(counted == expected, "counted up to {counted}, not to {expected}");
    quit(workers).await
}

/// Collects what each worker did.
pub(super) async fn histories(workers: &mut [Worker]) -> Outcome<Vec<(String, Visit)>> {
    let mut visits = Vec::new();
    for worker in workers {
        let history = worker.history().await?;
        visits.extend(history.into_iter().map(|visit| (worker.label().to_owned(), visit)));
    }
    Ok(visits)
}

pub(crate) async fn quit(workers: Vec<Worker>) -> Outcome {
    for worker in workers {
        worker.quit().await?;
    }
    Ok(())
}

/// Checks that no two clients believed to hold the lock at the same time, that tokens rose, and that the lock was not
/// left idle.
pub(super) fn check_history(lock: &str, visits: &[(String, Visit)], stage: &Stage) -> Outcome {
    let intervals = check_exclusion(lock, visits)?;
    let waits: Vec<_> = visits.iter().map(|(who, visit)| wait(who, lock, visit)).collect();
    // If there is a lease, the lock of a killed client stays held for that long.
    let longest = stage.patience() / 4 + stage.harness().lease().unwrap_or_default();
    let bound = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
    first::<Idling>(&idlings(&waits, &intervals, bound)).during("liveness")
}

/// Checks that no two clients believed to hold the lock at the same time, and that tokens rose. Returns who believed it
/// and when.
pub(crate) fn check_exclusion(lock: &str, visits: &[(String, Visit)]) -> Outcome<Vec<HoldInterval>> {
    let intervals: Vec<_> = visits.iter().map(|(who, visit)| interval(who, lock, visit)).collect();
    first(&overlaps(&intervals)).during("exclusion")?;
    check_tokens(lock, visits)?;
    Ok(intervals)
}

/// Checks that tokens rose.
pub(crate) fn check_tokens(lock: &str, visits: &[(String, Visit)]) -> Outcome {
    let acquisitions: Vec<_> =
        visits.iter().filter_map(|(who, visit)| acquisition(who, lock, visit)).collect();
    first(&disorders(&acquisitions)).during("fencing")
}

fn first<T: std::fmt::Display>(found: &[T]) -> Outcome {
    match found.first() {
        None => Ok(()),
        Some(one) => Err(Failure::new(format!("{} of this kind, such as: {one}", found.len()))),
    }
}

fn interval(who: &str, lock: &str, visit: &Visit) -> HoldInterval {
    HoldInterval { who: who.to_owned(), lock: lock.to_owned(), from: visit.acquired, until: visit.ended }
}

fn acquisition(who: &str, lock: &str, visit: &Visit) -> Option<Acquisition> {
    Some(Acquisition {
        who: who.to_owned(),
        lock: lock.to_owned(),
        token: visit.token?,
        invoked: visit.asked,
        returned: visit.acquired,
    })
}

fn wait(who: &str, lock: &str, visit: &Visit) -> Wait {
    Wait { who: who.to_owned(), lock: lock.to_owned(), from: visit.asked, until: Some(visit.acquired) }
}

/// A file that contains a number, and is deleted at the end.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: std::path::PathBuf,
}

impl Scratch {
    pub(crate) fn new() -> Outcome<Self> {
        let unique = format!("distlock-conformance-{}-{}", std::process::id(), crate::worker::stamp());
        let path = std::env::temp_dir().join(unique);
        std::fs::write(&path, "0").during(path.display())?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// One client holds all of them at once, so they are different; another client finds each of them held, so each is the
/// same lock for all clients.
async fn names_that_look_alike_are_different_locks(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let names = alike();
    let mut guards = Vec::new();
    for name in &names {
        let guard = ours.mutex(name)?.try_acquire().await.during(format_args!("acquire {name:?}"))?;
        let guard =
            guard.ok_or_else(|| Failure::new(format!("{name:?} is the same lock as another name")))?;
        ensure!(guard.hold().name().as_str() == name, "{name:?} is called {:?}", guard.hold().name());
        guards.push(guard);
    }
    for name in &names {
        stage.is_held(&theirs, name).await?;
    }
    release_all(guards).await?;
    for name in &names {
        stage.is_free(&theirs, name).await?;
    }
    Ok(())
}

/// Names that a backend might take for one another, or not accept.
const ALIKE: [&str; 56] = [
    "a",
    "A",
    "a/b",
    "a/B",
    "a_b",
    "a-b",
    "a.b",
    "a b",
    "a%2Fb",
    "a\\b",
    "a:b",
    "a~b",
    "a*",
    "a?",
    "a\u{0}b",
    "a\nb",
    "/a",
    "a/",
    "/",
    ".",
    "..",
    "../x",
    "./x",
    "x",
    ".x",
    "..x",
    "~",
    "-x",
    "{x}",
    "'x'",
    "\"x\"",
    "$x",
    "%s",
    "\u{1F512}",
    "\u{1F513}",
    "é",
    "e\u{301}",
    "ß",
    "ss",
    "SS",
    "İ",
    "i",
    "ı",
    "order",
    "orders",
    "orders/1",
    "orders/10",
    "orders/1/",
    "lock",
    "lock.lock",
    "CON",
    "con",
    " ",
    "  ",
    "a ",
    " a",
];

fn alike() -> Vec<String> {
    let long = |last: &str| format!("{}{last}", "n".repeat(512 - last.len()));
    let mut names: Vec<_> = ALIKE.into_iter().map(str::to_owned).collect();
    // The longest names, which differ only at their ends, and what a server that cuts them off would make of them.
    names.extend([long("1"), long("2"), long("/"), "n".repeat(511), "n".repeat(64), "n".repeat(65)]);
    names.extend(["n".repeat(255), "n".repeat(256), "\u{1F512}".repeat(128)]);
    names
}

pub(super) async fn release_all(guards: impl IntoIterator<Item = LockGuard>) -> Outcome {
    for guard in guards {
        let name = guard.hold().name().clone();
        guard.release().await.during(format_args!("release {name:?}"))?;
    }
    Ok(())
}

async fn many_locks_are_held_at_once(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let name = |number: u32| format!("lock {number}");
    let mut guards = Vec::new();
    let many = stage.rounds(500);
    for number in 0..many {
        guards.push(ours.mutex(name(number))?.acquire().await.during(name(number))?);
    }
    for guard in &guards {
        let hold = guard.hold();
        stage.is_held(&theirs, hold.name().as_str()).await?;
        ensure!(hold.is_valid(), "{:?} is lost: {:?}", hold.name(), hold.end());
    }
    release_all(guards).await?;
    for number in (0..many).step_by(17) {
        stage.is_free(&theirs, &name(number)).await?;
    }
    Ok(())
}
