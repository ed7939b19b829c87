//! Keeps a client connected: watches its one connection, and replaces it when it breaks.
//!
//! The client uses a new connection for locks only when all earlier ones are certain to do nothing more. Otherwise the server
//! could carry out a request that the client gave up on an earlier connection and has undone on the new one. The client asks the
//! server to close the earlier connections that belong to this run of the server (`CLIENT KILL ID`). It remembers the others,
//! because an address may lead to another server for a while, and then back.
//!
//! One connection for each client: requests and messages end together, so a client without a connection gets no grant, and the
//! server sees from it that a waiter is dead. The client crate's `ConnectionManager` replaces a connection without a word, and keeps
//! one that has gone silent. Silence breaks a connection, a late reply does not: replies come in order, so as long as any arrive, the
//! others are on their way. A client that asked for 8,000 locks at once mistook its own queue for a silent server.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::spi::{Mutex, random_bytes, within};
use lock_core::{BackendContext, Backoff, ErrorKind, LockError, Operation};
use lock_kit::gone;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::{Notify, watch};

use crate::address::{Language, client};
use crate::earlier::Earlier;
use crate::failure::{explain, is_refused};
use crate::groups::Groups;
use crate::link::{Breakage, Link};
use crate::options::RedisOptions;
use crate::push_router::PushRouter;
use crate::record::Message;
use crate::scripts::scripts;
use crate::server::Facts;

/// How long an attempt to connect takes if the server accepts the connection and then says nothing.
const SHORTEST_TIME_TO_CONNECT: Duration = Duration::from_secs(2);

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A half-open connection is noticed after this time, however long the lease is.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// How many requests may wait to be written: more than can be pending at the same time.
const NOT_WRITTEN_YET: usize = 1024;

/// Whether the client is connected.
#[derive(Debug, Clone)]
pub(crate) enum Contact {
    Good(Arc<Link>),
    Lost(LockError),
}

/// The parts of a client that use its connection.
pub(crate) struct Concerned {
    pub(crate) router: Arc<PushRouter>,
    pub(crate) groups: Arc<Groups>,
}

pub(crate) struct Supervisor {
    context: BackendContext,
    options: RedisOptions,
    concerned: Concerned,
    /// The prefix of the client's channels; the number of the connection completes the name.
    channels: String,
    connections: AtomicU64,
    request_timeout: Duration,
    /// How long a connection may be quiet before the client sends a `PING`: longer than between two renewals or heartbeats,
    /// unless those are rare.
    longest_silence: Duration,
    contact: watch::Sender<Contact>,
    /// Ends the connection for good.
    closing: Notify,
    /// Warnings that were logged: each is logged once.
    warned: Mutex<HashSet<String>>,
}

impl Supervisor {
    /// Connects, and from then on keeps the client connected.
    pub(crate) async fn start(
        context: BackendContext,
        options: RedisOptions,
        concerned: Concerned,
        request_timeout: Duration,
        interval: Duration,
    ) -> Result<Arc<Self>, LockError> {
        let channel = u128::from_ne_bytes(random_bytes(Operation::Connect)?);
        let nothing_yet = LockError::new(ErrorKind::Unreachable, Operation::Connect);
        let this = Arc::new(Self {
            channels: format!("{}:c:{channel:032x}", options.server.prefix),
            context,
            options,
            concerned,
            connections: AtomicU64::new(0),
            request_timeout,
            longest_silence: interval.mul_f64(1.25).min(LONGEST_SILENCE),
            contact: watch::Sender::new(Contact::Lost(nothing_yet)),
            closing: Notify::new(),
            warned: Mutex::default(),
        });
        let link = this.connect(&Earlier::default()).await?;
        this.contact.send_replace(Contact::Good(Arc::clone(&link)));
        this.context.spawn(Arc::clone(&this).stay_connected(link));
        Ok(this)
    }

    /// The connection, if there is one.
    pub(crate) fn link(&self, operation: Operation) -> Result<Arc<Link>, LockError> {
        match &*self.contact.borrow() {
            Contact::Good(link) => Ok(Arc::clone(link)),
            Contact::Lost(error) => Err(error.clone().during(operation)),
        }
    }

    /// Subscribes to the loss and the return of contact.
    pub(crate) fn watch(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }

    /// Ends the connection for good.
    pub(crate) fn close(&self) {
        self.let_go();
        self.closing.notify_one();
    }

    /// Lets the connection end with its last pending request.
    fn let_go(&self) {
        let closed = LockError::new(ErrorKind::Closed, Operation::Close);
        self.contact.send_replace(Contact::Lost(closed));
    }

    async fn stay_connected(self: Arc<Self>, link: Arc<Link>) {
        tokio::select! {
            () = self.closing.notified() => {}
            () = self.keep_connected(link) => {}
        }
        // The supervisor may have made another connection at the last moment.
        self.let_go();
    }

