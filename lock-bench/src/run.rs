//! One run, from the server's start to the report.

use std::process::ExitCode;
use std::thread;
use std::time::{Instant, SystemTime};

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::aims;
use crate::arguments::Options;
use crate::compare::Baseline;
use crate::failure::{Context, Failure, Outcome};
use crate::plan::{Plan, ServerAddress, Workload};
use crate::process;
use crate::progress::Progress;
use crate::report::{self, Files};
use crate::results::{FORMAT, Listed, Machine, Report, Results};
use crate::runtimes::RuntimeKind;
use crate::subject::Subject;
use crate::workload::{cycle, exec, hand_off, many, requests, sharing, tasks, waiting};

/// The exit code that shells use for an interrupted program.
const INTERRUPTED: u8 = 130;

/// Runs the subjects one after the other. If one fails, the others are still measured.
pub(crate) fn run_each(subjects: &[&'static Subject], options: &Options) -> Outcome<ExitCode> {
    let files = if subjects.len() > 1 { Files::OneForEach } else { Files::AsNamed };
    let baselines: Outcome<Vec<_>> =
        subjects.iter().map(|subject| baseline(subject, options, files)).collect();
    let mut failures = Vec::new();
    for (subject, baseline) in subjects.iter().zip(baselines?) {
        match run(subject, options, files, baseline) {
            Ok(code) if code == ExitCode::SUCCESS => {}
            Ok(code) => return Ok(code),
            Err(failure) if subjects.len() > 1 => {
                failures.push(format!("{}: {failure}", subject.title));
            }
            Err(failure) => return Err(failure),
        }
    }
    if failures.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(Failure::new(failures.join("\n"))) }
}

fn baseline(subject: &Subject, options: &Options, files: Files) -> Outcome<Option<Baseline>> {
    let path = options.baseline.as_ref().map(|path| files.path(path, subject.id));
    path.map(|path| Baseline::read(&path, subject)).transpose()
}

fn run(
    subject: &'static Subject,
    options: &Options,
    files: Files,
    baseline: Option<Baseline>,
) -> Outcome<ExitCode> {
    process::raise_open_files();
    // The server ends with this function in any case, even when the run is interrupted.
    let own_server = if options.url.is_none() { Some((subject.start)()?) } else { None };
    let url = own_server.as_ref().map(|server| server.url()).or_else(|| options.url.clone());
    let server_process = own_server.as_ref().map(|server| server.process());
    let address = ServerAddress { url: url.context("a URL")?, server_process };
    let plan = Plan::new(subject, address, &options.wishes());
    if plan.contenders.is_empty() {
        let known: Vec<_> = subject.contenders.iter().map(|contender| contender.id).collect();
        return Err(Failure::new(format!("no contender is left; there are: {}", known.join(", "))));
    }
    if plan.workloads.is_empty() {
        return Err(Failure::new(format!("{} has none of these workloads", subject.title)));
    }
    let progress = Progress::new();
    let Some(measured) = unless_interrupted(subject, plan, progress.clone())? else {
        progress.finish();
        return Ok(ExitCode::from(INTERRUPTED));
    };
    progress.finish();
    let mut report = measured?;
    report.comparison = baseline.map(|baseline| baseline.compare(subject, &report));
    report::write(&report, options, files, subject.id)?;
    let troubles = report.troubles_of_distlock();
    if troubles.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(format!("distlock could not do all of it:\n  {}", troubles.join("\n  "))))
}

/// Returns `None` when the run was interrupted.
fn unless_interrupted(
    subject: &'static Subject,
    plan: Plan,
    progress: Progress,
) -> Outcome<Option<Outcome<Report>>> {
    let (sender, done) = oneshot::channel();
    let body = move || drop(sender.send(measure(subject, plan, &progress)));
    thread::Builder::new().name("measure".to_owned()).spawn(body).context("a thread")?;
    let runtime = Builder::new_current_thread().enable_all().build().context("a runtime")?;
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate()).context("signals")?;
        tokio::select! {
            measured = done => measured.context("the measurement ended without a result").map(Some),
            interrupted = tokio::signal::ctrl_c() => interrupted.context("signals").map(|()| None),
            _ = terminated.recv() => Ok(None),
        }
    })
}

