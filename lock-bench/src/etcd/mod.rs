//! etcd: its contenders and aims.

mod raw;

use std::process::Command;

use test_servers::EtcdServer;

use crate::aims::{Aim, Measure, Other};
use crate::contender::{Contender, Driving, Family, Waits};
use crate::failure::{Context, Outcome};
use crate::plan::Workload;
use crate::runtimes::RuntimeKind;
use crate::subject::{Server, Sizes, Subject};

const ETCDCTL: &str = "etcdctl lock";

pub(crate) static SUBJECT: Subject = Subject {
    title: "etcd",
    contenders: CONTENDERS,
    workloads: &[Workload::Cycle, Workload::HandOff, Workload::Sharing, Workload::Tasks, Workload::Exec],
    aims: AIMS,
    lease_option: Some("lease"),
    sizes: Sizes::USUAL,
    start,
    command: Some((ETCDCTL, etcdctl)),
};

/// Starts a server that does not wait for the disk, and waits until it answers.
fn start() -> Outcome<Box<dyn Server>> {
    let starting = async { EtcdServer::start().await.context("no server of its own (--url names another)") };
    Ok(Box::new(RuntimeKind::CurrentThread.run(starting)?))
}

impl Server for EtcdServer {
    fn url(&self) -> String {
        self.url("locks")
    }
}

/// `etcdctl lock` at the server of this URL.
fn etcdctl(url: &str) -> Outcome<Command> {
    let rest = url.strip_prefix("etcd://").context("the URL is none of etcd")?;
    let host = rest.split(['/', '?']).next().unwrap_or(rest);
    let mut command = EtcdServer::etcdctl_of_tests().context("etcdctl")?;
    command.arg(format!("--endpoints=http://{host}")).args(["lock", "locks/bench-etcdctl", "true"]);
    Ok(command)
}

const CONTENDERS: &[Contender] = &[
    Contender {
        id: "raw-caller",
        title: "a transaction, a watch of the key before, a transaction, on the caller's runtime",
        family: Family::Raw,
        driving: Driving::Caller,
        waits: Waits::ForTheLock,
        connect: |target| Box::pin(raw::connect(target, Driving::Caller)),
    },
    Contender {
        id: "raw-thread",
        title: "a transaction, a watch of the key before, a transaction, on another thread",
        family: Family::Raw,
        driving: Driving::OtherThread,
        waits: Waits::ForTheLock,
        connect: |target| Box::pin(raw::connect(target, Driving::OtherThread)),
    },
    Contender {
        id: "read-caller",
        title: "a read, on the caller's runtime",
        family: Family::Echo,
        driving: Driving::Caller,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::read(target, Driving::Caller)),
    },
    Contender {
        id: "read-thread",
        title: "a read, on another thread",
        family: Family::Echo,
        driving: Driving::OtherThread,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::read(target, Driving::OtherThread)),
    },
];

const AIMS: &[Aim] = &[
    Aim::new("cycle beside two transactions", Measure::Beside("cycle", Other::Raw), Some(1.2)),
    Aim::new("hand-off at 16 beside the bare watch", Measure::Beside("handoff-16", Other::Raw), Some(1.2)),
    Aim::new(
        "hand-off at 1000 beside the bare watch",
        Measure::Beside("handoff-1000", Other::Raw),
        Some(1.2),
    ),
    Aim::new("most grants beside fewest, 2 clients", Measure::Fairness("handoff-2"), Some(1.05)),
    Aim::new("most grants beside fewest, 16 clients", Measure::Fairness("handoff-16"), Some(1.05)),
    Aim::new(
        "exec beside etcdctl lock around true",
        Measure::Beside("exec", Other::Named(ETCDCTL)),
        Some(1.2),
    ),
];
