//! The folder in which the locks are, and how files in it are opened: never through a symbolic link, never another
//! user's, never readable by others.
//!
//! ```text
//! <folder>/gate                       the gate, with the counter in it
//! <folder>/held/<lock>                one file per held lock: who holds it, and the flock that is the lock
//! <folder>/queue/<lock>/<number>      one file per waiter: its ticket
//! ```
//!
//! All paths are resolved from the folder's own descriptor, and [`Folder::is_current`] tells whether that is still the
//! folder at the path that the user gave.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::network;
use crate::trouble::Trouble;

/// Which file it is, whatever its name: two descriptors of one file agree in this, and no other file does as long as
/// one of them is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, clippy::cast_lossless)] // the types differ by system
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
    }
}

/// The permissions of everything that is written here: the owner's, nobody else's.
const FOLDER_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const OF_OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

/// How every file is opened. Without `NONBLOCK` a named pipe that somebody put there would hang us.
const CAREFULLY: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

/// How often a folder may vanish between being made and being used.
const ATTEMPTS: usize = 100;

/// The folder, opened and checked.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    directory: OwnedFd,
    identity: Identity,
}

impl Folder {
    /// Opens the folder, makes what is missing of it, and checks that it is the user's own and local.
    pub(crate) fn open(path: &Path) -> Result<Self, Trouble> {
        // Without a trailing slash, which would make the system follow a symbolic link.
        let path: PathBuf = path.components().collect();
        make_with_parents(&path)?;
        let directory =
            rustix::fs::open(&path, CAREFULLY | OFlags::DIRECTORY, Mode::empty()).map_err(|errno| {
                refuse_link(&path)
                    .or_else(|| refuse_closed(&path))
                    .unwrap_or_else(|| Trouble::system("open the folder", &path, errno))
            })?;
        let stat = rustix::fs::fstat(&directory)
            .map_err(|errno| Trouble::system("look at the folder", &path, errno))?;
        check_owner(&stat, &path)?;
        check_mode(&stat, &path, "chmod 700")?;
        check_owners_bits(&stat, &path)?;
        network::check(&directory, &stat, &path)?;
        let folder = Self { identity: Identity::of(&stat), path, directory };
        folder.make_folder("held")?;
        folder.make_folder("queue")?;
        Ok(folder)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of something in the folder.
    pub(crate) fn path_of(&self, relative: &str) -> PathBuf {
        self.path.join(relative)
    }

    /// Whether this is still what is found at the path.
    pub(crate) fn is_current(&self) -> bool {
        rustix::fs::lstat(&self.path).is_ok_and(|stat| Identity::of(&stat) == self.identity)
    }

    /// Makes a folder inside, if it is not there.
    pub(crate) fn make_folder(&self, relative: &str) -> Result<(), Trouble> {
        match make(self.directory.as_fd(), Path::new(relative)) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => {
                let path = self.path_of(relative);
                let stat =
                    self.stat(relative)?.ok_or_else(|| Trouble::system("find", &path, Errno::NOENT))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                    return Err(Trouble::refused(format!("{} is not a folder", path.display()), "remove it"));
                }
                check_owner(&stat, &path)?;
                check_mode(&stat, &path, "chmod 700")?;
                check_owners_bits(&stat, &path)
            }
            Err(errno) => Err(Trouble::system("make the folder", &self.path_of(relative), errno)),
        }
    }

    /// Removes a folder inside if it is empty. Anything else is left alone without a word: whoever comes next tries
    /// again.
    pub(crate) fn remove_empty_folder(&self, relative: &str) {
        let _ = rustix::fs::unlinkat(&self.directory, relative, AtFlags::REMOVEDIR);
    }

    /// The names in a folder inside, or `None` if there is no such folder.
    pub(crate) fn list(&self, relative: &str) -> Result<Option<Vec<String>>, Trouble> {
        let flags = CAREFULLY | OFlags::DIRECTORY;
        let trouble = |errno| Trouble::system("list", &self.path_of(relative), errno);
        let directory = match rustix::fs::openat(&self.directory, relative, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(trouble(errno)),
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(directory).map_err(trouble)? {
            let entry = entry.map_err(trouble)?;
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(Some(names))
    }

    /// Makes a file that must not be there yet, and the folders that it is in; `None` if it is there.
    pub(crate) fn create(&self, relative: &str) -> Result<Option<OwnedFd>, Trouble> {
        let flags = CAREFULLY | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        for _ in 0..ATTEMPTS {
            match rustix::fs::openat(&self.directory, relative, flags, FILE_MODE) {
                Ok(file) => {
                    // A umask may have taken bits of the owner's.
                    rustix::fs::fchmod(&file, FILE_MODE).map_err(|errno| {
                        Trouble::system("change the mode of", &self.path_of(relative), errno)
                    })?;
                    return Ok(Some(file));
                }
                Err(Errno::EXIST) => return Ok(None),
                // A queue is removed by its last waiter at any moment.
                Err(Errno::NOENT) => self.make_folders_of(relative)?,
                Err(errno) => return Err(Trouble::system("create", &self.path_of(relative), errno)),
            }
        }
        Err(Trouble::system("create", &self.path_of(relative), Errno::NOENT))
    }

    fn make_folders_of(&self, relative: &str) -> Result<(), Trouble> {
        relative.match_indices('/').try_for_each(|(end, _)| self.make_folder(&relative[..end]))
    }

    /// Opens a file for reading and writing, or makes it.
    pub(crate) fn open_or_create(&self, relative: &str) -> Result<OwnedFd, Trouble> {
        for _ in 0..ATTEMPTS {
            match self.open_file(relative, OFlags::RDWR) {
                Err(trouble) if trouble.is_missing() => {}
                result => return result,
            }
            if let Some(file) = self.create(relative)? {
                return Ok(file);
            }
        }
        Err(Trouble::system("open", &self.path_of(relative), Errno::NOENT))
    }

    /// Opens a file only to look at it, or `None` if it is not there.
    ///
    /// Closing such a descriptor wakes nobody: the watchers ask for [`CLOSE_WRITE`](rustix::fs::inotify::WatchFlags).
    pub(crate) fn open_to_look(&self, relative: &str) -> Result<Option<OwnedFd>, Trouble> {
        match self.open_file(relative, OFlags::RDONLY) {
            Err(trouble) if trouble.is_missing() => Ok(None),
            result => result.map(Some),
        }
    }

    fn open_file(&self, relative: &str, flags: OFlags) -> Result<OwnedFd, Trouble> {
        rustix::fs::openat(&self.directory, relative, CAREFULLY | flags, Mode::empty()).map_err(|errno| {
            let path = self.path_of(relative);
            refuse_link(&path).unwrap_or_else(|| Trouble::system("open", &path, errno))
        })
    }

    /// Checks that an open file is a plain file of this user, and tells which one it is.
    pub(crate) fn check(&self, file: impl AsFd, relative: &str) -> Result<Stat, Trouble> {
        let path = || self.path_of(relative);
        let stat = rustix::fs::fstat(file).map_err(|errno| Trouble::system("look at", &path(), errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Trouble::refused(format!("{} is not a plain file", path().display()), "remove it"));
        }
        check_owner(&stat, &path())?;
        check_mode(&stat, &path(), "chmod 600")?;
        Ok(stat)
    }

    /// Which file is at a place in the folder, if any.
    pub(crate) fn identity_at(&self, relative: &str) -> Result<Option<Identity>, Trouble> {
        Ok(self.stat(relative)?.as_ref().map(Identity::of))
    }

    fn stat(&self, relative: &str) -> Result<Option<Stat>, Trouble> {
        match rustix::fs::statat(&self.directory, relative, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Trouble::system("look at", &self.path_of(relative), errno)),
        }
    }

    /// Removes a file. That it is gone already is as good.
    pub(crate) fn remove(&self, relative: &str) -> Result<(), Trouble> {
        match rustix::fs::unlinkat(&self.directory, relative, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Trouble::system("remove", &self.path_of(relative), errno)),
        }
    }
}

