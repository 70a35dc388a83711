//! What a pod mounts: it is all there before the pod's sandbox is made, and only Events tell when it is not.
//!
//! <https://kubernetes.io/docs/concepts/storage/volumes/>

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, KeyToPath, PersistentVolume, PersistentVolumeClaim, ProjectedVolumeSource, Secret, Volume,
};
use pando_cluster::Kind;

use super::work::PodWork;
use crate::FakeCluster;
use crate::controllers::machines::MountedFile;
use crate::controllers::objects::text;
use crate::controllers::volumes::fit;

/// The pause after the first failure to mount; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(122);
/// The mode of a file whose volume asks for none.
const DEFAULT_MODE: i32 = 0o644;

/// The files of a volume by their path in it.
type Files = BTreeMap<String, File>;

#[derive(Clone, Debug)]
struct File {
    contents: Vec<u8>,
    mode: i32,
}

/// Why a volume cannot be mounted.
struct Refusal {
    reason: &'static str,
    message: String,
}

impl PodWork {
    /// Mounts what the pod mounts, all of it or again later.
    pub(super) fn mount(&mut self, fake: &FakeCluster) -> bool {
        if self.mounts.done {
            return true;
        }
        let now = fake.env().now();
        if let Some(again) = self.mounts.again.filter(|again| now < *again) {
            self.look_again(again);
            return false;
        }
        let volumes = self.spec().volumes.clone().unwrap_or_default();
        let refusals: Vec<_> = volumes.iter().filter_map(|volume| self.refuse(fake, volume)).collect();
        if refusals.is_empty() {
            self.mounts.done = true;
            return true;
        }
        for Refusal { reason, message } in refusals {
            self.tell(fake, None, true, reason, message);
        }
        let again = now.plus(FIRST_PAUSE.saturating_mul(1 << self.mounts.failures.min(8)).min(LONGEST_PAUSE));
        self.mounts.failures += 1;
        self.mounts.again = Some(again);
        self.look_again(again);
        false
    }

    fn refuse(&self, fake: &FakeCluster, volume: &Volume) -> Option<Refusal> {
        if let Err(why) = self.files(fake, volume) {
            let message = format!("MountVolume.SetUp failed for volume {:?} : {why}", volume.name);
            return Some(Refusal { reason: "FailedMount", message });
        }
        let claim = volume.persistent_volume_claim.as_ref()?;
        match self.volume_of(fake, &claim.claim_name) {
            Ok(found) => self.refuse_second_node(fake, &claim.claim_name, &found),
            Err(why) => {
                let (namespace, name) = (self.key.namespace.as_deref().unwrap_or_default(), &volume.name);
                let message = format!(
                    "Unable to attach or mount volumes: unmounted volumes=[{name}], unattached volumes=[], failed to process volumes=[{name}]: error processing PVC {namespace}/{}: {why}",
                    claim.claim_name
                );
                Some(Refusal { reason: "FailedMount", message })
            }
        }
    }

    fn volume_of(&self, fake: &FakeCluster, claim: &str) -> Result<PersistentVolume, String> {
        fake.with(|store| {
            let found = store.typed::<PersistentVolumeClaim>(self.key.namespace.as_deref(), claim);
            let found = found.ok_or_else(|| {
                format!("failed to fetch PVC from API server: persistentvolumeclaims {claim:?} not found")
            })?;
            let volume = store.typed::<PersistentVolume>(None, fit::volume_of(&found));
            volume.filter(|_| fit::is_bound(&found)).ok_or_else(|| "PVC is not bound".to_owned())
        })
    }

    /// A volume that is attached to one node is not attached to a second, while a pod there has it.
    ///
    /// Directories on a node are attached to nothing, so any number of its pods may have one at once.
    fn refuse_second_node(&self, fake: &FakeCluster, claim: &str, volume: &PersistentVolume) -> Option<Refusal> {
        let spec = volume.spec.as_ref()?;
        let shared = spec.access_modes.iter().flatten().any(|mode| mode.ends_with("Many"));
        if spec.csi.is_none() || shared {
            return None;
        }
        let here = self.spec().node_name.clone().unwrap_or_default();
        let others: Vec<String> = fake.with(|store| {
            let pods = store.within(Kind::Pod, self.key.namespace.as_deref().unwrap_or_default());
            let elsewhere = pods.filter(|(_, pod)| !["", &here].contains(&text(pod, "/spec/nodeName")));
            let have = elsewhere.filter(|(_, pod)| {
                let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
                volumes.any(|volume| text(volume, "/persistentVolumeClaim/claimName") == claim)
            });
            have.map(|(key, _)| key.name.clone()).collect()
        });
        let message = format!(
            "Multi-Attach error for volume {:?} Volume is already used by pod(s) {}",
            volume.metadata.name.as_deref().unwrap_or_default(),
            others.join(", ")
        );
        (!others.is_empty()).then_some(Refusal { reason: "FailedAttachVolume", message })
    }

