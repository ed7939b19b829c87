//! The engine over a store in memory whose requests are delayed and whose answers are lost, with clocks that stand still.

mod rules;
mod store;
mod walk;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::{
    AcquireRequest, AttemptId, BackendContext, CharacterSet, ClientBuilder, Clock, HolderInfo, LockClient,
    LockName, ManualClock, Mode, NameRules, Wait,
};

use crate::{RegisterBackend, RegisterOptions};
use store::MemoryStore;

const LEASE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);
const NAMES: NameRules = NameRules::new(CharacterSet::PORTABLE, 200);

/// A machine with a clock of its own.
struct Machine {
    context: BackendContext,
    time: ManualClock,
    _client: LockClient,
}

impl Machine {
    fn new() -> Self {
        let (clock, time) = Clock::manual();
        let mut context = None;
        let client = ClientBuilder::new().clock(clock).build(|of_client| {
            context = Some(of_client.clone());
            backend(&MemoryStore::default(), &of_client)
        });
        Self { context: context.unwrap(), time, _client: client.unwrap() }
    }

    /// Starts a client.
    fn client(&self, store: &MemoryStore) -> Arc<RegisterBackend<MemoryStore>> {
        Arc::new(backend(store, &self.context).unwrap())
    }
}

fn backend(
    store: &MemoryStore,
    context: &BackendContext,
) -> Result<RegisterBackend<MemoryStore>, lock_core::LockError> {
    let options = RegisterOptions { lease: LEASE, poll: POLL };
    let capabilities = options.capabilities("memory store", NAMES, Duration::ZERO);
    RegisterBackend::new(store.clone(), context.clone(), options, capabilities)
}

fn request(id: u128, mode: Mode, wait: Wait) -> AcquireRequest {
    let name = LockName::new("room").unwrap();
    let physical = NAMES.apply(&name);
    let holder = Arc::new(HolderInfo::of_this_process());
    AcquireRequest::new(AttemptId::new(id), name, physical, wait, holder).with_mode(mode)
}

fn poll<F: Future + Unpin + ?Sized>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}