/// Makes a folder that is not there, for its owner alone, whatever the umask is.
fn make(parent: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    rustix::fs::mkdirat(parent, path, FOLDER_MODE)?;
    let mode = Mode::from_raw_mode(rustix::fs::statat(parent, path, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
    // Only then, because this would follow a link that somebody puts there.
    if mode.contains(FOLDER_MODE) {
        Ok(())
    } else {
        rustix::fs::chmodat(parent, path, FOLDER_MODE, AtFlags::empty())
    }
}

/// Makes a folder and those that it is in, as far as they are not there.
fn make_with_parents(path: &Path) -> Result<(), Trouble> {
    let trouble =
        |errno| refuse_obstacle(path).unwrap_or_else(|| Trouble::system("make the folder", path, errno));
    match (make(CWD, path), path.parent()) {
        (Err(Errno::NOENT), Some(parent)) => {
            make_with_parents(parent)?;
            match make(CWD, path) {
                Err(Errno::EXIST) => Ok(()),
                result => result.map_err(trouble),
            }
        }
        // Also where it may not be asked for: on a file system that is read-only, for example.
        (Err(_), _) if path.is_dir() => Ok(()),
        (result, _) => result.map_err(trouble),
    }
}

/// The refusal, if something that leads to no folder is in the way to `path`.
fn refuse_obstacle(path: &Path) -> Option<Trouble> {
    let look = |path| rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
    let (found, stat) = path.ancestors().find_map(|path| look(path).ok().map(|stat| (path, stat)))?;
    if found.is_dir() {
        return None;
    }
    let found = found.display();
    Some(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Trouble::refused(
            format!("{found} is a symbolic link, and leads to no folder"),
            "name the real folder",
        ),
        _ => Trouble::refused(format!("{found} is not a folder"), "name another folder, or remove it"),
    })
}

fn check_owner(stat: &Stat, path: &Path) -> Result<(), Trouble> {
    let user = geteuid().as_raw();
    if stat.st_uid == user {
        return Ok(());
    }
    Err(Trouble::refused(
        format!("{} belongs to user {}, and this process runs as user {user}", path.display(), stat.st_uid),
        "use a folder that belongs to this user; every user has locks of their own",
    ))
}

fn check_mode(stat: &Stat, path: &Path, remedy: &str) -> Result<(), Trouble> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    if !mode.intersects(OF_OTHERS) {
        return Ok(());
    }
    let path = path.display();
    Err(Trouble::refused(
        format!("{path} has mode {:04o}, so that others can get at it", mode.bits() & 0o7777),
        format!("`{remedy} {path}`, if nobody else has written to it"),
    ))
}

