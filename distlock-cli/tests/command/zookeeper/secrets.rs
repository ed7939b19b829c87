//! A password reaches the server and appears nowhere else.

use test_servers::ServerOptions;

use super::server::Server;
use crate::at_a_server::secrets::{
    SECRET, nothing_that_is_said_has_it, processes_do_not_show_it, with_and_without,
};
use crate::support::Sandbox;

#[test]
fn the_command_and_those_who_look_at_it_do_not_see_it() {
    let Some(server) = Server::start_with(ServerOptions::new().user("app", SECRET, &["digest"])) else {
        return;
    };
    let sandbox = Sandbox::new();
    processes_do_not_show_it(&with_and_without(server.url(), &sandbox));
}

#[test]
fn messages_and_logs_do_not_have_it() {
    for options in [
        ServerOptions::new().user("app", SECRET, &["digest"]),
        ServerOptions::new().user("app", SECRET, &["sasl"]),
    ] {
        let Some(server) = Server::start_with(options) else { return };
        let sandbox = Sandbox::new();
        nothing_that_is_said_has_it(
            &server,
            with_and_without(server.url(), &sandbox),
            "session_timeout=soon",
        );
    }
}
