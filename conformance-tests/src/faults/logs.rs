//! Everything that the program logs, kept to look for what is said, and for what must not be said.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::filter::LevelFilter;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Keeping;

impl Write for Keeping {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// From now on everything is kept that is logged at any level, unless somebody else has installed a subscriber for all threads.
pub fn keep() {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(|| Keeping)
        .finish();
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        eprintln!("somebody else keeps the log");
    }
}

/// The lines that contain all of these texts. Cases find their lines by a text that only they use: the address of a server of
/// their own, as a rule.
#[must_use]
pub fn lines_with(texts: &[&str]) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&lines)
        .lines()
        .filter(|line| texts.iter().all(|text| line.contains(text)))
        .map(str::to_owned)
        .collect()
}
