//! `distlock top`: the locks of a server as they change, on a terminal.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use distlock::capabilities::Capabilities;
use distlock::status::{HolderId, LockKind, LockList, LockStatus, Participant};
use distlock::{LockClient, LockError, LockName};
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState, Wrap};
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::mpsc;

use crate::arguments::{Common, Watch};
use crate::breaking;
use crate::connection::{self, Address};
use crate::exit::{self, Ending, Failure};
use crate::list;
use crate::named::{Named, fencing_token};
use crate::participants::{self, who, whole_seconds};
use crate::report::{Report, write_output};
use crate::signals::Signals;
use crate::status;
use crate::unknown;

const COLUMNS: [&str; 7] = ["NAME", "HOLDER", "TOKEN", "HELD", "WAITERS", "LONGEST", "PER MIN"];
const WIDTHS: [Constraint; 7] = [
    Constraint::Fill(2),
    Constraint::Fill(2),
    Constraint::Length(17),
    Constraint::Length(12),
    Constraint::Length(7),
    Constraint::Length(12),
    Constraint::Length(7),
];
/// Each look asks for all locks.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// How many locks have a count of their grants at most, unless more are in use.
const MOST_COUNTED: usize = 50_000;
const HELP: &str = "q quit  / filter  s sort  up, down  Enter details  b break";

/// Shows the locks until the user has seen enough; once, as plain text, where there is no terminal.
pub(crate) async fn run(common: &Common, top: &Watch, report: &Report) -> Result<Ending, Failure> {
    if common.json {
        return list::print(common, &top.prefix, |_| true, report).await;
    }
    let address = Address::find(common)?;
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        let work = async |locks: &LockClient, signals: &mut Signals| show(locks, top, signals).await;
        return address.work_with(None, Duration::ZERO, report, work).await;
    }
    let locks = address.open(Duration::ZERO).await?;
    let found = locks.scoped(&top.prefix).list().await;
    connection::close(&locks).await;
    let mut view = View::default();
    let mut found = found?;
    let failures = std::mem::take(&mut found.failures);
    view.see(found);
    let now = SystemTime::now();
    let rows = view.visible().into_iter().map(|lock| view.cells(lock, now).join("\t"));
    let lines = [COLUMNS.join("\t")].into_iter().chain(rows).chain(view.unknown(locks.capabilities()));
    let lines: Vec<_> = lines.chain([String::new()]).collect();
    write_output(&lines.join("\n"))?;
    Ok(list::end(&failures, report))
}

async fn show(locks: &LockClient, top: &Watch, signals: &mut Signals) -> Result<Ending, Failure> {
    let (scoped, interval) = (locks.scoped(&top.prefix), top.interval.max(SHORTEST_INTERVAL));
    let mut view = View::default();
    view.see(scoped.list().await?);
    // Not more than one waits to be shown.
    let (sender, mut lists) = mpsc::channel(1);
    let looking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(interval).await;
            if sender.send(scoped.list().await).await.is_err() {
                return;
            }
        }
    });
    let shown = match ratatui::try_init() {
        Ok(mut terminal) => interact(&mut terminal, &mut view, &mut lists, locks, signals).await,
        Err(error) => Err(error),
    };
    ratatui::restore();
    looking.abort();
    shown.map_err(|error| Failure::of_system("use the terminal", error))?;
    Ok(Ending::Code(exit::SUCCESS))
}

async fn interact(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    lists: &mut mpsc::Receiver<Result<LockList, LockError>>,
    locks: &LockClient,
    signals: &mut Signals,
) -> io::Result<()> {
    let (mut keys, capabilities) = (keys(), locks.capabilities());
    loop {
        terminal.draw(|frame| view.draw(frame, capabilities))?;
        let wish = tokio::select! {
            () = signals.next_that_ends() => return Ok(()),
            key = keys.recv() => key.map_or(Wish::Quit, |key| view.press(key, capabilities)),
            Some(found) = lists.recv() => view.hear(found),
            () = tokio::time::sleep(Duration::from_secs(1)) => Wish::Nothing,
        };
        match wish {
            Wish::Nothing => {}
            Wish::Quit => return Ok(()),
            Wish::Break(name, holder) => {
                let named = Named::in_mode(name.as_str(), holder.mode);
                view.message = Some("breaking it, which may take the abort margin of its holder".to_owned());
                terminal.draw(|frame| view.draw(frame, capabilities))?;
                let done = tokio::select! {
                    () = signals.next_that_ends() => return Ok(()),
                    done = breaking::take(locks, named, &holder) => done,
                };
                view.message = Some(done.unwrap_or_else(|error| error.to_string()));
            }
        }
    }
}

