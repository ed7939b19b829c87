//! Sentinels: real ones over a primary with two replicas, and one whose answers a test sets.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use lock_core::spi::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::cluster::said_of;
use super::{RedisServer, SENTINEL, Value, next, resp};
use crate::service::Service;
use crate::{Failure, Outcome, ServerOptions};

/// The primary's name at the sentinels.
const NAME: &str = "mymaster";

/// How long a primary is silent before a sentinel counts it as down: longer than a busy machine keeps it waiting.
const DOWN_AFTER: &str = "1000";

/// After twice this time there may be another failover.
const FAILOVER_TIMEOUT: &str = "3000";

/// A primary with two replicas, watched by three sentinels. Dropping this ends all of them.
#[derive(Debug)]
pub struct RedisSentinels {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl RedisSentinels {
    /// Starts all of them, and waits until they know each other. With a password, the sentinels ask clients for it, and the
    /// servers ask for none.
    ///
    /// # Errors
    /// When a process does not start: the end of its log, or what to install.
    ///
    /// # Cancel safety
    /// Dropping the future ends them.
    pub async fn start(password: Option<&str>) -> Outcome<Self> {
        Self::start_with(&ServerOptions::new(), password).await
    }

    /// The same, with these options for all of them.
    ///
    /// # Errors
    /// Those of `start`.
    ///
    /// # Cancel safety
    /// Dropping the future ends them.
    pub async fn start_with(all: &ServerOptions, password: Option<&str>) -> Outcome<Self> {
        let options = all.clone().setting("repl-diskless-sync-delay", "0");
        let primary = RedisServer::start_with(options.clone()).await?;
        let port = primary.address().port();
        let replica = options.setting("replicaof", &format!("{} {port}", Ipv4Addr::LOCALHOST));
        let mut servers = vec![primary];
        for _ in 0..2 {
            servers.push(RedisServer::start_with(replica.clone()).await?);
        }
        let of_primary = |what: &str, value: &str| format!("{what} {NAME} {value}");
        let mut watching = all
            .clone()
            .setting(SENTINEL, &format!("announce-ip {}", Ipv4Addr::LOCALHOST))
            .setting(SENTINEL, &of_primary("monitor", &format!("{} {port} 2", Ipv4Addr::LOCALHOST)))
            .setting(SENTINEL, &of_primary("down-after-milliseconds", DOWN_AFTER))
            .setting(SENTINEL, &of_primary("failover-timeout", FAILOVER_TIMEOUT));
        if let Some(password) = password {
            watching = watching.password(password).setting(SENTINEL, &format!("sentinel-pass {password}"));
        }
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(RedisServer::start_with(watching.clone()).await?);
        }
        let this = Self { servers, sentinels };
        this.settled().await?;
        Ok(this)
    }

    /// Waits until each sentinel knows the others, and two replicas that follow the primary.
    ///
    /// # Errors
    /// When that takes too long: the end of a sentinel's log.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn settled(&self) -> Outcome {
        for sentinel in &self.sentinels {
            sentinel.process.ready(|| knows_the_others(sentinel)).await?;
        }
        Ok(())
    }

    /// Makes another server the primary, although nothing is wrong with this one, which goes on for some seconds.
    ///
    /// # Errors
    /// When the sentinels refuse for long.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the change begins.
    pub async fn depose(&self) -> Outcome {
        let first = &self.sentinels[0];
        first.process.ready(|| first.command(&["SENTINEL", "FAILOVER", NAME])).await.map(drop)
    }

    /// Returns the URL of the primary for a client that knows all sentinels; it has no password.
    pub fn url(&self) -> String {
        self.servers[0].secured(&sentinel_url(self.sentinels.iter().map(RedisServer::address)))
    }

    /// Returns the servers; the first one was the first primary.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Waits until two of the sentinels name the same primary, and returns it.
    ///
    /// # Errors
    /// When one does not answer, or they do not agree for long.
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn primary(&self) -> Outcome<&RedisServer> {
        let agree = || async {
            let mut all = Vec::new();
            for sentinel in &self.sentinels {
                all.push(named_by(sentinel).await?);
            }
            all.sort();
            // If two of the three agree, it is with the one in the middle.
            let address = &all[1];
            crate::ensure!(all[0] == *address || all[2] == *address, "the sentinels do not agree");
            let named = self.servers.iter().find(|server| server.address().to_string() == *address);
            named.ok_or_else(|| Failure::new(format!("the primary is the stranger {address}")))
        };
        self.sentinels[0].process.ready(agree).await
    }

    /// Waits until two of the sentinels name another primary than this one, and returns it.
    ///
    /// # Errors
    /// Same as [`RedisSentinels::primary`].
    ///
    /// # Cancel safety
    /// Dropping the future only stops the waiting.
    pub async fn primary_after(&self, old: SocketAddr) -> Outcome<&RedisServer> {
        let changed = || async {
            let primary = self.primary().await?;
            crate::ensure!(primary.address() != old, "the primary is the same");
            Ok(primary)
        };
        self.sentinels[0].process.ready(changed).await
    }
}

