//! The examples, with their tests; except `service`, whose own program gets a SIGTERM that would end `leader` too, and `traces`, which
//! decides where the spans of its program go.
#![allow(dead_code, reason = "a test does not call an example's main function")]

#[path = "../../examples/blocking.rs"]
mod blocking;
#[path = "../../examples/fenced_table.rs"]
mod fenced_table;
#[path = "../../examples/leader.rs"]
mod leader;
#[path = "../../examples/migration.rs"]
mod migration;
#[path = "../../examples/periodic_job.rs"]
mod periodic_job;
#[path = "../../examples/same_program/main.rs"]
mod same_program;
#[path = "../../examples/web_service.rs"]
mod web_service;
