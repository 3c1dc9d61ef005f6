//! Texts that are checked when they are created.

/// Defines a type for texts that fulfil a condition, and the error for those that do not. Serde and command lines create it by
/// `new` too.
macro_rules! checked_text {
    (
        $(#[$doc:meta])*
        $name:ident: $is_valid:expr, $invalid:ident: $message:literal
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
        #[error($message)]
        pub struct $invalid(pub String);

        impl $name {
            pub fn new(text: impl Into<String>) -> Result<Self, $invalid> {
                let text = text.into();
                let is_valid: fn(&str) -> bool = $is_valid;
                if is_valid(&text) { Ok(Self(text)) } else { Err($invalid(text)) }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = $invalid;

            fn try_from(text: String) -> Result<Self, $invalid> {
                Self::new(text)
            }
        }

        impl std::str::FromStr for $name {
            type Err = $invalid;

            fn from_str(text: &str) -> Result<Self, $invalid> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    };
}

/// Whether a text has ASCII letters, digits and these characters only.
pub(crate) fn is_plain(text: &str, others: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}
