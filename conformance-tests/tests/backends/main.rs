//! Runs the suite against the backends of this repository, each on its own server, most with separate processes. One program,
//! because each links every backend.
//!
//! `cargo test -p conformance-tests --test backends -- redis tokens::` runs what is named first, with the usual arguments of a
//! test program behind it; without a name each runs in turn, and `--list` lists their names.
#![allow(clippy::duplicate_mod, reason = "each harness has what the proxied ones share")]

#[cfg(unix)]
#[path = "../harnesses/azurite.rs"]
mod azurite;
#[cfg(unix)]
#[path = "../harnesses/etcd.rs"]
mod etcd;
#[cfg(unix)]
#[path = "../harnesses/file.rs"]
mod file;
#[path = "../harnesses/memory.rs"]
mod memory;
#[cfg(unix)]
#[path = "../harnesses/mysql.rs"]
mod mysql;
#[cfg(unix)]
#[path = "../harnesses/object_store.rs"]
mod object_store;
#[cfg(unix)]
#[path = "../harnesses/postgres.rs"]
mod postgres;
#[cfg(unix)]
#[path = "../harnesses/redis.rs"]
mod redis;
#[cfg(unix)]
#[path = "../harnesses/zookeeper.rs"]
mod zookeeper;

use std::process::{Command, ExitCode};

use conformance_tests::{Tier, main_with};

type Run = fn(Vec<String>) -> ExitCode;

/// Backends, and the ways to run them.
const RUNS: &[(&str, Run)] = &[
    ("memory", main_with::<memory::WithoutLease>),
    ("memory-with-lease", main_with::<memory::WithLease>),
    #[cfg(unix)]
    ("file", main_with::<file::Folder>),
    #[cfg(unix)]
    ("redis", main_with::<redis::Messages>),
    #[cfg(unix)]
    ("redis-polling", main_with::<redis::Polling>),
    #[cfg(unix)]
    ("redis-sentinel", main_with::<redis::Sentinels>),
    #[cfg(unix)]
    ("redis-cluster", main_with::<redis::Cluster>),
    #[cfg(unix)]
    ("etcd", main_with::<etcd::Etcd>),
    #[cfg(unix)]
    ("zookeeper", main_with::<zookeeper::Open>),
    #[cfg(unix)]
    ("zookeeper-closed", main_with::<zookeeper::Closed>),
    #[cfg(unix)]
    ("mariadb", main_with::<mysql::MariaDb>),
    #[cfg(unix)]
    ("mariadb-table", main_with::<mysql::MariaDbTable>),
    #[cfg(unix)]
    ("mysql57", main_with::<mysql::MySql57>),
    #[cfg(unix)]
    ("mysql57-table", main_with::<mysql::MySql57Table>),
    #[cfg(unix)]
    ("postgres", main_with::<postgres::Postgres>),
    #[cfg(unix)]
    ("postgres-table", main_with::<postgres::PostgresTable>),
    #[cfg(unix)]
    ("object-store", main_with::<object_store::Bucket>),
    #[cfg(unix)]
    (ON_REQUEST, main_with::<azurite::Container>),
];

/// A server that takes long to get, and shows little that the store for tests does not show: for the tier of all.
const ON_REQUEST: &str = "azurite";

fn runs() -> impl Iterator<Item = &'static str> {
    let names = RUNS.iter().map(|(name, _)| *name);
    names.filter(|name| *name != ON_REQUEST || Tier::of_this_run() == Tier::All)
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().collect();
    let named = arguments.get(1).and_then(|word| RUNS.iter().find(|(name, _)| name == word));
    if let Some((_, run)) = named {
        arguments.remove(1);
        return run(arguments);
    }
    if arguments.iter().any(|word| word == "--list") {
        for name in runs() {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let mut failed = runs().filter(|name| !passes(name, &arguments)).peekable();
    if failed.peek().is_none() {
        return ExitCode::SUCCESS;
    }
    eprintln!("failed: {}", failed.collect::<Vec<_>>().join(", "));
    ExitCode::FAILURE
}

fn passes(run: &str, arguments: &[String]) -> bool {
    println!("\n{run}:");
    let status = Command::new(&arguments[0]).arg(run).args(&arguments[1..]).status();
    status.is_ok_and(|status| status.success())
}
