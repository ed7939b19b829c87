//! The suite against the memory backend with leases: the holder finds a loss out by itself.
#[path = "harnesses/memory.rs"]
mod memory;

conformance_tests::conformance_suite!(memory::WithLease);
