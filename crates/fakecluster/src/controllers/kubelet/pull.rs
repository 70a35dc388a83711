//! A container's image and its configuration: what must be there before it is started.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::container::{ContainerWork, Stage};
use super::credentials::Keyring;
use super::work::{Node, PodWork};
use crate::FakeCluster;
use crate::config::Image;

/// How long a failed pull shows as itself before it shows as a pause.
const PULL_ERROR_SHOWS: Duration = Duration::from_secs(12);
/// How long a registry takes to say no.
const REFUSAL_TAKES: Duration = Duration::from_secs(1);

impl PodWork {
    pub(super) fn begin_pull(&mut self, fake: &FakeCluster, node: &Node, index: usize) -> Stage {
        let now = fake.env().now();
        let of = &self.containers[index];
        let name = of.image().to_owned();
        self.tell_of_missing_credentials(fake);
        let there = fake.machines().with(|state| state.pulled.contains(&(node.name.clone(), name.clone())));
        let policy = of.container.image_pull_policy.as_deref().unwrap_or("IfNotPresent");
        if there && policy != "Always" {
            self.tell(fake, Some(of), false, "Pulled", format!("Container image {name:?} already present on machine"));
            return self.have_image(fake, index);
        }
        if policy == "Never" {
            let message = format!("Container image {name:?} is not present with pull policy of Never");
            self.tell(fake, Some(of), true, "ErrImageNeverPull", message.clone());
            self.tell(fake, Some(of), true, "Failed", "Error: ErrImageNeverPull".to_owned());
            return Stage::Stuck { reason: "ErrImageNeverPull", message };
        }
        if image(fake, &name) == Image::InvalidName {
            let message = format!(
                "Failed to apply default image tag {name:?}: couldn't parse image name {name:?}: invalid reference format"
            );
            self.tell(fake, Some(of), true, "InspectFailed", message.clone());
            self.tell(fake, Some(of), true, "Failed", "Error: InvalidImageName".to_owned());
            return Stage::Stuck { reason: "InvalidImageName", message };
        }
        self.tell(fake, Some(of), false, "Pulling", format!("Pulling image {name:?}"));
        let takes = match self.ask_registry(fake, &name) {
            // What is on the node is only compared with the registry.
            Ok(_) if there => Duration::ZERO,
            Ok(takes) => takes,
            Err(_) => REFUSAL_TAKES,
        };
        Stage::Pulling { until: now.plus(takes) }
    }

    pub(super) fn end_pull(&mut self, fake: &FakeCluster, node: &Node, index: usize) -> Stage {
        let now = fake.env().now();
        let name = self.containers[index].image().to_owned();
        let Err(message) = self.ask_registry(fake, &name) else {
            fake.machines().with(|state| state.pulled.insert((node.name.clone(), name.clone())));
            let of = &self.containers[index];
            self.tell(fake, Some(of), false, "Pulled", format!("Successfully pulled image {name:?}"));
            return self.have_image(fake, index);
        };
        let of = &self.containers[index];
        self.tell(fake, Some(of), true, "Failed", format!("Failed to pull image {name:?}: {message}"));
        self.tell(fake, Some(of), true, "Failed", "Error: ErrImagePull".to_owned());
        let failures = of.pulls_failed;
        self.containers[index].pulls_failed += 1;
        let pause_from = now.plus(PULL_ERROR_SHOWS);
        let retry = pause_from.plus(ContainerWork::pause(failures));
        Stage::PullFailed { message, pause_from, retry, pausing: false }
    }

    /// How long the registry takes to give the image, or the container runtime's words on why it does not.
    ///
    /// Every credential for the registry is tried; without one, the registry is asked as nobody in particular.
    fn ask_registry(&self, fake: &FakeCluster, name: &str) -> Result<Duration, String> {
        let (login, after) = match image(fake, name) {
            Image::Pulled { after } => return Ok(after),
            Image::Fails { message } => return Err(message),
            Image::InvalidName => return Err("invalid reference format".to_owned()),
            Image::Private { login, after } => (login, after),
        };
        let keyring = self.keyring(fake);
        let shown = keyring.find(name);
        if shown.contains(&&login) {
            return Ok(after);
        }
        let refusal = Image::unauthorized(name);
        Err(if shown.len() > 1 { format!("[{}]", vec![refusal; shown.len()].join(", ")) } else { refusal })
    }

