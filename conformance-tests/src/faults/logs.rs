//! Keeps everything that the program logs, so that tests can check which lines are in it and which are not.

use std::io::{self, Write};

use lock_core::spi::Mutex;
use tracing_subscriber::filter::LevelFilter;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Keeping;

impl Write for Keeping {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// From now on keeps all log lines of all levels, unless another subscriber has been installed for all threads.
pub fn keep() {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(|| Keeping)
        .finish();
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        eprintln!("another subscriber keeps the log");
    }
}

/// Returns the lines that contain all of these texts. Cases find their lines by a text that only they use, usually the
/// address of a server of their own.
#[must_use]
pub fn lines_with(texts: &[&str]) -> Vec<String> {
    let Some((rare, others)) = texts.split_last() else { return Vec::new() };
    let log = LINES.lock();
    let log = String::from_utf8_lossy(&log);
    // The log is long, and no thread can log meanwhile, so most of it is searched for only one text.
    let mut found = Vec::new();
    let mut rest = &*log;
    while let Some(place) = rest.find(rare) {
        let begin = rest[..place].rfind('\n').map_or(0, |end| end + 1);
        let (line, after) = rest[begin..].split_once('\n').unwrap_or((&rest[begin..], ""));
        if others.iter().all(|text| line.contains(text)) {
            found.push(line.to_owned());
        }
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_all_texts() {
        LINES.lock().extend(b"a b\nb\nb a a\nb a");
        assert_eq!(lines_with(&["b", "a"]), ["a b", "b a a", "b a"]);
        assert_eq!(lines_with(&["c", "a"]), Vec::<String>::new());
    }
}
