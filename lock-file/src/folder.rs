//! The folder of the locks. Never opens a file in it through a symbolic link, or if the file belongs to another user or is readable
//! by others.
//!
//! ```text
//! <folder>/gate                       the gate, with the counter in it
//! <folder>/held/<lock>                one file per lock that is held alone: the holder's record, and the flock that is the lock
//! <folder>/shared/<lock>/<number>     one file per reader
//! <folder>/queue/<lock>/<number>      one file per waiter: its ticket
//! <folder>/permits/<semaphore>/<number>-<n>-of-<all>          one file per holder of n permits
//! <folder>/permits-queue/<semaphore>/<number>-<n>-of-<all>    one file per waiter for them
//! <folder>/remembered/<x>/<hash>      one file per slot that is remembered, with the end of that time
//! ```
//!
//! All paths are resolved from the folder's own descriptor. [`Folder::is_current`] says whether it is still the folder at the
//! path that the user gave.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lock_core::spi::Mutex;

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::failure::Failure;
use crate::kept_folders::KeptFolders;
use crate::network;
use crate::subject::FOLDERS;

/// Identifies a file independently of its name: two descriptors of one file have the same identity, and no other file has it
/// while one of them is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    #[allow(
        clippy::cast_sign_loss,
        clippy::unnecessary_cast,
        clippy::cast_lossless,
        reason = "the types differ by system"
    )]
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
    }
}

/// The permissions of everything that this crate creates: for the owner alone.
const FOLDER_MODE: Mode = Mode::RWXU;
pub(crate) const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const OF_OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

/// The flags to open every file with. Without `NONBLOCK` the call would hang on a named pipe.
const CAREFULLY: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

/// How often a folder may vanish between its creation and its use.
const ATTEMPTS: usize = 100;

/// The folder, open and checked.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    directory: OwnedFd,
    identity: Identity,
    kept: KeptFolders,
}

impl Folder {
    /// Opens the folder, creates what is missing, and checks that it belongs to the user and is local.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        // Without a trailing slash, which would make the system follow a symbolic link.
        let path: PathBuf = path.components().collect();
        make_with_parents(&path)?;
        let directory =
            rustix::fs::open(&path, CAREFULLY | OFlags::DIRECTORY, Mode::empty()).map_err(|errno| {
                refuse_link(&path)
                    .or_else(|| refuse_closed(&path))
                    .unwrap_or_else(|| Failure::system("open the folder", &path, errno))
            })?;
        let stat = rustix::fs::fstat(&directory)
            .map_err(|errno| Failure::system("look at the folder", &path, errno))?;
        check_owner(&stat, &path)?;
        check_folder_mode(&stat, &path)?;
        network::check(&directory, &stat, &path)?;
        let folder = Self { identity: Identity::of(&stat), path, directory, kept: KeptFolders::default() };
        folder.make_folders()?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in the folder.
    pub(crate) fn path_of(&self, relative: &str) -> PathBuf {
        self.path.join(relative)
    }

    /// Whether this folder is still the one at its path.
    pub(crate) fn is_current(&self) -> bool {
        rustix::fs::lstat(&self.path).is_ok_and(|stat| Identity::of(&stat) == self.identity)
    }

    /// Creates the subfolders that do not exist.
    pub(crate) fn make_folders(&self) -> Result<(), Failure> {
        FOLDERS.into_iter().try_for_each(|relative| self.make_folder(relative))
    }

