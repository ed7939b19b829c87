//! Pauses that all who want a connection to one server share.

use std::fmt;
use std::future::Future;

use lock_core::spi::Mutex;
use lock_core::{Backoff, Clock, LockError, Moment};

/// Connects for a client that uses several connections. While the server refuses connections, one caller at a time
/// tries, after a pause that grows with each failure, and its outcome is that of all callers that wait meanwhile.
///
/// ```
/// use std::time::Duration;
///
/// use lock_kit::SharedBackoff;
/// use lock_core::{Backoff, Clock, ErrorKind, LockError, Operation};
///
/// # async fn run() {
/// let pauses = Backoff::new(Duration::from_millis(10), Duration::from_secs(2));
/// let backoff = SharedBackoff::new(Clock::system(), pauses);
/// let refused = LockError::new(ErrorKind::Unreachable, Operation::Connect).because("refused");
/// assert!(backoff.attempt(async { Err::<(), _>(refused) }).await.is_err());
/// assert!(backoff.failure().is_some());
/// assert_eq!(backoff.attempt(async { Ok(7) }).await.unwrap(), 7); // after about 10 ms
/// assert!(backoff.failure().is_none());
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run());
/// ```
pub struct SharedBackoff {
    clock: Clock,
    /// Those at the beginning of an outage.
    pauses: Backoff,
    outage: Mutex<Option<Outage>>,
    /// Held by the caller that tries now.
    turn: tokio::sync::Mutex<()>,
}

/// A period in which the server refuses connections or cannot be reached.
struct Outage {
    failures: u64,
    last: LockError,
    pauses: Backoff,
    again_at: Moment,
}

