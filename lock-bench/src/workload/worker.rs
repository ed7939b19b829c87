//! The process that contains the clients of *many* and *waiting*. It reads commands as lines and answers with lines.

use std::io::{BufRead, stdin};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::many::{self, NAME_PREFIX};
use super::waiting;
use crate::contender::{Client, Contender, Held, Lock, Target};
use crate::failure::{Context, Failure, Outcome};
use crate::process;
use crate::runtimes::RuntimeKind;
use crate::subject::Subject;

pub(crate) const URL_VARIABLE: &str = "LOCK_BENCH_URL";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Work {
    Many,
    Waiting,
}

impl Work {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Many => "many",
            Self::Waiting => "waiting",
        }
    }
}

/// The answer when the clients have what they should hold or wait for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Prepared {
    pub(super) seconds: f64,
    /// In bytes; `None` if the system does not provide it.
    pub(super) growth: Option<u64>,
}

/// The resources used between the commands `BEGIN` and `END`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Used {
    pub(super) seconds: f64,
    pub(super) processor_seconds: f64,
}

/// The result for the holds after the command `RELEASE`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Released {
    pub(super) failures: usize,
    pub(super) first_failure: Option<String>,
}

pub(super) const BEGIN: &str = "begin";
pub(super) const END: &str = "end";
pub(super) const RELEASE: &str = "release";

/// Runs until its input ends.
pub(crate) fn run(
    subject: &'static Subject,
    contender: &str,
    work: Work,
    count: usize,
    lease: Duration,
) -> Outcome<()> {
    let contender = subject.contenders.iter().find(|known| known.id == contender);
    let contender = contender.context("there is no such contender")?;
    let url = std::env::var(URL_VARIABLE).context(URL_VARIABLE)?;
    let renewals_in_a_lease = subject.renewals_in_a_lease;
    let target = Target { url, lease, renewals_in_a_lease, server_process: None };
    RuntimeKind::CurrentThread.run(async move {
        let served = serve(contender, work, count, target).await;
        if let Err(failure) = &served {
            answer(&serde_json::json!({ "failed": failure.to_string() }));
        }
        served
    })
}

fn done<T: Serialize>(answered: &T) {
    answer(&serde_json::json!({ "done": answered }));
}

#[expect(clippy::print_stdout, reason = "the answers are lines on standard output")]
fn answer(line: &serde_json::Value) {
    println!("{line}");
}

async fn serve(contender: &'static Contender, work: Work, count: usize, target: Target) -> Outcome<()> {
    let mut words = words()?;
    let (mut burden, prepared) = match work {
        Work::Many => take_up_holds(contender, count, &target).await?,
        Work::Waiting => take_up_waiters(contender, count, &target).await?,
    };
    done(&prepared);
    let (mut since, mut processor) = (Instant::now(), process::processor_time());
    while let Some(word) = words.recv().await {
        match word.as_str() {
            BEGIN => {
                (since, processor) = (Instant::now(), process::processor_time());
                done(&());
            }
            END => done(&Used {
                seconds: since.elapsed().as_secs_f64(),
                processor_seconds: process::processor_time().saturating_sub(processor).as_secs_f64(),
            }),
            RELEASE => done(&burden.release().await),
            other => return Err(Failure::new(format!("what is {other:?}?"))),
        }
    }
    Ok(())
}

async fn take_up_holds(
    contender: &'static Contender,
    count: usize,
    target: &Target,
) -> Outcome<(Burden, Prepared)> {
    let client = contender.client(target.clone()).await?;
    // The memory that a first acquisition makes the process keep does not belong to a hold.
    client.lock(&format!("{NAME_PREFIX}first"))?.acquire().await?.release().await?;
    let (begun, before) = (Instant::now(), process::resident_bytes());
    let holds = many::hold(client.as_ref(), count).await?;
    let growth = process::resident_bytes().zip(before).map(|(after, before)| after.saturating_sub(before));
    let prepared = Prepared { seconds: begun.elapsed().as_secs_f64(), growth };
    Ok((Burden::Holds { holds, _client: client }, prepared))
}

async fn take_up_waiters(
    contender: &'static Contender,
    count: usize,
    target: &Target,
) -> Outcome<(Burden, Prepared)> {
    let begun = Instant::now();
    let waiters = waiting::wait(contender, count, target).await?;
    Ok((Burden::Waiters(waiters), Prepared { seconds: begun.elapsed().as_secs_f64(), growth: None }))
}

/// The lines of standard input.
fn words() -> Outcome<mpsc::UnboundedReceiver<String>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let body = move || {
        let mut lines = stdin().lock().lines();
        while let Some(Ok(line)) = lines.next() {
            if sender.send(line).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("words".to_owned()).spawn(body).context("a thread")?;
    Ok(receiver)
}

pub(super) type Holding = (Box<dyn Lock>, Box<dyn Held>);

/// Clients that wait, each in a task. They exist as long as their tasks.
pub(super) struct Waiters {
    pub(super) _clients: Vec<Box<dyn Client>>,
    pub(super) tasks: Vec<JoinHandle<Outcome<()>>>,
}

enum Burden {
    Holds { holds: Vec<Holding>, _client: Box<dyn Client> },
    Waiters(Waiters),
}

impl Burden {
    async fn release(&mut self) -> Released {
        match self {
            Self::Holds { holds, _client } => {
                let mut releasing = JoinSet::new();
                for (lock, held) in holds.drain(..) {
                    releasing.spawn(async move {
                        let released = held.release().await;
                        drop(lock);
                        released
                    });
                }
                released(releasing.join_all().await)
            }
            Self::Waiters(Waiters { tasks, .. }) => {
                // The waiters never get the lock, so a task that has ended has failed.
                let ended = tasks.extract_if(.., |task| task.is_finished());
                let mut outcomes = Vec::new();
                for task in ended.collect::<Vec<_>>() {
                    outcomes.push(task.await.context("a waiter").and_then(|outcome| outcome));
                }
                released(outcomes)
            }
        }
    }
}

fn released(outcomes: Vec<Outcome<()>>) -> Released {
    let mut failures = outcomes.into_iter().filter_map(Result::err);
    let first_failure = failures.next().map(|failure| failure.to_string());
    Released { failures: failures.count() + usize::from(first_failure.is_some()), first_failure }
}
