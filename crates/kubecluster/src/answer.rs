//! What an answer means: objects, pages, and the ways in which a call fails. Pure.
//!
//! No error made here holds a body, or the words of a JSON parser, which quotes what it read: either may be a
//! Secret's.

use std::borrow::Cow;
use std::error::Error;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use hyper_util::client::legacy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::client::AuthError;
use pando_cluster::{ClusterError, Failure, Kind, Object, ObjectKey, Page, ResourceVersion};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::call::{About, Effect};
use crate::connect::ConnectError;

/// The object in an answer about the object at `key`.
pub(crate) fn object(about: &About, key: &ObjectKey, body: &[u8]) -> Result<Object, ClusterError> {
    let malformed = |what: String| about.fails(Failure::Malformed(what));
    let text = std::str::from_utf8(body).map_err(|_| malformed("it is not text".to_owned()))?;
    let object = Object::from_json_str(key.kind, text)
        .map_err(|error| malformed(format!("it does not read as a {} at {}", key.kind, position(&error))))?;
    // Almost any JSON reads as an object whose fields are all absent.
    if object.key() == *key { Ok(object) } else { Err(malformed(format!("it is about {}", object.key()))) }
}

#[derive(Deserialize)]
struct WireList<'a> {
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    metadata: Option<WireListMeta>,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireListMeta {
    resource_version: Option<String>,
    r#continue: Option<String>,
}

/// The page in an answer, ordered by namespace and name, and how many of its items could not be read.
///
/// An unreadable item is logged and left out (BR-24): one odd object of somebody else must not blind us to all
/// the others.
pub(crate) fn page(about: &About, kind: Kind, body: &[u8]) -> Result<(Page, u64), ClusterError> {
    let malformed = |what: &str| about.fails(Failure::Malformed(what.to_owned()));
    let list: WireList<'_> =
        serde_json::from_slice(body).map_err(|error| malformed(&format!("no list at {}", position(&error))))?;
    // Almost any JSON reads as an empty list, and an empty list is a strong claim.
    if !list.kind.is_some_and(|kind| kind.ends_with("List")) {
        return Err(malformed("not a list"));
    }
    let meta = list.metadata.ok_or_else(|| malformed("a list without metadata"))?;
    let version = meta.resource_version.filter(|version| !version.is_empty());
    let version = version.ok_or_else(|| malformed("a list without a version"))?;
    let mut skipped = 0;
    let mut items: Vec<Object> = Vec::new();
    for item in list.items.unwrap_or_default() {
        match Object::from_json_str(kind, item.get()) {
            Ok(object) => items.push(object),
            Err(error) => {
                skipped += 1;
                log_unreadable(about, kind, item.get(), &error);
            }
        }
    }
    // The API server orders by `<namespace>/<name>`, where `a-b/x` comes before `a/x`.
    items.sort_by_cached_key(Object::key);
    let next = meta.r#continue.filter(|next| !next.is_empty());
    Ok((Page { items, version: ResourceVersion::new(version), next }, skipped))
}

/// Logs that an object was left out because it could not be read.
pub(crate) fn log_unreadable(about: &About, kind: Kind, json: &str, error: &serde_json::Error) {
    let (namespace, name) = name_of(json);
    let at = position(error);
    tracing::warn!(verb = about.verb, %kind, namespace, name, at, "left out an object that cannot be read");
}

/// Namespace and name in an object that does not read as its kind; empty where they do not read either.
fn name_of(json: &str) -> (String, String) {
    #[derive(Deserialize)]
    struct Named {
        metadata: Meta,
    }
    #[derive(Deserialize)]
    struct Meta {
        #[serde(default)]
        namespace: serde_json::Value,
        #[serde(default)]
        name: serde_json::Value,
    }
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    match serde_json::from_str::<Named>(json) {
        Ok(named) => (text(&named.metadata.namespace), text(&named.metadata.name)),
        Err(_) => (String::new(), String::new()),
    }
}

/// Where a parser stumbled, without the words it stumbled over.
pub(crate) fn position(error: &serde_json::Error) -> String {
    format!("line {} column {} ({:?})", error.line(), error.column(), error.classify())
}

/// Why the API server did not do what was asked, from an answer that is not a success.
pub(crate) fn refusal(about: &About, code: StatusCode, headers: &HeaderMap, body: &[u8]) -> ClusterError {
    let retry_after = retry_after(headers);
    match serde_json::from_slice::<Status>(body) {
        // Any JSON object without a `kind` reads as a Status too.
        Ok(mut status) if status.status.is_some() || status.reason.is_some() => {
            status.code = status.code.filter(|code| *code != 0).or(Some(code.as_u16().into()));
            ClusterError::from_status(about.verb, about.subject.clone(), &status, retry_after)
        }
        Ok(_) | Err(_) => not_kubernetes(about, code, headers, body, retry_after),
    }
}

