//! What would become of objects: the ground, what workloads are given, and what is left over.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use pando_api::{Error, Fate, FieldChange, ObjectPreview};
use pando_cluster::converge::foresee;
use pando_cluster::{Kind, Resource};
use pando_network::{ClusterAddresses, Egress, default_policy};
use pando_storage::{RETAIN, belongs_to, bound_volume, is_retained};
use serde_json::{Value, json};

use super::{Live, field};
use crate::call::{Call, name};
use crate::digest::EnvKey;
use crate::error::not_made;
use crate::ground::contents::{before, is_idle, is_idle_map, kept_key, named};
use crate::plan::{Plan, Workload};
use crate::pull::Pulls;
use crate::{ground, objects};

/// The environment of a workload, as an apply would find it.
pub(super) struct Environment {
    /// The key of its digest; a blank one where it would be drawn.
    pub(super) key: EnvKey,
    /// It would be drawn anew in a namespace that is there.
    pub(super) key_lost: bool,
    /// It holds exactly the plan's values.
    pub(super) same: bool,
    /// The variables whose values would change.
    pub(super) changes: Vec<FieldChange>,
}

/// Objects and what would become of them, in order.
pub(super) struct Objects<'a> {
    call: &'a Call<'a>,
    told: Vec<ObjectPreview>,
}

impl<'a> Objects<'a> {
    pub(super) fn new(call: &'a Call<'a>) -> Self {
        Self { call, told: Vec::new() }
    }

    /// All that was told, with every text in it gone through `redact`.
    pub(super) fn told(self, redact: &impl Fn(&str) -> String) -> Vec<ObjectPreview> {
        let mut told = self.told;
        for object in &mut told {
            object.fields = field::redacted(std::mem::take(&mut object.fields), redact);
        }
        told
    }

    /// Tells what would become of an object.
    pub(super) fn tell(&mut self, kind: Kind, name: impl Into<String>, would: Fate, fields: Vec<FieldChange>) {
        self.told.push(ObjectPreview { kind: kind.name().to_owned(), name: name.into(), would, fields });
    }

    /// An object would be removed.
    pub(super) fn remove<T: Resource>(&mut self, live: &T) {
        self.tell(T::OBJECT_KIND, live.key().name, Fate::Remove, Vec::new());
    }

    /// An object would be changed by this merge patch, unless it is empty.
    pub(super) fn patch<T: Resource>(&mut self, live: &T, patch: &Value) -> Result<(), Error> {
        let fields = field::changes(T::OBJECT_KIND, patch, &as_json(live)?);
        let would = if fields.is_empty() { Fate::Leave } else { Fate::Change };
        self.tell(T::OBJECT_KIND, live.key().name, would, fields);
        Ok(())
    }

    /// An object would be made so.
    pub(super) fn ensure<T: Resource>(&mut self, desired: &T, live: Option<&T>) -> Result<(), Error> {
        match live {
            None => self.tell(T::OBJECT_KIND, desired.key().name, Fate::Create, Vec::new()),
            Some(live) => {
                let difference = foresee(desired, live).map_err(not_made)?;
                self.patch(live, &difference.patch)?;
            }
        }
        Ok(())
    }

    /// An object would be removed and made anew, since what of it differs cannot be changed.
    pub(super) fn replace<T: Resource>(&mut self, desired: &T, live: &T) -> Result<(), Error> {
        let difference = foresee(desired, live).map_err(not_made)?;
        let fields = field::changes(T::OBJECT_KIND, &difference.patch, &as_json(live)?);
        self.tell(T::OBJECT_KIND, desired.key().name, Fate::Replace, fields);
        Ok(())
    }

