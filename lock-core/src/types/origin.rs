//! Identifies a process, also where its process id means something else.

use std::fmt;

/// Distinguishes a process from all others. The process id alone is not enough: each container has its own ids, and ids
/// are reused.
///
/// ```
/// use lock_core::ProcessOrigin;
///
/// let recorded = ProcessOrigin::new("a boot and a namespace", 1_234); // what a server shows
/// assert_eq!(ProcessOrigin::parse(&recorded.to_string()), Some(recorded.clone()));
/// let is_this_process = ProcessOrigin::of_this_process() == Some(recorded);
/// assert!(!is_this_process);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessOrigin {
    /// The namespace that process ids belong to: one boot of one machine, and one namespace on it. Processes that have
    /// the same value here can see each other.
    pub numbering: String,
    /// When the process was started, in ticks since the machine booted.
    pub started: u64,
}

impl ProcessOrigin {
    /// Creates the origin of a process.
    pub fn new(numbering: impl Into<String>, started: u64) -> Self {
        Self { numbering: numbering.into(), started }
    }

    /// Reads what [`Display`](fmt::Display) wrote, for a backend that keeps it as one text; `None` if it is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let (started, numbering) = text.split_once(' ')?;
        Some(Self::new(numbering, started.parse().ok()?))
    }

    /// Returns the origin of this process; `None` where the system does not provide it, as on systems other than Linux.
    pub fn of_this_process() -> Option<Self> {
        let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The program's name comes before these fields, in brackets, and may contain brackets and spaces itself.
        let started = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
        Some(Self::new(format!("{} {}", machine.trim(), namespace.display()), started))
    }
}

/// The time of the start, a space, and the namespace.
impl fmt::Display for ProcessOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.started, self.numbering)
    }
}
