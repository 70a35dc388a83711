//! What is applied, and what else there is in the cluster: plans, what the adapter before this one left, strangers' objects.

use pando_api::{
    BundlePlan, FilePlan, HealthPlan, MountPlan, PortPlan, Protocol, RegistryAuth, ResourcePlan, Secret, VolumePlan,
    WorkloadPlan,
};
use pando_cluster::Kind;
use serde_json::{Value, json};

use super::scenario::Version;

/// The app's bundle.
pub(super) const BUNDLE: &str = "shop";
/// Its namespace.
pub(super) const NAMESPACE: &str = "pando-shop";
/// The workload that every version has; in the whole app it starts after the other one.
pub(super) const WEB: &str = "web";
/// The workload with the volume.
pub(super) const DB: &str = "db";
/// Where the database listens once it is ready.
pub(super) const DB_PORT: u16 = 5432;
/// An image that no registry has.
pub(super) const MISSING_IMAGE: &str = "registry.example/shop:missing";
/// A private image, whose pull takes a while.
pub(super) const NEW_IMAGE: &str = "registry.example/shop:3";

/// Who may pull private images.
pub(super) const LOGIN: &str = "shop";

/// Values that may be nowhere but in a Secret: environments' and a registry's.
pub(super) const CANARIES: [&str; 4] =
    ["canary-of-the-first", "canary-of-the-second", "canary-of-the-database", "canary-of-the-registry"];

/// The plan of that version.
pub(super) fn plan(version: Version) -> BundlePlan {
    let alone =
        |workload| BundlePlan { bundle_id: BUNDLE.to_owned(), workloads: vec![workload], ..BundlePlan::default() };
    match version {
        Version::First => alone(web("registry.example/shop:1", CANARIES[0], 100)),
        Version::Second => alone(web("registry.example/shop:2", CANARIES[1], 200)),
        Version::OtherImage => alone(web("registry.example/shop:2", CANARIES[0], 100)),
        Version::Whole => whole("registry.example/shop:1"),
        Version::NewImage => whole(NEW_IMAGE),
        Version::MissingImage => whole(MISSING_IMAGE),
        Version::WithoutWeb => {
            let mut plan = whole(NEW_IMAGE);
            plan.workloads.retain(|workload| workload.name == DB);
            plan
        }
    }
}

fn web(image: &str, token: &str, cpu_millis: u64) -> WorkloadPlan {
    WorkloadPlan {
        name: WEB.to_owned(),
        image: image.to_owned(),
        env: [("TOKEN".to_owned(), Secret::new(token))].into(),
        ports: vec![PortPlan { number: 80, protocol: Protocol::Tcp }],
        resources: ResourcePlan { cpu_millis, memory_bytes: 64 << 20, ephemeral_bytes: 0 },
        ..WorkloadPlan::default()
    }
}

/// A web server with a carried file and a private image, after a database with a volume and a health check.
fn whole(image: &str) -> BundlePlan {
    let auth = RegistryAuth {
        registry: "registry.example".to_owned(),
        username: LOGIN.to_owned(),
        password: Secret::new(CANARIES[3]),
        ..RegistryAuth::default()
    };
    let web = WorkloadPlan {
        depends_on: vec![DB.to_owned()],
        files: vec![FilePlan { path: "/etc/shop.conf".to_owned(), content: "open = true\n".to_owned(), mode: 0 }],
        pull_auth: Some(auth),
        ..web(image, CANARIES[0], 100)
    };
    let db = WorkloadPlan {
        name: DB.to_owned(),
        image: "registry.example/db:1".to_owned(),
        env: [("PASSWORD".to_owned(), Secret::new(CANARIES[2]))].into(),
        mounts: vec![MountPlan { volume_id: "data".to_owned(), path: "/data".to_owned(), read_only: false }],
        ports: vec![PortPlan { number: DB_PORT.into(), protocol: Protocol::Tcp }],
        health: Some(HealthPlan { port: Some(DB_PORT.into()), ..HealthPlan::default() }),
        resources: ResourcePlan { cpu_millis: 100, memory_bytes: 64 << 20, ephemeral_bytes: 0 },
        ..WorkloadPlan::default()
    };
    let data = VolumePlan { volume_id: "data".to_owned(), name: "data".to_owned(), size_bytes: 1 << 30 };
    BundlePlan { bundle_id: BUNDLE.to_owned(), workloads: vec![web, db], volumes: vec![data], ..BundlePlan::default() }
}

