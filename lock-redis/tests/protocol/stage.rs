//! The stage of a scenario: one lock at a server, with the scripts to test.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use redis::{Cmd, Connection, FromRedisValue, Value};

use crate::failure::{Failure, failure};
use crate::scripts::{
    ACQUIRE, ACQUIRE_SHARED, BREAK, CANCEL, DESCRIBE, DOWNGRADE, INSPECT, RELEASE, RELEASE_SHARED, RENEW,
    Scripts,
};
use crate::server::{LOOK_AGAIN, PATIENCE, Server};

/// A lease in milliseconds that outlasts every scenario.
pub(crate) const LONG: u64 = 600_000;

/// How a holder describes itself; the text may contain spaces.
pub(crate) const HOLDER: &str = r#"{"host":"a b","pid":7}"#;

static LAST_LOCK: AtomicUsize = AtomicUsize::new(0);

/// Whether an id says that others can have the lock at the same time.
fn is_shared(id: &str) -> bool {
    id.contains(':')
}

/// A lock that no other scenario uses.
pub(crate) struct Stage<'a> {
    pub(crate) scripts: &'a Scripts,
    pub(crate) server: &'a Server,
    pub(crate) connection: Connection,
    name: String,
}

/// The answer of `acquire`.
#[derive(Debug, PartialEq, Clone, Copy)]
pub(crate) enum Acquired {
    Held { token: u64 },
    Waits { remaining: i64, rank: i64, score: i64 },
    Gone,
    OtherPermits(i64),
}

/// The arguments of one request of an attempt.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) intent: &'static str,
    pub(crate) lease: u64,
    pub(crate) beat: u64,
    pub(crate) channel: String,
    pub(crate) place: i64,
}

/// A request of an attempt that does not wait.
pub(crate) fn tries(id: &str) -> Request {
    Request { id: id.to_owned(), intent: "try", lease: LONG, beat: 1, channel: "-".to_owned(), place: 0 }
}

/// A request of an attempt that waits, and polls.
pub(crate) fn waits(id: &str) -> Request {
    Request { intent: "wait", ..tries(id) }
}

/// A heartbeat of an attempt that waits.
pub(crate) fn beats(id: &str) -> Request {
    Request { intent: "beat", ..tries(id) }
}

impl Request {
    pub(crate) fn lease(self, lease: u64) -> Self {
        Self { lease, ..self }
    }

    pub(crate) fn beat(self, beat: u64) -> Self {
        Self { beat, ..self }
    }

    pub(crate) fn on(self, channel: &str) -> Self {
        Self { channel: channel.to_owned(), ..self }
    }

    pub(crate) fn place(self, place: i64) -> Self {
        Self { place, ..self }
    }
}

impl<'a> Stage<'a> {
    pub(crate) fn new(scripts: &'a Scripts, server: &'a Server) -> Result<Self, Failure> {
        let name = format!("lock-{}", LAST_LOCK.fetch_add(1, Ordering::Relaxed));
        Ok(Self { scripts, server, connection: server.connect()?, name })
    }

