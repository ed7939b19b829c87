//! Methods that each set one field, as builders have them.

macro_rules! setters {
    ($($(#[$attribute:meta])+ $name:ident($($argument:ident: $type:ty)?) { $($field:ident).+ = $value:expr })+) => {$(
        $(#[$attribute])+
        #[must_use]
        pub fn $name(mut self $(, $argument: $type)?) -> Self {
            self.$($field).+ = $value;
            self
        }
    )+};
}

pub(crate) use setters;
