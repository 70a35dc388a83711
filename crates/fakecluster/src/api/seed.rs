//! What a cluster holds that has just come up.

use pando_cluster::Kind;
use serde_json::{Value, json};

use crate::config::{FakeConfig, FakeNode, FakeStorageClass};
use crate::store::Store;

const KUBELET: &str = "v1.34.0";

/// Puts the system's namespaces, the nodes, the storage classes and the API server's own Service into an empty store.
pub(crate) fn fill(store: &mut Store, config: &FakeConfig) {
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        store.insert(
            Kind::Namespace,
            json!({
                "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            }),
        );
    }
    let now = store.now_text();
    for (index, machine) in config.nodes.iter().enumerate() {
        store.insert(Kind::Node, node(machine, index, config, &now));
    }
    for class in &config.storage_classes {
        store.insert(Kind::StorageClass, storage_class(class));
    }
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let address = config.service_cidr.hosts().next().map(|ip| ip.to_string());
    store.insert(
        Kind::Service,
        json!({
            "metadata": {"namespace": "default", "name": "kubernetes", "labels": labels},
            "spec": {
                "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
                "sessionAffinity": "None",
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
            },
            "status": {"loadBalancer": {}},
        }),
    );
    store.insert(
        Kind::EndpointSlice,
        json!({
            "metadata": {
                "namespace": "default", "name": "kubernetes", "generation": 1,
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": config.api_server_addresses, "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
        }),
    );
}

/// The node as its kubelet has registered it.
pub(crate) fn node(machine: &FakeNode, index: usize, config: &FakeConfig, now: &str) -> Value {
    let mut labels = json!({
        "kubernetes.io/hostname": machine.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    });
    for (key, value) in &machine.labels {
        labels[key] = value.as_str().into();
    }
    let mut addresses: Vec<_> =
        machine.addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
    addresses.push(json!({"type": "Hostname", "address": machine.name}));
    let pods = pod_range(config, index);
    let ready = if machine.ready {
        json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
            "lastHeartbeatTime": now, "lastTransitionTime": now})
    } else {
        json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "kubelet is not ready",
            "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    json!({
        "metadata": {"name": machine.name, "labels": labels},
        "spec": {"podCIDR": pods, "podCIDRs": [pods]},
        "status": {
            "allocatable": machine.allocatable,
            "capacity": machine.allocatable,
            "addresses": addresses,
            "conditions": [ready],
            "nodeInfo": {
                "architecture": labels["kubernetes.io/arch"], "operatingSystem": labels["kubernetes.io/os"],
                "kubeletVersion": KUBELET, "kubeProxyVersion": "", "containerRuntimeVersion": "containerd://2.1.3",
                "kernelVersion": "6.8.0", "osImage": "Debian GNU/Linux 12 (bookworm)", "bootID": "", "machineID": "",
                "systemUUID": "",
            },
        },
    })
}

fn storage_class(class: &FakeStorageClass) -> Value {
    let mut object = json!({
        "metadata": {"name": class.name},
        "provisioner": class.provisioner,
        "reclaimPolicy": class.reclaim_policy,
        "volumeBindingMode": if class.waits_for_first_consumer { "WaitForFirstConsumer" } else { "Immediate" },
    });
    if class.is_default {
        object["metadata"]["annotations"] = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    }
    if class.expandable {
        object["allowVolumeExpansion"] = true.into();
    }
    object
}

/// The node's share of the pods' range: the next /24 of it, or all of it where there are none left.
fn pod_range(config: &FakeConfig, index: usize) -> String {
    let whole = config.pod_cidr;
    let share = whole.subnets(24.max(whole.prefix_len())).ok().and_then(|mut shares| shares.nth(index));
    share.unwrap_or(whole).to_string()
}
