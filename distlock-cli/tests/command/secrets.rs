//! Secrets are not shown.

use crate::support::{Sandbox, bare, code_of};

const SECRET: &str = "canary-7391";

#[test]
fn only_the_url_of_the_lock_is_passed_on_and_only_from_the_variable() {
    let sandbox = Sandbox::new();
    let ours = sandbox.url();
    let show = ["job", "--", "sh", "-c", "echo ${DISTLOCK_URL-none}"];
    let others =
        [format!("redis://user:{SECRET}@cache/"), format!("not a url {SECRET}"), "redis://cache/".into()];
    for url in others.iter().chain([&ours]) {
        for option in [ours.as_str(), ""] {
            let output =
                bare().env("DISTLOCK_URL", url).args(["exec", "--url", option]).args(show).output().unwrap();
            assert_eq!(output.stdout, b"none\n", "{option} beside {url}: {output:?}");
        }
    }
    let output = bare().env("DISTLOCK_URL", &ours).arg("exec").args(show).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{ours}\n"));
}

/// Its own default would be the locks of this machine, which exclude none of those at the server.
#[test]
fn a_distlock_in_a_command_whose_url_was_withheld_is_refused() {
    let sandbox = Sandbox::new();
    let program = env!("CARGO_BIN_EXE_distlock");
    let script =
        format!("{program} exec part -- echo ran; echo code $?; {program} exec --url file: part -- echo ran");
    for (url, option) in
        [(format!("redis://user:{SECRET}@cache/"), sandbox.url()), (String::new(), sandbox.url())]
    {
        let nested = ["exec", "--url", &option, "job", "--", "sh", "-c", &script];
        let output = bare().env("DISTLOCK_URL", &url).args(nested).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(shown, "code 64\nran\n", "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("file:") && said.contains("DISTLOCK_URL") && !said.contains(SECRET), "{said}");
    }
    // With the default, and with a URL that is passed on, it is the same place.
    for url in ["", &sandbox.url()] {
        let output = bare()
            .env("DISTLOCK_URL", url)
            .args(["exec", "job", "--", "sh", "-c", &script])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ran\ncode 0\nran\n", "{output:?}");
    }
}

#[test]
fn a_url_can_be_required() {
    for (arguments, variable) in [(&["--require-url"][..], "0"), (&[], "1")] {
        let mut command = bare();
        command
            .env("DISTLOCK_REQUIRE_URL", variable)
            .args(arguments)
            .args(["exec", "job", "--", "echo", "ran"]);
        let output = command.output().unwrap();
        assert_eq!(code_of(output.status), 64, "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("DISTLOCK_URL"), "{output:?}");
        let output = command.env("DISTLOCK_URL", Sandbox::new().url()).output().unwrap();
        assert_eq!(code_of(output.status), 0, "{output:?}");
    }
}

#[test]
fn the_server_of_a_lock_is_named() {
    let sandbox = Sandbox::new();
    let output = bare().args(["exec", "-v", "--url", &sandbox.url(), "job", "--", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(" at file:"), "{said}");
}

#[test]
fn no_message_shows_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks").display().to_string();
    for url in [
        format!("gopher://user:{SECRET}@cache/"),
        format!("file://user:{SECRET}@cache/"),
        format!("file://{SECRET}@{path}"),
        format!("file:{path}?password={SECRET}"),
        format!("no scheme {SECRET}"),
        // Of a password that is not encoded, what comes before the first such character looks like a port.
        format!("redis://user:{SECRET}/x@127.0.0.1:1"),
        format!("redis://user:{SECRET}?x=y@127.0.0.1:1"),
        format!("mysql://user:{SECRET}?x=y@127.0.0.1:1"),
        format!("zookeeper://user:{SECRET}/x@127.0.0.1:1"),
        format!("zookeeper://user:{SECRET}?label=y@127.0.0.1:1"),
    ] {
        for arguments in [
            ["exec", "-vv", "job", "--", "true"].as_slice(),
            &["exec", "--json", "job", "--", "true"],
            &["status", "-vv", "job"],
            &["break", "--json", "job"],
            &["exec", "--frobnicate", "job", "--", "true"],
            &["--help"],
        ] {
            let output = bare().env("DISTLOCK_URL", &url).args(arguments).output().unwrap();
            let shown = format!("{output:?}");
            assert!(!shown.contains(SECRET), "{url} {arguments:?}: {shown}");
            assert!(matches!(code_of(output.status), 0 | 64), "{shown}");
        }
    }
}
