//! Parts of URLs.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What is encoded in a login, where a slash would end it.
const LOGIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const VALUE: &AsciiSet = &LOGIN.remove(b'/');

/// Returns the part before the host.
pub(super) fn login(user: &str, password: &str) -> String {
    format!("{}:{}@", utf8_percent_encode(user, LOGIN), utf8_percent_encode(password, LOGIN))
}

/// Adds options to a URL that has none.
pub(super) fn with_options<'a>(
    mut url: String,
    options: impl IntoIterator<Item = (&'a str, String)>,
) -> String {
    for (number, (name, value)) in options.into_iter().enumerate() {
        url.push(if number == 0 { '?' } else { '&' });
        url.extend([name, "="].into_iter().chain(utf8_percent_encode(&value, VALUE)));
    }
    url
}
