//! The macro that declares a struct of options.

/// Declares a struct of options with public fields, and a setter for each field that has the field's name and
/// documentation. The setter of a field `Option<T>` accepts a `T` as well. The struct is `non_exhaustive`, so that new
/// options break no program: programs start from a default and call setters, or assign fields.
#[cfg_attr(feature = "internal", doc(hidden), macro_export)]
macro_rules! options {
    ($(#[$meta:meta])* pub struct $name:ident { $($fields:tt)* }) => {
        $(#[$meta])*
        #[non_exhaustive]
        pub struct $name { $($fields)* }

        /// Setters, one for each field.
        impl $name { options! { @setters $($fields)* } }
    };
    (@setters) => {};
    // Not an option of programs.
    (@setters $(#[$doc:meta])* pub(crate) $field:ident: $type:ty, $($rest:tt)*) => {
        options! { @setters $($rest)* }
    };
    (@setters $(#[$doc:meta])* pub $field:ident: Option<$type:ty>, $($rest:tt)*) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: impl Into<Option<$type>>) -> Self {
            self.$field = $field.into();
            self
        }
        options! { @setters $($rest)* }
    };
    (@setters $(#[$doc:meta])* pub $field:ident: $type:ty, $($rest:tt)*) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
        options! { @setters $($rest)* }
    };
}
