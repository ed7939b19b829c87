//! What is said, how, and where to: sentences on standard error, or JSON for machines.

use std::io::{self, IsTerminal, Write};

use serde_json::json;

use crate::arguments::Common;
use crate::event::{Event, Level};
use crate::exit::Failure;

/// Where JSON goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonTo {
    /// Standard output, which is otherwise unused.
    Output,
    /// Standard error, because standard output belongs to the command that runs under the lock.
    Error,
}

/// Says what happens.
#[derive(Debug)]
pub(crate) struct Report {
    /// The least important level that is said.
    least: Level,
    json: Option<JsonTo>,
    style: Style,
}

#[derive(Debug, Clone, Copy)]
struct Style {
    error: &'static str,
    warning: &'static str,
    plain: &'static str,
}

const PLAIN: Style = Style { error: "", warning: "", plain: "" };
const COLOURED: Style = Style { error: "\x1b[1;31m", warning: "\x1b[1;33m", plain: "\x1b[0m" };

impl Report {
    pub(crate) fn new(common: &Common, json_to: JsonTo) -> Self {
        let terminal = io::stderr().is_terminal();
        let least = match (common.quiet, common.verbose, terminal) {
            (true, _, _) => Level::Error,
            (false, 0, false) => Level::Warning,
            (false, 0, true) => Level::Progress,
            (false, _, _) => Level::Detail,
        };
        let style = if terminal && wants_colour() { COLOURED } else { PLAIN };
        Self { least, json: common.json.then_some(json_to), style }
    }

    /// Whether JSON was asked for.
    pub(crate) fn is_json(&self) -> bool {
        self.json.is_some()
    }

    /// Whether anyone is told about `level`.
    pub(crate) fn tells(&self, level: Level) -> bool {
        self.is_json() || level <= self.least
    }

    /// Says what has happened to the lock called `name`.
    pub(crate) fn event(&self, name: &str, event: &Event<'_>) {
        match self.json {
            Some(to) => write_line(to, &event.to_json(name).to_string()),
            None if event.level() <= self.least => self.say(event.level(), &event.to_text(name)),
            None => {}
        }
    }

    /// Says something that is no event.
    pub(crate) fn note(&self, level: Level, text: &str) {
        if self.json.is_none() && level <= self.least {
            self.say(level, text);
        }
    }

    /// Says why the command ends without having done what it was asked to.
    pub(crate) fn failure(&self, failure: &Failure) {
        if let Some(to) = self.json {
            let error = json!({ "event": "error", "code": failure.code, "message": failure.message });
            write_line(to, &error.to_string());
        }
        if self.json != Some(JsonTo::Error) {
            self.say(Level::Error, &failure.message);
        }
    }

    fn say(&self, level: Level, text: &str) {
        let Style { error, warning, plain } = self.style;
        let colour = match level {
            Level::Error => error,
            Level::Warning => warning,
            Level::Progress | Level::Detail => "",
        };
        let plain = if colour.is_empty() { "" } else { plain };
        write_line(JsonTo::Error, &format!("{colour}distlock:{plain} {text}"));
    }
}

fn wants_colour() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Writes one line at once, so that lines of several processes do not mix. Nobody may be reading any more, which is no
/// reason to let go of a lock.
fn write_line(to: JsonTo, line: &str) {
    let line = format!("{line}\n");
    let _ = match to {
        JsonTo::Output => io::stdout().write_all(line.as_bytes()),
        JsonTo::Error => io::stderr().write_all(line.as_bytes()),
    };
    if to == JsonTo::Output {
        let _ = io::stdout().flush();
    }
}

/// Writes to standard output what a user has asked for. A reader who has gone is no error: `distlock status x | head -1`.
pub(crate) fn write_output(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::of_system("write the answer", error))
        }
        _ => Ok(()),
    }
}
