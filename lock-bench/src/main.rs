//! Measures distlock beside raw commands and other lock crates.

fn main() {}
