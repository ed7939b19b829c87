//! Locks without a server: in the memory of this process, and in files.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;

use crate::contender::{Connect, Connecting, Contender, Driving, Family, Renewal, Waits, distlock};
use crate::failure::{Context, Outcome};
use crate::plan::Workload;
use crate::subject::{Counters, Server, ServerMonitor, Sizes, Subject};

pub(crate) static MEMORY: Subject = Subject {
    id: "memory",
    title: "Memory",
    tasks: TASKS,
    workloads: &[Workload::Cycle, Workload::Tasks],
    start: || Ok(Box::new(Memory)),
    monitor: |_| nothing("in the memory of this process"),
    ..COMMON
};

pub(crate) static FILE: Subject = Subject {
    id: "file",
    title: "Files",
    tasks: &[],
    workloads: &[Workload::Cycle, Workload::HandOff, Workload::Sharing, Workload::Exec],
    start: || {
        let private = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("lock-bench-").permissions(private).tempdir();
        Ok(Box::new(Folder(folder.context("a folder")?)))
    },
    monitor: |_| nothing("files of this machine"),
    ..COMMON
};

const COMMON: Subject = Subject {
    id: "",
    title: "",
    contenders: &[CALLER, OWN],
    tasks: &[],
    workloads: &[],
    echoes: &[],
    aims: &[],
    full: Sizes {
        rounds: 8,
        lease: Duration::from_secs(30),
        hand_off_clients: &[2, 16, 64],
        turn_for_a_client: Duration::from_millis(7),
        holds: 0,
        waiters: 0,
        renewals_until_settled: 0,
        renewals_observed: 0,
    },
    quick: Sizes {
        rounds: 2,
        lease: Duration::from_secs(30),
        hand_off_clients: &[2, 16],
        turn_for_a_client: Duration::ZERO,
        holds: 0,
        waiters: 0,
        renewals_until_settled: 0,
        renewals_observed: 0,
    },
    renewals_in_a_lease: 4,
    start: || Ok(Box::new(Memory)),
    monitor: |_| nothing(""),
    request_counter: None,
};

const CALLER: Contender = Contender {
    id: "distlock-caller",
    title: "distlock, engine=caller",
    family: Family::Distlock,
    driving: Driving::Caller,
    waiting: "in the order of arrival",
    waits: Waits::ByItself,
    own_commands: &[],
    renewal: Renewal::Automatic,
    connect: Connect::Here(|target| distlock::without_lease(target, Driving::Caller)),
};

const OWN: Contender = Contender {
    id: "distlock-own",
    title: "distlock, engine=own (default)",
    driving: Driving::OtherThread,
    connect: Connect::Here(|target| distlock::without_lease(target, Driving::OtherThread)),
    ..CALLER
};

const TASKS: &[Contender] = &[
    CALLER,
    OWN,
    Contender {
        id: "distlock-caller-local",
        title: "distlock, engine=caller, local_handoff",
        connect: Connect::Here(|target| distlock::handing_over(target, Driving::Caller, None)),
        ..CALLER
    },
    Contender {
        id: "distlock-own-local",
        title: "distlock, engine=own, local_handoff",
        connect: Connect::Here(|target| distlock::handing_over(target, Driving::OtherThread, None)),
        ..OWN
    },
];

struct Memory;

impl Server for Memory {
    fn url(&self) -> String {
        "memory:".to_owned()
    }

    fn process(&self) -> u32 {
        std::process::id()
    }
}

/// Removed when this is dropped.
struct Folder(TempDir);

impl Server for Folder {
    fn url(&self) -> String {
        format!("file:{}", self.0.path().display())
    }

    fn process(&self) -> u32 {
        std::process::id()
    }
}

/// There is no server to look at.
struct Nothing(&'static str);

fn nothing(place: &'static str) -> Connecting<Box<dyn ServerMonitor>> {
    Box::pin(async move { Ok(Box::new(Nothing(place)) as Box<dyn ServerMonitor>) })
}

#[async_trait]
impl ServerMonitor for Nothing {
    async fn describe(&mut self) -> Outcome<String> {
        Ok(self.0.to_owned())
    }

    async fn counters(&mut self) -> Outcome<Counters> {
        Ok(Counters::default())
    }
}
