//! What appears where in a workload's file system: volumes and carried files.

use std::collections::{BTreeMap, BTreeSet};

use pando_api::{VolumePlan, WorkloadPlan};
use pando_storage::Volume;

use super::Checker;
use crate::plan::{File, Mount};

/// The most bytes that the files of a workload may have, paths and contents together; a ConfigMap holds 1 MiB.
pub(super) const FILES_LIMIT: usize = 1000 * 1024;

/// The mode of a file that says none.
const MODE: u32 = 0o644;

/// The longest path that Linux takes.
const MAX_PATH: usize = 4095;

/// The volumes of a plan that can be mounted.
pub(super) struct Volumes {
    pub(super) all: Vec<Volume>,
    claims: BTreeMap<String, String>,
}

impl Checker {
    pub(super) fn volumes(&mut self, plans: &[VolumePlan]) -> Volumes {
        let mut volumes = Volumes { all: Vec::new(), claims: BTreeMap::new() };
        for (index, plan) in plans.iter().enumerate() {
            let at = format!("volumes[{index}]");
            let size_bytes = (plan.size_bytes > 0).then_some(plan.size_bytes);
            if i64::try_from(plan.size_bytes).is_err() {
                let remedy = "write a number below 2^63, or 0 for the default";
                self.wrong(format!("{at}.size_bytes"), plan.size_bytes, "is too large", remedy);
            }
            if plan.volume_id.is_empty() {
                self.wrong(format!("{at}.volume_id"), "", "is empty", "write the volume's id");
            }
            let volume = Volume { id: plan.volume_id.clone(), name: plan.name.clone(), size_bytes };
            if volumes.claims.insert(volume.id.clone(), volume.claim_name()).is_some() {
                self.wrong(format!("{at}.volume_id"), &volume.id, "is there twice", "remove one of them");
            }
            volumes.all.push(volume);
        }
        volumes
    }

    pub(super) fn mounts(&mut self, at: &str, plan: &WorkloadPlan, volumes: &Volumes) -> Vec<Mount> {
        let mut mounts: BTreeMap<String, Mount> = BTreeMap::new();
        for (index, mount) in plan.mounts.iter().enumerate() {
            let at = format!("{at}.mounts[{index}]");
            let claim = volumes.claims.get(&mount.volume_id);
            if claim.is_none() {
                let remedy = "add the volume to the plan, or remove the mount";
                self.wrong(format!("{at}.volume_id"), &mount.volume_id, "is no volume of the plan", remedy);
            }
            let (Some(path), Some(claim)) = (self.place(&format!("{at}.path"), &mount.path), claim) else { continue };
            if path == "/dev/shm" && plan.settings.shm_bytes.is_some() {
                let remedy = "remove the mount, or settings.shm_bytes";
                self.wrong(format!("{at}.path"), &path, "is where the workload's shared memory is", remedy);
            }
            let placed = Mount { claim: claim.clone(), path: path.clone(), read_only: mount.read_only };
            if mounts.insert(path, placed).is_some() {
                let remedy = "mount one volume there";
                self.wrong(format!("{at}.path"), &mount.path, "is where another volume is mounted too", remedy);
            }
        }
        mounts.into_values().collect()
    }

    pub(super) fn files(&mut self, at: &str, plan: &WorkloadPlan, mounts: &[Mount]) -> Vec<File> {
        let taken: BTreeSet<&str> = mounts.iter().map(|mount| &*mount.path).collect();
        let mut files: BTreeMap<String, File> = BTreeMap::new();
        for (index, file) in plan.files.iter().enumerate() {
            let at = format!("{at}.files[{index}]");
            if file.mode > 0o777 {
                let remedy = "write permission bits up to 511 (0777), e.g. 420 for 0644";
                self.wrong(format!("{at}.mode"), file.mode, "is no file's mode", remedy);
            }
            let Some(path) = self.place(&format!("{at}.path"), &file.path) else { continue };
            let mode = i32::try_from(if file.mode == 0 { MODE } else { file.mode }).unwrap_or_default();
            let placed = File { path: path.clone(), content: file.content.clone(), mode };
            if taken.contains(&*path) || files.insert(path, placed).is_some() {
                let remedy = "put one thing there";
                self.wrong(format!("{at}.path"), &file.path, "is where something else is too", remedy);
            }
        }
        let size: usize = files.values().map(|file| file.path.len() + file.content.len()).sum();
        if size > FILES_LIMIT {
            let (field, size) = (format!("{at}.files"), format!("{size} bytes"));
            self.wrong(field, size, "are larger than 1000 KiB together", "put large files into the image or a volume");
        }
        files.into_values().collect()
    }

    /// The path in its normal form; `None` when nothing can be put there.
    fn place(&mut self, field: &str, path: &str) -> Option<String> {
        let (problem, remedy) = match normal(path) {
            Ok(normal) => return Some(normal),
            Err(Misplaced::Relative) => ("is not an absolute path", "begin it with /"),
            Err(Misplaced::Root) => ("is the root", "name a place below it"),
            Err(Misplaced::Upwards) => ("leads upwards", "write it without .."),
            Err(Misplaced::Unwritable) => {
                ("is a path that no container can be given", "write it without : and NUL, and below 4096 bytes")
            }
        };
        self.wrong(field, path, problem, remedy);
        None
    }
}

/// Why nothing can be put at a path.
#[derive(Debug, PartialEq, Eq)]
enum Misplaced {
    Relative,
    Root,
    Upwards,
    /// Kubernetes refuses a colon, Linux a NUL and a path too long.
    Unwritable,
}

/// The path without what means nothing: `/a//b/./` is `/a/b`. So no two spellings of one place pass for two.
fn normal(path: &str) -> Result<String, Misplaced> {
    if !path.starts_with('/') {
        return Err(Misplaced::Relative);
    }
    if path.contains([':', '\0']) || path.len() > MAX_PATH {
        return Err(Misplaced::Unwritable);
    }
    let segments: Vec<&str> = path.split('/').filter(|segment| !matches!(*segment, "" | ".")).collect();
    match *segments {
        [] => Err(Misplaced::Root),
        _ if segments.contains(&"..") => Err(Misplaced::Upwards),
        _ => Ok(format!("/{}", segments.join("/"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_has_one_spelling() {
        for path in ["/a/b", "/a//b", "/a/b/", "//a/./b/."] {
            assert_eq!(normal(path).as_deref(), Ok("/a/b"), "{path}");
        }
        for (path, problem) in [
            ("", Misplaced::Relative),
            ("a", Misplaced::Relative),
            ("./a", Misplaced::Relative),
            ("/", Misplaced::Root),
            ("/./", Misplaced::Root),
            ("/a/..", Misplaced::Upwards),
            ("/a:b", Misplaced::Unwritable),
            ("/a\0", Misplaced::Unwritable),
        ] {
            assert_eq!(normal(path), Err(problem), "{path:?}");
        }
        assert_eq!(normal(&format!("/{}", "a".repeat(MAX_PATH))), Err(Misplaced::Unwritable));
    }
}
