//! The engine: the thread that a client's work runs on.
//!
//! By default each client has one operating-system thread with a current-thread runtime. Its connections, renewals,
//! timers and the clean-up run there, so that user code that blocks its own runtime does not lose locks. With
//! [`EngineChoice::Caller`] the same tasks run on the caller's runtime instead.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinError, JoinHandle};

use crate::runtime::{Mutex, OnDrop};
use crate::types::{ErrorKind, LockError, Operation};

/// Where a client's background work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EngineChoice {
    /// On a thread of its own: user code that blocks its runtime does not lose locks.
    #[default]
    Own,
    /// On the runtime that the client is created in, which saves one hop between threads. A blocked runtime renews no
    /// lease, but the deadline thread still notifies the holder in time.
    Caller,
}

pub(crate) struct Engine {
    pub(crate) handle: Handle,
    pub(crate) backend_tasks: Arc<BackendTasks>,
    /// Dropped with the engine, which ends its thread.
    _running: Option<oneshot::Sender<()>>,
}

impl Engine {
    pub(crate) fn start(choice: EngineChoice) -> Result<Self, LockError> {
        match choice {
            EngineChoice::Own => Self::own(),
            EngineChoice::Caller => {
                Handle::try_current().map(|handle| Self::on(handle, None)).map_err(|_| {
                    LockError::new(ErrorKind::InvalidOption, Operation::Connect)
                        .because("the engine is to be the caller's runtime, and there is none")
                        .remedy("make the client inside a tokio runtime, or leave the engine option out")
                })
            }
        }
    }

    fn own() -> Result<Self, LockError> {
        let failed = |error: std::io::Error| {
            LockError::new(ErrorKind::Internal, Operation::Connect)
                .because(format!("no thread for the client: {error}"))
                .remedy("check the limits on threads and open files")
                .caused_by(error)
        };
        let (runtimes, runtime) = mpsc::channel::<Runtime>();
        let (running, ended) = oneshot::channel();
        // The thread is created before the runtime: without a thread to move to, the runtime could not be dropped here,
        // where another one may be running.
        thread::Builder::new()
            .name("distlock-engine".to_owned())
            .spawn(move || {
                if let Ok(runtime) = runtime.recv() {
                    let _ = runtime.block_on(ended);
                }
            })
            .map_err(failed)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        // This cannot fail: the thread waits for nothing else.
        let _ = runtimes.send(runtime);
        Ok(Self::on(handle, Some(running)))
    }

    fn on(handle: Handle, running: Option<oneshot::Sender<()>>) -> Self {
        let backend_tasks = Arc::new(BackendTasks { handle: handle.clone(), tasks: Mutex::default() });
        Self { handle, backend_tasks, _running: running }
    }

    /// Runs `future` to its end. It is polled once on the calling thread, before this returns; the engine continues it
    /// when it is woken. `work` is the waker, and keeps the future while it is parked: one future at a time.
    pub(crate) fn begin<W>(&self, work: &Arc<W>, future: impl Future<Output = ()> + Send + 'static)
    where
        W: AsRef<Parked> + Wake + Send + Sync + 'static,
    {
        let mut future: BoxedWork = Box::pin(future);
        if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
            // The thread is ending, and drops a guard in one of its thread-local variables: nothing can be polled here.
            drop(self.spawn(future));
            return;
        }
        (**work).as_ref().begin();
        let waker = Waker::from(Arc::clone(work));
        let polled = {
            let _entered = self.handle.enter();
            DEPTH.set(DEPTH.get() + 1);
            let _deeper = OnDrop(|| DEPTH.set(DEPTH.get() - 1));
            future.as_mut().poll(&mut Context::from_waker(&waker))
        };
        if polled.is_pending() {
            (**work).as_ref().keep(future, self);
        }
    }

    /// Runs `future` in the background.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        #[cfg(test)]
        super::counts::spawn();
        self.handle.spawn(future)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for task in self.backend_tasks.tasks.lock().drain(..) {
            task.abort();
        }
    }
}

/// The tasks that a backend has spawned. They end with the client, even on a runtime that continues.
pub(crate) struct BackendTasks {
    handle: Handle,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl BackendTasks {
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let task = self.handle.spawn(future).abort_handle();
        let mut tasks = self.tasks.lock();
        if tasks.len() == tasks.capacity() {
            tasks.retain(|task| !task.is_finished());
        }
        tasks.push(task);
    }
}

