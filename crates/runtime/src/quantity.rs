//! Quantities of Kubernetes: parsed and rounded. Pure.

use serde_json::Value;

/// An amount in billionths, the finest unit of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

const BILLION: i128 = 1_000_000_000;

impl Quantity {
    /// Parses a quantity. `None` if the text is not one, or does not fit.
    pub fn parse(text: &str) -> Option<Self> {
        let (number, factor) = split(text)?;
        let (negative, number) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number.strip_prefix('+').unwrap_or(number)),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty()
            || !(whole.bytes().chain(fraction.bytes())).all(|b| b.is_ascii_digit())
        {
            return None;
        }
        let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
        let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let product = digits.checked_mul(factor)?;
        // Kubernetes rounds up to its finest unit.
        let amount = product / scale + i128::from(product % scale != 0);
        Some(Self(if negative { -amount } else { amount }))
    }

    /// Parses an amount in an object, which may be a plain number.
    pub fn of(amount: &Value) -> Option<Self> {
        match amount {
            Value::String(text) => Self::parse(text.trim()),
            Value::Number(number) => Self::parse(&number.to_string()),
            _ => None,
        }
    }

    /// Whole units, rounded up.
    pub fn rounded_up(self) -> i128 {
        self.0.div_euclid(BILLION) + i128::from(self.0.rem_euclid(BILLION) > 0)
    }

    /// Whole MiB, rounded down.
    pub fn mebibytes(self) -> i128 {
        self.0.div_euclid(BILLION << 20)
    }
}

/// Splits a quantity into its number and the factor to billionths.
fn split(text: &str) -> Option<(&str, i128)> {
    const SUFFIXES: [(&str, i128); 15] = [
        ("Ki", BILLION << 10),
        ("Mi", BILLION << 20),
        ("Gi", BILLION << 30),
        ("Ti", BILLION << 40),
        ("Pi", BILLION << 50),
        ("Ei", BILLION << 60),
        ("n", 1),
        ("u", 1_000),
        ("m", 1_000_000),
        ("k", BILLION * 1_000),
        ("M", BILLION * 1_000_000),
        ("G", BILLION * 1_000_000_000),
        ("T", BILLION * 1_000_000_000_000),
        ("P", BILLION * 1_000_000_000_000_000),
        ("E", BILLION * 1_000_000_000_000_000_000),
    ];
    let with_suffix = |(suffix, factor)| Some((text.strip_suffix(suffix)?, factor));
    if let Some(found) = SUFFIXES.into_iter().find_map(with_suffix) {
        return Some(found);
    }
    let Some((number, exponent)) = text.split_once(['e', 'E']) else {
        return Some((text, BILLION));
    };
    let exponent: i32 = exponent.parse().ok()?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    let factor = if exponent < 0 {
        BILLION / power
    } else {
        BILLION.checked_mul(power)?
    };
    Some((number, factor))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::Quantity;

    #[test]
    fn the_same_amount_in_other_units_is_equal() {
        for (one, other) in [
            ("1", "1000m"),
            ("0.5", "500m"),
            ("1Gi", "1024Mi"),
            ("1.5Gi", "1536Mi"),
            ("1G", "1000M"),
            ("2e3", "2k"),
            ("100n", "0.1u"),
            ("0", "0m"),
            ("+1", "1"),
            ("1.", "1"),
            (".5", "500m"),
            ("1E", "1000P"),
        ] {
            assert_eq!(
                Quantity::parse(one).unwrap(),
                Quantity::parse(other).unwrap(),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn different_amounts_differ() {
        for (one, other) in [("1", "1001m"), ("1Gi", "1G"), ("1", "-1"), ("1Mi", "1Ki")] {
            assert_ne!(
                Quantity::parse(one).unwrap(),
                Quantity::parse(other).unwrap(),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn units_are_rounded_up() {
        for (amount, units) in [
            (json!(2), Some(2)),
            (json!("2"), Some(2)),
            (json!("1500m"), Some(2)),
            (json!(0.5), Some(1)),
            (json!("1m"), Some(1)),
            (json!("2e1"), Some(20)),
            (json!(null), None),
            (json!("many"), None),
            (json!(""), None),
        ] {
            assert_eq!(Quantity::of(&amount).map(Quantity::rounded_up), units, "{amount}");
        }
    }

    #[test]
    fn memory_is_counted_in_whole_mebibytes() {
        for (amount, mebis) in [
            (json!("4Gi"), 4096),
            (json!("1G"), 953),
            (json!(1_048_575), 0),
            (json!("1Mi"), 1),
            (json!("1.5Gi"), 1536),
        ] {
            assert_eq!(Quantity::of(&amount).map(Quantity::mebibytes), Some(mebis), "{amount}");
        }
    }

    #[test]
    fn text_that_is_no_quantity_has_no_amount() {
        for text in [
            "",
            "Gi",
            "one",
            "1.2.3",
            "1 Gi",
            "-",
            "1e",
            "99999999999999999999999999999999999999999",
        ] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}") {
            let counted = Quantity::parse(&text).map(|amount| (amount.rounded_up(), amount.mebibytes()));
            prop_assert!(counted.is_none_or(|(units, mebis)| units.abs() >= mebis.abs()));
        }

        #[test]
        fn quantities_are_ordered_by_amount(a in 0u32..1_000_000, b in 0u32..1_000_000) {
            prop_assert_eq!(Quantity::parse(&format!("{a}m")).cmp(&Quantity::parse(&format!("{b}m"))), a.cmp(&b));
        }
    }
}
