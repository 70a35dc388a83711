//! The kinds of object this workspace knows, and the typed and untyped forms they travel in.
//!
//! [`Kind`] and [`Object`] are closed: a new kind does not compile until every implementation of
//! [`Cluster`](crate::Cluster) handles it, and it appears here together with its first user.

use std::fmt;

use k8s_openapi::api::core::v1::{
    ConfigMap, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service,
    ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Whether objects of a kind live inside a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoped {
    /// One set of names for the whole cluster.
    Cluster,
    /// A set of names for every namespace.
    Namespace,
}

/// A Kubernetes type that [`Object`] can hold.
pub trait Resource:
    k8s_openapi::Metadata<Ty = ObjectMeta>
    + Serialize
    + DeserializeOwned
    + Clone
    + PartialEq
    + fmt::Debug
    + Send
    + Sync
    + 'static
{
    /// The kind of this type.
    const OBJECT_KIND: Kind;

    /// Wraps the object.
    fn into_object(self) -> Object;

    /// Unwraps the object; `None` when it is of another kind.
    fn from_object(object: Object) -> Option<Self>;

    /// Where the object is, from its metadata. A missing name or namespace is an empty string.
    fn key(&self) -> ObjectKey {
        ObjectKey::of_meta(Self::OBJECT_KIND, self.metadata())
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $group:literal / $version:literal $plural:literal $scope:ident;)+) => {
        /// A kind of Kubernetes object.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[$doc])* $kind,)+
        }

        impl Kind {
            /// Every kind, in declaration order.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// The kind's name as objects spell it, e.g. `Pod`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => stringify!($kind),)+ }
            }

            /// The API group; empty for the core group.
            pub const fn group(self) -> &'static str {
                match self { $(Self::$kind => $group,)+ }
            }

            /// The API version inside the group, e.g. `v1`.
            pub const fn version(self) -> &'static str {
                match self { $(Self::$kind => $version,)+ }
            }

            /// The resource's name in paths and access rules, e.g. `pods`.
            pub const fn plural(self) -> &'static str {
                match self { $(Self::$kind => $plural,)+ }
            }

            /// Whether objects of the kind live in namespaces.
            pub const fn scoped(self) -> Scoped {
                match self { $(Self::$kind => Scoped::$scope,)+ }
            }
        }

        /// One object of one of the known kinds.
        #[derive(Clone, PartialEq)]
        pub enum Object {
            $($(#[$doc])* $kind(Box<$kind>),)+
        }

        impl Object {
            /// The object's kind.
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$kind(_) => Kind::$kind,)+ }
            }

            /// The object's metadata.
            pub const fn meta(&self) -> &ObjectMeta {
                match self { $(Self::$kind(object) => &object.metadata,)+ }
            }

            /// The object's metadata, to change.
            pub const fn meta_mut(&mut self) -> &mut ObjectMeta {
                match self { $(Self::$kind(object) => &mut object.metadata,)+ }
            }

            /// The object as Kubernetes writes it, `apiVersion` and `kind` included.
            ///
            /// # Errors
            ///
            /// When the object cannot be written as JSON, which for these types does not happen.
            pub fn to_json(&self) -> Result<Value, serde_json::Error> {
                match self { $(Self::$kind(object) => serde_json::to_value(object),)+ }
            }

            /// Reads an object of `kind`; `apiVersion` and `kind` may be missing, as they are in the items of a list.
            ///
            /// # Errors
            ///
            /// When the JSON does not fit the kind.
            pub fn from_json(kind: Kind, json: Value) -> Result<Self, serde_json::Error> {
                Ok(match kind { $(Kind::$kind => Self::$kind(serde_json::from_value(json)?),)+ })
            }

            /// The same from text, without a tree of values in between.
            ///
            /// # Errors
            ///
            /// When the text is no JSON or does not fit the kind. The error quotes what it read.
            pub fn from_json_str(kind: Kind, json: &str) -> Result<Self, serde_json::Error> {
                Ok(match kind { $(Kind::$kind => Self::$kind(serde_json::from_str(json)?),)+ })
            }
        }

        impl fmt::Debug for Object {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    // The bytes of a Secret never reach a log.
                    Self::Secret(secret) => f
                        .debug_struct("Secret")
                        .field("metadata", &secret.metadata)
                        .field("keys", &secret.data.iter().flatten().map(|(key, _)| key).collect::<Vec<_>>())
                        .finish_non_exhaustive(),
                    // Nor do an app's files, which may be large and may be anything.
                    Self::ConfigMap(map) => f
                        .debug_struct("ConfigMap")
                        .field("metadata", &map.metadata)
                        .field("keys", &config_map_keys(map))
                        .finish_non_exhaustive(),
                    other => match other { $(Self::$kind(object) => fmt::Debug::fmt(object, f),)+ },
                }
            }
        }

        $(
            impl Resource for $kind {
                const OBJECT_KIND: Kind = Kind::$kind;

                fn into_object(self) -> Object {
                    Object::$kind(Box::new(self))
                }

                fn from_object(object: Object) -> Option<Self> {
                    match object {
                        Object::$kind(object) => Some(*object),
                        _ => None,
                    }
                }
            }

            impl From<$kind> for Object {
                fn from(object: $kind) -> Self {
                    object.into_object()
                }
            }
        )+
    };
}

