//! What a case is given: a cluster, and eyes and hands beyond the port.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pando_api::BundlePlan;
use pando_cluster::names::AppNamespace;
use pando_cluster::{Cluster, Env, ObjectKey};
use pando_fakecluster::behaviour::{Behaviour, Outcome, Target};
use pando_fakecluster::netpol::PodName;

use crate::beds::MemoryBed;

/// A cluster to prove something on.
#[async_trait]
pub trait Bed: fmt::Debug + Send + Sync {
    /// The cluster as Pando's account sees it: under the rights of `deploy/kubernetes` and no others.
    fn cluster(&self) -> Arc<dyn Cluster>;

    /// The cluster as an administrator sees it: for what a case sets up, and for strangers' deeds.
    fn admin(&self) -> Arc<dyn Cluster>;

    /// Time, chance and tasks of this bed.
    fn env(&self) -> &Env;

    /// The id of a bundle that no other case and no other run has; `word` (lower case, no hyphen) appears in it.
    ///
    /// The bed removes the bundle's namespace when the case has ended, however it ended.
    fn unique(&self, word: &str) -> String;

    /// Sees to it that nothing has the name of `key` when the case has ended, however it ended; for what a case puts
    /// into a namespace that is not its own.
    fn remove_afterwards(&self, key: ObjectKey);

    /// The bed itself where its cluster is in memory, for cases with [`Need::Memory`].
    fn memory(&self) -> Option<&MemoryBed>;

    /// Why this bed cannot meet `need`; `None` when it can.
    fn lacks(&self, need: Need) -> Option<String>;

    /// The command line, for a container of [`Bed::image`], of a program that does `behaviour`.
    fn command(&self, behaviour: &Behaviour) -> Vec<String>;

    /// An image that is on every node and holds a shell.
    fn image(&self) -> &'static str {
        "busybox:1.37"
    }

    /// The image of a small web server, for cases with [`Need::AppImage`]: it serves on port 80.
    fn app_image(&self) -> &str;

    /// The image of a database, for cases with [`Need::DbImage`]: it is told its password as the usual image of
    /// `PostgreSQL` is.
    fn db_image(&self) -> &str;

    /// A URL outside of the cluster that its pods can reach, for cases with [`Need::Outside`].
    fn outside(&self) -> Option<&str>;

    /// Dials `target` over TCP from inside the running pod `from`, whose container `app` has [`Bed::image`].
    async fn probe(&self, from: &PodName, target: &Target) -> Outcome;

    /// What a shell in the container `app` of a running pod says to a script; `None` where the cluster is in memory, which runs none.
    async fn shell(&self, pod: &PodName, script: &str) -> Option<String>;

    /// Applies the plan by the command line, as a process that is killed when it has run for so long, for cases with
    /// [`Need::Program`]. Answers whether it had come to its end.
    async fn apply_and_kill(&self, plan: &BundlePlan, after: Duration) -> bool;

    /// Everything that the container's program dialled so far, in order, by a [`Behaviour`] that dials.
    async fn dialled(&self, from: &PodName, container: &str) -> Vec<(Target, Outcome)>;

    /// What Pando's account has written in `namespace` so far, refused calls included, for cases with [`Need::Audit`].
    async fn writes(&self, namespace: &str) -> Vec<Write>;

    /// Makes the cluster forget every version that is not the present one, as etcd does by and by.
    ///
    /// Afterwards version `1` is surely too old.
    fn forget_history(&self);
}

/// A call that was to change something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Write {
    /// What was asked, e.g. `create`.
    pub verb: String,
    /// Of which kind, by its plural.
    pub plural: String,
    /// Of which object; may be empty for a creation.
    pub name: String,
}

/// What a case asks of its bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// Containers really run: they start, print, end, and take signals.
    Kubelet,
    /// Packets really flow between pods, and NetworkPolicy is enforced.
    Packets,
    /// Minutes pass at no cost, since time is virtual.
    Clock,
    /// The cluster is in memory ([`Bed::memory`]): a case may have another one made to its liking, and look behind it.
    Memory,
    /// The image of a small web server ([`Bed::image`] is another one) is on every node.
    AppImage,
    /// The image of a database is on every node.
    DbImage,
    /// The command line is there, as a program to be run and killed.
    Program,
    /// There is something outside of the cluster that pods can reach.
    Outside,
    /// What the API server was asked can be read afterwards.
    Audit,
    /// The cluster has at least two nodes that take pods.
    TwoNodes,
}

impl Need {
    /// Whether only a cluster in memory can meet it. Such cases are no loss on a real one, which cannot have them.
    pub fn is_of_memory(self) -> bool {
        matches!(self, Self::Clock | Self::Memory)
    }
}

/// The name of the namespace that the bundle `id` lives in.
pub fn namespace_of(id: &str) -> String {
    AppNamespace::of(id, &[]).name()
}

/// Looks again and again until `look` has an answer, and panics with `what` when it has none within `limit`.
///
/// The wait between two looks grows to a second, so that patience costs a real API server little.
///
/// # Panics
///
/// When there is no answer within `limit`.
pub async fn eventually<T, F>(env: &Env, what: &str, limit: Duration, mut look: impl FnMut() -> F + Send) -> T
where
    F: Future<Output = Option<T>> + Send,
{
    let begun = env.now();
    let mut wait = Duration::from_millis(50);
    loop {
        if let Some(answer) = look().await {
            return answer;
        }
        assert!(env.now().since(begun) < limit, "not within {limit:?}: {what}");
        env.sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(1));
    }
}
