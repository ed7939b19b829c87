//! The crate `distributed-lock-postgres` 0.2, in a program of its own.

use std::sync::Arc;

use crate::contender::{Connecting, Program, Target};
use crate::failure::Outcome;
use crate::peer_program::Source;

pub(super) const WAITING: &str = "at the server, on a connection of its own";

static SOURCE: Source = Source::new("distributed-lock-postgres");

pub(super) fn start(target: Target) -> Connecting<Arc<dyn Program>> {
    Box::pin(async move { SOURCE.start(url(&target)?).await })
}

/// Returns the URL in the form of that crate, which does not know the options of distlock.
fn url(target: &Target) -> Outcome<String> {
    // This refuses what cannot be measured.
    super::connection::options(target)?;
    let place = target.url.split('?').next().unwrap_or(&target.url);
    Ok(format!("{place}?sslmode=disable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crate_gets_no_options_of_distlock() {
        let target = Target {
            url: "postgres://locks:secret@127.0.0.1:5433/locks?tls=off".to_owned(),
            ..Target::default()
        };
        assert_eq!(url(&target).unwrap(), "postgres://locks:secret@127.0.0.1:5433/locks?sslmode=disable");
    }
}
