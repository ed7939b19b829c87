//! The harness of the Redis backend: one real server for each test program, or the one of `DISTLOCK_TEST_REDIS`, and a proxy in front of it for each case.
//! In a cluster it is one node with all hash slots; in the tier of all, cases that do not disturb the server have three primaries.
#![allow(dead_code, reason = "each program uses only one of the two")]

#[macro_use]
#[path = "proxied.rs"]
mod proxied;

use std::net::SocketAddr;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{
    Ability, AfterRestart, During, Failure, Harness, Losing, Outcome, Removal, ServerChange, Silence, Tier,
};
use lock_core::{ClientBuilder, EngineChoice, LockClient, LockError, LockName, Operation};
use proxied::{Place, Running, Server, unique};
use test_servers::{
    Data, Digests, Direction, GivenServer, RedisCluster, RedisConversation, RedisServer, SayingSentinel,
    ServerOptions, TcpProxy, Value, hash_slot, left_out,
};
use tokio::sync::Mutex;

/// Long enough for a busy machine to renew in time, short enough to wait for its end.
const LEASE: Duration = Duration::from_secs(12);

/// Outlasts every case.
const LASTING: Duration = Duration::from_secs(600);

/// What the harness lacks at any server.
const fn lacks(ability: Ability) -> Option<&'static str> {
    match ability {
        Ability::CheckedGrants => Some("a grant says since when it lasts"),
        Ability::SeenDeaths => Some("the lock of a dead client is kept until its lease ends"),
        _ => None,
    }
}

/// No busy server takes this long for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The minimum permissions of a client, with which the suite runs.
const LEAST: &str = "~distlock:* resetchannels &distlock:* -@all \
    +evalsha +script|load +ping +info +client|id +client|kill +client|setname +subscribe +publish +pubsub|numsub \
    +scan +time +get +set +del +exists +pexpire +pttl \
    +zadd +zcard +zincrby +zscore +zrange +zcount +zrem +hset +hget +hmget +hdel";

/// The same without messages: a waiter has to poll.
const WITHOUT_MESSAGES: &str = "~distlock:* resetchannels -@all \
    +evalsha +script|load +ping +info +client|id +client|kill +client|setname \
    +scan +time +get +set +del +exists +pexpire +pttl \
    +zadd +zcard +zincrby +zscore +zrange +zcount +zrem +hset +hget +hmget +hdel";

/// A server that permits a client everything that it needs.
pub(crate) struct Messages(Fixture);

/// A server that sends no messages.
pub(crate) struct Polling(Fixture);

/// A server that sentinels name as the primary.
pub(crate) struct Sentinels(Fixture);

/// The nodes that have all hash slots of a cluster.
pub(crate) struct Cluster(Fixture);

/// Those that have the locks.
enum Primaries {
    One(Box<RedisServer>),
    Three(RedisCluster),
}

impl Primaries {
    fn all(&self) -> &[RedisServer] {
        match self {
            Self::One(server) => slice::from_ref(server),
            Self::Three(cluster) => cluster.servers(),
        }
    }

    /// The one that has this lock.
    async fn of(&self, name: &LockName) -> Outcome<&RedisServer> {
        match self {
            Self::One(server) => Ok(server),
            Self::Three(cluster) => cluster.owner(hash_slot(name.as_str())).await,
        }
    }
}

/// The only one, where that is disturbed.
impl Deref for Primaries {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.all()[0]
    }
}

/// A part of the server and a proxy that no other case uses.
struct Fixture {
    server: Server<Primaries>,
    proxy: TcpProxy,
    /// The addresses of the proxy, one for each primary.
    doors: Vec<SocketAddr>,
    prefix: String,
    /// One that names the proxy, and one that names the server.
    sentinels: Option<[SayingSentinel; 2]>,
    is_cluster: bool,
}

static RUNNING: Mutex<Running<Primaries>> = Running::none();

/// What a client of a cluster needs besides.
const IN_CLUSTER: &str = "+cluster|nodes";

async fn server(place: Place, rules: &str, is_cluster: bool) -> Outcome<Server<Primaries>> {
    let options = match place {
        Place::Shared => ServerOptions::new().user("locks", "secret", &[rules, IN_CLUSTER]),
        // When it is started again, Redis 7.0 refuses what it has written itself if the default user may not do that.
        Place::Alone => ServerOptions::new().setting("appendonly", "yes"),
    };
    let start = async || {
        if !is_cluster {
            return Ok(Primaries::One(Box::new(RedisServer::start_with(options).await?)));
        }
        if place == Place::Shared && Tier::of_this_run() == Tier::All {
            return RedisCluster::start_primaries(&options).await.map(Primaries::Three);
        }
        let node = RedisServer::start_as_node(&options).await?;
        node.take_all_slots().await?;
        Ok(Primaries::One(Box::new(node)))
    };
    Server::find(place, "redis", &["redis"], &RUNNING, start).await
}

