//! Prints what happens: sentences on standard error, or JSON for machines.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::json;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{Layer, Registry};

use crate::arguments::Common;
use crate::event::{Event, Level};
use crate::exit::Failure;
use crate::named::Named;
use crate::output_writer::{Line, OutputWriter, To};

/// Prints events, notes and failures.
#[derive(Debug)]
pub(crate) struct Report {
    /// The least important kind of message to print.
    least: Level,
    json: Option<To>,
    style: Style,
    output: OutputWriter,
    /// The URL of the locks, without credentials; not set for the default.
    server: OnceLock<String>,
}

#[derive(Debug, Clone, Copy)]
struct Style {
    error: &'static str,
    warning: &'static str,
    plain: &'static str,
}

impl Style {
    fn is_coloured(self) -> bool {
        !self.plain.is_empty()
    }
}

/// Writes what could move the cursor, change colours or turn the direction of the text as an escape. A server's error may have that.
fn printable(text: &str) -> String {
    let is_plain = |character: char| {
        !character.is_control()
            && !matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_plain(character) || character == '\n' {
            shown.push(character);
        } else {
            shown.extend(character.escape_unicode());
        }
    }
    shown
}

const PLAIN: Style = Style { error: "", warning: "", plain: "" };
const COLOURED: Style = Style { error: "\x1b[1;31m", warning: "\x1b[1;33m", plain: "\x1b[0m" };

impl Report {
    /// JSON goes to `json_to`.
    pub(crate) fn new(common: &Common, json_to: To) -> Self {
        let terminal = io::stderr().is_terminal();
        let least = match (common.quiet, common.verbose, terminal) {
            (true, _, _) => Level::Error,
            (false, 0, false) => Level::Warning,
            (false, 0, true) => Level::Progress,
            (false, _, _) => Level::Detail,
        };
        let style = if terminal && wants_colour() { COLOURED } else { PLAIN };
        let json = common.json.then_some(json_to);
        let output = OutputWriter::new(match json {
            Some(To::Output) => |count| Line { to: To::Output, text: dropped_as_json(count) },
            Some(To::Error) => |count| Line { to: To::Error, text: dropped_as_json(count) },
            None => |count| Line { to: To::Error, text: dropped_as_text(count) },
        });
        Self { least, json, style, output, server: OnceLock::new() }
    }

    /// Prints the library's log as well.
    pub(crate) fn log(&self) -> impl Layer<Registry> + use<> {
        let output = self.output.clone();
        let shown = tracing_subscriber::fmt::layer().with_writer(move || output.log());
        shown.with_ansi(self.style.is_coloured()).with_filter(LevelFilter::DEBUG)
    }

    /// The locks are at this server.
    pub(crate) fn is_about(&self, server: String) {
        // There is one server for each process.
        let _ = self.server.set(server);
    }

    /// The URL of the locks, without credentials; `None` for the default.
    fn server(&self) -> Option<&str> {
        self.server.get().map(String::as_str)
    }

    /// Waits until everything is written, but not for ever.
    pub(crate) fn finish(&self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        self.output.flush(PATIENCE);
    }

    /// Whether the user asked for JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json.is_some()
    }

    /// Whether messages of this importance are printed.
    pub(crate) fn tells(&self, level: Level) -> bool {
        self.is_json() || level <= self.least
    }

    /// Prints what happened to the lock or semaphore.
    pub(crate) fn event(&self, named: Named<'_>, event: &Event<'_>) {
        self.event_at(event.level(), named, event);
    }

    /// Like [`Self::event`], with another importance than usual.
    pub(crate) fn event_at(&self, level: Level, named: Named<'_>, event: &Event<'_>) {
        match self.json {
            Some(to) => self.write_line(to, &event.to_json(named.name).to_string()),
            None if level <= self.least => self.say(level, &self.text(named, event)),
            None => {}
        }
    }

    /// The event as a sentence, with the server where the lock has just been acquired.
    fn text(&self, named: Named<'_>, event: &Event<'_>) -> String {
        let text = event.to_text(named);
        match self.server() {
            Some(server) if matches!(event, Event::Acquired { .. }) => format!("{text} at {server}"),
            _ => text,
        }
    }

    /// Prints a message that is not an event.
    pub(crate) fn note(&self, level: Level, text: &str) {
        if self.json.is_none() && level <= self.least {
            self.say(level, text);
        }
    }

    /// Prints why distlock has not done what the user asked for.
    pub(crate) fn failure(&self, failure: &Failure) {
        if let Some(to) = self.json {
            let error = json!({ "event": "error", "code": failure.code, "message": failure.message });
            self.write_line(to, &error.to_string());
        }
        if self.json != Some(To::Error) {
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
        self.write_line(To::Error, &format!("{colour}distlock:{plain} {}", printable(text)));
    }

    fn write_line(&self, to: To, line: &str) {
        self.output.say(Line { to, text: format!("{line}\n") });
    }
}

fn wants_colour() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn dropped_as_json(count: u64) -> String {
    format!("{}\n", json!({ "event": "dropped", "lines": count }))
}

fn dropped_as_text(count: u64) -> String {
    format!("distlock: {count} lines are missing here: what was written before was not read in time\n")
}

/// Writes a result to standard output. A reader that has gone is not an error: `distlock status x | head -1`.
pub(crate) fn write_output(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::of_system("write the answer", error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_change_a_terminal_is_shown_as_an_escape() {
        assert_eq!(printable("a\u{1b}[2J\u{202e}\u{9b}\r é\nb"), "a\\u{1b}[2J\\u{202e}\\u{9b}\\u{d} é\nb");
    }
}
