//! Making one object so: create it, or compare what we set with what is there and write only a difference.
//!
//! Every step is safe to repeat after a crash or a lost answer: a create has a fixed name, a change is a JSON
//! merge patch that carries the version it was computed from. Server-side apply is not used: on 1.34 an apply
//! after our own create neither removes what the create had set nor leaves the version alone.

mod compare;
mod quantity;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use compare::{Difference, difference};
pub use quantity::Quantity;

use crate::error::ClusterError;
use crate::names::is_ours;
use crate::object::{ObjectKey, Resource, ResourceVersion};
use crate::port::{Cluster, MergePatch};

/// How often an object may change under our hands before we give up.
const ROUNDS: u32 = 5;

/// What is known of an object before it is made so.
#[derive(Clone, Debug)]
pub enum Known<T> {
    /// It is probably not there: create first.
    Absent,
    /// Nothing: read first.
    Nothing,
    /// It was read a moment ago.
    Live(Box<T>),
}

/// What making an object so did.
#[derive(Clone, Debug)]
pub struct Converged<T> {
    /// The object as it is now.
    pub object: T,
    /// What was done.
    pub change: Change,
}

/// What was done to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was created.
    Created,
    /// These fields were changed.
    Changed(Vec<String>),
    /// It was as it should be.
    Unchanged,
}

/// Why an object could not be made so.
#[derive(Debug, thiserror::Error)]
pub enum ConvergeError {
    /// A call failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The name belongs to an object that we did not make.
    #[error("{key} exists and is not Pando's{}", .manager.as_ref().map(|it| format!(" (managed by {it})")).unwrap_or_default())]
    Foreign {
        /// The object.
        key: ObjectKey,
        /// Who says that they manage it.
        manager: Option<String>,
    },
    /// The object is being deleted.
    #[error("{key} is being deleted")]
    BeingDeleted {
        /// The object.
        key: ObjectKey,
    },
    /// The object changed each time it was about to be written.
    #[error("{key} keeps changing under our hands: something else writes it")]
    Contended {
        /// The object.
        key: ObjectKey,
    },
}

/// Makes objects so, on behalf of one request.
#[derive(Clone, Copy, Debug)]
pub struct Converge<'a> {
    /// Where.
    pub cluster: &'a dyn Cluster,
    /// Annotations put on what is written, and not compared: they say who wrote last.
    pub stamp: &'a BTreeMap<String, String>,
}

impl Converge<'_> {
    /// Makes every field that `desired` sets take its value; fields of others are left alone.
    ///
    /// # Errors
    ///
    /// [`ConvergeError`]; nothing was written when it is [`ConvergeError::Foreign`].
    pub async fn ensure<T: Resource>(&self, desired: &T, known: Known<T>) -> Result<Converged<T>, ConvergeError> {
        let key = desired.key();
        let mut live = match known {
            Known::Absent => None,
            Known::Nothing => self.read::<T>(&key).await?,
            Known::Live(live) => Some(*live),
        };
        for _ in 0..ROUNDS {
            let Some(found) = live else {
                match self.cluster.make(&self.stamped(desired)).await {
                    Ok(object) => return Ok(Converged { object, change: Change::Created }),
                    Err(error) if error.is_already_exists() => {
                        live = self.read::<T>(&key).await?;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
            };
            let difference = foresee(desired, &found)?;
            if difference.is_none() {
                return Ok(Converged { object: found, change: Change::Unchanged });
            }
            match self.write(&key, &found, difference).await {
                Ok(object) => return Ok(object),
                Err(error) if error.is_conflict() || error.is_not_found() => live = self.read::<T>(&key).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(ConvergeError::Contended { key })
    }

    async fn read<T: Resource>(&self, key: &ObjectKey) -> Result<Option<T>, ClusterError> {
        self.cluster.read(key.namespace.as_deref(), &key.name).await
    }

    async fn write<T: Resource>(
        &self,
        key: &ObjectKey,
        live: &T,
        difference: Difference,
    ) -> Result<Converged<T>, ClusterError> {
        let Difference { mut patch, fields } = difference;
        for (annotation, value) in self.stamp {
            patch["metadata"]["annotations"][annotation.as_str()] = value.as_str().into();
        }
        let version = ResourceVersion::of(live.metadata()).unwrap_or_else(|| ResourceVersion::new(""));
        let object = self.cluster.change(key, &MergePatch::at(&version, patch)).await?;
        Ok(Converged { object, change: Change::Changed(fields) })
    }

    fn stamped<T: Resource>(&self, desired: &T) -> T {
        let mut desired = desired.clone();
        let annotations = desired.metadata_mut().annotations.get_or_insert_default();
        annotations.extend(self.stamp.iter().map(|(key, value)| (key.clone(), value.clone())));
        desired
    }
}

/// What making `live` so would change of it; writes nothing.
///
/// # Errors
///
/// Where [`Converge::ensure`] would refuse to: the object is not ours, or is being deleted.
pub fn foresee<T: Resource>(desired: &T, live: &T) -> Result<Difference, ConvergeError> {
    check(&desired.key(), live.metadata())?;
    Ok(compare(desired, live)?)
}

fn compare<T: Resource>(desired: &T, live: &T) -> Result<Difference, ClusterError> {
    let json = |object: &T| {
        object.clone().into_object().to_json().map_err(|error| {
            let failure = crate::Failure::Malformed("an object that cannot be written as JSON".to_owned());
            ClusterError::new("compare", object.key(), failure).caused_by(error)
        })
    };
    Ok(difference(T::OBJECT_KIND, &json(desired)?, &json(live)?))
}

/// Refuses what is not ours and what is on its way out.
fn check(key: &ObjectKey, meta: &ObjectMeta) -> Result<(), ConvergeError> {
    if !is_ours(meta) {
        let manager = crate::names::label_value(meta, crate::names::label::MANAGED_BY).map(str::to_owned);
        return Err(ConvergeError::Foreign { key: key.clone(), manager });
    }
    if meta.deletion_timestamp.is_some() {
        return Err(ConvergeError::BeingDeleted { key: key.clone() });
    }
    Ok(())
}
