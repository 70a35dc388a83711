//! A canary at work: its pods are started, heard, and judged by what they say.

use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use futures::future::{Either, join_all, select, try_join_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use pando_api::{Error, ReasonKind};
use pando_cluster::env::Instant;
use pando_cluster::{ClusterError, Env, budget};
use pando_network::canary::{Family, Finding, Prober, Record, Seat, Server, Verdict, probers};

use super::listen::{Said, listen};
use super::{Canary, objects};
use crate::call::{Call, name};
use crate::config::Settings;
use crate::error::{unchanged, unread};
use crate::follow::Followed;
use crate::ground;
use crate::objects::service_account;
use crate::sight;
use crate::wait::{self, End};

/// How long a policy may take to close where no gate says so.
const CLOSES: Duration = Duration::from_secs(30);

/// A canary in its two namespaces.
pub(super) struct Scene<'a> {
    pub(super) canary: &'a Canary<'a>,
    /// The namespace that gets the policy.
    pub(super) policed: Call<'a>,
    pub(super) other: Call<'a>,
    /// The page that its servers give.
    pub(super) page: String,
}

/// Why a canary came to no end of its own.
enum Stopped {
    /// The cluster could not be asked, or refused.
    By(Error),
    /// A pod of it did not run.
    Without(Verdict),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::By(error)
    }
}

/// A canary's servers.
struct Servers {
    policed: Vec<Pod>,
    other: Pod,
}

impl Servers {
    /// The one of the other namespace as it runs.
    fn stranger(&self) -> Server {
        objects::running(&self.other)
    }
}

impl Scene<'_> {
    /// Plays it once, with policed servers on these nodes.
    pub(super) async fn play(&self, places: &[String]) -> Result<Finding, Error> {
        let (at, _) = futures::try_join!(self.furnish(&self.policed), self.furnish(&self.other))?;
        let acting = async {
            let servers = self.servers(places).await?;
            let families = servers.stranger().addresses.into_iter().map(Family::of).collect();
            Ok((self.judge(&servers).await?, families))
        };
        let (acted, swept) = futures::join!(acting, self.canary.sweep(at));
        if let Err(unswept) = swept {
            tracing::warn!(error = &unswept as &dyn std::error::Error, "stale canaries not removed");
        }
        let (verdict, families) = match acted {
            Ok(found) => found,
            Err(Stopped::Without(verdict)) => (verdict, [].into()),
            Err(Stopped::By(error)) => return Err(error),
        };
        Ok(Finding { verdict, families, nodes: places.to_vec(), at })
    }

    /// Makes a namespace, with our rights in it and the account of its pods; answers when, by the API server's clock.
    async fn furnish(&self, call: &Call<'_>) -> Result<Timestamp, Error> {
        let made = match call.create(&objects::namespace(call.app)).await {
            Err(error) if error.is_already_exists() => {
                self.canary.cluster.read::<Namespace>(None, &call.namespace()).await.map_err(unread)?
            }
            made => Some(made.map_err(unchanged)?),
        };
        ground::rights(call, true).await?;
        is_made(call.create(&service_account(call.app)).await)?;
        let made = made.and_then(|made| made.metadata.creation_timestamp);
        Ok(made.map_or_else(|| self.canary.env.wall.now(), |time| time.0))
    }

    /// Starts the servers: a policed one on every place, and another one on the last.
    async fn servers(&self, places: &[String]) -> Result<Servers, Stopped> {
        let settings = self.canary.settings;
        is_made(self.policed.create(&objects::service(self.policed.app)).await)?;
        let policed = places.iter().enumerate();
        let policed = policed.map(|(i, node)| objects::server(self.policed.app, i, node, &self.page, settings));
        let place = places.last().map(String::as_str).unwrap_or_default();
        let other = objects::server(self.other.app, 0, place, &self.page, settings);
        let (policed, other) =
            futures::try_join!(start(&self.policed, policed.collect()), start(&self.other, [other].into()))?;
        let Some(other) = other.into_iter().next() else { unreachable!("as many pods run as were started") };
        Ok(Servers { policed, other })
    }

    /// Has probers dial, first without the policy and then with it, and judges by their words.
    async fn judge(&self, servers: &Servers) -> Result<Verdict, Stopped> {
        let Canary { settings, facts, .. } = *self.canary;
        let host = format!("{}.{}.svc.{}", objects::SERVER, self.policed.namespace(), settings.cluster_domain);
        let policed: Vec<_> = servers.policed.iter().map(objects::running).collect();
        let cast = probers(&policed, &servers.stranger(), &host, &facts.addresses.api_server);
        // Those of the policed namespace come first.
        let (here, there): (Vec<Prober>, Vec<Prober>) =
            cast.into_iter().partition(|prober| prober.seat == Seat::Policed);
        let pods = |call: &Call<'_>, cast: &[Prober]| -> Vec<Pod> {
            let cast = cast.iter().enumerate();
            cast.map(|(i, prober)| objects::prober(call.app, i, prober, &self.page, settings)).collect()
        };
        let (here_pods, there_pods) = futures::try_join!(
            start(&self.policed, pods(&self.policed, &here)),
            start(&self.other, pods(&self.other, &there))
        )?;
        let (sender, words) = unbounded();
        let pods = here_pods.iter().chain(&there_pods).enumerate();
        let listening = join_all(pods.map(|(i, pod)| listen(self.canary, i, pod, sender.clone())));
        let records = here.into_iter().chain(there).map(Record::new).collect();
        let judging = self.hear(Heard { records, words }, servers);
        match select(Box::pin(judging), Box::pin(listening)).await {
            Either::Left((verdict, _)) => verdict,
            Either::Right(_) => unreachable!("who listens does not stop by itself"),
        }
    }

    /// Waits until all is open, makes the policy, and waits until all is as it says.
    async fn hear(&self, mut heard: Heard, servers: &Servers) -> Result<Verdict, Stopped> {
        let Canary { env, settings, facts, .. } = *self.canary;
        if heard.until(env, budget::CANARY_OPENS, Record::is_open).await.is_none() {
            let ended = self.ended_server(servers).await;
            return Ok(ended.unwrap_or_else(|| Verdict::not_open(&heard.records)));
        }
        let policy = objects::policy(self.policed.app, self.other.app, settings, &facts.addresses);
        is_made(self.policed.create(&policy).await)?;
        let begun = env.now();
        heard.records.iter_mut().for_each(Record::policed);
        let limit = settings.isolation_gate.unwrap_or(CLOSES).min(budget::CANARY_CLOSES);
        if let Some(closed) = heard.until(env, limit, Record::is_as_policed).await {
            return Ok(Verdict::Enforced { time_to_deny: closed.since(begun) });
        }
        match Verdict::overdue(&heard.records) {
            found @ (Verdict::Enforced { .. } | Verdict::NotEnforced { .. }) => Ok(found),
            vague @ Verdict::Inconclusive { .. } => Ok(self.ended_server(servers).await.unwrap_or(vague)),
        }
    }

    /// What a server said that has ended, which explains why nobody reaches it.
    async fn ended_server(&self, servers: &Servers) -> Option<Verdict> {
        let policed = servers.policed.iter().map(|pod| (&self.policed, pod));
        for (call, pod) in policed.chain([(&self.other, &servers.other)]) {
            let now = call.read::<Pod>(&name(&pod.metadata)).await.ok().flatten();
            if let Some(ended) = now.filter(sight::has_ended) {
                return Some(lacking(call, &ended).await);
            }
        }
        None
    }
}