type BoxedWork = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A future that was polled on the thread of its caller, until it is woken.
///
/// Only then the engine gets it as a task. Usually a connection wakes it with a reply, on the engine's own thread, where
/// a new task costs little; spawned by the caller, it would have to wake that thread first.
#[derive(Default)]
pub(crate) struct Parked {
    /// Whether it was woken since it began: it does not wait here.
    is_woken: AtomicBool,
    waits: Mutex<Option<HandedOver>>,
}

impl Parked {
    /// A late waker of the future before only has the engine continue the next one too early.
    fn begin(&self) {
        self.is_woken.store(false, Ordering::SeqCst);
    }

    fn keep(&self, future: BoxedWork, engine: &Engine) {
        let before = self.waits.lock().replace((future, Arc::clone(&engine.backend_tasks)));
        // Either this sees that it was woken, or the waker sees it.
        let woken = if self.is_woken.load(Ordering::SeqCst) { self.take() } else { None };
        for (future, engine) in before.into_iter().chain(woken) {
            hand_over(future, engine);
        }
    }

    /// The future is woken: the engine continues it from now on.
    pub(crate) fn woken(&self) {
        self.is_woken.store(true, Ordering::SeqCst);
        if let Some((future, engine)) = self.take() {
            hand_over(future, engine);
        }
    }

    fn take(&self) -> Option<HandedOver> {
        self.waits.lock().take()
    }
}

type HandedOver = (BoxedWork, Arc<BackendTasks>);

thread_local! {
    /// What is woken while this thread hands other work over; `None` while it does not.
    static WOKEN_MEANWHILE: RefCell<Option<Vec<HandedOver>>> = const { RefCell::new(None) };
}

/// A runtime that has ended drops the work at once. That may wake other work, whose drop wakes more: each is dropped after
/// the one before it and not within its drop, however many there are.
fn hand_over(future: BoxedWork, engine: Arc<BackendTasks>) {
    let mut next = Some((future, engine));
    // Where the thread is ending, there is no list, and the work is handed over all the same.
    let _ = WOKEN_MEANWHILE.try_with(|woken| match &mut *woken.borrow_mut() {
        Some(woken) => woken.extend(next.take()),
        woken => *woken = Some(Vec::new()),
    });
    if next.is_none() {
        return;
    }
    let _end = OnDrop(|| drop(WOKEN_MEANWHILE.try_with(RefCell::take)));
    while let Some((future, engine)) = next {
        #[cfg(test)]
        super::counts::spawn();
        drop(engine.handle.spawn(future));
        next = WOKEN_MEANWHILE.try_with(|woken| woken.borrow_mut().as_mut()?.pop()).ok().flatten();
    }
}

