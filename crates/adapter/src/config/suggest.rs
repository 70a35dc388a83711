//! Which key a misspelt one was meant to be.

/// The name nearest to `written`, when it is near enough to be meant: one or two slips, or another way of joining words.
pub(super) fn nearest<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = plain(written);
    // Longer than any name with its slips; what is written may be of any length.
    if plain.len() > 64 {
        return None;
    }
    let allowed = if plain.len() < 6 { 1 } else { 2 };
    let distances = names.into_iter().map(|name| (distance(&plain, &self::plain(name)), name));
    distances.min().filter(|(distance, _)| *distance <= allowed).map(|(_, name)| name)
}

/// The letters alone, so that `podCidr`, `pod-cidr` and `POD_CIDR` are the same.
fn plain(name: &str) -> Vec<char> {
    name.chars().filter(|c| !matches!(c, '_' | '-' | '.' | ' ')).map(|c| c.to_ascii_lowercase()).collect()
}

/// How many characters must be added, taken away, replaced or swapped with their neighbour to turn `a` into `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let mut least = (row[j] + usize::from(from != to)).min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *to && *from == b[j - 1] {
                let swapped: &Vec<usize> = &before;
                least = least.min(swapped[j - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_told_from_another_word() {
        let names = ["pod_cidr", "service_cidr", "api_qps", "context"];
        for (written, meant) in [
            ("pod_cdir", Some("pod_cidr")),
            ("podCIDR", Some("pod_cidr")),
            ("service-cidrs", Some("service_cidr")),
            ("serv_cidr", None),
            ("api_qp", Some("api_qps")),
            ("cntext", Some("context")),
            ("replicas", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, names), meant, "{written:?}");
        }
        assert_eq!(nearest(&"pod_cidr".repeat(1000), names), None);
    }

    #[test]
    fn a_distance_counts_each_slip_once() {
        let of = |a: &str, b: &str| distance(&plain(a), &plain(b));
        for (a, b, slips) in
            [("ab", "ba", 1), ("abc", "abc", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("ca", "abc", 3)]
        {
            assert_eq!((of(a, b), of(b, a)), (slips, slips), "{a:?} {b:?}");
        }
    }
}
