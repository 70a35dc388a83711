//! What can go wrong between us and a cluster, in Kubernetes' terms.
//!
//! The HTTP code alone does not say: 403 and 409 each mean several things. [`ClusterError::from_status`]
//! reads code, reason, details and, where Kubernetes gives nothing else, the known phrases of its messages;
//! a phrase it does not know stays generic, and a re-read decides.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use crate::object::ObjectKey;
use crate::redact;

/// A call to the cluster that did not do what was asked.
///
/// The message names the call and what Kubernetes answered; the cause stays in `source`.
#[derive(Debug, thiserror::Error)]
#[error("could not {verb} {subject}: {failure}")]
pub struct ClusterError {
    /// What was asked, e.g. `create`.
    pub verb: &'static str,
    /// Of what: an object, or the objects of a kind.
    pub subject: Box<Subject>,
    /// Why it was not done.
    pub failure: Failure,
    /// What lay beneath, where the failure did not come as an answer of the API server.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// What a call was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// One object.
    Object(ObjectKey),
    /// The objects of a kind (its plural), in a namespace or everywhere.
    Many(&'static str, Option<String>),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(key) => key.fmt(f),
            Self::Many(plural, Some(namespace)) => write!(f, "{plural} in {namespace}"),
            Self::Many(plural, None) => write!(f, "{plural} in the cluster"),
        }
    }
}

impl From<ObjectKey> for Subject {
    fn from(key: ObjectKey) -> Self {
        Self::Object(key)
    }
}

/// A rule that an object broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The field, e.g. `spec.containers[0].image`; empty when Kubernetes names none.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

/// What happened, as Kubernetes tells it. A message is Kubernetes' own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no such object or, on a create, no such namespace (HTTP 404).
    #[error("there is none")]
    NotFound,
    /// The name is taken (409 `AlreadyExists`).
    #[error("{}", if *.being_deleted { "an object of that name is still being deleted" } else { "it already exists" })]
    AlreadyExists {
        /// The API server said that the holder of the name is being deleted. `false` proves nothing.
        being_deleted: bool,
    },
    /// The object is another one by now, or at another version (409 `Conflict`).
    #[error("it has changed meanwhile: {0}")]
    Conflict(String),
    /// The quota's own bookkeeping was in the way; the same call succeeds a moment later (409 on the quota, or a quota without status).
    #[error("the quota was being updated: {0}")]
    QuotaConflict(String),
    /// The namespace is being deleted and takes nothing new (403 with cause `NamespaceTerminating`).
    #[error("its namespace is being deleted")]
    NamespaceTerminating,
    /// The pod's account is not there (403).
    #[error("its service account is missing: {0}")]
    ServiceAccountMissing(String),
    /// The namespace's quota has no room (403 `exceeded quota`).
    #[error("{0}")]
    QuotaExceeded(String),
    /// Our account lacks a permission (403 by the access rules).
    #[error("not allowed to {verb} {resource}")]
    Forbidden {
        /// The missing verb.
        verb: String,
        /// The resource it is missing on, e.g. `pods` or `networkpolicies.networking.k8s.io`.
        resource: String,
    },
    /// An admission rule refused the object: pod security, an admission policy, a webhook, a limit range (403).
    #[error("{0}")]
    Refused(String),
    /// The object breaks a rule of the API server (400, 405, 406, 413, 415, 422).
    #[error("{message}")]
    Invalid {
        /// Kubernetes' sentence.
        message: String,
        /// The fields concerned; empty when Kubernetes names none.
        causes: Vec<Cause>,
    },
    /// The version or page token is too old: start again from a fresh list (410).
    #[error("that version is no longer kept: {0}")]
    Expired(String),
    /// The API server sheds load (429, and 500 or 504 `ServerTimeout`).
    #[error("the API server is overloaded")]
    Overloaded {
        /// How long it asks us to wait.
        retry_after: Option<Duration>,
    },
    /// The API server does not know who we are (401).
    #[error("the API server does not accept our credentials")]
    Unauthorized,
    /// No answer in time, or one that leaves open whether the call was carried out.
    #[error("no answer in time{}", if *.may_have_happened { "; it may have been carried out" } else { "" })]
    Timeout {
        /// Whether the call may have been carried out all the same.
        may_have_happened: bool,
    },
    /// The API server cannot be reached or serves nothing now (refused connection, 502, 503); the call was not carried out.
    #[error("the API server is unavailable: {0}")]
    Unavailable(String),
    /// An answer that cannot be read.
    #[error("an answer that cannot be read: {0}")]
    Malformed(String),
}

impl ClusterError {
    /// An error without a cause beneath it.
    pub fn new(verb: &'static str, subject: impl Into<Subject>, failure: Failure) -> Self {
        Self { verb, subject: Box::new(subject.into()), failure, source: None }
    }