    /// What an app's pods stand on.
    pub(super) fn ground(&mut self, plan: &Plan, addresses: &ClusterAddresses, live: &Live) -> Result<(), Error> {
        let (app, settings) = (self.call.app, self.call.settings);
        self.ensure(&objects::namespace(plan), live.namespace.as_ref())?;
        let binding = objects::role_binding(app, settings);
        match &live.binding {
            // A role cannot be changed.
            Some(found) if ground::is_bound(found, &binding) => self.patch(found, &json!({}))?,
            Some(found) => self.replace(&binding, found)?,
            None => self.ensure(&binding, None)?,
        }
        self.ensure(&objects::service_account(app), live.account.as_ref())?;
        let policy = default_policy(app, &settings.network, addresses, Egress::Open);
        self.ensure(&policy, live.policy.as_ref())?;
        // Where it gets narrower it is narrowed last; what comes of it is the same.
        self.ensure(&objects::quota(app, &plan.resources()), live.quota.as_ref())
    }

    /// What workloads are given.
    pub(super) fn contents(&mut self, plan: &Plan, pulls: &Pulls<'_>, live: &Live) -> Result<Vec<Environment>, Error> {
        let app = self.call.app;
        let environments =
            plan.workloads.iter().map(|workload| self.environment(workload, live)).collect::<Result<_, _>>()?;
        for secret in pulls.secrets(app) {
            self.ensure(&secret, named(&live.secrets, &name(&secret.metadata)).as_ref())?;
        }
        for files in plan.workloads.iter().filter_map(|workload| objects::files(app, workload)) {
            self.ensure(&files, named(&live.files, &name(&files.metadata)).as_ref())?;
        }
        for volume in &plan.volumes {
            let storage = &self.call.settings.storage;
            match named(&live.claims, &volume.claim_name()) {
                None => self.ensure(&pando_storage::claim(app, volume, storage), None)?,
                Some(found) => {
                    self.ensure(&pando_storage::beside(&found, app, volume, storage), Some(&found))?;
                    self.keep(&found, live)?;
                }
            }
        }
        Ok(environments)
    }

    /// The volume of a bound claim would be set to stay when its claim goes.
    fn keep(&mut self, claim: &PersistentVolumeClaim, live: &Live) -> Result<(), Error> {
        let bound = bound_volume(claim);
        let volume = live.volumes.iter().find(|volume| volume.metadata.name.as_deref() == bound);
        match volume.filter(|volume| belongs_to(volume, claim) && !is_retained(volume)) {
            Some(volume) => self.patch(volume, &json!({"spec": {"persistentVolumeReclaimPolicy": RETAIN}})),
            None => Ok(()),
        }
    }

    fn environment(&mut self, workload: &Workload, live: &Live) -> Result<Environment, Error> {
        let found: Option<Secret> = named(&live.secrets, &objects::env_secret_name(&workload.name));
        let kept = found.as_ref().and_then(kept_key);
        let key_lost = kept.is_none() && live.namespace.is_some();
        let key = kept.unwrap_or_else(EnvKey::blank);
        let (before, same) = before(found.as_ref(), workload);
        self.ensure(&objects::env_secret(self.call.app, workload, &key, &before), found.as_ref())?;
        let told = self.told.last().into_iter().flat_map(|told| &told.fields);
        let changes = told.filter_map(|change| {
            let variable = change.field.strip_prefix("data.")?;
            Some(FieldChange { field: format!("env.{variable}"), ..change.clone() })
        });
        let changes = changes.collect();
        Ok(Environment { key, key_lost, same, changes })
    }

    /// What nothing has a use for any more.
    pub(super) fn leftovers(&mut self, plan: &Plan, pulls: &Pulls<'_>, live: &Live) {
        let app = self.call.app;
        let credentials: BTreeSet<String> = pulls.secrets(app).iter().map(|secret| name(&secret.metadata)).collect();
        for secret in live.secrets.iter().filter(|secret| is_idle(secret, plan, &credentials)) {
            self.remove(secret);
        }
        let files = plan.workloads.iter().filter_map(|workload| objects::files(app, workload));
        let used: BTreeSet<String> = files.map(|files| name(&files.metadata)).collect();
        for files in live.files.iter().filter(|files| is_idle_map(files, &used)) {
            self.remove(files);
        }
    }
}

fn as_json<T: Resource>(object: &T) -> Result<Value, Error> {
    object.clone().into_object().to_json().map_err(|error| {
        let message = format!("{} cannot be written as JSON", object.key());
        Error::new(pando_api::Code::Internal, message).caused_by(error)
    })
}
