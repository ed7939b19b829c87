//! A password reaches the server and appears nowhere else.

use test_servers::{MySqlFlavour, ServerOptions};

use super::server::{Server, Tokens};
use crate::at_a_server::secrets::{
    SECRET, nothing_that_is_said_has_it, processes_do_not_show_it, with_and_without,
};
use crate::support::Sandbox;

fn guarded(flavour: MySqlFlavour, tokens: Tokens) -> Option<Server> {
    let options =
        ServerOptions::new().flavour(flavour).database("locks").user("app", SECRET, &["ALL ON locks.*"]);
    Server::start_with(flavour, tokens, options)
}

#[test]
fn the_command_and_those_who_look_at_it_do_not_see_it() {
    for flavour in MySqlFlavour::ALL {
        let Some(server) = guarded(flavour, Tokens::Minted) else { continue };
        let sandbox = Sandbox::new();
        processes_do_not_show_it(&with_and_without(server.url(), &sandbox));
    }
}

#[test]
fn messages_and_logs_do_not_have_it() {
    for (flavour, tokens) in
        [(MySqlFlavour::MariaDb, Tokens::Written), (MySqlFlavour::MySql57, Tokens::Minted)]
    {
        let Some(server) = guarded(flavour, tokens) else { continue };
        let sandbox = Sandbox::new();
        nothing_that_is_said_has_it(&server, with_and_without(server.url(), &sandbox), "lease=soon");
    }
}
