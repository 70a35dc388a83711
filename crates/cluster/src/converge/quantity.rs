//! Kubernetes' amounts: `500m`, `1.5Gi`, `2e3`.

use std::str::FromStr;

/// An amount, comparable by value: `1000m` equals `1`.
///
/// Held in billionths, as Kubernetes does; finer fractions are rounded up.
/// <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nanos: i128,
}

/// A text that is no amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity")]
pub struct NotAQuantity(String);

impl Quantity {
    /// The amount in thousandths, rounded up; saturates.
    pub fn millis(self) -> i64 {
        saturate(ceiling(self.nanos, 1_000_000))
    }

    /// The amount in whole units, rounded up; saturates.
    pub fn units(self) -> i64 {
        saturate(ceiling(self.nanos, 1_000_000_000))
    }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

const fn ceiling(value: i128, by: i128) -> i128 {
    value.div_euclid(by) + (value.rem_euclid(by) != 0) as i128
}

impl FromStr for Quantity {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(|nanos| Self { nanos }).ok_or_else(|| NotAQuantity(text.to_owned()))
    }
}

/// The amount in billionths.
fn parse(text: &str) -> Option<i128> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (numerator, denominator) = factor(suffix)?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?.checked_mul(denominator)?;
    let nanos = ceiling(digits.checked_mul(numerator)?.checked_mul(1_000_000_000)?, scale);
    Some(if negative { -nanos } else { nanos })
}

/// What a suffix multiplies by, as a fraction.
fn factor(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let exponent: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_amounts_are_equal_however_they_are_written() {
        for (a, b) in [
            ("1", "1000m"),
            ("0.5", "500m"),
            ("1Gi", "1073741824"),
            ("1.5Ki", "1536"),
            ("2e3", "2k"),
            ("1E", "1000P"),
            ("5e-1", "500m"),
            ("-1", "-1000m"),
            ("0", "0m"),
        ] {
            assert_eq!(a.parse::<Quantity>(), b.parse::<Quantity>(), "{a} and {b}");
        }
        assert_ne!("1".parse::<Quantity>(), "1001m".parse::<Quantity>());
    }

    #[test]
    fn fractions_round_up_as_kubernetes_rounds_them() {
        let quantity: Quantity = "100500u".parse().expect("a quantity");
        assert_eq!((quantity.millis(), quantity.units()), (101, 1));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "m", "1.2.3", "1x", ".", "1e", "--1", "1 Gi", "999999999999999999999999999999999999999999"] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?}");
        }
    }
}
