//! Locks without a server: in the memory of this process, and in files.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::aims::{Aim, Measure, Other};
use crate::failure::{Context, Outcome};
use crate::plan::Workload;
use crate::subject::{Server, Sizes, Subject};

pub(crate) static MEMORY: Subject = Subject {
    title: "Memory",
    workloads: &[Workload::Cycle, Workload::Tasks],
    aims: &[
        Aim::new("cycle", Measure::Time("cycle"), Some(1.2)),
        Aim::new("hand-off, 64 tasks of one client", Measure::Time("tasks-64"), Some(5.0)),
        Aim::new("sections without local_handoff for one with it", Measure::WithoutIt("tasks-64"), None)
            .handing_over(),
    ],
    ..COMMON
};

pub(crate) static FILE: Subject = Subject {
    title: "Files",
    workloads: &[Workload::Cycle, Workload::HandOff, Workload::Sharing, Workload::Exec],
    aims: &[Aim::new(
        "exec beside flock around true",
        Measure::Beside("exec", Other::Named(FLOCK)),
        Some(1.4),
    )],
    start: || {
        let private = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("lock-bench-").permissions(private).tempdir();
        Ok(Box::new(Folder(folder.context("a folder")?)))
    },
    command: Some((FLOCK, flock)),
    ..COMMON
};

const FLOCK: &str = "flock";

/// flock(1) in the folder of this URL.
fn flock(url: &str) -> Outcome<Command> {
    let folder = url.strip_prefix("file:").context("the URL is not that of a folder")?;
    let mut command = Command::new("flock");
    command.arg(Path::new(folder.split('?').next().unwrap_or(folder)).join("flock")).arg("true");
    Ok(command)
}

const COMMON: Subject = Subject {
    title: "",
    contenders: &[],
    workloads: &[],
    aims: &[],
    lease_option: None,
    sizes: Sizes { rounds: 8, lease: Duration::from_secs(30), ..Sizes::USUAL },
    start: || Ok(Box::new(Memory)),
    command: None,
};

struct Memory;

impl Server for Memory {
    fn url(&self) -> String {
        "memory:".to_owned()
    }
}

/// Removed when this is dropped.
struct Folder(TempDir);

impl Server for Folder {
    fn url(&self) -> String {
        format!("file:{}", self.0.path().display())
    }
}
