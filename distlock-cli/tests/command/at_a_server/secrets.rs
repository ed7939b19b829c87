//! A password reaches the server and appears nowhere else.

use std::fmt::Write as _;

use super::{Server, with_option};
use crate::support::{Running, Sandbox, bare, code_of};

/// The password in all tests.
pub(crate) const SECRET: &str = "canary-5813";

/// What the system shows others about a process, and the process about itself.
fn told_about(pid: i32) -> String {
    let mut told = String::new();
    for file in ["cmdline", "environ"] {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
        let _ = writeln!(told, "{}", String::from_utf8_lossy(&bytes));
    }
    told
}

/// The URL with the password, and one that names a file with the password instead.
pub(crate) fn with_and_without(url: String, sandbox: &Sandbox) -> [String; 2] {
    let file = sandbox.file("password");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    // Without a user, nothing is left before the host.
    let bare = url.replace(&format!("//:{SECRET}@"), "//").replace(&format!(":{SECRET}"), "");
    let of_file = with_option(&bare, &format!("password_file={}", file.display()));
    assert!(url.contains(SECRET) && !of_file.contains(SECRET));
    [url, of_file]
}

/// Neither the command under the lock nor other users that inspect its process or at distlock's see the password.
pub(crate) fn processes_do_not_show_it(urls: &[String]) {
    for url in urls {
        let mut job = bare();
        job.env("DISTLOCK_URL", url).args([
            "exec",
            "-vv",
            "job",
            "--",
            "sh",
            "-c",
            "echo $$; env; read line",
        ]);
        let mut job = Running::start(job.stdin(std::process::Stdio::piped()));
        let child = job.pid_line();
        let told = told_about(child.as_raw());
        assert!(told.contains("DISTLOCK_NAME=job") && !told.contains(SECRET), "{told}");
        assert!(!told.contains("DISTLOCK_URL") && told.contains("DISTLOCK_WITHHELD="), "{told}");
        let arguments = std::fs::read(format!("/proc/{}/cmdline", job.pid())).unwrap();
        assert!(!String::from_utf8_lossy(&arguments).contains(SECRET));
        job.close_input();
        let shown = job.rest();
        assert!(shown.contains("DISTLOCK_TOKEN=") && !shown.contains(SECRET), "{shown}");
        assert_ne!(job.code(), 69);
        let log: Vec<String> = job.error_lines();
        assert!(log.iter().any(|line| line.contains("granted")), "{log:?}");
        assert!(!log.iter().any(|line| line.contains(SECRET)), "{log:?}");
    }
}

/// Neither messages nor logs contain it, while the server runs and when it is gone. `senseless` is an invalid option.
pub(crate) fn nothing_that_is_said_has_it(server: &impl Server, urls: [String; 2], senseless: &str) {
    let [url, of_file] = urls;
    let wrong = url.replace(SECRET, &format!("{SECRET}-wrong"));
    let broken = with_option(&url, senseless);
    let unknown = with_option(&url, &format!("frobnicate={SECRET}"));
    let check = |connect_timeout: &str, codes: &[i32]| {
        for url in [&url, &of_file, &wrong, &broken, &unknown] {
            for arguments in [
                ["exec", "-vv", "job", "--", "true"].as_slice(),
                &["exec", "--json", "job", "--", "true"],
                &["hold", "-vv", "job"],
                &["status", "-vv", "--json", "job"],
                &["break", "-vv", "--yes", "job"],
                &["exec", "--frobnicate", "job", "--", "true"],
            ] {
                let url = with_option(url, &format!("connect_timeout={connect_timeout}"));
                let output = bare().env("DISTLOCK_URL", &url).args(arguments).output().unwrap();
                let shown = format!("{output:?}");
                assert!(!shown.contains(SECRET), "{url} {arguments:?}: {shown}");
                assert!(codes.contains(&code_of(output.status)), "{arguments:?}: {shown}");
            }
        }
    };
    check("60s", &[0, 64, 77]);
    server.kill();
    check("0s", &[64, 69]);
}
