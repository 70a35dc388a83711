//! What the API server says when it does not do something: Kubernetes' codes, reasons, messages and details.

use pando_cluster::{Kind, ObjectKey};
use serde_json::{Value, json};

/// An answer that is not what was asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    reason: &'static str,
    message: String,
    details: Option<Value>,
    /// A page token that goes on from a newer state, given with an expired one.
    resume: Option<String>,
}

/// A field that breaks a rule, as Kubernetes words it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    reason: &'static str,
    path: String,
    text: String,
}

impl FieldError {
    /// The value is there and wrong.
    pub(crate) fn invalid(path: impl Into<String>, value: impl Into<Value>, why: impl AsRef<str>) -> Self {
        let text = format!("Invalid value: {}: {}", value.into(), why.as_ref());
        Self { reason: "FieldValueInvalid", path: path.into(), text }
    }

    /// The value is missing.
    pub(crate) fn required(path: impl Into<String>, why: &str) -> Self {
        let text = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        Self { reason: "FieldValueRequired", path: path.into(), text }
    }

    /// The value names something that is not there.
    pub(crate) fn not_found(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { reason: "FieldValueNotFound", path: path.into(), text: format!("Not found: {}", value.into()) }
    }

    /// An error that was worded elsewhere.
    pub(crate) fn of(reason: &'static str, path: &str, text: String) -> Self {
        Self { reason, path: path.to_owned(), text }
    }

    /// The field must not be set here.
    pub(crate) fn forbidden(path: impl Into<String>, why: impl AsRef<str>) -> Self {
        Self { reason: "FieldValueForbidden", path: path.into(), text: format!("Forbidden: {}", why.as_ref()) }
    }

    /// The value occurs twice where it must be unique.
    pub(crate) fn duplicate(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { reason: "FieldValueDuplicate", path: path.into(), text: format!("Duplicate value: {}", value.into()) }
    }

    /// The value is none of those there are.
    pub(crate) fn unsupported(path: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<_> = supported.iter().map(|it| format!("{it:?}")).collect();
        let text = format!("Unsupported value: {value:?}: supported values: {}", supported.join(", "));
        Self { reason: "FieldValueNotSupported", path: path.into(), text }
    }

    /// The list or text is longer than it may be.
    pub(crate) fn too_long(path: impl Into<String>, why: impl AsRef<str>) -> Self {
        Self { reason: "FieldValueTooLong", path: path.into(), text: format!("Too long: {}", why.as_ref()) }
    }
}

