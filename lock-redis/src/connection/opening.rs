//! Opens a connection, and makes sure that the client may use it for locks.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::{random_bytes, within};
use lock_core::{ErrorKind, LockError, Operation};
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisError, Value};

use super::address::{Login, client};
use super::contact::Connection;
use super::earlier::Identity;
use super::link::{Breakage, Link, last};
use super::nodes::Client;
use super::reign::Reign;
use super::server::Facts;
use super::witnesses::{Primary, Slots};
use crate::backend::milliseconds;
use crate::failure::{explain, is_refused};
use crate::keys::call_for_prefix;
use crate::options::Durability;
use crate::scripts::{GREET, scripts};

/// How many requests may wait to be written: more than can be pending at the same time.
const NOT_WRITTEN_YET: usize = 1 << 28;

impl Connection {
    pub(super) async fn open(&self) -> Result<Arc<Link>, LockError> {
        let Client { context, options, witnesses, earlier, .. } = &*self.client;
        let limit = self.client.time_to_connect();
        let password = lock_kit::read_password(context, options.server.password.as_ref(), limit).await?;
        let primary = match witnesses {
            Some(witnesses) => witnesses.primary(limit, self.slot, self.client.now()).await?.1,
            None => Primary::only(options.server.endpoint.clone(), 0),
        };
        let login = Login {
            endpoint: &primary.address,
            tls: options.server.tls.as_ref(),
            user: options.server.user.as_deref(),
            password: password.as_ref(),
            database: options.database,
        };
        let mut link = match self.open_in(ProtocolVersion::RESP3, &login, limit).await {
            // For a server, or a proxy in front of it, that does not know RESP3. There are no messages then.
            Err(error) if is_about_the_language(&error) => {
                self.open_in(ProtocolVersion::RESP2, &login, limit).await
            }
            opened => opened,
        }?;
        self.introduce(&mut link, primary.epoch).await?;
        if let Some(Identity { run, .. }) = &link.identity {
            let earlier_ones: Vec<_> = earlier.lock().of_run(run).collect();
            for number in &earlier_ones {
                self.end(*number, &link).await?;
            }
            // Those of another run stay remembered until there is a connection to it again.
            earlier.lock().forget(run, &earlier_ones);
        }
        self.listen(&mut link).await?;
        if witnesses.is_none() {
            link.settle_in(primary.slots.into_iter().map(|range| (range, link.usable_from)).collect());
        }
        self.confirm(&link, self.client.now()).await?;
        Ok(Arc::new(link))
    }

    async fn open_in(
        &self,
        language: ProtocolVersion,
        login: &Login<'_>,
        limit: Duration,
    ) -> Result<Link, LockError> {
        let client = client(login, language)?;
        let breakage = Breakage::new();
        let mut config = AsyncConnectionConfig::new()
            // This client limits both itself.
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(NOT_WRITTEN_YET);
        if language == ProtocolVersion::RESP3 {
            let (router, breakage) = (Arc::clone(&self.client.router), Arc::clone(&breakage));
            config = config.set_push_sender(move |push: PushInfo| -> Result<(), Infallible> {
                // On the task that reads the connection: it must not block.
                match (push.kind, push.data.get(1)) {
                    (PushKind::Disconnection, _) => breakage.notice(),
                    (PushKind::Message, Some(Value::BulkString(bytes))) => {
                        router.deliver(&String::from_utf8_lossy(bytes));
                    }
                    _ => {}
                }
                Ok(())
            });
        }
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connected = within(self.client.context.clock(), self.client.now().plus(limit), connecting).await;
        let connected = connected.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        let connection = connected.map_err(|error| explain(Operation::Connect, error))?;
        Ok(Link::new(self, connection, login.endpoint.clone(), breakage))
    }

    /// Sets the connection's name, loads the scripts, and asks what the server is.
    async fn introduce(&self, link: &mut Link, epoch: u64) -> Result<(), LockError> {
        let failed = |error| explain(Operation::Connect, error);
        let Client { options, witnesses, .. } = &*self.client;
        let mut requests = redis::pipe();
        requests.cmd("CLIENT").arg("SETNAME").arg("distlock");
        requests.cmd("CLIENT").arg("ID");
        requests.cmd("INFO");
        for script in scripts() {
            requests.cmd("SCRIPT").arg("LOAD").arg(script.text());
        }
        if options.durable.is_some() {
            // Answered at once, or refused.
            requests.cmd("WAIT").arg(0).arg(0);
        }
        let mut answers = link.send_all(&mut requests).await.map_err(failed)?.into_iter();
        // The name is only for operators who list the connections, so an error does not matter.
        let _ = answers.next();
        let number = answers.next();
        let facts = match answers.next() {
            Some(Ok(info)) => redis::from_redis_value(info).ok().map(Facts),
            Some(Err(error)) if !is_refused(&error) => return Err(failed(error)),
            _ => None,
        };
        for loaded in answers {
            loaded.map_err(failed)?;
        }
        match (number, &facts) {
            (Some(Ok(Value::Int(number))), Some(facts)) if !facts.value("run_id").is_empty() => {
                link.identity = Some(Identity { run: facts.value("run_id").to_owned(), number });
            }
            (_, Some(_)) => self.warn_of_late_requests("CLIENT ID"),
            _ => self.warn_of_late_requests(
                "INFO (version, role, eviction and the append-only file are not checked)",
            ),
        }
        if let Some(facts) = &facts {
            facts.check(options.is_cluster())?;
            let outlasts_restarts = witnesses.is_some() || !options.restart_delay.is_zero();
            let warnings = facts.warnings(outlasts_restarts, options.follows_primaries());
            warnings.for_each(|warning| self.warn(&warning));
            let settled_in = options.restart_delay.saturating_sub(facts.least_uptime());
            link.usable_from = self.client.now().plus(settled_in);
            link.note_replicas(facts);
        } else if !options.restart_delay.is_zero() || options.durable == Some(Durability::All) {
            return Err(LockError::new(ErrorKind::Denied, Operation::Connect)
                .because("INFO is refused, and restart_delay and durable=all need it")
                .remedy("give the user INFO, or leave that option out"));
        }
        if witnesses.is_some() {
            let known = facts.as_ref().and_then(|facts| Some((facts.value("run_id"), facts.replication()?)));
            let (run, replication) = known.ok_or_else(|| {
                LockError::new(ErrorKind::Denied, Operation::Connect)
                    .because("INFO does not tell since when the server is the primary")
                    .remedy("give the user INFO")
            })?;
            let (address, run, replication) = (link.address.clone(), run.to_owned(), replication.to_owned());
            link.reign = Some(Arc::new(Reign { address, run, replication, epoch }));
        }
        Ok(())
    }

