//! A server for a case, its clients, and queries of what both do.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use conformance_tests::faults::{
    PATIENCE, ROOM, Waiter, drop_after, frozen, outlast, poll_times, soon, until, with_options,
};
use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, DistributedLock, LockClient, LockError, ManualClock};
use lock_kit::LockUrl;
use test_servers::{RedisServer, ServerOptions, TcpProxy, Value};

use crate::case::ensure;

/// A lease that outlasts every case, so that nothing happens because it ends.
pub const LONG: &str = "lease=5m";

/// The same for a client whose time jumps: no request is given up when it does.
pub const FROZEN: &str = "lease=5m&timeout=4m";

/// After so long by the client's clock a renewal or a heartbeat of such a lease is due.
pub const INTERVAL: Duration = Duration::from_secs(76);

/// A client of the server that `url` names. A busy machine may keep the server from answering for a while.
pub async fn reach(url: &str) -> Outcome<LockClient> {
    let builder = ClientBuilder::new().connect_timeout(PATIENCE);
    Ok(lock_redis::connect(&LockUrl::parse(url)?, builder).await?)
}

/// A client of the server that `url` names.
pub async fn connect(url: &str) -> Result<LockClient, LockError> {
    lock_redis::connect(&LockUrl::parse(url)?, ClientBuilder::new()).await
}

/// A proxy that recognises the requests of this crate.
pub fn proxy_of(server: &RedisServer) -> Outcome<TcpProxy> {
    server.proxy(lock_redis::scripts().iter().map(|script| (script.digest().to_owned(), script.operation())))
}

/// The server of one case.
pub struct Stage {
    pub server: RedisServer,
}

impl Stage {
    pub async fn new() -> Outcome<Self> {
        Self::with(ServerOptions::new()).await
    }

    pub async fn with(options: ServerOptions) -> Outcome<Self> {
        Ok(Self { server: RedisServer::start_with(options).await? })
    }

    pub fn proxy(&self) -> Outcome<TcpProxy> {
        proxy_of(&self.server)
    }

    /// A client with these options, connected directly to the server.
    pub async fn client(&self, options: &str) -> Outcome<LockClient> {
        reach(&with_options(&self.server.url(), options)).await
    }

    /// A client with these options that connects to `address`, usually a proxy.
    pub async fn client_at(&self, address: SocketAddr, options: &str) -> Outcome<LockClient> {
        reach(&with_options(&self.server.url_at(address), options)).await
    }

    /// A client through the proxy at `address` whose clock stands still until the case advances it.
    pub async fn frozen_at(&self, address: SocketAddr, options: &str) -> Outcome<(LockClient, ManualClock)> {
        let (builder, time) = frozen();
        let url = with_options(&self.server.url_at(address), options);
        Ok((lock_redis::connect(&LockUrl::parse(&url)?, builder).await?, time))
    }

    /// The same, directly at the server.
    pub async fn frozen(&self, options: &str) -> Outcome<(LockClient, ManualClock)> {
        self.frozen_at(self.server.address(), options).await
    }

    /// The server's address, as in the log.
    pub fn place(&self) -> String {
        self.server.address().to_string()
    }

    pub async fn number(&self, words: &[&str]) -> Outcome<i64> {
        match self.server.command(words).await? {
            Value::Integer(number) => Ok(number),
            other => Err(Failure::new(format!("{words:?} was answered {other:?}"))),
        }
    }

    pub async fn text(&self, words: &[&str]) -> Outcome<Option<String>> {
        match self.server.command(words).await? {
            Value::Null => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            other => Err(Failure::new(format!("{words:?} was answered {other:?}"))),
        }
    }

    pub async fn texts(&self, words: &[&str]) -> Outcome<Vec<String>> {
        Ok(self.server.command(words).await?.texts().into_iter().map(str::to_owned).collect())
    }

    /// The id and the token of the holder of the lock `ROOM`.
    pub async fn holder(&self) -> Outcome<Option<(String, u64)>> {
        let hold = self.text(&["GET", &key(ROOM, 'l')]).await?;
        Ok(hold.and_then(|hold| {
            let mut words = hold.split(' ');
            Some((words.next()?.to_owned(), words.nth(1)?.parse().ok()?))
        }))
    }