    /// The same with the cause beneath it.
    #[must_use]
    pub fn caused_by(self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// The answer to a call was an object of another kind than asked for.
    pub(crate) fn malformed(verb: &'static str, key: ObjectKey) -> Self {
        Self::new(verb, key, Failure::Malformed("an object of another kind".to_owned()))
    }

    /// What an API server's `Status` means for a call about `subject`.
    ///
    /// `retry_after` is the `Retry-After` header, where the transport has it; the status' own figure is used
    /// otherwise. Kubernetes quotes what it refuses, a Secret's data too: such values do not get into the error.
    pub fn from_status(
        verb: &'static str,
        subject: impl Into<Subject>,
        status: &Status,
        retry_after: Option<Duration>,
    ) -> Self {
        let subject = subject.into();
        let mut status = status.clone();
        redact::status(&subject, &mut status);
        let failure = classify(&subject, &status, retry_after);
        Self { verb, subject: Box::new(subject), failure, source: None }
    }

    /// Whether the object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self.failure, Failure::NotFound)
    }

    /// Whether the name is taken.
    pub fn is_already_exists(&self) -> bool {
        matches!(self.failure, Failure::AlreadyExists { .. })
    }

    /// Whether the object has changed meanwhile.
    pub fn is_conflict(&self) -> bool {
        matches!(self.failure, Failure::Conflict(_))
    }

    /// Whether a fresh list is needed.
    pub fn is_expired(&self) -> bool {
        matches!(self.failure, Failure::Expired(_))
    }

    /// What an operator should do; `None` where waiting or another try is enough.
    pub fn remedy(&self) -> Option<String> {
        match &self.failure {
            Failure::Forbidden { verb, resource } => Some(format!(
                "grant `{verb}` on `{resource}` to the account this runs as; `kubectl apply -k deploy/kubernetes` installs the roles it needs"
            )),
            Failure::Unauthorized => {
                Some("renew the credentials in the kubeconfig, or the token of the service account".to_owned())
            }
            Failure::Refused(_) => Some(
                "change the admission rule that the message names, or exempt the namespaces of Pando's apps from it"
                    .to_owned(),
            ),
            Failure::QuotaExceeded(_) => Some("raise the quota that the message names, or remove it".to_owned()),
            Failure::Unavailable(_) => {
                Some("check that the API server runs and that its address in the kubeconfig is right".to_owned())
            }
            Failure::NotFound
            | Failure::AlreadyExists { .. }
            | Failure::Conflict(_)
            | Failure::QuotaConflict(_)
            | Failure::NamespaceTerminating
            | Failure::ServiceAccountMissing(_)
            | Failure::Invalid { .. }
            | Failure::Expired(_)
            | Failure::Overloaded { .. }
            | Failure::Timeout { .. }
            | Failure::Malformed(_) => None,
        }
    }
}

fn classify(subject: &Subject, status: &Status, retry_after: Option<Duration>) -> Failure {
    let details = status.details.as_ref();
    let message = status.message.clone().unwrap_or_default();
    let reason = status.reason.as_deref().unwrap_or_default();
    let retry_after = retry_after.or_else(|| {
        details?.retry_after_seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs)
    });
    match (status.code.unwrap_or_default(), reason) {
        (404, _) => Failure::NotFound,
        (409, "AlreadyExists") => {
            Failure::AlreadyExists { being_deleted: message.starts_with("object is being deleted") }
        }
        (409, _) if is_about_quota(subject, status) => Failure::QuotaConflict(message),
        (409, _) => Failure::Conflict(message),
        (403, _) => forbidden(status, message),
        (410, _) => Failure::Expired(message),
        (401, _) => Failure::Unauthorized,
        (429, _) | (500 | 504, "ServerTimeout") => Failure::Overloaded { retry_after },
        (502 | 503, _) => Failure::Unavailable(message),
        (500, _) if message.contains("failed calling webhook") => Failure::Unavailable(message),
        // A gateway's time-out, an etcd election, a panic behind the handler: the write may be in the store.
        (500..=599, _) => Failure::Timeout { may_have_happened: true },
        (422, _) if message.contains("ValidatingAdmissionPolicy") => Failure::Refused(message),
        _ => Failure::Invalid {
            message,
            causes: details
                .and_then(|details| details.causes.as_ref())
                .into_iter()
                .flatten()
                .map(|cause| Cause {
                    field: cause.field.clone().unwrap_or_default(),
                    message: cause.message.clone().unwrap_or_default(),
                })
                .collect(),
        },
    }
}