impl SharedBackoff {
    /// Creates it for a server that is not known to refuse connections. Each time it begins to, `pauses` start anew.
    pub fn new(clock: Clock, pauses: Backoff) -> Self {
        Self { clock, pauses, outage: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// Runs `connect`, at once if the last attempt has succeeded.
    ///
    /// # Errors
    /// The error of `connect`; that of another caller, if that one has tried and failed while this one waited.
    ///
    /// # Cancel safety
    /// Dropping the future drops `connect`, and the next caller has its turn.
    pub async fn attempt<T>(
        &self,
        connect: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        let failures = self.failures();
        if failures > 0 {
            let _turn = self.turn.lock().await;
            if let Some(again_at) = self.again_at(failures)? {
                self.clock.sleep_until(again_at).await;
                return self.recorded(connect).await;
            }
        }
        self.recorded(connect).await
    }

    /// Returns why the last attempt failed, if it did.
    pub fn failure(&self) -> Option<LockError> {
        self.outage.lock().as_ref().map(|outage| outage.last.clone())
    }

    fn failures(&self) -> u64 {
        self.outage.lock().as_ref().map_or(0, |outage| outage.failures)
    }

    /// Returns the end of the pause, if there is one. An error if another attempt has failed since there were this many
    /// failures.
    fn again_at(&self, failures: u64) -> Result<Option<Moment>, LockError> {
        match &*self.outage.lock() {
            Some(outage) if outage.failures != failures => Err(outage.last.clone()),
            outage => Ok(outage.as_ref().map(|outage| outage.again_at)),
        }
    }

    /// Runs `connect`, and records its outcome.
    async fn recorded<T>(&self, connect: impl Future<Output = Result<T, LockError>>) -> Result<T, LockError> {
        let failures = self.failures();
        let connected = connect.await;
        let mut outage = self.outage.lock();
        match &connected {
            Ok(_) => *outage = None,
            // Attempts at the same time count as one failure.
            Err(error) if outage.as_ref().map_or(0, |outage| outage.failures) == failures => {
                let pauses = outage.take().map(|outage| outage.pauses);
                let mut pauses = pauses.unwrap_or_else(|| self.pauses.clone());
                let again_at = self.clock.now().plus(pauses.next_pause());
                *outage = Some(Outage { failures: failures + 1, last: error.clone(), pauses, again_at });
            }
            Err(_) => {}
        }
        connected
    }
}

impl fmt::Debug for SharedBackoff {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SharedBackoff").field("failure", &self.failure()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use lock_core::{ErrorKind, ManualClock, Operation};

    use super::*;

    const FIRST: Duration = Duration::from_millis(10);
    const MOST: Duration = Duration::from_millis(40);

    /// A server that answers so many attempts with a refusal, and then accepts connections.
    struct Server {
        backoff: SharedBackoff,
        refusals: AtomicUsize,
        asked: AtomicUsize,
    }

    impl Server {
        fn that_refuses(refusals: usize) -> (Arc<Self>, ManualClock) {
            let (clock, time) = Clock::manual();
            let backoff = SharedBackoff::new(clock, Backoff::new(FIRST, MOST));
            let (refusals, asked) = (AtomicUsize::new(refusals), AtomicUsize::new(0));
            (Arc::new(Self { backoff, refusals, asked }), time)
        }

        async fn connect(&self) -> Result<usize, LockError> {
            let answer = async {
                let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::task::yield_now().await;
                if number <= self.refusals.load(Ordering::SeqCst) { Err(refused(number)) } else { Ok(number) }
            };
            self.backoff.attempt(answer).await
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    fn refused(number: usize) -> LockError {
        LockError::new(ErrorKind::Unreachable, Operation::Connect).because(format!("refusal {number}"))
    }

    /// Lets the tasks go on until all of them wait for the clock or have ended.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn one_caller_tries_for_all_that_wait_after_a_failure() {
        let (server, time) = Server::that_refuses(2);
        server.connect().await.unwrap_err();
        let callers = (0..20).map(|_| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { server.connect().await })
        });
        let callers: Vec<_> = callers.collect();
        settle().await;
        assert_eq!(server.asked(), 1, "nobody tries in the pause");
        time.advance(FIRST);
        for caller in callers {
            assert_eq!(caller.await.unwrap().unwrap_err().to_string(), refused(2).to_string());
        }
        assert_eq!(server.asked(), 2);
        assert_eq!(server.backoff.failure().unwrap().to_string(), refused(2).to_string());
    }

    #[tokio::test]
    async fn pauses_grow_up_to_the_longest_and_end_with_a_success() {
        let (server, time) = Server::that_refuses(5);
        server.connect().await.unwrap_err();
        for longest in [10, 20, 40, 40] {
            let begin = server.backoff.clock.now();
            let caller = tokio::spawn({
                let server = Arc::clone(&server);
                async move { server.connect().await }
            });
            settle().await;
            let again_at = time.next_alarm().unwrap();
            let pause = again_at.since(begin);
            let longest = Duration::from_millis(longest);
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
            time.advance_to(again_at);
            caller.await.unwrap().unwrap_err();
        }
        let waiter = tokio::spawn({
            let server = Arc::clone(&server);
            async move { server.connect().await }
        });
        settle().await;
        time.advance(MOST);
        assert_eq!(waiter.await.unwrap().unwrap(), 6);
        assert!(server.backoff.failure().is_none());
        // Without a pause, and the next outage begins with the shortest one.
        assert_eq!(server.connect().await.unwrap(), 7);
        server.refusals.store(8, Ordering::SeqCst);
        server.connect().await.unwrap_err();
        let again_at = server.backoff.outage.lock().as_ref().unwrap().again_at;
        assert!(again_at.since(server.backoff.clock.now()) <= FIRST);
    }

    #[tokio::test]
    async fn attempts_at_the_same_time_count_as_one_failure() {
        let (server, _time) = Server::that_refuses(8);
        let callers = (0..8).map(|_| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { server.connect().await })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap().unwrap_err();
        }
        assert_eq!((server.asked(), server.backoff.failures()), (8, 1));
    }

    #[tokio::test]
    async fn a_caller_that_leaves_gives_its_turn_to_the_next() {
        let (server, time) = Server::that_refuses(1);
        server.connect().await.unwrap_err();
        let [first, second] = [(); 2].map(|()| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { server.connect().await })
        });
        settle().await;
        first.abort();
        settle().await;
        time.advance(FIRST);
        assert_eq!(second.await.unwrap().unwrap(), 2);
    }
}
