//! What a text means: ranges, addresses, names, labels, tolerations. Each part of a list is judged by itself.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Toleration;
use pando_api::Secret;

use crate::check::{is_label_value, is_qualified_name};
use crate::dns_label;
use crate::image::Image;

/// What is wrong with a value, apart from its key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The part that is wrong.
    pub(super) value: String,
    /// What is wrong with it.
    pub(super) problem: String,
    /// What to write instead.
    pub(super) remedy: String,
}

impl Fault {
    fn new(value: &str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { value: value.to_owned(), problem: problem.into(), remedy: remedy.into() }
    }
}

/// What a text was read as, and all that is wrong with it.
pub(super) type Read<T> = Result<T, Vec<Fault>>;

const RANGES: &str = "write one or several ranges, comma-separated, e.g. 10.244.0.0/16,fd00:10:244::/56";

/// Ranges of addresses, comma-separated.
pub(super) fn ranges(text: &str) -> Read<Vec<IpNet>> {
    each(text, range)
}

/// The same, at least one.
pub(super) fn some_ranges(text: &str) -> Read<Vec<IpNet>> {
    let read = ranges(text)?;
    if read.is_empty() { refuse(text, "holds no range", RANGES) } else { Ok(read) }
}

fn range(part: &str) -> Result<IpNet, Fault> {
    if let Ok(address) = part.parse::<IpAddr>() {
        let alone = IpNet::from(address);
        let example = if address.is_ipv6() { "fd00:10:244::/56" } else { "10.244.0.0/16" };
        let remedy = format!("write {alone} for this address alone, or a range with its prefix length, e.g. {example}");
        return Err(Fault::new(part, "is an address, not a range", remedy));
    }
    let range: IpNet = part.parse().map_err(|_| Fault::new(part, "is not a range of addresses", RANGES))?;
    if range.prefix_len() == 0 {
        // It could not be left out of an outside rule.
        Err(Fault::new(part, "covers every address", RANGES))
    } else if range.trunc() == range {
        Ok(range)
    } else {
        let remedy = format!("write {}, which holds it, or another length of the prefix", range.trunc());
        Err(Fault::new(part, "is an address within a range, not the range's first", remedy))
    }
}

/// Addresses, comma-separated.
pub(super) fn addresses(text: &str) -> Read<Vec<IpAddr>> {
    each(text, |part| {
        let remedy = "write addresses, comma-separated, e.g. 169.254.20.10";
        part.parse().map_err(|_| Fault::new(part, "is not an address", remedy))
    })
}

/// A DNS label, as namespaces are named.
pub(super) fn label(text: &str) -> Read<String> {
    if dns_label::is_valid(text) {
        return Ok(text.to_owned());
    }
    let remedy = format!("write {:?}", dns_label::suggest(text));
    refuse(text, "is not a DNS label (a-z, 0-9 and -, beginning with a letter, at most 63)", remedy)
}

/// The name of an object.
pub(super) fn object_name(text: &str) -> Read<String> {
    if dns_label::is_subdomain(text) {
        return Ok(text.to_owned());
    }
    let remedy = "write the name that kubectl shows: a-z, 0-9, - and ., at most 253, e.g. my-class";
    refuse(text, "is not an object's name", remedy)
}

/// The name of a role: Kubernetes takes whatever fits in a path.
pub(super) fn role_name(text: &str) -> Read<String> {
    if matches!(text, "." | "..")
        || text.contains(['/', '%'])
        || text.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        let remedy = "write the name of a ClusterRole, without /, % and blanks, e.g. pando-app-manager";
        return refuse(text, "is not a role's name", remedy);
    }
    Ok(text.to_owned())
}

/// A DNS domain without the dot at its end.
pub(super) fn domain(text: &str) -> Read<String> {
    if dns_label::is_subdomain(text) {
        return Ok(text.to_owned());
    }
    let likely = text.trim().trim_matches('.').to_ascii_lowercase();
    let likely = if dns_label::is_subdomain(&likely) { &likely } else { "cluster.local" };
    refuse(text, "is not a DNS name", format!("write the cluster's domain, e.g. {likely}"))
}

/// An image reference.
pub(super) fn image(text: &str) -> Read<String> {
    if Image::parse(text).is_some() {
        return Ok(text.to_owned());
    }
    refuse(text, "is not an image reference", "write one such as busybox:1.37 or registry.example:5000/busybox:1.37")
}

/// The path of a kubeconfig. A kubeconfig itself holds credentials, so one given in the path's place is not shown.
pub(super) fn path(text: &str) -> Read<String> {
    if text.contains('\n') || text.trim_start().starts_with('{') {
        let remedy = "write it to a file, and here the file's path, e.g. /etc/pando/kubeconfig";
        refuse(Secret::REDACTED, "is the content of a file, not its path", remedy)
    } else if let Some(rest) = text.strip_prefix("~/") {
        let remedy = format!("write the whole path, e.g. /root/{rest}");
        refuse(text, "begins with ~, which only a shell takes for a home", remedy)
    } else if text.contains('\0') {
        refuse(text, "holds a zero byte", "write the path of a file, e.g. /etc/pando/kubeconfig")
    } else {
        Ok(text.to_owned())
    }
}

/// Any text.
#[expect(clippy::unnecessary_wraps, reason = "read as the other values are")]
pub(super) fn any(text: &str) -> Read<String> {
    Ok(text.to_owned())
}

const LABELS: &str = "write key=value, comma-separated, e.g. disk=ssd,example.com/zone=a";

