//! What the code that `#[locked]` makes calls. No part of the public API.

use crate::LockError;

/// What a function with `#[locked]` returns.
#[diagnostic::on_unimplemented(
    message = "a function with #[locked] returns a `Result<T, E>`, where `E: From<distlock::LockError>`",
    label = "not a `Result` that can be an error of the lock"
)]
pub trait Returned: Sized {
    type Value;
    type Error: From<LockError>;

    fn into_result(self) -> Result<Self::Value, Self::Error>;
    fn of_result(result: Result<Self::Value, Self::Error>) -> Self;
}

impl<T, E: From<LockError>> Returned for Result<T, E> {
    type Value = T;
    type Error = E;

    fn into_result(self) -> Self {
        self
    }

    fn of_result(result: Self) -> Self {
        result
    }
}

/// What a function returns that may be skipped.
#[diagnostic::on_unimplemented(
    message = "a function with #[locked(…, on_busy = skip)] returns a `Result<Option<T>, E>`, where `E: From<distlock::LockError>`",
    label = "has no `Ok(None)`, which says that the function was skipped"
)]
pub trait Skippable: Returned {
    fn skipped() -> Self;
}

impl<T, E: From<LockError>> Skippable for Result<Option<T>, E> {
    fn skipped() -> Self {
        Ok(None)
    }
}

/// Keeps the errors of the lock apart from those of the body.
enum Failure<E> {
    Lock(LockError),
    Body(E),
}

impl<E> From<LockError> for Failure<E> {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl<E: From<LockError>> Failure<E> {
    fn outcome<R: Skippable<Error = E>>(result: Result<R::Value, Self>) -> R {
        match result {
            Ok(value) => R::of_result(Ok(value)),
            Err(Self::Lock(error)) if error.kind() == crate::ErrorKind::Busy => R::skipped(),
            Err(Self::Lock(error)) => R::of_result(Err(error.into())),
            Err(Self::Body(error)) => R::of_result(Err(error)),
        }
    }
}

/// For `async fn`.
pub mod asynchronous {
    use std::future::Future;
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Failure, Returned, Skippable};
    use crate::{DistributedLock, Hold, LockClient, LockError};

    type Lock = Result<Arc<dyn DistributedLock>, LockError>;

    #[diagnostic::on_unimplemented(
        message = "the client of an async function with #[locked] is a `distlock::LockClient`, not `{Self}`",
        label = "not a client with asynchronous locks"
    )]
    pub trait Client {
        fn lock(&self, name: &str) -> Lock;
        fn read_lock(&self, name: &str) -> Lock;
    }

    impl Client for LockClient {
        fn lock(&self, name: &str) -> Lock {
            self.mutex(name)
        }

        fn read_lock(&self, name: &str) -> Lock {
            self.rw_lock(name).map(|lock| lock.read())
        }
    }

    impl<C: Client + ?Sized> Client for &C {
        fn lock(&self, name: &str) -> Lock {
            C::lock(self, name)
        }

        fn read_lock(&self, name: &str) -> Lock {
            C::read_lock(self, name)
        }
    }

    impl<C: Client + ?Sized> Client for Arc<C> {
        fn lock(&self, name: &str) -> Lock {
            C::lock(self, name)
        }

        fn read_lock(&self, name: &str) -> Lock {
            C::read_lock(self, name)
        }
    }

    #[diagnostic::on_unimplemented(
        message = "the lock of an async function with #[locked] is an `Arc<dyn distlock::DistributedLock>`, not `{Self}`",
        label = "not a lock with asynchronous methods"
    )]
    pub trait Given {
        fn lock(&self) -> Arc<dyn DistributedLock>;
    }

    impl Given for Arc<dyn DistributedLock> {
        fn lock(&self) -> Self {
            Arc::clone(self)
        }
    }

    impl<L: DistributedLock + 'static> Given for Arc<L> {
        fn lock(&self) -> Arc<dyn DistributedLock> {
            Arc::clone(self) as Arc<dyn DistributedLock>
        }
    }

    impl<G: Given + ?Sized> Given for &G {
        fn lock(&self) -> Arc<dyn DistributedLock> {
            G::lock(self)
        }
    }

    pub fn lock_of<C: Client + ?Sized>(client: &C, name: &str) -> Lock {
        client.lock(name)
    }

    pub fn read_lock_of<C: Client + ?Sized>(client: &C, name: &str) -> Lock {
        client.read_lock(name)
    }

    pub fn given<G: Given + ?Sized>(lock: &G) -> Lock {
        Ok(lock.lock())
    }

    pub async fn under_lock<R: Returned, F: Future<Output = R>>(
        lock: Lock,
        body: impl FnOnce(Hold) -> F,
    ) -> R {
        let body = move |hold| async move { body(hold).await.into_result() };
        R::of_result(match lock {
            Ok(lock) => lock.with_lock(body).await,
            Err(error) => Err(error.into()),
        })
    }

    pub async fn under_lock_for<R: Returned, F: Future<Output = R>>(
        lock: Lock,
        wait: Duration,
        body: impl FnOnce(Hold) -> F,
    ) -> R {
        let body = move |hold| async move { body(hold).await.into_result() };
        R::of_result(match lock {
            Ok(lock) => lock.with_lock_for(wait, body).await,
            Err(error) => Err(error.into()),
        })
    }

    pub async fn under_lock_or_skipped<R: Skippable, F: Future<Output = R>>(
        lock: Lock,
        wait: Duration,
        body: impl FnOnce(Hold) -> F,
    ) -> R {
        let body = move |hold| async move { body(hold).await.into_result().map_err(Failure::Body) };
        Failure::outcome(match lock {
            Ok(lock) => lock.with_lock_for(wait, body).await,
            Err(error) => Err(error.into()),
        })
    }
}

