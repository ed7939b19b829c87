//! A password gets to the server and nowhere else.

use std::fmt::Write as _;

use conformance_tests::servers::ZooKeeperOptions;

use super::server::Server;
use crate::support::{Place, Running, bare, code_of};

const SECRET: &str = "canary-5813";

/// What the system tells others about a process, and the process about itself.
fn told_about(pid: i32) -> String {
    let mut told = String::new();
    for file in ["cmdline", "environ"] {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
        let _ = writeln!(told, "{}", String::from_utf8_lossy(&bytes));
    }
    told
}

/// The server, and the URLs by which it lets one in: the first has the password in it, the second names a file.
fn guarded(place: &Place, options: ZooKeeperOptions) -> Option<(Server, [String; 2])> {
    let server = Server::start_with(options)?;
    let file = place.file("password");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let of_url = server.url();
    let separator = if of_url.contains('?') { '&' } else { '?' };
    let of_file =
        format!("{}{separator}password_file={}", of_url.replace(&format!(":{SECRET}"), ""), file.display());
    assert!(of_url.contains(SECRET) && !of_file.contains(SECRET));
    Some((server, [of_url, of_file]))
}

#[test]
fn the_command_and_those_who_look_at_it_do_not_see_it() {
    let place = Place::new();
    let options = ZooKeeperOptions::new().digest_user("app", SECRET);
    let Some((_server, urls)) = guarded(&place, options) else { return };
    for url in urls {
        let mut job = bare();
        job.env("DISTLOCK_URL", &url).args([
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
        assert!(!told.contains("DISTLOCK_URL"), "{told}");
        let arguments = std::fs::read(format!("/proc/{}/cmdline", job.pid())).unwrap();
        assert!(!String::from_utf8_lossy(&arguments).contains(SECRET));
        job.close_input();
        let shown = job.rest();
        assert!(shown.contains("DISTLOCK_TOKEN=") && !shown.contains(SECRET), "{shown}");
        assert_ne!(job.code(), 69);
        let log: Vec<String> = job.error_lines();
        assert!(log.iter().any(|line| line.contains("acquired")), "{log:?}");
        assert!(!log.iter().any(|line| line.contains(SECRET)), "{log:?}");
    }
}

#[test]
fn nothing_that_is_said_has_it() {
    for options in
        [ZooKeeperOptions::new().digest_user("app", SECRET), ZooKeeperOptions::new().sasl_user("app", SECRET)]
    {
        let place = Place::new();
        let Some((server, [url, of_file])) = guarded(&place, options) else { return };
        let wrong = url.replace(SECRET, &format!("{SECRET}-wrong"));
        let separator = if url.contains('?') { '&' } else { '?' };
        let broken = format!("{url}{separator}session_timeout=soon");
        let unknown = format!("{url}{separator}frobnicate={SECRET}");
        let check = |codes: &[i32]| {
            for url in [&url, &of_file, &wrong, &broken, &unknown] {
                for arguments in [
                    ["exec", "-vv", "job", "--", "true"].as_slice(),
                    &["exec", "--json", "job", "--", "true"],
                    &["status", "-vv", "--json", "job"],
                    &["break", "-vv", "--yes", "job"],
                    &["exec", "--frobnicate", "job", "--", "true"],
                ] {
                    let output = bare().env("DISTLOCK_URL", url).args(arguments).output().unwrap();
                    let shown = format!("{output:?}");
                    assert!(!shown.contains(SECRET), "{url} {arguments:?}: {shown}");
                    assert!(codes.contains(&code_of(output.status)), "{arguments:?}: {shown}");
                }
            }
        };
        check(&[0, 64, 77]);
        server.kill();
        check(&[64, 69]);
    }
}
