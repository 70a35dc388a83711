//! The cluster as a whole: a store, who waits for it to change, and what was asked of it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_cluster::env::yield_now;
use pando_cluster::{ByteStream, Env, LogRequest};

use crate::api::ledger::{Call, Ledger};
use crate::api::{self, Request, Response, Server, User, quota, seed};
use crate::config::FakeConfig;
use crate::controllers;
use crate::signal::Signal;
use crate::store::Store;

/// A Kubernetes cluster in memory.
///
/// Clones are handles to the same cluster. What is called on a handle is called by its user: an administrator,
/// unless it came from [`FakeCluster::as_account`].
#[derive(Clone)]
pub struct FakeCluster {
    inner: Arc<Inner>,
    user: User,
}

struct Inner {
    env: Env,
    config: FakeConfig,
    store: Mutex<Store>,
    ledger: Mutex<Ledger>,
    signal: Signal,
    controllers: controllers::State,
}

impl FakeCluster {
    /// A cluster that has just come up: its system namespaces, nodes and the API server's own Service.
    ///
    /// Its controllers are tasks on `env`; they end with the executor.
    pub fn new(env: Env, config: FakeConfig) -> Self {
        let mut store = Store::new(env.clone(), config.history);
        seed::fill(&mut store, &config);
        let inner = Inner {
            env: env.clone(),
            config,
            store: Mutex::new(store),
            ledger: Mutex::default(),
            signal: Signal::default(),
            controllers: controllers::State::default(),
        };
        let cluster = Self { inner: Arc::new(inner), user: User::Admin };
        env.spawn_detached("quota", quota::keep_status(cluster.clone()));
        controllers::start(&cluster);
        cluster
    }

    /// The same cluster, called by `user`, e.g. `system:serviceaccount:pando:pando`.
    pub fn as_account(&self, user: &str) -> Self {
        Self { inner: self.inner.clone(), user: User::Named(user.into()) }
    }

    /// Who calls through this handle.
    pub fn user(&self) -> &User {
        &self.user
    }

    /// Where the cluster gets time and chance from.
    pub fn env(&self) -> &Env {
        &self.inner.env
    }

    /// What kind of cluster it is.
    pub fn config(&self) -> &FakeConfig {
        &self.inner.config
    }

    /// Reads or writes the store directly, as a trusted component does: no rules, no admission, no record.
    ///
    /// Must not be called from inside itself.
    pub fn with<R>(&self, f: impl FnOnce(&mut Store) -> R) -> R {
        let (result, moved) = {
            let mut store = lock(&self.inner.store);
            let before = store.revision();
            let result = f(&mut store);
            (result, store.revision() != before)
        };
        if moved {
            self.inner.signal.raise();
        }
        result
    }

    /// Resolves once the store has moved past revision `seen`; answers the newest revision.
    ///
    /// Wake-ups are coalesced: several writes may be one.
    pub async fn changed(&self, seen: u64) -> u64 {
        loop {
            // First the count, then the look: a write between the two is not missed.
            let count = self.inner.signal.count();
            let newest = lock(&self.inner.store).revision();
            if newest > seen {
                return newest;
            }
            self.inner.signal.past(count).await;
        }
    }

    /// Forgets the history: watches and page tokens from before now are refused as expired (410).
    pub fn compact(&self) {
        self.with(Store::compact);
    }

    /// Every call made through the API so far, in the order in which they began.
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.inner.ledger).calls().to_vec()
    }

    /// The calls so far that asked for a change, refused ones included.
    pub fn writes(&self) -> Vec<Call> {
        lock(&self.inner.ledger).calls().iter().filter(|call| call.is_write()).cloned().collect()
    }

    /// The output of a container of a pod that is there.
    pub(crate) fn log_bytes(&self, request: &LogRequest) -> ByteStream {
        controllers::logs(self, request)
    }

    /// What really runs on the nodes.
    pub(crate) fn machines(&self) -> &controllers::Machines {
        &self.inner.controllers.machines
    }

    /// The network's latest view of the store.
    pub(crate) fn views(&self) -> &controllers::ViewCache {
        &self.inner.controllers.views
    }

    /// Serves one request as this handle's user, in the time that calls take.
    ///
    /// Whoever drops the future before the store was touched has changed nothing; later, the write has landed.
    pub(crate) async fn call(&self, request: &Request) -> Response {
        let Inner { env, config, ledger, .. } = &*self.inner;
        let number = lock(ledger).begin(&self.user, request, env.now());
        yield_now().await;
        let first = config.latency / 2;
        if !first.is_zero() {
            env.sleep(first).await;
        }
        let response = self.with(|store| api::handle(&mut Server { store, config, env }, &self.user, request));
        lock(ledger).touched(number, response.code);
        yield_now().await;
        let second = config.latency.saturating_sub(first);
        if !second.is_zero() {
            env.sleep(second).await;
        }
        lock(ledger).answered(number, env.now());
        response
    }
}

impl fmt::Debug for FakeCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let revision = lock(&self.inner.store).revision();
        f.debug_struct("FakeCluster").field("user", &self.user).field("revision", &revision).finish_non_exhaustive()
    }
}

/// A panic elsewhere leaves the data whole: every write is one assignment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
