//! The resources that this process and others use.

use std::fs;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of all threads so far, including those that have ended.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the processor time of all current threads of another process; `None` if the system does not provide it.
pub(crate) fn processor_seconds_of(process: u32) -> Option<f64> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
        // A thread that has just ended has no file any more.
        let Ok(text) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        nanoseconds += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanoseconds).as_secs_f64())
}

/// Like `processor_seconds_of`, including threads that have ended, but only with a precision of a hundredth of a
/// second; `None` if the system does not provide it.
pub(crate) fn coarse_processor_seconds_of(process: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    #[expect(clippy::cast_precision_loss, reason = "counts of hundredths of seconds of work")]
    let seconds = ticks(&text)? as f64 / clock_ticks_per_second() as f64;
    Some(seconds)
}

/// Returns the user time and the system time from the status line of a process. The process name before them is in
/// brackets, and may contain any characters.
fn ticks(text: &str) -> Option<u64> {
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

/// Returns the resident memory that does not belong to files, in bytes; `None` if the system does not provide it.
pub(crate) fn resident_bytes() -> Option<u64> {
    resident_bytes_of(std::process::id())
}

/// Like `resident_bytes`, for another process.
pub(crate) fn resident_bytes_of(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Lets this process, and the server that it starts, open as many files as the system permits.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, connecting will report an error.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Returns how many tasks ran or were ready to run, on average over the last minute; `None` if the system does not
/// provide it.
pub(crate) fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Returns the name of the processor; `None` if the system does not provide it.
pub(crate) fn processor_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_processor_time() {
        let before = processor_time();
        let mut sum = 0_u64;
        while processor_time() < before + Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }

    #[test]
    fn the_time_of_a_process_is_found_behind_any_name() {
        let text = "77 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0 1 0 5";
        assert_eq!(ticks(text), Some(42));
        assert_eq!(ticks("77 (name) S 1"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_work_of_a_process_is_seen_from_outside() {
        let before = processor_seconds_of(std::process::id()).unwrap();
        let mut sum = 0_u64;
        let coarsely = coarse_processor_seconds_of(std::process::id()).unwrap();
        while processor_seconds_of(std::process::id()).unwrap() < before + 0.005
            || coarse_processor_seconds_of(std::process::id()).unwrap() <= coarsely
        {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_is_used_is_counted() {
        let before = resident_bytes().unwrap();
        let used = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(resident_bytes().unwrap() > before + (32 << 20));
        drop(used);
    }
}
