//! The attribute `#[locked]` of distlock. Use it through `distlock` and its feature `macros`.
#![forbid(unsafe_code)]

mod arguments;
mod expansion;
mod function;
mod name;

use proc_macro::TokenStream;
use quote::quote;

use crate::arguments::Arguments;
use crate::function::Function;

/// Runs the body of a function under a distributed lock. The crate `distlock`, which exports it, documents it.
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let refused = |error: syn::Error| {
        // The function stays as it is, so that its callers bring no errors of their own.
        let error = error.into_compile_error();
        let mut refused = TokenStream::from(quote!(#error #[allow(unused_variables)]));
        refused.extend(item.clone());
        refused
    };
    expanded(arguments.into(), item.clone().into()).map_or_else(refused, TokenStream::from)
}

fn expanded(
    arguments: proc_macro2::TokenStream,
    item: proc_macro2::TokenStream,
) -> syn::Result<proc_macro2::TokenStream> {
    let function: Function = syn::parse2(item)?;
    let arguments: Arguments = syn::parse2(arguments)?;
    expansion::expand(&arguments, &function)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    /// What is refused, with the words of the error and the text that it points at.
    fn refused(arguments: &str, function: &str) -> (String, String) {
        let error = super::expanded(arguments.parse().unwrap(), function.parse().unwrap()).unwrap_err();
        (error.to_string(), error.span().source_text().unwrap_or_default())
    }

    const FUNCTION: &str = "async fn f(id: u32) -> Result<u32, LockError> { Ok(id) }";

    #[test]
    fn arguments_that_mean_nothing_are_refused_where_they_stand() {
        for (arguments, words, points_at) in [
            (r#""a", client = locks, hold = id"#, "has an argument `id`: give the hold another name", "id"),
            (r#""a", client = locks, mode = shared"#, "`mode` is `exclusive`, `read` or `write`", "shared"),
            ("lock = lock, mode = read", "`lock` is a side of a lock already: leave `mode` out", "mode"),
            (r#""", client = locks"#, "the name of a lock is not empty", r#""""#),
            (r#""a/{id", client = locks"#, "a `{` has no `}`; write `{{` for a brace", r#""a/{id""#),
            (r#""a/id}", client = locks"#, "a `}` has no `{`; write `}}` for a brace", r#""a/id}""#),
            (r#""a/{}", client = locks"#, "there is no expression in `{}`", r#""a/{}""#),
            (r#""a/{id:04}", client = locks"#, "`{id:04}` is not an expression", r#""a/{id:04}""#),
            (r#""a", client = c, wait = "0s", on_busy = ignore"#, "`on_busy` is `error` or `skip`", "ignore"),
            (r#""a", client = c, on_busy = skip"#, "without `wait` the function waits for ever", "on_busy"),
            (r#""a", client = c, waits = "2s""#, "there is no option `waits`; the options are", "waits"),
            (r#""a", client = c, wait = "2s", wait = "3s""#, "`wait` is given twice", "wait"),
            (r#""a", client = c, "b""#, "expected an option: client, lock, wait", r#""b""#),
            ("42, client = c", "the name of a lock is a string, such as \"orders/{id}\"", "42"),
            (r#""a" client = c"#, "expected `,`", "client"),
            (r#""a", client = c, wait = "2 fortnights""#, "unknown time unit", r#""2 fortnights""#),
            (r#""a", client = c, wait = 2"#, "a length of time is a string with its unit", "2"),
            (r#""a", client = c, wait = "2""#, "time unit needed", r#""2""#),
            ("client = c, lock = lock", "leave `client` or `lock` out", "lock"),
            (r#""a", lock = lock"#, "`lock` has a name already: leave this one out", r#""a""#),
            (r#""a""#, "where does the lock come from?", ""),
        ] {
            let (error, pointed_at) = refused(arguments, FUNCTION);
            assert!(error.contains(words), "{arguments}: {error}");
            assert_eq!(pointed_at, points_at, "{arguments}");
        }
    }

    #[test]
    fn what_cannot_run_under_a_lock_is_refused_where_it_says_so() {
        for (item, words, points_at) in [
            ("struct Order;", "#[locked] is for functions: expected `fn`", "struct"),
            ("async fn f() -> Result<(), E>;", "this function has no body to run under a lock", ";"),
            ("const fn f() -> Result<(), E> { Ok(()) }", "a const function cannot acquire a lock", "const"),
            ("async fn f() {}", "returns a `Result<T, E>`, where `E: From<distlock::LockError>`", "f"),
        ] {
            let (error, pointed_at) = refused(r#""a", client = c"#, item);
            assert!(error.contains(words), "{item}: {error}");
            assert_eq!(pointed_at, points_at, "{item}");
        }
        let (error, _) = refused("client = self.c", "async fn f(&self) -> Result<(), E> { Ok(()) }");
        assert!(error.contains("a method needs a name for its lock"), "{error}");
    }
}