/// The first version, as the adapter before this one left it.
pub(super) fn left_before() -> Vec<(Kind, Value)> {
    let labels = json!({"app.kubernetes.io/managed-by": "pando", "pando.dev/bundle": BUNDLE});
    let meta = |name: &str| json!({"name": name, "namespace": NAMESPACE, "labels": labels});
    let of_web = |name: &str| {
        let mut meta = meta(name);
        meta["labels"]["pando.dev/workload"] = WEB.into();
        meta
    };
    let limits = json!({"cpu": "100m", "memory": "67108864"});
    let mut pod = of_web("web-b4k2x");
    pod["annotations"] = json!({"pando.dev/plan-digest": "0123456789abcdef0123456789abcdef"});
    let token = data_encoding::BASE64.encode(CANARIES[0].as_bytes());
    vec![
        (
            Kind::Namespace,
            json!({"metadata": {"name": NAMESPACE, "labels": {"app.kubernetes.io/managed-by": "pando", "pando.dev/bundle": BUNDLE,
                "pod-security.kubernetes.io/enforce": "baseline"}}}),
        ),
        (
            Kind::RoleBinding,
            json!({"metadata": meta("pando-app-manager"),
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "pando-app-manager"},
                "subjects": [{"kind": "ServiceAccount", "name": "pando", "namespace": "pando"}]}),
        ),
        (
            Kind::NetworkPolicy,
            json!({"metadata": meta("pando-default"), "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": {}}]}], "egress": [{"to": [{"podSelector": {}}]}]}}),
        ),
        (
            Kind::ResourceQuota,
            json!({"metadata": meta("pando-quota"), "spec": {"hard": {"services.nodeports": "0", "services.loadbalancers": "0"}}}),
        ),
        (Kind::Secret, json!({"metadata": of_web("pando-env-web"), "type": "Opaque", "data": {"TOKEN": token}})),
        (
            Kind::Service,
            json!({"metadata": of_web(WEB), "spec": {"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"],
                "publishNotReadyAddresses": true, "selector": {"pando.dev/workload": WEB},
                "ports": [{"name": "tcp-80", "port": 80, "protocol": "TCP", "targetPort": 80}]}}),
        ),
        (
            Kind::Pod,
            json!({"metadata": pod, "spec": {"restartPolicy": "Never", "hostname": WEB,
                "automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "app", "image": "registry.example/shop:1", "imagePullPolicy": "IfNotPresent",
                    "envFrom": [{"secretRef": {"name": "pando-env-web"}}],
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "resources": {"limits": limits, "requests": limits}}]}}),
        ),
    ]
}

/// A stranger's pod in the app's namespace.
pub(super) const STRANGER: &str = "web-debug";

/// Strangers' objects in the app's namespace, as like ours as strangers' objects may be.
pub(super) fn strangers() -> Vec<(Kind, Value)> {
    let meta = |name: &str| {
        json!({"name": name, "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/managed-by": "helm", "pando.dev/workload": WEB, "pando.dev/bundle": BUNDLE}})
    };
    let limits = json!({"cpu": "10m", "memory": "16Mi"});
    vec![
        (
            Kind::Pod,
            json!({"metadata": meta(STRANGER), "status": {"phase": "Pending"},
                "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [
                    {"name": "shell", "image": "busybox:1.37", "resources": {"requests": limits, "limits": limits}}]}}),
        ),
        (Kind::Secret, json!({"metadata": meta("web-release"), "type": "Opaque"})),
        (Kind::Service, json!({"metadata": meta("web-metrics"), "spec": {"type": "ClusterIP", "clusterIP": "None"}})),
    ]
}

/// Another app of Pando's, and a team's own namespace.
pub(super) fn neighbours() -> Vec<(Kind, Value)> {
    let other = json!({"app.kubernetes.io/managed-by": "pando", "pando.dev/bundle": "blog"});
    let web = json!({"app.kubernetes.io/managed-by": "pando", "pando.dev/bundle": "blog", "pando.dev/workload": WEB});
    vec![
        (
            Kind::Namespace,
            json!({"metadata": {"name": "pando-blog", "labels": other, "annotations": {"pando.dev/bundle-id": "blog"}},
                "status": {"phase": "Active"}}),
        ),
        (
            Kind::Service,
            json!({"metadata": {"name": WEB, "namespace": "pando-blog", "labels": web},
                "spec": {"type": "ClusterIP", "clusterIP": "None"}}),
        ),
        (
            Kind::Namespace,
            json!({"metadata": {"name": "team", "labels": {"app.kubernetes.io/managed-by": "helm"}}, "status": {"phase": "Active"}}),
        ),
        (
            Kind::Service,
            json!({"metadata": {"name": WEB, "namespace": "team", "labels": {"pando.dev/workload": WEB}},
                "spec": {"type": "ClusterIP", "clusterIP": "None"}}),
        ),
    ]
}
