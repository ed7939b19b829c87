//! Failures of file operations, with messages that tell the reader what to do.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use lock_core::{ErrorKind, LockError, LockName, Operation};
use rustix::io::Errno;

/// What went wrong. Becomes a [`LockError`] where the operation and the lock are known.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// A system call failed.
    System { doing: &'static str, path: PathBuf, errno: Errno },
    /// The folder or a file in it is not as required.
    Refused { cause: String, remedy: Cow<'static, str> },
    /// Another process did not leave the gate in time.
    GateBusy { path: PathBuf, occupant: Option<Occupant> },
    /// A newer version of this program uses the folder in a way that this one does not know.
    NewerLayout { folder: PathBuf, layout: u32, known: u32 },
    /// The holders and waiters of a semaphore use it with another number of permits.
    OtherPermits { asked: u32, is: u32 },
    /// The counter has reached its end, or another process keeps replacing files while this one uses them.
    Broken { cause: String, remedy: Cow<'static, str> },
}

/// The process in the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occupant {
    pub(crate) pid: u32,
    pub(crate) activity: Activity,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "other systems cannot tell"))]
pub(crate) enum Activity {
    Stopped,
    Running,
}

impl Failure {
    pub(crate) fn system(doing: &'static str, path: &Path, errno: Errno) -> Self {
        Self::System { doing, path: path.to_owned(), errno }
    }

    pub(crate) fn refused(cause: String, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused { cause, remedy: remedy.into() }
    }

    /// Another program uses the folder: what it does, and to which file.
    pub(crate) fn meddling(doing: &str, path: &Path) -> Self {
        let cause = format!("another program {doing} {}", path.display());
        Self::Broken {
            cause,
            remedy: "find out who, and end it, or use a folder that nothing else uses".into(),
        }
    }

    /// Whether a file or folder did not exist.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::System { errno: Errno::NOENT, .. })
    }

    /// Whether the same call may succeed a moment later.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::System { errno, .. } if is_passing(*errno))
    }

    /// Makes the error of `operation` on the lock `name`.
    pub(crate) fn into_error(self, operation: Operation, name: Option<&LockName>) -> LockError {
        let error = |kind| {
            let error = LockError::new(kind, operation);
            name.map_or_else(|| error.clone(), |name| error.clone().on(name))
        };
        match self {
            Self::System { doing, path, errno } => {
                let cause = format!("cannot {doing} {}: {errno}", path.display());
                let (kind, remedy) = explain(errno);
                let error = error(kind).because(cause).remedy(remedy).caused_by(std::io::Error::from(errno));
                if is_passing(errno) { error.retryable() } else { error }
            }
            Self::Refused { cause, remedy } => error(ErrorKind::Denied).because(cause).remedy(remedy),
            Self::GateBusy { path, occupant } => {
                let (cause, remedy) = describe_gate(&path, occupant);
                error(ErrorKind::Unreachable).because(cause).remedy(remedy).retryable()
            }
            Self::NewerLayout { folder, layout, known } => error(ErrorKind::Unsupported)
                .because(format!(
                    "a newer version of this program uses the folder {}: its layout is {layout}, and this version knows {known}",
                    folder.display()
                ))
                .remedy("update this program, or use another folder"),
            Self::OtherPermits { asked, is } => match name {
                Some(name) => LockError::other_permits(name, asked, is),
                None => error(ErrorKind::InvalidOption)
                    .because(format!("the semaphore is used with {is} permits, not {asked}")),
            },
            Self::Broken { cause, remedy } => error(ErrorKind::Server).because(cause).remedy(remedy),
        }
    }
}

/// The kind of error that the user sees for `errno`, and what to do about it.
fn explain(errno: Errno) -> (ErrorKind, &'static str) {
    match errno {
        Errno::NOSPC | Errno::DQUOT => {
            (ErrorKind::Server, "free some space or inodes on that file system, or use another folder")
        }
        Errno::ROFS => (ErrorKind::Denied, "use a folder on a file system that can be written to"),
        Errno::ACCESS | Errno::PERM => {
            (ErrorKind::Denied, "use a folder that belongs to this user, with mode 0700")
        }
        Errno::LOOP | Errno::NOTDIR => {
            (ErrorKind::Denied, "symbolic links are refused: name the real folder")
        }
        Errno::ISDIR | Errno::NXIO => (ErrorKind::Denied, "remove it: it is not a plain file"),
        Errno::MFILE => (ErrorKind::Server, "raise the limit of open files of this process: `ulimit -n`"),
        Errno::AGAIN => (ErrorKind::Server, "check the limits on threads and memory"),
        Errno::NFILE => (ErrorKind::Server, "raise the machine's limit of open files: `sysctl fs.file-max`"),
        Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS => {
            (ErrorKind::Unsupported, "this file system has no flock: use a folder on a local disk or tmpfs")
        }
        _ => (ErrorKind::Server, ""),
    }
}

fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR)
}

fn describe_gate(path: &Path, occupant: Option<Occupant>) -> (String, Cow<'static, str>) {
    let gate = path.display();
    match occupant {
        Some(Occupant { pid, activity: Activity::Stopped }) => (
            format!("process {pid} was stopped while it was in the gate {gate}"),
            format!("continue it (`kill -CONT {pid}`) or end it").into(),
        ),
        Some(Occupant { pid, activity: Activity::Running }) => (
            format!("process {pid} has not left the gate {gate}"),
            format!("try again; if this persists, check what process {pid} is doing").into(),
        ),
        None => (format!("another process has not left the gate {gate}"), Cow::Borrowed("try again")),
    }
}