    /// How long the lease of the lock `ROOM` still lasts.
    pub async fn lease_left(&self) -> Outcome<Duration> {
        let left = self.number(&["PTTL", &key(ROOM, 'l')]).await?;
        let left =
            u64::try_from(left).map_err(|_| Failure::new(format!("the lease that is left: {left}")))?;
        Ok(Duration::from_millis(left))
    }

    /// Waits until this many waiters are in the queue of the lock `ROOM`.
    pub async fn queued(&self, count: i64) -> Outcome {
        until(&format!("{count} wait"), || async {
            Ok(self.number(&["ZCARD", &key(ROOM, 'q')]).await? == count)
        })
        .await
    }

    /// The remaining keys of holds and waiters.
    pub async fn leftovers(&self) -> Outcome<Vec<String>> {
        let keys = self.texts(&["KEYS", "*"]).await?;
        Ok(keys.into_iter().filter(|key| !key.ends_with(":f") && !key.ends_with(":b")).collect())
    }

    /// Checks that no holds and waiters are left.
    pub async fn nothing_is_left(&self, when: impl fmt::Display) -> Outcome {
        let left = self.leftovers().await?;
        ensure!(left.is_empty(), "{when}: {left:?} is left");
        Ok(())
    }

    /// The channels that have subscribers.
    pub async fn channels(&self) -> Outcome<Vec<String>> {
        self.texts(&["PUBSUB", "CHANNELS", "*"]).await
    }

    /// The ids of the connections of this crate's clients.
    pub async fn connections(&self) -> Outcome<Vec<String>> {
        let list = self.text(&["CLIENT", "LIST"]).await?.unwrap_or_default();
        let ours = list.lines().filter(|line| line.contains(" name=distlock "));
        Ok(ours.filter_map(|line| line.strip_prefix("id=")?.split(' ').next().map(str::to_owned)).collect())
    }

    /// A number from the server's `INFO`.
    pub async fn info(&self, section: &str, field: &str) -> Outcome<u64> {
        let info = self.text(&["INFO", section]).await?.unwrap_or_default();
        let value = info.lines().find_map(|line| line.strip_prefix(field));
        let digits = value.map(|value| value.chars().take_while(char::is_ascii_digit).collect::<String>());
        Ok(digits.and_then(|digits| digits.parse().ok()).unwrap_or(0))
    }

    /// How many scripts have been called by their digests.
    pub async fn calls(&self) -> Outcome<u64> {
        self.info("commandstats", "cmdstat_evalsha:calls=").await
    }

    /// Checks that the lock `ROOM` can be acquired and released now.
    pub async fn works(&self, client: &LockClient) -> Outcome {
        let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
        Ok(guard.release().await?)
    }
}

/// The read side of the lock `ROOM`.
pub fn read_side(client: &LockClient) -> Outcome<Arc<dyn DistributedLock>> {
    Ok(client.rw_lock(ROOM)?.read())
}

/// A key of a lock: `l` the hold, `q` the queue, `w` the waiters, `f` the fence.
pub fn key(name: &str, part: char) -> String {
    format!("distlock:{{{name}}}:{part}")
}

/// How long holds may be believed in where no lease is longer than so many seconds, and a little more.
pub fn longest_belief(lease: u64) -> Duration {
    Duration::from_secs(lease) * 38 / 25 + Duration::from_millis(1)
}

/// Whether it neither takes a lock of this name nor finds it taken.
pub async fn takes_nothing(client: &LockClient, name: &str) -> Outcome<bool> {
    match client.mutex(name)?.try_acquire().await {
        Err(error) => {
            ensure!(error.is_retryable(), "{error}");
            Ok(true)
        }
        Ok(Some(guard)) => {
            // What the case waits for may happen right now, and end the connection.
            let _ = guard.release().await;
            Ok(false)
        }
        Ok(None) => Ok(false),
    }
}