    /// Creates a subfolder if it does not exist.
    pub(crate) fn make_folder(&self, relative: &str) -> Result<(), Failure> {
        match make(self.directory.as_fd(), Path::new(relative)) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => {
                let path = self.path_of(relative);
                let stat =
                    self.stat(relative)?.ok_or_else(|| Failure::system("find", &path, Errno::NOENT))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                    return Err(Failure::refused(format!("{} is not a folder", path.display()), "remove it"));
                }
                check_owner(&stat, &path)?;
                check_folder_mode(&stat, &path)
            }
            Err(errno) => Err(Failure::system("make the folder", &self.path_of(relative), errno)),
        }
    }

    /// Checks that holders and waiters can be written down.
    pub(crate) fn check_writable(&self) -> Result<(), Failure> {
        FOLDERS.into_iter().try_for_each(|relative| {
            self.make_folder(relative)?;
            rustix::fs::accessat(
                &self.directory,
                relative,
                Access::WRITE_OK | Access::EXEC_OK,
                AtFlags::EACCESS,
            )
            .map_err(|errno| Failure::system("write to", &self.path_of(relative), errno))
        })
    }

    /// Removes a subfolder if it is empty. Ignores all errors, because the next process tries again.
    pub(crate) fn remove_empty_folder(&self, relative: &str) {
        let _ = rustix::fs::unlinkat(&self.directory, relative, AtFlags::REMOVEDIR);
    }

    /// To be called after a file in this subfolder was removed: the subfolder stays for the next one. One that was kept for
    /// longer may be removed for it.
    pub(crate) fn keep_folder(&self, relative: &str) {
        if let Some(excess) = self.kept.keep(relative) {
            self.remove_empty_folder(&excess);
        }
    }

    /// Removes the subfolders that were kept, if they are empty.
    pub(crate) fn remove_kept_folders(&self) {
        self.kept.end().iter().for_each(|relative| self.remove_empty_folder(relative));
    }

    /// The names in a subfolder, or `None` if it does not exist.
    pub(crate) fn list(&self, relative: &str) -> Result<Option<Vec<String>>, Failure> {
        let flags = CAREFULLY | OFlags::DIRECTORY;
        let failure = |errno| Failure::system("list", &self.path_of(relative), errno);
        let directory = match rustix::fs::openat(&self.directory, relative, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failure(errno)),
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(directory).map_err(failure)? {
            let entry = entry.map_err(failure)?;
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(Some(names))
    }

    /// Creates a file and the folders that contain it; `None` if the file exists.
    fn create(&self, relative: &str) -> Result<Option<OwnedFd>, Failure> {
        let file = self.create_as_is(relative)?;
        if let Some(file) = &file {
            // The umask may have removed permissions of the owner.
            rustix::fs::fchmod(file, FILE_MODE)
                .map_err(|errno| Failure::system("change the mode of", &self.path_of(relative), errno))?;
        }
        Ok(file)
    }

    /// The same, with the mode that the umask leaves.
    pub(crate) fn create_as_is(&self, relative: &str) -> Result<Option<OwnedFd>, Failure> {
        let flags = CAREFULLY | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        for _ in 0..ATTEMPTS {
            match rustix::fs::openat(&self.directory, relative, flags, FILE_MODE) {
                Ok(file) => return Ok(Some(file)),
                Err(Errno::EXIST) => return Ok(None),
                // The last waiter may remove a queue's folder at any moment.
                Err(Errno::NOENT) => self.make_folder_of(relative)?,
                Err(errno) => return Err(Failure::system("create", &self.path_of(relative), errno)),
            }
        }
        Err(Failure::system("create", &self.path_of(relative), Errno::NOENT))
    }

    /// Creates the folder of a file, and those that contain it if they do not exist.
    fn make_folder_of(&self, relative: &str) -> Result<(), Failure> {
        let Some((parent, _)) = relative.rsplit_once('/') else { return Ok(()) };
        match self.make_folder(parent) {
            Err(failure) if failure.is_missing() => {
                self.make_folder_of(parent)?;
                self.make_folder(parent)
            }
            made => made,
        }
    }

    /// Opens a file for reading and writing, or creates it.
    pub(crate) fn open_or_create(&self, relative: &str) -> Result<OwnedFd, Failure> {
        for _ in 0..ATTEMPTS {
            if let Some(file) = self.open_file(relative, OFlags::RDWR)? {
                return Ok(file);
            }
            if let Some(file) = self.create(relative)? {
                return Ok(file);
            }
        }
        Err(Failure::system("open", &self.path_of(relative), Errno::NOENT))
    }

    /// Opens a file for reading only, or returns `None` if it does not exist.
    ///
    /// Closing such a descriptor wakes no waiter: the watchers wait for [`CLOSE_WRITE`](rustix::fs::inotify::WatchFlags).
    pub(crate) fn open_to_look(&self, relative: &str) -> Result<Option<OwnedFd>, Failure> {
        self.open_file(relative, OFlags::RDONLY)
    }

    fn open_file(&self, relative: &str, flags: OFlags) -> Result<Option<OwnedFd>, Failure> {
        match rustix::fs::openat(&self.directory, relative, CAREFULLY | flags, Mode::empty()) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => {
                let path = self.path_of(relative);
                Err(refuse_link(&path).unwrap_or_else(|| Failure::system("open", &path, errno)))
            }
        }
    }

    /// Checks that an open file is a plain file of this user, and returns its status.
    pub(crate) fn check(&self, file: impl AsFd, relative: &str) -> Result<Stat, Failure> {
        let path = || self.path_of(relative);
        let stat = rustix::fs::fstat(file).map_err(|errno| Failure::system("look at", &path(), errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Failure::refused(format!("{} is not a plain file", path().display()), "remove it"));
        }
        check_owner(&stat, &path())?;
        check_mode(&stat, &path(), Mode::empty(), "chmod 600")?;
        Ok(stat)
    }

    /// The identity of the file at a path in the folder, if there is one.
    pub(crate) fn identity_at(&self, relative: &str) -> Result<Option<Identity>, Failure> {
        Ok(self.stat(relative)?.as_ref().map(Identity::of))
    }

    fn stat(&self, relative: &str) -> Result<Option<Stat>, Failure> {
        match rustix::fs::statat(&self.directory, relative, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Failure::system("look at", &self.path_of(relative), errno)),
        }
    }

    /// Removes a file. It is not an error if the file does not exist.
    pub(crate) fn remove(&self, relative: &str) -> Result<(), Failure> {
        match rustix::fs::unlinkat(&self.directory, relative, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Failure::system("remove", &self.path_of(relative), errno)),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.remove_kept_folders();
    }
}

