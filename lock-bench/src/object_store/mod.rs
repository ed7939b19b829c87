//! An object store: bare requests, and the lock beside them.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion};
use test_servers::S3Server;

use crate::aims::{Aim, Measure, Other};
use crate::contender::{Client, Connecting, Contender, Driving, Family, Held, Lock, Target, Waits};
use crate::failure::{Context, Outcome};
use crate::plan::Workload;
use crate::subject::{Server, Sizes, Subject};

pub(crate) static SUBJECT: Subject = Subject {
    title: "Object store",
    contenders: &[Contender {
        id: "raw-caller",
        title: "GET, PUT if unchanged, PUT if unchanged",
        family: Family::Raw,
        driving: Driving::Caller,
        waits: Waits::NotAtAll,
        connect,
    }],
    workloads: &[Workload::Cycle, Workload::HandOff],
    aims: &[
        Aim::new("cycle beside three requests", Measure::Beside("cycle", Other::Raw), Some(1.2))
            .of(Driving::Caller),
        Aim::new("hand-off of 16 clients", Measure::Time("handoff-16"), None),
    ],
    lease_option: Some("lease"),
    sizes: Sizes { clients: &[2, 16], ..Sizes::USUAL },
    start: || Ok(Box::new(S3Server::start().context("a store of its own")?)),
    command: None,
};

impl Server for S3Server {
    fn url(&self) -> String {
        Self::url_at(self.address(), "locks")
    }
}

fn connect(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(async move {
        let endpoint = target.url.split_once("endpoint=").context("the URL has no endpoint")?.1;
        let builder = AmazonS3Builder::new().with_bucket_name(S3Server::BUCKET).with_allow_http(true);
        let builder = builder.with_access_key_id("key").with_secret_access_key("secret");
        let store = builder.with_endpoint(endpoint).build().context("a client of the store")?;
        Ok(Box::new(Store(Arc::new(store))) as Box<dyn Client>)
    })
}

struct Store(Arc<dyn ObjectStore>);

#[async_trait]
impl Client for Store {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        Ok(Box::new(Object { store: Arc::clone(&self.0), path: Path::from(format!("raw/{name}")) }))
    }
}

#[derive(Clone)]
struct Object {
    store: Arc<dyn ObjectStore>,
    path: Path,
}

impl Object {
    async fn write(&self, if_still: Option<UpdateVersion>) -> Outcome<UpdateVersion> {
        let mode = if_still.map_or(PutMode::Create, PutMode::Update);
        // As long as the object of a lock that is held.
        let content = vec![b'.'; 300];
        let written = self
            .store
            .put_opts(&self.path, content.into(), PutOptions { mode, ..PutOptions::default() })
            .await;
        Ok(written.context("PUT")?.into())
    }
}

#[async_trait]
impl Lock for Object {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        let version = match self.store.get(&self.path).await {
            Err(object_store::Error::NotFound { .. }) => None,
            found => {
                let meta = found.context("GET")?.meta;
                Some(UpdateVersion { e_tag: meta.e_tag, version: meta.version })
            }
        };
        Ok(Box::new((self.clone(), self.write(version).await?)))
    }
}

#[async_trait]
impl Held for (Object, UpdateVersion) {
    async fn release(self: Box<Self>) -> Outcome<()> {
        let (object, version) = *self;
        object.write(Some(version)).await.map(drop)
    }
}
