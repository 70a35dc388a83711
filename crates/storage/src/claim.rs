//! The claim of a volume: a pure function of plan and settings.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use pando_cluster::converge::Quantity;
use pando_cluster::names::{self, AppNamespace, annotation, label};

/// A volume of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its id, exactly as core spells it.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Its size in bytes; `None` for the installation's default.
    pub size_bytes: Option<u64>,
}

impl Volume {
    /// The name of its claim, `pando-<label>`; two ids never share one (S-17), and it fits wherever Kubernetes wants a label.
    pub fn claim_name(&self) -> String {
        names::claim_name(&self.id)
    }
}

/// What the installation says of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The `StorageClass` of new claims; `None` for the cluster's default one.
    pub class: Option<String>,
    /// The size of a volume that names none, in bytes.
    pub default_size_bytes: u64,
}

/// The claim of `volume` (S-50).
pub fn claim(app: &AppNamespace, volume: &Volume, storage: &Storage) -> PersistentVolumeClaim {
    let mut metadata = app.owned_meta(volume.claim_name());
    let label = names::volume_label(&volume.id);
    metadata.labels.get_or_insert_default().insert(label::VOLUME.to_owned(), label);
    metadata.annotations = Some(
        [(annotation::VOLUME_ID, &volume.id), (annotation::VOLUME_NAME, &volume.name)]
            .map(|(key, value)| (key.to_owned(), value.clone()))
            .into(),
    );
    let bytes = volume.size_bytes.unwrap_or(storage.default_size_bytes);
    PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), Amount(bytes.to_string()))].into()),
                ..VolumeResourceRequirements::default()
            }),
            // Absent, never empty: an empty class is one that no volume is ever made for.
            storage_class_name: storage.class.clone(),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// What `volume` asks of the claim that is there: all but what Kubernetes lets nobody change, and never less room than it has. A
/// volume that names no size has the one that it got: the installation's default is for new ones.
#[must_use]
pub fn beside(
    live: &PersistentVolumeClaim,
    app: &AppNamespace,
    volume: &Volume,
    storage: &Storage,
) -> PersistentVolumeClaim {
    let mut desired = claim(app, volume, storage);
    let request = |claim: &PersistentVolumeClaim| {
        claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage").cloned()
    };
    let size = |amount: &Option<Amount>| amount.as_ref().and_then(|amount| amount.0.parse::<Quantity>().ok());
    let (has, wants) = (request(live), request(&desired));
    let grows = volume.size_bytes.is_some() && size(&wants) > size(&has);
    desired.spec = grows.then(|| PersistentVolumeClaimSpec {
        resources: desired.spec.take().and_then(|spec| spec.resources),
        ..PersistentVolumeClaimSpec::default()
    });
    desired
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const STORAGE: Storage = Storage { class: None, default_size_bytes: 10 << 30 };

    fn made(size_bytes: Option<u64>, storage: &Storage) -> Value {
        let volume = Volume { id: "vol_01HQ8XYZ".to_owned(), name: "data".to_owned(), size_bytes };
        serde_json::to_value(claim(&AppNamespace::of("app_01HQ8ABC", &[]), &volume, storage)).expect("JSON")
    }

    #[test]
    fn a_claim_is_found_by_its_volumes_id_and_leaves_the_class_to_the_cluster() {
        let claim = made(None, &STORAGE);
        assert_eq!(claim["metadata"]["name"], "pando-vol-01hq8xyz");
        assert_eq!(claim["metadata"]["labels"]["pando.dev/volume"], "vol-01hq8xyz");
        let annotations = json!({"pando.dev/volume-id": "vol_01HQ8XYZ", "pando.dev/volume-name": "data"});
        assert_eq!(claim["metadata"]["annotations"], annotations);
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10737418240"}}});
        assert_eq!(claim["spec"], spec);
        let fast = Storage { class: Some("fast".to_owned()), ..STORAGE };
        assert_eq!(made(Some(1 << 30), &fast)["spec"]["storageClassName"], "fast");
    }

    #[test]
    fn a_claim_that_is_there_grows_where_it_is_asked_to_and_never_shrinks() {
        let app = AppNamespace::of("app_01HQ8ABC", &[]);
        let volume = |size_bytes| Volume { id: "vol_01HQ8XYZ".to_owned(), name: "data".to_owned(), size_bytes };
        let live = claim(&app, &volume(Some(2 << 30)), &STORAGE);
        let other = Storage { class: Some("other".to_owned()), ..STORAGE };
        for (wanted, asked) in [
            (Some(1_u64 << 30), Value::Null),
            (Some(2 << 30), Value::Null),
            (Some(3 << 30), json!("3221225472")),
            (None, Value::Null),
        ] {
            let beside = serde_json::to_value(beside(&live, &app, &volume(wanted), &other)).expect("JSON");
            let request = beside.pointer("/spec/resources/requests/storage").unwrap_or(&Value::Null);
            assert_eq!(request, &asked, "{wanted:?}");
            assert_eq!(beside.pointer("/spec/storageClassName"), None, "nobody can change it");
        }
    }
}
