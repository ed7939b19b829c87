//! Which process it is, also where its number means something else.

/// What tells a process from all others. Its number alone does not: each container counts by itself, and numbers are used
/// again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessOrigin {
    /// Who counts: one start of one machine, and one namespace there. Processes in which this is the same can see each other.
    pub numbering: String,
    /// When the process was started, in ticks since the machine was.
    pub started: u64,
}

impl ProcessOrigin {
    /// The origin of a process.
    pub fn new(numbering: impl Into<String>, started: u64) -> Self {
        Self { numbering: numbering.into(), started }
    }

    /// That of this process; `None` where the system does not tell, as elsewhere than on Linux.
    pub fn of_this_process() -> Option<Self> {
        let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The program's name comes before them, in brackets, and may have brackets and spaces in it.
        let started = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
        Some(Self::new(format!("{} {}", machine.trim(), namespace.display()), started))
    }
}
