//! Limits and connections.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use futures::future::join_all;
use pando_cluster::{Cluster, Failure, Kind, Object};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{answer, cluster, pod_json, pod_key, server, watch_of_pods};
use crate::{ConnectOptions, KubeCluster, Rate, paused_env, tokio_env};

/// Serves `router` on loopback for as long as the test runs; answers its URL.
pub(super) async fn listen(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio_env().spawn_detached("API server", async move {
        axum::serve(listener, router).await.expect("served");
    });
    url
}

async fn connect(url: &str) -> KubeCluster {
    connect_through(url, "").await
}

/// Connects to `url` through a proxy; an empty one is none.
async fn connect_through(url: &str, proxy: &str) -> KubeCluster {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("kubeconfig");
    let text = format!(
        "current-context: c\nclusters: [{{name: k, cluster: {{server: '{url}', proxy-url: '{proxy}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: k}}}}]\n"
    );
    std::fs::write(&path, text).expect("written");
    let options = ConnectOptions { kubeconfig: Some(path), ..ConnectOptions::default() };
    KubeCluster::connect(&options, tokio_env()).await.expect("connected")
}

fn pod() -> Object {
    Object::from_json(Kind::Pod, pod_json("web-1")).expect("a pod")
}

#[tokio::test(start_paused = true)]
async fn the_rate_holds_for_calls_and_the_opening_of_streams_alike() {
    let env = paused_env(1);
    let server = server(|_| async { answer(200, pod_json("web-1").to_string()) });
    let rate = Rate { qps: NonZeroU32::new(10).expect("not zero"), burst: NonZeroU32::MIN };
    let cluster = KubeCluster::from_service(server, env.clone()).with_rate(rate);
    let start = env.now();
    for _ in 0..2 {
        cluster.get(&pod_key("web-1")).await.expect("a pod");
        drop(cluster.watch(&watch_of_pods()).await.expect("a watch"));
        cluster.create(&pod()).await.expect("created");
    }
    assert_eq!(env.now().since(start), Duration::from_millis(500));
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_are_bounded_and_streams_are_not_counted() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let cluster = cluster({
        let most = Arc::clone(&most);
        move |seen| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                if seen.uri.contains("watch=") {
                    return answer(
                        200,
                        axum::body::Body::from_stream(futures::stream::pending::<std::io::Result<String>>()),
                    );
                }
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                paused_env(1).sleep(Duration::from_millis(10)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                answer(200, pod_json("web-1").to_string())
            }
        }
    });
    let mut open = Vec::new();
    for _ in 0..2 * KubeCluster::AT_ONCE {
        open.push(cluster.watch(&watch_of_pods()).await.expect("a watch"));
    }
    let key = pod_key("web-1");
    let answers = join_all((0..3 * KubeCluster::AT_ONCE).map(|_| cluster.get(&key))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(most.load(Ordering::SeqCst), KubeCluster::AT_ONCE);
}

#[tokio::test]
async fn without_a_connection_a_write_did_not_happen() {
    // A port that was free a moment ago.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let error = connect(&url).await.create(&pod()).await.expect_err("nobody listens");
    assert!(matches!(error.failure, Failure::Unavailable(_)), "{error:?}");
    let chain = std::iter::successors(std::error::Error::source(&error), |error| error.source());
    assert!(chain.map(ToString::to_string).any(|text| text.contains("refused")), "{error:?}");
}

#[tokio::test]
async fn a_connection_that_breaks_after_a_write_was_sent_leaves_it_open() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio_env().spawn_detached("peer", async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            // The request is read, and then there is silence.
            let _ = socket.read(&mut [0; 16]).await;
        }
    });
    let cluster = connect(&url).await;
    let written = cluster.create(&pod()).await.expect_err("broken");
    assert_eq!(written.failure, Failure::Timeout { may_have_happened: true }, "{written:?}");
    let read = cluster.get(&pod_key("web-1")).await.expect_err("broken");
    assert!(matches!(read.failure, Failure::Unavailable(_)), "{read:?}");
}

#[tokio::test]
async fn the_prefix_of_a_server_behind_a_gateway_is_kept() {
    let url = listen(server(|seen| async move {
        assert_eq!(seen.uri, "/k8s/clusters/c-1/api/v1/namespaces/a/pods/web-1");
        answer(200, pod_json("web-1").to_string())
    }))
    .await;
    let cluster = connect(&format!("{url}/k8s/clusters/c-1")).await;
    assert!(cluster.get(&pod_key("web-1")).await.expect("a pod").is_some());
}

/// A proxy that takes every CONNECT to `target`; answers its address and what it was asked.
async fn proxy_to(target: String) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&asked);
    tokio_env().spawn_detached("proxy", async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.expect("a request"));
            }
            record.lock().expect("no panic").push(String::from_utf8(head).expect("text"));
            let mut server = TcpStream::connect(&target).await.expect("the API server");
            socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("answered");
            // Ends with the test.
            let _ = tokio::io::copy_bidirectional(&mut socket, &mut server).await;
        }
    });
    (address, asked)
}

#[tokio::test]
async fn a_proxy_in_the_kubeconfig_is_gone_through() {
    let url = listen(server(|_| async { answer(200, pod_json("web-1").to_string()) })).await;
    let (proxy, asked) = proxy_to(url.trim_start_matches("http://").to_owned()).await;
    let cluster = connect_through("http://cluster.invalid:6443", &format!("http://user:word@{proxy}")).await;
    assert!(cluster.get(&pod_key("web-1")).await.expect("a pod").is_some());
    let asked = asked.lock().expect("no panic").join("");
    assert!(asked.starts_with("CONNECT cluster.invalid:6443 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.to_ascii_lowercase().contains("proxy-authorization: basic dxnlcjp3b3jk\r\n"), "{asked}");
}