kinds! {
    /// A namespace; every app has one of its own.
    Namespace: "" / "v1" "namespaces" Cluster;
    /// A machine of the cluster.
    Node: "" / "v1" "nodes" Cluster;
    /// A group of containers that run together.
    Pod: "" / "v1" "pods" Namespace;
    /// A name for a set of pods; here also the record of a workload.
    Service: "" / "v1" "services" Namespace;
    /// The account a pod runs as.
    ServiceAccount: "" / "v1" "serviceaccounts" Namespace;
    /// Confidential data; its `Debug` form prints no bytes.
    Secret: "" / "v1" "secrets" Namespace;
    /// Files and settings that are not confidential; its `Debug` form prints no contents either.
    ConfigMap: "" / "v1" "configmaps" Namespace;
    /// A claim to storage.
    PersistentVolumeClaim: "" / "v1" "persistentvolumeclaims" Namespace;
    /// A piece of storage, which a claim may have.
    PersistentVolume: "" / "v1" "persistentvolumes" Cluster;
    /// A way to make volumes.
    StorageClass: "storage.k8s.io" / "v1" "storageclasses" Cluster;
    /// Limits on what a namespace may use.
    ResourceQuota: "" / "v1" "resourcequotas" Namespace;
    /// Something that happened to an object, told by a component of the cluster.
    Event: "" / "v1" "events" Namespace;
    /// Which connections pods may make and accept.
    NetworkPolicy: "networking.k8s.io" / "v1" "networkpolicies" Namespace;
    /// A role given to an account inside a namespace.
    RoleBinding: "rbac.authorization.k8s.io" / "v1" "rolebindings" Namespace;
    /// The addresses behind a Service.
    EndpointSlice: "discovery.k8s.io" / "v1" "endpointslices" Namespace;
}

impl Kind {
    /// `apiVersion` as objects spell it, e.g. `networking.k8s.io/v1`.
    pub fn api_version(self) -> String {
        if self.group().is_empty() { self.version().to_owned() } else { format!("{}/{}", self.group(), self.version()) }
    }

    /// The kind whose path segment in that group is `plural`.
    pub fn from_plural(group: &str, plural: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.group() == group && kind.plural() == plural)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Object {
    /// Where the object is. A missing name or namespace is an empty string.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of_meta(self.kind(), self.meta())
    }
}

fn config_map_keys(map: &ConfigMap) -> Vec<&String> {
    let texts = map.data.iter().flatten().map(|(key, _)| key);
    texts.chain(map.binary_data.iter().flatten().map(|(key, _)| key)).collect()
}

