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

use crate::cases::exclusion::{Scratch, check_exclusion, check_tokens, quit};
use crate::harness::Harness;
use crate::worker::{self, Command, Count, End, Report, Visit, Worker};

const LOCK: &str = "contest";

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Processes that contend for one lock. Dropping this kills them.
#[derive(Debug)]
pub struct Contest {
    contenders: Vec<Contender>,
    history: History,
    /// How many contenders were killed, each of which may have counted once and not told of it.
    killed: usize,
    number: Scratch,
    patience: Duration,
}

/// What happened so far, in nanoseconds of the system clock.
#[derive(Debug, Default)]
struct History {
    visits: Vec<Visited>,
    notes: Vec<(u64, String)>,
    excused: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct Visited {
    who: String,
    visit: Visit,
    count: Count,
    end: End,
}

#[derive(Debug)]
struct Contender {
    address: String,
    worker: Worker,
    visits: usize,
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
    /// The longest time in which no process had it, between two that had: what the disturbances cost.
    pub longest_outage: Duration,
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
            let address = address.clone();
            contenders.push(Contender { address, worker, visits: 0, clung: 0, rests: false });
        }
        for contender in &mut contenders {
            contender.contend(&number)?;
        }
        Ok(Self { contenders, history: History::default(), killed: 0, number, patience })
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
        let before: Vec<_> = who.iter().map(|index| (*index, self.contenders[*index].visits)).collect();
        // The patience is for one visit of each: how long many of them take says only how busy the machine is.
        for more in 1..=times {
            let what = format!("{more} more visits of each of {who:?}");
            let goes_on = |contest: &Self| {
                before.iter().all(|(index, before)| contest.contenders[*index].visits >= before + more)
            };
            self.until(&what, goes_on).await?;
        }
        Ok(())
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

    /// Kills a contender with a signal that it cannot catch, and starts another in its place. One that is killed while
    /// it writes may lose the number, so another one has to hold the lock, or this one for a while (see
    /// [`Contest::cling`]).
    ///
    /// # Errors
    /// When it cannot be killed, or the other one cannot connect.
    ///
    /// # Cancel safety
    /// If the future is dropped, the contender may be missing.
    pub async fn replace(&mut self, who: usize) -> Outcome {
        self.killed += 1;
        let (number, contender) = (self.killed, &mut self.contenders[who]);
        contender.worker.kill()?;
        while let Some(report) = contender.worker.last_words().await {
            contender.note(report, &mut self.history.visits)?;
        }
        let label = format!("contender-{who}-after-{number}");
        contender.worker = Worker::process(&contender.address, &label, self.patience).await?;
        contender.contend(&self.number)
    }

    /// Suspends a contender until [`Contest::resume`].
    ///
    /// # Errors
    /// When it has ended.
    pub fn stop(&self, who: usize) -> Outcome {
        self.contenders[who].worker.stop()
    }