/// Creates a folder for its owner alone, whatever the umask is.
fn make(parent: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    rustix::fs::mkdirat(parent, path, FOLDER_MODE)?;
    let mode = Mode::from_raw_mode(rustix::fs::statat(parent, path, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
    // Only if permissions are missing, because this call would follow a symbolic link that another process puts there.
    if mode.contains(FOLDER_MODE) {
        Ok(())
    } else {
        rustix::fs::chmodat(parent, path, FOLDER_MODE, AtFlags::empty())
    }
}

/// Creates a folder and its parents, if they do not exist.
fn make_with_parents(path: &Path) -> Result<(), Failure> {
    let failure =
        |errno| refuse_obstacle(path).unwrap_or_else(|| Failure::system("make the folder", path, errno));
    match (make(CWD, path), path.parent()) {
        (Err(Errno::NOENT), Some(parent)) => {
            make_with_parents(parent)?;
            match make(CWD, path) {
                Err(Errno::EXIST) => Ok(()),
                result => result.map_err(failure),
            }
        }
        // Even if creating it fails with another error, for example on a read-only file system.
        (Err(_), _) if path.is_dir() => Ok(()),
        (result, _) => result.map_err(failure),
    }
}

/// The refusal if something on the way to `path` is not a folder and does not lead to one.
fn refuse_obstacle(path: &Path) -> Option<Failure> {
    let check = |path| rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
    let (found, stat) = path.ancestors().find_map(|path| check(path).ok().map(|stat| (path, stat)))?;
    if found.is_dir() {
        return None;
    }
    let found = found.display();
    Some(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Failure::refused(
            format!("{found} is a symbolic link that leads to no folder"),
            "name the real folder",
        ),
        _ => Failure::refused(format!("{found} is not a folder"), "name another folder, or remove it"),
    })
}

fn check_owner(stat: &Stat, path: &Path) -> Result<(), Failure> {
    let user = geteuid().as_raw();
    if stat.st_uid == user {
        return Ok(());
    }
    Err(Failure::refused(
        format!("{} belongs to user {}, and this process runs as user {user}", path.display(), stat.st_uid),
        "use a folder that belongs to this user; every user has locks of their own",
    ))
}

/// Refuses a folder that others can use, or its owner cannot.
fn check_folder_mode(stat: &Stat, path: &Path) -> Result<(), Failure> {
    check_mode(stat, path, FOLDER_MODE, "chmod 700")
}

/// Refuses what others have access to, or what its owner has not as `needed`.
fn check_mode(stat: &Stat, path: &Path, needed: Mode, remedy: &str) -> Result<(), Failure> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    let wrong = match () {
        () if mode.intersects(OF_OTHERS) => "gives other users access",
        () if !mode.contains(needed) => "keeps its owner from using it",
        () => return Ok(()),
    };
    let path = path.display();
    Err(Failure::refused(
        format!("{path} has mode {:04o}, which {wrong}", mode.bits() & 0o7777),
        format!("`{remedy} {path}`, if no other user has written to it"),
    ))
}

/// The refusal if the folder at `path` belongs to the user and cannot be opened because of its mode.
fn refuse_closed(path: &Path) -> Option<Failure> {
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    check_owner(&stat, path).and_then(|()| check_folder_mode(&stat, path)).err()
}

/// The refusal if there is a symbolic link at `path`. The system has several errors for that.
fn refuse_link(path: &Path) -> Option<Failure> {
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::Symlink).then(|| {
        Failure::refused(
            format!("{} is a symbolic link", path.display()),
            "name the real folder, and remove links inside it",
        )
    })
}

/// The folder at a path. It is opened again after it was removed or replaced.
#[derive(Debug)]
pub(crate) struct LockFolder {
    path: PathBuf,
    folder: Mutex<Arc<Folder>>,
}

impl LockFolder {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let folder = Folder::open(path)?;
        Ok(Self { path: path.to_owned(), folder: Mutex::new(Arc::new(folder)) })
    }

    /// The folder that was last found at the path.
    pub(crate) fn folder(&self) -> Arc<Folder> {
        Arc::clone(&self.folder.lock())
    }

    /// Opens the folder again, after the open one is no longer at the path.
    pub(crate) fn reopen(&self) -> Result<(), Failure> {
        let mut folder = self.folder.lock();
        if !folder.is_current() || folder.make_folders().is_err() {
            *folder = Arc::new(Folder::open(&self.path)?);
        }
        Ok(())
    }
}
