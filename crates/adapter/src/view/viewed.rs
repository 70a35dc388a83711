//! A cluster of which a view is kept: whatever this process writes there, or reads by another way, the view is told to look
//! out for.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures::StreamExt;
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, Env, EventStream, Failure, ListRequest, LogRequest, MergePatch,
    Object, ObjectKey, Page, WatchEvent, WatchRequest,
};

use super::View;

/// Passes every call on. Once there is a view, it hears of every write and of everything read, so that it never speaks for a
/// namespace of which this process knows something newer; no caller has to remember to say so.
#[derive(Debug)]
pub(crate) struct Viewed {
    cluster: Arc<dyn Cluster>,
    view: OnceLock<View>,
}

impl Viewed {
    /// A cluster without a view so far.
    pub(crate) fn new(cluster: Arc<dyn Cluster>) -> Self {
        Self { cluster, view: OnceLock::new() }
    }

    /// Begins to keep a view, unless there is one.
    pub(crate) fn watch(&self, env: &Env) -> &View {
        self.view.get_or_init(|| View::start(&self.cluster, env))
    }

    /// The view; `None` before [`Self::watch`].
    pub(crate) fn view(&self) -> Option<&View> {
        self.view.get()
    }

    fn write(&self, key: &ObjectKey) -> Writing<'_> {
        Writing { view: self.view(), key: key.clone(), is_over: false }
    }
}

/// A write under way. When its caller goes before the answer comes, nobody knows whether anything was written.
struct Writing<'a> {
    view: Option<&'a View>,
    key: ObjectKey,
    is_over: bool,
}

impl Writing<'_> {
    /// Tells the view what came of it: `tell` when it was carried out.
    fn ended<T>(mut self, answer: Result<T, ClusterError>, tell: impl FnOnce(&View, &T)) -> Result<T, ClusterError> {
        self.is_over = true;
        if let Some(view) = self.view {
            match &answer {
                Ok(written) => tell(view, written),
                Err(error) if may_have_happened(&error.failure) => view.may_have_written(&self.key),
                Err(_) => {}
            }
        }
        answer
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let (false, Some(view)) = (self.is_over, self.view) {
            view.may_have_written(&self.key);
        }
    }
}

const fn may_have_happened(failure: &Failure) -> bool {
    matches!(failure, Failure::Timeout { may_have_happened: true } | Failure::Unavailable(_))
}

#[async_trait]
impl Cluster for Viewed {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        let read = self.cluster.get(key).await;
        if let (Some(view), Ok(read)) = (self.view(), &read) {
            match read {
                Some(object) => view.saw(object),
                None => view.saw_nothing(key),
            }
        }
        read
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        let page = self.cluster.list(request).await;
        if let (Some(view), Ok(page)) = (self.view(), &page) {
            page.items.iter().for_each(|object| view.saw(object));
        }
        page
    }

    async fn create(&self, object: &Object) -> Result<Object, ClusterError> {
        let writing = self.write(&object.key());
        writing.ended(self.cluster.create(object).await, View::wrote)
    }

    async fn patch(&self, key: &ObjectKey, patch: &MergePatch) -> Result<Object, ClusterError> {
        let writing = self.write(key);
        writing.ended(self.cluster.patch(key, patch).await, View::wrote)
    }

    async fn delete(&self, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ClusterError> {
        let writing = self.write(key);
        writing.ended(self.cluster.delete(key, options).await, |view, ()| view.deleted(key, &options.uid))
    }

    async fn watch(&self, request: &WatchRequest) -> Result<EventStream, ClusterError> {
        let events = self.cluster.watch(request).await?;
        let Some(view) = self.view().map(View::ears) else { return Ok(events) };
        Ok(events
            .inspect(move |event| match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => view.saw(object),
                Ok(WatchEvent::Deleted(object)) => view.saw_gone(object),
                Ok(WatchEvent::Bookmark(_)) | Err(_) => {}
            })
            .boxed())
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        self.cluster.logs(request).await
    }
}
