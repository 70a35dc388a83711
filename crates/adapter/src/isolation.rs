//! What the cluster's isolation is held to be, found out by one process and used by all (S-12).
//!
//! The verdict is kept in the config map `pando-isolation` of Pando's own namespace. What a canary adds to it is decided in
//! [`pando_network::canary::Standing`]; here it is read, kept, and found out where it says nothing any more: by one canary at a time,
//! however many wait for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Shared as SharedFuture, WeakShared};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pando_api::{CallContext, Code, Error, Health};
use pando_cluster::env::{BoxFuture, Instant};
use pando_cluster::names::{MANAGER, label, object};
use pando_cluster::{Failure, Kind, MergePatch, ObjectKey, ResourceVersion, budget};
use pando_network::canary::{Finding, Held, Standing, Verdict, Worth};
use serde_json::{Value, json};

use crate::call::Call;
use crate::canary::Canary;
use crate::error::unread;
use crate::owned::{self, Leash};
use crate::{Shared, cut, health};

/// How often what was found out is offered to be kept while others keep theirs.
const OFFERS: usize = 4;

/// A verdict that has to be confirmed is found out so often.
const RUNS: usize = 2;

/// What this process knows of it.
#[derive(Debug, Default)]
pub(crate) struct Isolation {
    known: Mutex<Option<Known>>,
    /// The canary that is at work. Whoever waits for it holds it; when nobody does any more it goes.
    running: Mutex<Option<WeakShared<Running>>>,
}

/// A canary at work, and what is held in the end. An error is everybody's who waits for it.
type Running = BoxFuture<'static, Arc<Result<Standing, Error>>>;

/// A verdict, and how old it was when it was learnt. From then on its age goes by this process's steady clock, whatever becomes of the
/// one on the wall.
#[derive(Clone, Debug)]
struct Known {
    standing: Standing,
    age: Option<Duration>,
    learnt: Instant,
    /// When the config map was looked at last.
    looked: Instant,
    /// Whether it is in the config map.
    kept: bool,
}

impl Known {
    fn worth(&self, now: Instant) -> Worth {
        self.standing.held.worth(self.age.map(|age| age.saturating_add(now.since(self.learnt))))
    }
}

impl Isolation {
    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what the config map said, and answers what is held now.
    fn learn(&self, kept: Option<Known>, now: Instant) -> Option<Known> {
        let mut known = self.known();
        *known = match (known.take(), kept) {
            // Somebody took the verdict away, so that it is found out anew.
            (Some(before), None) => (!before.kept).then_some(before),
            (Some(before), Some(kept)) if before.standing.at > kept.standing.at => Some(before),
            // How old it is, is known better by whoever saw it found out.
            (Some(before), Some(kept)) if before.standing == kept.standing => Some(Known { kept: true, ..before }),
            (_, kept) => kept,
        };
        if let Some(known) = known.as_mut() {
            known.looked = now;
        }
        known.clone()
    }
}

/// What the config map holds.
struct Kept {
    version: ResourceVersion,
    texts: BTreeMap<String, String>,
}

impl Shared {
    /// What is held, by what this process knows where that is worth at least `enough`, and by the config map otherwise.
    async fn held(&self, enough: Worth) -> Result<Option<Known>, Error> {
        let now = self.env.now();
        let known = self.isolation.known().clone();
        if let Some(known) = known
            && known.worth(now) <= enough
            && now.since(known.looked) < budget::VERDICT_IS_REREAD
        {
            return Ok(Some(known));
        }
        let kept = self.kept().await?;
        let now = self.env.now();
        let kept = kept.and_then(|kept| Standing::from_texts(&kept.texts)).map(|standing| {
            let age = standing.age(self.env.wall.now());
            Known { standing, age, learnt: now, looked: now, kept: true }
        });
        Ok(self.isolation.learn(kept, now))
    }

    async fn kept(&self) -> Result<Option<Kept>, Error> {
        let read = self.cluster.read::<ConfigMap>(Some(&self.settings.pando_namespace), object::ISOLATION);
        let map = read.await.map_err(unread)?;
        Ok(map.and_then(|map| {
            let version = ResourceVersion::of(&map.metadata)?;
            Some(Kept { version, texts: map.data.unwrap_or_default() })
        }))
    }

