//! How much memory and time the view of a large cluster takes.
//!
//! `cargo run --release -p pando-conformance --example view_memory -- 26000` warms a runtime on a cluster that only lists: so
//! many apps, one pod, one Service and one policy each, as large as Kubernetes 1.34 writes them. Linux only.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use pando_adapter::{KubernetesRuntime, Settings};
use pando_api::{BundleRef, CallContext, RuntimeAdapter as _};
use pando_cluster::{
    ByteStream, Cluster, ClusterError, DeleteOptions, EventStream, Failure, Kind, ListRequest, LogRequest, MergePatch,
    Object, ObjectKey, Page, ResourceVersion, WatchRequest,
};
use pando_kubecluster::tokio_env;
use serde_json::{Value, json};

/// A cluster of so many apps.
#[derive(Debug)]
struct Crowd(usize);

impl Crowd {
    fn refuse<T>(verb: &'static str, key: &ObjectKey) -> Result<T, ClusterError> {
        Err(ClusterError::new(verb, key.clone(), Failure::NotFound))
    }

    /// How many objects of a kind there are.
    fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Node => self.0.div_ceil(100),
            Kind::EndpointSlice => 1,
            Kind::Namespace | Kind::Pod | Kind::Service | Kind::NetworkPolicy => self.0,
            _ => 0,
        }
    }
}

