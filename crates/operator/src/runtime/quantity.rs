//! Kubernetes' quantities, far enough to see that `1` is `1000m` and `1Gi` is `1024Mi` (pure).

/// An amount in billionths, which is as fine as Kubernetes goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Quantity(i128);

const BILLION: i128 = 1_000_000_000;

impl Quantity {
    /// `None` if the text is none, or is larger than any machine.
    pub(super) fn parse(text: &str) -> Option<Self> {
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
        // Kubernetes rounds up what is finer than it can hold.
        let amount = product / scale + i128::from(product % scale != 0);
        Some(Self(if negative { -amount } else { amount }))
    }

    /// Whether both texts say the same amount.
    pub(super) fn same(one: &str, other: &str) -> bool {
        match (Self::parse(one), Self::parse(other)) {
            (Some(one), Some(other)) => one == other,
            _ => one == other,
        }
    }
}

/// Number and factor to billionths.
fn split(text: &str) -> Option<(&str, i128)> {
    const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
    const DECIMAL: [(&str, i128); 9] = [
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
    for (suffix, bits) in BINARY {
        if let Some(number) = text.strip_suffix(suffix) {
            return Some((number, BILLION << bits));
        }
    }
    for (suffix, factor) in DECIMAL {
        if let Some(number) = text.strip_suffix(suffix) {
            return Some((number, factor));
        }
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

    use super::Quantity;

    #[test]
    fn the_same_amount_in_other_words_is_the_same() {
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
            assert!(Quantity::same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn another_amount_is_another() {
        for (one, other) in [("1", "1001m"), ("1Gi", "1G"), ("1", "-1"), ("1Mi", "1Ki")] {
            assert!(!Quantity::same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_compared_as_text() {
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
            assert!(Quantity::same(text, text));
            assert!(!Quantity::same(text, "x"));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn numbers_order_as_they_should(a in 0u32..1_000_000, b in 0u32..1_000_000) {
            prop_assert_eq!(Quantity::parse(&format!("{a}m")).cmp(&Quantity::parse(&format!("{b}m"))), a.cmp(&b));
        }
    }
}