    /// Whether apps may be started here: by a pass that counts, or by a canary where there is no verdict.
    ///
    /// # Errors
    ///
    /// When network policies are not enforced, or whether they are could not be found out.
    pub(crate) async fn isolated(self: &Arc<Self>, call: &Call<'_>) -> Result<(), Error> {
        let known = self.held(Worth::Old).await?;
        let standing = match known.map(|known| (known.worth(self.env.now()), known)) {
            Some((Worth::Fresh | Worth::Aging | Worth::Old, _)) => return Ok(()),
            Some((Worth::Failed, known)) => known.standing,
            Some((Worth::None, _)) | None => {
                call.tell("", "checking isolation", "pods that dial each other");
                self.find_out(&call.context.request_id, call.time_left()).await?
            }
        };
        health::isolation(standing).map(|_| ())
    }

    /// Learns what others found out, so that an apply need not ask.
    pub(crate) async fn learn_isolation(&self) -> Result<(), Error> {
        self.held(Worth::Fresh).await.map(|_| ())
    }

    /// What a health check answers.
    pub(crate) async fn health(self: &Arc<Self>, context: &CallContext) -> Result<Health, Error> {
        let known = self.held(Worth::Fresh).await?;
        let (worth, standing) = match known {
            Some(known) => (known.worth(self.env.now()), Some(known.standing)),
            None => (Worth::None, None),
        };
        if let (Worth::Fresh | Worth::Failed, Some(standing)) = (worth, &standing) {
            return health::isolation(standing.clone());
        }
        match (self.find_out(&context.request_id, context.deadline).await, standing) {
            (Err(unknown), Some(standing)) if worth == Worth::Aging => {
                tracing::warn!(
                    request_id = context.request_id,
                    error = &unknown as &dyn std::error::Error,
                    "isolation not found out anew; the pass before it is answered"
                );
                health::isolation(standing)
            }
            (found, _) => health::isolation(found?),
        }
    }

    /// What is held after a canary has looked.
    pub(crate) async fn health_anew(self: &Arc<Self>, context: &CallContext) -> Result<Health, Error> {
        health::isolation(self.find_out(&context.request_id, context.deadline).await?)
    }

    /// Has a canary find it out, or waits for the one that is at it.
    async fn find_out(self: &Arc<Self>, request_id: &str, limit: Option<Duration>) -> Result<Standing, Error> {
        let running = self.running(request_id);
        let found = match limit {
            None => running.await,
            Some(limit) => self.env.timeout(limit, running).await.map_err(|elapsed| {
                let message = format!(
                    "whether network policies are enforced was not found out within {:.1} s",
                    elapsed.limit.as_secs_f64()
                );
                Error::new(Code::AdapterUnavailable, message).remedy("call again, with a deadline of a minute or more")
            })?,
        };
        match &*found {
            Ok(standing) => Ok(standing.clone()),
            Err(error) => Err(copy(error)),
        }
    }

    fn running(self: &Arc<Self>, request_id: &str) -> SharedFuture<Running> {
        let mut running = self.isolation.running.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has come to its end is not asked again.
        let at_work = running.as_ref().and_then(WeakShared::upgrade).filter(|running| running.peek().is_none());
        at_work.unwrap_or_else(|| {
            let begun = Arc::clone(self).begin(request_id.to_owned()).shared();
            *running = begun.downgrade();
            begun
        })
    }

