//! The output of containers.

use futures::StreamExt;
use futures::stream::unfold;
use jiff::Timestamp;
use pando_cluster::{ByteStream, LogRequest};

use super::machines::ProcessId;
use super::objects::text;
use crate::FakeCluster;

/// A stream over the log of a container.
///
/// It follows the container it found, not the name: when the pod is deleted, the stream ends like any other.
pub(crate) fn logs(fake: &FakeCluster, request: &LogRequest) -> ByteStream {
    let key = pando_cluster::ObjectKey::namespaced(pando_cluster::Kind::Pod, &*request.namespace, &*request.pod);
    let uid = fake.with(|store| store.get(&key).map(|pod| text(pod, "/metadata/uid").to_owned()));
    let Some(uid) = uid else { return futures::stream::empty().boxed() };
    let id = ProcessId { uid, container: request.container.clone() };
    let begin = first_line(fake, &id, request);
    let reader = Reader { fake: fake.clone(), id, request: request.clone(), next: begin, left: request.limit_bytes };
    unfold(reader, |mut reader| async move { reader.piece().await.map(|piece| (Ok(piece.into()), reader)) }).boxed()
}

/// The index of the first line that was asked for.
fn first_line(fake: &FakeCluster, id: &ProcessId, request: &LogRequest) -> usize {
    fake.machines().with(|state| {
        let lines = state.logs.get(id).map_or(&[][..], |log| &log.lines);
        // Kubernetes cuts the time asked for to whole seconds, and includes that second.
        let since = request.since.map(|since| Timestamp::from_second(since.as_second()).unwrap_or(since));
        let by_time = since.map_or(0, |since| lines.partition_point(|(at, _)| *at < since));
        let tail = request.tail_lines.and_then(|tail| usize::try_from(tail).ok());
        by_time.max(tail.map_or(0, |tail| lines.len().saturating_sub(tail)))
    })
}

struct Reader {
    fake: FakeCluster,
    id: ProcessId,
    request: LogRequest,
    next: usize,
    /// How many bytes may still be given.
    left: Option<u64>,
}

impl Reader {
    /// The next line; `None` at the end.
    async fn piece(&mut self) -> Option<Vec<u8>> {
        if self.left == Some(0) {
            return None;
        }
        loop {
            let heard = self.fake.machines().output.count();
            let (line, over) = self.fake.machines().with(|state| {
                let log = state.logs.get(&self.id);
                (log.and_then(|log| log.lines.get(self.next).cloned()), log.is_none_or(|log| log.over))
            });
            if let Some((at, line)) = line {
                self.next += 1;
                return Some(self.cut(render(at, &line, self.request.timestamps)));
            }
            if over || !self.request.follow {
                return None;
            }
            self.fake.machines().output.past(heard).await;
        }
    }

    fn cut(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        if let Some(left) = &mut self.left {
            bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= bytes.len() as u64;
        }
        bytes
    }
}

fn render(at: Timestamp, line: &str, timestamps: bool) -> Vec<u8> {
    if timestamps { format!("{at:.9} {line}\n") } else { format!("{line}\n") }.into_bytes()
}
