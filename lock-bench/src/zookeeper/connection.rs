//! Sessions through the crate `zookeeper-client`, driven by the caller's runtime or by another thread.

use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

use crate::contender::{Driving, Target};
use crate::driving::Driven;
use crate::failure::{Context, Failure, Outcome};

/// A session that ends when this is dropped.
pub(super) type Connection = Driven<Client>;

/// The part after the scheme in a URL of distlock: the servers, and the directory of the locks.
pub(super) struct ZooKeeperUrl<'a> {
    pub(super) servers: &'a str,
    directory: &'a str,
}

impl<'a> ZooKeeperUrl<'a> {
    pub(super) fn of(target: &'a Target) -> Outcome<Self> {
        let rest = target.url.strip_prefix("zookeeper://").context("the URL is none of ZooKeeper")?;
        let rest = rest.split(['?', '#']).next().unwrap_or(rest);
        let (servers, directory) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if servers.contains('@') {
            return Err(Failure::new("only a server without users can be measured"));
        }
        Ok(Self { servers, directory: directory.trim_end_matches('/') })
    }

    /// Returns the parent of the nodes of a lock's contenders.
    pub(super) fn of_lock(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }
}

/// Every client may do everything, as with the other contenders.
pub(super) const ACLS: Acls<'static> = Acls::anyone_all();

pub(super) fn directory() -> CreateOptions<'static> {
    CreateMode::Persistent.with_acls(ACLS)
}

pub(super) async fn open(target: &Target, driving: Driving) -> Outcome<Connection> {
    let servers = ZooKeeperUrl::of(target)?.servers.to_owned();
    Driven::open(driving, connect(servers, target.lease)).await
}

async fn connect(servers: String, session_timeout: Duration) -> Outcome<Client> {
    let connector = Client::connector().with_session_timeout(session_timeout);
    connector.connect(&servers).await.context("connecting to the server")
}
