//! The command on a terminal, started from an interactive shell.
//!
//! Programs that these tests stop start no others meanwhile: a shell that is stopped in the middle of a `vfork` does not stop,
//! with distlock or without.
//!
//! The terminal echoes what is typed, so the scripts write the texts that tests wait for in parts: `echo start""ed`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use nix::unistd::Pid;

use crate::support::{DEFAULT_SIGNALS, PATIENCE, Sandbox, is_stopped, lives, until, until_file_has};

pub(crate) const PROMPT: &str = "at-the-prompt>";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_BACKSLASH: &str = "\x1c";
pub(crate) const CTRL_Z: &str = "\x1a";

/// A terminal with an interactive shell, in which `$D` is distlock on the locks of a sandbox.
pub(crate) struct Screen {
    shell: Child,
    keyboard: File,
    shown: Receiver<Vec<u8>>,
    unread: String,
}

impl Screen {
    pub(crate) fn open(sandbox: &Sandbox) -> Self {
        let (terminal, line) = pty_process::blocking::open().unwrap();
        let [env, default_signals] = DEFAULT_SIGNALS;
        let shell = pty_process::blocking::Command::new(env)
            .args([default_signals, "bash", "--norc", "--noprofile", "-i"])
            .env("PS1", PROMPT)
            .env("D", format!("{} --url {}", env!("CARGO_BIN_EXE_distlock"), sandbox.url()))
            .env("TERM", "dumb")
            .env_remove("DISTLOCK_URL")
            .env_remove("PROMPT_COMMAND")
            .current_dir(sandbox.file(""))
            .spawn(line)
            .unwrap();
        let keyboard = File::from(OwnedFd::from(terminal));
        let mut display = keyboard.try_clone().unwrap();
        let (sender, shown) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The read fails when the last process has closed the terminal.
            while let Ok(count) = display.read(&mut buffer) {
                let _ = sender.send(buffer[..count].to_vec());
            }
        });
        let mut screen = Self { shell, keyboard, shown, unread: String::new() };
        screen.expect(PROMPT);
        screen
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line for the shell, and waits until the shell has received it. For input of other programs use `press`: whether
    /// the terminal echoes it depends on which process has the terminal at that moment.
    pub(crate) fn enter(&mut self, line: &str) {
        self.press(&format!("{line}\n"));
        self.expect("\n");
    }

    /// Waits until this text is shown; returns what was shown before it.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) -> String {
        loop {
            if let Some(start) = self.unread.find(text) {
                let before = self.unread[..start].to_owned();
                self.unread.drain(..start + text.len());
                return before;
            }
            match self.shown.recv_timeout(PATIENCE) {
                Ok(bytes) => self.unread += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{text:?} is not shown, but {:?}", self.unread)
                }
            }
        }
    }

    /// Waits for a line that begins with this text, and returns the number after it.
    #[track_caller]
    pub(crate) fn number_after(&mut self, text: &str) -> Pid {
        self.expect(text);
        Pid::from_raw(self.expect("\r\n").trim().parse().unwrap())
    }

    /// Asserts that the shell is back, and that the last command ended with this code.
    #[track_caller]
    pub(crate) fn expect_prompt_after(&mut self, code: i32) {
        self.expect(PROMPT);
        self.enter("echo code=$?=");
        self.expect(&format!("code={code}="));
        self.expect(PROMPT);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn the_command_reads_from_the_terminal() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"$D exec job -- sh -c 'read line; echo "go""t $line"; test -t 1'"#);
    screen.press("hello\n");
    screen.expect("got hello");
    screen.expect_prompt_after(0);
}

#[test]
fn ctrl_c_ends_the_command_and_the_loop_around_it() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"for i in 1 2 3; do $D exec job -- sh -c 'echo start""ed $$; exec sleep 1000'; done"#);
    let child = screen.number_after("started ");
    screen.press(CTRL_C);
    let shown = screen.expect(PROMPT);
    assert!(!shown.contains("started"), "{shown}");
    assert!(!lives(child));
    assert_eq!(sandbox.status("job")["held"], false);
}

#[test]
fn ctrl_c_has_the_code_that_it_has_without_distlock() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"$D exec job -- sh -c 'echo start""ed; exec sleep 1000'"#);
    screen.expect("started");
    screen.press(CTRL_C);
    screen.expect_prompt_after(130);
    screen.enter(r#"$D exec job -- sh -c 'trap "exit 7" INT; echo start""ed; while :; do sleep 0.1; done'"#);
    screen.expect("started");
    screen.press(CTRL_C);
    screen.expect_prompt_after(7);
}