/// What an answer means that no API server's handler wrote: a proxy's, or the server's own before its handlers.
///
/// It proves less. A 404 from whatever else listens there must not look like absence, and a balancer's 502
/// leaves open what happened behind it.
fn not_kubernetes(
    about: &About,
    code: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    retry_after: Option<Duration>,
) -> ClusterError {
    let message = match (about.effect, first_line(headers, body)) {
        // What refuses a write may repeat it, Secret and all.
        (Effect::Write, _) | (Effect::Read, None) => format!("HTTP {code}"),
        (Effect::Read, Some(text)) => format!("HTTP {code}: {text}"),
    };
    let unsure = about.effect == Effect::Write;
    about.fails(match code.as_u16() {
        401 => Failure::Unauthorized,
        408 | 500..=599 if unsure => Failure::Timeout { may_have_happened: true },
        408 | 504 => Failure::Timeout { may_have_happened: false },
        410 => Failure::Expired(message),
        413 => Failure::Invalid { message, causes: Vec::new() },
        429 => Failure::Overloaded { retry_after },
        500..=599 => Failure::Unavailable(message),
        _ => Failure::Malformed(format!("{message}, which no Kubernetes API server says")),
    })
}

/// The first line of a plain text, if it is one and short enough to be a message.
fn first_line(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    const LONGEST: usize = 200;
    let content_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    if !content_type.starts_with("text/plain") {
        return None;
    }
    let text = String::from_utf8_lossy(body.get(..4 * LONGEST).unwrap_or(body)).into_owned();
    let line = text.lines().next().unwrap_or_default().trim();
    let short: String = line.chars().filter(|char| !char.is_control()).take(LONGEST).collect();
    (!short.is_empty()).then_some(short)
}

/// The wait asked for, in its form as seconds; Kubernetes uses no other.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Why there was no answer at all.
pub(crate) fn no_answer(about: &About, error: kube::Error) -> ClusterError {
    let error: Box<dyn Error + Send + Sync> = match error {
        kube::Error::Service(error) => error,
        other => Box::new(other),
    };
    if let Some(auth) = error.downcast_ref::<AuthError>() {
        // Its text may quote a credential plugin's output.
        return about.fails(Failure::Unauthorized).caused_by(ConnectError::of_auth(auth));
    }
    if error.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect) {
        return about.fails(Failure::Unavailable("there is no connection to it".to_owned())).caused_by(error);
    }
    broken_off(about, error)
}