/// Names one object of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The object's kind.
    pub kind: Kind,
    /// The object's namespace; `None` for kinds that have none.
    pub namespace: Option<String>,
    /// The object's name.
    pub name: String,
}

impl ObjectKey {
    /// The object `name` of a kind that lives in namespaces.
    pub fn namespaced(kind: Kind, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind, namespace: Some(namespace.into()), name: name.into() }
    }

    /// The object `name` of a kind that lives in no namespace.
    pub fn cluster(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, namespace: None, name: name.into() }
    }

    fn of_meta(kind: Kind, meta: &ObjectMeta) -> Self {
        let namespace = match kind.scoped() {
            Scoped::Cluster => None,
            Scoped::Namespace => Some(meta.namespace.clone().unwrap_or_default()),
        };
        Self { kind, namespace, name: meta.name.clone().unwrap_or_default() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// The identity of an object: another object of the same name has another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(String);

impl Uid {
    /// The identity as the API server spelled it.
    pub fn new(uid: impl Into<String>) -> Self {
        Self(uid.into())
    }

    /// The identity of the object with this metadata; `None` for one that no API server has stored.
    pub fn of(meta: &ObjectMeta) -> Option<Self> {
        meta.uid.clone().filter(|uid| !uid.is_empty()).map(Self)
    }

    /// The identity's spelling.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A version of an object or of a list: opaque, comparable for equality only.
///
/// Nothing may be concluded from its digits, so it has no order on purpose.
///
/// <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceVersion(String);

impl ResourceVersion {
    /// The version as the API server spelled it.
    pub fn new(version: impl Into<String>) -> Self {
        Self(version.into())
    }

    /// The version in this metadata; `None` for an object that no API server has stored.
    pub fn of(meta: &ObjectMeta) -> Option<Self> {
        meta.resource_version.clone().filter(|version| !version.is_empty()).map(Self)
    }

    /// The version's spelling.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn a_secret_prints_its_keys_and_no_bytes() {
        let secret = Secret {
            data: Some([("PASSWORD".to_owned(), ByteString(b"hunter2".to_vec()))].into()),
            ..Secret::default()
        };
        let printed = format!("{:?}", secret.into_object());
        assert!(printed.contains("PASSWORD"), "{printed}");
        assert!(!printed.contains("hunter2") && !printed.contains("aHVudGVyMg"), "{printed}");
        assert!(!printed.contains("104, 117"), "{printed}");
    }

    #[test]
    fn a_config_map_prints_its_keys_and_no_contents() {
        let map = ConfigMap {
            data: Some([("app.ini".to_owned(), "hunter2".to_owned())].into()),
            binary_data: Some([("logo".to_owned(), ByteString(b"hunter3".to_vec()))].into()),
            ..ConfigMap::default()
        };
        let printed = format!("{:?}", map.into_object());
        assert!(printed.contains("app.ini") && printed.contains("logo"), "{printed}");
        assert!(!printed.contains("hunter") && !printed.contains("104, 117"), "{printed}");
    }

    #[test]
    fn every_kind_survives_the_way_through_json() {
        for kind in Kind::ALL {
            let json = serde_json::json!({"metadata": {"name": "x"}, "spec": {}, "addressType": "IPv4", "endpoints": [],
                "roleRef": {"apiGroup": "g", "kind": "k", "name": "n"}, "involvedObject": {}, "provisioner": "p"});
            let object = Object::from_json(*kind, json).unwrap_or_else(|error| panic!("{kind}: {error}"));
            let written = object.to_json().expect("these types are always JSON");
            assert_eq!(
                (written["kind"].as_str(), written["apiVersion"].as_str()),
                (Some(kind.name()), Some(kind.api_version().as_str()))
            );
            assert_eq!(Kind::from_plural(kind.group(), kind.plural()), Some(*kind));
            assert_eq!(object.kind(), *kind);
        }
    }
}
