//! Which NetworkPolicy objects the API server refuses.
//!
//! The rules and field paths of `networking.k8s.io/v1`; names and labels in general are not looked at here.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A field that breaks a rule. It prints as Kubernetes prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The field, e.g. `spec.ingress[0].ports[0].port`.
    pub field: String,
    /// The kind of rule.
    pub kind: FieldErrorKind,
    /// The value as Kubernetes prints it; empty where it prints none.
    pub value: String,
    /// What is wrong.
    pub detail: String,
}

/// Kinds of rules; the words are those of a `Status`' causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// The value is not of the form it should have.
    Invalid,
    /// There is no value.
    Required,
    /// There should be no value.
    Forbidden,
    /// The value is none of a known few.
    NotSupported,
    /// There are too many values.
    TooMany,
}

impl FieldErrorKind {
    /// The cause's `reason`, e.g. `FieldValueInvalid`.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::Forbidden => "FieldValueForbidden",
            Self::NotSupported => "FieldValueNotSupported",
            Self::TooMany => "FieldValueTooMany",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid value",
            Self::Required => "Required value",
            Self::Forbidden => "Forbidden",
            Self::NotSupported => "Unsupported value",
            Self::TooMany => "Too many",
        }
    }
}

impl FieldError {
    /// The error without its field, as a `Status` cause carries it: `Invalid value: 0: must be …`.
    pub fn message(&self) -> String {
        let parts = [self.kind.words(), self.value.as_str(), self.detail.as_str()];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(": ")
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message())
    }
}

/// Checks a policy as the API server does when it is created.
///
/// # Errors
///
/// Every field that breaks a rule, in the order Kubernetes finds them; never an empty list.
pub fn validate(policy: &NetworkPolicy) -> Result<(), Vec<FieldError>> {
    let mut check = Check(Vec::new());
    let empty = NetworkPolicySpec::default();
    let spec = policy.spec.as_ref().unwrap_or(&empty);
    check.selector("spec.podSelector", spec.pod_selector.as_ref());
    for (index, rule) in spec.ingress.iter().flatten().enumerate() {
        check.rule(&format!("spec.ingress[{index}]"), "from", rule.ports.as_deref(), rule.from.as_deref());
    }
    for (index, rule) in spec.egress.iter().flatten().enumerate() {
        check.rule(&format!("spec.egress[{index}]"), "to", rule.ports.as_deref(), rule.to.as_deref());
    }
    check.types(spec.policy_types.as_deref().unwrap_or_default());
    if check.0.is_empty() { Ok(()) } else { Err(check.0) }
}

struct Check(Vec<FieldError>);

impl Check {
    fn add(&mut self, kind: FieldErrorKind, field: impl Into<String>, value: impl Into<String>, detail: &str) {
        self.0.push(FieldError { field: field.into(), kind, value: value.into(), detail: detail.to_owned() });
    }

    fn types(&mut self, types: &[String]) {
        if types.len() > 2 {
            self.add(FieldErrorKind::TooMany, "spec.policyTypes", types.len().to_string(), "must have at most 2 items");
            return;
        }
        for (index, named) in types.iter().enumerate() {
            if named != "Ingress" && named != "Egress" {
                let field = format!("spec.policyTypes[{index}]");
                self.add(
                    FieldErrorKind::NotSupported,
                    field,
                    quoted(named),
                    r#"supported values: "Egress", "Ingress""#,
                );
            }
        }
    }

    fn rule(
        &mut self,
        path: &str,
        peers_name: &str,
        ports: Option<&[NetworkPolicyPort]>,
        peers: Option<&[NetworkPolicyPeer]>,
    ) {
        for (index, port) in ports.unwrap_or_default().iter().enumerate() {
            self.port(&format!("{path}.ports[{index}]"), port);
        }
        for (index, peer) in peers.unwrap_or_default().iter().enumerate() {
            self.peer(&format!("{path}.{peers_name}[{index}]"), peer);
        }
    }