    async fn keep_connected(&self, mut link: Arc<Link>) {
        let clock = self.context.clock();
        let mut backoff = new_backoff();
        let mut earlier = Earlier::default();
        loop {
            let since = clock.now();
            self.watch_over(&link).await;
            self.contact.send_replace(Contact::Lost(gone(Operation::Connect)));
            tracing::warn!(target: "distlock", server = %self.options.server.endpoint, "contact lost");
            self.concerned.groups.all().for_each(|group| self.context.group_suspect(group));
            if clock.now().since(since) > LONGEST_PAUSE {
                backoff = new_backoff();
            } else {
                // The connection broke as soon as it was used, and the next may be no better.
                clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
            }
            earlier.remember(&link.identity);
            link = self.reconnect(&earlier, &mut backoff).await;
            // The server has closed them now. Connections of another run stay remembered until the address leads to it again.
            earlier.forget_those_of_the_run_of(&link.identity);
            self.contact.send_replace(Contact::Good(Arc::clone(&link)));
            tracing::info!(target: "distlock", server = %self.options.server.endpoint, "contact restored");
            self.concerned.groups.all().for_each(|group| self.context.group_restored(group));
        }
    }

    /// Returns when the connection is broken. A half-open connection does not report that itself, so this sends a `PING`,
    /// unless the server answered something else meanwhile.
    async fn watch_over(&self, link: &Link) {
        let clock = self.context.clock();
        let ask = async {
            loop {
                let quiet_since = link.last_heard();
                clock.sleep_until(quiet_since.plus(self.longest_silence)).await;
                if link.last_heard() == quiet_since && !link.is_alive().await {
                    return;
                }
            }
        };
        tokio::select! {
            () = link.broken() => {}
            () = ask => {}
        }
    }

    async fn reconnect(&self, earlier: &Earlier, backoff: &mut Backoff) -> Arc<Link> {
        let mut told = String::new();
        loop {
            match self.connect(earlier).await {
                Ok(link) => return link,
                Err(error) => {
                    let reason = error.to_string();
                    if reason != told {
                        tracing::warn!(target: "distlock", server = %self.options.server.endpoint, %error, "no contact yet");
                        told = reason;
                    }
                    // A request in the meantime fails with this reason, as an error that may be retried.
                    self.contact.send_replace(Contact::Lost(error.retryable()));
                }
            }
            let clock = self.context.clock();
            clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
        }
    }

    async fn connect(&self, earlier: &Earlier) -> Result<Arc<Link>, LockError> {
        let failed = |error| explain(Operation::Connect, error);
        let patience = self.time_to_connect();
        let password = self.context.password(self.options.server.password.as_ref(), patience).await?;
        let newer = client(&self.options, password.as_ref(), Language::Resp3)?;
        let (mut link, language) = match self.open(&newer, Language::Resp3).await {
            Err(error) if is_about_the_language(&error) => {
                let older = client(&self.options, password.as_ref(), Language::Resp2)?;
                (self.open(&older, Language::Resp2).await.map_err(failed)?, Language::Resp2)
            }
            link => (link.map_err(failed)?, Language::Resp3),
        };
        let facts = self.introduce(&mut link).await?;
        if let Some(facts) = &facts {
            facts.check()?;
            facts.warnings().into_iter().for_each(|warning| self.warn(warning));
            let settled_in = self.options.restart_delay.saturating_sub(facts.least_uptime());
            link.usable_from = self.context.clock().now().plus(settled_in);
        } else if !self.options.restart_delay.is_zero() {
            return Err(LockError::new(ErrorKind::Denied, Operation::Connect)
                .because("INFO is refused, and restart_delay needs the server's uptime")
                .remedy("give the user INFO, or leave restart_delay out"));
        }
        for number in earlier.of_the_run_of(&link.identity) {
            self.end(number, &link).await?;
        }
        link.channel = self.listen(&link, language).await?;
        Ok(Arc::new(link))
    }

    fn time_to_connect(&self) -> Duration {
        self.request_timeout.max(SHORTEST_TIME_TO_CONNECT)
    }

