//! The function that the attribute stands on.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Block, Error, Expr, ExprAsync, FnArg, GenericArgument, Ident, Pat, PathArguments, Result,
    ReturnType, Signature, Stmt, Token, Type, TypeParamBound, Visibility,
};

pub(crate) struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    pub(crate) signature: Signature,
    block: Block,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let signature: Signature = input
            .parse()
            .map_err(|error| Error::new(error.span(), format!("#[locked] is for functions: {error}")))?;
        if input.peek(Token![;]) {
            return Err(input
                .error("this function has no body to run under a lock: write #[locked] where it has one"));
        }
        Ok(Self { attributes, visibility, signature, block: input.parse()? })
    }
}

/// How the body of a function runs.
pub(crate) enum Body<'a> {
    /// `async fn`.
    Async(&'a Block),
    /// A function that returns a boxed future, as `async_trait` leaves it: its future, and the output of that.
    Boxed(&'a ExprAsync, &'a Type),
    Blocking(&'a Block),
}

impl Function {
    pub(crate) fn body(&self) -> Body<'_> {
        if self.signature.asyncness.is_some() {
            return Body::Async(&self.block);
        }
        match (boxed_future(&self.block), self.returned().and_then(output_of_boxed_future)) {
            (Some(future), Some(output)) => Body::Boxed(future, output),
            _ => Body::Blocking(&self.block),
        }
    }

    pub(crate) fn returned(&self) -> Option<&Type> {
        match &self.signature.output {
            ReturnType::Type(_, returned) => Some(returned),
            ReturnType::Default => None,
        }
    }

    pub(crate) fn has_argument(&self, name: &Ident) -> bool {
        let mut arguments = self.signature.inputs.iter();
        arguments.any(|argument| match argument {
            FnArg::Typed(typed) => matches!(&*typed.pat, Pat::Ident(pattern) if pattern.ident == *name),
            FnArg::Receiver(_) => false,
        })
    }

    /// Returns the function with another body.
    pub(crate) fn with_body(&self, body: &TokenStream) -> TokenStream {
        let Self { attributes, visibility, signature, .. } = self;
        quote! {
            #(#attributes)*
            #visibility #signature {
                #body
            }
        }
    }
}

/// Finds the future in `{ Box::pin(async move { … }) }`.
fn boxed_future(block: &Block) -> Option<&ExprAsync> {
    let [Stmt::Expr(Expr::Call(call), None)] = block.stmts.as_slice() else { return None };
    let Expr::Path(function) = &*call.func else { return None };
    let words: Vec<_> =
        function.path.segments.iter().rev().take(2).map(|word| word.ident.to_string()).collect();
    if words != ["pin", "Box"] || call.args.len() != 1 {
        return None;
    }
    match call.args.first()? {
        Expr::Async(future) if future.capture.is_some() => Some(future),
        _ => None,
    }
}

/// Finds `T` in `Pin<Box<dyn Future<Output = T> + …>>`.
fn output_of_boxed_future(returned: &Type) -> Option<&Type> {
    let Type::TraitObject(future) = argument_of(argument_of(returned)?)? else { return None };
    let bounds = future.bounds.iter().filter_map(|bound| match bound {
        TypeParamBound::Trait(bound) => bound.path.segments.last(),
        _ => None,
    });
    bounds.filter(|bound| bound.ident == "Future").find_map(|bound| match &bound.arguments {
        PathArguments::AngleBracketed(arguments) => {
            arguments.args.iter().find_map(|argument| match argument {
                GenericArgument::AssocType(output) if output.ident == "Output" => Some(&output.ty),
                _ => None,
            })
        }
        _ => None,
    })
}

/// Returns the first argument of a generic type.
fn argument_of(generic: &Type) -> Option<&Type> {
    let Type::Path(path) = generic else { return None };
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else { return None };
    match arguments.args.first()? {
        GenericArgument::Type(argument) => Some(argument),
        _ => None,
    }
}

/// Returns the type as it may stand in a body: each `impl Trait` is left to inference.
pub(crate) fn in_body(returned: &Type) -> TokenStream {
    struct Infer;
    impl VisitMut for Infer {
        fn visit_type_mut(&mut self, part: &mut Type) {
            if let Type::ImplTrait(_) = part {
                *part = Type::Infer(syn::TypeInfer { underscore_token: <Token![_]>::default() });
            }
            visit_mut::visit_type_mut(self, part);
        }
    }
    let mut returned = returned.clone();
    Infer.visit_type_mut(&mut returned);
    returned.into_token_stream()
}
