//! The command as its users run it: the real binary, real processes, real terminals.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests that unwraps fails the test, as it should"
)]

#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "object-store",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
mod at_a_server;
mod breaking;
#[cfg(target_os = "linux")]
mod descendants;
mod election;
#[cfg(feature = "etcd")]
mod etcd;
mod exclusion;
mod exit_codes;
mod guide;
mod holding;
mod killed;
mod loss;
mod metrics;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(target_os = "linux")]
mod numbers;
#[cfg(feature = "object-store")]
mod object_store;
mod once;
#[cfg(feature = "postgres")]
mod postgres;
mod queue;
#[cfg(feature = "redis")]
mod redis;
mod saying;
mod secrets;
mod signals;
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "object-store",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
mod steady;
mod support;
mod terminal;
mod together;
mod top;
mod unread;
mod watching;
#[cfg(feature = "zookeeper")]
mod zookeeper;
