//! Refuses network file systems, as far as the system identifies them: their `flock` may exclude only processes of this machine,
//! and changes by other machines wake no waiter here.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::Stat;

use crate::failure::Failure;

/// Refuses a folder on a network file system.
pub(crate) fn check(directory: impl AsFd, stat: &Stat, path: &Path) -> Result<(), Failure> {
    refuse(system::network_file_system(directory, stat), path)
}

fn refuse(network_file_system: Option<String>, path: &Path) -> Result<(), Failure> {
    match network_file_system {
        None => Ok(()),
        Some(kind) => Err(Failure::refused(
            format!(
                "{} is on a network file system ({kind}), where file locks are unreliable",
                path.display()
            ),
            "use a folder on a local disk or tmpfs, or a server backend to lock across machines",
        )),
    }
}

/// Whether `path` is on a network file system; "no" if that is unknown.
pub(crate) fn is_network(path: &Path) -> bool {
    let Ok(directory) = rustix::fs::open(path, rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty()) else {
        return false;
    };
    rustix::fs::fstat(&directory).is_ok_and(|stat| system::network_file_system(&directory, &stat).is_some())
}

#[cfg(target_os = "linux")]
mod system {
    use super::{AsFd, Stat};

    /// The numbers of file systems in `statfs`, from the headers of their kernels and vendors.
    const NETWORK: [(u32, &str); 15] = [
        (0x6969, "NFS"),
        (0x517B, "SMB"),
        (0xFF53_4D42, "CIFS"),
        (0xFE53_4D42, "SMB2"),
        (0x0102_1997, "9P"),
        (0x5346_414F, "AFS"),
        (0x6B41_4653, "kAFS"),
        (0x00C3_6400, "Ceph"),
        (0x7375_7245, "Coda"),
        (0x564C, "NCP"),
        (0x0116_1970, "GFS2"),
        (0x7461_636F, "OCFS2"),
        (0x0BD0_0BD0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x786F_4256, "VirtualBox shared folder"),
    ];
    const FUSE: u32 = 0x6573_5546;

    /// The FUSE file systems that stay on the machine. Most others are clients of a server.
    const LOCAL_FUSE: [&str; 6] = ["fuse-overlayfs", "ntfs-3g", "exfat", "fuse2fs", "encfs", "gocryptfs"];

    pub(super) fn network_file_system(directory: impl AsFd, stat: &Stat) -> Option<String> {
        let file_system = rustix::fs::fstatfs(directory).ok()?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits")]
        let number = file_system.f_type as u32;
        let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        kind_of(number, device, || std::fs::read_to_string("/proc/self/mountinfo").ok())
    }

    /// The network file system with this `number` in `statfs`, if it is one. Reads `mounts` only if the number does not decide
    /// it.
    pub(super) fn kind_of(
        number: u32,
        device: (u32, u32),
        mounts: impl FnOnce() -> Option<String>,
    ) -> Option<String> {
        if number == FUSE {
            return kind_of_mount(&mounts()?, device).filter(|kind| is_remote_fuse(kind)).map(str::to_owned);
        }
        NETWORK.iter().find(|(known, _)| *known == number).map(|(_, name)| (*name).to_owned())
    }

    /// True for `fuse.sshfs` and the like; plain `fuse`, `fuseblk` and `virtiofs` are local.
    pub(super) fn is_remote_fuse(kind: &str) -> bool {
        kind.strip_prefix("fuse.").is_some_and(|program| !LOCAL_FUSE.contains(&program))
    }

    /// The type of the file system on `device`, from a text in the format of `/proc/self/mountinfo`.
    pub(super) fn kind_of_mount(mounts: &str, (major, minor): (u32, u32)) -> Option<&str> {
        let device = format!("{major}:{minor}");
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            (left.split(' ').nth(2)? == device).then(|| right.split(' ').next())?
        })
    }

    #[cfg(test)]
    mod tests {
        use std::path::Path;

        use lock_core::{ErrorKind, Operation};

        use super::super::refuse;
        use super::*;

        #[test]
        fn refuses_a_network_file_system_by_its_number() {
            let folder = Path::new("/srv/locks");
            let check = |number| {
                refuse(
                    kind_of(number, (0, 52), || Some("37 35 0:52 / /srv rw - fuse.sshfs host:/ rw".into())),
                    folder,
                )
            };
            for (number, name) in
                [(0x6969, "NFS"), (0xFF53_4D42, "CIFS"), (0x0102_1997, "9P"), (FUSE, "fuse.sshfs")]
            {
                let error = check(number).unwrap_err().into_error(Operation::Connect, None);
                assert_eq!(error.kind(), ErrorKind::Denied);
                let text = error.to_string();
                assert!(text.contains(&format!("/srv/locks is on a network file system ({name})")), "{text}");
            }
            let (ext4, tmpfs) = (0xEF53, 0x0102_1994);
            assert!(check(ext4).is_ok() && check(tmpfs).is_ok());
        }

        #[test]
        fn finds_the_program_behind_a_fuse_mount() {
            let mounts = "36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw\n\
                          37 35 0:52 / /home/a/remote rw shared:2 - fuse.sshfs host:/ rw\n\
                          38 35 0:53 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw\n";
            assert_eq!(kind_of_mount(mounts, (0, 52)), Some("fuse.sshfs"));
            assert!(is_remote_fuse("fuse.sshfs"));
            assert_eq!(kind_of_mount(mounts, (0, 53)), Some("fuse.fuse-overlayfs"));
            assert!(!is_remote_fuse("fuse.fuse-overlayfs"));
            assert!(!is_remote_fuse("virtiofs"));
            assert_eq!(kind_of_mount(mounts, (9, 9)), None);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{AsFd, Stat};

    pub(super) fn network_file_system(_directory: impl AsFd, _stat: &Stat) -> Option<String> {
        None
    }
}