/// The keys that are pressed. A thread waits for them until the process ends.
fn keys() -> mpsc::UnboundedReceiver<KeyEvent> {
    let (sender, keys) = mpsc::unbounded_channel();
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            // Any other event, such as another size of the terminal, makes a new picture.
            let key = event.as_key_press_event().unwrap_or(KeyEvent::from(KeyCode::Null));
            if sender.send(key).is_err() {
                return;
            }
        }
    });
    keys
}

/// What the user asks for.
enum Wish {
    Nothing,
    Quit,
    Break(LockName, Box<Participant>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Sort {
    #[default]
    Waiters,
    Age,
    Grants,
}

/// What the keys are for.
#[derive(Debug, Default)]
enum Mode {
    #[default]
    Table,
    Filter,
    Details,
    /// The question, and what is done after a yes.
    Asks(String, LockName, Box<Participant>),
}

/// What is shown.
#[derive(Debug, Default)]
struct View {
    locks: Vec<LockStatus>,
    /// The last holder of each lock, and how often another one was seen.
    grants: HashMap<Key, (HolderId, u32)>,
    sort: Sort,
    filter: String,
    /// The lock that the cursor follows; none before it was moved: then it stays at the top. And its row, for when the lock has gone.
    selected: Option<Key>,
    row: usize,
    mode: Mode,
    message: Option<String>,
    /// Why the last look has failed, or that at a lock.
    trouble: Option<String>,
    since: Option<Instant>,
    /// When it began to count grants.
    begun: Option<Instant>,
}

type Key = (LockName, LockKind);

fn key(lock: &LockStatus) -> Key {
    (lock.name.clone(), list::named(lock).kind)
}

impl View {
    fn see(&mut self, found: LockList) {
        self.locks = found.locks;
        self.trouble = found.failures.first().map(ToString::to_string);
        self.since = Some(Instant::now());
        if self.grants.len() > MOST_COUNTED.max(2 * self.locks.len()) {
            // Names that are used once would fill the memory.
            self.grants.clear();
            self.begun = None;
        }
        self.begun = self.begun.or(self.since);
        for lock in &self.locks {
            let Some(first) = lock.holders.first() else { continue };
            let seen = self.grants.entry(key(lock));
            let (last, count) = seen.or_insert_with(|| (first.id.clone(), 0));
            if *last != first.id {
                (*last, *count) = (first.id.clone(), *count + 1);
            }
        }
    }

    fn hear(&mut self, found: Result<LockList, LockError>) -> Wish {
        match found {
            Ok(found) => self.see(found),
            Err(error) => self.trouble = Some(error.to_string()),
        }
        Wish::Nothing
    }

    fn grants(&self, lock: &LockStatus) -> u32 {
        self.grants.get(&key(lock)).map_or(0, |(_, count)| *count)
    }

    /// The lock under the cursor, if it is still in use.
    fn under_cursor(&self) -> Option<&LockStatus> {
        match &self.selected {
            None => self.visible().first().copied(),
            Some(selected) => self.locks.iter().find(|lock| key(lock) == *selected),
        }
    }

    /// The row of the cursor.
    fn at(&self, locks: &[&LockStatus]) -> usize {
        let found =
            self.selected.as_ref().and_then(|selected| locks.iter().position(|lock| key(lock) == *selected));
        found.unwrap_or(self.row).min(locks.len().saturating_sub(1))
    }

    /// Moves the cursor; it follows the lock there from now on.
    fn select(&mut self, to: impl FnOnce(usize) -> usize) {
        let locks = self.visible();
        let row = to(self.at(&locks)).min(locks.len().saturating_sub(1));
        self.selected = locks.get(row).map(|lock| key(lock));
        self.row = row;
    }

    /// The locks that the filter leaves, in order.
    fn visible(&self) -> Vec<&LockStatus> {
        let mut locks: Vec<_> =
            self.locks.iter().filter(|lock| lock.name.as_str().contains(&self.filter)).collect();
        match self.sort {
            Sort::Waiters => locks.sort_by_key(|lock| Reverse(lock.waiters.len())),
            // Those that are free come last.
            Sort::Age => locks.sort_by_key(|lock| {
                let since = lock.holders.first().and_then(|first| first.since);
                (since.is_none(), since)
            }),
            Sort::Grants => locks.sort_by_cached_key(|lock| Reverse(self.grants(lock))),
        }
        locks
    }

    /// What the cells lack.
    fn unknown(&self, capabilities: &Capabilities) -> Option<String> {
        let unknown = self.locks.iter().flat_map(|lock| unknown::of(lock, capabilities));
        unknown::line(unknown.filter(|one| *one != unknown::LEASE))
    }

    fn cells(&self, lock: &LockStatus, now: SystemTime) -> [String; 7] {
        let age = |one: &Participant| {
            let age = now.duration_since(one.since?).ok()?;
            Some(humantime::format_duration(whole_seconds(age)).to_string())
        };
        let (first, waiter) = (lock.holders.first(), lock.waiters.first());
        let others = match lock.holders.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        [
            participants::printable(lock.name.as_str()),
            first.map_or_else(|| "-".to_owned(), |first| who(first) + &others),
            first
                .and_then(|first| fencing_token(first.token, first.mode))
                .map_or(String::new(), |token| token.to_string()),
            first.and_then(age).unwrap_or_default(),
            lock.waiters.len().to_string(),
            waiter.and_then(age).unwrap_or_default(),
            per_minute(self.grants(lock), self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())),
        ]
    }

    fn press(&mut self, key: KeyEvent, capabilities: &Capabilities) -> Wish {
        if key.code == KeyCode::Null {
            return Wish::Nothing;
        }
        self.message = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Wish::Quit;
        }
        match (std::mem::take(&mut self.mode), key.code) {
            (Mode::Asks(_, name, holder), KeyCode::Char('y')) => return Wish::Break(name, holder),
            (Mode::Asks(..), _) => self.message = Some("left alone".to_owned()),
            (Mode::Filter | Mode::Details, KeyCode::Enter) | (Mode::Details, KeyCode::Esc) => {}
            (Mode::Filter, KeyCode::Esc) => self.filter.clear(),
            (Mode::Filter, code) => {
                self.mode = Mode::Filter;
                match code {
                    KeyCode::Char(character) => self.filter.push(character),
                    KeyCode::Backspace => drop(self.filter.pop()),
                    _ => {}
                }
            }
            (_, KeyCode::Char('q')) => return Wish::Quit,
            (_, KeyCode::Char('b')) => self.ask(capabilities),
            (mode @ Mode::Details, _) => self.mode = mode,
            (Mode::Table, code) => match code {
                KeyCode::Char('/') => self.mode = Mode::Filter,
                KeyCode::Enter => {
                    self.select(|row| row);
                    self.mode = Mode::Details;
                }
                KeyCode::Up => self.select(|row| row.saturating_sub(1)),
                KeyCode::Down => self.select(|row| row + 1),
                KeyCode::Char('s') => {
                    self.sort = match self.sort {
                        Sort::Waiters => Sort::Age,
                        Sort::Age => Sort::Grants,
                        Sort::Grants => Sort::Waiters,
                    };
                }
                _ => {}
            },
        }
        Wish::Nothing
    }

