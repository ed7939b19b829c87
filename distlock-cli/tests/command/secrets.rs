//! Secrets are not shown.

use crate::support::{Sandbox, bare, code_of};

const SECRET: &str = "canary-7391";

#[test]
fn a_url_with_a_secret_is_not_passed_on() {
    let sandbox = Sandbox::new();
    let show = ["exec", "--url", &sandbox.url(), "job", "--", "sh", "-c", "echo ${DISTLOCK_URL-none}"];
    for (url, seen) in [
        (format!("redis://user:{SECRET}@cache/"), "none"),
        (format!("redis://cache/?password={SECRET}"), "none"),
        (format!("not a url {SECRET}"), "none"),
        ("redis://cache/".to_owned(), "redis://cache/"),
    ] {
        let output = bare().env("DISTLOCK_URL", &url).args(show).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{seen}\n"), "{url}");
    }
}

#[test]
fn no_message_shows_a_secret() {
    for url in [
        format!("gopher://user:{SECRET}@cache/"),
        format!("file://user:{SECRET}@cache/"),
        format!("file://{SECRET}@/tmp/x"),
        format!("file:/tmp/x?password={SECRET}"),
        format!("no scheme {SECRET}"),
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
