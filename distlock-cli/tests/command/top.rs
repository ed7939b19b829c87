//! `top` on a real terminal, which tmux shows, and without one.

use std::process::{Command, Output};

use test_servers::left_out;

use crate::support::{Sandbox, assert_code, is_all, said, until};

/// A terminal in which `distlock top` runs.
struct Terminal<'a> {
    sandbox: &'a Sandbox,
}

impl<'a> Terminal<'a> {
    /// `None` if the user left these tests out.
    fn open(sandbox: &'a Sandbox) -> Option<Self> {
        if let Some(reason) = left_out("tmux") {
            eprintln!("tmux: {reason}");
            return None;
        }
        let terminal = Self { sandbox };
        let program = [env!("CARGO_BIN_EXE_distlock"), "--url", &sandbox.url(), "top", "--interval", "100ms"];
        let started = terminal.tmux(
            &[&["-f", "/dev/null", "new-session", "-d", "-x", "130", "-y", "12"], &program[..]].concat(),
        );
        assert!(started.status.success(), "{started:?}");
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(self.sandbox.file("tmux")).args(arguments).env_remove("TMUX").output().unwrap()
    }

    fn press(&self, keys: &[&str]) {
        assert!(self.tmux(&[&["send-keys"], keys].concat()).status.success());
    }

    fn screen(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p"]).stdout).unwrap()
    }

    fn until_shown(&self, text: &str) -> String {
        let mut screen = String::new();
        until(text, || {
            screen = self.screen();
            screen.contains(text)
        });
        screen
    }

    fn is_open(&self) -> bool {
        self.tmux(&["has-session"]).status.success()
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn locks_are_sorted_filtered_shown_in_detail_and_broken() {
    let sandbox = Sandbox::new();
    let mut holders = ["orders/1", "orders/2", "jobs/1"].map(|name| sandbox.hold(name));
    let Some(terminal) = Terminal::open(&sandbox) else { return };
    let pids = [0, 1, 2].map(|number: usize| format!("pid {} on ", holders[number].pid()));
    let screen = terminal.until_shown("3 of 3 locks, sorted by waiters");
    assert!(screen.contains("NAME") && pids.iter().all(|pid| screen.contains(pid)), "{screen}");
    let _waiter = crate::support::Running::start(&mut sandbox.distlock(["hold", "orders/2"]));
    until("the lock with a waiter comes first", || {
        terminal.screen().lines().nth(2).is_some_and(|line| line.starts_with("orders/2 "))
    });
    terminal.press(&["/", "o", "r", "d", "Enter"]);
    let screen = terminal.until_shown("2 of 3 locks");
    assert!(!screen.contains("jobs/1"), "{screen}");
    terminal.press(&["s"]);
    terminal.until_shown("sorted by age");
    terminal.press(&["Down", "Enter"]);
    let screen = terminal.until_shown("1 waiting, the next one first");
    assert!(screen.contains("lock \"orders/2\" is held by") && screen.contains("  token "), "{screen}");
    terminal.press(&["b"]);
    terminal.until_shown("Take it away? [y/N]");
    terminal.press(&["n"]);
    terminal.until_shown("left alone");
    terminal.press(&["b"]);
    terminal.until_shown("Take it away? [y/N]");
    terminal.press(&["y"]);
    terminal.until_shown("took lock \"orders/2\" from pid ");
    assert_eq!(holders[1].code(), 76);
    terminal.press(&["C-c"]);
    until("it ends", || !terminal.is_open());
}

#[test]
fn without_a_terminal_it_is_a_table_of_now() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("job");
    assert_eq!(sandbox.run(["top", "--json"]).stdout, sandbox.run(["list", "--json"]).stdout);
    let output = sandbox.run(["top"]);
    assert_code(&output, 0, "top");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "NAME\tHOLDER\tTOKEN\tHELD\tWAITERS\tLONGEST\tPER MIN");
    assert!(lines[1].starts_with(&format!("job\tpid {} on ", holder.pid())) && lines.len() == 2, "{text}");
}

#[test]
fn a_lock_that_cannot_be_looked_at_is_said_as_list_says_it() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("job");
    // Its readers should be in a folder.
    std::fs::create_dir_all(sandbox.locks().join("shared")).unwrap();
    std::fs::write(sandbox.locks().join("shared/broken"), "").unwrap();
    let [list, top] = ["list", "top"].map(|subcommand| sandbox.run([subcommand]));
    assert_code(&list, 1, "list");
    assert_code(&top, 1, "top");
    assert!(said(&top).contains("lock \"broken\"") && top.stderr == list.stderr, "{top:?} {list:?}");
    assert!(String::from_utf8(top.stdout).unwrap().contains("\njob\tpid "));
}

/// In the tier of all there are 10,000. Each request of a list is small, and there are not more of them than the locks need.
#[cfg(feature = "redis")]
#[test]
fn thousands_of_locks_are_one_table() {
    let count = if is_all() { 10_000 } else { 1_000 };
    let options = test_servers::ServerOptions::new();
    let Some(server) = crate::redis::server::Server::start_with(options) else { return };
    let sandbox = Sandbox::at(server.url());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let guards = runtime.block_on(async {
        // No renewal is among the requests that are counted.
        let url = crate::at_a_server::with_option(&server.url(), "lease=1h");
        let locks = distlock::connect(&url).await.unwrap();
        let mut acquiring = tokio::task::JoinSet::new();
        for number in 0..count {
            let lock = locks.mutex(format!("lock-{number:05}")).unwrap();
            acquiring.spawn(async move { lock.acquire().await.unwrap() });
        }
        acquiring.join_all().await
    });
    let text = |words: &[&str]| format!("{:?}", server.command(words)).replace("\\r\\n", "\n");
    let number = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap();
    server.command(&["CONFIG", "RESETSTAT"]);
    let listed = String::from_utf8(sandbox.run(["list", "--json"]).stdout).unwrap();
    assert_eq!(listed.lines().count(), count);
    let keys: usize = number(&text(&["DBSIZE"]));
    let calls_of = |command: &str| -> usize {
        let stats = text(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        number(line.unwrap_or_else(|| panic!("{command}: {stats}")).split(',').next().unwrap())
    };
    let (scans, looks) = (calls_of("scan"), calls_of("evalsha"));
    assert!((keys / 1_000..keys / 100 + 10).contains(&scans), "{scans} requests read {keys} keys");
    assert!((count..count + 10).contains(&looks), "{looks} looks at {count} locks");
    // A list of some looks at no other.
    server.command(&["CONFIG", "RESETSTAT"]);
    let listed = String::from_utf8(sandbox.run(["list", "lock-00099"]).stdout).unwrap();
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!((1..10).contains(&calls_of("evalsha")), "{listed}");
    let Some(terminal) = Terminal::open(&sandbox) else { return };
    terminal.until_shown(&format!("{count} of {count} locks"));
    terminal.press(&["Down", "/", "0", "0", "0", "9", "9", "Enter"]);
    until("one lock is left", || terminal.screen().starts_with(&format!("1 of {count} locks")));
    assert!(terminal.screen().contains("\nlock-00099 "), "{}", terminal.screen());
    terminal.press(&["q"]);
    until("it ends", || !terminal.is_open());
    drop(guards);
}