impl Refusal {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, resume: None }
    }

    fn about(self, kind: Kind, name: &str) -> Self {
        Self { details: Some(details(kind, name)), ..self }
    }

    /// There is no such object.
    pub(crate) fn not_found(key: &ObjectKey) -> Self {
        Self::new(404, "NotFound", format!("{} {:?} not found", resource(key.kind), key.name))
            .about(key.kind, &key.name)
    }

    /// The path names nothing that is served.
    pub(crate) fn no_such_path() -> Self {
        let mut refusal = Self::new(404, "NotFound", "the server could not find the requested resource");
        refusal.details = Some(json!({}));
        refusal
    }

    /// The name is taken.
    pub(crate) fn already_exists(key: &ObjectKey, being_deleted: bool) -> Self {
        let prefix = if being_deleted { "object is being deleted: " } else { "" };
        let message = format!("{prefix}{} {:?} already exists", resource(key.kind), key.name);
        Self::new(409, "AlreadyExists", message).about(key.kind, &key.name)
    }

    /// The object is at another version than the write was made for.
    pub(crate) fn modified(key: &ObjectKey) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {} {:?}: {why}", resource(key.kind), key.name),
        )
        .about(key.kind, &key.name)
    }

    /// A precondition of a deletion does not hold.
    ///
    /// Kubernetes names the kind here and not the resource, save for namespaces (tried on 1.34).
    pub(crate) fn precondition(key: &ObjectKey, why: &str) -> Self {
        let kind = if key.kind == Kind::Namespace { "namespaces" } else { key.kind.name() };
        let (mut subject, mut details) = (kind.to_owned(), json!({"name": key.name, "kind": kind}));
        if !key.kind.group().is_empty() {
            subject = format!("{kind}.{}", key.kind.group());
            details["group"] = key.kind.group().into();
        }
        let mut refusal =
            Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {subject} {:?}: {why}", key.name));
        refusal.details = Some(details);
        refusal
    }

    /// Admission or the access rules say no.
    ///
    /// `name` may be empty: then the sentence is about the kind alone.
    pub(crate) fn forbidden(kind: Kind, name: &str, why: impl AsRef<str>) -> Self {
        let why = why.as_ref();
        let message = if name.is_empty() {
            format!("{} is forbidden: {why}", resource(kind))
        } else {
            format!("{} {name:?} is forbidden: {why}", resource(kind))
        };
        Self::new(403, "Forbidden", message).about(kind, name)
    }

    /// The namespace is being deleted and takes nothing new.
    pub(crate) fn terminating(key: &ObjectKey) -> Self {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut refusal = Self::forbidden(key.kind, &key.name, why);
        if let Some(details) = &mut refusal.details {
            details["causes"] = json!([{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            }]);
        }
        refusal
    }

    /// The object breaks rules of its kind; `errors` is not empty.
    pub(crate) fn invalid(kind: Kind, name: &str, errors: &[FieldError]) -> Self {
        let lines: Vec<_> = errors.iter().map(|error| format!("{}: {}", error.path, error.text)).collect();
        let list = match lines.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let group = if kind.group().is_empty() { String::new() } else { format!(".{}", kind.group()) };
        let mut refusal = Self::new(422, "Invalid", format!("{}{group} {name:?} is invalid: {list}", kind.name()));
        let causes: Vec<_> = errors
            .iter()
            .map(|error| json!({"reason": error.reason, "message": error.text, "field": error.path}))
            .collect();
        let mut details = json!({"kind": kind.name(), "causes": causes});
        if !name.is_empty() {
            details["name"] = name.into();
        }
        if !kind.group().is_empty() {
            details["group"] = kind.group().into();
        }
        refusal.details = Some(details);
        refusal
    }

    /// The request itself makes no sense.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// A merge patch that makes an object which cannot be read.
    ///
    /// Kubernetes puts the whole object into its message, a Secret's data included (tried on 1.34).
    pub(crate) fn unreadable_patch(merged: &Value, why: &str) -> Self {
        let error = FieldError::invalid("patch", merged.to_string(), why);
        let message = format!(" \"\" is invalid: {}: {}", error.path, error.text);
        let cause = json!({"reason": error.reason, "message": error.text, "field": error.path});
        Self { details: Some(json!({"causes": [cause]})), ..Self::new(422, "Invalid", message) }
    }

    /// Options of a request for a pod's log that do not go together.
    pub(crate) fn invalid_log_options(pod: &str, error: &FieldError) -> Self {
        let message = format!("PodLogOptions {pod:?} is invalid: {}: {}", error.path, error.text);
        let cause = json!({"reason": error.reason, "message": error.text, "field": error.path});
        let details = json!({"name": pod, "kind": "PodLogOptions", "causes": [cause]});
        Self { details: Some(details), ..Self::new(422, "Invalid", message) }
    }

    /// Options of a list or watch that do not go together.
    pub(crate) fn invalid_options(what: &str, error: &FieldError) -> Self {
        let message = format!("{what}.meta.k8s.io \"\" is invalid: {}: {}", error.path, error.text);
        let cause = json!({"reason": error.reason, "message": error.text, "field": error.path});
        let details = json!({"group": "meta.k8s.io", "kind": what, "causes": [cause]});
        Self { details: Some(details), ..Self::new(422, "Invalid", message) }
    }

    /// The API server does not know what to say.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// The version or page token is no longer kept.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// The same, with a page token that goes on from the present.
    pub(crate) fn resumed_by(self, resume: Option<String>) -> Self {
        Self { resume, ..self }
    }

    /// A watch cannot go on from `from`, since `oldest` is the oldest version that is kept.
    pub(crate) fn too_old(from: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {from} ({oldest})"))
    }

    /// The verb is not served on this path.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self { details: Some(json!({})), ..Self::new(405, "MethodNotAllowed", message) }
    }

    /// The body is in a format that is not taken here.
    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// The body is longer than the API server reads.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// The version asked for has not come yet.
    pub(crate) fn too_new(asked: u64, newest: u64) -> Self {
        let mut refusal =
            Self::new(504, "Timeout", format!("Timeout: Too large resource version: {asked}, current: {newest}"));
        refusal.details = Some(json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        }));
        refusal
    }

    /// The refusal as the API server writes it.
    pub(crate) fn into_status(self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(details) = self.details {
            status["details"] = details;
        }
        if let Some(token) = self.resume {
            status["metadata"]["continue"] = token.into();
        }
        status
    }
}

/// The resource as messages name it, e.g. `networkpolicies.networking.k8s.io`.
pub(crate) fn resource(kind: Kind) -> String {
    if kind.group().is_empty() { kind.plural().to_owned() } else { format!("{}.{}", kind.plural(), kind.group()) }
}

fn details(kind: Kind, name: &str) -> Value {
    let mut details = json!({"kind": kind.plural()});
    if !name.is_empty() {
        details["name"] = name.into();
    }
    if !kind.group().is_empty() {
        details["group"] = kind.group().into();
    }
    details
}
