//! Tells what was found: a table to read, JSON for programs, and a page to look at.

mod chart;
mod charts;
mod figure;
mod page;
mod table;

use std::fs;
use std::io::{Write, stdout};

use crate::arguments::Options;
use crate::failure::{Context, Outcome};
use crate::results::Report;

pub(crate) fn write(report: &Report, options: &Options) -> Outcome<()> {
    stdout().write_all(table::text(report).as_bytes()).context("standard output")?;
    if let Some(path) = &options.json {
        let mut text = serde_json::to_string_pretty(report).context("the JSON")?;
        text.push('\n');
        fs::write(path, text).context(path.display())?;
    }
    if let Some(path) = &options.html {
        fs::write(path, page::html(report)).context(path.display())?;
    }
    Ok(())
}
