//! `distlock forget`: makes the server forget that a slot has run, or a pause.

use std::time::Duration;

use serde_json::json;

use crate::arguments::{Common, Forget};
use crate::connection::{self, Address};
use crate::event::with_head;
use crate::exit::{self, Ending, Failure};
use crate::report::write_output;

/// Asks the backend, and prints whether there was something to forget.
pub(crate) async fn run(common: &Common, Forget { name, slot }: &Forget) -> Result<Ending, Failure> {
    let locks = Address::find(common)?.open(Duration::ZERO).await?;
    let was_remembered = locks.forget(name, slot).await;
    connection::close(&locks).await;
    let was_remembered = was_remembered?;
    let what = if slot.is_empty() { "the pause".to_owned() } else { format!("slot {slot:?}") };
    let line = match (common.json, was_remembered) {
        (true, _) => {
            let details = json!({ "slot": slot, "was_remembered": was_remembered });
            with_head(&[("event", "forgotten"), ("name", name)], details).to_string()
        }
        (false, true) => format!("{what} of {name:?} is forgotten"),
        (false, false) => format!("{what} of {name:?} was not remembered"),
    };
    if common.json || !common.quiet {
        write_output(&(line + "\n"))?;
    }
    Ok(Ending::Code(exit::SUCCESS))
}
