//! The backend without the core: attempts that are repeated, dropped and cancelled.

use std::future::Future;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use lock_core::{
    AcquireRequest, AttemptId, Backend, BackendContext, ClientBuilder, Downgraded, ErrorKind, Grant,
    InspectRequest, LockError, LockName, LossReason, Mode, Moment, Released, Wait,
};

use super::{SOON, Scratch, block_on, eventually};
use crate::backend::{FileBackend, FileLease};

/// A backend and its environment.
pub(super) struct Bare {
    pub(super) backend: FileBackend,
    context: BackendContext,
    _client: lock_core::LockClient,
}

impl Bare {
    pub(super) fn new(scratch: &Scratch) -> Self {
        let mut context = None;
        let options = super::patient(&scratch.path);
        let client = ClientBuilder::new().build(|of_client| {
            context = Some(of_client.clone());
            FileBackend::open(&options, of_client)
        });
        let context = context.unwrap();
        Self {
            backend: FileBackend::open(&options, context.clone()).unwrap(),
            context,
            _client: client.unwrap(),
        }
    }

    pub(super) fn request(&self, id: u128, name: &str, wait: Wait) -> AcquireRequest {
        let name = LockName::new(name).unwrap();
        let physical = self.backend.capabilities().names.apply(&name);
        AcquireRequest::new(AttemptId::new(id), name, physical, wait, Arc::clone(self.context.holder()))
    }

    async fn waiters(&self, name: &str) -> usize {
        let name = LockName::new(name).unwrap();
        let physical = self.backend.capabilities().names.apply(&name);
        self.backend.inspect(&InspectRequest::new(name, physical)).await.unwrap().waiters.len()
    }

    /// Waits until there are so many, and no more. A place is taken on another thread where the gate is busy for a moment.
    async fn has_waiters(&self, name: &str, count: usize) {
        let start = Instant::now();
        while self.waiters(name).await < count {
            assert!(start.elapsed() < SOON, "{count} waiters");
        }
        assert_eq!(self.waiters(name).await, count);
    }
}

async fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

#[test]
fn asked_again_an_attempt_finds_its_own_grant() -> Result<(), LockError> {
    let scratch = Scratch::new();
    let bare = Bare::new(&scratch);
    block_on(async {
        let request = bare.request(1, "a", Wait::Try);
        let first = bare.backend.acquire(&request).await?.unwrap();
        let again = bare.backend.acquire(&request).await?.unwrap();
        assert_eq!(first.token, again.token);
        assert!(bare.backend.acquire(&bare.request(2, "a", Wait::Try)).await?.is_none());
        assert_eq!(bare.backend.release(&first.lease).await?, Released::Clean);
        assert_eq!(bare.backend.release(&again.lease).await?, Released::Clean);
        assert!(bare.backend.acquire(&bare.request(3, "a", Wait::Try)).await?.is_some());
        Ok(())
    })
}

#[test]
fn a_hold_that_was_lost_is_released_beside_the_next_holder() -> Result<(), LockError> {
    let scratch = Scratch::new();
    let bare = Bare::new(&scratch);
    block_on(async {
        let first = bare.backend.acquire(&bare.request(1, "a", Wait::Try)).await?.unwrap();
        std::fs::remove_file(scratch.leftovers().pop().unwrap()).unwrap();
        let second = bare.backend.acquire(&bare.request(2, "a", Wait::Try)).await?.unwrap();
        let lost = Released::WasLost(LossReason::Deleted);
        assert_eq!(bare.backend.release(&first.lease).await?, lost);
        assert!(bare.backend.acquire(&bare.request(3, "a", Wait::Try)).await?.is_none());
        assert_eq!(bare.backend.release(&second.lease).await?, Released::Clean);
        Ok(())
    })
}

