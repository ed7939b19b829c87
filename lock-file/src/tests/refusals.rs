//! Folders and files that the backend refuses, and full disks.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lock_core::{ClientBuilder, ErrorKind, LockError};
use rustix::process::geteuid;

use super::process::{Process, command};
use super::{Scratch, block_on};
use crate::FileOptions;

#[track_caller]
fn refusal(folder: &Path) -> LockError {
    FileOptions::in_folder(folder).client(ClientBuilder::new()).unwrap_err()
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn everything_is_the_users_alone() {
    let scratch = Scratch::new();
    let (ours, theirs) = (scratch.client(), scratch.client());
    let guard = block_on(ours.mutex("a").unwrap().acquire()).unwrap();
    let lock = theirs.mutex("a").unwrap();
    block_on(async {
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        while ours.status("a").await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        let mut seen = Vec::new();
        look_at_modes(&scratch.path, &mut seen);
        assert_eq!(seen.len(), 10, "{seen:?}");
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap();
    });
}

fn look_at_modes(path: &Path, seen: &mut Vec<String>) {
    let found = std::fs::symlink_metadata(path).unwrap();
    let expected = if found.is_dir() { 0o700 } else { 0o600 };
    assert_eq!(found.mode() & 0o7777, expected, "{}", path.display());
    seen.push(path.display().to_string());
    if found.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            look_at_modes(&entry.unwrap().path(), seen);
        }
    }
}

#[test]
fn a_folder_that_others_can_use_is_refused() {
    let scratch = Scratch::new();
    drop(scratch.client());
    for mode in [0o755, 0o770, 0o701] {
        set_mode(&scratch.path, mode);
        let error = refusal(&scratch.path);
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("chmod 700"), "{error}");
    }
    set_mode(&scratch.path, 0o700);
    set_mode(&scratch.path.join("gate"), 0o644);
    let error = refusal(&scratch.path);
    assert!(error.to_string().contains("chmod 600"), "{error}");
}

#[test]
fn a_folder_that_its_owner_cannot_use_is_refused() {
    let scratch = Scratch::new();
    drop(scratch.client());
    for mode in [0o000, 0o500, 0o600] {
        set_mode(&scratch.path, mode);
        let error = refusal(&scratch.path);
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains(&format!("chmod 700 {}", scratch.path.display())), "{error}");
    }
    set_mode(&scratch.path, 0o700);
    drop(scratch.client());
}

/// Runs as a user who is bound by permissions, even if the user of the tests is not.
#[test]
fn a_strange_umask_takes_nothing_from_the_owner() {
    let scratch = Scratch::new();
    let folder = scratch.path.join("in/folders");
    let (helper, program) = (command(&folder), scratch.path.with_extension("helper"));
    super::copy_program(helper.get_program(), &program);
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 0777; exec \"$@\"", "sh"]).arg(&program).args(helper.get_args());
    shell.envs(helper.get_envs().filter_map(|(key, value)| Some((key, value?))));
    if geteuid().is_root() {
        let parent = scratch.path.parent().unwrap();
        set_mode(parent, 0o777);
        shell.uid(54_321).gid(54_321).current_dir("/");
    }
    let mut holder = Process::spawn(&mut shell);
    holder.acquires("a");
    let mut waiter = Process::spawn(&mut shell);
    waiter.say("acquire a");
    super::eventually("it waits", || folder.join("queue/a").is_dir());
    waiter.is_asleep_soon();
    let mut seen = Vec::new();
    look_at_modes(&scratch.path, &mut seen);
    holder.say("release a");
    holder.expect("released");
    waiter.expect("granted");
}

#[test]
fn symbolic_links_are_refused() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let elsewhere = scratch.path.with_extension("elsewhere");
    std::fs::write(&elsewhere, "precious").unwrap();
    set_mode(&elsewhere, 0o600);

    let link = scratch.path.with_extension("link");
    symlink(&scratch.path, &link).unwrap();
    for path in [link.clone(), link.join("")] {
        let error = refusal(&path);
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }

    symlink(&elsewhere, scratch.path.join("held/a")).unwrap();
    let error = block_on(client.mutex("a").unwrap().try_acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

    let gate = scratch.path.join("gate");
    std::fs::remove_file(&gate).unwrap();
    symlink(&elsewhere, &gate).unwrap();
    let error = block_on(client.mutex("b").unwrap().try_acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "precious");
}

