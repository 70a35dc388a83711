//! Finds out whether network policies are enforced (S-11): makes a canary's namespaces and takes them away again.
//!
//! Who dials whom, and what their words prove, is decided in [`pando_network::canary`]; `scene` has the pods act, `listen` hears them,
//! and `objects` says what is made.

mod listen;
mod objects;
mod scene;

use std::sync::Arc;

use data_encoding::BASE32_NOPAD;
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node};
use pando_api::{CallContext, Code, Error};
use pando_cluster::names::{AppNamespace, MANAGER, label, role};
use pando_cluster::{Cluster, DeleteOptions, Env, Kind, ListRequest, Scope, Selector, Uid, budget};
use pando_network::canary::Finding;

use crate::call::{Call, name, namespace_key};
use crate::config::Settings;
use crate::error::{unchanged, unread};
use crate::known::ClusterFacts;
use crate::nodes::{NONE_FITS, eligible};
use crate::owned::{GivenUp, Leash};

use scene::Scene;

/// What a canary needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Canary<'a> {
    pub(crate) cluster: &'a Arc<dyn Cluster>,
    pub(crate) env: &'a Env,
    pub(crate) settings: &'a Settings,
    pub(crate) facts: &'a ClusterFacts,
    /// The request that it is made for.
    pub(crate) request_id: &'a str,
}

impl Canary<'_> {
    /// Runs a canary until it is done or given up. Whatever its end, its namespaces are told to go; those of one whose process died are swept by a later one.
    ///
    /// # Errors
    ///
    /// When the cluster could not be read or changed: nothing was found out then.
    pub(crate) async fn run(&self, leash: &mut Leash) -> Result<Finding, Error> {
        let request = ListRequest::of(Kind::Node, Scope::All);
        let (nodes, _) = self.cluster.list_all::<Node>(&request).await.map_err(unread)?;
        let places = self.places(eligible(&nodes, self.settings))?;
        let context = CallContext { deadline: Some(budget::CANARY_STARTS), ..CallContext::new(self.request_id) };
        let (policed, other) = (AppNamespace::canary(&self.token()), AppNamespace::canary(&self.token()));
        let call = |app| Call::new(self.cluster, self.env, self.settings, &context, app, None);
        let scene = Scene { canary: self, policed: call(&policed), other: call(&other), page: self.token() };
        let found = leash.hold(scene.play(&places)).await;
        let (first, second) = futures::join!(self.remove(&policed), self.remove(&other));
        for unremoved in [first, second].into_iter().filter_map(Result::err) {
            tracing::warn!(error = &unremoved as &dyn std::error::Error, "a canary's namespace not removed");
        }
        found.unwrap_or_else(|given_up| {
            let why = match given_up {
                GivenUp::Dropped => "nobody waits for it any more",
                GivenUp::Overdue => "its deadline passed",
            };
            let message = format!("whether network policies are enforced was not found out: {why}");
            Err(Error::new(Code::AdapterUnavailable, message)
                .remedy("check again, with a deadline of a minute or more"))
        })
    }

    /// The nodes for policed pods: two where there are two, and not the same ones every time.
    fn places(&self, mut eligible: Vec<&str>) -> Result<Vec<String>, Error> {
        let mut places = Vec::new();
        while places.len() < 2 && !eligible.is_empty() {
            let count = u64::try_from(eligible.len()).unwrap_or(1);
            let index = usize::try_from(self.env.random_u64() % count).unwrap_or_default();
            places.push(eligible.swap_remove(index).to_owned());
        }
        if places.is_empty() {
            let message =
                "whether network policies are enforced could not be found out: no node would take an app's pod";
            return Err(Error::new(Code::AdapterUnavailable, message).remedy(NONE_FITS));
        }
        Ok(places)
    }

    /// Eight characters that nobody else has.
    fn token(&self) -> String {
        let mut random = [0; 5];
        self.env.random.fill(&mut random);
        BASE32_NOPAD.encode(&random).to_ascii_lowercase()
    }

    /// Tells a namespace to go. Its name was drawn by this canary, so whatever has it is ours, also where the answer to its making
    /// was lost.
    async fn remove(&self, of: &AppNamespace) -> Result<(), Error> {
        match self.cluster.read::<Namespace>(None, &of.name()).await.map_err(unread)? {
            Some(live) => self.delete(&live).await,
            None => Ok(()),
        }
    }

    async fn delete(&self, namespace: &Namespace) -> Result<(), Error> {
        let meta = &namespace.metadata;
        let Some(uid) = Uid::of(meta).filter(|_| meta.deletion_timestamp.is_none()) else { return Ok(()) };
        match self.cluster.delete(&namespace_key(&name(meta)), &DeleteOptions::of(uid)).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(unchanged(error)),
            _ => Ok(()),
        }
    }

    /// Removes what canaries left whose processes died. `now` is by the API server's clock, as the namespaces' own times are.
    async fn sweep(&self, now: Timestamp) -> Result<(), Error> {
        let canaries = Selector::everything().equals(label::MANAGED_BY, MANAGER).equals(label::ROLE, role::CANARY);
        let request = ListRequest::of(Kind::Namespace, Scope::All).labelled(canaries);
        let (namespaces, _) = self.cluster.list_all::<Namespace>(&request).await.map_err(unread)?;
        let is_stale = |namespace: &&Namespace| {
            let made = namespace.metadata.creation_timestamp.as_ref().map(|time| time.0);
            made.is_some_and(|made| now > made && now.duration_since(made).unsigned_abs() > budget::CANARY_IS_STALE)
        };
        try_join_all(namespaces.iter().filter(is_stale).map(|namespace| self.delete(namespace))).await.map(|_| ())
    }
}
