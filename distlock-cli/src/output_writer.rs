//! Writes all output while a lock is waited for or held, on a thread of its own.
//!
//! The reader may be slow, or not read at all: a full pipe, or a terminal that is paused with Ctrl-S. That must delay neither
//! the end of a command that has lost its lock nor a renewal, so a caller leaves its line here and continues. Lines that do not
//! fit are dropped and counted. The first line starts the thread: most commands write nothing, and begin sooner without it.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// How many lines may be queued; the log leaves space for more important lines.
const MOST_LINES: usize = 2048;
const MOST_LINES_OF_LOG: usize = 1024;

/// Where a line goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// A line and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) to: To,
    pub(crate) text: String,
}

/// Takes lines, and never blocks. Cheap to clone; all clones share one queue.
#[derive(Debug, Clone)]
pub(crate) struct OutputWriter(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Makes the line that says how many lines were dropped.
    notice: fn(u64) -> Line,
    write: Mutex<Writer>,
}

type Writer = Box<dyn Fn(&Line) + Send>;

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Line>,
    dropped: u64,
    is_writing: bool,
    has_thread: bool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl OutputWriter {
    /// An output to this process's standard output and error.
    pub(crate) fn new(notice: fn(u64) -> Line) -> Self {
        Self::with(notice, write)
    }

    fn with(notice: fn(u64) -> Line, write: impl Fn(&Line) + Send + 'static) -> Self {
        let write: Mutex<Writer> = Mutex::new(Box::new(write));
        Self(Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new(), notice, write }))
    }

    /// Queues a line for writing.
    pub(crate) fn say(&self, line: Line) {
        self.add(line, MOST_LINES);
    }

    fn add(&self, line: Line, most: usize) {
        let mut queue = self.0.lock();
        self.0.add(&mut queue, line, most);
        self.ensure_thread(&mut queue);
        drop(queue);
        self.0.changed.notify_all();
    }

    /// Without a thread, the lines stay in the queue: the next one tries again.
    fn ensure_thread(&self, queue: &mut Queue) {
        if !queue.has_thread {
            let shared = Arc::clone(&self.0);
            let started = thread::Builder::new().name("output".to_owned()).spawn(move || shared.write_all());
            queue.has_thread = started.is_ok();
        }
    }

    /// A writer for the log, whose every `write` is one line.
    pub(crate) fn log(&self) -> Log {
        Log(self.clone())
    }

    /// Waits until everything is written, at most for `patience`. Nothing may follow that must not wait for a reader.
    pub(crate) fn flush(&self, patience: Duration) {
        let queue = self.0.lock();
        if !queue.has_thread {
            return drop(self.0.write_queued(queue));
        }
        let is_busy = |queue: &mut Queue| queue.is_writing || !queue.lines.is_empty() || queue.dropped > 0;
        drop(self.0.changed.wait_timeout_while(queue, patience, is_busy));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, queue: &mut Queue, line: Line, most: usize) {
        if queue.lines.len() >= most {
            queue.dropped += 1;
            return;
        }
        self.tell_of_dropped(queue);
        queue.lines.push_back(line);
    }

    /// Writes a line in place of those that were dropped.
    fn tell_of_dropped(&self, queue: &mut Queue) {
        if queue.dropped > 0 {
            queue.lines.push_back((self.notice)(std::mem::take(&mut queue.dropped)));
        }
    }

    fn write_all(&self) {
        let mut queue = self.lock();
        loop {
            queue = self.write_queued(queue);
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write_queued<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        loop {
            if queue.lines.is_empty() {
                self.tell_of_dropped(&mut queue);
            }
            let Some(line) = queue.lines.pop_front() else { return queue };
            queue.is_writing = true;
            drop(queue);
            // The system may stop a process in the background for writing to its terminal (`stty tostop`), unless it blocks
            // the signal.
            let _ = SigSet::from(Signal::SIGTTOU).thread_block();
            (self.write.lock().unwrap_or_else(PoisonError::into_inner))(&line);
            queue = self.lock();
            queue.is_writing = false;
            self.changed.notify_all();
        }
    }
}

/// Writes a line in one call, so that lines of several processes do not mix. Ignores a reader that has gone: that must not cost
/// a lock.
fn write(line: &Line) {
    let _ = match line.to {
        To::Output => io::stdout().write_all(line.text.as_bytes()).and_then(|()| io::stdout().flush()),
        To::Error => io::stderr().write_all(line.text.as_bytes()),
    };
}

/// Where the library's log goes.
#[derive(Debug)]
pub(crate) struct Log(OutputWriter);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.0.add(Line { to: To::Error, text }, MOST_LINES_OF_LOG);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn line(text: &str) -> Line {
        Line { to: To::Error, text: text.to_owned() }
    }

    /// An output that writes a line for each permit, and the lines that it has written.
    fn output() -> (OutputWriter, Sender<()>, Receiver<String>) {
        let (permit, permits) = channel::<()>();
        let (sender, written) = channel();
        let output = OutputWriter::with(
            |count| line(&format!("{count} dropped")),
            move |line| {
                let _ = sender.send(line.text.clone());
                let _ = permits.recv();
            },
        );
        (output, permit, written)
    }

    #[test]
    fn unread_events_are_dropped_and_counted_and_the_log_first() {
        let (output, permit, written) = output();
        output.say(line("first"));
        assert_eq!(written.recv_timeout(LONG).unwrap(), "first");
        for _ in 0..MOST_LINES {
            output.log().write_all(b"log").unwrap();
        }
        output.say(line("event"));
        for _ in 0..MOST_LINES {
            output.say(line("more"));
        }
        drop(permit);
        output.flush(LONG);
        let rest: Vec<_> = written.try_iter().collect();
        let count = |text: &str| rest.iter().filter(|line| line.as_str() == text).count();
        assert_eq!((count("log"), count("event")), (MOST_LINES_OF_LOG, 1));
        assert_eq!(count("more"), MOST_LINES - MOST_LINES_OF_LOG - 2);
        // The notices are where lines are missing: some before the event, and some at the end.
        assert_eq!(rest[MOST_LINES_OF_LOG], format!("{} dropped", MOST_LINES - MOST_LINES_OF_LOG));
        assert_eq!(rest[MOST_LINES_OF_LOG + 1], "event");
        assert_eq!(rest[MOST_LINES], format!("{} dropped", MOST_LINES_OF_LOG + 2));
    }

    #[test]
    fn a_flush_ends_without_a_reader() {
        let (output, _permit, _written) = output();
        output.say(line("first"));
        output.flush(Duration::from_millis(10));
    }
}
