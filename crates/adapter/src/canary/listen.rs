//! Listening to a prober.

use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::Pod;
use pando_cluster::LogRequest;
use pando_network::canary::CONTAINER;

use super::Canary;
use crate::call::name;

/// The pause before a log that came to its end is asked for again.
const PAUSE: Duration = Duration::from_millis(250);

/// No line of a prober's is longer: what is may be anything.
const LONGEST: usize = 4096;

/// A line that a prober wrote.
#[derive(Debug)]
pub(super) struct Said {
    /// The prober's number.
    pub(super) prober: usize,
    pub(super) line: String,
}

/// Passes on what a prober writes, without end. An answer that is cut is asked for anew, from the beginning: who takes the lines
/// knows them again.
pub(super) async fn listen(canary: &Canary<'_>, prober: usize, pod: &Pod, words: UnboundedSender<Said>) {
    let request = LogRequest {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        pod: name(&pod.metadata),
        container: CONTAINER.to_owned(),
        follow: true,
        since: None,
        tail_lines: None,
        limit_bytes: None,
        timestamps: false,
    };
    loop {
        if let Ok(mut pieces) = canary.cluster.logs(&request).await {
            let mut lines = Lines::default();
            while let Some(Ok(piece)) = pieces.next().await {
                lines.push(&piece, |line| {
                    // Nobody hears it once the verdict is there.
                    let _ = words.unbounded_send(Said { prober, line });
                });
            }
        }
        canary.env.sleep(PAUSE).await;
    }
}

/// Cuts bytes into lines.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, bytes: &[u8], mut tell: impl FnMut(String)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.0.extend_from_slice(&part[..part.len().min(LONGEST.saturating_sub(self.0.len()))]);
            if part.ends_with(b"\n") {
                tell(String::from_utf8_lossy(&std::mem::take(&mut self.0)).trim_end().to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_and_kept_short() {
        let mut lines = Lines::default();
        let mut told = Vec::new();
        let long = "x".repeat(LONGEST);
        for piece in ["1 0 op", "en\n1 .\n2", " 0 dropped\n", &long, &long, "\n", "\n", "no end"] {
            lines.push(piece.as_bytes(), |line| told.push(line));
        }
        assert_eq!(told, ["1 0 open", "1 .", "2 0 dropped", &long, ""]);
    }
}
