//! Contests with random harm. `soak SECONDS SEED FOLDER` goes on for that long, as `cargo xtask soak` runs it, and keeps
//! the history of what fails in the folder. Without that it checks that contests find errors: with a lock that excludes
//! they pass, and with one that does not they fail.

#[cfg(unix)]
#[path = "../ensemble/connection.rs"]
mod connection;
#[cfg(unix)]
mod dice;
#[cfg(unix)]
mod place;
#[cfg(unix)]
mod round;

#[cfg(unix)]
mod soak {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};
    use std::process::ExitCode;
    use std::time::Duration;

    use conformance_tests::{Contest, Contested, Failure, Outcome, contend_if_told};
    use libtest_mimic::{Arguments, Trial};
    use tokio::signal::unix::{SignalKind, signal};
    use tokio::time::Instant;

    use super::connection::{self, Connection};
    use super::place::{Kind, LEASE, Server};
    use super::round::{PATIENCE, Round};

    /// How often harm is done in a round.
    const HARMS: usize = 6;

    /// More would say nothing new.
    const MOST_FAILURES: u32 = 5;

    pub(super) fn main() -> ExitCode {
        if let Some(code) = contend_if_told::<Connection>() {
            return code;
        }
        let words: Vec<_> = std::env::args().skip(1).collect();
        if let [word, seconds, seed, folder] = &words[..]
            && word == "soak"
        {
            return match (seconds.parse(), seed.parse()) {
                (Ok(seconds), Ok(seed)) => start(Duration::from_secs(seconds), seed, Path::new(folder)),
                _ => usage(),
            };
        }
        let trials = vec![
            Trial::test("processes_with_a_lock_between_them_pass", || run(excluded())),
            Trial::test("processes_with_a_lock_each_are_found_and_their_history_is_kept", || {
                run(not_excluded())
            }),
            Trial::test("processes_at_a_store_that_checks_and_writes_in_two_steps_are_found", || {
                run(in_two_steps())
            }),
            Trial::test("processes_that_wait_for_a_third_of_a_lease_are_found", || run(with_fast_clocks())),
        ];
        libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
    }

    fn usage() -> ExitCode {
        eprintln!("usage: soak SECONDS SEED FOLDER");
        ExitCode::from(64)
    }

    fn run<T>(test: impl Future<Output = Outcome<T>>) -> Result<T, libtest_mimic::Failed> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(test)?)
    }

    /// What a round leaves: its place ends with it.
    struct Played {
        round: Round,
        outcome: Outcome<Contested>,
        kept: Option<PathBuf>,
    }

    async fn play(kind: Kind, seed: u64, harms: usize, folder: &Path) -> Outcome<Played> {
        let mut round = Round::start(kind, seed).await?;
        let outcome = round.play(harms).await;
        let kept = match &outcome {
            Ok(_) => None,
            Err(failure) => Some(round.keep(failure, folder)?),
        };
        Ok(Played { round, outcome, kept })
    }

    async fn excluded() -> Outcome {
        let folder = tempfile::tempdir()?;
        let played = play(Kind::File, 7, 3, folder.path()).await?;
        let contested = played.outcome?;
        let harms: u32 = played.round.harms.values().sum();
        if contested.visits > 10 && harms > 2 {
            return Ok(());
        }
        Err(Failure::new(format!("{contested:?} {harms} harms")))
    }

    async fn not_excluded() -> Outcome {
        let folder = tempfile::tempdir()?;
        let played = play(Kind::None, 7, 1, folder.path()).await?;
        let kept = std::fs::read_to_string(played.kept.unwrap_or_default())?;
        let is_whole = |text: &str| kept.contains(text) && kept.contains("contender-1 asked ");
        match found(played.outcome)? {
            text if is_whole(&text) => Ok(()),
            _ => Err(Failure::new(format!("kept:\n{kept}"))),
        }
    }

    /// What a contest says of those who held at once, or got one token at once.
    fn found(outcome: Outcome<Contested>) -> Outcome<String> {
        match outcome {
            Err(failure)
                if ["exclusion: ", "fencing: "].iter().any(|kind| failure.to_string().starts_with(kind)) =>
            {
                Ok(failure.to_string())
            }
            other => Err(Failure::new(format!("those who held at once came out as {other:?}"))),
        }
    }

    /// How often a contest is repeated that need not find the error each time, such as on a busy machine.
    const TIMES: usize = 5;

    async fn in_two_steps() -> Outcome {
        found(until_failure(two_steps).await).map(drop)
    }

    async fn with_fast_clocks() -> Outcome {
        found(until_failure(fast_clocks).await).map(drop)
    }

    async fn until_failure(contest: impl AsyncFn() -> Outcome<Contested>) -> Outcome<Contested> {
        for _ in 1..TIMES {
            contest().await?;
        }
        contest().await
    }

    async fn two_steps() -> Outcome<Contested> {
        let server = Server::start(Kind::TwoSteps).await?;
        let mut contest = Contest::start(&[server.url(None)?, server.url(None)?], PATIENCE).await?;
        contest.all_go_on(3).await?;
        contest.end().await
    }

    /// The holder stands still for less than its lease, which is over by the clocks of the others.
    async fn fast_clocks() -> Outcome<Contested> {
        let server = Server::start(Kind::ObjectStore).await?;
        let url = server.url(None)?;
        let mut contest =
            Contest::start(&[url.clone(), connection::with_a_fast_clock(&url)], PATIENCE).await?;
        contest.all_go_on(3).await?;
        contest.cling(0, LEASE).await?;
        contest.stop(0)?;
        contest.go_on(&[1], 2).await?;
        contest.resume(0)?;
        contest.all_go_on(1).await?;
        contest.end().await
    }

    fn start(time: Duration, seed: u64, folder: &Path) -> ExitCode {
        // Whatever ends this future ends the servers and the processes, also those that stand still.
        let ended = run(async {
            let (mut interrupt, mut end) =
                (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            tokio::select! {
                failures = soak(time, seed, folder) => failures,
                _ = interrupt.recv() => Err(Failure::new("interrupted")),
                _ = end.recv() => Err(Failure::new("ended by a signal")),
            }
        });
        match ended {
            Ok(0) => ExitCode::SUCCESS,
            Ok(failures) => {
                eprintln!("error: {failures} rounds failed");
                ExitCode::FAILURE
            }
            Err(failed) => {
                eprintln!("error: {}", failed.message().unwrap_or_default());
                ExitCode::FAILURE
            }
        }
    }

    /// What was done at one backend.
    #[derive(Debug, Default)]
    struct Tally {
        rounds: u32,
        grants: usize,
        losses: usize,
        harms: BTreeMap<&'static str, u32>,
    }

    async fn soak(time: Duration, first: u64, folder: &Path) -> Outcome<u32> {
        let kinds: Vec<_> = Kind::SOAKED.into_iter().filter(|kind| !kind.is_left_out()).collect();
        let until = Instant::now() + time;
        let (mut seed, mut failures) = (first, 0);
        let mut tallies = BTreeMap::<Kind, Tally>::new();
        while Instant::now() < until && failures < MOST_FAILURES {
            // By the seed, so that a round can be repeated alone.
            let kind = kinds[usize::try_from(seed % kinds.len() as u64).unwrap_or_default()];
            let played = play(kind, seed, HARMS, folder).await?;
            let tally = tallies.entry(kind).or_default();
            tally.rounds += 1;
            for (harm, times) in &played.round.harms {
                *tally.harms.entry(harm).or_default() += times;
            }
            match (&played.outcome, &played.kept) {
                (Ok(contested), _) => {
                    tally.grants += contested.visits;
                    tally.losses += contested.losses;
                    println!("{kind:?}, seed {seed}: {contested:?} {:?}", played.round.harms);
                }
                (Err(failure), kept) => {
                    failures += 1;
                    let kept = kept.as_deref().unwrap_or(folder).display();
                    println!("{kind:?}, seed {seed}: FAILED: {failure}\n    its history is in {kept}");
                }
            }
            seed += 1;
        }
        println!("\ncontests with the seeds {first} to {}:", seed - 1);
        for (kind, Tally { rounds, grants, losses, harms }) in tallies {
            println!("{kind:?}: {rounds} rounds, {grants} grants, {losses} losses; {harms:?}");
        }
        Ok(failures)
    }
}

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    soak::main()
}

#[cfg(not(unix))]
fn main() {
    println!("contests need processes that can be told apart, and run on Unix systems only");
}
