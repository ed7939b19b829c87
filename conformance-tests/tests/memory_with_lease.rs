//! Runs the suite against the memory backend with leases and late replies, as from a server on a network: the holder
//! notices a loss by itself.
#[path = "harnesses/memory.rs"]
mod memory;

conformance_tests::conformance_suite!(memory::WithLease);
