//! The function as the compiler gets it.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, Ident, Result, Type};

use crate::arguments::{Arguments, Mode, OnBusy, Source};
use crate::function::{Body, Function, in_body};

pub(crate) fn expand(arguments: &Arguments, function: &Function) -> Result<TokenStream> {
    let signature = &function.signature;
    if let Some(constness) = &signature.constness {
        return Err(Error::new(constness.span(), "a const function cannot acquire a lock"));
    }
    let Some(returned) = function.returned() else {
        return Err(Error::new(
            signature.ident.span(),
            "a function with #[locked] returns a `Result<T, E>`, where `E: From<distlock::LockError>`: the lock may fail",
        ));
    };
    if let Some(hold) = arguments.hold.as_ref().filter(|hold| function.has_argument(hold)) {
        return Err(Error::new(
            hold.span(),
            format!("the function has an argument `{hold}`: give the hold another name"),
        ));
    }
    let body = match function.body() {
        Body::Async(block) => {
            let body = body_of(returned, block);
            let call = call(arguments, function, Face::Async, returned, &quote!(async move { #body }))?;
            awaited(&call, returned)
        }
        Body::Boxed(future, output) => {
            let body = body_of(output, &future.block);
            // The body has its own copies of the arguments, also of those that only the name uses.
            let body = quote!(async move { #[allow(unused_variables)] { #body } });
            let call = call(arguments, function, Face::Async, output, &body)?;
            let awaited = awaited(&call, output);
            quote!(::std::boxed::Box::pin(async move { #awaited }))
        }
        Body::Blocking(block) => {
            let body = body_of(returned, block);
            call(arguments, function, Face::Blocking, returned, &quote!({ #body }))?
        }
    };
    Ok(function.with_body(&body))
}

/// Which functions of `distlock::__private` the code calls.
#[derive(Clone, Copy)]
enum Face {
    Async,
    Blocking,
}

impl Face {
    /// Returns the path of a function. What the compiler says of a call of it points to `span`.
    fn function(self, name: &str, span: Span) -> TokenStream {
        let span = span.resolved_at(Span::mixed_site());
        let name = Ident::new(name, span);
        match self {
            Self::Async => quote_spanned!(span=> ::distlock::__private::asynchronous::#name),
            Self::Blocking => quote_spanned!(span=> ::distlock::__private::blocking::#name),
        }
    }
}

/// Returns the call that runs the body under the lock. The lock and its name are evaluated before the body takes what it
/// captures.
fn call(
    arguments: &Arguments,
    function: &Function,
    face: Face,
    returned: &Type,
    body: &TokenStream,
) -> Result<TokenStream> {
    let lock = lock(arguments, function, face)?;
    let hold = arguments.hold.as_ref().map_or_else(|| quote!(_), ToTokens::to_token_stream);
    let (runs, wait) = match (arguments.wait, arguments.on_busy) {
        (None, _) => ("under_lock", TokenStream::new()),
        (Some(wait), on_busy) => {
            let (seconds, nanoseconds) = (wait.as_secs(), wait.subsec_nanos());
            let runs = match on_busy {
                OnBusy::Error => "under_lock_for",
                OnBusy::Skip => "under_lock_or_skipped",
            };
            (runs, quote!(::core::time::Duration::new(#seconds, #nanoseconds),))
        }
    };
    let runs = face.function(runs, returned.span());
    Ok(quote_spanned!(at(returned)=> #runs(#lock, #wait move |#hold| #body)))
}

fn awaited(call: &TokenStream, returned: &Type) -> TokenStream {
    quote_spanned!(at(returned)=> #call.await)
}

/// Returns where the compiler points when the function returns a wrong type.
fn at(returned: &Type) -> Span {
    returned.span().resolved_at(Span::mixed_site())
}

fn lock(arguments: &Arguments, function: &Function, face: Face) -> Result<TokenStream> {
    match &arguments.source {
        Source::Client { client, name, mode } => {
            let name = match name {
                Some(name) => name.made(),
                None => path_of(function)?,
            };
            let lock_of = match mode {
                Mode::Exclusive => "lock_of",
                Mode::Read => "read_lock_of",
            };
            let lock_of = face.function(lock_of, client.span());
            Ok(quote_spanned!(client.span()=> #lock_of(&#client, #name)))
        }
        Source::Lock(lock) => {
            let given = face.function("given", lock.span());
            Ok(quote_spanned!(lock.span()=> #given(&#lock)))
        }
    }
}

fn path_of(function: &Function) -> Result<TokenStream> {
    if function.signature.receiver().is_some() {
        return Err(Error::new(
            Span::call_site(),
            "a method needs a name for its lock, such as #[locked(\"orders/{order.id}\", client = …)]: the attribute does not \
             see the type that the method belongs to",
        ));
    }
    let name = function.signature.ident.to_string();
    Ok(quote!(::core::concat!(::core::module_path!(), "::", #name)))
}

/// Returns the body, whose `return` and `?` have the type that the function returns.
fn body_of(returned: &Type, block: &syn::Block) -> TokenStream {
    let returned = in_body(returned);
    quote! {
        // It never runs: it says which type `return` and `?` have.
        #[allow(
            unknown_lints, unreachable_code, clippy::diverging_sub_expression, clippy::empty_loop,
            clippy::let_with_type_underscore, clippy::needless_return
        )]
        if false {
            let returned: #returned = loop {};
            return returned;
        }
        // The braces keep what the body declares from the code above.
        #[allow(unused_braces)]
        #block
    }
}
