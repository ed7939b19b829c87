//! The name of a lock, with expressions in braces.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{Error, Expr, LitStr, Result};

pub(crate) struct Name {
    /// The text as it is, or for `format!` if there are values.
    text: String,
    values: Vec<Expr>,
    span: Span,
}

impl Name {
    pub(crate) fn parse(literal: &LitStr) -> Result<Self> {
        let (text, span) = (literal.value(), literal.span());
        let wrong = |problem: &str| Error::new(span, problem);
        if text.is_empty() {
            return Err(wrong("the name of a lock is not empty"));
        }
        let (mut plain, mut format, mut values) = (String::new(), String::new(), Vec::new());
        let mut rest = text.as_str();
        while let Some(at) = rest.find(['{', '}']) {
            let (before, brace) = rest.split_at(at);
            plain.push_str(before);
            format.push_str(before);
            if let Some(after) = brace.strip_prefix("{{").or_else(|| brace.strip_prefix("}}")) {
                plain.push_str(&brace[..1]);
                format.push_str(&brace[..2]);
                rest = after;
            } else if let Some(after) = brace.strip_prefix('{') {
                let end = end_of_expression(after)
                    .ok_or_else(|| wrong("a `{` has no `}`; write `{{` for a brace"))?;
                values.push(expression(&after[..end], span)?);
                format.push_str("{}");
                rest = &after[end + 1..];
            } else {
                return Err(wrong("a `}` has no `{`; write `}}` for a brace"));
            }
        }
        plain.push_str(rest);
        format.push_str(rest);
        let text = if values.is_empty() { plain } else { format };
        Ok(Self { text, values, span })
    }

    /// Returns an expression that makes the name.
    pub(crate) fn made(&self) -> TokenStream {
        let (text, values) = (LitStr::new(&self.text, self.span), &self.values);
        if values.is_empty() {
            return quote!(#text);
        }
        let mixed = self.span.resolved_at(Span::mixed_site());
        quote_spanned!(mixed=> &::std::format!(#text, #(#values),*))
    }
}

fn expression(text: &str, span: Span) -> Result<Expr> {
    if text.trim().is_empty() {
        return Err(Error::new(span, "there is no expression in `{}`; write `{{}}` for braces"));
    }
    LitStr::new(text, span).parse().map_err(|error| {
        Error::new(
            span,
            format!(
                "`{{{text}}}` is not an expression: {error}. To format a value, write for example `{{format!(\"{{n:04}}\")}}`"
            ),
        )
    })
}

/// Returns the position of the brace that ends the expression at the beginning of `text`: one that is in no string, no
/// character and no block of the expression.
fn end_of_expression(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            '"' => {
                while let Some((_, inside)) = characters.next() {
                    match inside {
                        '\\' => drop(characters.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            '\'' => {
                let length = length_of_character(&text[at..]);
                while characters.next_if(|(next, _)| *next < at + length).is_some() {}
            }
            _ => {}
        }
    }
    None
}

/// Returns the length of the character literal at the beginning of `text`; that of its quote alone if it is a lifetime.
fn length_of_character(text: &str) -> usize {
    let inside = &text[1..];
    let length = if let Some(escaped) = inside.strip_prefix('\\') {
        escaped.find('\'').map(|end| end.max(1) + 1)
    } else {
        inside.chars().next().map(char::len_utf8).filter(|length| inside[*length..].starts_with('\''))
    };
    length.map_or(1, |length| length + 2)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn read(text: &str) -> (String, Vec<String>) {
        let name = Name::parse(&LitStr::new(text, Span::call_site())).unwrap();
        let values = name.values.iter().map(|value| quote!(#value).to_string().replace(' ', ""));
        (name.text, values.collect())
    }

    #[test]
    fn expressions_are_lifted_out() {
        for (text, format, values) in [
            ("orders", "orders", vec![]),
            ("orders/{order.id}", "orders/{}", vec!["order.id"]),
            ("{a}{b}/{ c [ 0 ] }", "{}{}/{}", vec!["a", "b", "c[0]"]),
            ("{self.shard(&order, 3)}/é{a::b::<C>()}", "{}/é{}", vec!["self.shard(&order,3)", "a::b::<C>()"]),
            ("{match x { Some(_) => 1, None => 2 }}!", "{}!", vec!["matchx{Some(_)=>1,None=>2}"]),
            (r#"{map["}"]}{'}'}"#, "{}{}", vec![r#"map["}"]"#, "'}'"]),
            (r#"{f("\"}", '\'', '\\')}/{x}"#, "{}/{}", vec![r#"f("\"}",'\'','\\')"#, "x"]),
            (r#"{format!("{x:04}")}"#, "{}", vec![r#"format!("{x:04}")"#]),
            ("{f::<'static>()}", "{}", vec!["f::<'static>()"]),
        ] {
            let (read_format, read_values) = read(text);
            assert_eq!(
                (read_format.as_str(), read_values),
                (format, values.iter().map(ToString::to_string).collect()),
                "{text}"
            );
        }
    }

    #[test]
    fn doubled_braces_are_braces() {
        assert_eq!(read("a{{b}}"), ("a{b}".to_owned(), vec![]));
        assert_eq!(read("a{{{b}}}"), ("a{{{}}}".to_owned(), vec!["b".to_owned()]));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for (text, problem) in [
            ("", "not empty"),
            ("a{", "no `}`"),
            ("a{b", "no `}`"),
            ("a}b", "no `{`"),
            ("{}", "no expression"),
            ("{ }", "no expression"),
            ("{a:?}", "not an expression"),
            ("{a b}", "not an expression"),
            ("{a[}", "not an expression"),
        ] {
            let error = Name::parse(&LitStr::new(text, Span::call_site())).err().unwrap().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
