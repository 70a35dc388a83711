//! The output of containers: files that are rotated, and how a kubelet reads them.
//!
//! The container runtime stores each line with its time, and one of more than 16 KiB in parts with times of their own. The kubelet
//! reads the newest file only. One that follows notices a rotation once it has read a file to its end, and then opens the newest
//! file from its beginning, **for each rotation that it noticed**: whoever reads slowly loses files and gets others twice, and who is
//! far behind hears nothing more until the next rotation. All of it was seen on 1.34; the reasons are in
//! <https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/kubelet/kuberuntime/logs/logs.go>.

use futures::StreamExt;
use futures::stream::unfold;
use jiff::Timestamp;
use pando_cluster::{ByteStream, LogRequest};

use super::machines::ProcessId;
use super::objects::text;
use crate::FakeCluster;

/// A longer line is stored in parts.
const PART: usize = 16 * 1024;
/// A longer file is rotated, where nobody does so before.
const FILE: usize = 10 * 1024 * 1024;
/// How often that is looked for, in seconds.
const CHECK: i64 = 10;

/// What a container wrote, and whether there will be more.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    parts: Vec<Part>,
    /// The first part of each file but the first.
    files: Vec<usize>,
    /// The length of the newest file.
    length: usize,
    /// When the newest file was begun, in seconds.
    begun: i64,
    /// The beginning of a line whose end was not written yet.
    begin: Vec<u8>,
    over: bool,
}

/// An entry of a file.
#[derive(Clone, Debug)]
struct Part {
    at: Timestamp,
    bytes: Vec<u8>,
}

impl Part {
    fn ends_its_line(&self) -> bool {
        self.bytes.ends_with(b"\n")
    }
}

impl Log {
    /// Takes in what a container wrote.
    pub(super) fn write(&mut self, at: Timestamp, bytes: &[u8]) {
        for byte in bytes {
            self.begin.push(*byte);
            if *byte == b'\n' || self.begin.len() == PART {
                self.store(at);
            }
        }
    }

    /// The container has ended; what it wrote last may have no line break.
    pub(super) fn end(&mut self, at: Timestamp) {
        if !self.begin.is_empty() {
            self.store(at);
        }
        self.over = true;
    }

    /// Begins a new file.
    pub(super) fn rotate(&mut self, at: Timestamp) {
        self.files.push(self.parts.len());
        self.length = 0;
        self.begun = at.as_second();
    }

    fn store(&mut self, at: Timestamp) {
        if self.length >= FILE && at.as_second() / CHECK != self.begun / CHECK {
            self.rotate(at);
        }
        let bytes = std::mem::take(&mut self.begin);
        self.length += bytes.len() + "2026-01-01T00:00:00.000000000Z stdout F ".len();
        self.parts.push(Part { at, bytes });
    }

    /// The first part of a file; the first file is 0.
    fn first_of(&self, file: usize) -> usize {
        file.checked_sub(1).map_or(0, |before| self.files[before])
    }

    /// The part after the last one of a file.
    fn end_of(&self, file: usize) -> usize {
        self.files.get(file).copied().unwrap_or(self.parts.len())
    }
}

/// A stream over the log of a container.
///
/// It follows the container it found, not the name: when the pod is deleted, the stream ends like any other.
pub(crate) fn logs(fake: &FakeCluster, request: &LogRequest) -> ByteStream {
    let key = pando_cluster::ObjectKey::namespaced(pando_cluster::Kind::Pod, &*request.namespace, &*request.pod);
    let uid = fake.with(|store| store.get(&key).map(|pod| text(pod, "/metadata/uid").to_owned()));
    let Some(uid) = uid else { return futures::stream::empty().boxed() };
    let id = ProcessId { uid, container: request.container.clone() };
    let reader = Reader::new(fake, id, request);
    unfold(reader, |mut reader| async move { reader.piece().await.map(|piece| (Ok(piece.into()), reader)) }).boxed()
}

/// A kubelet that reads a log.
struct Reader {
    fake: FakeCluster,
    id: ProcessId,
    follow: bool,
    timestamps: bool,
    since: Option<Timestamp>,
    file: usize,
    next: usize,
    /// The rotations that were noticed so far, once any would be.
    noticed: Option<usize>,
    /// What is written next begins a line.
    at_line: bool,
    /// How many bytes may still be given.
    left: Option<u64>,
}

/// What a look at the log brings.
enum Look {
    Part(Part),
    /// Something changed; look again.
    Again,
    /// There is nothing yet.
    Nothing,
    /// There is no more.
    End,
}

impl Reader {
    fn new(fake: &FakeCluster, id: ProcessId, request: &LogRequest) -> Self {
        let tail = request.tail_lines.and_then(|tail| usize::try_from(tail).ok());
        let (file, next) = fake.machines().with(|state| {
            state.logs.get(&id).map_or((0, 0), |log| {
                let file = log.files.len();
                let from_end = tail.map_or(0, |tail| log.parts.len().saturating_sub(tail));
                (file, log.first_of(file).max(from_end))
            })
        });
        Self {
            fake: fake.clone(),
            id,
            follow: request.follow,
            timestamps: request.timestamps,
            // Kubernetes cuts the time asked for to whole seconds, and includes that second.
            since: request.since.map(|since| Timestamp::from_second(since.as_second()).unwrap_or(since)),
            file,
            next,
            noticed: None,
            at_line: true,
            left: request.limit_bytes,
        }
    }

    /// The next part; `None` at the end.
    async fn piece(&mut self) -> Option<Vec<u8>> {
        if self.left == Some(0) {
            return None;
        }
        loop {
            let heard = self.fake.machines().output.count();
            match self.look() {
                Look::Part(part) => {
                    if let Some(bytes) = self.render(&part) {
                        return Some(self.cut(bytes));
                    }
                }
                Look::Again => {}
                Look::Nothing => self.fake.machines().output.past(heard).await,
                Look::End => return None,
            }
        }
    }

    fn look(&mut self) -> Look {
        let fake = self.fake.clone();
        fake.machines().with(|state| {
            let Some(log) = state.logs.get(&self.id) else { return Look::End };
            if self.next < log.end_of(self.file) {
                self.next += 1;
                return Look::Part(log.parts[self.next - 1].clone());
            }
            if !self.follow {
                return Look::End;
            }
            match &mut self.noticed {
                None => self.noticed = Some(log.files.len()),
                Some(noticed) if *noticed < log.files.len() => {
                    *noticed += 1;
                    self.file = log.files.len();
                    self.next = log.first_of(self.file);
                }
                Some(_) if log.over => return Look::End,
                Some(_) => return Look::Nothing,
            }
            Look::Again
        })
    }

    /// The part as it is shown; one from before the time that was asked for is not.
    fn render(&mut self, part: &Part) -> Option<Vec<u8>> {
        let at_line = std::mem::replace(&mut self.at_line, part.ends_its_line());
        if self.since.is_some_and(|since| part.at < since) {
            return None;
        }
        let stamp = if at_line && self.timestamps { format!("{:.9} ", part.at) } else { String::new() };
        Some([stamp.as_bytes(), &part.bytes].concat())
    }

    fn cut(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        if let Some(left) = &mut self.left {
            bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= bytes.len() as u64;
        }
        bytes
    }
}
