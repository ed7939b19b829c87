//! Asks the sentinels which server is the primary.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{BackendContext, ErrorKind, LockError, Operation};
use lock_kit::{Endpoint, TlsOptions, unreachable};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion};
use tokio::sync::{Mutex, mpsc};

use super::address::{Login, client};
use crate::failure::{explain, nonsense};
use crate::options::{RedisOptions, SentinelOptions};

/// The sentinels of a client.
pub(super) struct Sentinels {
    options: SentinelOptions,
    tls: Option<TlsOptions>,
    all: Vec<Arc<Sentinel>>,
}

/// A server, and the failover that has made it the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Primary {
    pub(super) address: Endpoint,
    /// Each failover has a higher one: it also tells a primary that becomes one again without having been demoted in between.
    pub(super) epoch: u64,
}

struct Sentinel {
    endpoint: Endpoint,
    /// The connection on which it answered last.
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Sentinels {
    /// Those that the options name.
    pub(super) fn of(options: &RedisOptions) -> Option<Arc<Self>> {
        let sentinels = options.sentinels.clone()?;
        let new = |endpoint: &Endpoint| Sentinel { endpoint: endpoint.clone(), connection: Mutex::default() };
        let all = sentinels.endpoints.iter().map(new).map(Arc::new).collect();
        Some(Arc::new(Self { options: sentinels, tls: options.server.tls.clone(), all }))
    }

    /// Returns the primary that a majority of all sentinels names, as soon as it has. Each may take `limit` for its answer.
    pub(super) async fn primary(
        self: &Arc<Self>,
        context: &BackendContext,
        limit: Duration,
    ) -> Result<Primary, LockError> {
        let (tell, mut told) = mpsc::unbounded_channel();
        for sentinel in &self.all {
            let (this, sentinel, tell) = (Arc::clone(self), Arc::clone(sentinel), tell.clone());
            let its_context = context.clone();
            context.spawn(async move {
                // An error means that a majority was found without this one.
                let _ = tell.send(this.ask(&sentinel, &its_context, limit).await);
            });
        }
        drop(tell);
        let mut answers = Vec::new();
        let mut failures = Vec::new();
        while let Some(answer) = told.recv().await {
            match answer {
                Ok(named) => {
                    answers.push(named);
                    let named = answers.last();
                    let count = answers.iter().filter(|other| Some(*other) == named).count();
                    if count * 2 > self.all.len() {
                        return answers.pop().flatten().ok_or_else(|| self.unknown());
                    }
                }
                Err(failure) => failures.push(failure),
            }
        }
        Err(self.no_majority(&answers, &failures))
    }

    /// Asks one of them, which knows no primary of this name if it answers with none.
    async fn ask(
        &self,
        sentinel: &Sentinel,
        context: &BackendContext,
        limit: Duration,
    ) -> Result<Option<Primary>, LockError> {
        let endpoint = &sentinel.endpoint;
        let failed = |error| explain(Operation::Connect, error);
        let asking = async {
            let mut kept = sentinel.connection.lock().await;
            // A connection that does not answer is not used again.
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.open(endpoint, context, limit).await?,
            };
            let mut question = redis::cmd("SENTINEL");
            question.arg("MASTER").arg(&self.options.primary);
            let named = match question.query_async(&mut connection).await {
                Ok(facts) => Some(primary_of(&facts)?),
                Err(error) if error.detail().is_some_and(|text| text.starts_with(UNKNOWN)) => None,
                Err(error) => return Err(failed(error)),
            };
            *kept = Some(connection);
            Ok(named)
        };
        let clock = context.clock();
        let answer = within(clock, clock.now().plus(limit), asking).await;
        let answer = answer.unwrap_or_else(|| Err(failed(io::Error::from(io::ErrorKind::TimedOut).into())));
        answer.map_err(|error: LockError| {
            let retryable = error.is_retryable();
            let shown = LockError::new(error.kind(), Operation::Connect)
                .because(format!("the sentinel {endpoint}: {error}"))
                .remedy("check the sentinels, and sentinel_user and sentinel_password_file");
            if retryable { shown.retryable() } else { shown }
        })
    }

    async fn open(
        &self,
        endpoint: &Endpoint,
        context: &BackendContext,
        limit: Duration,
    ) -> Result<MultiplexedConnection, LockError> {
        let password = context.password(self.options.password.as_ref(), limit).await?;
        let (tls, user) = (self.tls.as_ref(), self.options.user.as_deref());
        let login = Login { endpoint, tls, user, password: password.as_ref(), database: 0 };
        // The caller limits both.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let client = client(&login, ProtocolVersion::RESP2)?;
        let opened = client.get_multiplexed_async_connection_with_config(&config).await;
        opened.map_err(|error| explain(Operation::Connect, error))
    }

    fn unknown(&self) -> LockError {
        let name = &self.options.primary;
        LockError::new(ErrorKind::InvalidOption, Operation::Connect)
            .because(format!("the sentinels know no primary with the name {name:?}"))
            .remedy("use the name that follows `sentinel monitor` in their configuration")
    }

    fn no_majority(&self, answers: &[Option<Primary>], failures: &[LockError]) -> LockError {
        let all = self.all.len();
        // What does not pass by itself says more than silence.
        if let Some(lasting) = failures.iter().find(|failure| !failure.is_retryable()) {
            return lasting.clone();
        }
        let mut told: Vec<_> = failures.iter().map(ToString::to_string).collect();
        told.extend(answers.iter().map(|named| match named {
            Some(Primary { address, epoch }) => format!("one names {address}, in epoch {epoch}"),
            None => "one knows no such primary".to_owned(),
        }));
        unreachable(
            Operation::Connect,
            format!("no majority of the {all} sentinels names one primary ({})", told.join("; ")),
        )
        .remedy("check that most of the sentinels run, can be reached, and agree")
    }
}

/// How a sentinel begins its answer about a primary that it does not know.
const UNKNOWN: &str = "No such master";

fn primary_of(facts: &HashMap<String, String>) -> Result<Primary, LockError> {
    let number = |name: &str| facts.get(name)?.parse::<u64>().ok();
    let read = || {
        let port = number("port")?.try_into().ok()?;
        let address = Endpoint::Tcp { host: facts.get("ip")?.clone(), port };
        Some(Primary { address, epoch: number("config-epoch")? })
    };
    read().ok_or_else(|| nonsense(Operation::Connect, "a sentinel does not say where the primary is"))
}