/// A folder of the user's own in which the user may do nothing.
fn check_owners_bits(stat: &Stat, path: &Path) -> Result<(), Trouble> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.contains(FOLDER_MODE) {
        return Ok(());
    }
    let path = path.display();
    Err(Trouble::refused(
        format!("{path} has mode {:04o}, so that its owner cannot use it", mode.bits() & 0o7777),
        format!("`chmod 700 {path}`"),
    ))
}

/// The refusal, if the folder at `path` is the user's own, and cannot be opened for that.
fn refuse_closed(path: &Path) -> Option<Trouble> {
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    check_owner(&stat, path).and_then(|()| check_owners_bits(&stat, path)).err()
}

/// The refusal, if it is a symbolic link that is at `path`. The system has several errors for that.
fn refuse_link(path: &Path) -> Option<Trouble> {
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::Symlink).then(|| {
        Trouble::refused(
            format!("{} is a symbolic link", path.display()),
            "name the real folder, and remove links inside it",
        )
    })
}

/// The folder at a path, opened anew when it was removed or replaced.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    folder: Mutex<Arc<Folder>>,
}

impl Place {
    pub(crate) fn open(path: &Path) -> Result<Self, Trouble> {
        let folder = Folder::open(path)?;
        Ok(Self { path: path.to_owned(), folder: Mutex::new(Arc::new(folder)) })
    }

    /// The folder as it was last found.
    pub(crate) fn folder(&self) -> Arc<Folder> {
        Arc::clone(&self.folder.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Opens the folder again, after it was found not to be the one at the path any more.
    pub(crate) fn reopen(&self) -> Result<(), Trouble> {
        let mut folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        if !folder.is_current()
            || folder.make_folder("held").and_then(|()| folder.make_folder("queue")).is_err()
        {
            *folder = Arc::new(Folder::open(&self.path)?);
        }
        Ok(())
    }
}
