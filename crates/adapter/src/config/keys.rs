//! The keys of the configuration: each once, with all that the reader, the form, the schema and the documentation say of it.

/// A key whose values have the form `F`.
#[derive(Debug)]
pub(super) struct Key<F> {
    /// As it is written.
    pub(super) name: &'static str,
    /// Its name in a form.
    pub(super) label: &'static str,
    /// What it is for and how it is written.
    pub(super) help: &'static str,
    /// What may be given, and what counts when nothing is.
    pub(super) form: F,
    /// Whether a form shows it at once or among the advanced ones.
    pub(super) level: Level,
}

/// Who needs a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Whoever sets up an installation looks at it.
    Basic,
    /// Most installations do without.
    Advanced,
}

/// A text. A blank one counts as nothing, as forms send it.
#[derive(Debug)]
pub(super) enum Text {
    /// It must be given; there is an example.
    Required(&'static str),
    /// What counts when nothing is given.
    Default(&'static str),
    /// Nothing counts as nothing; there is an example.
    Optional(&'static str),
}

/// A whole number.
#[derive(Debug)]
pub(super) struct Number {
    /// What counts when nothing is given.
    pub(super) default: u64,
    /// The least that may be given.
    pub(super) least: u64,
    /// The most that may be given.
    pub(super) most: u64,
}

/// True or false.
#[derive(Debug)]
pub(super) struct Flag {
    /// What counts when nothing is given.
    pub(super) default: bool,
}

/// A key of any form.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnyKey {
    /// One that takes a text.
    Text(&'static Key<Text>),
    /// One that takes a number.
    Number(&'static Key<Number>),
    /// One that takes true or false.
    Flag(&'static Key<Flag>),
}

impl AnyKey {
    /// The key as it is written.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text(key) => key.name,
            Self::Number(key) => key.name,
            Self::Flag(key) => key.name,
        }
    }
}

/// Makes a constant of every key, and the list of all.
macro_rules! table {
    ($($constant:ident: $form:ident $level:ident $name:literal, $label:literal, $value:expr, $help:expr;)*) => {
        $(pub(super) static $constant: Key<$form> =
            Key { name: $name, label: $label, help: $help, form: $value, level: Level::$level };)*
        /// Every key, in the order of a form.
        pub(super) static ALL: &[AnyKey] = &[$(AnyKey::$form(&$constant)),*];
    };
}

table! {
    POD_CIDR: Text Basic "pod_cidr", "Pod ranges", Text::Required("10.244.0.0/16"),
        "The cluster's ranges of pods, comma-separated, IPv4 and IPv6. A family of addresses that has not both a pod and a service \
        range stays closed to the outside.";
    SERVICE_CIDR: Text Basic "service_cidr", "Service ranges", Text::Required("10.96.0.0/12"),
        "The cluster's ranges of Services, comma-separated, IPv4 and IPv6.";
    NODE_CIDR: Text Basic "node_cidr", "Node ranges", Text::Optional("192.168.0.0/24"),
        "Ranges of the cluster's nodes, comma-separated, which apps may not reach. Nodes that exist are closed without it; with it, \
        those that join later are too.";
    EGRESS_EXCEPT: Text Advanced "egress_except", "Closed ranges",
        Text::Default("169.254.0.0/16,fe80::/10,fd00:ec2::254/128"),
        "Ranges outside of the cluster that no app may reach, comma-separated. The default closes the metadata services of clouds: \
        repeat it when adding others.";
    KUBECONFIG: Text Basic "kubeconfig", "Kubeconfig", Text::Optional("/etc/pando/kubeconfig"),
        "The path of a kubeconfig. Without it, the account of the pod that this runs in.";
    CONTEXT: Text Advanced "context", "Context", Text::Optional("production"),
        "A context of the kubeconfig. Without it, its current one.";
    PANDO_NAMESPACE: Text Advanced "pando_namespace", "Pando's namespace", Text::Default("pando"),
        "The namespace of Pando itself: apps' doors are open to its server there.";
    SERVICE_ACCOUNT: Text Advanced "service_account", "Pando's account", Text::Default("pando"),
        "The service account that Pando runs as, in its namespace.";
    APP_ROLE: Text Advanced "app_role", "Role in apps' namespaces", Text::Default("pando-app-manager"),
        "The ClusterRole that Pando's account gets in every app's namespace.";
    CLUSTER_DOMAIN: Text Advanced "cluster_domain", "Cluster domain", Text::Default("cluster.local"),
        "The cluster's DNS domain.";
    DNS_NAMESPACE: Text Advanced "dns_namespace", "DNS namespace", Text::Default("kube-system"),
        "The namespace of the DNS servers' pods.";
    DNS_LABELS: Text Advanced "dns_labels", "DNS labels", Text::Default("k8s-app=kube-dns"),
        "Labels of the DNS servers' pods: `key=value`, comma-separated.";
    DNS_ADDRESSES: Text Advanced "dns_addresses", "DNS addresses", Text::Optional("169.254.20.10"),
        "Addresses of DNS servers that are no pods, comma-separated, e.g. NodeLocal DNSCache's.";
    NODE_SELECTOR: Text Advanced "node_selector", "Nodes for apps", Text::Optional("pando.dev/apps=yes"),
        "Labels of the nodes that apps may run on: `key=value`, comma-separated. Without it, every node.";
    TOLERATIONS: Text Advanced "tolerations", "Tolerations", Text::Optional("dedicated=apps:NoSchedule"),
        "Taints that app pods tolerate: `key=value:Effect`, `key:Effect` or `:Effect`, comma-separated.";
    RUNTIME_CLASS: Text Advanced "runtime_class", "Runtime class", Text::Optional("gvisor"),
        "The RuntimeClass of app pods. Without it, the cluster's default.";
    PRIORITY_CLASS: Text Advanced "priority_class", "Priority class", Text::Optional("apps"),
        "The PriorityClass of app pods. Without it, the cluster's default.";
    STORAGE_CLASS: Text Basic "storage_class", "Storage class", Text::Optional("standard"),
        "The StorageClass of new volumes. Without it, the cluster's default.";
    VOLUME_SIZE_BYTES: Number Advanced "volume_size_bytes", "Volume size",
        Number { default: 10 << 30, least: 1, most: i64::MAX.unsigned_abs() },
        "The size, in bytes, of a volume whose plan names none.";
    HELPER_IMAGE: Text Advanced "helper_image", "Helper image", Text::Default("busybox:1.37"),
        "The image of isolation gates and of the canary; it holds the tools of busybox, `httpd`, `wget` and `nc` among them.";
    ISOLATION_GATE: Flag Advanced "isolation_gate", "Isolation gate", Flag { default: true },
        "Whether a workload waits until its own pod has seen that the network policy holds.";
    ISOLATION_GATE_SECONDS: Number Advanced "isolation_gate_seconds", "Isolation gate's limit",
        Number { default: 30, least: 5, most: 600 },
        "How many seconds it may wait for that.";
    STOP_GRACE_SECONDS: Number Advanced "stop_grace_seconds", "Stop grace", Number { default: 10, least: 1, most: 3600 },
        "How many seconds a workload has to end, unless its plan says otherwise.";
    START_TIMEOUT_SECONDS: Number Advanced "start_timeout_seconds", "Start limit",
        Number { default: 600, least: 1, most: 86_400 },
        "How many seconds a start may take, the image included.";
    UNSCHEDULABLE_SECONDS: Number Advanced "unschedulable_seconds", "Scheduling limit",
        Number { default: 60, least: 1, most: 86_400 },
        "For how many seconds no node may have room for a workload before its start fails.";
    API_QPS: Number Advanced "api_qps", "Calls a second", Number { default: 200, least: 1, most: 100_000 },
        "How many calls to the API server are made a second, on average.";
    API_BURST: Number Advanced "api_burst", "Calls at once", Number { default: 400, least: 1, most: 1_000_000 },
        "How many calls to the API server are made at once; at least `api_qps`, which it defaults to when that is above 400.";
}

/// Keys of features to come.
pub(super) const NOT_BUILT: &[&str] = &[
    "api_server_cidr",
    "edge_http_node_port",
    "edge_https_node_port",
    "edge_namespace",
    "edge_replicas",
    "edge_service_type",
    "egress_gateway_image",
    "helper_pull_secret",
    "pando_service",
    "proxy_port",
];
