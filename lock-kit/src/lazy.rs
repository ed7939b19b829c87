//! A backend that connects when it is first used.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::{Mutex, contained};
use lock_core::{
    AcquireRequest, Backend, BackendContext, Broken, Capabilities, Downgraded, ErrorKind, Grant, GroupId,
    HolderId, HolderInfo, InspectRequest, LeaseState, LockError, LockStatus, Memo, Operation, Recall,
    Released, Remembered, Updated,
};
use tokio::sync::watch;

use crate::connect_retry::ConnectRetry;

type Connected<B> = Result<Arc<B>, LockError>;
type Connect<B> = dyn Fn() -> Pin<Box<dyn Future<Output = Result<B, LockError>> + Send>> + Send + Sync;

/// The requests of a user wait until it is connected. After a failure the next request begins anew.
pub(crate) struct Lazy<B> {
    capabilities: Capabilities,
    context: BackendContext,
    retry: ConnectRetry,
    connect: Arc<Connect<B>>,
    state: Arc<Mutex<Progress<B>>>,
}

enum Progress<B> {
    Unused,
    Connecting(watch::Receiver<Option<Connected<B>>>),
    Connected(Arc<B>),
    Closed,
}

impl<B: Backend> Lazy<B> {
    pub(crate) fn new<F>(
        capabilities: Capabilities,
        context: BackendContext,
        retry: ConnectRetry,
        make: impl Fn(BackendContext) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<B, LockError>> + Send + 'static,
    {
        let for_backend = context.clone();
        let connect: Arc<Connect<B>> = Arc::new(move || Box::pin(make(for_backend.clone())));
        Self { capabilities, context, retry, connect, state: Arc::new(Mutex::new(Progress::Unused)) }
    }

    /// Returns the backend, connected.
    ///
    /// # Cancel safety
    /// Dropping the future does not end the attempt to connect, which the next request may need as well.
    async fn backend(&self, operation: Operation) -> Result<Arc<B>, LockError> {
        let (mut outcome, begin) = {
            let mut state = self.state.lock();
            match &*state {
                Progress::Connected(backend) => return Ok(Arc::clone(backend)),
                Progress::Closed => return Err(closed(operation)),
                Progress::Connecting(outcome) => (outcome.clone(), None),
                Progress::Unused => {
                    let (sender, outcome) = watch::channel(None);
                    *state = Progress::Connecting(outcome.clone());
                    (outcome, Some(sender))
                }
            }
        };
        if let Some(sender) = begin {
            self.begin(sender);
        }
        let connected = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        // The sender has gone without an answer when the engine has ended.
        connected.unwrap_or_else(|| Err(closed(operation))).map_err(|error| error.during(operation))
    }

    fn begin(&self, outcome: watch::Sender<Option<Connected<B>>>) {
        let (retry, connect) = (self.retry.clone(), Arc::clone(&self.connect));
        let state = Arc::clone(&self.state);
        self.context.spawn(async move {
            let attempt = || contained(Operation::Connect, connect());
            let connected = retry.connect(attempt).await.map(Arc::new);
            let is_closed = {
                let mut state = state.lock();
                let is_closed = matches!(*state, Progress::Closed);
                if !is_closed {
                    let next =
                        connected.as_ref().ok().map(|backend| Progress::Connected(Arc::clone(backend)));
                    *state = next.unwrap_or(Progress::Unused);
                }
                is_closed
            };
            if let Some(backend) = connected.as_ref().ok().filter(|_| is_closed) {
                backend.close().await;
            }
            let connected = if is_closed { Err(closed(Operation::Connect)) } else { connected };
            outcome.send_replace(Some(connected));
        });
    }

    fn connected(&self) -> Option<Arc<B>> {
        match &*self.state.lock() {
            Progress::Connected(backend) => Some(Arc::clone(backend)),
            _ => None,
        }
    }
}

fn closed(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Closed, operation).remedy("make a new client")
}

impl<B: Backend> Backend for Lazy<B> {
    type Lease = B::Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<B::Lease>>, LockError> {
        self.backend(Operation::Acquire).await?.acquire(request).await
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        match self.connected() {
            Some(backend) => backend.cancel(request).await,
            // No request has been sent.
            None => Ok(()),
        }
    }

    async fn renew(&self, group: GroupId, leases: &[Arc<B::Lease>]) -> Result<Vec<LeaseState>, LockError> {
        self.backend(Operation::Renew).await?.renew(group, leases).await
    }

    async fn release(&self, lease: &B::Lease) -> Result<Released, LockError> {
        self.backend(Operation::Release).await?.release(lease).await
    }

    async fn downgrade(
        &self,
        lease: &B::Lease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<B::Lease>, LockError> {
        self.backend(Operation::Downgrade).await?.downgrade(lease, request).await
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        self.backend(Operation::Inspect).await?.inspect(request).await
    }

    async fn list(&self) -> Result<Vec<InspectRequest>, LockError> {
        self.backend(Operation::Inspect).await?.list().await
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        self.backend(Operation::Break).await?.break_holder(request, holder).await
    }

    async fn update_holder(&self, lease: &B::Lease, holder: &HolderInfo) -> Result<Updated, LockError> {
        self.backend(Operation::Describe).await?.update_holder(lease, holder).await
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        self.backend(Operation::Remember).await?.remember(memo, keep).await
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        self.backend(Operation::Remember).await?.recall(memo, recall).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        self.backend(Operation::Ping).await?.ping().await
    }

    async fn close(&self) {
        let connected = {
            let mut state = self.state.lock();
            if let Progress::Connected(backend) = &*state {
                Some(Arc::clone(backend))
            } else {
                *state = Progress::Closed;
                None
            }
        };
        if let Some(backend) = connected {
            backend.close().await;
        }
    }
}

impl<B: fmt::Debug> fmt::Debug for Lazy<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.state.lock() {
            Progress::Connected(backend) => backend.fmt(formatter),
            _ => formatter.write_str("not connected yet"),
        }
    }
}