/// A conflict on a quota, answered to a call about something else.
fn is_about_quota(subject: &Subject, status: &Status) -> bool {
    let kind = status.details.as_ref().and_then(|details| details.kind.as_deref()).unwrap_or_default();
    let about_quota = match subject {
        Subject::Object(key) => key.kind == crate::Kind::ResourceQuota,
        Subject::Many(..) => false,
    };
    !about_quota && kind.eq_ignore_ascii_case("resourcequotas")
}

/// The meanings of 403, told apart by Kubernetes' phrases (tried on 1.34).
fn forbidden(status: &Status, message: String) -> Failure {
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let terminating = causes.clone().any(|cause| cause.reason.as_deref() == Some("NamespaceTerminating"));
    if terminating || message.contains("because it is being terminated") {
        return Failure::NamespaceTerminating;
    }
    if message.contains("error looking up service account") {
        return Failure::ServiceAccountMissing(message);
    }
    if message.contains("status unknown for quota") {
        return Failure::QuotaConflict(message);
    }
    if message.contains("exceeded quota") {
        return Failure::QuotaExceeded(message);
    }
    if message.contains("attempting to grant RBAC permissions not currently held") {
        return Failure::Forbidden {
            verb: "bind".to_owned(),
            resource: "clusterroles.rbac.authorization.k8s.io".to_owned(),
        };
    }
    match missing_right(&message) {
        Some((verb, resource)) => Failure::Forbidden { verb, resource },
        None => Failure::Refused(message),
    }
}

