//! The harness of the object store backend: a store that speaks S3 in this program, and a proxy in front of it for each case.
#![allow(dead_code, reason = "each program uses only one of the two")]
#![allow(clippy::unused_async, reason = "the places of other servers have to wait")]

#[macro_use]
#[path = "proxied.rs"]
mod proxied;

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{
    Ability, AfterRestart, Failure, Harness, Losing, Outcome, Removal, Routes, ServerChange, Silence,
};
use lock_core::{ClientBuilder, LockClient, LockError, LockName, Operation};
use proxied::{Place, Running, Server, unique};
use serde_json::{Value, json};
use test_servers::{Direction, S3Conversation, S3Server, TcpProxy};
use tokio::sync::Mutex;

/// Long enough for a busy machine to renew in time, short enough to wait for its end.
pub(crate) const LEASE: Duration = Duration::from_secs(12);

/// Outlasts every case.
pub(crate) const LASTING: Duration = Duration::from_secs(600);

/// No busy machine takes this long for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const fn lacks(ability: Ability) -> Option<&'static str> {
    match ability {
        Ability::CheckedGrants => Some("a grant says since when it lasts"),
        Ability::SeenDeaths => Some("the lock of a dead client is kept until its lease ends"),
        _ => None,
    }
}

/// A bucket.
pub(crate) struct Bucket(Fixture);

/// A part of the bucket and a proxy that no other case uses.
struct Fixture {
    server: Server<S3Server>,
    proxy: TcpProxy,
    prefix: String,
}

static RUNNING: Mutex<Running<S3Server>> = Running::none();

/// The object says what it was written for.
pub(crate) fn operation_of(content: &[u8]) -> Option<Operation> {
    let written: Value = serde_json::from_slice(content).ok()?;
    let operations = [
        Operation::Acquire,
        Operation::Cancel,
        Operation::Renew,
        Operation::Release,
        Operation::Downgrade,
        Operation::Break,
        Operation::Describe,
    ];
    operations.into_iter().find(|operation| Some(&*operation.to_string()) == written["by"].as_str())
}

impl Fixture {
    async fn start(place: Place) -> Outcome<Self> {
        let start = async || S3Server::start();
        let server = Server::find(place, "object_store", &["s3"], &RUNNING, start).await?;
        let address = server.own()?.address();
        let proxy = TcpProxy::with_conversation(address, || Box::new(S3Conversation::new(operation_of)))?;
        Ok(Self { server, proxy, prefix: unique() })
    }

    fn lease(&self) -> Duration {
        self.server.lease(LEASE)
    }

    fn address(&self) -> String {
        self.url(self.proxy.address(), self.lease())
    }

    fn lasting_address(&self, address: SocketAddr) -> String {
        self.url(address, LASTING)
    }

    fn url(&self, address: SocketAddr, lease: Duration) -> String {
        format!(
            "{}&lease={}s&poll=50ms&connect_timeout={}s",
            S3Server::url_at(address, &self.prefix),
            lease.as_secs(),
            PATIENCE.as_secs()
        )
    }

    /// It takes longer than the time between two renewals: a client sees only that its requests fail.
    async fn restart(&self) -> Outcome {
        self.server.own()?.kill()?;
        tokio::time::sleep(self.lease() / 3).await;
        self.server.own()?.resume()
    }

    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        let key = format!("{}/{name}.lock", self.prefix);
        let change = |content: &mut Vec<u8>| -> Option<()> {
            let mut object: Value = serde_json::from_slice(content).ok()?;
            let holders = object["holders"].as_array_mut().filter(|holders| !holders.is_empty())?;
            match removal {
                Removal::Theft => holders[0]["id"] = json!(format!("{:032x}", 1)),
                Removal::Deletion | Removal::Expiry => holders.clear(),
            }
            object["write"] = json!(unique());
            *content = object.to_string().into_bytes();
            Some(())
        };
        let changed = self.server.own()?.change(&key, change).flatten();
        changed.ok_or_else(|| Failure::new(format!("{name:?} is free")))
    }

    /// Objects stay; what counts are holders and waiters.
    async fn leftovers(&self) -> Outcome<Vec<String>> {
        let objects = self.server.own()?.objects(&self.prefix);
        let left = objects.into_iter().filter(|(_, content)| {
            let object: Value = serde_json::from_slice(content).unwrap_or_default();
            ["holders", "queue"]
                .iter()
                .any(|of| object[of].as_array().is_none_or(|entries| !entries.is_empty()))
        });
        Ok(left.map(|(key, _)| key).collect())
    }
}

async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
    distlock::connect_with(address, builder).await
}

proxied_harness! {
    Bucket,
    left_out: None,
    start: Fixture::start,
    requests: Outcome::Ok,

    fn after_a_restart(&self) -> AfterRestart {
        AfterRestart::Locks
    }

    fn routes(&self) -> Routes {
        Routes::Several
    }

    fn rounds(&self, many: u32) -> u32 {
        many / 8
    }

    async fn sever(&self) -> Outcome {
        self.0.proxy.sever();
        Ok(())
    }
}