    /// Resumes a contender after [`Contest::stop`].
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self, who: usize) -> Outcome {
        self.contenders[who].worker.resume()
    }

    /// Adds a line to the history, and returns its time for [`Contest::excuse`].
    pub fn note(&mut self, what: impl Into<String>) -> u64 {
        let now = worker::stamp();
        self.history.notes.push((now, what.into()));
        now
    }

    /// Does not check the holds from this time until now: something was done for which the backend promises no
    /// exclusion. Their tokens still have to rise.
    pub fn excuse(&mut self, from: u64) {
        self.history.excused.push((from, worker::stamp()));
    }

    /// Returns what happened, one line each in the order of time.
    pub fn history(&self) -> Vec<String> {
        let visits = self.history.visits.iter().map(|Visited { who, visit, count, end }| {
            let Visit { asked, acquired, ended, token } = visit;
            let line =
                format!("{who} asked {asked}, held until {ended:?}, token {token:?}, counted {count:?}");
            (*acquired, format!("{line}, {end:?}"))
        });
        let mut lines: Vec<_> = visits.chain(self.history.notes.iter().cloned()).collect();
        lines.sort();
        lines.into_iter().map(|(at, line)| format!("{at} {line}")).collect()
    }

    /// Ends the contest, and checks what happened.
    ///
    /// # Errors
    /// When a check fails, or a contender fails.
    ///
    /// # Cancel safety
    /// Dropping the future leaves processes, which end with the contest.
    pub async fn end(&mut self) -> Outcome<Contested> {
        for contender in &mut self.contenders {
            contender.tell(&Command::Rest)?;
        }
        self.until("the end of the contest", |contest| {
            contest.contenders.iter().all(|contender| contender.rests)
        })
        .await?;
        let contested = self.history.check(&self.number, self.killed)?;
        quit(self.contenders.drain(..).map(|contender| contender.worker).collect()).await?;
        Ok(contested)
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) -> Outcome {
        let deadline = Instant::now() + self.patience;
        loop {
            self.hear()?;
            if condition(self) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let visits: Vec<_> = self.contenders.iter().map(|each| each.visits).collect();
                let text = format!("{what}: not so within {:?}; visits so far: {visits:?}", self.patience);
                return Err(Failure::new(text));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn hear(&mut self) -> Outcome {
        self.contenders.iter_mut().try_for_each(|contender| contender.hear(&mut self.history.visits))
    }
}

impl History {
    fn check(&self, number: &Scratch, killed: usize) -> Outcome<Contested> {
        let all = || self.visits.iter();
        let of = |visited: &Visited| (visited.who.clone(), visited.visit);
        check_exclusion(
            LOCK,
            &all().filter(|visited| !self.excuses(&visited.visit)).map(of).collect::<Vec<_>>(),
        )?;
        check_tokens(LOCK, &all().map(of).collect::<Vec<_>>())?;
        let counted = |wanted: Count| all().filter(|visited| visited.count == wanted).count();
        let (up, doubtful) = (counted(Count::Up), counted(Count::Doubtful));
        // A process that wrote when it no longer held the lock may have written anything.
        if doubtful == 0 && self.excused.is_empty() {
            let number = std::fs::read_to_string(number.path()).during("read the number")?;
            let is_right = number.parse().is_ok_and(|number| (up..=up + killed).contains(&number));
            ensure!(is_right, "counted up to {number}, not to {up}");
        }
        let losses = all().filter(|visited| visited.end == End::Lost).count();
        Ok(Contested { visits: self.visits.len(), losses, longest_outage: self.longest_outage() })
    }

    fn longest_outage(&self) -> Duration {
        let mut held: Vec<_> = self.visits.iter().map(|Visited { visit, .. }| visit).collect();
        held.sort_by_key(|visit| visit.acquired);
        let (mut longest, mut held_until) = (0, held.first().map_or(0, |first| first.acquired));
        for visit in held {
            longest = longest.max(visit.acquired.saturating_sub(held_until));
            // One without an end lasts to the end of the contest.
            held_until = held_until.max(visit.ended.unwrap_or(u64::MAX));
        }
        Duration::from_nanos(longest)
    }

    fn excuses(&self, visit: &Visit) -> bool {
        let overlaps =
            |(from, until): &(u64, u64)| visit.acquired < *until && visit.ended.is_none_or(|end| end > *from);
        self.excused.iter().any(overlaps)
    }
}

impl Contender {
    fn contend(&mut self, number: &Scratch) -> Outcome {
        self.tell(&Command::Contend { name: LOCK.to_owned(), file: number.path().to_owned() })
    }

    fn tell(&mut self, command: &Command) -> Outcome {
        self.worker.tell(command)
    }

    fn hear(&mut self, visits: &mut Vec<Visited>) -> Outcome {
        self.worker.told().into_iter().try_for_each(|report| self.note(report, visits))
    }

    fn note(&mut self, report: Report, visits: &mut Vec<Visited>) -> Outcome {
        match report {
            Report::Visited { visit, count, end } => {
                self.visits += 1;
                visits.push(Visited { who: self.worker.label().to_owned(), visit, count, end });
            }
            Report::Clings => self.clung += 1,
            Report::Rested => self.rests = true,
            Report::Lost { .. } | Report::Progress => {}
            other => return Err(self.worker.unexpected(&other)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_outage_is_between_all_holds_before_and_the_next() {
        let of = |holds: &[(u64, Option<u64>)]| {
            let visited = |&(acquired, ended)| Visited {
                who: "one".to_owned(),
                visit: Visit { asked: 0, acquired, ended, token: None },
                count: Count::Up,
                end: End::LetGo,
            };
            let visits = holds.iter().map(visited).collect();
            History { visits, ..History::default() }.longest_outage().as_nanos()
        };
        assert_eq!(of(&[]), 0);
        // The wait for the first is none.
        assert_eq!(of(&[(100, Some(110))]), 0);
        // Not in the order of time; and one hold lasts beyond the next.
        assert_eq!(of(&[(170, Some(180)), (100, Some(150)), (110, Some(120)), (151, Some(152))]), 18);
        assert_eq!(of(&[(100, None), (170, Some(180))]), 0);
    }
}