/// For functions that block.
pub mod blocking {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Failure, Returned, Skippable};
    use crate::blocking::{DistributedLock, LockClient};
    use crate::{Hold, LockError};

    type Lock = Result<DistributedLock, LockError>;

    #[diagnostic::on_unimplemented(
        message = "the client of a function with #[locked] that is not async is a `distlock::blocking::LockClient`, not `{Self}`",
        label = "not a client with blocking locks",
        note = "or make the function async"
    )]
    pub trait Client {
        fn lock(&self, name: &str) -> Lock;
        fn read_lock(&self, name: &str) -> Lock;
    }

    impl Client for LockClient {
        fn lock(&self, name: &str) -> Lock {
            self.mutex(name)
        }

        fn read_lock(&self, name: &str) -> Lock {
            self.rw_lock(name).map(|lock| lock.read())
        }
    }

    impl<C: Client + ?Sized> Client for &C {
        fn lock(&self, name: &str) -> Lock {
            C::lock(self, name)
        }

        fn read_lock(&self, name: &str) -> Lock {
            C::read_lock(self, name)
        }
    }

    impl<C: Client + ?Sized> Client for Arc<C> {
        fn lock(&self, name: &str) -> Lock {
            C::lock(self, name)
        }

        fn read_lock(&self, name: &str) -> Lock {
            C::read_lock(self, name)
        }
    }

    #[diagnostic::on_unimplemented(
        message = "the lock of a function with #[locked] that is not async is a `distlock::blocking::DistributedLock`, not `{Self}`",
        label = "not a lock with blocking methods",
        note = "or make the function async"
    )]
    pub trait Given {
        fn lock(&self) -> DistributedLock;
    }

    impl Given for DistributedLock {
        fn lock(&self) -> Self {
            self.clone()
        }
    }

    impl<G: Given + ?Sized> Given for &G {
        fn lock(&self) -> DistributedLock {
            G::lock(self)
        }
    }

    pub fn lock_of<C: Client + ?Sized>(client: &C, name: &str) -> Lock {
        client.lock(name)
    }

    pub fn read_lock_of<C: Client + ?Sized>(client: &C, name: &str) -> Lock {
        client.read_lock(name)
    }

    pub fn given<G: Given + ?Sized>(lock: &G) -> Lock {
        Ok(lock.lock())
    }

    pub fn under_lock<R: Returned>(lock: Lock, body: impl FnOnce(Hold) -> R) -> R {
        R::of_result(match lock {
            Ok(lock) => lock.with_lock(|hold| body(hold).into_result()),
            Err(error) => Err(error.into()),
        })
    }

    pub fn under_lock_for<R: Returned>(lock: Lock, wait: Duration, body: impl FnOnce(Hold) -> R) -> R {
        R::of_result(match lock {
            Ok(lock) => lock.with_lock_for(wait, |hold| body(hold).into_result()),
            Err(error) => Err(error.into()),
        })
    }

    pub fn under_lock_or_skipped<R: Skippable>(
        lock: Lock,
        wait: Duration,
        body: impl FnOnce(Hold) -> R,
    ) -> R {
        Failure::outcome(match lock {
            Ok(lock) => lock.with_lock_for(wait, |hold| body(hold).into_result().map_err(Failure::Body)),
            Err(error) => Err(error.into()),
        })
    }
}
