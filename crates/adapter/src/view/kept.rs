//! One object as the view keeps it: pruned, and as text.

use pando_cluster::{Object, ObjectKey, Resource, ResourceVersion, Uid};

use super::hygiene::{self, Repair};
use super::prune::pruned;

/// An object as it is kept. Its version stands beside the text, so that a change of the version alone is no change of it.
///
/// A `Pod` of `k8s_openapi` takes several kilobytes even when most of its fields are empty; its text is a fifth of that, and
/// only the few objects that somebody asks for are ever read back (`examples/view_memory.rs` measures both).
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) uid: Option<Uid>,
    pub(super) version: Option<ResourceVersion>,
    /// Somebody told it to go.
    pub(super) is_going: bool,
    text: Box<str>,
}

impl Kept {
    fn of(mut object: Object) -> Self {
        let kind = object.kind();
        let meta = object.meta_mut();
        let (uid, version) = (Uid::of(meta), ResourceVersion::of(meta));
        meta.resource_version = None;
        let is_going = meta.deletion_timestamp.is_some();
        // What could not be written cannot be read back: then nothing is answered from here, and the cluster is asked.
        let text = match object.to_json() {
            Ok(json) => json.to_string(),
            Err(error) => {
                tracing::error!(%kind, %error, "object not kept");
                String::new()
            }
        };
        Self { uid, version, is_going, text: text.into() }
    }

    /// The object; `None` when it cannot be read back.
    pub(super) fn read<T: Resource>(&self) -> Option<T> {
        let object = Object::from_json_str(T::OBJECT_KIND, &self.text).ok()?;
        let mut object = T::from_object(object)?;
        object.metadata_mut().resource_version = self.version.as_ref().map(|version| version.as_str().to_owned());
        Some(object)
    }

    /// Whether the object says the same, whatever its version.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        self.uid == other.uid && self.text == other.text
    }
}

/// Where an object is kept. A volume has no namespace; it is kept with its claim's.
fn place(object: &Object) -> ObjectKey {
    let mut key = object.key();
    if let Object::PersistentVolume(volume) = object {
        let holder = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        key.namespace = holder.and_then(|holder| holder.namespace.clone());
    }
    key
}

/// What a watch tells of one object.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    pub(super) key: ObjectKey,
    pub(super) kept: Kept,
    /// What the object needs, decided from the whole of it.
    pub(super) repair: Option<Repair>,
}

impl Heard {
    pub(super) fn of(object: Object) -> Self {
        Self { key: place(&object), repair: hygiene::needed(&object), kept: Kept::of(pruned(object)) }
    }
}
