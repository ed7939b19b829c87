//! Reports the results: a table as text, JSON for programs, and an HTML page.

mod chart;
mod charts;
mod figure;
mod html_page;
mod table;

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use crate::arguments::Options;
use crate::failure::{Context, Outcome};
use crate::results::Report;

/// How the files of a report are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Files {
    AsNamed,
    /// There is a report for each of several servers: each file name contains the server.
    OneForEach,
}

impl Files {
    pub(crate) fn path(self, wanted: &Path, subject: &str) -> PathBuf {
        let ending = wanted.extension().unwrap_or_default().to_string_lossy();
        match self {
            Self::AsNamed => wanted.to_owned(),
            Self::OneForEach if ending.is_empty() => wanted.with_extension(subject),
            Self::OneForEach => wanted.with_extension(format!("{subject}.{ending}")),
        }
    }
}

pub(crate) fn write(report: &Report, options: &Options, files: Files, subject: &str) -> Outcome<()> {
    stdout().write_all(table::text(report).as_bytes()).context("standard output")?;
    if let Some(path) = &options.json {
        let path = files.path(path, subject);
        let mut text = serde_json::to_string_pretty(report).context("the JSON")?;
        text.push('\n');
        fs::write(&path, text).context(path.display())?;
    }
    if let Some(path) = &options.html {
        let path = files.path(path, subject);
        fs::write(&path, html_page::html(report)).context(path.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_a_file_of_its_own() {
        let wanted = Path::new("/tmp/report.json");
        assert_eq!(Files::AsNamed.path(wanted, "mariadb"), wanted);
        assert_eq!(Files::OneForEach.path(wanted, "mariadb"), Path::new("/tmp/report.mariadb.json"));
        assert_eq!(Files::OneForEach.path(Path::new("report"), "other"), Path::new("report.other"));
    }
}