    async fn open(&self, client: &redis::Client, language: Language) -> RedisResult<Link> {
        let breakage = Arc::new(Breakage::default());
        let mut config = AsyncConnectionConfig::new()
            // This client limits both itself.
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(NOT_WRITTEN_YET);
        if language == Language::Resp3 {
            let (router, breakage) = (Arc::clone(&self.concerned.router), Arc::clone(&breakage));
            config = config.set_push_sender(move |push: PushInfo| -> Result<(), std::convert::Infallible> {
                receive(&router, &breakage, &push);
                Ok(())
            });
        }
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let clock = self.context.clock();
        let give_up = clock.now().plus(self.time_to_connect());
        match within(clock, give_up, connecting).await {
            Some(connection) => {
                Ok(Link::new(connection?, breakage, self.request_timeout, self.context.clone()))
            }
            None => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// Sets the connection's name, loads the usual scripts, and asks what the server is.
    async fn introduce(&self, link: &mut Link) -> Result<Option<Facts>, LockError> {
        let mut requests = redis::pipe();
        requests.cmd("CLIENT").arg("SETNAME").arg("distlock");
        requests.cmd("CLIENT").arg("ID");
        requests.cmd("INFO");
        for script in scripts().iter().filter(|script| !script.is_rare()) {
            requests.cmd("SCRIPT").arg("LOAD").arg(script.text());
        }
        let mut answers = link
            .send_all(&mut requests)
            .await
            .map_err(|error| explain(Operation::Connect, error))?
            .into_iter();
        // The name is only for operators who list the connections, so an error does not matter.
        let _ = answers.next();
        if let Some(Ok(Value::Int(number))) = answers.next() {
            link.identity.number = Some(number);
        } else {
            self.warn(
                "the server does not tell a connection its number (CLIENT ID is refused): what was given up when \
                 contact was lost may hold a lock until its lease ends"
                    .to_owned(),
            );
        }
        let facts = match answers.next() {
            Some(Ok(info)) => redis::from_redis_value::<String>(info).ok().map(|info| Facts::read(&info)),
            Some(Err(error)) if !is_refused(&error) => return Err(explain(Operation::Connect, error)),
            _ => {
                self.warn(
                    "the server does not tell what it is (INFO is refused): version, role and eviction are not \
                     checked, and what was given up when contact was lost may hold a lock until its lease ends"
                        .to_owned(),
                );
                None
            }
        };
        link.identity.run = facts.as_ref().map(|facts| facts.run.clone()).filter(|run| !run.is_empty());
        for loaded in answers {
            loaded.map_err(|error| explain(Operation::Connect, error))?;
        }
        Ok(facts)
    }

    /// Makes sure that the server carries out nothing more from an earlier connection.
    async fn end(&self, number: i64, link: &Link) -> Result<(), LockError> {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(number);
        let answer: RedisResult<i64> = link.send(&kill).await;
        let Err(error) = answer else { return Ok(()) };
        let error = explain(Operation::Connect, error);
        if error.is_retryable() {
            // A server that is busy or loading its data has not closed it; the new connection is unusable until it has.
            return Err(error);
        }
        self.warn(
            "the server does not let a client close its own earlier connection (CLIENT KILL is refused): what \
             was given up when contact was lost may hold a lock until its lease ends"
                .to_owned(),
        );
        Ok(())
    }

    /// Subscribes to a channel of this connection's own, so that messages for an earlier connection reach no client.
    async fn listen(&self, link: &Link, language: Language) -> Result<Option<String>, LockError> {
        if language == Language::Resp3 {
            let number = self.connections.fetch_add(1, Ordering::Relaxed);
            let channel = format!("{}:{number}", self.channels);
            match link.subscribe(&channel).await {
                Ok(()) => return Ok(Some(channel)),
                Err(error) if !is_refused(&error) => return Err(explain(Operation::Connect, error)),
                Err(_) => {}
            }
        }
        self.warn(
            "the server sends no messages (RESP3 or SUBSCRIBE is refused): waiters ask for their locks \
             again and again"
                .to_owned(),
        );
        Ok(None)
    }

    fn warn(&self, text: String) {
        let mut warned = self.warned.lock();
        if !warned.contains(&text) {
            tracing::warn!(target: "distlock", server = %self.options.server.endpoint, "{text}");
            warned.insert(text);
        }
    }
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Supervisor")
            .field("options", &self.options)
            .field("contact", &*self.contact.borrow())
            .finish_non_exhaustive()
    }
}

fn new_backoff() -> Backoff {
    Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
}

/// Handles a message, on the task that reads the connection: it must not block.
fn receive(router: &PushRouter, breakage: &Breakage, push: &PushInfo) {
    match push.kind {
        PushKind::Disconnection => breakage.notice(),
        PushKind::Message => {
            if let Some(Value::BulkString(bytes)) = push.data.get(1)
                && let Ok(text) = std::str::from_utf8(bytes)
            {
                Message::read_all(text).for_each(|message| router.deliver(&message));
            }
        }
        _ => {}
    }
}

/// Whether the error means that the server, or a proxy in front of it, does not speak RESP3.
fn is_about_the_language(error: &redis::RedisError) -> bool {
    let text = error.to_string().to_lowercase();
    error.kind() == redis::ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || (text.contains("hello") && (is_refused(error) || text.contains("unknown command")))
}
