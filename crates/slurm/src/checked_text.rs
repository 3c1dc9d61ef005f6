//! Text that is checked when it is made: what every such newtype has beside its own `new`.

/// Shows the text, and makes it from text by `new` wherever serde or a command line hands some in.
macro_rules! checked_text {
    ($name:ident, $invalid:ident) => {
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
