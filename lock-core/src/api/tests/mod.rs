//! Tests that look inside the core, and the server that they use.

mod costs;
pub(super) mod fake;