/// The connection broke while a call or its answer was under way.
pub(crate) fn broken_off(about: &About, error: impl Into<Box<dyn Error + Send + Sync>>) -> ClusterError {
    let failure = match about.effect {
        Effect::Write => Failure::Timeout { may_have_happened: true },
        Effect::Read => Failure::Unavailable("the connection broke".to_owned()),
    };
    about.fails(failure).caused_by(error)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use pando_cluster::{Scope, Subject};
    use serde_json::json;

    use super::*;

    fn about(effect: Effect) -> About {
        let subject = ObjectKey::namespaced(Kind::Secret, "a", "b").into();
        About { verb: "get", subject, effect }
    }

    fn listing() -> About {
        About { verb: "list", subject: Subject::Many("pods", None), effect: Effect::Read }
    }

    fn headers(content_type: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))])
    }

    #[test]
    fn an_answer_that_is_no_status_is_told_by_its_code_and_proves_little() {
        use Effect::{Read, Write};
        type Row = (u16, Effect, fn(&Failure) -> bool);
        let rows: [Row; 14] = [
            (401, Read, |it| *it == Failure::Unauthorized),
            (404, Read, |it| matches!(it, Failure::Malformed(_))),
            (404, Write, |it| matches!(it, Failure::Malformed(_))),
            (302, Read, |it| matches!(it, Failure::Malformed(_))),
            (403, Write, |it| matches!(it, Failure::Malformed(_))),
            (409, Write, |it| matches!(it, Failure::Malformed(_))),
            (410, Read, |it| matches!(it, Failure::Expired(_))),
            (413, Write, |it| matches!(it, Failure::Invalid { .. })),
            (429, Write, |it| *it == Failure::Overloaded { retry_after: None }),
            (502, Read, |it| matches!(it, Failure::Unavailable(_))),
            (502, Write, |it| *it == Failure::Timeout { may_have_happened: true }),
            (503, Write, |it| *it == Failure::Timeout { may_have_happened: true }),
            (504, Read, |it| *it == Failure::Timeout { may_have_happened: false }),
            (500, Read, |it| matches!(it, Failure::Unavailable(_))),
        ];
        for (code, effect, expected) in rows {
            for body in ["", "<html>", "{}", r#"{"error":"x"}"#, "null"] {
                let code = StatusCode::from_u16(code).expect("a code");
                let failure = refusal(&about(effect), code, &headers("text/html"), body.as_bytes()).failure;
                assert!(expected(&failure), "{code} {effect:?} {body:?} became {failure:?}");
            }
        }
    }

    #[test]
    fn a_status_is_told_by_its_reason_and_a_missing_code_is_the_answers() {
        let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": "AlreadyExists", "message": r#"pods "b" already exists"#});
        let error =
            refusal(&about(Effect::Write), StatusCode::CONFLICT, &HeaderMap::new(), body.to_string().as_bytes());
        assert!(error.is_already_exists(), "{error}");
    }

    #[test]
    fn the_wait_asked_for_in_a_header_is_kept() {
        for (header, expected) in
            [("7", Some(7)), (" 0 ", Some(0)), ("Wed, 21 Oct 2015 07:28:00 GMT", None), ("-1", None)]
        {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(header))]);
            let error = refusal(&about(Effect::Read), StatusCode::TOO_MANY_REQUESTS, &headers, b"busy");
            assert_eq!(
                error.failure,
                Failure::Overloaded { retry_after: expected.map(Duration::from_secs) },
                "{header}"
            );
        }
    }

    #[test]
    fn a_plain_text_is_quoted_in_short_after_a_read_and_never_after_a_write() {
        let text = format!("apiserver is shutting\u{7} down {}\nsecond line", "x".repeat(1000));
        let read = refusal(
            &about(Effect::Read),
            StatusCode::BAD_GATEWAY,
            &headers("text/plain; charset=utf-8"),
            text.as_bytes(),
        );
        let Failure::Unavailable(message) = &read.failure else { panic!("{read:?}") };
        assert!(message.starts_with("HTTP 502 Bad Gateway: apiserver is shutting down xx"), "{message}");
        assert!(message.len() < 300 && !message.contains("second"), "{message}");
        let write = refusal(&about(Effect::Write), StatusCode::NOT_FOUND, &headers("text/plain"), b"hunter2");
        assert!(!format!("{write:?} {write}").contains("hunter2"), "{write:?}");
    }

    #[test]
    fn one_odd_item_does_not_cost_the_others() {
        let body = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9", "continue": ""},
        "items": [
            {"metadata": {"namespace": "a-b", "name": "x"}},
            {"metadata": {"namespace": "a", "name": "odd"}, "spec": {"containers": "many"}},
            {"metadata": "odd"},
            17,
            {"metadata": {"namespace": "a", "name": "x"}},
        ]});
        let (page, skipped) = page(&listing(), Kind::Pod, body.to_string().as_bytes()).expect("a page");
        let keys: Vec<_> = page.items.iter().map(|object| object.key().to_string()).collect();
        assert_eq!(keys, ["Pod a/x", "Pod a-b/x"]);
        assert_eq!((skipped, page.version.as_str(), page.next), (3, "9", None));
    }

    #[test]
    fn an_empty_list_is_believed_only_when_it_is_one() {
        let ours = |items: &str, kind: &str, version: &str| {
            format!(
                r#"{{"kind":"{kind}","metadata":{{"resourceVersion":"{version}","continue":"c"}},"items":{items}}}"#
            )
        };
        let read = |body: String| page(&listing(), Kind::Pod, body.as_bytes());
        let (empty, skipped) = read(ours("null", "PodList", "9")).expect("null is Go's empty list");
        assert!(empty.items.is_empty() && skipped == 0);
        assert_eq!(empty.next.as_deref(), Some("c"));
        for body in [
            ours("[]", "Pod", "9"),
            ours("[]", "PodList", ""),
            "{}".to_owned(),
            r#"{"kind":"PodList"}"#.to_owned(),
            "[]".to_owned(),
            "<html>".to_owned(),
            ours("[", "PodList", "9"),
        ] {
            let error = read(body.clone()).expect_err(&body);
            assert!(matches!(error.failure, Failure::Malformed(_)), "{body}: {error}");
        }
    }

    #[test]
    fn an_object_is_believed_only_when_it_is_the_one_asked_for() {
        let key = ObjectKey::namespaced(Kind::Secret, "a", "b");
        let good = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"namespace": "a", "name": "b"}});
        assert_eq!(object(&about(Effect::Read), &key, good.to_string().as_bytes()).expect("good").key(), key);
        for odd in [
            json!({}),
            json!({"metadata": {"namespace": "a", "name": "c"}}),
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": "a", "name": "b"}}),
            json!({"metadata": {"namespace": "a", "name": "b"}, "data": "hunter2"}),
            json!({"metadata": {"namespace": "a", "name": "b"}, "data": {"PASSWORD": "hunter2 is not base64"}}),
        ] {
            let error = object(&about(Effect::Read), &key, odd.to_string().as_bytes()).expect_err("odd");
            assert!(matches!(error.failure, Failure::Malformed(_)), "{error}");
            assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn a_scope_is_named_in_errors() {
        let call = crate::call::list(&pando_cluster::ListRequest::of(Kind::Pod, Scope::Namespace("a".to_owned())));
        let about = call.expect("a call").about;
        assert_eq!(about.fails(Failure::NotFound).to_string(), "could not list pods in a: there is none");
    }
}
