//! Wakes a thread when a file changes: by inotify on Linux. Other systems only have the bell.

/// Identifies a watched file, or a watched folder with all files in it.
pub(crate) type WatchId = i32;

/// What happened to a watched file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "nothing is noticed elsewhere"))]
pub(crate) enum FileEvent {
    /// The file was removed or moved, or its attributes changed.
    Changed(WatchId),
    /// A process closed a descriptor that was open for writing. **The kernel reports that before it drops the `flock`.**
    Closed(WatchId),
    /// The system lost events: anything may have happened to any file.
    Overflow,
}

/// The result of a request to watch a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "nothing is noticed elsewhere"))]
pub(crate) enum Watching {
    /// The file is watched.
    Yes(WatchId),
    /// The file does not exist.
    Missing,
    /// The system has no resources left to watch it, or never had: check again from time to time.
    Unable,
}

#[cfg(target_os = "linux")]
pub(crate) use linux::FileEvents;
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::FileEvents;

#[cfg(target_os = "linux")]
mod linux {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::OnceLock;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
    use rustix::io::Errno;

    use super::{FileEvent, WatchId, Watching};

    /// One inotify instance, and a bell to wake the thread that waits for events.
    #[derive(Debug)]
    pub(crate) struct FileEvents {
        bell: OwnedFd,
        /// Empty while the user has no inotify instance left (128 is a common limit).
        inotify: OnceLock<OwnedFd>,
    }

    const CHANGES: WatchFlags = WatchFlags::CLOSE_WRITE
        .union(WatchFlags::ATTRIB)
        .union(WatchFlags::DELETE_SELF)
        .union(WatchFlags::MOVE_SELF)
        // Only of what is in a folder.
        .union(WatchFlags::DELETE)
        .union(WatchFlags::MOVED_FROM)
        .union(WatchFlags::DONT_FOLLOW);

    impl FileEvents {
        pub(crate) fn new() -> Result<Self, Errno> {
            let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(Self { bell, inotify: OnceLock::new() })
        }

        /// Requests events about changes of the file. A second request for the same file returns the same id.
        pub(crate) fn watch(&self, path: &Path) -> Watching {
            let Some(inotify) = self.instance() else { return Watching::Unable };
            match inotify::add_watch(inotify, path, CHANGES) {
                Ok(id) => Watching::Yes(id),
                Err(Errno::NOENT | Errno::NOTDIR) => Watching::Missing,
                Err(_) => Watching::Unable,
            }
        }

        fn instance(&self) -> Option<&OwnedFd> {
            if self.inotify.get().is_none() {
                let instance = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
                return Some(self.inotify.get_or_init(|| instance));
            }
            self.inotify.get()
        }

        pub(crate) fn unwatch(&self, id: WatchId) {
            if let Some(inotify) = self.inotify.get() {
                let _ = inotify::remove_watch(inotify, id);
            }
        }

        /// Wakes [`Self::wait`], now or the next time.
        pub(crate) fn ring(&self) {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }

        /// Waits for events or the bell, at most for `timeout`.
        pub(crate) fn wait(&self, timeout: Duration) -> Vec<FileEvent> {
            let timeout = Timespec::try_from(timeout).ok();
            let mut sources = vec![PollFd::new(&self.bell, PollFlags::IN)];
            let inotify = self.inotify.get();
            sources.extend(inotify.map(|inotify| PollFd::new(inotify, PollFlags::IN)));
            let _ = rustix::event::poll(&mut sources, timeout.as_ref());
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
            inotify.map(read).unwrap_or_default()
        }
    }

    fn read(inotify: &OwnedFd) -> Vec<FileEvent> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(inotify, &mut buffer);
        let mut events = Vec::new();
        while let Ok(event) = reader.next() {
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                events.push(FileEvent::Overflow);
            } else if flags.contains(ReadFlags::CLOSE_WRITE) {
                events.push(FileEvent::Closed(event.wd()));
            } else if !flags.contains(ReadFlags::IGNORED) {
                events.push(FileEvent::Changed(event.wd()));
            }
        }
        events
    }
}

#[cfg(not(target_os = "linux"))]
mod portable {
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use lock_core::spi::Mutex;
    use rustix::io::Errno;

    use super::{FileEvent, WatchId, Watching};

    /// Only a bell: the watcher checks files from time to time.
    #[derive(Debug)]
    pub(crate) struct FileEvents {
        bell: Sender<()>,
        rung: Mutex<Receiver<()>>,
    }

    impl FileEvents {
        #[allow(clippy::unnecessary_wraps, reason = "fails on Linux")]
        pub(crate) fn new() -> Result<Self, Errno> {
            let (bell, rung) = channel();
            Ok(Self { bell, rung: Mutex::new(rung) })
        }

        #[allow(clippy::unused_self, reason = "used on Linux")]
        pub(crate) fn watch(&self, _path: &Path) -> Watching {
            Watching::Unable
        }

        #[allow(clippy::unused_self, reason = "used on Linux")]
        pub(crate) fn unwatch(&self, _id: WatchId) {}

        pub(crate) fn ring(&self) {
            let _ = self.bell.send(());
        }

        pub(crate) fn wait(&self, timeout: Duration) -> Vec<FileEvent> {
            let rung = self.rung.lock();
            let _ = rung.recv_timeout(timeout);
            rung.try_iter().for_each(drop);
            Vec::new()
        }
    }
}
