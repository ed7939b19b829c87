//! Parts of URLs.

use std::fmt::Write as _;

/// Returns the part before the host.
pub(super) fn login(user: &str, password: &str) -> String {
    // A slash would end them.
    let encoded = |text| encoded_but(text, b"-_.~");
    format!("{}:{}@", encoded(user), encoded(password))
}

/// Adds options to a URL that has none.
pub(super) fn with_options<'a>(
    mut url: String,
    options: impl IntoIterator<Item = (&'a str, String)>,
) -> String {
    let mut separator = '?';
    for (name, value) in options {
        // Writing to a string cannot fail.
        let _ = write!(url, "{separator}{name}={}", encoded_but(&value, b"-_.~/"));
        separator = '&';
    }
    url
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
