//! The port's questions as HTTP requests: paths, queries and bodies. Pure; nothing is sent here.
//!
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris>

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Method, Request};
use pando_cluster::{
    ClusterError, DeleteOptions, Failure, Kind, ListRequest, LogRequest, MergePatch, Object, ObjectKey, Scope, Scoped,
    Selector, Subject, WatchRequest,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

/// One call: what goes over the wire, and what is said about it when it fails.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) about: About,
    pub(crate) request: Request<Bytes>,
}

/// What a call is about; outlives the call where the answer is a stream.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) verb: &'static str,
    pub(crate) subject: Subject,
    pub(crate) effect: Effect,
}

/// What is left to find out when a call broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: it only reads.
    Read,
    /// Whether it was carried out.
    Write,
}

impl About {
    /// The call did not do what was asked.
    pub(crate) fn fails(&self, failure: Failure) -> ClusterError {
        ClusterError::new(self.verb, self.subject.clone(), failure)
    }
}

/// Everything but the characters that mean nothing anywhere in a URL.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Sent with every call; Kubernetes names us by it in audit logs and in `managedFields`.
const AGENT: &str = concat!("pando-k8s/", env!("CARGO_PKG_VERSION"));

/// A misspelt field of ours is refused instead of dropped.
const STRICT: &[(&str, &str)] = &[("fieldValidation", "Strict")];

pub(crate) fn get(key: &ObjectKey) -> Result<Call, ClusterError> {
    let about = About { verb: "get", subject: key.clone().into(), effect: Effect::Read };
    let path = object_path(&about, key)?;
    Ok(about.call(Method::GET, path, &[], None))
}

pub(crate) fn list(request: &ListRequest) -> Result<Call, ClusterError> {
    let about = About { verb: "list", subject: many(request.kind, &request.scope), effect: Effect::Read };
    let path = scope_path(&about, request.kind, &request.scope)?;
    let limit = request.limit.map(|limit| limit.to_string());
    let mut query = selectors(&request.labels, &request.fields);
    query.extend(limit.map(|limit| ("limit", limit)));
    query.extend(request.after.clone().map(|after| ("continue", after)));
    Ok(about.call(Method::GET, path, &borrowed(&query), None))
}

pub(crate) fn create(object: &Object) -> Result<Call, ClusterError> {
    let key = object.key();
    let about = About { verb: "create", subject: key.clone().into(), effect: Effect::Write };
    // Proves that the name is one, although the path of a creation does not hold it.
    object_path(&about, &key)?;
    let path = collection_path(&about, key.kind, key.namespace.as_deref())?;
    let body = object.to_json().map_err(|error| about.unwritable(&error))?;
    about.with_body(Method::POST, path, STRICT, "application/json", &body)
}

pub(crate) fn patch(key: &ObjectKey, change: &MergePatch) -> Result<Call, ClusterError> {
    let about = About { verb: "patch", subject: key.clone().into(), effect: Effect::Write };
    let path = object_path(&about, key)?;
    about.with_body(Method::PATCH, path, STRICT, "application/merge-patch+json", change.as_json())
}

pub(crate) fn delete(key: &ObjectKey, options: &DeleteOptions) -> Result<Call, ClusterError> {
    let about = About { verb: "delete", subject: key.clone().into(), effect: Effect::Write };
    let path = object_path(&about, key)?;
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": { "uid": options.uid.as_str() },
        "propagationPolicy": options.propagation.as_str(),
    });
    if let Some(version) = &options.version {
        body["preconditions"]["resourceVersion"] = version.as_str().into();
    }
    if let Some(seconds) = options.grace_seconds {
        body["gracePeriodSeconds"] = seconds.into();
    }
    about.with_body(Method::DELETE, path, &[], "application/json", &body)
}

pub(crate) fn watch(request: &WatchRequest) -> Result<Call, ClusterError> {
    let about = About { verb: "watch", subject: many(request.kind, &request.scope), effect: Effect::Read };
    let path = scope_path(&about, request.kind, &request.scope)?;
    let mut query = vec![
        ("watch", "true".to_owned()),
        ("allowWatchBookmarks", "true".to_owned()),
        ("resourceVersion", request.from.as_str().to_owned()),
        // Zero would be no limit at all to the server.
        ("timeoutSeconds", request.timeout.as_secs().max(1).to_string()),
    ];
    query.extend(selectors(&request.labels, &request.fields));
    Ok(about.call(Method::GET, path, &borrowed(&query), None))
}