thread_local! {
    /// How many first polls, each of which may lead to the first poll of what follows, this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether this thread can begin what follows, too: whether the stack has room for it.
pub(crate) fn can_begin_here() -> bool {
    DEPTH.get() < DEEPEST
}

const DEEPEST: u32 = 8;

/// Aborts a task when the future that waits for it is dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop<T>(pub(crate) JoinHandle<T>);

impl<T> AbortOnDrop<Result<T, LockError>> {
    /// Waits for the answer of the task.
    pub(crate) async fn answer(mut self, operation: Operation) -> Result<T, LockError> {
        (&mut self.0).await.unwrap_or_else(|error| Err(no_answer(operation, error)))
    }
}

/// The error of a task that has ended without an answer.
pub(crate) fn no_answer(operation: Operation, error: JoinError) -> LockError {
    let (kind, cause) = if error.is_panic() {
        (ErrorKind::Internal, "the work for it panicked")
    } else {
        (ErrorKind::Closed, "the runtime that the work for it runs on has ended")
    };
    LockError::new(kind, operation).because(cause).caused_by(error)
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Turns a panic into an error: a bug in a backend fails one call, not the task that made it.
///
/// # Cancel safety
/// Dropping the returned future drops `future`.
pub async fn contained<T>(
    operation: Operation,
    future: impl Future<Output = Result<T, LockError>>,
) -> Result<T, LockError> {
    let mut future = pin!(future);
    poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))).unwrap_or_else(|_| {
            Poll::Ready(Err(LockError::new(ErrorKind::Internal, operation)
                .because("the backend panicked")
                .remedy("report this as a defect of the backend")))
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::counts::counts;

    impl AsRef<Self> for Parked {
        fn as_ref(&self) -> &Self {
            self
        }
    }

    impl Wake for Parked {
        fn wake(self: Arc<Self>) {
            self.woken();
        }
    }

    impl Engine {
        fn run(&self, future: impl Future<Output = ()> + Send + 'static) {
            self.begin(&Arc::new(Parked::default()), future);
        }
    }

    /// Waits until its waker was taken, and says on which thread it ended.
    fn waiting(
        wakers: &mpsc::Sender<Waker>,
        ended: &mpsc::Sender<Option<String>>,
    ) -> impl Future<Output = ()> + use<> {
        let (wakers, ended) = (wakers.clone(), ended.clone());
        let mut polls = 0;
        poll_fn(move |context| {
            polls += 1;
            if polls == 1 {
                let _ = wakers.send(context.waker().clone());
                return Poll::Pending;
            }
            let _ = ended.send(thread::current().name().map(str::to_owned));
            Poll::Ready(())
        })
    }

    #[test]
    fn what_waits_goes_to_the_engine_when_it_is_woken_and_not_before() {
        let engine = Engine::start(EngineChoice::Own).unwrap();
        let ((wakers, waker), (ends, ended)) = (mpsc::channel(), mpsc::channel());
        let before = counts().spawns;
        engine.run(waiting(&wakers, &ends));
        let waker = waker.recv().unwrap();
        assert_eq!(counts().spawns, before);
        waker.wake_by_ref();
        assert_eq!(ended.recv().unwrap().as_deref(), Some("distlock-engine"));
        waker.wake();
        assert_eq!(counts().spawns, before + 1);
    }

    #[test]
    fn what_is_woken_in_its_first_poll_is_not_forgotten() {
        let engine = Engine::start(EngineChoice::Own).unwrap();
        let (ends, ended) = mpsc::channel();
        for times in 1..3 {
            let ends = ends.clone();
            let mut polls = 0;
            engine.run(poll_fn(move |context| {
                polls += 1;
                if polls > 1 {
                    let _ = ends.send(times);
                    return Poll::Ready(());
                }
                for _ in 0..times {
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }));
            assert_eq!(ended.recv().unwrap(), times);
        }
    }

    #[test]
    fn what_waits_when_the_runtime_ends_is_dropped_when_it_is_woken() {
        struct Sends(mpsc::Sender<()>);
        impl Drop for Sends {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let runtime = Builder::new_current_thread().build().unwrap();
        let engine = runtime.block_on(async { Engine::start(EngineChoice::Caller).unwrap() });
        let ((wakers, waker), (ends, _ended), (drops, dropped)) =
            (mpsc::channel(), mpsc::channel(), mpsc::channel());
        let (sends, waiting) = (Sends(drops), waiting(&wakers, &ends));
        engine.run(async move {
            let _sends = sends;
            waiting.await;
        });
        drop(runtime);
        waker.recv().unwrap().wake();
        dropped.recv().unwrap();
    }

    #[test]
    fn very_much_work_of_which_each_wakes_the_next_is_dropped_when_the_runtime_has_ended() {
        struct Wakes(Option<Waker>, mpsc::Sender<()>);
        impl Drop for Wakes {
            fn drop(&mut self) {
                let _ = self.1.send(());
                self.0.take().into_iter().for_each(Waker::wake);
            }
        }
        const PIECES: usize = 20_000;
        let runtime = Builder::new_current_thread().build().unwrap();
        let engine = runtime.block_on(async { Engine::start(EngineChoice::Caller).unwrap() });
        let ((wakers, waker), (ends, _ended), (drops, dropped)) =
            (mpsc::channel(), mpsc::channel(), mpsc::channel());
        let mut next = None;
        for _ in 0..PIECES {
            let (last, waiting) = (Wakes(next.take(), drops.clone()), waiting(&wakers, &ends));
            engine.run(async move {
                let _last = last;
                waiting.await;
            });
            next = Some(waker.recv().unwrap());
        }
        drop(runtime);
        next.unwrap().wake();
        assert_eq!(dropped.try_iter().count(), PIECES);
    }

    #[test]
    fn what_follows_begins_here_while_the_stack_has_room() {
        fn chain(engine: &Arc<Engine>, begun: u32) -> u32 {
            if !can_begin_here() {
                return begun;
            }
            let (sender, receiver) = mpsc::channel();
            let follows = Arc::clone(engine);
            engine.run(async move {
                let _ = sender.send(chain(&follows, begun + 1));
            });
            receiver.recv().unwrap()
        }
        let engine = Arc::new(Engine::start(EngineChoice::Own).unwrap());
        assert_eq!(chain(&engine, 0), DEEPEST);
        assert_eq!(chain(&engine, 0), DEEPEST, "the depth is not given back");
    }
}
