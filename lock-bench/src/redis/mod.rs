//! Redis: its contenders and aims.

mod connection;
mod raw;
mod rslock;

use std::sync::OnceLock;
use std::time::Duration;

use test_servers::{RedisServer, SayingSentinel, ServerOptions, cluster_url, sentinel_url};

use crate::aims::{Aim, Measure, Other};
use crate::contender::{Client, Connecting, Contender, Driving, Family, Target, Waits};
use crate::distlock::{self, OWN};
use crate::failure::{Context, Outcome};
use crate::plan::Workload;
use crate::runtimes::RuntimeKind;
use crate::subject::{Server, Sizes, Subject};

pub(crate) static SUBJECT: Subject = Subject {
    title: "Redis",
    contenders: CONTENDERS,
    workloads: &[Workload::Cycle, Workload::HandOff, Workload::Sharing, Workload::Tasks],
    aims: AIMS,
    lease_option: Some("lease"),
    sizes: Sizes { rounds: 5, lease: Duration::from_secs(30), ..Sizes::USUAL },
    start,
    command: None,
};

/// A server that stores nothing, a sentinel that names it, and a node with all hash slots of a cluster.
type Servers = (RedisServer, SayingSentinel, RedisServer);

/// The URLs that name the sentinel and the node; none if the user names a server.
static OTHER_URLS: OnceLock<[String; 2]> = OnceLock::new();

/// Longer than any lease: a new primary grants nothing for so long, unless it looks as if it had been one for that.
const NOT_NEW: Duration = Duration::from_secs(100_000);

/// Starts them, and waits until they answer.
fn start() -> Outcome<Box<dyn Server>> {
    let starting = async {
        let (one, node) =
            (RedisServer::start().await?, RedisServer::start_as_node(&ServerOptions::new()).await?);
        node.take_all_slots().await?;
        one.note_primary("distlock", NOT_NEW).await?;
        node.note_primary("distlock", NOT_NEW).await?;
        let sentinel = SayingSentinel::start(Some(one.address()))?;
        // A process measures once.
        let _ = OTHER_URLS.set([sentinel_url([sentinel.address()]), cluster_url([node.address()])]);
        test_servers::Outcome::Ok((one, sentinel, node))
    };
    let starting = async { starting.await.context("no server of its own (--url names another)") };
    Ok(Box::new(RuntimeKind::CurrentThread.run(starting)?))
}

impl Server for Servers {
    fn url(&self) -> String {
        self.0.url()
    }
}

fn connect_to(number: usize, target: &Target) -> Connecting<Box<dyn Client>> {
    let url = OTHER_URLS.get().map_or_else(String::new, |all| all[number].clone());
    distlock::connect(Target { url, ..*target }, "engine=own")
}

const CONTENDERS: &[Contender] = &[
    Contender {
        id: "raw-caller",
        title: "SET NX PX and a script that compares and deletes, on the caller's runtime",
        family: Family::Raw,
        driving: Driving::Caller,
        waits: Waits::ForTheLock,
        connect: |target| Box::pin(raw::connect(target, Driving::Caller)),
    },
    Contender {
        id: "raw-thread",
        title: "SET NX PX and a script that compares and deletes, on another thread",
        family: Family::Raw,
        driving: Driving::OtherThread,
        waits: Waits::ForTheLock,
        connect: |target| Box::pin(raw::connect(target, Driving::OtherThread)),
    },
    Contender {
        id: "ping-caller",
        title: "PING, on the caller's runtime",
        family: Family::Echo,
        driving: Driving::Caller,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::ping(target, Driving::Caller)),
    },
    Contender {
        id: "ping-thread",
        title: "PING, on another thread",
        family: Family::Echo,
        driving: Driving::OtherThread,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::ping(target, Driving::OtherThread)),
    },
    Contender {
        id: "rslock",
        title: "the crate rslock",
        family: Family::Peer,
        driving: Driving::Caller,
        waits: Waits::ForTheLock,
        connect: rslock::connect,
    },
    Contender {
        id: SENTINEL,
        title: "distlock, engine=own, behind a sentinel that names the same server",
        family: Family::Peer,
        driving: Driving::OtherThread,
        waits: Waits::ForTheLock,
        connect: |target| connect_to(0, &target),
    },
    Contender {
        id: CLUSTER,
        title: "distlock, engine=own, at a node that has all hash slots of a cluster",
        family: Family::Peer,
        driving: Driving::OtherThread,
        waits: Waits::ForTheLock,
        connect: |target| connect_to(1, &target),
    },
];

const SENTINEL: &str = "distlock-sentinel";
const CLUSTER: &str = "distlock-cluster";

const AIMS: &[Aim] = &[
    Aim::new("cycle beside raw commands", Measure::Beside("cycle", Other::Raw), Some(1.2))
        .of(Driving::Caller),
    Aim::new("cycle beside raw commands", Measure::Beside("cycle", Other::Raw), Some(1.1))
        .of(Driving::OtherThread),
    Aim::new("cycle beside the crate rslock", Measure::Beside("cycle", Other::Named("rslock")), None),
    Aim::new("cycle beside that at one server", Measure::Beside("cycle", Other::Named(OWN)), Some(1.05))
        .of_these(&[SENTINEL, CLUSTER]),
    Aim::new("hand-off beside that at one server", Measure::Beside("handoff-16", Other::Named(OWN)), None)
        .of_these(&[SENTINEL, CLUSTER]),
    Aim::new("hand-off at 16 beside PING", Measure::Beside("handoff-16", Other::Echo), Some(2.0)),
    Aim::new("hand-off at 64 beside PING", Measure::Beside("handoff-64", Other::Echo), Some(2.0)),
    Aim::new("hand-off at 16 beside that at 2", Measure::Growth("handoff-16", "handoff-2"), Some(1.5)),
    Aim::new("hand-off at 64 beside that at 16", Measure::Growth("handoff-64", "handoff-16"), Some(1.1)),
    Aim::new("most grants beside fewest, 2 clients", Measure::Fairness("handoff-2"), Some(1.05)),
    Aim::new("most grants beside fewest, 16 clients", Measure::Fairness("handoff-16"), Some(1.05)),
    Aim::new("most grants beside fewest, 64 clients", Measure::Fairness("handoff-64"), Some(1.05)),
    Aim::new("hand-off, 64 tasks of one client", Measure::Time("tasks-64"), Some(5.0)).handing_over(),
    Aim::new(
        "sections without local_handoff for one with it",
        Measure::WithoutIt("tasks-64"),
        Some(1.0 / 30.0),
    )
    .handing_over(),
];