impl Fixture {
    async fn start(place: Place, rules: &str) -> Outcome<Self> {
        Self::start_on(server(place, rules, false).await?)
    }

    fn start_on(server: Server<Primaries>) -> Outcome<Self> {
        let address = match &server {
            Server::Own(server) => server.address(),
            Server::Given(server) => server.address(),
        };
        let scripts = distlock::redis::scripts().iter();
        let digests: Digests =
            scripts.map(|script| (script.digest().to_owned(), script.operation())).collect();
        let digests = Arc::new(digests);
        let mut proxy = TcpProxy::with_conversation(address, move || {
            Box::new(RedisConversation::new(Arc::clone(&digests)))
        })?;
        let mut doors = vec![proxy.address()];
        for other in server.own().map_or(&[][..], |own| &own.all()[1..]) {
            doors.push(proxy.and_to(other.address())?);
        }
        // A part of the keys that the rules permit; the channels are not divided.
        let prefix = format!("distlock:{}", unique());
        Ok(Self { server, proxy, doors, prefix, sentinels: None, is_cluster: false })
    }

    async fn start_behind_sentinels(place: Place, rules: &str, is_cluster: bool) -> Outcome<Self> {
        let mut this = Self::start_on(server(place, rules, is_cluster).await?)?;
        this.is_cluster = is_cluster;
        let primaries = this.server.own()?.all();
        // As if clients had used them for long.
        for primary in primaries {
            primary.note_primary(&this.prefix, LASTING * 5).await?;
        }
        let addresses = primaries.iter().map(RedisServer::address).collect();
        this.sentinels = Some([
            SayingSentinel::start_in_cluster(this.doors.clone())?,
            SayingSentinel::start_in_cluster(addresses)?,
        ]);
        Ok(this)
    }

    fn lease(&self) -> Duration {
        // The pause after a restart is twice as long.
        if self.sentinels.is_some() { LEASE } else { self.server.lease(LEASE) }
    }

    fn address(&self) -> String {
        self.url(self.proxy.address(), self.lease())
    }

    fn lasting_address(&self, address: SocketAddr) -> String {
        let lease = match &self.sentinels {
            _ if address == self.proxy.address() => LASTING,
            // For as long a primary that is started again grants nothing.
            Some(_) => LEASE,
            // A bystander that waits learns with its next heartbeat that another's lease has ended.
            None => LASTING / 10,
        };
        format!("{}&timeout={}s", self.url(address, lease), PATIENCE.as_secs())
    }

    fn url(&self, address: SocketAddr, lease: Duration) -> String {
        let sentinel = self.sentinels.as_ref().map(|[first, other]| {
            if address == self.proxy.address() { first.address() } else { other.address() }
        });
        let url = match &self.server {
            Server::Own(server) => server.url_at(sentinel.unwrap_or(address)) + "?",
            Server::Given(server) => server.url_at(address, ""),
        };
        let url = match sentinel {
            Some(_) => {
                let url = if self.is_cluster {
                    url.replacen("redis:", "redis+cluster:", 1)
                } else {
                    url.replacen("redis:", "redis+sentinel:", 1).replacen("/0?", "/mymaster/0?", 1)
                };
                format!("{url}max_lease={}s&", lease.as_secs())
            }
            None => url,
        };
        format!(
            "{url}lease={}s&prefix={}&connect_timeout={}s",
            lease.as_secs(),
            self.prefix,
            PATIENCE.as_secs()
        )
    }

    /// Returns the key of the hold. The names that the suite takes away are not changed by the mapping.
    fn hold(&self, name: &LockName) -> String {
        format!("{}:{{{}}}:l", self.prefix, name.as_str())
    }

