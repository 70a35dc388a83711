//! Amounts such as `250m` or `16Mi`, exact, and in the one spelling the API server stores.
//!
//! <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

const NANOS: i128 = 1_000_000_000;

/// An exact amount, to a billionth.
///
/// Compares by value: `1000m` equals `1`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amount {
    nanos: i128,
    binary: bool,
}

impl Amount {
    /// So many whole units.
    pub(crate) const fn whole(units: i128) -> Self {
        Self { nanos: units * NANOS, binary: false }
    }

    /// Reads an amount; `None` when it is none. What is finer than a billionth is rounded up, as Kubernetes does.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.trim_start_matches(['+', '-']);
        let negative = match &text[..text.len() - digits.len()] {
            "" | "+" => false,
            "-" => true,
            _ => return None,
        };
        let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
        let (number, suffix) = digits.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (multiplier, divisor, binary) = scale(suffix)?;
        let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
        let divisor = divisor.checked_mul(10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
        let scaled = mantissa.checked_mul(multiplier)?.checked_mul(NANOS)?;
        let nanos = scaled / divisor + i128::from(scaled % divisor != 0);
        Some(Self { nanos: if negative { -nanos } else { nanos }, binary })
    }

    /// What is left when `other` is taken away; may be below zero.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_sub(other.nanos), ..self }
    }

    /// Whether it is below zero.
    pub(crate) fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// The same, rounded up to whole thousandths.
    pub(crate) fn in_thousandths(self) -> Self {
        const THOUSANDTH: i128 = NANOS / 1000;
        let rest = self.nanos.rem_euclid(THOUSANDTH);
        Self { nanos: if rest == 0 { self.nanos } else { self.nanos - rest + THOUSANDTH }, ..self }
    }

    /// Whether it needs no fraction.
    pub(crate) fn is_whole(self) -> bool {
        self.nanos % NANOS == 0
    }

    /// Whether it is zero.
    pub(crate) fn is_zero(self) -> bool {
        self.nanos == 0
    }
}

/// What a suffix multiplies and divides by, and whether it counts in powers of two.
fn scale(suffix: &str) -> Option<(i128, i128, bool)> {
    let power = |base: i128, exponent: u32| base.checked_pow(exponent);
    Some(match suffix {
        "n" => (1, power(10, 9)?, false),
        "u" => (1, power(10, 6)?, false),
        "m" => (1, power(10, 3)?, false),
        "" => (1, 1, false),
        "k" => (power(10, 3)?, 1, false),
        "M" => (power(10, 6)?, 1, false),
        "G" => (power(10, 9)?, 1, false),
        "T" => (power(10, 12)?, 1, false),
        "P" => (power(10, 15)?, 1, false),
        "E" => (power(10, 18)?, 1, false),
        "Ki" => (power(1024, 1)?, 1, true),
        "Mi" => (power(1024, 2)?, 1, true),
        "Gi" => (power(1024, 3)?, 1, true),
        "Ti" => (power(1024, 4)?, 1, true),
        "Pi" => (power(1024, 5)?, 1, true),
        "Ei" => (power(1024, 6)?, 1, true),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let factor = power(10, exponent.unsigned_abs())?;
            if exponent < 0 { (1, factor, false) } else { (factor, 1, false) }
        }
    })
}

/// The spelling the API server stores: the largest suffix that needs no fraction.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let units = self.nanos / NANOS;
        if self.binary && self.nanos % NANOS == 0 && units.abs() >= 1024 {
            let mut units = units;
            let mut suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter();
            let mut suffix = suffixes.next().unwrap_or_default();
            while units % 1024 == 0
                && let Some(next) = suffixes.next()
            {
                units /= 1024;
                suffix = next;
            }
            return write!(f, "{units}{suffix}");
        }
        let mut number = self.nanos;
        let mut suffixes = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"].into_iter();
        let mut suffix = suffixes.next().unwrap_or_default();
        while number % 1000 == 0
            && let Some(next) = suffixes.next()
        {
            number /= 1000;
            suffix = next;
        }
        write!(f, "{number}{suffix}")
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Amount {}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Amount {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Add for Amount {
    type Output = Self;

    /// The sum, spelled as `self` unless that is zero.
    fn add(self, other: Self) -> Self {
        let binary = if self.nanos == 0 { other.binary } else { self.binary };
        Self { nanos: self.nanos.saturating_add(other.nanos), binary }
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: `apimachinery/pkg/api/resource/quantity_test.go`, the rules of its package comment.
    #[test]
    fn amounts_have_one_spelling() {
        for (written, stored) in [
            ("0", "0"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("1000", "1k"),
            ("1024Mi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("1.5Gi", "1536Mi"),
            ("512", "512"),
            ("0.5Ki", "512"),
            ("1e3", "1k"),
            ("12E-3", "12m"),
            ("+2", "2"),
            ("-2Ki", "-2Ki"),
            ("1n", "1n"),
            ("0.0000000001", "1n"),
            (".5", "500m"),
        ] {
            assert_eq!(Amount::parse(written).map(|it| it.to_string()).as_deref(), Some(stored), "{written}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["", "m", "1 ", "1.2.3", "1KiB", "--1", "ten", "1e", "Mi", "."] {
            assert!(Amount::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn amounts_compare_and_add_by_value() {
        let parse = |text| Amount::parse(text).expect(text);
        assert_eq!(parse("1000m"), parse("1"));
        assert!(parse("1Gi") > parse("1G"));
        assert_eq!((parse("100m") + parse("0.9")).to_string(), "1");
        assert_eq!([parse("512Mi"), parse("512Mi")].into_iter().sum::<Amount>().to_string(), "1Gi");
    }
}
