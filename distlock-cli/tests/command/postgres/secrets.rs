//! A password reaches the server and appears nowhere else.

use test_servers::ServerOptions;

use super::server::Server;
use crate::at_a_server::secrets::{
    SECRET, nothing_that_is_said_has_it, processes_do_not_show_it, with_and_without,
};
use crate::support::Sandbox;

fn guarded() -> Option<Server> {
    Server::start_with(ServerOptions::new().user("app", SECRET, &[]))
}

#[test]
fn the_command_and_those_who_look_at_it_do_not_see_it() {
    let Some(server) = guarded() else { return };
    let sandbox = Sandbox::new();
    processes_do_not_show_it(&with_and_without(server.url(), &sandbox));
}

#[test]
fn messages_and_logs_do_not_have_it() {
    let Some(server) = guarded() else { return };
    let sandbox = Sandbox::new();
    nothing_that_is_said_has_it(&server, with_and_without(server.url(), &sandbox), "lease=soon");
}
