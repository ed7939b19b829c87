//! Runs a limited number of tasks at once, in the given order.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// News about the tasks.
pub(super) enum News<'a, T, R> {
    Started(&'a T),
    Ended(&'a T, R),
    /// There was no other news for the given time.
    Silence,
}

/// Does `work` for each of the tasks, at most `at_once` at a time and each after `admit` has returned, and reports the
/// news on the caller's thread.
pub(super) fn side_by_side<'a, T: Sync, R: Send>(
    tasks: &'a [T],
    at_once: usize,
    silence: Duration,
    admit: impl Fn() + Sync,
    work: impl Fn(&T) -> R + Sync,
    mut tell: impl FnMut(News<'a, T, R>),
) {
    let next = Mutex::new(tasks.iter());
    // The others wait behind the one that waits to be admitted, so that all start in order.
    let take = || {
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        next.next().inspect(|_| admit())
    };
    let (sender, news) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_once.min(tasks.len()) {
            let (sender, take, work) = (sender.clone(), &take, &work);
            scope.spawn(move || {
                while let Some(task) = take() {
                    // The receiver exists until the last sender is dropped.
                    let _ = sender.send(News::Started(task));
                    let _ = sender.send(News::Ended(task, work(task)));
                }
            });
        }
        drop(sender);
        loop {
            match news.recv_timeout(silence) {
                Ok(event) => tell(event),
                Err(RecvTimeoutError::Timeout) => tell(News::Silence),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn each_is_done_once_and_reported_in_order() {
        let (mut started, mut ended) = (Vec::new(), Vec::new());
        side_by_side(
            &[1, 2, 3, 4],
            1,
            LONG,
            || (),
            |task| task * 10,
            |news| match news {
                News::Started(task) => started.push(*task),
                News::Ended(task, result) => ended.push((*task, result)),
                News::Silence => {}
            },
        );
        assert_eq!(started, [1, 2, 3, 4]);
        assert_eq!(ended, [(1, 10), (2, 20), (3, 30), (4, 40)]);
    }

    #[test]
    fn as_many_run_at_once_as_are_allowed() {
        // Each waits for two others: with fewer than three at once this would never end.
        let together = Barrier::new(3);
        let most = AtomicUsize::new(0);
        let now = AtomicUsize::new(0);
        let work = |_: &u8| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            together.wait();
            now.fetch_sub(1, Ordering::SeqCst);
        };
        side_by_side(&[0; 9], 3, LONG, || (), work, |_| {});
        assert_eq!(most.into_inner(), 3);
    }

    #[test]
    fn silence_is_reported() {
        let heard = AtomicUsize::new(0);
        let work = |_: &u8| {
            while heard.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
        };
        side_by_side(
            &[0],
            1,
            Duration::from_millis(1),
            || (),
            work,
            |news| {
                if matches!(news, News::Silence) {
                    heard.fetch_add(1, Ordering::SeqCst);
                }
            },
        );
        assert!(heard.into_inner() > 0);
    }

    #[test]
    fn nothing_to_do_is_done_at_once() {
        side_by_side(&[0; 0], 4, LONG, || (), |_: &u8| (), |_| {});
    }
}
