//! An object store for tests that speaks as much of S3 as locks need, and keeps its word, unless a test sets a fault: of two writes on
//! the same condition one is carried out.

mod conversation;
mod http;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use lock_core::spi::Mutex;
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::Outcome;
use crate::ports::random_word;
use crate::service::Service;
use http::Message;

pub use conversation::S3Conversation;

/// How many keys a page of a list has.
const PAGE: usize = 3;

/// What an [`S3Server`] does to requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct S3Faults {
    /// How long a request takes.
    pub latency: Duration,
    /// Of a thousand writes, so many are not answered, and carried out later.
    pub late: u32,
    /// How much later, at most.
    pub late_by: Duration,
    /// Of a thousand writes, so many are carried out and not answered.
    pub cut: u32,
    /// How much later than its condition is checked a write that is answered is carried out. Anything but zero is a store that does
    /// not keep its word: of several writes on one condition each is carried out.
    pub apart: Duration,
    /// So many of the next writes are refused, as if another one were about to be carried out.
    pub conflicts: u32,
    /// So many of those after them are carried out, and answered as if the store had failed.
    pub failed: u32,
}

/// An object store with one bucket, in this process. Any signature is accepted. Dropping this ends it.
#[derive(Debug)]
pub struct S3Server {
    shared: Arc<Shared>,
    service: Service,
}

#[derive(Debug)]
struct Shared {
    /// Whether it has connections, and whether it answers on none of them.
    is_open: watch::Sender<bool>,
    stands: watch::Sender<bool>,
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    faults: Mutex<S3Faults>,
    /// Reads and writes.
    counts: Mutex<(u64, u64)>,
}

impl S3Server {
    /// The name of its bucket.
    pub const BUCKET: &str = "bucket";

    /// Starts an empty store.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start() -> Outcome<Self> {
        let shared = Arc::new(Shared {
            is_open: watch::Sender::new(true),
            stands: watch::Sender::default(),
            objects: Mutex::default(),
            faults: Mutex::default(),
            counts: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let service = Service::start("object-store", shared.is_open.subscribe(), move |client| {
            Arc::clone(&serving).serve(client)
        })?;
        Ok(Self { shared, service })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.service.address
    }

    /// Returns a URL for a client that reaches it at `address`, itself or through a proxy, with the locks below a prefix. Options
    /// can follow.
    pub fn url_at(address: SocketAddr, prefix: &str) -> String {
        format!("s3://key:secret@{}/{prefix}?endpoint=http://{address}", Self::BUCKET)
    }

    /// It stands still: it accepts connections and requests, and answers none.
    ///
    /// # Errors
    /// None; servers with a process of their own have some.
    pub fn stop(&self) -> Outcome {
        self.shared.stands.send_replace(true);
        Ok(())
    }

    /// It goes on after [`S3Server::stop`], and begins again after [`S3Server::kill`] with the objects that it had.
    ///
    /// # Errors
    /// None; servers with a process of their own have some.
    pub fn resume(&self) -> Outcome {
        self.shared.stands.send_replace(false);
        self.shared.is_open.send_replace(true);
        Ok(())
    }

    /// It ends all connections and accepts none.
    ///
    /// # Errors
    /// None; servers with a process of their own have some.
    pub fn kill(&self) -> Outcome {
        self.shared.is_open.send_replace(false);
        Ok(())
    }

    /// Sets what it does to requests from now on.
    pub fn set_faults(&self, faults: S3Faults) {
        *self.shared.faults.lock() = faults;
    }

    /// Returns how many reads and writes there were, also those that were refused.
    pub fn counts(&self) -> (u64, u64) {
        *self.shared.counts.lock()
    }

    /// Returns the objects whose keys begin so.
    pub fn objects(&self, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        let mut objects = self.shared.objects.lock().clone();
        objects.retain(|key, _| key.starts_with(prefix));
        objects
    }

    /// Creates an empty object, as an operator could.
    pub fn create(&self, key: &str) {
        self.shared.objects.lock().insert(key.to_owned(), Vec::new());
    }

    /// Changes an object as an operator could. Returns what `change` returns; `None` if there is no such object.
    pub fn change<T>(&self, key: &str, change: impl FnOnce(&mut Vec<u8>) -> T) -> Option<T> {
        self.shared.objects.lock().get_mut(key).map(change)
    }
}

/// An answer: the status, the entity tag, the content.
type Answer = (&'static str, Option<String>, Vec<u8>);

/// A hash of the content, as with S3: the same content has the same tag.
fn tag(content: &[u8]) -> String {
    format!("\"{}\"", BASE64_STANDARD.encode(Sha256::digest(content)))
}

impl Shared {
    /// Answers requests while it is open.
    async fn serve(self: Arc<Self>, client: TcpStream) {
        let mut is_open = self.is_open.subscribe();
        tokio::select! {
            biased;
            _ = is_open.wait_for(|is_open| !is_open) => {}
            _ = self.talk(client) => {}
        }
    }

    /// Until the client or a fault ends the connection.
    async fn talk(self: &Arc<Self>, mut client: TcpStream) -> Option<()> {
        let mut received = Vec::new();
        loop {
            let Some(request) = Message::parse(&received).ok()? else {
                client.read_buf(&mut received).await.ok().filter(|length| *length > 0)?;
                continue;
            };
            // This store keeps the other end.
            let _ = self.stands.subscribe().wait_for(|stands| !stands).await;
            let latency = self.faults.lock().latency;
            if !latency.is_zero() {
                tokio::time::sleep(latency / 2).await;
            }
            let (status, tag, content) = self.answer(&request).await?;
            let length = request.length;
            if !latency.is_zero() {
                tokio::time::sleep(latency / 2).await;
            }
            let tag = tag.map(|tag| format!("ETag: {tag}\r\n")).unwrap_or_default();
            let modified = "Last-Modified: Sat, 01 Jan 2022 00:00:00 GMT\r\n";
            let head =
                format!("HTTP/1.1 {status}\r\n{tag}{modified}Content-Length: {}\r\n\r\n", content.len());
            client.write_all(&[head.into_bytes(), content].concat()).await.ok()?;
            received.drain(..length);
        }
    }

    /// Carries a request out; `None` if its connection is to end without an answer.
    async fn answer(self: &Arc<Self>, request: &Message<'_>) -> Option<Answer> {
        let mut words = request.start.split(' ');
        let (method, path) = (words.next()?, words.next()?);
        let below = path.strip_prefix('/')?.strip_prefix(S3Server::BUCKET);
        if let Some((_, query)) = below.and_then(|below| below.split_once('?')) {
            self.counts.lock().0 += 1;
            return Some(("200 OK", None, self.list(query).into_bytes()));
        }
        let key = below.and_then(|below| below.strip_prefix('/'));
        let Some(key) = key else {
            return Some(("404 Not Found", None, b"<Code>NoSuchBucket</Code>".to_vec()));
        };
        let key = percent_decode_str(key).decode_utf8().ok()?.into_owned();
        if method == "GET" {
            self.counts.lock().0 += 1;
            return Some(match self.objects.lock().get(&key) {
                Some(content) => ("200 OK", Some(tag(content)), content.clone()),
                None => ("404 Not Found", None, b"<Code>NoSuchKey</Code>".to_vec()),
            });
        }
        self.counts.lock().1 += 1;
        let condition = request.header("if-match").map(str::to_owned);
        let mut write = Write { key, content: request.body.to_vec(), condition };
        let faults = *self.faults.lock();
        if faults.conflicts > 0 {
            self.faults.lock().conflicts -= 1;
            return Some(("409 Conflict", None, b"<Code>ConditionalRequestConflict</Code>".to_vec()));
        }
        if faults.failed > 0 {
            self.faults.lock().failed -= 1;
            self.write(write);
            return Some(("500 Internal Server Error", None, Vec::new()));
        }
        let random = u32::from_str_radix(&random_word()[..7], 16).unwrap_or_default();
        if random % 1000 < faults.late {
            let shared = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(faults.late_by * (random % 97) / 97).await;
                shared.write(write);
            });
            return None;
        }
        if !faults.apart.is_zero() && write.is_met_in(&self.objects.lock()) {
            tokio::time::sleep(faults.apart).await;
            write.condition = self.objects.lock().get(&write.key).map(|content| tag(content));
        }
        let answer = self.write(write);
        (random % 1000 >= faults.late + faults.cut).then_some(answer)
    }