fn measure(subject: &'static Subject, plan: Plan, progress: &Progress) -> Outcome<Report> {
    let (begun_at, begun) = (SystemTime::now(), Instant::now());
    let load_average_before = process::load_average();
    let target = plan.target.clone();
    let connecting = async move { (subject.monitor)(target).await?.describe().await };
    let server = RuntimeKind::CurrentThread.run(connecting)?;
    let mut results = Results::default();
    for workload in &plan.workloads {
        measure_workload(subject, &plan, *workload, progress, &mut results)?;
    }
    if subject.request_counter.is_some() {
        progress.part("requests");
        let counting = requests::run(subject, plan.clone(), progress.clone());
        results.requests = RuntimeKind::MultiThread.run(counting)?;
    }
    Ok(Report {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        subject: subject.title.to_owned(),
        server,
        address: address(&plan.target.url),
        begun: humantime::format_rfc3339_seconds(begun_at).to_string(),
        seconds: begun.elapsed().as_secs_f64(),
        machine: Machine {
            processors: thread::available_parallelism().map_or(0, usize::from),
            processor: process::processor_name(),
            load_average_before,
            load_average_after: process::load_average(),
        },
        contenders: plan.contenders.iter().map(|contender| Listed::of(contender)).collect(),
        aims: aims::judge(subject, &plan.contenders, &results),
        comparison: None,
        plan,
        results,
    })
}

fn measure_workload(
    subject: &'static Subject,
    plan: &Plan,
    workload: Workload,
    progress: &Progress,
    results: &mut Results,
) -> Outcome<()> {
    match workload {
        Workload::Cycle => {
            for kind in &plan.runtimes {
                progress.part(&format!("cycle, {}", kind.title()));
                let (rows, echoes) = kind.run(cycle::run(subject, plan.clone(), *kind, progress.clone()))?;
                results.cycle.extend(rows);
                results.echoes.extend(echoes);
            }
        }
        Workload::HandOff => {
            for kind in &plan.runtimes {
                progress.part(&format!("hand-off, {}", kind.title()));
                let (rows, echoes) =
                    kind.run(hand_off::run(subject, plan.clone(), *kind, progress.clone()))?;
                results.hand_off.extend(rows);
                results.echoes.extend(echoes);
            }
        }
        Workload::Many => {
            progress.part("many");
            let measured = many::run(subject, plan.clone(), progress.clone());
            results.many = RuntimeKind::MultiThread.run(measured)?;
        }
        Workload::Waiting => {
            progress.part("waiting");
            let measured = waiting::run(subject, plan.clone(), progress.clone());
            results.waiting = RuntimeKind::MultiThread.run(measured)?;
        }
        Workload::Sharing => {
            for kind in &plan.runtimes {
                progress.part(&format!("sharing, {}", kind.title()));
                results.sharing.extend(kind.run(sharing::run(plan.clone(), *kind, progress.clone()))?);
            }
        }
        Workload::Tasks => {
            for kind in &plan.runtimes {
                progress.part(&format!("tasks, {}", kind.title()));
                results.tasks.extend(kind.run(tasks::run(subject, plan.clone(), *kind, progress.clone()))?);
            }
        }
        Workload::Exec => {
            progress.part("exec");
            results.exec = exec::run(plan, progress);
        }
    }
    Ok(())
}

/// Returns host and port of a URL, and nothing else.
fn address(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
    // A password may wrongly contain an unescaped @.
    authority.rsplit('@').next().unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_in_the_address() {
        assert_eq!(address("redis://user:p@ss@host:1234/0?lease=3s"), "host:1234");
        assert_eq!(address("redis://host"), "host");
        assert_eq!(address("unix:///run/redis.sock?user=me"), "");
    }
}
