//! The query string of a request.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use pando_cluster::{LogRequest, ObjectKey};
use serde_json::Value;

use crate::api::refusal::{FieldError, Refusal};
use crate::cluster::FakeCluster;

/// The parameters by name; of several values the first counts.
#[derive(Debug, Default)]
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    /// Reads a query string; empty pairs, as in `&limit=5`, are passed over.
    pub(super) fn of(text: &str) -> Self {
        let mut parameters = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            parameters.entry(name.into_owned()).or_insert_with(|| value.into_owned());
        }
        Self(parameters)
    }

    /// The value of `name`; `None` when it is not there or empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether `name` is set, in Kubernetes' sense: present, and neither `false` nor `0`.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !matches!(value.as_str(), "false" | "0"))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| Refusal::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))
    }

    /// The options of a deletion: those of the body, else those of the query.
    pub(super) fn delete_options(&self, body: Value) -> Value {
        let mut options = body;
        if options["gracePeriodSeconds"].is_null()
            && let Ok(Some(seconds)) = self.number("gracePeriodSeconds")
        {
            options["gracePeriodSeconds"] = seconds.into();
        }
        options
    }

    /// What of which container's log is asked for.
    pub(super) fn log_request(&self, cluster: &FakeCluster, pod: &ObjectKey) -> Result<LogRequest, Refusal> {
        let (tail, limit) = (self.number("tailLines")?, self.number("limitBytes")?);
        let since_seconds = self.number("sinceSeconds")?;
        let since_time = self
            .text("sinceTime")
            .map(|date| date.parse::<Timestamp>().map_err(|_| Refusal::bad_request(format!("parsing time {date:?}"))));
        let since_time = since_time.transpose()?;
        let mut errors = Vec::new();
        if tail.is_some_and(|lines| lines < 0) {
            errors.push(FieldError::invalid("tailLines", tail, "must be greater than or equal to 0"));
        }
        if limit.is_some_and(|bytes| bytes < 1) {
            errors.push(FieldError::invalid("limitBytes", limit, "must be greater than 0"));
        }
        if since_seconds.is_some() && since_time.is_some() {
            errors.push(FieldError::forbidden("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified"));
        } else if since_seconds.is_some_and(|seconds| seconds < 1) {
            errors.push(FieldError::invalid("sinceSeconds", since_seconds, "must be greater than 0"));
        }
        if let Some(error) = errors.first() {
            return Err(Refusal::invalid_log_options(&pod.name, error));
        }
        let ago = since_seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
        let ago = ago.and_then(|ago| SignedDuration::try_from(ago).ok());
        Ok(LogRequest {
            namespace: pod.namespace.clone().unwrap_or_default(),
            pod: pod.name.clone(),
            container: self.container(cluster, pod)?,
            follow: self.flag("follow"),
            since: since_time.or_else(|| cluster.env().wall.now().checked_sub(ago?).ok()),
            tail_lines: tail.and_then(|lines| u64::try_from(lines).ok()),
            limit_bytes: limit.and_then(|bytes| u64::try_from(bytes).ok()),
            timestamps: self.flag("timestamps"),
        })
    }

    /// The container named, or the only one there is.
    fn container(&self, cluster: &FakeCluster, pod: &ObjectKey) -> Result<String, Refusal> {
        if let Some(name) = self.text("container") {
            return Ok(name.to_owned());
        }
        let found: Option<Pod> = cluster.with(|store| store.typed(pod.namespace.as_deref(), &pod.name));
        let spec = found.and_then(|pod| pod.spec).unwrap_or_default();
        match spec.containers.as_slice() {
            [] => Ok(String::new()),
            [only] => Ok(only.name.clone()),
            many => {
                let names: Vec<_> = many.iter().map(|container| container.name.as_str()).collect();
                let (pod, names) = (&pod.name, names.join(" "));
                Err(Refusal::bad_request(format!(
                    "a container name must be specified for pod {pod}, choose one of: [{names}]"
                )))
            }
        }
    }
}
