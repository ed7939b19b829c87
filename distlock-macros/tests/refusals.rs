//! What `#[locked]` refuses, and where the error points.
//!
//! `TRYBUILD=overwrite cargo test -p distlock-macros --test refusals` writes the expected output anew.

#[test]
fn errors_point_at_what_is_wrong() {
    trybuild::TestCases::new().compile_fail("tests/refusals/*.rs");
}
