//! Credentials that rotate, in every form in which they come.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use http::HeaderValue;
use http::header::AUTHORIZATION;
use pando_cluster::{Cluster, Failure};
use tower::ServiceExt;

use super::connections::listen;
use super::{Seen, answer, pod_json, pod_key, server, status, watch_of_pods};
use crate::connect::ConnectError;
use crate::session::{Connect, Means};
use crate::{ConnectOptions, KubeCluster, Rate, paused_env, tokio_env};

/// What the API server accepts now, and how often it was asked.
#[derive(Clone, Debug, Default)]
struct Gate {
    accepted: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Gate {
    fn accept(&self, token: &str) {
        token.clone_into(&mut self.accepted.lock().expect("no panic"));
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn answer(&self, seen: &Seen) -> axum::response::Response {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if seen.header("authorization") == format!("Bearer {}", self.accepted.lock().expect("no panic")) {
            answer(200, pod_json("web-1").to_string())
        } else {
            status(401, "Unauthorized", "Unauthorized")
        }
    }

    fn router(&self) -> axum::Router {
        let gate = self.clone();
        server(move |seen| {
            let answer = gate.answer(&seen);
            async { answer }
        })
    }
}

/// Gives the token `1` first, then `2`, and so on.
#[derive(Debug)]
struct Counting {
    gate: Gate,
    loads: Arc<AtomicUsize>,
    broken: bool,
}

impl Counting {
    fn means(&self) -> Means {
        let load = self.loads.fetch_add(1, Ordering::SeqCst) + 1;
        let token = HeaderValue::try_from(format!("Bearer {load}")).expect("a header");
        let service = self.gate.router().map_request(move |mut request: http::Request<kube::client::Body>| {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
            request
        });
        Means { client: kube::Client::new(service, "default"), token: None }
    }
}

#[async_trait]
impl Connect for Counting {
    async fn connect(&self) -> Result<Option<Means>, ConnectError> {
        // A real one waits for a program or a disk, and other calls go on meanwhile.
        pando_cluster::env::yield_now().await;
        if self.broken {
            self.loads.fetch_add(1, Ordering::SeqCst);
            return Err(ConnectError::NoCredentials("the credential plugin ended with exit status: 1".to_owned()));
        }
        Ok(Some(self.means()))
    }
}

struct Bed {
    gate: Gate,
    loads: Arc<AtomicUsize>,
    env: pando_cluster::Env,
    cluster: KubeCluster,
}

impl Bed {
    fn new(broken: bool) -> Self {
        let (gate, loads, env) = (Gate::default(), Arc::default(), paused_env(1));
        let connect = Counting { gate: gate.clone(), loads: Arc::clone(&loads), broken };
        let cluster = KubeCluster::new(connect.means(), Box::new(connect), Rate::default(), env.clone());
        gate.accept("1");
        Self { gate, loads, env, cluster }
    }

    fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_is_made_once_more_with_fresh_credentials() {
    let bed = Bed::new(false);
    bed.cluster.get(&pod_key("web-1")).await.expect("the first token is good");
    bed.gate.accept("2");
    bed.cluster.get(&pod_key("web-1")).await.expect("the second token is good");
    assert_eq!((bed.loads(), bed.gate.asked()), (2, 3));
    bed.cluster.get(&pod_key("web-1")).await.expect("and stays in use");
    assert_eq!((bed.loads(), bed.gate.asked()), (2, 4));
}

#[tokio::test(start_paused = true)]
async fn streams_are_opened_again_too() {
    let bed = Bed::new(false);
    bed.gate.accept("2");
    assert!(bed.cluster.watch(&watch_of_pods()).await.is_ok());
    assert_eq!(bed.loads(), 2);
}

#[tokio::test(start_paused = true)]
async fn calls_refused_together_load_once() {
    let bed = Bed::new(false);
    bed.gate.accept("2");
    let key = pod_key("web-1");
    let answers = join_all((0..20).map(|_| bed.cluster.get(&key))).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!((bed.loads(), bed.gate.asked()), (2, 40));
}

#[tokio::test(start_paused = true)]
async fn credentials_that_stay_wrong_are_loaded_at_intervals_only() {
    let bed = Bed::new(false);
    bed.gate.accept("never");
    for _ in 0..10 {
        let error = bed.cluster.get(&pod_key("web-1")).await.expect_err("refused");
        assert_eq!(error.failure, Failure::Unauthorized);
    }
    assert_eq!((bed.loads(), bed.gate.asked()), (2, 11));
    bed.env.sleep(Duration::from_secs(5)).await;
    bed.gate.accept("3");
    bed.cluster.get(&pod_key("web-1")).await.expect("loaded again");
    assert_eq!(bed.loads(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_failed_load_is_the_cause_of_the_refusal() {
    let bed = Bed::new(true);
    bed.gate.accept("2");
    let error = bed.cluster.get(&pod_key("web-1")).await.expect_err("refused");
    assert_eq!(error.failure, Failure::Unauthorized);
    let cause = error.source().expect("a cause").to_string();
    assert_eq!(cause, "no credentials: the credential plugin ended with exit status: 1");
}

/// Writes a kubeconfig whose only user has `user` (YAML, one line).
fn write_kubeconfig(path: &Path, server: &str, user: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: k, cluster: {{server: '{server}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nusers: [{{name: u, user: {user}}}]\n"
    );
    fs::write(path, text).expect("written");
}

/// Over a socket, since files and programs are the subject: a token `one` is rotated to `two` by `rotate`.
async fn rotates(user: impl Fn(&Path) -> String, rotate: impl Fn(&Path, &str)) {
    let gate = Gate::default();
    let server = listen(gate.router()).await;
    let dir = tempfile::tempdir().expect("a directory");
    rotate(dir.path(), "one");
    let kubeconfig = dir.path().join("kubeconfig");
    write_kubeconfig(&kubeconfig, &server, &user(dir.path()));
    let options = ConnectOptions { kubeconfig: Some(kubeconfig.clone()), ..ConnectOptions::default() };
    let cluster = KubeCluster::connect(&options, tokio_env()).await.expect("connected");

    gate.accept("one");
    cluster.get(&pod_key("web-1")).await.expect("the first token is good");
    rotate(dir.path(), "two");
    write_kubeconfig(&kubeconfig, &server, &user(dir.path()));
    gate.accept("two");
    cluster.get(&pod_key("web-1")).await.expect("the second token is good");
    assert_eq!(gate.asked(), 3);
    let printed = format!("{cluster:?}");
    assert!(printed.contains(&server) && printed.contains("\"c\""), "{printed}");
    assert!(!printed.contains("one") && !printed.contains("two"), "{printed}");
}

fn write_token(dir: &Path, token: &str) {
    fs::write(dir.join("token"), format!("{token}\n")).expect("written");
}

#[tokio::test]
async fn a_token_in_the_kubeconfig_rotates() {
    let token = |dir: &Path| fs::read_to_string(dir.join("token")).expect("a token");
    rotates(|dir| format!("{{token: {}}}", token(dir).trim()), write_token).await;
}

#[tokio::test]
async fn a_token_file_rotates_and_wins_over_a_token_beside_it() {
    rotates(|dir| format!("{{token: stale, tokenFile: {}/token}}", dir.display()), write_token).await;
}

#[tokio::test]
async fn a_credential_plugin_is_asked_again() {
    let user = |dir: &Path| {
        let program = format!(
            r#"printf '{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"%s"}}}}' $(cat {}/token)"#,
            dir.display()
        );
        let program = program.replace('\'', "''");
        format!(
            "{{exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, args: [-c, '{program}']}}}}"
        )
    };
    rotates(user, write_token).await;
}

#[tokio::test]
async fn a_failing_credential_plugin_is_told_without_its_output() {
    let dir = tempfile::tempdir().expect("a directory");
    let kubeconfig = dir.path().join("kubeconfig");
    let plugin = "{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, args: [-c, 'echo hunter2; exit 3']}}";
    write_kubeconfig(&kubeconfig, "http://127.0.0.1:1", plugin);
    let options = ConnectOptions { kubeconfig: Some(kubeconfig), ..ConnectOptions::default() };
    let error = KubeCluster::connect(&options, tokio_env()).await.expect_err("no credentials");
    assert_eq!(error.to_string(), "no credentials: the credential plugin ended with exit status: 3");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
}
