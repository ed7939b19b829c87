//! Waits in the kernel for the end of another process's `flock`.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// An open file, whose `flock` another process has.
#[derive(Debug)]
pub(crate) struct LockedByAnother(OwnedFd);

impl LockedByAnother {
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let carefully = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        rustix::fs::open(path, carefully | OFlags::RDONLY, Mode::empty()).map(Self)
    }

    /// Waits until the `flock` is gone. Blocks, and nothing but that ends it.
    pub(crate) fn wait(self) -> Result<(), Errno> {
        loop {
            match rustix::fs::flock(&self.0, FlockOperation::LockShared) {
                Err(Errno::INTR) => {}
                locked => return locked,
            }
        }
    }
}

impl Drop for LockedByAnother {
    /// Unlocks explicitly, because a child that another thread is starting has a copy of the descriptor for a moment.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}