    fn port(&mut self, path: &str, port: &NetworkPolicyPort) {
        use FieldErrorKind::{Invalid, NotSupported, Required};
        if let Some(protocol) = port.protocol.as_deref()
            && !matches!(protocol, "TCP" | "UDP" | "SCTP")
        {
            let field = format!("{path}.protocol");
            self.add(NotSupported, field, quoted(protocol), r#"supported values: "SCTP", "TCP", "UDP""#);
        }
        let end_field = format!("{path}.endPort");
        match (&port.port, port.end_port) {
            (None, None) => {}
            (None, Some(_)) => self.add(Required, end_field, "", "must be specified with port"),
            (Some(IntOrString::String(name)), end) => {
                self.port_name(&format!("{path}.port"), name);
                if end.is_some() {
                    self.add(Required, end_field, "", "must not be specified when `port` is non-numeric");
                }
            }
            (Some(IntOrString::Int(first)), end) => {
                self.number(&format!("{path}.port"), *first);
                let Some(last) = end else { return };
                if last < *first {
                    let detail = "must be greater than or equal to `port`";
                    self.add(Invalid, end_field.clone(), last.to_string(), detail);
                }
                self.number(&end_field, last);
            }
        }
    }

    fn number(&mut self, field: &str, number: i32) {
        if !(1..=65535).contains(&number) {
            let detail = "must be between 1 and 65535, inclusive";
            self.add(FieldErrorKind::Invalid, field, number.to_string(), detail);
        }
    }

    /// The rules of an IANA service name, each reported apart.
    fn port_name(&mut self, field: &str, name: &str) {
        let allowed = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        let rules = [
            (name.len() > 15, "must be no more than 15 characters"),
            (!allowed, "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"),
            (!name.contains(|c: char| c.is_ascii_lowercase()), "must contain at least one letter (a-z)"),
            (name.contains("--"), "must not contain consecutive hyphens"),
            (name.starts_with('-') || name.ends_with('-'), "must not begin or end with a hyphen"),
        ];
        for (_, detail) in rules.into_iter().filter(|(broken, _)| *broken) {
            self.add(FieldErrorKind::Invalid, field, quoted(name), detail);
        }
    }

    fn peer(&mut self, path: &str, peer: &NetworkPolicyPeer) {
        use FieldErrorKind::{Forbidden, Required};
        let mut has = false;
        for (name, selector) in [("podSelector", &peer.pod_selector), ("namespaceSelector", &peer.namespace_selector)] {
            has |= selector.is_some();
            self.selector(&format!("{path}.{name}"), selector.as_ref());
        }
        match &peer.ip_block {
            Some(_) if has => self.add(Forbidden, path, "", "may not specify both ipBlock and another peer"),
            Some(block) => self.block(&format!("{path}.ipBlock"), block),
            None if has => {}
            None => self.add(Required, path, "", "must specify a peer"),
        }
    }

    fn block(&mut self, path: &str, block: &IPBlock) {
        use FieldErrorKind::{Invalid, Required};
        const FORM: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        let cidr_field = format!("{path}.cidr");
        if block.cidr.is_empty() {
            return self.add(Required, cidr_field, "", "");
        }
        let Ok(cidr) = IpNet::from_str(&block.cidr) else {
            return self.add(Invalid, cidr_field, quoted(&block.cidr), FORM);
        };
        for (index, except) in block.except.iter().flatten().enumerate() {
            let field = format!("{path}.except[{index}]");
            match IpNet::from_str(except) {
                Err(_) => self.add(Invalid, field, quoted(except), FORM),
                Ok(inner) if cidr.contains(&inner.addr()) && inner.prefix_len() > cidr.prefix_len() => {}
                Ok(_) => self.add(Invalid, field, quoted(except), "must be a strict subset of `cidr`"),
            }
        }
    }

    fn selector(&mut self, path: &str, selector: Option<&LabelSelector>) {
        use FieldErrorKind::{Forbidden, Invalid, Required};
        let expressions = selector.and_then(|selector| selector.match_expressions.as_deref()).unwrap_or_default();
        for (index, expression) in expressions.iter().enumerate() {
            let path = format!("{path}.matchExpressions[{index}]");
            let values = expression.values.as_ref().is_some_and(|values| !values.is_empty());
            match expression.operator.as_str() {
                "In" | "NotIn" if !values => {
                    let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                    self.add(Required, format!("{path}.values"), "", detail);
                }
                "Exists" | "DoesNotExist" if values => {
                    let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                    self.add(Forbidden, format!("{path}.values"), "", detail);
                }
                "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
                other => self.add(Invalid, format!("{path}.operator"), quoted(other), "not a valid selector operator"),
            }
        }
    }
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}
