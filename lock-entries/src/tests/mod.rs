//! The engine over a store in memory, whose requests are delayed and whose answers are lost; and the rules of the order.

mod order;
mod rules;
mod store;
mod walk;

use std::sync::Arc;

use lock_core::{AcquireRequest, AttemptId, CharacterSet, HolderInfo, LockName, Mode, NameRules, Wait};

const NAMES: NameRules = NameRules::new(CharacterSet::PORTABLE, 200);

fn request(id: u128, mode: Mode, wait: Wait) -> AcquireRequest {
    let name = LockName::new("room").unwrap();
    let physical = NAMES.apply(&name);
    let holder = Arc::new(HolderInfo::of_this_process());
    AcquireRequest::new(AttemptId::new(id), name, physical, wait, holder).with_mode(mode)
}
