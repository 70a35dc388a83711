//! Following the objects of a kind for ever: list, watch, and list again when the thread is lost.
//!
//! One place knows the ways a watch goes wrong: versions that expired (in the answer or in the stream),
//! connections that went silent, servers that close at once, lists that fail. A version is used only as the
//! last one received, never compared or computed with.

use std::time::Duration;

use futures::StreamExt;

use crate::budget;
use crate::env::{Env, Instant};
use crate::error::{ClusterError, Failure, Subject};
use crate::object::{Object, ResourceVersion};
use crate::port::{Cluster, ListRequest, WatchEvent, WatchRequest};
use crate::resilient::backoff;

/// What a follower is told, of objects or of what it makes of each of them.
#[derive(Debug)]
pub enum Told<T = Object> {
    /// All objects are about to be listed: what [`Told::All`] holds next was read after this.
    Listing,
    /// These are all the objects there are; whatever else the follower knew of is gone.
    All(Vec<T>),
    /// The object appeared or changed.
    Is(T),
    /// The object is gone, or no longer among those asked for; this is its last state.
    Gone(T),
    /// Nothing new, and the connection lives: what the follower knows is fresh.
    Fresh,
    /// The connection is broken; what the follower knows grows old until something else is told.
    Broken(ClusterError),
}

/// Tells `follower` of all objects that `request` asks for and of everything that happens to them. Never ends.
///
/// Failures are told and tried again with a growing, jittered wait, which starts small again only after a
/// watch has lived for a while.
pub async fn list_watch(cluster: &dyn Cluster, env: &Env, request: &ListRequest, follower: impl FnMut(Told) + Send) {
    list_watch_as(cluster, env, request, |object| object, follower).await;
}

/// The same for a follower that keeps something smaller: each object becomes it by `make` as it arrives, so that a long
/// list is never there as whole objects.
pub async fn list_watch_as<T: Send>(
    cluster: &dyn Cluster,
    env: &Env,
    request: &ListRequest,
    mut make: impl FnMut(Object) -> T + Send,
    mut follower: impl FnMut(Told<T>) + Send,
) {
    follow(cluster, env, request, None, &mut make, &mut follower).await;
}

/// Tells `follower` of everything that happens after the version `from`, which the follower knows the objects of: from the
/// answer to its own write, say. They are listed only when the thread is lost. Never ends.
pub async fn watch_on(
    cluster: &dyn Cluster,
    env: &Env,
    request: &ListRequest,
    from: ResourceVersion,
    mut follower: impl FnMut(Told) + Send,
) {
    follow(cluster, env, request, Some(from), &mut |object| object, &mut follower).await;
}

async fn follow<T: Send>(
    cluster: &dyn Cluster,
    env: &Env,
    request: &ListRequest,
    from: Option<ResourceVersion>,
    make: &mut (impl FnMut(Object) -> T + Send),
    follower: &mut (impl FnMut(Told<T>) + Send),
) {
    let mut pace = Pace::default();
    if let Some(version) = from {
        watch(cluster, env, request, version, &mut pace, make, follower).await;
    }
    loop {
        follower(Told::Listing);
        match list(cluster, request, make).await {
            Ok((objects, version)) => {
                follower(Told::All(objects));
                watch(cluster, env, request, version, &mut pace, make, follower).await;
            }
            Err(error) => {
                pace.heed(&error);
                follower(Told::Broken(error));
            }
        }
        pace.wait(env).await;
    }
}

/// Watches from `version` on until only a fresh list helps.
async fn watch<T>(
    cluster: &dyn Cluster,
    env: &Env,
    request: &ListRequest,
    mut version: ResourceVersion,
    pace: &mut Pace,
    make: &mut (impl FnMut(Object) -> T + Send),
    follower: &mut (impl FnMut(Told<T>) + Send),
) {
    loop {
        let asked = WatchRequest {
            kind: request.kind,
            scope: request.scope.clone(),
            labels: request.labels.clone(),
            fields: request.fields.clone(),
            from: version.clone(),
            timeout: budget::WATCH,
        };
        let opened = env.now();
        let end = match cluster.watch(&asked).await {
            Ok(mut events) => loop {
                match env.timeout(budget::WATCH_SILENCE, events.next()).await {
                    Ok(Some(Ok(event))) => {
                        if let Some(newer) = tell(event, make, follower) {
                            version = newer;
                        }
                    }
                    Ok(Some(Err(error))) => break Some(error),
                    Ok(None) => break None,
                    Err(silence) => {
                        let subject = Subject::Many(request.kind.plural(), None);
                        let failure = Failure::Timeout { may_have_happened: false };
                        break Some(ClusterError::new("watch", subject, failure).caused_by(silence));
                    }
                }
            },
            Err(error) => Some(error),
        };
        pace.ended(opened, env.now());
        match end {
            Some(error) if error.is_expired() => return,
            Some(error) => {
                pace.heed(&error);
                follower(Told::Broken(error));
                pace.wait(env).await;
            }
            // The server closes each watch in its time; one that closes at once is a failure like others.
            None if pace.failures > 0 => pace.wait(env).await,
            None => {}
        }
    }
}

/// Tells the event and answers the version to go on from.
fn tell<T>(
    event: WatchEvent,
    make: &mut impl FnMut(Object) -> T,
    follower: &mut impl FnMut(Told<T>),
) -> Option<ResourceVersion> {
    let (version, told) = match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            (ResourceVersion::of(object.meta()), Told::Is(make(object)))
        }
        WatchEvent::Deleted(object) => (ResourceVersion::of(object.meta()), Told::Gone(make(object))),
        WatchEvent::Bookmark(version) => (Some(version), Told::Fresh),
    };
    follower(told);
    version
}

async fn list<T>(
    cluster: &dyn Cluster,
    request: &ListRequest,
    make: &mut (impl FnMut(Object) -> T + Send),
) -> Result<(Vec<T>, ResourceVersion), ClusterError> {
    let mut request = request.clone();
    let mut objects = Vec::new();
    loop {
        let page = cluster.list(&request).await?;
        objects.extend(page.items.into_iter().map(&mut *make));
        match page.next {
            Some(next) => request.after = Some(next),
            None => return Ok((objects, page.version)),
        }
    }
}

/// How often in a row things went wrong, and for how long the API server asked to be left alone.
#[derive(Default)]
struct Pace {
    failures: u32,
    asked: Duration,
}

impl Pace {
    /// A watch shorter than this counts as a failure.
    const HEALTHY: Duration = Duration::from_secs(5);

    fn ended(&mut self, opened: Instant, now: Instant) {
        if now.since(opened) >= Self::HEALTHY {
            self.failures = 0;
        } else {
            self.failures = self.failures.saturating_add(1);
        }
    }

    fn heed(&mut self, error: &ClusterError) {
        if let Failure::Overloaded { retry_after: Some(asked) } = error.failure {
            self.asked = asked.min(budget::LONGEST_RETRY_AFTER);
        }
    }

    async fn wait(&mut self, env: &Env) {
        let longest = backoff(budget::FIRST_BACKOFF * 2, budget::WATCH_BACKOFF, self.failures);
        // At least half of it, so that many followers neither meet nor hammer.
        let wait = longest / 2 + env.jitter(longest / 2);
        env.sleep(wait.max(std::mem::take(&mut self.asked))).await;
        self.failures = self.failures.saturating_add(1);
    }
}
