//! The option of a client that its tasks pass a lock on without the server.

use crate::spi::LocalHandoff;
use crate::types::{Capabilities, ErrorKind, Fairness, LockError, Operation, Reserving};

/// What a client can do with this setting. Refuses what the backend cannot do.
pub(super) fn apply(handoff: LocalHandoff, capabilities: &mut Capabilities) -> Result<(), LockError> {
    let backend = capabilities.backend;
    let reason = match capabilities.reserving {
        Reserving::AtMost(most) if handoff.sections <= most => {
            if capabilities.fairness == Fairness::Fifo {
                capabilities.fairness = Fairness::InBatches;
            }
            return Ok(());
        }
        Reserving::AtMost(most) => {
            format!("the backend {backend:?} reserves at most {most} fencing tokens in one request")
        }
        Reserving::Unsupported => {
            format!("the backend {backend:?} cannot reserve fencing tokens for holds that follow")
        }
        Reserving::Refused(reason) => {
            format!("the backend {backend:?} cannot reserve fencing tokens for holds that follow: {reason}")
        }
    };
    Err(LockError::new(ErrorKind::Unsupported, Operation::Configure)
        .because(reason)
        .remedy("leave the option local_handoff out, or ask for fewer"))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::*;
    use crate::types::{CharacterSet, NameRules, Reach};

    #[test]
    fn a_backend_that_reserves_too_few_tokens_refuses_the_option_and_says_why() {
        let names = NameRules::new(CharacterSet::ANY, 200);
        let of_none = Capabilities::new("shelf", Reach::Network, names);
        let sections = NonZeroU32::new(100).unwrap();
        let handoff = LocalHandoff { sections, time: Duration::from_millis(10) };
        for (most, word) in [
            (Reserving::Unsupported, "cannot reserve"),
            (Reserving::Refused("they are its clock"), "follow: they are its clock"),
            (reserving(99), "at most 99"),
        ] {
            let error = apply(handoff, &mut of_none.clone().with_reserving(most)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(word), "{error}");
        }
        apply(handoff, &mut of_none.with_reserving(reserving(100))).unwrap();
    }

    fn reserving(most: u32) -> Reserving {
        Reserving::AtMost(NonZeroU32::new(most).unwrap())
    }
}
