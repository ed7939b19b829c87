//! The suite against the memory backend with leases and replies that take their time, as from a server across a network: the
//! holder finds a loss out by itself.
#[path = "harnesses/memory.rs"]
mod memory;

conformance_tests::conformance_suite!(memory::WithLease);