#[test]
fn ctrl_z_stops_the_command_and_fg_continues_it() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"$D exec job -- sh -c 'echo start""ed $$; read line; echo "go""t $line"'"#);
    let child = screen.number_after("started ");
    for round in 0..3 {
        screen.press(CTRL_Z);
        screen.expect("Stopped");
        screen.expect(PROMPT);
        assert!(is_stopped(child), "round {round}");
        assert_eq!(sandbox.status("job")["held"], true);
        screen.enter("fg");
        until("the command goes on", || !is_stopped(child));
    }
    screen.press("hello\n");
    screen.expect("got hello");
    screen.expect_prompt_after(0);
}

#[test]
fn bg_lets_it_go_on_in_the_background() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"$D exec job -- sh -c 'mkfifo pipe; echo start""ed $$; read line < pipe; touch done'"#);
    let child = screen.number_after("started ");
    screen.press(CTRL_Z);
    screen.expect("Stopped");
    screen.expect(PROMPT);
    screen.enter("bg");
    screen.expect(PROMPT);
    until("the command goes on", || !is_stopped(child));
    screen.enter("echo > pipe; wait; ls do*");
    screen.expect("done");
    screen.expect(PROMPT);
    // The shell still has the terminal.
    screen.enter("echo sti''ll here");
    screen.expect("still here");
}

#[test]
fn a_background_command_that_wants_the_terminal_is_stopped_until_fg() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"$D exec job -- sh -c 'echo start""ed $$; read line; echo "go""t $line"' &"#);
    let child = screen.number_after("started ");
    until("the shell notices that it is stopped", || {
        screen.enter("jobs");
        screen.expect(PROMPT).contains("Stopped")
    });
    assert!(is_stopped(child));
    screen.enter("fg");
    until("the command goes on", || !is_stopped(child));
    screen.press("hello\n");
    screen.expect("got hello");
    screen.expect(PROMPT);
}

#[test]
fn in_a_pipeline_the_command_gets_the_terminal_when_it_asks_for_it() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"$D exec job -- sh -c 'read line < /dev/tty; echo "go""t $line"' | cat"#);
    screen.press("hello\n");
    screen.expect("got hello");
    screen.expect_prompt_after(0);
}

#[test]
fn in_a_pipeline_ctrl_c_and_ctrl_z_reach_the_command() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"$D exec job -- sh -c 'echo start""ed $$ >&2; exec sleep 1000' | cat"#);
    let child = screen.number_after("started ");
    screen.press(CTRL_Z);
    screen.expect("Stopped");
    screen.expect(PROMPT);
    until("the command stops", || is_stopped(child));
    screen.enter("fg");
    until("the command goes on", || !is_stopped(child));
    screen.press(CTRL_C);
    screen.expect(PROMPT);
    until("the command ends", || !lives(child));
    sandbox.until_status("the lock is free", "job", |status| status["held"] == false);
}

#[test]
fn ctrl_c_ends_a_whole_script() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.file("script"),
        "$D exec job -- sh -c 'echo started; exec sleep 1000'\ntouch went-on\n",
    )
    .unwrap();
    let mut screen = Screen::open(&sandbox);
    screen.enter("bash script");
    screen.expect("started");
    screen.press(CTRL_C);
    screen.expect_prompt_after(130);
    assert!(!sandbox.file("went-on").exists());
}

#[test]
fn ctrl_c_ends_a_whole_script_after_keys_that_the_command_survives() {
    let sandbox = Sandbox::new();
    let command = r#"trap "echo survived" QUIT; echo started; while :; do sleep 0.1; done"#;
    std::fs::write(sandbox.file("script"), format!("$D exec job -- sh -c '{command}'\ntouch went-on\n"))
        .unwrap();
    let mut screen = Screen::open(&sandbox);
    screen.enter("bash script");
    screen.expect("started");
    screen.press(CTRL_BACKSLASH);
    screen.expect("survived");
    screen.press(CTRL_C);
    screen.expect_prompt_after(130);
    assert!(!sandbox.file("went-on").exists());
}