    /// A page of the keys below a prefix, in which no key needs an escape, and of what those with another slash have before it. The next
    /// page begins behind its last entry.
    fn list(&self, query: &str) -> String {
        let value = |wanted: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let found = pairs.find(|(name, _)| *name == wanted).map(|(_, value)| percent_decode_str(value));
            found.and_then(|value| value.decode_utf8().ok()).unwrap_or_default().into_owned()
        };
        let (prefix, after, start) = (value("prefix"), value("continuation-token"), value("start-after"));
        let count = value("max-keys").parse().unwrap_or(PAGE).min(PAGE);
        let objects = self.objects.lock();
        let entry = |key: &String| {
            let name = key.strip_prefix(&prefix).filter(|_| *key > start)?;
            Some(name.split_once('/').map_or_else(|| key.clone(), |(part, _)| format!("{prefix}{part}/")))
        };
        let entries: BTreeSet<_> = objects.keys().filter_map(entry).collect();
        let mut entries = entries.into_iter().filter(|entry| *entry > after);
        let page: Vec<_> = entries.by_ref().take(count).collect();
        let more = page.last().filter(|_| entries.next().is_some());
        let token = more.map(|last| format!("<NextContinuationToken>{last}</NextContinuationToken>"));
        let modified = "<LastModified>2022-01-01T00:00:00.000Z</LastModified>";
        let shown = |entry: &String| match entry.strip_prefix(&prefix) {
            Some(part) if part.ends_with('/') => {
                format!("<CommonPrefixes><Prefix>{entry}</Prefix></CommonPrefixes>")
            }
            _ => format!("<Contents><Key>{entry}</Key><Size>1</Size>{modified}</Contents>"),
        };
        let (shown, token) = (page.iter().map(shown).collect::<String>(), token.unwrap_or_default());
        format!("<ListBucketResult>{shown}{token}</ListBucketResult>")
    }

    /// Writes if the condition is met.
    fn write(&self, write: Write) -> Answer {
        let mut objects = self.objects.lock();
        if !write.is_met_in(&objects) {
            let is_there = objects.contains_key(&write.key);
            return (if is_there { "412 Precondition Failed" } else { "404 Not Found" }, None, Vec::new());
        }
        let tag = tag(&write.content);
        objects.insert(write.key, write.content);
        ("200 OK", Some(tag), Vec::new())
    }
}

struct Write {
    key: String,
    content: Vec<u8>,
    /// The tag that the object has to have; `None` if there must be none.
    condition: Option<String>,
}

impl Write {
    fn is_met_in(&self, objects: &BTreeMap<String, Vec<u8>>) -> bool {
        objects.get(&self.key).map(|content| tag(content)) == self.condition
    }
}