pub(crate) fn logs(request: &LogRequest) -> Result<Call, ClusterError> {
    let key = ObjectKey::namespaced(Kind::Pod, request.namespace.clone(), request.pod.clone());
    let about = About { verb: "read the log of", subject: key.clone().into(), effect: Effect::Read };
    let path = format!("{}/log", object_path(&about, &key)?);
    let mut query = vec![("container", request.container.clone())];
    query.extend(request.follow.then(|| ("follow", "true".to_owned())));
    query.extend(request.since.map(|since| ("sinceTime", since.to_string())));
    query.extend(request.tail_lines.map(|lines| ("tailLines", lines.to_string())));
    query.extend(request.limit_bytes.map(|bytes| ("limitBytes", bytes.to_string())));
    query.extend(request.timestamps.then(|| ("timestamps", "true".to_owned())));
    Ok(about.call(Method::GET, path, &borrowed(&query), None))
}

impl About {
    fn call(self, method: Method, path: String, query: &[(&str, &str)], body: Option<(&'static str, Bytes)>) -> Call {
        let mut uri = path;
        for (at, (name, value)) in query.iter().enumerate() {
            uri.push(if at == 0 { '?' } else { '&' });
            uri.push_str(name);
            uri.push('=');
            uri.extend(utf8_percent_encode(value, RESERVED));
        }
        let (content_type, body) = body.unzip();
        let mut request = Request::new(body.unwrap_or_default());
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().expect("a path and a query of unreserved characters and escapes are a URI");
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        Call { about: self, request }
    }

    fn with_body(
        self,
        method: Method,
        path: String,
        query: &[(&str, &str)],
        content_type: &'static str,
        body: &Value,
    ) -> Result<Call, ClusterError> {
        let body = serde_json::to_vec(body).map_err(|error| self.unwritable(&error))?;
        Ok(self.call(method, path, query, Some((content_type, body.into()))))
    }

    fn unwritable(&self, error: &serde_json::Error) -> ClusterError {
        self.invalid(format!("the object cannot be written as JSON ({:?})", error.classify()))
    }

    fn invalid(&self, message: String) -> ClusterError {
        self.fails(Failure::Invalid { message, causes: Vec::new() })
    }

    /// `segment`, once it is sure to stay one segment of a path.
    ///
    /// An empty name would turn a call about one object into one about all of them. The rule is Kubernetes' own
    /// for names in paths.
    fn segment<'a>(&self, what: &str, segment: &'a str) -> Result<&'a str, ClusterError> {
        if segment.is_empty() || segment == "." || segment == ".." || segment.contains(['/', '%']) {
            return Err(self.invalid(format!("{segment:?} cannot be the {what} of an object")));
        }
        Ok(segment)
    }
}

fn many(kind: Kind, scope: &Scope) -> Subject {
    let namespace = match scope {
        Scope::All => None,
        Scope::Namespace(namespace) => Some(namespace.clone()),
    };
    Subject::Many(kind.plural(), namespace)
}

fn object_path(about: &About, key: &ObjectKey) -> Result<String, ClusterError> {
    match (key.kind.scoped(), &key.namespace) {
        (Scoped::Cluster, Some(_)) => return Err(about.invalid(format!("a {} has no namespace", key.kind))),
        (Scoped::Namespace, None) => return Err(about.invalid(format!("a {} needs a namespace", key.kind))),
        (Scoped::Cluster, None) | (Scoped::Namespace, Some(_)) => {}
    }
    let mut path = collection_path(about, key.kind, key.namespace.as_deref())?;
    path.push('/');
    path.extend(utf8_percent_encode(about.segment("name", &key.name)?, RESERVED));
    Ok(path)
}

fn scope_path(about: &About, kind: Kind, scope: &Scope) -> Result<String, ClusterError> {
    match scope {
        Scope::All => collection_path(about, kind, None),
        Scope::Namespace(_) if kind.scoped() == Scoped::Cluster => {
            Err(about.invalid(format!("a {kind} has no namespace")))
        }
        Scope::Namespace(namespace) => collection_path(about, kind, Some(namespace)),
    }
}