/// Returns the URL of a primary for a client that knows these sentinels.
pub fn sentinel_url(sentinels: impl IntoIterator<Item = SocketAddr>) -> String {
    let all: Vec<_> = sentinels.into_iter().map(|address| address.to_string()).collect();
    format!("redis+sentinel://{}/{NAME}", all.join(","))
}

/// Whether the answer has this value of this name.
fn says(answer: &Value, name: &str, value: &str) -> bool {
    answer.texts().windows(2).any(|pair| pair == [name, value])
}

async fn knows_the_others(sentinel: &RedisServer) -> Outcome {
    let known = sentinel.command(&["SENTINEL", "MASTER", NAME]).await?;
    let others = says(&known, "num-slaves", "2") && says(&known, "num-other-sentinels", "2");
    crate::ensure!(others, "it knows {known:?}");
    let replicas = sentinel.command(&["SENTINEL", "REPLICAS", NAME]).await?;
    let up = replicas.items().iter().filter(|replica| says(replica, "master-link-status", "ok"));
    crate::ensure!(up.count() == 2, "a replica has no data yet");
    Ok(())
}

/// Returns the address of the primary that a sentinel names.
async fn named_by(sentinel: &RedisServer) -> Outcome<String> {
    let answer = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).await?;
    Ok(answer.texts().join(":"))
}

/// What it says: the primaries, and the failover since which the first one is that.
type Says = Arc<Mutex<(Vec<SocketAddr>, u64)>>;

/// A sentinel that only names the primary that a test sets, and as a node of a cluster, that this has all hash slots. Dropping this ends it.
#[derive(Debug)]
pub struct SayingSentinel {
    says: Says,
    service: Service,
}

impl SayingSentinel {
    /// Starts one that names this primary; with `None`, it knows none.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(primary: Option<SocketAddr>) -> Outcome<Self> {
        Self::start_in_cluster(primary.into_iter().collect())
    }

    /// Starts one that names the primaries of a [`RedisCluster`](super::RedisCluster) in their order; or only one, as above.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start_in_cluster(primaries: Vec<SocketAddr>) -> Outcome<Self> {
        let says = Arc::new(Mutex::new((primaries, 0)));
        let its = Arc::clone(&says);
        // It fails when the client has gone, or sends what is no request.
        let service = Service::start("sentinel", watch::channel(true).1, move |client| {
            answer(client, Arc::clone(&its))
        })?;
        Ok(Self { says, service })
    }

    /// Makes it name this primary from now on.
    pub fn say(&self, primary: Option<SocketAddr>) {
        self.says.lock().0 = primary.into_iter().collect();
    }

    /// Makes it name its primary as that of another failover.
    pub fn say_anew(&self) {
        self.says.lock().1 += 1;
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.service.address
    }
}

async fn answer(mut stream: TcpStream, says: Says) -> Outcome {
    let mut bytes = Vec::new();
    loop {
        let request = next(&mut stream, &mut bytes).await?;
        let (primaries, epoch) = says.lock().clone();
        let reply = match (request.texts().first().copied(), primaries.as_slice()) {
            (Some("SENTINEL"), [primary, ..]) => {
                let (host, port, epoch) =
                    (primary.ip().to_string(), primary.port().to_string(), epoch.to_string());
                resp::request(&["ip", &host, "port", &port, "config-epoch", &epoch])
            }
            (Some("CLUSTER"), [_, ..]) => {
                let text = said_of(&primaries, epoch);
                format!("${}\r\n{text}\r\n", text.len()).into_bytes()
            }
            (Some("SENTINEL"), []) => b"-ERR No such master with that name\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        };
        stream.write_all(&reply).await?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[tokio::test]
    async fn sentinels_follow_the_primary() {
        if let Some(reason) = crate::left_out("redis") {
            eprintln!("redis: {reason}");
            return;
        }
        let sentinels = RedisSentinels::start(None).await.unwrap();
        let old = sentinels.primary().await.unwrap();
        assert_eq!(old.address(), sentinels.servers()[0].address());
        old.command(&["SET", "k", "v"]).await.unwrap();
        for server in sentinels.servers() {
            let has_it = || async {
                crate::ensure!(server.command(&["EXISTS", "k"]).await? == Value::Integer(1), "it is late");
                Ok(())
            };
            server.process.ready(has_it).await.unwrap();
        }
        old.kill().unwrap();
        let new = sentinels.primary_after(old.address()).await.unwrap();
        assert_eq!(new.command(&["GET", "k"]).await, Ok(Value::Text("v".to_owned())));
    }
}
