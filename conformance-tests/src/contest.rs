//! Contests: processes contend for one lock while a test disturbs the servers. They check what a backend promises when
//! its servers are killed, stopped and separated from each other.
//!
//! Each process increments a number in a file that only the lock protects, as fast as it can. At the end the contest
//! checks that no two processes believed to hold the lock at the same time, that tokens rose, and that no increment was
//! lost whose process held the lock before and afterwards.

use std::process::ExitCode;
use std::time::Duration;

use crate::{During, Failure, Outcome, ensure};
use tokio::time::Instant;

use crate::cases::exclusion::{Scratch, check_exclusion, quit};
use crate::harness::Harness;
use crate::worker::{self, Command, Count, End, Report, Visit, Worker};

const LOCK: &str = "contest";

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Processes that contend for one lock. Dropping this kills them.
#[derive(Debug)]
pub struct Contest {
    contenders: Vec<Contender>,
    number: Scratch,
    patience: Duration,
}

#[derive(Debug)]
struct Contender {
    worker: Worker,
    visits: Vec<(Visit, Count, End)>,
    /// How often it was told to keep the lock, and had it.
    clung: usize,
    rests: bool,
}

/// The statistics of a contest without errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contested {
    /// How often a process had the lock.
    pub visits: usize,
    /// How often a holder lost it.
    pub losses: usize,
}

/// Runs this process as a contender if a [`Contest`] started it for that; returns its exit code when it has finished.
/// Call this first in the main function of a test program that has contests. `H` says how to connect, and nothing else
/// of it is used.
#[must_use]
pub fn contend_if_told<H: Harness>() -> Option<ExitCode> {
    worker::requested().map(|(address, label)| worker::serve_process::<H>(&address, &label))
}

impl Contest {
    /// Starts a process for each of the addresses, which have the form that [`Harness::connect`] takes. `patience` is
    /// how long to wait for something that has to happen.
    ///
    /// # Errors
    /// When a process does not start, or cannot connect.
    ///
    /// # Cancel safety
    /// Dropping the future ends the processes.
    pub async fn start(addresses: &[String], patience: Duration) -> Outcome<Self> {
        let number = Scratch::new()?;
        let mut contenders = Vec::new();
        for (index, address) in addresses.iter().enumerate() {
            let worker = Worker::process(address, &format!("contender-{index}"), patience).await?;
            contenders.push(Contender { worker, visits: Vec::new(), clung: 0, rests: false });
        }
        for contender in &mut contenders {
            contender.tell(&Command::Contend { name: LOCK.to_owned(), file: number.path().to_owned() })?;
        }
        Ok(Self { contenders, number, patience })
    }

    /// Waits until each contender has had the lock this many more times.
    ///
    /// # Errors
    /// When that does not happen, or a contender fails.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn all_go_on(&mut self, times: usize) -> Outcome {
        let all: Vec<_> = (0..self.contenders.len()).collect();
        self.go_on(&all, times).await
    }

    /// Waits until each of these contenders has had the lock this many more times.
    ///
    /// # Errors
    /// When that does not happen, or a contender fails.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn go_on(&mut self, who: &[usize], times: usize) -> Outcome {
        self.hear()?;
        let goals: Vec<_> =
            who.iter().map(|index| (*index, self.contenders[*index].visits.len() + times)).collect();
        let what = format!("{times} more visits of each of {who:?}");
        self.until(&what, |contest| {
            goals.iter().all(|(index, goal)| contest.contenders[*index].visits.len() >= *goal)
        })
        .await
    }

    /// Tells a contender to keep the lock for this long when it next has it, or until it has lost it, and waits until
    /// it holds it.
    ///
    /// # Errors
    /// When that does not happen, or a contender fails.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting; the contender still keeps the lock.
    pub async fn cling(&mut self, who: usize, at_most: Duration) -> Outcome {
        let milliseconds = u64::try_from(at_most.as_millis()).unwrap_or(u64::MAX);
        self.hear()?;
        let before = self.contenders[who].clung;
        self.contenders[who].tell(&Command::Cling { milliseconds })?;
        let what = format!("contender {who} holds the lock");
        self.until(&what, |contest| contest.contenders[who].clung > before).await
    }

    /// Ends the contest, and checks what happened.
    ///
    /// # Errors
    /// When a check fails, or a contender fails.
    ///
    /// # Cancel safety
    /// Dropping the future ends the processes.
    pub async fn end(mut self) -> Outcome<Contested> {
        for contender in &mut self.contenders {
            contender.tell(&Command::Rest)?;
        }
        self.until("the end of the contest", |contest| {
            contest.contenders.iter().all(|contender| contender.rests)
        })
        .await?;
        let contested = self.check()?;
        quit(self.contenders.into_iter().map(|contender| contender.worker).collect()).await?;
        Ok(contested)
    }

    fn check(&self) -> Outcome<Contested> {
        let all: Vec<_> = self.contenders.iter().flat_map(Contender::history).collect();
        let visits: Vec<_> = all.iter().map(|(who, visit, ..)| (who.clone(), *visit)).collect();
        check_exclusion(LOCK, &visits)?;
        let counted = |wanted: Count| all.iter().filter(|(_, _, count, _)| *count == wanted).count();
        let (up, doubtful) = (counted(Count::Up), counted(Count::Doubtful));
        // A process that wrote when it no longer held the lock may have written anything.
        if doubtful == 0 {
            let number = std::fs::read_to_string(self.number.path()).during("read the number")?;
            ensure!(number == up.to_string(), "counted up to {number}, not to {up}");
        }
        let losses = all.iter().filter(|(.., end)| *end == End::Lost).count();
        Ok(Contested { visits: visits.len(), losses })
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) -> Outcome {
        let deadline = Instant::now() + self.patience;
        loop {
            self.hear()?;
            if condition(self) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let visits: Vec<_> = self.contenders.iter().map(|each| each.visits.len()).collect();
                let text = format!("{what}: not so within {:?}; visits so far: {visits:?}", self.patience);
                return Err(Failure::new(text));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn hear(&mut self) -> Outcome {
        self.contenders.iter_mut().try_for_each(Contender::hear)
    }
}

impl Contender {
    fn tell(&mut self, command: &Command) -> Outcome {
        self.worker.tell(command)
    }

    fn hear(&mut self) -> Outcome {
        for report in self.worker.told() {
            match report {
                Report::Visited { visit, count, end } => self.visits.push((visit, count, end)),
                Report::Clings => self.clung += 1,
                Report::Rested => self.rests = true,
                Report::Lost { .. } | Report::Progress => {}
                other => return Err(self.worker.unexpected(&other)),
            }
        }
        Ok(())
    }

    fn history(&self) -> impl Iterator<Item = (String, Visit, Count, End)> {
        let who = self.worker.label();
        self.visits.iter().map(|(visit, count, end)| (who.to_owned(), *visit, *count, *end))
    }
}