    /// Takes nothing from a new primary, or in a hash slot that it did not have before, for as long as a hold may last that an
    /// earlier one has granted.
    pub(super) async fn greet(&self, link: &Link, reign: &Reign, slots: &Slots) -> Result<(), LockError> {
        let failed = |error| explain(Operation::Connect, error);
        let options = &self.client.options;
        let longest = options.longest_lease() + options.longest_reliance();
        let highest = slots.last().filter(|_| options.is_cluster()).map(|range| *range.end());
        let mut request = call_for_prefix(&GREET, &options.server.prefix, highest);
        request.arg(reign.to_string()).arg(milliseconds(longest).saturating_add(1));
        for range in slots {
            request.arg(*range.start()).arg(*range.end());
        }
        let answer = link.load_and_send(&GREET, [&request]).await.and_then(last);
        let noted = answer.and_then(|answer| Ok(redis::from_redis_value(answer)?));
        let noted: Vec<(u16, u16, u64)> = noted.map_err(failed)?;
        let now = self.client.now();
        let from = |left| now.plus(Duration::from_millis(left)).max(link.usable_from);
        let most = noted.iter().map(|(_, _, left)| *left).max().unwrap_or(0);
        if most > 0 {
            tracing::warn!(target: "distlock", server = %link.address, left = ?Duration::from_millis(most), "a new primary: it grants nothing yet");
        }
        link.settle_in(noted.into_iter().map(|(first, last, left)| (first..=last, from(left))).collect());
        Ok(())
    }

    /// Makes sure that the server carries out nothing more from an earlier connection.
    async fn end(&self, number: i64, link: &Link) -> Result<(), LockError> {
        let answer = link.send::<i64>(redis::cmd("CLIENT").arg("KILL").arg("ID").arg(number)).await;
        let Err(error) = answer.map_err(|error| explain(Operation::Connect, error)) else { return Ok(()) };
        if error.is_retryable() {
            // A server that is busy or loading its data has not closed it; the new connection is unusable until it has.
            return Err(error);
        }
        self.warn_of_late_requests("CLIENT KILL");
        Ok(())
    }

    fn warn_of_late_requests(&self, refused: &str) {
        self.warn(&format!(
            "the server refuses {refused}: what was given up when contact was lost may hold a lock until its lease ends"
        ));
    }

    /// Subscribes to a channel of this connection's own, so that messages for an earlier connection reach no client.
    async fn listen(&self, link: &mut Link) -> Result<(), LockError> {
        let number = u128::from_ne_bytes(random_bytes(Operation::Connect)?);
        let channel = format!("{}:c:{number:032x}", self.client.options.server.prefix);
        match link.subscribe(&channel).await {
            Ok(()) => link.channel = Some(channel),
            // The client crate has no messages in RESP2. A new primary would hand a lock over to a waiter that polls before it may.
            Err(error)
                if self.client.witnesses.is_none()
                    && (is_refused(&error) || error.kind() == redis::ErrorKind::InvalidClientConfig) =>
            {
                self.warn(
                    "the server sends no messages (RESP3 or SUBSCRIBE is refused): waiters ask for their locks \
                     again and again",
                );
            }
            Err(error) if error.kind() == redis::ErrorKind::InvalidClientConfig => {
                return Err(LockError::new(ErrorKind::Unsupported, Operation::Connect)
                    .because("the server does not speak RESP3, without which it sends no messages")
                    .remedy("enable RESP3 at it, or at the proxy in front of it"));
            }
            Err(error) => return Err(explain(Operation::Connect, error)),
        }
        Ok(())
    }
}

/// Whether the error means that the server, or a proxy in front of it, does not speak RESP3.
fn is_about_the_language(error: &LockError) -> bool {
    let Some(error) = error.underlying().and_then(|cause| cause.downcast_ref::<RedisError>()) else {
        return false;
    };
    let text = error.to_string().to_lowercase();
    error.kind() == redis::ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || (text.contains("hello") && (is_refused(error) || text.contains("unknown command")))
}
