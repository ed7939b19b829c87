//! Encodes texts as parts of URLs.

use std::fmt::Write as _;

/// Encodes a path, or the value of an option.
pub(super) fn encoded(text: &str) -> String {
    encoded_but(text, b"-_.~/")
}

/// Encodes a name or a password, which a slash would end.
pub(super) fn encoded_login(text: &str) -> String {
    encoded_but(text, b"-_.~")
}

fn encoded_but(text: &str, harmless: &[u8]) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || harmless.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