    /// A canary on a task of its own, which takes away what it made also where nobody waits for it any more.
    fn begin(self: Arc<Self>, request_id: String) -> Running {
        Box::pin(async move {
            let shared = Arc::clone(&self);
            let task = |leash| -> BoxFuture<'static, _> {
                Box::pin(async move { shared.run_canary(&request_id, leash).await })
            };
            let noted = self.given_up.note();
            let unheard = |answer: Result<Standing, Error>| {
                // Nobody may want to know what came of it.
                answer.err().map(|error| noted.send(error));
            };
            let answer = owned::run(&self.env, "canary", None, task, unheard).await;
            Arc::new(answer.unwrap_or_else(|| Err(cut("canary"))))
        })
    }

    /// Runs a canary, and another one where a verdict is to be overthrown; answers what is held then.
    async fn run_canary(&self, request_id: &str, mut leash: Leash) -> Result<Standing, Error> {
        let Self { cluster, env, settings, .. } = self;
        let mut runs = 0;
        loop {
            let facts = self.facts.fresh(cluster, env).await.map_err(unread)?;
            let began = env.now();
            let canary = Canary { cluster, env, settings, facts: &facts, request_id };
            let found = canary.run(&mut leash).await?;
            runs += 1;
            tracing::info!(request_id, verdict = ?found.verdict, nodes = ?found.nodes, "canary came to its end");
            if let Verdict::Inconclusive { why, remedy } = &found.verdict {
                return Err(health::inconclusive(&found.nodes, why, remedy));
            }
            let standing = self.keep(&found, began).await;
            if !matches!(standing.held, Held::Doubted(_)) || runs == RUNS {
                return Ok(standing);
            }
        }
    }

    /// Keeps what a canary found that began then, for everybody, and answers what is held by it. Where that cannot be written this
    /// process knows it all the same.
    async fn keep(&self, found: &Finding, began: Instant) -> Standing {
        let mut known = self.isolation.known().clone().map(|known| known.standing);
        let mut why = None;
        for _ in 0..OFFERS {
            let kept = match self.kept().await {
                Ok(kept) => kept,
                Err(error) => {
                    why = Some(error);
                    break;
                }
            };
            let theirs = kept.as_ref().and_then(|kept| Standing::from_texts(&kept.texts));
            let standing = decide(theirs.as_ref().or(known.as_ref()), found);
            if theirs.as_ref() == Some(&standing) {
                return self.know(standing, found, began, true);
            }
            match self.write(&standing, kept.as_ref()).await {
                Ok(true) => return self.know(standing, found, began, true),
                Ok(false) => known = theirs,
                Err(error) => {
                    why = Some(error);
                    break;
                }
            }
        }
        let error = why.as_ref().map(|error| error as &dyn std::error::Error);
        tracing::warn!(error, "the verdict on isolation could not be kept for others");
        self.know(decide(known.as_ref(), found), found, began, false)
    }

    /// Writes it where it was, and answers whether nobody was faster.
    async fn write(&self, standing: &Standing, kept: Option<&Kept>) -> Result<bool, Error> {
        let texts = standing.to_texts(env!("CARGO_PKG_VERSION"));
        let written = match kept {
            None => self.cluster.make(&map(&self.settings.pando_namespace, texts)).await.map(|_| ()),
            Some(kept) => {
                let key = ObjectKey::namespaced(Kind::ConfigMap, &*self.settings.pando_namespace, object::ISOLATION);
                let gone = kept.texts.keys().map(|name| (name.clone(), Value::Null));
                let data: serde_json::Map<_, _> =
                    gone.chain(texts.into_iter().map(|(name, text)| (name, Value::String(text)))).collect();
                let patch = MergePatch::at(&kept.version, json!({"data": data}));
                self.cluster.patch(&key, &patch).await.map(|_| ())
            }
        };
        match written {
            Ok(()) => Ok(true),
            Err(error) if error.is_conflict() || error.is_already_exists() => Ok(false),
            // It was taken away meanwhile.
            Err(error) if kept.is_some() && matches!(error.failure, Failure::NotFound) => Ok(false),
            Err(error) => Err(crate::error::unchanged(error)),
        }
    }

    /// Knows from now on what is held, and answers it.
    fn know(&self, standing: Standing, found: &Finding, began: Instant, kept: bool) -> Standing {
        let now = self.env.now();
        // What somebody else found meanwhile is newer than this one's beginning.
        let age = if standing.at == found.at { Some(now.since(began)) } else { standing.age(self.env.wall.now()) };
        *self.isolation.known() = Some(Known { standing: standing.clone(), age, learnt: now, looked: now, kept });
        standing
    }
}

/// What is held after a canary that proved something.
fn decide(before: Option<&Standing>, found: &Finding) -> Standing {
    match (Standing::after(before, found), before) {
        (Some(standing), _) => standing,
        (None, Some(before)) => before.clone(),
        (None, None) => unreachable!("what proved something is held where nothing was"),
    }
}

fn map(namespace: &str, texts: BTreeMap<String, String>) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(object::ISOLATION.to_owned()),
            labels: Some([(label::MANAGED_BY.to_owned(), MANAGER.to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(texts),
        ..ConfigMap::default()
    }
}

/// The error once more, for another one who waited. What lay beneath is the first one's.
fn copy(error: &Error) -> Error {
    let Error { code, message, remedy, details, source: _ } = error;
    Error { code: *code, message: message.clone(), remedy: remedy.clone(), details: details.clone(), source: None }
}