    /// The same lock at another server.
    pub(crate) fn elsewhere<'b>(&self, server: &'b Server) -> Result<Stage<'b>, Failure>
    where
        'a: 'b,
    {
        Ok(Stage { scripts: self.scripts, server, connection: server.connect()?, name: self.name.clone() })
    }

    /// The keys in the order of the scripts.
    pub(crate) fn keys(&self) -> [String; 5] {
        ["l", "q", "w", "f", "b"].map(|suffix| self.key(suffix))
    }

    pub(crate) fn key(&self, suffix: &str) -> String {
        format!("distlock:{{{}}}:{suffix}", self.name)
    }

    /// A channel that belongs to this lock alone.
    pub(crate) fn channel(&self, who: &str) -> String {
        format!("distlock:c:{}:{who}", self.name)
    }

    /// The call of a script, with its arguments.
    pub(crate) fn script(&self, name: &str, arguments: &[&str]) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.scripts.text(name)).arg(5).arg(&self.keys()).arg(arguments);
        command
    }

    fn play<T: FromRedisValue>(&mut self, name: &str, arguments: &[&str]) -> Result<T, Failure> {
        let answer = self.script(name, arguments).query(&mut self.connection);
        answer.map_err(|error| failure(format!("{name} {arguments:?}: {error}")))
    }

    pub(crate) fn acquire_command(&self, request: &Request) -> Cmd {
        let Request { id, intent, lease, beat, channel, place } = request;
        let [lease, beat, place] = [lease.to_string(), beat.to_string(), place.to_string()];
        let who = format!("{channel} {HOLDER}");
        let script = if is_shared(id) { ACQUIRE_SHARED } else { ACQUIRE };
        let how: &[&str] = match *intent {
            "try" => &[],
            "beat" => &[&beat, "-"],
            _ if place == "0" => &[&beat],
            _ => &[&beat, &place],
        };
        self.script(script, &[&[id.as_str(), &lease, &who], how].concat())
    }

    pub(crate) fn acquire(&mut self, request: &Request) -> Result<Acquired, Failure> {
        let answer: Value = self.acquire_command(request).query(&mut self.connection)?;
        match answer {
            Value::Int(-1) => Ok(Acquired::Gone),
            Value::BulkString(token) => Ok(Acquired::Held { token: String::from_utf8(token)?.parse()? }),
            Value::Array(parts) if parts.len() == 2 => {
                let (-1, permits) = redis::from_redis_value(Value::Array(parts))? else {
                    return Err(failure("two numbers that say nothing"));
                };
                Ok(Acquired::OtherPermits(permits))
            }
            Value::Array(_) => {
                let (remaining, rank, score, _holder): (_, _, _, String) = redis::from_redis_value(answer)?;
                Ok(Acquired::Waits { remaining, rank, score })
            }
            _ => Err(failure(format!("acquire answers {answer:?}"))),
        }
    }

    /// As `acquire`, where any result but a grant is a failure.
    pub(crate) fn must_get(&mut self, request: &Request) -> Result<u64, Failure> {
        match self.acquire(request)? {
            Acquired::Held { token } => Ok(token),
            other => Err(failure(format!("{} does not get the lock: {other:?}", request.id))),
        }
    }

    /// As `acquire`, where any result but a place in the queue (its score) is a failure.
    pub(crate) fn must_wait(&mut self, request: &Request) -> Result<i64, Failure> {
        match self.acquire(request)? {
            Acquired::Waits { score, .. } => Ok(score),
            other => Err(failure(format!("{} does not wait: {other:?}", request.id))),
        }
    }

    pub(crate) fn renew(&mut self, id: &str, lease: u64) -> Result<i64, Failure> {
        self.play(RENEW, &[id, &lease.to_string()])
    }

    pub(crate) fn renew_all(&mut self, ids: &[&str], lease: u64) -> Result<Vec<i64>, Failure> {
        ids.iter().map(|id| self.renew(id, lease)).collect()
    }

    /// Returns the token and whether to call again; or why the hold is gone, and nothing.
    pub(crate) fn downgrade(
        &mut self,
        held: &str,
        id: &str,
        lease: u64,
    ) -> Result<(i64, Option<i64>), Failure> {
        let who = format!("- {HOLDER}");
        match self.play(DOWNGRADE, &[held, id, &lease.to_string(), &who])? {
            Value::Int(code) => Ok((code, None)),
            answer => {
                redis::from_redis_value(answer).map(|(token, more)| (token, Some(more))).map_err(Into::into)
            }
        }
    }

    /// Releases a series of which so many holds followed the first.
    pub(crate) fn release_after(&mut self, id: &str, passes: u32) -> Result<(i64, i64), Failure> {
        let answer: Value = self.play(RELEASE, &[id, &passes.to_string()])?;
        if answer == Value::Int(1) { Ok((1, 0)) } else { Ok(redis::from_redis_value(answer)?) }
    }

    pub(crate) fn release(&mut self, id: &str) -> Result<(i64, i64), Failure> {
        let answer: Value = self.play(if is_shared(id) { RELEASE_SHARED } else { RELEASE }, &[id])?;
        // The short answer: released, and there are no waiters.
        if answer == Value::Int(1) { Ok((1, 0)) } else { Ok(redis::from_redis_value(answer)?) }
    }

    pub(crate) fn cancel(&mut self, id: &str) -> Result<i64, Failure> {
        self.play(CANCEL, &[id])
    }

    pub(crate) fn break_holder(&mut self, id: &str) -> Result<(i64, i64), Failure> {
        self.play(BREAK, &[id, &LONG.to_string()])
    }

    pub(crate) fn describe(&mut self, id: &str, holder: &str) -> Result<i64, Failure> {
        self.play(DESCRIBE, &[id, holder])
    }

    pub(crate) fn inspect(&mut self) -> Result<Vec<Value>, Failure> {
        self.play(INSPECT, &[])
    }

    /// Runs a plain command, without a script.
    pub(crate) fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, Failure> {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(word);
        }
        command.query(&mut self.connection).map_err(|error| failure(format!("{words:?}: {error}")))
    }

    /// The id of the holder.
    pub(crate) fn holder(&mut self) -> Result<Option<String>, Failure> {
        Ok(self.hold()?.map(|hold| hold.split(' ').next().unwrap_or_default().to_owned()))
    }

    /// The text of the hold.
    pub(crate) fn hold(&mut self) -> Result<Option<String>, Failure> {
        let key = self.key("l");
        self.ask(&["GET", &key])
    }

    /// The remaining lease in milliseconds.
    pub(crate) fn remaining(&mut self) -> Result<i64, Failure> {
        self.lifetime("l")
    }

    /// The remaining time of a key in milliseconds; -1 if it has no end, -2 if there is no key.
    pub(crate) fn lifetime(&mut self, suffix: &str) -> Result<i64, Failure> {
        let key = self.key(suffix);
        self.ask(&["PTTL", &key])
    }

    /// The ids of all attempts with a place, dead ones included.
    pub(crate) fn queue(&mut self) -> Result<Vec<String>, Failure> {
        let key = self.key("q");
        self.ask(&["ZRANGE", &key, "0", "-1"])
    }

    /// The ids of all attempts with a state, sorted.
    pub(crate) fn states(&mut self) -> Result<Vec<String>, Failure> {
        let key = self.key("w");
        let mut ids: Vec<String> = self.ask(&["HKEYS", &key])?;
        ids.sort();
        Ok(ids)
    }

    /// The server's time in microseconds.
    pub(crate) fn server_time(&mut self) -> Result<u64, Failure> {
        let (seconds, microseconds): (u64, u64) = self.ask(&["TIME"])?;
        Ok(seconds * 1_000_000 + microseconds)
    }

    /// Waits until the server's clock has advanced by this many milliseconds.
    pub(crate) fn pass_milliseconds(&mut self, milliseconds: u64) -> Result<(), Failure> {
        let until = self.server_time()? + milliseconds * 1000;
        self.until("the server's time passes", |stage| Ok(stage.server_time()? > until))
    }

    /// Ends the hold as the end of its lease would, so that the preparation before it may take any time.
    pub(crate) fn expire_hold(&mut self) -> Result<(), Failure> {
        let key = self.key("l");
        let _: i64 = self.ask(&["PEXPIRE", &key, "1"])?;
        self.until_hold_ends()
    }

    /// Ends the lease of one of those that hold the lock together.
    pub(crate) fn expire_reader(&mut self, id: &str) -> Result<(), Failure> {
        let queue = self.key("q");
        let ended = self.server_time()? / 1000 - 1;
        let _: i64 = self.ask(&["ZADD", &queue, "XX", &ended.to_string(), id])?;
        Ok(())
    }

    /// Lets the deadline of a waiter be over.
    pub(crate) fn expire_waiter(&mut self, id: &str) -> Result<(), Failure> {
        let waiters = self.key("w");
        let state: String = self.ask(&["HGET", &waiters, id])?;
        let rest = state.split_once(' ').map_or("", |(_, rest)| rest);
        let _: i64 = self.ask(&["HSET", &waiters, id, &format!("1 {rest}")])?;
        Ok(())
    }

    /// Waits until the lease of the hold is over.
    pub(crate) fn until_hold_ends(&mut self) -> Result<(), Failure> {
        self.until("the hold ends", |stage| Ok(stage.remaining()? == -2))
    }

    /// Waits for something that sends no event.
    pub(crate) fn until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if is_so(self)? {
                return Ok(());
            }
            thread::sleep(LOOK_AGAIN);
        }
        Err(failure(format!("it never happens that {what}")))
    }

    /// Subscribes to a channel on a new connection.
    pub(crate) fn listen(&mut self, channel: &str) -> Result<Listener, Failure> {
        Listener::new(self.server.connect()?, "SUBSCRIBE", channel)
    }

    /// Subscribes to everything on a new connection, as a monitoring tool does.
    pub(crate) fn listen_to_all(&mut self) -> Result<Listener, Failure> {
        Listener::new(self.server.connect()?, "PSUBSCRIBE", "*")
    }

    /// Closes a listener's connection, and waits until the server knows.
    pub(crate) fn hang_up(&mut self, listener: Listener, channel: &str) -> Result<(), Failure> {
        drop(listener);
        self.until("the server forgets the channel", |stage| {
            let (_, count): (String, i64) = stage.ask(&["PUBSUB", "NUMSUB", channel])?;
            Ok(count == 0)
        })
    }
}

/// A connection with a subscription.
pub(crate) struct Listener {
    connection: Connection,
}

impl Listener {
    fn new(mut connection: Connection, command: &str, channel: &str) -> Result<Self, Failure> {
        connection.send_packed_command(&redis::cmd(command).arg(channel).get_packed_command())?;
        connection.recv_response()?;
        Ok(Self { connection })
    }

    /// The next message.
    pub(crate) fn next(&mut self) -> Result<String, Failure> {
        let message: Vec<String> = redis::from_redis_value(self.connection.recv_response()?)?;
        message.last().cloned().ok_or_else(|| failure("an empty message"))
    }
}