    async fn restart(&self) -> Outcome {
        let server = self.server.own()?;
        let Some([first, other]) = &self.sentinels else { return server.restart(Data::Kept).await };
        // Until the server looks as if no lease had been longer: clients wait for the longest one that it knows of.
        let nowhere = Some(SocketAddr::from(([127, 0, 0, 1], 1)));
        first.say(nowhere);
        other.say(nowhere);
        server.restart(Data::Kept).await?;
        if self.is_cluster {
            server.serves_slots().await?;
        }
        server.note_another_primary(&self.prefix, LEASE * 2).await?;
        first.say(Some(self.proxy.address()));
        other.say(Some(server.address()));
        Ok(())
    }

    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        let (server, key) = (self.server.own()?.of(name).await?, self.hold(name));
        let is_done = match removal {
            Removal::Deletion => server.command(&["DEL", &key]).await? == Value::Integer(1),
            Removal::Expiry => expire(server, &key).await?,
            Removal::Theft => steal(server, &key).await?,
        };
        if is_done { Ok(()) } else { Err(Failure::new(format!("{name:?} is free"))) }
    }

    /// All keys except the fences, the marks of broken holds and the note of the primary, which stay for a while; and the subscribers.
    async fn leftovers(&self) -> Outcome<Vec<String>> {
        let pattern = format!("{}:*", self.prefix);
        let is_slot = |key: &str| key.contains("}:m:");
        let stays = |key: &str| {
            [":f", ":b"].iter().any(|ending| key.ends_with(ending))
                || key.contains(":primary")
                || is_slot(key)
        };
        let mut left = Vec::new();
        for server in self.server.own()?.all() {
            let keys = server.command(&["KEYS", &pattern]).await.during("list the keys")?;
            let channels = server.command(&["PUBSUB", "CHANNELS", &pattern]).await?;
            left.extend(keys.texts().into_iter().filter(|key| !stays(key)).map(str::to_owned));
            left.extend(channels.texts().iter().map(|channel| format!("a subscription of {channel}")));
        }
        Ok(left)
    }
}

async fn expire(server: &RedisServer, key: &str) -> Outcome<bool> {
    let was_held = server.command(&["PEXPIRE", key, "1"]).await? == Value::Integer(1);
    while server.command(&["EXISTS", key]).await? != Value::Integer(0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(was_held)
}

/// Replaces the holder by another one, without a lease.
async fn steal(server: &RedisServer, key: &str) -> Outcome<bool> {
    let hold = server.command(&["GET", key]).await?;
    let Some((_, rest)) = hold.as_text().and_then(|hold| hold.split_once(' ')) else { return Ok(false) };
    let stolen = format!("{:032x} {rest}", 1);
    Ok(server.command(&["SET", key, &stolen]).await?.as_text() == Some("OK"))
}

async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
    distlock::connect_with(address, builder).await
}

/// What a waiter that polls does differently.
const WAITING: &[&str] = &["waiting", "order", "options", "local_handoff"];

/// What sentinels and clusters make different.
const SWITCHING: &[&str] = &["connecting", "options", "outages", "restarts"];

/// The harnesses differ in what the server permits, in how long a hand-off takes, and in how a client finds the server.
macro_rules! harness {
    ($harness:ident, $left_out:expr, $start:expr, $fewer:expr, $differs:expr) => {
        proxied_harness! {
            $harness,
            left_out: $left_out,
            start: $start,
            requests: Outcome::Ok,

            fn differs_in() -> Option<&'static [&'static str]> {
                $differs
            }

            fn engine(&self) -> EngineChoice {
                if Self::differs_in().is_some() { EngineChoice::Caller } else { EngineChoice::Own }
            }

            fn after_a_restart(&self) -> AfterRestart {
                // The pause after it is longer than a place lasts.
                if self.0.sentinels.is_some() { AfterRestart::Holds } else { AfterRestart::Locks }
            }

            fn rounds(&self, many: u32) -> u32 {
                many / $fewer
            }

            async fn sever(&self) -> Outcome {
                self.0.proxy.sever();
                Ok(())
            }
        }
    };
}

fn left_out_with_sentinels() -> Option<String> {
    let is_given = || GivenServer::of("redis", &["redis"]).is_ok_and(|given| given.is_some());
    left_out("redis").or_else(|| is_given().then(|| proxied::ONLY_A_CLIENT.to_owned()))
}

harness!(Messages, left_out("redis"), |place| Fixture::start(place, LEAST), 1, None);
harness!(Polling, left_out("redis"), |place| Fixture::start(place, WITHOUT_MESSAGES), 4, Some(WAITING));
harness!(
    Sentinels,
    left_out_with_sentinels(),
    |place| Fixture::start_behind_sentinels(place, LEAST, false),
    1,
    Some(SWITCHING)
);
harness!(
    Cluster,
    left_out_with_sentinels(),
    |place| Fixture::start_behind_sentinels(place, LEAST, true),
    1,
    Some(SWITCHING)
);