#[async_trait]
impl Cluster for Crowd {
    async fn get(&self, key: &ObjectKey) -> Result<Option<Object>, ClusterError> {
        Ok((key.kind == Kind::EndpointSlice).then(|| object(key.kind, 0)))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, ClusterError> {
        let from = request.after.as_deref().and_then(|token| token.parse().ok()).unwrap_or(0);
        let count = self.count(request.kind);
        let until = count.min(from + request.limit.map_or(count, |limit| usize::try_from(limit).unwrap_or(count)));
        let items = (from..until).map(|number| object(request.kind, number)).collect();
        let next = (until < count).then(|| until.to_string());
        Ok(Page { items, version: ResourceVersion::new("1"), next })
    }

    async fn create(&self, object: &Object) -> Result<Object, ClusterError> {
        Self::refuse("create", &object.key())
    }

    async fn patch(&self, key: &ObjectKey, _: &MergePatch) -> Result<Object, ClusterError> {
        Self::refuse("patch", key)
    }

    async fn delete(&self, key: &ObjectKey, _: &DeleteOptions) -> Result<(), ClusterError> {
        Self::refuse("delete", key)
    }

    async fn watch(&self, _: &WatchRequest) -> Result<EventStream, ClusterError> {
        Ok(stream::pending().boxed())
    }

    async fn logs(&self, request: &LogRequest) -> Result<ByteStream, ClusterError> {
        Self::refuse("read the log of", &ObjectKey::namespaced(Kind::Pod, &*request.namespace, &*request.pod))
    }
}

/// The object of a kind that belongs to the app of that number.
fn object(kind: Kind, number: usize) -> Object {
    let (bundle, app) = (format!("app_01HQ8ABC{number:018}"), format!("app-01hq8abc{number:018}"));
    let namespace = format!("pando-{app}");
    let labels = json!({"app.kubernetes.io/managed-by": "pando", "pando.dev/bundle": app, "pando.dev/workload": "web", "pando.dev/revision": "12"});
    let uid = format!("6f1c8f2e-5f0b-4c55-9d1d-{number:012}");
    let fields = |manager: &str| {
        json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:pando.dev/bundle": {}, "f:pando.dev/workload": {}}},
                "f:spec": {"f:containers": {"k:{\"name\":\"app\"}": {".": {}, "f:image": {}, "f:name": {}, "f:resources": {}}}, "f:restartPolicy": {}}}})
    };
    let meta = |name: &str| {
        json!({"name": name, "namespace": namespace, "uid": uid, "resourceVersion": format!("{}", 1_000_000 + number), "labels": labels,
            "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [fields("pando-k8s"), fields("kubelet")]})
    };
    let spec = match kind {
        Kind::Pod => return whole(kind, pod(meta("web-12"))),
        Kind::Service => {
            json!({"clusterIP": "None", "clusterIPs": ["None"], "selector": labels, "publishNotReadyAddresses": true, "type": "ClusterIP",
            "ports": [{"name": "tcp-80", "port": 80, "protocol": "TCP", "targetPort": 80}], "sessionAffinity": "None"})
        }
        Kind::NetworkPolicy => {
            json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{"from": [{"podSelector": {}}]}],
            "egress": [{"to": [{"podSelector": {}}]}, {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.96.0.0/16", "10.244.0.0/16", "169.254.0.0/16"]}}]}]})
        }
        Kind::EndpointSlice => {
            let meta = json!({"name": "kubernetes", "namespace": "default"});
            return whole(
                kind,
                json!({"metadata": meta, "addressType": "IPv4", "endpoints": [{"addresses": ["172.18.0.2"]}], "ports": [{"port": 6443}]}),
            );
        }
        Kind::Node => {
            return whole(
                kind,
                json!({"metadata": {"name": format!("node-{number}"), "uid": uid, "resourceVersion": "1"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": format!("172.18.{}.{}", number / 250, number % 250)}]}}),
            );
        }
        _ => json!({}),
    };
    let name = match kind {
        Kind::NetworkPolicy => "pando-default",
        Kind::Namespace => &namespace,
        _ => "web",
    };
    let mut meta = meta(name);
    meta["annotations"] = json!({"pando.dev/bundle-id": bundle});
    whole(kind, json!({"metadata": meta, "spec": spec}))
}

fn pod(meta: Value) -> Value {
    let mut meta = meta;
    let digest = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";
    meta["annotations"] = json!({"pando.dev/plan-digest": format!("v1.{digest}.{digest}"), "pando.dev/template-digest": digest,
        "pando.dev/request-id": "req_01HQ8ABC", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"});
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:05Z"});
    let status = |name: &str, state: Value| {
        json!({"name": name, "image": "docker.io/library/web:1.37", "imageID": format!("docker.io/library/web@sha256:{}", "ab".repeat(32)),
            "containerID": format!("containerd://{}", "cd".repeat(32)), "ready": true, "restartCount": 0, "started": true, "lastState": {}, "state": state})
    };
    let resources =
        json!({"limits": {"cpu": "500m", "memory": "268435456"}, "requests": {"cpu": "500m", "memory": "268435456"}});
    let container = |name: &str| {
        json!({"name": name, "image": "web:1.37", "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", "x".repeat(200)], "resources": resources,
            "envFrom": [{"secretRef": {"name": "pando-env-web"}}], "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["NET_RAW"]}}})
    };
    json!({"metadata": meta,
        "spec": {"nodeName": "node-17", "restartPolicy": "Never", "serviceAccountName": "pando-app", "terminationGracePeriodSeconds": 10, "hostname": "web",
            "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "initContainers": [container("gate")], "containers": [container("app")]},
        "status": {"phase": "Running", "podIP": "10.244.1.9", "podIPs": [{"ip": "10.244.1.9"}], "hostIP": "172.18.0.3", "qosClass": "Guaranteed", "startTime": "2026-01-01T00:00:01Z",
            "conditions": [condition("PodReadyToStartContainers"), condition("Initialized"), condition("Ready"), condition("ContainersReady"), condition("PodScheduled")],
            "initContainerStatuses": [status("gate", json!({"terminated": {"exitCode": 0, "reason": "Completed", "message": "closed 1200",
                "startedAt": "2026-01-01T00:00:02Z", "finishedAt": "2026-01-01T00:00:04Z"}}))],
            "containerStatuses": [status("app", json!({"running": {"startedAt": "2026-01-01T00:00:05Z"}}))]}})
}

fn whole(kind: Kind, json: Value) -> Object {
    Object::from_json(kind, json).unwrap_or_else(|error| panic!("{kind}: {error}"))
}

/// This process's memory: in RAM now, and the most it ever was, in MiB.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    let mebibytes = |name| line(name).unwrap_or_default() / 1024;
    (mebibytes("VmRSS:"), mebibytes("VmHWM:"))
}

fn main() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(measure())
}

async fn measure() -> Result<(), Box<dyn Error>> {
    let apps = std::env::args().nth(1).map_or(Ok(26_000), |number| number.parse())?;
    let env = tokio_env();
    let settings = Settings::from_json(&json!({"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/16"}))?;
    let runtime = KubernetesRuntime::new(settings, Arc::new(Crowd(apps)), env.clone());
    let pod = object(Kind::Pod, 0).to_json()?.to_string().len();
    let (before, _) = memory();
    let began = env.now();
    runtime.warm().await?;
    let warmed = env.now().since(began);
    let (after, most) = memory();
    println!(
        "{apps} apps, a pod of {pod} bytes each: {} MiB, at most {} MiB, after {warmed:?}",
        after - before,
        most - before
    );
    let context = CallContext::new("example");
    let began = env.now();
    let looks = 1_000.min(apps);
    for number in 0..looks {
        let bundle = runtime.observe(&BundleRef::new(format!("app_01HQ8ABC{number:018}")), &context).await?;
        assert!(bundle.exists && bundle.workloads.iter().all(|web| web.running), "{bundle:?}");
    }
    println!("{looks} observations take {:?}", env.now().since(began));
    Ok(())
}