#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_ends_a_whole_script_although_its_witness_has_been_killed() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.file("script"),
        "$D exec job -- sh -c 'echo started $$; exec sleep 1000'\ntouch went-on\n",
    )
    .unwrap();
    let mut screen = Screen::open(&sandbox);
    screen.enter("bash script");
    let group = screen.number_after("started ");
    until("the witness has joined", || witness_in(group).is_some());
    let witness = witness_in(group).unwrap();
    nix::sys::signal::kill(witness, nix::sys::signal::Signal::SIGKILL).unwrap();
    until("the witness is gone", || !std::path::Path::new(&format!("/proc/{witness}")).exists());
    screen.press(CTRL_C);
    screen.expect_prompt_after(130);
    assert!(!sandbox.file("went-on").exists());
}

/// The witness in a group.
#[cfg(target_os = "linux")]
fn witness_in(group: Pid) -> Option<Pid> {
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok()).map(Pid::from_raw);
    let is_witness = |pid: &Pid| {
        nix::unistd::getpgid(Some(*pid)) == Ok(group)
            && std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.starts_with(b"distlock-witness"))
    };
    pids.into_iter().find(is_witness)
}

#[test]
#[cfg(target_os = "linux")]
fn a_command_that_interrupts_itself_does_not_end_the_script_around_it() {
    let sandbox = Sandbox::new();
    let command = "echo started $$; while [ ! -e go ]; do sleep 0.1; done; kill -INT $$";
    let script = format!("$D exec job -- sh -c '{command}'\necho code=$?=\n");
    std::fs::write(sandbox.file("script"), script).unwrap();
    let mut screen = Screen::open(&sandbox);
    screen.enter("bash script");
    let group = screen.number_after("started ");
    until("the witness has joined", || witness_in(group).is_some());
    std::fs::write(sandbox.file("go"), "").unwrap();
    screen.expect("code=130=");
    screen.expect_prompt_after(0);
}

#[test]
fn ctrl_z_stops_a_whole_script_and_fg_continues_it() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.file("script"),
        "$D exec job -- sh -c 'echo started; read line; echo got $line'\necho went on\n",
    )
    .unwrap();
    let mut screen = Screen::open(&sandbox);
    screen.enter("sh script");
    screen.expect("started");
    screen.press(CTRL_Z);
    screen.expect("Stopped");
    screen.expect(PROMPT);
    screen.enter("fg");
    screen.press("hello\n");
    screen.expect("got hello");
    screen.expect("went on");
    screen.expect_prompt_after(0);
}

#[test]
fn a_script_has_the_terminal_back_when_the_command_has_ended() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.file("script"),
        "$D exec job -- sh -c 'echo started; read line'\nread line; echo got $line\n",
    )
    .unwrap();
    let mut screen = Screen::open(&sandbox);
    screen.enter("sh script");
    screen.expect("started");
    screen.press("for the command\n");
    screen.press("for the script\n");
    screen.expect("got for the script");
    screen.expect_prompt_after(0);
}

#[test]
fn an_interactive_shell_runs_under_a_lock() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter("PS1='ins''ide>' $D exec job -- bash --norc --noprofile -i");
    screen.expect("inside>");
    screen.enter(r#"sh -c 'echo sleep""ing $$; exec sleep 1000'"#);
    let inner = screen.number_after("sleeping ");
    screen.press(CTRL_Z);
    screen.expect("Stopped");
    screen.expect("inside>");
    screen.enter("fg");
    until("the program goes on", || !is_stopped(inner));
    screen.press(CTRL_C);
    screen.expect("inside>");
    screen.enter("exit 3");
    screen.expect_prompt_after(3);
    screen.enter("cat");
    screen.press("still reading\n");
    screen.expect("still reading");
    screen.press(CTRL_D);
    screen.expect_prompt_after(0);
}

#[test]
fn a_stopped_command_ends_when_its_lock_was_lost_meanwhile() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"$D exec job -- sh -c 'echo start""ed $$; exec sleep 1000'"#);
    let child = screen.number_after("started ");
    screen.press(CTRL_Z);
    screen.expect("Stopped");
    screen.expect(PROMPT);
    assert!(sandbox.run(["break", "--yes", "job"]).status.success());
    screen.enter("fg");
    screen.expect("was lost");
    screen.expect_prompt_after(76);
    assert!(!lives(child));
}

