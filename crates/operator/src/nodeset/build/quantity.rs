//! Amounts as Kubernetes writes them, as far as a pod's limits need them.

use serde_json::Value;

/// A thousandth of a millionth, the smallest amount Kubernetes knows: `1n`.
const NANO: i128 = 1_000_000_000;

/// An amount, in billionths. `None` if it is none.
fn nanos(amount: &Value) -> Option<i128> {
    let text = match amount {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    scale(decimal(number)?, suffix)
}

/// A decimal number in billionths; what is smaller is rounded up, as Kubernetes does.
fn decimal(number: &str) -> Option<i128> {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut below = 0_i128;
    let mut unit = NANO;
    for digit in fraction.chars() {
        let digit = i128::from(digit.to_digit(10)?);
        unit /= 10;
        below = if unit == 0 {
            below.checked_add(i128::from(digit > 0))?
        } else {
            below.checked_add(digit * unit)?
        };
    }
    whole.checked_mul(NANO)?.checked_add(below)?.checked_mul(sign)
}

fn scale(nanos: i128, suffix: &str) -> Option<i128> {
    let times = |factor: i128| nanos.checked_mul(factor);
    let part = |divisor: i128| Some(nanos.div_euclid(divisor) + i128::from(nanos.rem_euclid(divisor) > 0));
    match suffix {
        "" => Some(nanos),
        "n" => part(NANO),
        "u" => part(1_000_000),
        "m" => part(1_000),
        "k" => times(1_000),
        "M" => times(1_000_000),
        "G" => times(1_000_000_000),
        "T" => times(1_000_000_000_000),
        "P" => times(1_000_000_000_000_000),
        "E" => times(1_000_000_000_000_000_000),
        "Ki" => times(1 << 10),
        "Mi" => times(1 << 20),
        "Gi" => times(1 << 30),
        "Ti" => times(1 << 40),
        "Pi" => times(1 << 50),
        "Ei" => times(1 << 60),
        _ => {
            let exponent: u32 = suffix
                .strip_prefix(['e', 'E'])?
                .strip_prefix('+')
                .map_or_else(|| suffix.get(1..)?.parse().ok(), |exponent| exponent.parse().ok())?;
            times(10_i128.checked_pow(exponent)?)
        }
    }
}

/// Whole units, a fraction counting as one more. 0 if it is no amount.
pub(super) fn round_up(amount: &Value) -> i128 {
    nanos(amount).map_or(0, |nanos| {
        nanos.div_euclid(NANO) + i128::from(nanos.rem_euclid(NANO) > 0)
    })
}

/// Whole MiB, a fraction counting as none. 0 if it is no amount.
pub(super) fn mebibytes(amount: &Value) -> i128 {
    nanos(amount).map_or(0, |nanos| nanos.div_euclid(NANO).div_euclid(1 << 20))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn cpus_are_rounded_up() {
        for (amount, cpus) in [
            (json!(2), 2),
            (json!("2"), 2),
            (json!("1500m"), 2),
            (json!(0.5), 1),
            (json!("1m"), 1),
            (json!("2e1"), 20),
            (json!(null), 0),
            (json!("many"), 0),
            (json!(""), 0),
        ] {
            assert_eq!(round_up(&amount), cpus, "{amount}");
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
            assert_eq!(mebibytes(&amount), mebis, "{amount}");
        }
    }

    proptest! {
        #[test]
        fn no_amount_panics(text in ".{0,12}", odd in "[-+]?[0-9]{0,40}[.]?[0-9]{0,20}[a-zA-Z]{0,2}[0-9]{0,4}") {
            round_up(&json!(text));
            mebibytes(&json!(odd));
        }
    }
}