/// The counter and the clock are both behind.
#[test]
fn tokens_and_tickets_are_above_those_that_are_in_the_folder() -> Result<(), LockError> {
    let scratch = Scratch::new();
    let bare = Bare::new(&scratch);
    let far_ahead = crate::gate::clock() * 2;
    block_on(async {
        let first = bare.backend.acquire(&bare.request(1, "a", Wait::Try)).await?.unwrap();
        let held = scratch.leftovers().pop().unwrap();
        let record = std::fs::read_to_string(&held).unwrap();
        assert_eq!(bare.backend.release(&first.lease).await?, Released::Clean);
        let former = first.token.unwrap().get().to_string();
        std::fs::write(&held, record.replace(&former, &far_ahead.to_string())).unwrap();
        std::fs::set_permissions(&held, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::remove_file(scratch.path.join("gate")).unwrap();
        let second = bare.backend.acquire(&bare.request(2, "a", Wait::Try)).await?.unwrap();
        assert!(second.token.unwrap().get() > far_ahead);

        let waiting = |id| bare.request(id, "a", Wait::Forever);
        assert!(poll_once(bare.backend.acquire(&waiting(3))).await.is_pending());
        let tickets = || scratch.leftovers().into_iter().filter(|path| *path != held).collect::<Vec<_>>();
        eventually("the first ticket is drawn", || tickets().len() == 1);
        let queue = tickets().pop().unwrap().parent().unwrap().to_owned();
        let ticket = std::fs::File::create(queue.join(format!("{:020}", far_ahead * 2))).unwrap();
        ticket.lock().unwrap();
        std::fs::remove_file(scratch.path.join("gate")).unwrap();
        assert!(poll_once(bare.backend.acquire(&waiting(4))).await.is_pending());
        eventually("the ticket is drawn", || tickets().len() == 3);
        let last = tickets().into_iter().max().unwrap();
        assert!(last.file_name().unwrap().to_str().unwrap() > format!("{:020}", far_ahead * 2).as_str());
        Ok(())
    })
}

#[test]
fn a_dropped_attempt_asked_again_keeps_its_place() -> Result<(), LockError> {
    let scratch = Scratch::new();
    let bare = Bare::new(&scratch);
    block_on(async {
        let held = bare.backend.acquire(&bare.request(1, "a", Wait::Forever)).await?.unwrap();
        let (first, second) =
            (bare.request(2, "a", Wait::Forever), bare.request(3, "a", Wait::Until(Moment::FOREVER)));
        for (request, waiters) in [(&first, 1), (&second, 2), (&first, 2)] {
            assert!(poll_once(bare.backend.acquire(request)).await.is_pending());
            bare.has_waiters("a", waiters).await;
        }
        bare.backend.release(&held.lease).await?;
        let grant = bare.backend.acquire(&first).await?.unwrap();
        assert!(poll_once(bare.backend.acquire(&second)).await.is_pending());
        bare.backend.release(&grant.lease).await?;
        assert!(bare.backend.acquire(&second).await?.is_some());
        Ok(())
    })
}

/// An attempt that is dropped after any number of polls, and cancelled, leaves nothing behind, whatever its outcome was.
#[test]
fn cancel_undoes_whatever_happened() -> Result<(), LockError> {
    let scratch = Scratch::new();
    let bare = Bare::new(&scratch);
    block_on(async {
        // No attempt at all.
        bare.backend.cancel(&bare.request(1, "a", Wait::Forever)).await?;
        // Never polled.
        let unpolled = bare.request(2, "a", Wait::Forever);
        drop(bare.backend.acquire(&unpolled));
        bare.backend.cancel(&unpolled).await?;
        // Granted, but the result was never taken.
        let granted = bare.request(3, "a", Wait::Forever);
        assert!(poll_once(bare.backend.acquire(&granted)).await.is_ready());
        // A place in the queue.
        let queued = bare.request(4, "a", Wait::Forever);
        assert!(poll_once(bare.backend.acquire(&queued)).await.is_pending());
        bare.has_waiters("a", 1).await;
        bare.backend.cancel(&queued).await?;
        bare.backend.cancel(&queued).await?;
        assert_eq!(bare.waiters("a").await, 0);
        // A place in the queue that becomes a grant while the future is not polled.
        let late = bare.request(5, "a", Wait::Forever);
        assert!(poll_once(bare.backend.acquire(&late)).await.is_pending());
        bare.backend.cancel(&granted).await?;
        let name = LockName::new("a")?;
        let inspect = InspectRequest::new(name, late.physical().clone());
        let id = late.id().to_string();
        while bare
            .backend
            .inspect(&inspect)
            .await?
            .holders
            .first()
            .is_none_or(|holder| holder.id.as_str() != id)
        {
            tokio::task::yield_now().await;
        }
        bare.backend.cancel(&late).await?;
        scratch.is_empty_soon();
        assert!(bare.backend.acquire(&bare.request(6, "a", Wait::Try)).await?.is_some());
        Ok(())
    })
}

/// A hold of a backend that is dropped without release becomes free when its descriptors are closed.
#[test]
fn a_dropped_backend_holds_and_awaits_nothing() -> Result<(), LockError> {
    let scratch = Scratch::new();
    let (ended, bare) = (Bare::new(&scratch), Bare::new(&scratch));
    block_on(async {
        let held = ended.backend.acquire(&ended.request(1, "a", Wait::Forever)).await?;
        assert!(poll_once(ended.backend.acquire(&ended.request(2, "a", Wait::Forever))).await.is_pending());
        let next = bare.request(3, "a", Wait::Forever);
        let mut waiting = pin!(bare.backend.acquire(&next));
        assert!(poll_once(waiting.as_mut()).await.is_pending());
        drop((held, ended));
        assert!(tokio::time::timeout(super::SOON, waiting).await.unwrap()?.is_some());
        Ok(())
    })
}

#[test]
fn an_error_names_the_operation_and_the_lock() {
    let scratch = Scratch::new();
    let bare = Bare::new(&scratch);
    std::fs::create_dir(scratch.path.join("held/a")).unwrap();
    let error = block_on(bare.backend.acquire(&bare.request(1, "a", Wait::Try))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().starts_with("cannot acquire lock \"a\": access was refused: "), "{error}");
}

const SHARED: [Mode; 2] =
    [Mode::Shared, Mode::Permits { take: NonZeroU32::new(2).unwrap(), of: NonZeroU32::new(3).unwrap() }];

/// The request for a share, and one that cannot be granted beside it.
fn beside(bare: &Bare, id: u128, mode: Mode) -> AcquireRequest {
    let mode = if mode == Mode::Shared { Mode::Exclusive } else { mode };
    bare.request(id, "a", Wait::Forever).with_mode(mode)
}

#[test]
fn a_share_that_is_asked_for_again_is_had_once() -> Result<(), LockError> {
    for mode in SHARED {
        let scratch = Scratch::new();
        let bare = Bare::new(&scratch);
        block_on(async {
            let request = bare.request(1, "a", Wait::Forever).with_mode(mode);
            let first = bare.backend.acquire(&request).await?.unwrap();
            let again = bare.backend.acquire(&request).await?.unwrap();
            assert_eq!(first.token, again.token);
            let behind = beside(&bare, 2, mode);
            for _ in 0..2 {
                assert!(poll_once(bare.backend.acquire(&behind)).await.is_pending());
            }
            let kind = mode.kind();
            let inspect = InspectRequest::new(LockName::new("a")?, request.physical().clone()).about(kind);
            let status = bare.backend.inspect(&inspect).await?;
            assert_eq!((status.holders.len(), status.waiters.len()), (1, 1));
            assert_eq!(bare.backend.release(&first.lease).await?, Released::Clean);
            assert_eq!(bare.backend.release(&again.lease).await?, Released::Clean);
            assert!(bare.backend.acquire(&behind).await?.is_some());
            Ok::<_, LockError>(())
        })?;
    }
    Ok(())
}

/// Whatever became of the attempt by then: nothing, a place, a grant that was not taken.
#[test]
fn cancel_undoes_whatever_became_of_a_share() -> Result<(), LockError> {
    for mode in SHARED {
        let scratch = Scratch::new();
        let bare = Bare::new(&scratch);
        block_on(async {
            let unpolled = bare.request(1, "a", Wait::Forever).with_mode(mode);
            drop(bare.backend.acquire(&unpolled));
            bare.backend.cancel(&unpolled).await?;
            let granted = bare.request(2, "a", Wait::Forever).with_mode(mode);
            assert!(poll_once(bare.backend.acquire(&granted)).await.is_ready());
            bare.backend.cancel(&granted).await?;
            bare.backend.cancel(&granted).await?;
            let holder = bare.backend.acquire(&beside(&bare, 3, mode)).await?.unwrap();
            let queued = bare.request(4, "a", Wait::Forever).with_mode(mode);
            assert!(poll_once(bare.backend.acquire(&queued)).await.is_pending());
            bare.backend.cancel(&queued).await?;
            let late = bare.request(5, "a", Wait::Forever).with_mode(mode);
            assert!(poll_once(bare.backend.acquire(&late)).await.is_pending());
            bare.backend.release(&holder.lease).await?;
            tokio::task::yield_now().await;
            bare.backend.cancel(&late).await?;
            Ok::<_, LockError>(())
        })?;
        scratch.is_empty_soon();
    }
    Ok(())
}

/// A writer, and the request by which it goes on as a reader.
async fn writer(bare: &Bare, id: u128) -> (Grant<FileLease>, AcquireRequest) {
    let writer = bare.backend.acquire(&bare.request(id, "a", Wait::Forever)).await.unwrap().unwrap();
    (writer, bare.request(id + 1, "a", Wait::Forever).with_mode(Mode::Shared))
}

async fn is_refused(bare: &Bare, id: u128, mode: Mode) {
    let answer = bare.backend.acquire(&bare.request(id, "a", Wait::Try).with_mode(mode)).await.unwrap();
    assert!(answer.is_none(), "{mode}");
}

#[test]
fn a_downgrade_that_is_asked_for_again_finds_its_own_share() -> Result<(), LockError> {
    let scratch = Scratch::new();
    let bare = Bare::new(&scratch);
    block_on(async {
        let (writer, request) = writer(&bare, 1).await;
        // The first answer is lost.
        drop(bare.backend.downgrade(&writer.lease, &request).await?);
        let Downgraded::Shared(reader) = bare.backend.downgrade(&writer.lease, &request).await? else {
            panic!("the writer was lost");
        };
        assert!(reader.token > writer.token);
        is_refused(&bare, 3, Mode::Exclusive).await;
        // The old lease is released whatever has become of it.
        assert_eq!(bare.backend.release(&writer.lease).await?, Released::Clean);
        is_refused(&bare, 4, Mode::Exclusive).await;
        assert_eq!(bare.backend.release(&reader.lease).await?, Released::Clean);
        scratch.is_empty_soon();
        Ok(())
    })
}

#[test]
fn cancel_undoes_a_downgrade() -> Result<(), LockError> {
    let scratch = Scratch::new();
    let bare = Bare::new(&scratch);
    block_on(async {
        for (id, is_asked) in [(10, false), (20, true)] {
            let (writer, request) = writer(&bare, id).await;
            if is_asked {
                drop(bare.backend.downgrade(&writer.lease, &request).await?);
            } else {
                drop(bare.backend.downgrade(&writer.lease, &request));
            }
            bare.backend.cancel(&request).await?;
            bare.backend.release(&writer.lease).await?;
            scratch.is_empty_soon();
        }
        Ok(())
    })
}

#[test]
fn a_writer_that_was_lost_gets_no_share() -> Result<(), LockError> {
    let scratch = Scratch::new();
    let bare = Bare::new(&scratch);
    block_on(async {
        let (writer, request) = writer(&bare, 1).await;
        std::fs::remove_file(scratch.path.join("held/a")).unwrap();
        let next = bare.backend.acquire(&bare.request(3, "a", Wait::Try)).await?.unwrap();
        let answer = bare.backend.downgrade(&writer.lease, &request).await?;
        assert!(matches!(answer, Downgraded::WasLost(LossReason::Deleted)), "{answer:?}");
        is_refused(&bare, 4, Mode::Shared).await;
        bare.backend.release(&next.lease).await?;
        // Nothing of the share is in the way.
        assert!(bare.backend.acquire(&bare.request(5, "a", Wait::Try)).await?.is_some());
        Ok(())
    })
}