/// Verb and resource of `… cannot <verb> resource "<resource>" in API group "<group>" …`.
fn missing_right(message: &str) -> Option<(String, String)> {
    let (_, rest) = message.split_once(" cannot ")?;
    let (verb, rest) = rest.split_once(" resource \"")?;
    let (resource, rest) = rest.split_once('"')?;
    let group =
        rest.split_once("in API group \"").and_then(|(_, rest)| rest.split_once('"')).map_or("", |(group, _)| group);
    let resource = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
    Some((verb.to_owned(), resource))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};

    use super::*;
    use crate::Kind;

    type Means = fn(&Failure) -> bool;

    fn status(code: i32, reason: &str, message: &str) -> Status {
        Status {
            code: Some(code),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..Status::default()
        }
    }

    /// Each row is what Kubernetes 1.34 answered, and what it means.
    #[test]
    #[expect(clippy::too_many_lines, reason = "one table")]
    fn answers_are_told_apart_by_more_than_their_code() {
        let pod = ObjectKey::namespaced(Kind::Pod, "pando-a", "web-1");
        let modified = r#"Operation cannot be fulfilled on resourcequotas "q": the object has been modified; please apply your changes to the latest version and try again"#;
        let on_quota = Status {
            details: Some(StatusDetails { kind: Some("resourcequotas".to_owned()), ..StatusDetails::default() }),
            ..status(409, "Conflict", modified)
        };
        let terminating = Status {
            details: Some(StatusDetails {
                causes: Some(vec![StatusCause {
                    reason: Some("NamespaceTerminating".to_owned()),
                    ..StatusCause::default()
                }]),
                ..StatusDetails::default()
            }),
            ..status(
                403,
                "Forbidden",
                r#"pods "web-1" is forbidden: unable to create new content in namespace pando-a because it is being terminated"#,
            )
        };
        let rows: Vec<(Status, Means)> = vec![
            (status(404, "NotFound", r#"pods "web-1" not found"#), |it| *it == Failure::NotFound),
            (status(409, "AlreadyExists", r#"pods "web-1" already exists"#), |it| {
                *it == Failure::AlreadyExists { being_deleted: false }
            }),
            (status(409, "AlreadyExists", r#"object is being deleted: pods "web-1" already exists"#), |it| {
                *it == Failure::AlreadyExists { being_deleted: true }
            }),
            (
                status(
                    409,
                    "Conflict",
                    r#"Operation cannot be fulfilled on pods "web-1": the object has been modified"#,
                ),
                |it| matches!(it, Failure::Conflict(_)),
            ),
            (on_quota, |it| matches!(it, Failure::QuotaConflict(_))),
            (terminating, |it| *it == Failure::NamespaceTerminating),
            (
                status(
                    403,
                    "Forbidden",
                    r#"pods "web-1" is forbidden: error looking up service account pando-a/pando-app: serviceaccount "pando-app" not found"#,
                ),
                |it| matches!(it, Failure::ServiceAccountMissing(_)),
            ),
            (
                status(
                    403,
                    "Forbidden",
                    r#"pods "p1" is forbidden: exceeded quota: q, requested: limits.cpu=1, used: limits.cpu=2, limited: limits.cpu=2"#,
                ),
                |it| matches!(it, Failure::QuotaExceeded(_)),
            ),
            (
                status(
                    403,
                    "Forbidden",
                    r#"pods "p1" is forbidden: status unknown for quota: q, resources: limits.cpu"#,
                ),
                |it| matches!(it, Failure::QuotaConflict(_)),
            ),
            (
                status(
                    403,
                    "Forbidden",
                    r#"pods "p1" is forbidden: failed quota: q: must specify limits.cpu for: gate"#,
                ),
                |it| matches!(it, Failure::Refused(_)),
            ),
            (
                status(
                    403,
                    "Forbidden",
                    r#"networkpolicies.networking.k8s.io is forbidden: User "system:serviceaccount:pando:pando" cannot create resource "networkpolicies" in API group "networking.k8s.io" in the namespace "pando-a""#,
                ),
                |it| {
                    *it == Failure::Forbidden {
                        verb: "create".to_owned(),
                        resource: "networkpolicies.networking.k8s.io".to_owned(),
                    }
                },
            ),
            (
                status(
                    403,
                    "Forbidden",
                    r#"nodes is forbidden: User "x" cannot list resource "nodes" in API group "" at the cluster scope"#,
                ),
                |it| *it == Failure::Forbidden { verb: "list".to_owned(), resource: "nodes".to_owned() },
            ),
            (
                status(
                    403,
                    "Forbidden",
                    r#"pods "a" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)"#,
                ),
                |it| matches!(it, Failure::Refused(_)),
            ),
            (
                status(
                    403,
                    "Forbidden",
                    r#"rolebindings.rbac.authorization.k8s.io "x" is forbidden: user "x" (groups=["y"]) is attempting to grant RBAC permissions not currently held:"#,
                ),
                |it| matches!(it, Failure::Forbidden { verb, .. } if verb == "bind"),
            ),
            (status(403, "Forbidden", "something new"), |it| *it == Failure::Refused("something new".to_owned())),
            (
                status(
                    422,
                    "Invalid",
                    r#"namespaces "x" is forbidden: ValidatingAdmissionPolicy 'pando-namespaces' with binding 'b' denied request: no"#,
                ),
                |it| matches!(it, Failure::Refused(_)),
            ),
            (status(422, "Invalid", "spec.x: Required value"), |it| matches!(it, Failure::Invalid { .. })),
            (status(410, "Expired", "too old resource version: 1 (503)"), |it| matches!(it, Failure::Expired(_))),
            (status(429, "TooManyRequests", "wait"), |it| *it == Failure::Overloaded { retry_after: None }),
            (status(504, "Timeout", "request did not complete"), |it| {
                *it == Failure::Timeout { may_have_happened: true }
            }),
            (status(500, "ServerTimeout", "try again"), |it| *it == Failure::Overloaded { retry_after: None }),
            (status(500, "InternalError", "etcdserver: request timed out"), |it| {
                *it == Failure::Timeout { may_have_happened: true }
            }),
            (status(500, "InternalError", r#"Internal error occurred: failed calling webhook "w""#), |it| {
                matches!(it, Failure::Unavailable(_))
            }),
            (status(503, "ServiceUnavailable", "starting"), |it| matches!(it, Failure::Unavailable(_))),
            (status(401, "Unauthorized", "Unauthorized"), |it| *it == Failure::Unauthorized),
        ];
        for (status, expected) in rows {
            let error = ClusterError::from_status("create", pod.clone(), &status, None);
            assert!(expected(&error.failure), "{status:?} became {:?}", error.failure);
        }
    }

    #[test]
    fn a_refused_secret_is_not_quoted() {
        let secret = ObjectKey::namespaced(Kind::Secret, "pando-a", "pando-env-web");
        let quoting = status(
            422,
            "Invalid",
            r#" "" is invalid: patch: Invalid value: "{\"data\":{\"A\":\"aHVudGVyMg\"}}": illegal base64"#,
        );
        let error = ClusterError::from_status("patch", secret, &quoting, None);
        let printed = format!("{error} {error:?}");
        assert!(!printed.contains("aHVudGVyMg") && printed.contains("illegal base64"), "{printed}");
    }

    #[test]
    fn the_wait_asked_for_is_kept() {
        let details = Some(StatusDetails { retry_after_seconds: Some(3), ..StatusDetails::default() });
        let busy = Status { details, ..status(429, "TooManyRequests", "wait") };
        let pod = ObjectKey::namespaced(Kind::Pod, "a", "b");
        let from_body = ClusterError::from_status("get", pod.clone(), &busy, None);
        let from_header = ClusterError::from_status("get", pod, &busy, Some(Duration::from_secs(9)));
        assert_eq!(from_body.failure, Failure::Overloaded { retry_after: Some(Duration::from_secs(3)) });
        assert_eq!(from_header.failure, Failure::Overloaded { retry_after: Some(Duration::from_secs(9)) });
    }
}