#[test]
fn what_is_no_folder_is_refused_by_its_name_wherever_it_is_in_the_path() {
    let scratch = Scratch::new();
    let path = &scratch.path;
    for folder in [path.clone(), path.join(""), path.join("locks"), path.join("of/mine")] {
        symlink("nowhere", path).unwrap();
        let error = refusal(&folder);
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{} is a symbolic link", path.display())), "{text}");
        assert!(text.contains("name the real folder"), "{text}");
        std::fs::remove_file(path).unwrap();

        std::fs::write(path, "precious").unwrap();
        let error = refusal(&folder);
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{} is not a folder", path.display())), "{text}");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "precious");
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn what_is_no_plain_file_is_refused_without_hanging() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let pipe = scratch.path.join("held/a");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let error = block_on(client.mutex("a").unwrap().try_acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[test]
fn a_foreign_owner_is_refused() {
    if !geteuid().is_root() {
        // A user cannot give a folder away, but every system has one that belongs to another user.
        assert_eq!(refusal(Path::new("/etc")).kind(), ErrorKind::Denied);
        return;
    }
    let scratch = Scratch::new();
    drop(scratch.client());
    std::os::unix::fs::chown(&scratch.path, Some(54_321), None).unwrap();
    let error = refusal(&scratch.path);
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("54321"), "{error}");
    std::os::unix::fs::chown(&scratch.path, Some(0), None).unwrap();
    std::os::unix::fs::chown(scratch.path.join("gate"), Some(54_321), None).unwrap();
    assert_eq!(refusal(&scratch.path).kind(), ErrorKind::Denied);
}

#[test]
fn a_relative_path_is_refused() {
    assert_eq!(refusal(Path::new("locks")).kind(), ErrorKind::InvalidOption);
}

/// A process in a folder on a small file system of its own, after `prepare` has run there.
fn on_a_file_system(scratch: &Scratch, options: &str, prepare: &str) -> Process {
    let possible = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).status();
    assert!(
        possible.is_ok_and(|status| status.success()),
        "this test mounts a file system of its own: install util-linux and allow user namespaces, or run it as root"
    );
    let helper = command(&scratch.path);
    std::fs::create_dir(&scratch.path).unwrap();
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-ec"]);
    unshare.arg(format!(
        "mount -t tmpfs -o {options},mode=0700 none {folder}; cd {folder}; {prepare}; cd /; exec \"$@\"",
        folder = scratch.path.display()
    ));
    unshare.arg("sh").arg(helper.get_program()).args(helper.get_args());
    unshare.envs(helper.get_envs().filter_map(|(key, value)| Some((key, value?))));
    Process::spawn(&mut unshare)
}

#[test]
fn a_full_disk_is_a_clear_error() {
    // No space for a record.
    let scratch = Scratch::new();
    let fill = "mkdir -m 700 held shared queue permits permits-queue; : > gate; chmod 600 gate; echo 0 > gate; cat /dev/zero > full 2> /dev/null || true";
    let mut process = on_a_file_system(&scratch, "size=32k", fill);
    for _ in 0..2 {
        process.say("acquire a 0");
        let error = process.expect("error");
        assert!(error.contains("free some space") && error.contains("os error 28"), "{error}");
    }
    // No inode for a file.
    let scratch = Scratch::new();
    let fill = "mkdir -m 700 held shared queue permits permits-queue; : > gate; chmod 600 gate; \
                (i=0; while : > f$i; do i=$((i + 1)); done) 2>/dev/null || true";
    let mut process = on_a_file_system(&scratch, "nr_inodes=9", fill);
    process.say("acquire a 0");
    let error = process.expect("error");
    assert!(error.contains("free some space or inodes"), "{error}");
}

#[test]
fn a_read_only_folder_is_a_clear_error() {
    let scratch = Scratch::new();
    let process = on_a_file_system(&scratch, "size=1m", "mount -o remount,ro .");
    let error = process.expect("error");
    assert!(error.contains("can be written to"), "{error}");
}

#[test]
fn a_lock_is_given_back_on_a_full_disk() {
    let scratch = Scratch::new();
    let mut process = on_a_file_system(&scratch, "size=64k", "true");
    process.acquires("a");
    process.acquires("b");
    process.say(&format!("fill {}", scratch.path.join("full").display()));
    process.expect("full");
    process.say("release a");
    process.expect("released");
    // The space that the release has freed is enough for the next holder.
    process.acquires("a");
    process.say("acquire c 0");
    assert!(process.expect("error").contains("free some space"));
    process.say("release b");
    process.expect("released");
}

#[test]
fn a_limit_of_descriptors_is_a_clear_error() {
    let scratch = Scratch::new();
    let helper = command(&scratch.path);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 40; exec \"$@\"", "sh"]).arg(helper.get_program()).args(helper.get_args());
    shell.envs(helper.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut process = Process::spawn(&mut shell);
    let error = (0..40).find_map(|number| {
        process.say(&format!("acquire {number} 10000"));
        process.hear().strip_prefix("error").map(str::to_owned)
    });
    let error = error.expect("an error");
    assert!(error.contains("`ulimit -n`"), "{error}");
    // Held locks can be released, which frees descriptors: an acquisition needs one for the gate besides.
    for name in ["0", "1"] {
        process.say(&format!("release {name}"));
        process.expect("released");
    }
    process.say("acquire 0 10000");
    process.expect("granted");
}

