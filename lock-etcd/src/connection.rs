//! One connection with one server: its requests and its watches.

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use lock_core::spi::within;
use lock_core::{BackendContext, Clock, LockError, Moment, Operation};
use lock_entries::Failed;
use lock_kit::invalid;
use tokio::sync::SetOnce;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::failure::{Failure, nonsense};
use crate::messages::{self, Authenticate, Call, LeaseKeepAlive, Range, WATCH, WatchAnswer, WatchCreate};
use crate::options::EtcdOptions;
use crate::watches::{Requests, Watches, Watching};

/// An answer may list some ten thousand waiters.
const LONGEST_ANSWER: usize = 64 << 20;

/// The gRPC channel of a connection, and its login.
#[derive(Clone)]
struct Calls {
    grpc: Grpc<Channel>,
    token: Option<MetadataValue<Ascii>>,
}

impl Calls {
    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // A server without a leader says so, also on streams.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    async fn ask<C: Call>(&self, call: C) -> Result<C::Answer, Status> {
        let codec = ProstCodec::<C, C::Answer>::default();
        let path = PathAndQuery::from_static(C::PATH);
        let answer = self.ready().await?.unary(self.request(call), path, codec).await?;
        Ok(answer.into_inner())
    }

    async fn watch(&self, requests: Requests) -> Result<tonic::Streaming<WatchAnswer>, Status> {
        let codec = ProstCodec::<messages::WatchRequest, WatchAnswer>::default();
        let path = PathAndQuery::from_static(WATCH);
        let answer = self.ready().await?.streaming(self.request(requests), path, codec).await?;
        Ok(answer.into_inner())
    }
}

/// A connection with one server. It is used until one of its requests fails in a way that says nothing about the request.
pub(crate) struct Connection {
    pub(crate) host: String,
    calls: Calls,
    clock: Clock,
    timeout: Duration,
    watches: Arc<Watches>,
    /// Why it is of no use any more.
    broken: Arc<SetOnce<Failure>>,
    /// A watch of a key that no client uses: its stream ends when the connection does, or when the server has no leader.
    _watching: Watching,
    sentinel: String,
}

impl Connection {
    /// Connects to one server, logs in, and opens the stream of watches.
    pub(crate) async fn open(
        context: &BackendContext,
        options: &EtcdOptions,
        host: &str,
        timeout: Duration,
    ) -> Result<Arc<Self>, LockError> {
        let clock = context.clock().clone();
        let silent = || Failure::Silence.explain(Operation::Connect);
        let explained = |status: Status| Failure::from(status).explain(Operation::Connect);
        let password = lock_kit::read_password(context, options.password.as_ref(), timeout).await?;
        let channel = within(&clock, clock.now().plus(timeout), endpoint(options, host)?.connect()).await;
        let channel =
            channel.ok_or_else(silent)?.map_err(|error| explained(Status::from_error(Box::new(error))))?;
        let grpc = Grpc::new(channel).max_decoding_message_size(LONGEST_ANSWER);
        let mut calls = Calls { grpc, token: None };
        if let (Some(user), Some(password)) = (&options.user, &password) {
            let login = Authenticate { name: user.clone(), password: password.reveal().to_owned() };
            // Checking a password is work: a busy server needs longer for that than for an answer.
            let limit = clock.now().plus(timeout.max(options.lease / 3));
            let answer = within(&clock, limit, calls.ask(login)).await.ok_or_else(silent)?;
            let token = answer.map_err(explained)?.text.parse();
            calls.token = Some(token.map_err(|_| nonsense(Operation::Connect, "the login's token"))?);
        }
        let sentinel = options.sentinel();
        let (watches, requests, watching) = Watches::new(&sentinel);
        let answers = within(&clock, clock.now().plus(timeout), calls.watch(requests)).await;
        let answers = answers.ok_or_else(silent)?.map_err(explained)?;
        let broken = Arc::new(SetOnce::new());
        let connection = Arc::new(Self {
            host: host.to_owned(),
            calls,
            clock,
            timeout,
            watches: Arc::clone(&watches),
            broken: Arc::clone(&broken),
            _watching: watching,
            sentinel,
        });
        context.spawn(async move {
            tokio::select! {
                status = watches.follow(answers) => drop(broken.set(Failure::Told(status))),
                _ = broken.wait() => watches.end(),
            }
        });
        Ok(connection)
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn ask<C: Call>(&self, call: C) -> Result<C::Answer, Failure> {
        self.in_time(self.calls.ask(call)).await
    }

    /// Renews a lease. Returns whether it exists, and the moment from which it certainly lasts for its length: [why](crate::session).
    pub(crate) async fn renew(&self, lease: i64) -> Result<(bool, Moment), Failure> {
        let asking = async {
            loop {
                let sent = self.clock.now();
                let renewed = self.calls.ask(LeaseKeepAlive { id: lease }).await?;
                // Not before the answer.
                let read = Range::of(&self.sentinel);
                if self.calls.ask(read).await?.header.term == renewed.header.term {
                    return Ok((renewed.ttl > 0, sent));
                }
            }
        };
        self.in_time(asking).await
    }

    async fn in_time<T>(&self, asking: impl Future<Output = Result<T, Status>>) -> Result<T, Failure> {
        // The library's future is large, and would be part of each that waits for it.
        let answer = within(&self.clock, self.clock.now().plus(self.timeout), Box::pin(asking)).await;
        let failure = match answer {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(status)) => Failure::from(status),
            None => Failure::Silence,
        };
        if failure.ends_connection() {
            self.end(failure.clone());
        }
        Err(failure)
    }

    /// Watches this.
    pub(crate) fn watch(&self, create: WatchCreate) -> Watching {
        self.watches.watch(create)
    }

    /// The first reason stays.
    pub(crate) fn end(&self, failure: Failure) {
        let _ = self.broken.set(failure);
    }

    /// Waits until the connection is of no use any more, and returns why.
    pub(crate) async fn broken(&self) -> Failure {
        self.broken.wait().await.clone()
    }
}

fn endpoint(options: &EtcdOptions, host: &str) -> Result<Endpoint, LockError> {
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let unusable = |error: tonic::transport::Error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        invalid(format!("the server {host:?} or a certificate cannot be used: {cause}"))
            .remedy("write etcd://host:2379, and check the files of ca, cert and key")
    };
    let mut endpoint =
        Endpoint::from_shared(format!("{scheme}://{host}")).map_err(unusable)?.tcp_nodelay(true);
    if let Some(tls) = &options.tls {
        let files = tls.read()?;
        let mut config = ClientTlsConfig::new();
        config = match files.authority {
            Some(authority) => config.ca_certificate(Certificate::from_pem(authority)),
            None => config.with_enabled_roots(),
        };
        if let Some(client) = files.client {
            config = config.identity(Identity::from_pem(client.certificate, client.key));
        }
        endpoint = endpoint.tls_config(config).map_err(unusable)?;
    }
    Ok(endpoint)
}