    /// What the pod's pull secrets hold. Those of another type are passed over, as are those that are not there.
    fn keyring(&self, fake: &FakeCluster) -> Keyring {
        let mut keyring = Keyring::default();
        for name in self.pull_secrets() {
            let secret = fake.with(|store| store.typed::<Secret>(self.key.namespace.as_deref(), name));
            let secret = secret.filter(|it| it.type_.as_deref() == Some("kubernetes.io/dockerconfigjson"));
            let data = secret.and_then(|secret| secret.data).unwrap_or_default();
            if let Some(config) = data.get(".dockerconfigjson") {
                keyring.add(&config.0);
            }
        }
        keyring
    }

    fn pull_secrets(&self) -> impl Iterator<Item = &str> {
        self.spec().image_pull_secrets.iter().flatten().map(|secret| secret.name.as_str())
    }

    fn tell_of_missing_credentials(&self, fake: &FakeCluster) {
        let namespace = self.key.namespace.as_deref();
        let there = |name: &str| fake.with(|store| store.typed::<Secret>(namespace, name).is_some());
        let missing: Vec<_> = self.pull_secrets().filter(|name| !there(name)).collect();
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.tell(fake, None, true, "FailedToRetrieveImagePullSecret", message);
        }
    }

    fn have_image(&mut self, fake: &FakeCluster, index: usize) -> Stage {
        self.containers[index].pulled = true;
        match self.configure(fake, index) {
            Ok(()) => Stage::Starting { until: fake.env().now().plus(fake.config().delays.container) },
            Err(message) => {
                let of = &self.containers[index];
                self.tell(fake, Some(of), true, "Failed", format!("Error: {message}"));
                Stage::NoConfig { message }
            }
        }
    }

    /// Looks for the Secrets and `ConfigMap`s that the container's environment comes from.
    pub(super) fn configure(&self, fake: &FakeCluster, index: usize) -> Result<(), String> {
        let container = &self.containers[index].container;
        for source in container.env_from.iter().flatten() {
            if let Some(secret) = source.secret_ref.as_ref().filter(|it| it.optional != Some(true)) {
                self.keys_of_secret(fake, &secret.name)?;
            }
            if let Some(map) = source.config_map_ref.as_ref().filter(|it| it.optional != Some(true)) {
                self.keys_of_map(fake, &map.name)?;
            }
        }
        let namespace = self.key.namespace.as_deref().unwrap_or_default();
        let lacks =
            |kind: &str, name: &str, key: &str| Err(format!("couldn't find key {key} in {kind} {namespace}/{name}"));
        for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(one) = source.secret_key_ref.as_ref().filter(|it| it.optional != Some(true))
                && !self.keys_of_secret(fake, &one.name)?.contains(&one.key)
            {
                return lacks("Secret", &one.name, &one.key);
            }
            if let Some(one) = source.config_map_key_ref.as_ref().filter(|it| it.optional != Some(true))
                && !self.keys_of_map(fake, &one.name)?.contains(&one.key)
            {
                return lacks("ConfigMap", &one.name, &one.key);
            }
        }
        Ok(())
    }

    fn keys_of_secret(&self, fake: &FakeCluster, name: &str) -> Result<Vec<String>, String> {
        let secret = fake.with(|store| store.typed::<Secret>(self.key.namespace.as_deref(), name));
        let secret = secret.ok_or_else(|| format!("secret {name:?} not found"))?;
        Ok(secret.data.into_iter().flatten().map(|(key, _)| key).collect())
    }

    fn keys_of_map(&self, fake: &FakeCluster, name: &str) -> Result<Vec<String>, String> {
        let map = fake.with(|store| store.typed::<ConfigMap>(self.key.namespace.as_deref(), name));
        let map = map.ok_or_else(|| format!("configmap {name:?} not found"))?;
        // Only texts become variables.
        Ok(map.data.into_iter().flatten().map(|(key, _)| key).collect())
    }
}

/// What comes of pulling the image: what a test said last, or the configuration.
fn image(fake: &FakeCluster, name: &str) -> Image {
    let told = fake.machines().with(|state| state.images.get(name).cloned());
    told.or_else(|| fake.config().images.get(name).cloned()).unwrap_or_else(|| fake.config().other_images.clone())
}