/// The first waiter gets the event of the release, and cannot open a file then.
#[test]
fn a_waiter_that_is_out_of_descriptors_for_a_while_keeps_its_place() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut waiters = [Process::without_polling(&scratch.path), Process::start(&scratch.path)];
    for number in 1..=waiters.len() {
        waiters[number - 1].say("acquire a");
        super::eventually("it waits", || super::pids_of_waiters(&client, "a").len() == number);
    }
    let [first, second] = waiters;
    first.is_asleep_soon();
    let wake_ups = first.wake_ups();
    first.limit_descriptors(Some(3));
    block_on(guard.release()).unwrap();
    super::eventually("it has looked several times", || first.wake_ups() > wake_ups + 5);
    assert_eq!(super::pids_of_waiters(&client, "a"), [first.pid(), second.pid()]);
    assert!(second.has_said_nothing());
    first.limit_descriptors(None);
    first.expect("granted");
    drop(first);
    second.expect("granted");
}

/// The waiter fails to check while a living waiter is before it. Once it has descriptors, it again knows that another client
/// holds the lock.
#[test]
fn a_wait_that_was_out_of_descriptors_for_a_while_ends_as_refused() {
    let scratch = Scratch::new();
    let client = scratch.client();
    let _guard = block_on(client.mutex("a").unwrap().acquire()).unwrap();
    let mut first = Process::start(&scratch.path);
    first.say("acquire a");
    super::eventually("it waits", || super::pids_of_waiters(&client, "a").len() == 1);
    let queue = std::fs::read_dir(scratch.path.join("queue/a")).unwrap();
    let ticket = queue.map(|entry| entry.unwrap().path()).next().unwrap();
    let mut second = Process::start(&scratch.path);
    // The wait is longer on a machine that is too slow to finish in half of the time.
    for seconds in [4, 8, 16, 32] {
        let (begun, wait) = (Instant::now(), Duration::from_secs(seconds));
        second.say(&format!("acquire a {}", wait.as_millis()));
        let has_ended = || begun.elapsed() > wait;
        super::eventually("it waits", || has_ended() || super::pids_of_waiters(&client, "a").len() == 2);
        let wake_ups = second.wake_ups();
        second.limit_descriptors(Some(3));
        super::eventually("it has looked several times", || {
            // As if the first waiter were killed: the second one checks, and finds that it lives.
            drop(std::fs::OpenOptions::new().write(true).open(&ticket).unwrap());
            has_ended() || second.wake_ups() > wake_ups + 5
        });
        second.limit_descriptors(None);
        let is_in_time = begun.elapsed() < wait / 2;
        let answer = second.hear();
        if is_in_time {
            assert_eq!(answer, "refused");
            return;
        }
    }
    panic!("the machine is too slow for this");
}

/// The process sets the limit for itself, in a user namespace of its own.
#[test]
fn works_without_inotify_watches() {
    let scratch = Scratch::new();
    let limit = "/proc/sys/user/max_inotify_watches";
    let prepare = format!("echo 0 > {limit}; test \"$(cat {limit})\" = 0");
    let mut process = on_a_file_system(&scratch, "size=1m", &prepare);
    process.acquires("a");
    process.say("lost a");
    let seen_from_here = format!("/proc/{}/root{}/held/a", process.pid(), scratch.path.display());
    std::fs::remove_file(seen_from_here).unwrap();
    process.expect("lost Deleted");
}
