//! The list of cases, in groups. Each case forces what its name says, and waits for events rather than for time.
//!
//! Every case ends with a look for what it left behind, so that none of them needs to say so.

mod breaking;
mod cancellation;
mod closing;
pub(crate) mod exclusion;
mod guards;
mod inspection;
mod listener;
mod loss;
mod order;
mod outages;
mod owners;
mod processes;
mod release;
mod tokens;
mod waiting;

use std::sync::LazyLock;

use crate::case::Case;

/// Every case that a backend has to pass or to be unable to run, for a reason.
pub fn all() -> &'static [Case] {
    static ALL: LazyLock<Vec<Case>> = LazyLock::new(|| {
        [
            exclusion::CASES,
            order::CASES,
            waiting::CASES,
            owners::CASES,
            guards::CASES,
            release::CASES,
            closing::CASES,
            tokens::CASES,
            inspection::CASES,
            breaking::CASES,
            loss::CASES,
            listener::CASES,
            outages::CASES,
            cancellation::CASES,
            processes::CASES,
        ]
        .concat()
    });
    &ALL
}