    /// Asks whether the selected lock is to be broken. The question is about the holder that was shown.
    fn ask(&mut self, capabilities: &Capabilities) {
        let lock = self.under_cursor();
        let asked = match lock.map(|lock| (lock, lock.holders.as_slice())) {
            None | Some((_, [])) => Err("it is not held".to_owned()),
            Some((lock, [holder])) => {
                let named = Named::in_mode(lock.name.as_str(), holder.mode);
                Ok((
                    breaking::question(capabilities, named, holder),
                    lock.name.clone(),
                    Box::new(holder.clone()),
                ))
            }
            Some(_) => Err("it has several holders: choose one with distlock break --holder".to_owned()),
        };
        match asked {
            Ok((question, name, holder)) => self.mode = Mode::Asks(question, name, holder),
            Err(message) => self.message = Some(message),
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>, capabilities: &Capabilities) {
        let [title, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
                .areas(frame.area());
        if self.selected.is_some() && matches!(self.mode, Mode::Table | Mode::Filter) {
            self.select(|row| row);
        }
        let locks = self.visible();
        let row = self.at(&locks);
        let (now, height) = (SystemTime::now(), usize::from(body.height).saturating_sub(1).max(1));
        let age = self.since.map_or(Duration::ZERO, |since| whole_seconds(since.elapsed()));
        let text = format!(
            "{} of {} locks, sorted by {:?}, seen {} ago{}",
            locks.len(),
            self.locks.len(),
            self.sort,
            humantime::format_duration(age),
            self.unknown(capabilities).map_or(String::new(), |unknown| format!("; {unknown}"))
        );
        frame.render_widget(Line::raw(text.to_lowercase()).bold(), title);
        let text = match (&self.mode, &self.selected) {
            (Mode::Asks(question, ..), _) => Some(question.clone()),
            (Mode::Details, Some((name, kind))) => {
                let (named, free) =
                    (Named { name: name.as_str(), kind: *kind }, LockStatus::free(name.clone()));
                Some(status::to_text(named, self.under_cursor().unwrap_or(&free), capabilities, now))
            }
            _ => None,
        };
        if let Some(text) = text {
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), body);
        } else {
            let first = row / height * height;
            let page = locks.iter().skip(first).take(height).map(|lock| Row::new(self.cells(lock, now)));
            let table = Table::new(page, WIDTHS).header(Row::new(COLUMNS).bold());
            let mut state = TableState::new().with_selected(row - first);
            frame.render_stateful_widget(
                table.row_highlight_style(ratatui::style::Style::new().reversed()),
                body,
                &mut state,
            );
        }
        let foot_text = match (self.message.as_ref().or(self.trouble.as_ref()), &self.mode) {
            (Some(message), _) => message.clone(),
            (None, Mode::Filter) => format!("/{}", self.filter),
            (None, _) => HELP.to_owned(),
        };
        frame.render_widget(Line::raw(foot_text), foot);
    }
}

