//! The comments of statements. Each statement has one that names its purpose, for operators who inspect the server and for tests.

use std::fmt::Write as _;

use lock_core::Operation;

/// Returns bytes as the hexadecimal digits of a literal, which need no escape.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut digits, byte| {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// What a comment begins with.
pub const COMMENT: &str = "/*distlock ";

const OPERATIONS: [(Operation, &str); 11] = [
    (Operation::Connect, "connect"),
    (Operation::Acquire, "acquire"),
    (Operation::Cancel, "cancel"),
    (Operation::Renew, "renew"),
    (Operation::Release, "release"),
    (Operation::Downgrade, "downgrade"),
    (Operation::Inspect, "inspect"),
    (Operation::Break, "break"),
    (Operation::Ping, "ping"),
    (Operation::Describe, "describe"),
    (Operation::Remember, "remember"),
];

/// Returns the operation that a statement is for, by its text; `None` for another program's statement.
pub fn operation_of(statement: &str) -> Option<Operation> {
    let (_, rest) = statement.split_once(COMMENT)?;
    let word = rest.split(|character: char| !character.is_ascii_lowercase()).next()?;
    OPERATIONS.iter().find(|(_, operation_word)| *operation_word == word).map(|(operation, _)| *operation)
}

/// Returns the word for an operation.
pub fn word(operation: Operation) -> &'static str {
    OPERATIONS.iter().find(|(known, _)| *known == operation).map_or("other", |(_, word)| *word)
}

/// Returns the comment of a statement for this operation.
pub fn comment(operation: Operation) -> String {
    format!("{COMMENT}{}*/", word(operation))
}
