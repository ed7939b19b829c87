//! The list of cases, in groups. Each case forces the situation that its name describes, and waits for events rather
//! than for time.
//!
//! After every case the suite checks that nothing is left behind, so the cases need not do it.

mod bodies;
mod breaking;
mod busy;
mod cancellation;
mod clients;
mod closing;
mod connecting;
mod election;
pub(crate) mod exclusion;
mod guards;
mod inspection;
mod killed;
mod listener;
mod local_handoff;
mod loss;
mod once;
mod options;
mod order;
mod outages;
mod owners;
mod processes;
mod release;
mod remembering;
mod restarts;
mod semaphores;
mod several;
mod sharing;
mod silence;
mod tokens;
mod waiting;

use std::sync::LazyLock;

use crate::case::Case;

/// All cases. A backend has to pass each of them, or be unable to run it for a stated reason.
pub fn all() -> &'static [Case] {
    static ALL: LazyLock<Vec<Case>> = LazyLock::new(|| {
        [
            exclusion::CASES,
            order::CASES,
            waiting::CASES,
            busy::CASES,
            owners::CASES,
            bodies::CASES,
            guards::CASES,
            release::CASES,
            clients::CASES,
            options::CASES,
            once::CASES,
            closing::CASES,
            tokens::CASES,
            inspection::CASES,
            breaking::CASES,
            loss::CASES,
            listener::CASES,
            connecting::CASES,
            outages::CASES,
            restarts::CASES,
            silence::CASES,
            cancellation::CASES,
            local_handoff::CASES,
            several::CASES,
            sharing::CASES,
            semaphores::CASES,
            election::CASES,
            remembering::CASES,
            processes::CASES,
            killed::CASES,
        ]
        .concat()
    });
    &ALL
}