/// Labels with their values, `key=value`, comma-separated; a value may be empty.
pub(super) fn labels(text: &str) -> Read<BTreeMap<String, String>> {
    let mut seen = BTreeMap::new();
    let read = each(text, |part| {
        let Some((key, value)) = part.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
            return Err(Fault::new(part, "is not a label with a value", LABELS));
        };
        fits_label(part, key, value, LABELS)?;
        if let Some(earlier) = seen.insert(key.to_owned(), value.to_owned()) {
            let problem = format!("gives {key} again, after {key}={earlier}");
            return Err(Fault::new(part, problem, "write each key once: a label has one value"));
        }
        Ok(())
    });
    read.map(|_| seen)
}

/// The same, at least one: none would mean every pod.
pub(super) fn some_labels(text: &str) -> Read<BTreeMap<String, String>> {
    let read = labels(text)?;
    if read.is_empty() { refuse(text, "holds no label", LABELS) } else { Ok(read) }
}

/// Tolerations, `key=value:Effect`, `key:Effect` or `:Effect`, comma-separated.
pub(super) fn tolerations(text: &str) -> Read<Vec<Toleration>> {
    each(text, toleration)
}

const TOLERATION: &str =
    "write key=value:Effect, key:Effect or :Effect, with NoSchedule, PreferNoSchedule or NoExecute as effect";

fn toleration(part: &str) -> Result<Toleration, Fault> {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let Some((matching, effect)) = part.rsplit_once(':').map(|(left, right)| (left.trim(), right.trim())) else {
        return Err(Fault::new(part, "is a toleration without an effect", TOLERATION));
    };
    if !EFFECTS.contains(&effect) {
        let meant = EFFECTS.iter().find(|known| known.eq_ignore_ascii_case(effect));
        let remedy = meant.map_or_else(|| TOLERATION.to_owned(), |known| format!("write {matching}:{known}"));
        return Err(Fault::new(part, format!("has an unknown effect, {effect:?}"), remedy));
    }
    let (key, value) = match matching.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value.trim())),
        None => (matching, None),
    };
    if !key.is_empty() || value.is_some() {
        fits_label(part, key, value.unwrap_or_default(), TOLERATION)?;
    }
    Ok(Toleration {
        key: (!key.is_empty()).then(|| key.to_owned()),
        operator: Some(if value.is_some() { "Equal" } else { "Exists" }.to_owned()),
        value: value.map(str::to_owned),
        effect: Some(effect.to_owned()),
        ..Toleration::default()
    })
}

/// Whether labels can have this key and this value, which taints write alike.
fn fits_label(part: &str, key: &str, value: &str, remedy: &str) -> Result<(), Fault> {
    if key.is_empty() {
        Err(Fault::new(part, "has no key before its value", remedy))
    } else if !is_qualified_name(key) {
        let remedy = "write a name such as disk, or example.com/disk: up to 63 letters, digits, -, _ and . after the /";
        Err(Fault::new(part, format!("has a key that labels cannot have, {key:?}"), remedy))
    } else if !is_label_value(value) {
        let remedy = "write up to 63 letters, digits, -, _ and . between letters or digits, or nothing";
        Err(Fault::new(part, format!("has a value that labels cannot have, {value:?}"), remedy))
    } else {
        Ok(())
    }
}

/// Reads the parts of a comma-separated list; blank ones are left out.
fn each<T>(text: &str, mut read: impl FnMut(&str) -> Result<T, Fault>) -> Read<Vec<T>> {
    let (mut values, mut faults) = (Vec::new(), Vec::new());
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match read(part) {
            Ok(value) => values.push(value),
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() { Ok(values) } else { Err(faults) }
}

fn refuse<T>(value: &str, problem: &str, remedy: impl Into<String>) -> Read<T> {
    Err(vec![Fault::new(value, problem, remedy)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_are_read_in_their_three_forms() {
        let read = tolerations("gpu=a:NoSchedule, gpu:NoExecute ,:NoSchedule").expect("fine");
        let forms: Vec<_> =
            read.iter().map(|it| (it.key.as_deref(), it.operator.as_deref(), it.value.as_deref())).collect();
        assert_eq!(
            forms,
            [
                (Some("gpu"), Some("Equal"), Some("a")),
                (Some("gpu"), Some("Exists"), None),
                (None, Some("Exists"), None)
            ]
        );
    }

    #[test]
    fn blanks_in_lists_are_left_out() {
        assert_eq!(
            labels(" a=b, ,c= ,").map(Vec::from_iter),
            Ok(vec![("a".to_owned(), "b".to_owned()), ("c".to_owned(), String::new())])
        );
        assert_eq!(ranges(" , ").map(|ranges| ranges.len()), Ok(0));
    }

    #[test]
    fn every_wrong_part_is_told() {
        let faults = ranges("10.0.0.0/8,here,10.0.0.1/8,::/0").expect_err("three are wrong");
        let wrong: Vec<_> = faults.iter().map(|fault| fault.value.as_str()).collect();
        assert_eq!(wrong, ["here", "10.0.0.1/8", "::/0"]);
    }

    #[test]
    fn roles_may_have_the_names_that_kubernetes_itself_uses() {
        assert_eq!(role_name("system:controller:Pando_1"), Ok("system:controller:Pando_1".to_owned()));
        assert!(["a/b", "a%b", "..", "a b"].into_iter().all(|name| role_name(name).is_err()));
    }
}