    /// The files of a volume that is made of Secrets and `ConfigMap`s; `None` for any other.
    fn files(&self, fake: &FakeCluster, volume: &Volume) -> Result<Option<Files>, String> {
        if let Some(source) = &volume.config_map {
            let optional = source.optional == Some(true);
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            return self.map_files(fake, &source.name, source.items.as_deref(), mode, optional).map(Some);
        }
        if let Some(source) = &volume.secret {
            let (name, optional) = (source.secret_name.as_deref().unwrap_or_default(), source.optional == Some(true));
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            return self.secret_files(fake, name, source.items.as_deref(), mode, optional).map(Some);
        }
        volume.projected.as_ref().map(|source| self.projected_files(fake, source)).transpose()
    }

    fn projected_files(&self, fake: &FakeCluster, projected: &ProjectedVolumeSource) -> Result<Files, String> {
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        let mut files = Files::new();
        for source in projected.sources.iter().flatten() {
            if let Some(map) = &source.config_map {
                let optional = map.optional == Some(true);
                files.extend(self.map_files(fake, &map.name, map.items.as_deref(), mode, optional)?);
            }
            if let Some(secret) = &source.secret {
                let optional = secret.optional == Some(true);
                files.extend(self.secret_files(fake, &secret.name, secret.items.as_deref(), mode, optional)?);
            }
        }
        Ok(files)
    }

    fn map_files(
        &self,
        fake: &FakeCluster,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: bool,
    ) -> Result<Files, String> {
        let map = fake.with(|store| store.typed::<ConfigMap>(self.key.namespace.as_deref(), name));
        let Some(map) = map else {
            return if optional { Ok(Files::new()) } else { Err(format!("configmap {name:?} not found")) };
        };
        let texts = map.data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes()));
        let bytes = map.binary_data.into_iter().flatten().map(|(key, ByteString(bytes))| (key, bytes));
        let missing = |key: &str| format!("configmap references non-existent config key: {key}");
        lay_out(&texts.chain(bytes).collect(), items, mode, optional, missing)
    }

    fn secret_files(
        &self,
        fake: &FakeCluster,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: bool,
    ) -> Result<Files, String> {
        let secret = fake.with(|store| store.typed::<Secret>(self.key.namespace.as_deref(), name));
        let Some(secret) = secret else {
            return if optional { Ok(Files::new()) } else { Err(format!("secret {name:?} not found")) };
        };
        let bytes = secret.data.into_iter().flatten().map(|(key, ByteString(bytes))| (key, bytes));
        lay_out(&bytes.collect(), items, mode, optional, |key| format!("references non-existent secret key: {key}"))
    }

    /// The files that a container sees at its mounts, as its volumes are now.
    pub(super) fn mounted_files(&self, fake: &FakeCluster, container: &Container) -> Vec<MountedFile> {
        let mut seen = Vec::new();
        for mount in container.volume_mounts.iter().flatten() {
            let mut volumes = self.spec().volumes.iter().flatten();
            let Some(volume) = volumes.find(|volume| volume.name == mount.name) else { continue };
            let Ok(Some(files)) = self.files(fake, volume) else { continue };
            let inside = mount.sub_path.as_deref().unwrap_or_default();
            for (path, File { contents, mode }) in files {
                let place = mount.mount_path.trim_end_matches('/');
                let path = match path.strip_prefix(inside) {
                    Some("") => place.to_owned(),
                    Some(rest) if inside.is_empty() => format!("{place}/{rest}"),
                    Some(rest) if rest.starts_with('/') => format!("{place}{rest}"),
                    Some(_) | None => continue,
                };
                // A ConfigMap's and a Secret's files can be changed nowhere but there.
                seen.push(MountedFile { path, mode, contents });
            }
        }
        seen
    }

    /// The claims that a container may write to.
    pub(super) fn claims(&self, container: &Container) -> Vec<String> {
        let writes = |volume: &str| {
            container.volume_mounts.iter().flatten().any(|it| it.name == volume && it.read_only != Some(true))
        };
        let claims = self.spec().volumes.iter().flatten().filter_map(|volume| {
            let claim = volume.persistent_volume_claim.as_ref().filter(|claim| claim.read_only != Some(true))?;
            writes(&volume.name).then(|| claim.claim_name.clone())
        });
        claims.collect()
    }

    /// The volumes of these claims, by name.
    pub(super) fn volumes_of(&self, fake: &FakeCluster, claims: &[String]) -> Vec<String> {
        let volumes = claims.iter().filter_map(|claim| self.volume_of(fake, claim).ok()?.metadata.name);
        volumes.collect()
    }
}

/// Puts the values where the items say, or each under its own key where there are no items.
fn lay_out(
    values: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
    missing: impl Fn(&str) -> String,
) -> Result<Files, String> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        let all = values.iter().map(|(key, contents)| (key.clone(), File { contents: contents.clone(), mode }));
        return Ok(all.collect());
    };
    let mut files = Files::new();
    for item in items {
        match values.get(&item.key) {
            Some(contents) => {
                let mode = item.mode.unwrap_or(mode);
                files.insert(item.path.clone(), File { contents: contents.clone(), mode });
            }
            None if optional => {}
            None => return Err(missing(&item.key)),
        }
    }
    Ok(files)
}
