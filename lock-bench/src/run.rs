//! One run, from the server's start to the report.

use std::fs;
use std::io::{Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Instant, SystemTime};

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::contender::Family;
use crate::failure::{Context, Failure, Outcome};
use crate::plan::{Options, Plan, Workload};
use crate::report::{FORMAT, Report};
use crate::runtimes::RuntimeKind;
use crate::subject::Subject;
use crate::{aims, exec, turns};

/// The exit code that shells use for an interrupted program.
const INTERRUPTED: u8 = 130;

pub(crate) fn run(subject: &'static Subject, options: Options) -> Outcome<ExitCode> {
    // The server ends with this function in any case, even when the run is interrupted.
    let own_server = if options.url.is_none() { Some((subject.start)()?) } else { None };
    let url = own_server.as_ref().map(|server| server.url()).or_else(|| options.url.clone());
    let plan = Plan::new(subject, url.context("a URL")?, &options);
    let options = Arc::new(options);
    let measuring = Arc::clone(&options);
    let Some(report) = unless_interrupted(move || measure(subject, &plan, &measuring))? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let report = report?;
    if report.rows.is_empty() {
        return Err(Failure::new("nothing is left to measure with these options"));
    }
    stdout().write_all(report.text().as_bytes()).context("standard output")?;
    if let Some(path) = &options.json {
        write(path, serde_json::to_string_pretty(&report).context("the JSON")? + "\n")?;
    }
    if let Some(path) = &options.html {
        write(path, report.html()?)?;
    }
    let troubles = report.troubles();
    if troubles.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(format!("distlock could not do all of it:\n  {}", troubles.join("\n  "))))
}

fn write(path: &Path, text: String) -> Outcome<()> {
    fs::write(path, text).context(path.display())
}

/// Returns `None` when the run was interrupted.
fn unless_interrupted<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Outcome<Option<T>> {
    let (sender, done) = oneshot::channel();
    let body = move || drop(sender.send(work()));
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

fn measure(subject: &'static Subject, plan: &Plan, options: &Options) -> Outcome<Report> {
    let (begun_at, begun) = (SystemTime::now(), Instant::now());
    let load_average = load_average();
    // A server that does not answer is found at once, and not by each contender in turn.
    for echo in subject.contenders.iter().filter(|contender| contender.family == Family::Echo).take(1) {
        drop(RuntimeKind::CurrentThread.run((echo.connect)(plan.target.clone()))?);
    }
    let mut rows = Vec::new();
    for &workload in &plan.workloads {
        if workload == Workload::Exec {
            rows.extend(exec::run(subject, plan, options));
            continue;
        }
        for &runtime in &plan.runtimes {
            // If standard error cannot be written to, there is no way to report it.
            let _ = writeln!(stderr(), "{workload:?}, {}", runtime.title());
            rows.extend(runtime.run(turns::run(plan.clone(), workload, runtime))?);
        }
    }
    Ok(Report {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        subject: subject.title,
        address: address(&plan.target.url),
        begun: humantime::format_rfc3339_seconds(begun_at).to_string(),
        seconds: begun.elapsed().as_secs_f64(),
        processors: thread::available_parallelism().map_or(0, usize::from),
        load_average,
        lease_ms: plan.target.lease.as_millis(),
        rounds: plan.rounds,
        contenders: plan.contenders.iter().map(|contender| (contender.id, contender.title)).collect(),
        aims: aims::judge(subject.aims, &rows),
        rows,
    })
}

/// Returns how many tasks ran or were ready to run; `None` if the system does not provide it.
fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Returns host and port of a URL, and nothing else.
fn address(url: &str) -> String {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
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
