//! The processor time of the server: of all processes that descend from this one. All servers are measured in this way.

use std::collections::HashMap;
use std::time::Duration;
use std::{fs, iter, process};

/// Returns how much it has used since it began; nothing without a server that was started for this run.
pub(crate) fn server_time() -> Option<Duration> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: HashMap<_, _> = numbers.filter_map(|id| Some((id, parent(id)?))).collect();
    let ancestors = |id: u32| iter::successors(parents.get(&id).copied(), |id| parents.get(id).copied());
    let ours = parents.keys().filter(|id| ancestors(**id).any(|parent| parent == process::id()));
    ours.map(|id| used(*id)).reduce(|one, other| one + other)
}

fn parent(id: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// What the threads have used that there are. The system counts it in nanoseconds, and that of a process in hundredths of a second.
fn used(id: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let used = |path| fs::read_to_string(path).ok()?.split(' ').next()?.parse::<u64>().ok();
    Duration::from_nanos(threads.filter_map(|thread| used(thread.path().join("schedstat"))).sum())
}
