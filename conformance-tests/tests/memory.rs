//! Runs the suite against the memory backend without leases: the server reports a loss immediately.
#[path = "harnesses/memory.rs"]
mod memory;

conformance_tests::conformance_suite!(memory::WithoutLease);
