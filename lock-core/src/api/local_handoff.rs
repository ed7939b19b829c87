//! The option of a client that its tasks pass a lock on without the server.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::spi::LocalHandoff;
use crate::types::capabilities::{Capabilities, Fairness, Reserving};
use crate::types::error::{ErrorKind, LockError, Operation};

/// Returns the setting, unless it changes nothing.
pub(super) fn of(sections: u32, time: Duration) -> Option<LocalHandoff> {
    NonZeroU32::new(sections)
        .filter(|sections| sections.get() > 1)
        .map(|sections| LocalHandoff { sections, time })
}

/// Refuses what the backend cannot do.
pub(super) fn check(handoff: LocalHandoff, capabilities: &Capabilities) -> Result<(), LockError> {
    let backend = capabilities.backend;
    let reason = match capabilities.reserving {
        Reserving::AtMost(most) if handoff.sections <= most => return Ok(()),
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

/// Returns the order that is left.
pub(super) fn fairness(of_backend: Fairness) -> Fairness {
    match of_backend {
        Fairness::Unordered => Fairness::Unordered,
        Fairness::Fifo | Fairness::InBatches => Fairness::InBatches,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::capabilities::Reach;
    use crate::types::name::{CharacterSet, NameRules};

    #[test]
    fn a_backend_that_reserves_too_few_tokens_refuses_the_option_and_says_why() {
        let names = NameRules::new(CharacterSet::ANY, 200);
        let of_none = Capabilities::new("shelf", Reach::Network, names);
        let handoff = of(100, Duration::from_millis(10)).unwrap();
        for (most, word) in [
            (Reserving::Unsupported, "cannot reserve"),
            (Reserving::Refused("they are its clock"), "follow: they are its clock"),
            (reserving(99), "at most 99"),
        ] {
            let error = check(handoff, &of_none.clone().with_reserving(most)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(word), "{error}");
        }
        check(handoff, &of_none.with_reserving(reserving(100))).unwrap();
    }

    fn reserving(most: u32) -> Reserving {
        Reserving::AtMost(NonZeroU32::new(most).unwrap())
    }
}
