//! The minimum of requests for such a lock: create a node, and delete it again. It excludes no other client.

use std::sync::Arc;

use async_trait::async_trait;

use super::connection::{self, ACLS, Connection, ZooKeeperUrl};
use crate::contender::{Client, Driving, Echo, Held, Lock, Ping, Target};
use crate::failure::{Context, Outcome};

/// As long as the data that distlock writes into its nodes.
const DATA: [u8; 120] = [b'.'; 120];
/// As long as the names of distlock and Curator.
const NODE: &str = "_c_00000000-0000-0000-0000-000000000000-lock-";

pub(super) async fn connect(target: Target, driving: Driving) -> Outcome<Box<dyn Client>> {
    let connection = connection::open(&target, driving).await?;
    Ok(Box::new(Raw { connection, target }))
}

pub(super) async fn read(target: Target, driving: Driving) -> Outcome<Box<dyn Client>> {
    Ok(Echo::of(connection::open(&target, driving).await?))
}

#[async_trait]
impl Ping for Connection {
    async fn ping(&self) -> Outcome<()> {
        self.connection.check_stat("/").await.context("a read").map(drop)
    }
}

struct Raw {
    connection: Connection,
    target: Target,
}

#[async_trait]
impl Client for Raw {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        let path = ZooKeeperUrl::of(&self.target)?.of_lock(name);
        let prefix = Arc::from(format!("{path}/{NODE}"));
        Ok(Box::new(Parent { client: self.connection.connection.clone(), path, prefix }))
    }
}

struct Parent {
    client: zookeeper_client::Client,
    path: String,
    prefix: Arc<str>,
}

#[async_trait]
impl Lock for Parent {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        let options = zookeeper_client::CreateMode::EphemeralSequential.with_acls(ACLS);
        let created = loop {
            match self.client.create(&self.prefix, &DATA, &options).await {
                Err(zookeeper_client::Error::NoNode) => {
                    let made = self.client.mkdir(&self.path, &connection::directory()).await;
                    made.context("the directory")?;
                }
                created => break created,
            }
        };
        let (_, sequence) = created.context("create")?;
        let path = format!("{}{sequence}", self.prefix);
        Ok(Box::new(Node { client: self.client.clone(), path }))
    }
}

struct Node {
    client: zookeeper_client::Client,
    path: String,
}

#[async_trait]
impl Held for Node {
    async fn release(self: Box<Self>) -> Outcome<()> {
        self.client.delete(&self.path, None).await.context("delete")
    }
}
