//! Watches: the history after a version, then what happens, until the time is up.
//!
//! A watch reads the store's history at its own pace. One that falls behind what is kept is told so (410)
//! and ends, as an API server does with a slow reader.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::select;
use futures::stream::BoxStream;
use pando_cluster::Kind;
use pando_cluster::env::Instant;
use serde_json::{Value, json};

use crate::api::WatchQuery;
use crate::api::read::{Filter, version};
use crate::api::refusal::Refusal;
use crate::cluster::FakeCluster;
use crate::store::{Change, Store};

/// How long before its end a quiet watch gets a last bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// One line of a watch.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub(crate) word: &'static str,
    /// The object; of a bookmark only its kind and version; of an error the `Status`.
    pub(crate) object: Value,
}

/// Opens a watch that was found to be in order.
pub(crate) fn open(cluster: &FakeCluster, query: &WatchQuery) -> Result<BoxStream<'static, Frame>, Refusal> {
    let now = cluster.env().now();
    let mut watch = Watch {
        cluster: cluster.clone(),
        kind: query.which.kind,
        filter: Filter::of(&query.which)?,
        position: 0,
        ready: VecDeque::new(),
        bookmarks: query.bookmarks,
        bookmark_at: now,
        ends: now.plus(query.timeout),
        over: false,
    };
    watch.bookmark_at = watch.next_bookmark(now);
    match version(&query.version)?.filter(|version| *version > 0) {
        Some(version) if !query.initial => watch.position = version,
        _ => watch.begin_with_what_is_there(query.initial),
    }
    Ok(Box::pin(futures::stream::unfold(watch, async |mut watch| {
        let frame = watch.next().await?;
        Some((frame, watch))
    })))
}

struct Watch {
    cluster: FakeCluster,
    kind: Kind,
    filter: Filter,
    /// Everything up to this revision has been told or passed over.
    position: u64,
    ready: VecDeque<Frame>,
    bookmarks: bool,
    bookmark_at: Instant,
    ends: Instant,
    over: bool,
}

impl Watch {
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            let now = self.cluster.env().now();
            if self.over || now >= self.ends {
                return None;
            }
            self.read_on();
            if self.ready.is_empty() && self.bookmarks && now >= self.bookmark_at {
                self.ready.push_back(self.bookmark(&json!({})));
                self.bookmark_at = self.next_bookmark(now);
            }
            if self.ready.is_empty() && !self.over {
                let until = if self.bookmarks { self.ends.min(self.bookmark_at) } else { self.ends };
                let changed = std::pin::pin!(self.cluster.changed(self.position));
                select(changed, self.cluster.env().clock.sleep_until(until)).await;
            }
        }
    }

    /// Takes over the changes since the position.
    fn read_on(&mut self) {
        let Self { cluster, filter, position, ready, over, .. } = self;
        cluster.with(|store| {
            if let Some(changes) = store.changes_after(*position) {
                ready.extend(changes.filter_map(|change| told(filter, change)));
                *position = store.revision().max(*position);
            } else {
                let status = Refusal::too_old(*position, store.oldest()).into_status();
                ready.push_back(Frame { word: "ERROR", object: status });
                *over = true;
            }
        });
    }

    fn begin_with_what_is_there(&mut self, tell_end: bool) {
        let Self { cluster, filter, position, ready, kind, .. } = self;
        cluster.with(|store: &mut Store| {
            let objects = store.all(*kind).filter(|(key, object)| filter.covers(key) && filter.selects(object));
            ready.extend(objects.map(|(_, object)| Frame { word: "ADDED", object: object.clone() }));
            *position = store.revision();
        });
        if tell_end && self.bookmarks {
            self.ready.push_back(self.bookmark(&json!({"k8s.io/initial-events-end": "true"})));
        }
    }

    fn bookmark(&self, annotations: &Value) -> Frame {
        let mut meta = json!({"resourceVersion": self.position.to_string(), "creationTimestamp": null});
        if annotations.as_object().is_some_and(|it| !it.is_empty()) {
            meta["annotations"] = annotations.clone();
        }
        let object = json!({"kind": self.kind.name(), "apiVersion": self.kind.api_version(), "metadata": meta});
        Frame { word: "BOOKMARK", object }
    }

    /// Regularly, and once more shortly before the end.
    fn next_bookmark(&self, now: Instant) -> Instant {
        let regular = now.plus(self.cluster.config().bookmark_interval);
        let last = Instant::from_start(self.ends.since_start().saturating_sub(LAST_BOOKMARK));
        if last > now { regular.min(last) } else { regular }
    }
}

/// What a watch is told of a change: an object that comes to match appears, one that ceases to match goes.
fn told(filter: &Filter, change: &Change) -> Option<Frame> {
    if !filter.covers(&change.key) {
        return None;
    }
    let was = change.before.as_deref().filter(|before| filter.selects(before));
    let is = (!change.removed && filter.selects(&change.after)).then_some(&*change.after);
    let (word, object) = match (was, is) {
        (None, Some(after)) => ("ADDED", after.clone()),
        (Some(_), Some(after)) => ("MODIFIED", after.clone()),
        // The last state that matched, at the version of the change that ended it.
        (Some(before), None) => {
            let mut object = before.clone();
            object["metadata"]["resourceVersion"] = change.revision.to_string().into();
            ("DELETED", object)
        }
        (None, None) => return None,
    };
    Some(Frame { word, object })
}
