//! A worker in a process of its own: the test program, started again.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ExitCode, Stdio};
use std::thread;

use lock_core::{ClientBuilder, LockError};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::host::Host;
use super::protocol::Report;
use super::{kind_of, serve};
use crate::harness::Harness;

const ADDRESS: &str = "DISTLOCK_CONFORMANCE_WORKER_ADDRESS";
const LABEL: &str = "DISTLOCK_CONFORMANCE_WORKER_LABEL";

/// Starts this program again as a worker.
pub(super) fn start(address: &str, label: &str) -> io::Result<(Host, UnboundedReceiver<Report>)> {
    let mut child = std::process::Command::new(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(ADDRESS, address)
        .env(LABEL, label)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("the process has no pipes"));
    };
    let (sender, reports) = mpsc::unbounded_channel();
    let host = Host::Process { child, input };
    read_lines(BufReader::new(output), sender, || ())?;
    Ok((host, reports))
}

/// Decodes each line and passes it on, until there are no more; then calls `at_end`.
fn read_lines<T: DeserializeOwned + Send + 'static>(
    input: impl BufRead + Send + 'static,
    sender: UnboundedSender<T>,
    at_end: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let reader = move || {
        for line in input.lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(message) => {
                    if sender.send(message).is_err() {
                        return;
                    }
                }
                Err(error) => eprintln!("not understood ({error}): {line}"),
            }
        }
        at_end();
    };
    thread::Builder::new().name("worker-lines".to_owned()).spawn(reader).map(drop)
}

/// The process that controlled this worker is gone, and may have been killed while the worker is busy.
fn end_at_once() {
    std::process::exit(1);
}

/// Returns the address and the label if this process is to be a worker.
pub(crate) fn requested() -> Option<(String, String)> {
    Some((env::var(ADDRESS).ok()?, env::var(LABEL).ok()?))
}

/// Runs as a worker until it receives `Quit`, or its input ends.
pub(crate) fn serve_process<H: Harness>(address: &str, label: &str) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{label}: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (sender, commands) = mpsc::unbounded_channel();
    if let Err(error) = read_lines(BufReader::new(io::stdin()), sender, end_at_once) {
        eprintln!("{label}: no thread: {error}");
        return ExitCode::FAILURE;
    }
    runtime.block_on(async {
        match H::connect(address, ClientBuilder::new().label(label)).await {
            Ok(client) => serve::serve(client, commands, print).await,
            Err(error) => print(failed(&error)),
        }
    });
    ExitCode::SUCCESS
}

fn failed(error: &LockError) -> Report {
    Report::Failed { kind: kind_of(error), text: error.to_string() }
}

#[allow(clippy::needless_pass_by_value, reason = "the signature that `serve` requires")]
fn print(report: Report) {
    if let Ok(line) = serde_json::to_string(&report) {
        // This fails only if the reader is gone, and then the input ends as well.
        let _ = writeln!(io::stdout(), "{line}");
    }
}