#[test]
fn ctrl_z_does_not_keep_a_command_from_being_killed_after_a_loss() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    let command = r#"trap "" TERM; echo start""ed $$; exec sleep 1000"#;
    screen.enter(&format!("$D exec --grace 3s job -- sh -c '{command}'"));
    let child = screen.number_after("started ");
    assert!(sandbox.run(["break", "--yes", "job"]).status.success());
    screen.expect("gets SIGTERM");
    screen.press(CTRL_Z);
    screen.expect("gets SIGKILL");
    screen.expect_prompt_after(76);
    assert!(!lives(child));
}

/// A lease expires while the job is stopped, and another client has the lock then.
#[test]
#[cfg(target_os = "linux")]
fn with_a_lease_ctrl_z_stops_what_has_left_the_group_or_does_not_listen_and_fg_continues_it() {
    let sandbox = Sandbox::with("&max_hold=1h");
    let mut screen = Screen::open(&sandbox);
    let deaf = r#"trap "" TSTP; mkfifo pipe; echo $$ > deaf; read line < pipe"#;
    std::fs::write(sandbox.file("script"), deaf).unwrap();
    let command = r#"setsid sleep 1000 & echo away $!; sh script & echo start""ed $$; read line"#;
    screen.enter(&format!("$D exec job -- sh -c '{command}'"));
    let away = screen.number_after("away ");
    let child = screen.number_after("started ");
    until_file_has(&sandbox.file("deaf"), "\n");
    let deaf = std::fs::read_to_string(sandbox.file("deaf")).unwrap();
    let deaf = Pid::from_raw(deaf.trim().parse().unwrap());
    screen.press(CTRL_Z);
    screen.expect("Stopped");
    screen.expect(PROMPT);
    for pid in [away, deaf, child] {
        until("it stops", || is_stopped(pid));
    }
    screen.enter("fg");
    for pid in [away, deaf, child] {
        until("it goes on", || !is_stopped(pid));
    }
    screen.press("done\n");
    screen.expect_prompt_after(0);
    for pid in [away, deaf] {
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    }
}

#[test]
fn a_waiter_says_who_holds_the_lock_and_ctrl_c_ends_the_wait() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("job");
    let mut screen = Screen::open(&sandbox);
    screen.enter("for i in 1 2 3; do $D exec job -- echo ra''n; done");
    screen.expect(&format!("waiting for lock \"job\", held by pid {} on ", holder.pid()));
    screen.expect(" since ");
    screen.expect(" ago)");
    screen.press(CTRL_C);
    let shown = screen.expect(PROMPT);
    assert!(!shown.contains("waiting") && !shown.contains("ran"), "{shown}");
    assert_eq!(sandbox.status("job")["waiters"].as_array().unwrap().len(), 0);
    screen.enter("$D exec job -- true");
    screen.expect("waiting");
    screen.press(CTRL_C);
    screen.expect_prompt_after(130);
}

#[test]
fn hold_ends_with_ctrl_d() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter("$D hold job");
    screen.expect("holding lock \"job\"");
    assert_eq!(sandbox.status("job")["held"], true);
    screen.press(CTRL_D);
    screen.expect_prompt_after(0);
    assert_eq!(sandbox.status("job")["held"], false);
}

#[test]
fn hold_in_the_background_keeps_the_lock_and_fg_brings_it_back() {
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter("$D hold job &");
    screen.expect("holding lock \"job\"");
    screen.enter("echo typed by som''eone else");
    screen.expect("typed by someone else");
    let holder = &sandbox.status("job")["holders"][0]["pid"];
    let holder = Pid::from_raw(i32::try_from(holder.as_i64().unwrap()).unwrap());
    assert!(!is_stopped(holder));
    screen.enter("fg");
    screen.expect("hold job");
    screen.press(CTRL_D);
    screen.expect_prompt_after(0);
    assert_eq!(sandbox.status("job")["held"], false);
}

#[test]
fn break_shows_the_holder_and_asks() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("job");
    let mut screen = Screen::open(&sandbox);
    screen.enter("$D break job");
    screen.expect(&format!("lock \"job\" is held by pid {}", holder.pid()));
    screen.expect("[y/N]");
    screen.enter("");
    screen.expect("left alone");
    screen.expect_prompt_after(75);
    assert!(holder.runs());
    screen.enter("$D break job");
    screen.expect("[y/N]");
    screen.enter("y");
    screen.expect_prompt_after(0);
    assert_eq!(holder.code(), 76);
}
