//! What volumes hold: the ground truth of who wrote to each, and which of them are no more.

use std::collections::BTreeMap;

use pando_cluster::env::Instant;

use super::machines::ProcessId;

/// The storage behind a `PersistentVolume`, whatever the API says of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The claim that it was made for, as `namespace/name`; empty for one that nobody provisioned.
    pub made_for: String,
    /// Every program that could write to it so far, in the order in which they started.
    pub writers: Vec<Writer>,
    /// When what was on it was destroyed.
    pub destroyed: Option<Instant>,
}

/// A program that could write to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The identity of its pod.
    pub uid: String,
    /// Its container.
    pub container: String,
    /// When it started.
    pub since: Instant,
    /// When it really ended; `None` while it runs.
    pub until: Option<Instant>,
}

impl Disk {
    /// The pods of which two could write at one instant, by uid, each pair once.
    ///
    /// Containers of one pod share a volume rightly.
    pub fn overlapping_writers(&self) -> Vec<(&str, &str)> {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for (index, first) in self.writers.iter().enumerate() {
            for second in &self.writers[index + 1..] {
                let pair = (first.uid.as_str(), second.uid.as_str());
                let overlap = first.until.is_none_or(|until| until > second.since);
                if overlap && first.uid != second.uid && !pairs.contains(&pair) {
                    pairs.push(pair);
                }
            }
        }
        pairs
    }

    /// Whether something that the pod of this uid wrote is still there.
    pub fn holds(&self, uid: &str) -> bool {
        self.destroyed.is_none() && self.writers.iter().any(|writer| writer.uid == uid)
    }
}

/// Every disk by the name of its volume; destroyed ones are remembered.
#[derive(Debug, Default)]
pub(super) struct Disks(BTreeMap<String, Disk>);

impl Disks {
    pub(super) fn all(&self) -> BTreeMap<String, Disk> {
        self.0.clone()
    }

    /// A new and empty one.
    pub(super) fn make(&mut self, volume: &str, made_for: String) {
        self.0.insert(volume.to_owned(), Disk { made_for, writers: Vec::new(), destroyed: None });
    }

    /// Whether a disk is there; those that nobody provisioned are as old as time.
    pub(super) fn destroy(&mut self, volume: &str, now: Instant) {
        if let Some(disk) = self.0.get_mut(volume) {
            disk.destroyed.get_or_insert(now);
        }
    }

    pub(super) fn open(&mut self, volume: &str, id: &ProcessId, now: Instant) {
        let disk = self.0.entry(volume.to_owned()).or_insert_with(|| Disk {
            made_for: String::new(),
            writers: Vec::new(),
            destroyed: None,
        });
        let ProcessId { uid, container } = id.clone();
        disk.writers.push(Writer { uid, container, since: now, until: None });
    }

    /// The program has ended, and writes nowhere any more.
    pub(super) fn close(&mut self, id: &ProcessId, now: Instant) {
        let open = self.0.values_mut().flat_map(|disk| &mut disk.writers).filter(|writer| writer.until.is_none());
        for writer in open.filter(|writer| writer.uid == id.uid && writer.container == id.container) {
            writer.until = Some(now);
        }
    }
}
