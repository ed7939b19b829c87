//! The fewest requests for such a lock: a transaction that creates a key under the client's lease and reads the key before it, the
//! watch of that key with a read behind it, and a transaction that deletes the own one. A client has one place in a line at a
//! time, and never gives it up.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{self, Poll};

use async_trait::async_trait;
use futures_core::Stream;
use http::uri::PathAndQuery;
use tokio::sync::{Mutex, mpsc};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::contender::{Client, Driving, Echo, Held, Lock, Ping, Target};
use crate::driving::Driven;
use crate::failure::{Context, Failure, Outcome};
use messages::{
    BY_CREATION, Call, Compare, DELETION, FALLING, LeaseGrant, Put, Range, Step, Txn, WATCH, WatchAnswer,
    WatchCancel, WatchCreate, WatchRequest,
};

#[path = "../../../lock-etcd/src/messages.rs"]
#[allow(dead_code, reason = "not all of them are needed here")]
mod messages;

/// As long as the value that distlock gives its keys.
const VALUE: [u8; 80] = [b'.'; 80];

type Connection = Driven<Arc<Session>>;

/// A connection with a lease, which lasts longer than a turn, and a stream of watches.
struct Session {
    grpc: Grpc<Channel>,
    prefix: String,
    lease: i64,
    keys: AtomicU64,
    watches: Mutex<Watches>,
}

struct Watches {
    requests: mpsc::UnboundedSender<WatchRequest>,
    answers: Streaming<WatchAnswer>,
    last: i64,
}

struct Requests(mpsc::UnboundedReceiver<WatchRequest>);

impl Stream for Requests {
    type Item = WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Option<WatchRequest>> {
        self.0.poll_recv(context)
    }
}

pub(super) async fn connect(target: Target, driving: Driving) -> Outcome<Box<dyn Client>> {
    Ok(Box::new(Raw(Driven::open(driving, Session::open(target)).await?)))
}

pub(super) async fn read(target: Target, driving: Driving) -> Outcome<Box<dyn Client>> {
    Ok(Echo::of(Driven::open(driving, Session::open(target)).await?))
}

#[async_trait]
impl Ping for Connection {
    async fn ping(&self) -> Outcome<()> {
        let grpc = &self.connection.grpc;
        ask(grpc, Range::of("nothing")).await.map(drop)
    }
}

async fn ask<C: Call>(grpc: &Grpc<Channel>, call: C) -> Outcome<C::Answer> {
    let (mut grpc, codec) = (grpc.clone(), ProstCodec::<C, C::Answer>::default());
    grpc.ready().await.context("etcd")?;
    let answer = grpc.unary(Request::new(call), PathAndQuery::from_static(C::PATH), codec).await;
    Ok(answer.context("etcd")?.into_inner())
}

impl Session {
    async fn open(target: Target) -> Outcome<Arc<Self>> {
        let rest = target.url.strip_prefix("etcd://").context("the URL is none of etcd")?;
        let (host, prefix) =
            rest.split('?').next().and_then(|rest| rest.split_once('/')).context("a prefix")?;
        let endpoint = Endpoint::from_shared(format!("http://{host}")).context("the URL")?.tcp_nodelay(true);
        let mut grpc = Grpc::new(endpoint.connect().await.context("connecting to the server")?);
        let seconds = i64::try_from(target.lease.as_secs()).unwrap_or(i64::MAX);
        let lease = ask(&grpc, LeaseGrant { seconds }).await?.id;
        let (requests, asked) = mpsc::unbounded_channel();
        // A server answers the opening of the stream with its first answer.
        let first = WatchCreate { key: "nothing".to_owned(), ..WatchCreate::default() };
        requests.send(WatchRequest { create: Some(first), cancel: None }).context("a watch")?;
        grpc.ready().await.context("etcd")?;
        let codec = ProstCodec::<WatchRequest, WatchAnswer>::default();
        let opened = grpc.streaming(Request::new(Requests(asked)), PathAndQuery::from_static(WATCH), codec);
        let answers = opened.await.context("a watch")?.into_inner();
        let (prefix, keys) = (prefix.to_owned(), AtomicU64::new(0));
        let watches = Mutex::new(Watches { requests, answers, last: 0 });
        Ok(Arc::new(Self { grpc, prefix, lease, keys, watches }))
    }

    /// Waits until this key is deleted. The watch begins now and the key is read behind it, as of a watch that begins in the past a
    /// server reports only every tenth of a second.
    async fn is_gone(&self, key: String) -> Outcome<()> {
        let mut watches = self.watches.lock().await;
        watches.last += 1;
        let id = watches.last;
        let create = WatchCreate { key: key.clone(), id, ..WatchCreate::default() };
        let mut watches_it = false;
        watches.requests.send(WatchRequest { create: Some(create), cancel: None }).context("a watch")?;
        while let Some(answer) = watches.answers.message().await.context("a watch")? {
            if answer.id != id {
                continue;
            }
            let mut is_gone = answer.events.iter().any(|event| event.kind == DELETION);
            if !std::mem::replace(&mut watches_it, true) && !is_gone {
                is_gone = ask(&self.grpc, Range::of(&key)).await?.found.is_empty();
            }
            if is_gone {
                let cancel = WatchRequest { create: None, cancel: Some(WatchCancel { id }) };
                return watches.requests.send(cancel).context("a watch");
            }
        }
        Err(Failure::new("the server has ended the watch"))
    }
}

struct Raw(Connection);

#[async_trait]
impl Client for Raw {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        let session = Arc::clone(&self.0.connection);
        let directory = format!("{}/{name}", session.prefix);
        Ok(Box::new(Directory { session, directory }))
    }
}

struct Directory {
    session: Arc<Session>,
    directory: String,
}

#[async_trait]
impl Lock for Directory {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        let (session, lease) = (Arc::clone(&self.session), self.session.lease);
        let number = session.keys.fetch_add(1, Ordering::Relaxed);
        let key = format!("{}/{lease:x}-{number:032x}", self.directory);
        // The newest two, by the revisions of their creation.
        let (first, end) = (format!("{}/", self.directory), format!("{}0", self.directory));
        let newest = Range { end, limit: 2, order: FALLING, order_by: BY_CREATION, ..Range::of(&first) };
        let put = Put { key: key.clone(), value: VALUE.to_vec(), lease, keeps_lease: false };
        let txn = Txn {
            conditions: vec![Compare::created_by(&key, 0)],
            then: vec![put.into(), newest.into()],
            otherwise: Vec::new(),
        };
        let answer = ask(&session.grpc, txn).await?;
        let revision = answer.revision();
        if let Some(before) = answer.range().found.pop().filter(|found| found.key != key.as_bytes()) {
            let before = String::from_utf8(before.key).context("a key")?;
            session.is_gone(before).await?;
        }
        Ok(Box::new(Entry { session, key, revision }))
    }
}

struct Entry {
    session: Arc<Session>,
    key: String,
    revision: i64,
}

#[async_trait]
impl Held for Entry {
    async fn release(self: Box<Self>) -> Outcome<()> {
        let txn = Txn {
            conditions: vec![Compare::created_by(&self.key, self.revision)],
            then: vec![Step::delete(&self.key)],
            otherwise: Vec::new(),
        };
        let deleted = ask(&self.session.grpc, txn).await?.held;
        if deleted { Ok(()) } else { Err(Failure::new("the lock had been lost")) }
    }
}