/// What the probers said so far, and where more comes from.
struct Heard {
    records: Vec<Record>,
    words: UnboundedReceiver<Said>,
}

impl Heard {
    /// Listens until all records are so, and answers when that was; `None` when it was not in time.
    async fn until(&mut self, env: &Env, limit: Duration, is_so: impl Fn(&Record) -> bool) -> Option<Instant> {
        let begun = env.now();
        while !self.records.iter().all(&is_so) {
            let left = limit.saturating_sub(env.now().since(begun));
            let Said { prober, line } = env.timeout(left, self.words.next()).await.ok().flatten()?;
            if let Some(record) = self.records.get_mut(prober) {
                record.take(&line);
            }
            // Who is never silent does not make the time stand still.
            if left.is_zero() {
                return None;
            }
        }
        Some(env.now())
    }
}

/// Starts pods and waits until all of them run.
async fn start(call: &Call<'_>, pods: Vec<Pod>) -> Result<Vec<Pod>, Stopped> {
    let made = pods.iter().map(|pod| async move {
        match call.create(pod).await {
            Err(error) if error.is_already_exists() => {
                let read = call.read::<Pod>(&name(&pod.metadata)).await.map_err(unread)?;
                read.ok_or_else(|| unchanged(error))
            }
            made => made.map_err(unchanged),
        }
    });
    let made = try_join_all(made).await?;
    let mut follower = call.follow(Followed::All).await?;
    let mut running = Vec::new();
    for pod in &made {
        match wait::follow(call, "", &mut follower, pod).await {
            End::Running(pod) => running.push(*pod),
            End::Ended { pod, .. } => return Err(Stopped::Without(lacking(call, &pod).await)),
            End::Failed { kind, error, .. } => return Err(Stopped::Without(not_started(call.settings, kind, &error))),
            End::Taken => {
                return Err(Stopped::Without(Verdict::Inconclusive {
                    why: format!("somebody took its pod {} away", name(&pod.metadata)),
                    remedy: "check again".to_owned(),
                }));
            }
        }
    }
    Ok(running)
}

/// Whatever has a name in namespaces that this canary drew is its own: the answer of a try before was lost.
fn is_made<T>(made: Result<T, ClusterError>) -> Result<(), Error> {
    match made {
        Err(error) if !error.is_already_exists() => Err(unchanged(error)),
        _ => Ok(()),
    }
}

/// A pod of a canary's ends by itself only when its image is not fit.
async fn lacking(call: &Call<'_>, pod: &Pod) -> Verdict {
    let words = wait::log_tail(call, pod).await.unwrap_or_default();
    let words = if words.trim().is_empty() { "it left no word" } else { words.trim() };
    Verdict::Inconclusive {
        why: format!("a pod of helper_image {} ended by itself: {words}", call.settings.helper_image),
        remedy: "set helper_image to an image with the tools of busybox, e.g. busybox:1.37".to_owned(),
    }
}

fn not_started(settings: &Settings, kind: ReasonKind, error: &Error) -> Verdict {
    let why = error.details.get("reason").and_then(|reason| reason["sentence"].as_str());
    let remedy = match kind {
        ReasonKind::Image | ReasonKind::StartError => format!(
            "set helper_image, now {}, to an image that every node can pull and that holds a shell",
            settings.helper_image
        ),
        _ => error.remedy.clone().unwrap_or_else(|| "look at the node that is named".to_owned()),
    };
    Verdict::Inconclusive { why: format!("its pods did not start: {}", why.unwrap_or(&error.message)), remedy }
}