/// How often another holder was seen. In the first minute, the whole is that minute.
fn per_minute(count: u32, watched: Duration) -> String {
    let rate = f64::from(count) * 60.0 / watched.as_secs_f64().max(60.0);
    if rate == 0.0 || rate >= 10.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use distlock::capabilities::Reach;
    use distlock::spi::{CharacterSet, NameRules};

    use super::*;

    /// The locks of these names, of which the first has the most waiters.
    fn locks(names: &[&str]) -> LockList {
        let lock = |(number, name): (usize, &&str)| {
            let mut lock = LockStatus::free(LockName::new(name).unwrap());
            let waiter = |number: usize| Participant::new(HolderId::new(number.to_string()));
            lock.holders = vec![waiter(0)];
            lock.waiters = (number..names.len()).map(waiter).collect();
            lock
        };
        LockList { locks: names.iter().enumerate().map(lock).collect(), failures: Vec::new() }
    }

    fn row(view: &View) -> (&str, usize) {
        let locks = view.visible();
        let row = view.at(&locks);
        (locks[row].name.as_str(), row)
    }

    #[test]
    fn the_cursor_stays_at_its_lock() {
        let mut view = View::default();
        let draw = |view: &mut View| {
            let mut terminal = ratatui::Terminal::new(ratatui::backend::TestBackend::new(80, 9)).unwrap();
            let names = NameRules::new(CharacterSet::ANY, 200);
            let capabilities = Capabilities::new("test", Reach::Network, names);
            terminal.draw(|frame| view.draw(frame, &capabilities)).unwrap();
            terminal.backend().to_string()
        };
        let see = |view: &mut View, names: &[&str]| {
            view.see(locks(names));
            draw(view)
        };
        see(&mut view, &["a", "b", "c"]);
        see(&mut view, &["b", "a", "c"]);
        assert_eq!(row(&view), ("b", 0), "it stays at the top until it is moved");
        view.select(|row| row + 1);
        see(&mut view, &["c", "b", "a"]);
        assert_eq!(row(&view), ("a", 2));
        assert_eq!(view.under_cursor().unwrap().name.as_str(), "a");
        view.mode = Mode::Details;
        let shown = see(&mut view, &["c", "b", "d"]);
        assert!(shown.contains("lock \"a\" is free"), "{shown}");
        assert!(view.under_cursor().is_none());
        view.mode = Mode::Table;
        see(&mut view, &["c", "b", "d"]);
        assert_eq!(row(&view), ("d", 2), "the next one");
        see(&mut view, &["d", "a"]);
        assert_eq!(row(&view), ("d", 0));
        see(&mut view, &[]);
        assert!(view.visible().is_empty() && view.under_cursor().is_none());
    }

    #[test]
    fn grants_are_shown_for_each_minute() {
        let shown = |count, seconds| per_minute(count, Duration::from_secs(seconds));
        assert_eq!([shown(0, 0), shown(3, 10), shown(3, 60), shown(3, 90)], ["0", "3.0", "3.0", "2.0"]);
        assert_eq!([shown(100, 120), shown(1, 3_600)], ["50", "0.0"]);
    }
}
