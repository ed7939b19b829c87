//! The suite against the memory backend without leases: a loss is told by the server at once.
#[path = "harnesses/memory.rs"]
mod memory;

conformance_tests::conformance_suite!(memory::WithoutLease);