fn collection_path(about: &About, kind: Kind, namespace: Option<&str>) -> Result<String, ClusterError> {
    let mut path = match kind.group() {
        "" => format!("/api/{}", kind.version()),
        group => format!("/apis/{group}/{}", kind.version()),
    };
    if let Some(namespace) = namespace {
        path.push_str("/namespaces/");
        path.extend(utf8_percent_encode(about.segment("namespace", namespace)?, RESERVED));
    }
    path.push('/');
    path.push_str(kind.plural());
    Ok(path)
}

fn selectors(labels: &Selector, fields: &Selector) -> Vec<(&'static str, String)> {
    [("labelSelector", labels), ("fieldSelector", fields)]
        .into_iter()
        .filter(|(_, selector)| !selector.is_everything())
        .map(|(name, selector)| (name, selector.to_string()))
        .collect()
}

fn borrowed<'a>(query: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    query.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::{Namespace, Pod};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use pando_cluster::{Propagation, ResourceVersion, Uid};

    use super::*;

    fn pod() -> ObjectKey {
        ObjectKey::namespaced(Kind::Pod, "pando-a", "web-1")
    }

    fn log_request() -> LogRequest {
        LogRequest {
            namespace: "pando-a".to_owned(),
            pod: "web-1".to_owned(),
            container: "app".to_owned(),
            follow: false,
            since: None,
            tail_lines: None,
            limit_bytes: None,
            timestamps: false,
        }
    }

    /// `METHOD path?query content-type body`, as it goes over the wire.
    fn wire(call: &Result<Call, ClusterError>) -> String {
        let request = &call.as_ref().expect("a call that can be made").request;
        let content_type = request.headers().get(CONTENT_TYPE).map(|value| value.to_str().expect("text"));
        let body = std::str::from_utf8(request.body()).expect("text");
        [request.method().as_str(), &request.uri().to_string(), content_type.unwrap_or_default(), body].join(" ")
    }

    #[test]
    fn every_verb_goes_over_the_wire_as_kubernetes_wants_it() {
        let named = |name: &str, namespace: Option<&str>| ObjectMeta {
            name: Some(name.to_owned()),
            namespace: namespace.map(str::to_owned),
            ..ObjectMeta::default()
        };
        let version = ResourceVersion::new("7");
        let in_namespace = Scope::Namespace("pando-a".to_owned());
        let labels = Selector::everything().equals("pando.dev/workload", "web").exists("x");
        let page = ListRequest::of(Kind::NetworkPolicy, in_namespace.clone()).labelled(labels.clone());
        let watched = WatchRequest {
            kind: Kind::Pod,
            scope: Scope::All,
            labels,
            fields: Selector::everything().equals("spec.nodeName", "n 1"),
            from: version.clone(),
            timeout: Duration::from_millis(290_999),
        };
        let precise = DeleteOptions {
            version: Some(version.clone()),
            grace_seconds: Some(0),
            propagation: Propagation::Foreground,
            ..DeleteOptions::of(Uid::new("u-1"))
        };
        let log = LogRequest {
            follow: true,
            since: Some("2024-05-06T07:08:09.123456789Z".parse().expect("a time")),
            tail_lines: Some(10),
            limit_bytes: Some(4096),
            timestamps: true,
            ..log_request()
        };
        let rows = [
            (get(&pod()), "GET /api/v1/namespaces/pando-a/pods/web-1  "),
            (get(&ObjectKey::cluster(Kind::Node, "n1")), "GET /api/v1/nodes/n1  "),
            (get(&ObjectKey::cluster(Kind::Namespace, "pando-a")), "GET /api/v1/namespaces/pando-a  "),
            (
                get(&ObjectKey::namespaced(Kind::RoleBinding, "a", "system:x y")),
                "GET /apis/rbac.authorization.k8s.io/v1/namespaces/a/rolebindings/system%3Ax%20y  ",
            ),
            (
                list(&page),
                "GET /apis/networking.k8s.io/v1/namespaces/pando-a/networkpolicies?labelSelector=pando.dev%2Fworkload%3Dweb%2Cx&limit=500  ",
            ),
            (
                list(&ListRequest {
                    limit: None,
                    after: Some("a+b/c=&".to_owned()),
                    ..ListRequest::of(Kind::Pod, Scope::All)
                }),
                "GET /api/v1/pods?continue=a%2Bb%2Fc%3D%26  ",
            ),
            (
                list(
                    &ListRequest::of(Kind::Pod, in_namespace)
                        .with_fields(Selector::everything().equals("metadata.name", "web-1")),
                ),
                "GET /api/v1/namespaces/pando-a/pods?fieldSelector=metadata.name%3Dweb-1&limit=500  ",
            ),
            (
                create(&Pod { metadata: named("web-1", Some("pando-a")), ..Pod::default() }.into()),
                r#"POST /api/v1/namespaces/pando-a/pods?fieldValidation=Strict application/json {"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-1","namespace":"pando-a"}}"#,
            ),
            (
                create(&Namespace { metadata: named("pando-a", None), ..Namespace::default() }.into()),
                r#"POST /api/v1/namespaces?fieldValidation=Strict application/json {"apiVersion":"v1","kind":"Namespace","metadata":{"name":"pando-a"}}"#,
            ),
            (
                patch(&pod(), &MergePatch::at(&version, json!({"spec": {"schedulingGates": null}}))),
                r#"PATCH /api/v1/namespaces/pando-a/pods/web-1?fieldValidation=Strict application/merge-patch+json {"metadata":{"resourceVersion":"7"},"spec":{"schedulingGates":null}}"#,
            ),
            (
                delete(&pod(), &DeleteOptions::of(Uid::new("u-1"))),
                r#"DELETE /api/v1/namespaces/pando-a/pods/web-1 application/json {"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"u-1"},"propagationPolicy":"Background"}"#,
            ),
            (
                delete(&pod(), &precise),
                r#"DELETE /api/v1/namespaces/pando-a/pods/web-1 application/json {"apiVersion":"v1","gracePeriodSeconds":0,"kind":"DeleteOptions","preconditions":{"resourceVersion":"7","uid":"u-1"},"propagationPolicy":"Foreground"}"#,
            ),
            (
                watch(&watched),
                "GET /api/v1/pods?watch=true&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=290&labelSelector=pando.dev%2Fworkload%3Dweb%2Cx&fieldSelector=spec.nodeName%3Dn%201  ",
            ),
            (
                watch(&WatchRequest {
                    timeout: Duration::ZERO,
                    labels: Selector::everything(),
                    fields: Selector::everything(),
                    ..watched
                }),
                "GET /api/v1/pods?watch=true&allowWatchBookmarks=true&resourceVersion=7&timeoutSeconds=1  ",
            ),
            (logs(&log_request()), "GET /api/v1/namespaces/pando-a/pods/web-1/log?container=app  "),
            (
                logs(&log),
                "GET /api/v1/namespaces/pando-a/pods/web-1/log?container=app&follow=true&sinceTime=2024-05-06T07%3A08%3A09.123456789Z&tailLines=10&limitBytes=4096&timestamps=true  ",
            ),
        ];
        for (call, expected) in rows {
            assert_eq!(wire(&call), expected);
        }
    }

    /// A call that would reach another object, or all of them, is not made.
    #[test]
    fn a_name_that_is_no_path_segment_is_refused() {
        for name in ["", ".", "..", "a/b", "a%2fb"] {
            for key in [ObjectKey::namespaced(Kind::Pod, "a", name), ObjectKey::namespaced(Kind::Pod, name, "a")] {
                let refused = [
                    get(&key).err(),
                    delete(&key, &DeleteOptions::of(Uid::new("u"))).err(),
                    patch(&key, &MergePatch::at(&ResourceVersion::new("1"), json!({}))).err(),
                ];
                for error in refused {
                    let failure = error.map(|error| error.failure);
                    assert!(matches!(failure, Some(Failure::Invalid { .. })), "{key}: {failure:?}");
                }
            }
            assert!(list(&ListRequest::of(Kind::Pod, Scope::Namespace(name.to_owned()))).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_namespace_belongs_to_exactly_the_kinds_that_have_one() {
        assert!(get(&ObjectKey::cluster(Kind::Pod, "a")).is_err());
        assert!(get(&ObjectKey::namespaced(Kind::Node, "a", "b")).is_err());
        assert!(list(&ListRequest::of(Kind::Node, Scope::Namespace("a".to_owned()))).is_err());
        assert!(create(&Pod::default().into()).is_err());
        assert!(create(&Namespace::default().into()).is_err());
    }
}
