//! Reading the log of one pod to its end, over as many answers as that takes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use pando_api::{Code, Error, LogEvent, LogGap, LogLine, LogOptions};
use pando_cluster::env::Instant;
use pando_cluster::resilient::is_transient;
use pando_cluster::{ByteStream, Cluster, ClusterError, Env, Failure, LogRequest, Uid};

use super::choose::app_state;
use super::lines::{Piece, Splitter, Text};
use super::pace::{POLL, Pace};
use super::place::{Answer, Place, Sorted};
use super::words::Words;
use crate::call::name;
use crate::error::unread;
use crate::pod::APP;
use crate::record::{Revision, pod_revision};
use crate::sight;

/// So long the last lines may take from a container that has ended to its log.
const SETTLING: Duration = Duration::from_millis(500);
/// An end longer ago than this, by clocks that may differ, has settled.
const SETTLED: SignedDuration = SignedDuration::from_secs(10);
/// The end of a log is believed when another answer brings nothing more, and of a container that runs after so many.
const ROUNDS: u32 = 3;
/// A reader away for so long may be behind by more than a node keeps…
const AWAY: Duration = Duration::from_secs(5);
/// … and a pause of so long in what is read then may be a file that the node threw away. Nodes rotate each 10 s at most.
const PAUSE: SignedDuration = SignedDuration::from_secs(5);

/// The cluster, and whose log is read.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) cluster: Arc<dyn Cluster>,
    pub(super) env: Env,
    pub(super) namespace: String,
    pub(super) workload: String,
}

impl Source {
    /// The pod of that name and identity; `None` when it is gone.
    async fn pod(&self, name: &str, uid: Option<&Uid>) -> Result<Option<Pod>, ClusterError> {
        let read = self.cluster.read::<Pod>(Some(&self.namespace), name).await?;
        Ok(read.filter(|pod| Uid::of(&pod.metadata).as_ref() == uid))
    }
}

/// What comes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There is more to do.
    More,
    /// All was read.
    Over,
}

/// A pod's log, as far as it was read.
pub(super) struct Reading {
    pod: String,
    uid: Option<Uid>,
    node: String,
    revision: Option<Revision>,
    container: Container,
    place: Place,
    phase: Phase,
    follow: bool,
    open: Option<Open>,
    /// How many answers to the last question, for the rest, there were.
    rounds: u32,
    pace: Pace,
    /// The reader was away: what is read may be behind.
    behind: bool,
    /// The last answer of log came to its end as if all were told.
    closed: bool,
}

/// What is known of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    /// It had not ended when it was looked at last.
    Runs,
    /// It has ended, and its last lines may be on their way to the log.
    EndedJustNow,
    /// It has ended.
    Ended,
}

/// What is asked for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// So many of the last lines there are.
    Tail(u64),
    /// What comes.
    Follow,
    /// What has come, each while: the node cannot follow.
    Poll,
    /// What there is.
    Rest,
}

/// An answer that is being read.
struct Open {
    bytes: ByteStream,
    splitter: Splitter,
    answer: Answer,
    /// Whether it may begin in the middle of a line.
    cut: bool,
    opened: Instant,
    pieces: u64,
    news: u64,
}

/// What came by an answer.
#[derive(Clone, Copy, Debug)]
struct Came {
    /// Something new.
    news: bool,
    /// It went on from what was passed on last.
    joined: bool,
}

/// How an answer ended.
enum End {
    /// As if all were told, which may not be so.
    Closed,
    /// It was cut.
    Broken(ClusterError),
    /// Nothing came for too long.
    Silent,
    /// Lines came that seem to have come before.
    Back,
    /// The node said something else instead.
    Words(Words),
}

impl Reading {
    /// Reads the pod's log from its beginning, or what the options say of it.
    pub(super) fn new(pod: &Pod, options: &LogOptions, env: &Env) -> Self {
        let mut reading = Self {
            pod: name(&pod.metadata),
            uid: Uid::of(&pod.metadata),
            node: sight::node(pod).to_owned(),
            revision: pod_revision(pod),
            container: Container::of(pod, env.wall.now()),
            place: Place::new(options.since),
            phase: Phase::Rest,
            follow: options.follow,
            open: None,
            rounds: 0,
            pace: Pace::new(options.follow),
            behind: false,
            closed: false,
        };
        reading.phase = options.tail.map_or_else(|| reading.after_tail(), Phase::Tail);
        reading
    }

    /// The pod's revision.
    pub(super) const fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// The reader took so long to ask for more.
    pub(super) fn was_left(&mut self, time: Duration) {
        self.behind |= time >= AWAY;
    }

    /// Asks, or takes in what arrives; `out` gets what is new.
    pub(super) async fn step(&mut self, source: &Source, out: &mut VecDeque<LogEvent>) -> Result<Step, Error> {
        let Some(mut open) = self.open.take() else { return self.ask(source, out).await };
        let limit = self.pace.silence(self.phase == Phase::Follow);
        let asked = source.env.now();
        let end = match source.env.timeout(limit, open.bytes.next()).await {
            Ok(Some(Ok(bytes))) => {
                let now = source.env.now();
                let end = self.take_in(&mut open, &bytes, now, out);
                // Whoever has to wait for what is written next has caught up.
                self.behind &= now.since(asked) < POLL;
                let Some(end) = end else {
                    self.open = Some(open);
                    return Ok(Step::More);
                };
                end
            }
            Ok(Some(Err(error))) => End::Broken(error),
            Ok(None) => self.finish(&mut open, out),
            Err(_) => End::Silent,
        };
        let came = Came { news: open.news > 0, joined: open.answer.has_joined() };
        self.ended(source, end, came, out).await
    }

    async fn ask(&mut self, source: &Source, out: &mut VecDeque<LogEvent>) -> Result<Step, Error> {
        if self.phase == Phase::Rest && self.container == Container::EndedJustNow {
            source.env.sleep(SETTLING).await;
            self.container = Container::Ended;
        }
        let since = self.place.ask_since();
        let request = LogRequest {
            namespace: source.namespace.clone(),
            pod: self.pod.clone(),
            container: APP.to_owned(),
            follow: self.phase == Phase::Follow,
            since,
            tail_lines: match self.phase {
                // The last line is read though it is not wanted: what is written after it is.
                Phase::Tail(lines) => Some(lines.max(1)),
                Phase::Follow | Phase::Poll | Phase::Rest => None,
            },
            limit_bytes: None,
            timestamps: true,
        };
        match source.cluster.logs(&request).await {
            Ok(bytes) => {
                self.open = Some(Open {
                    bytes,
                    splitter: Splitter::default(),
                    answer: self.place.answer(),
                    cut: since.is_some() || request.tail_lines.is_some(),
                    opened: source.env.now(),
                    pieces: 0,
                    news: 0,
                });
                Ok(Step::More)
            }
            Err(error) if error.is_not_found() => Ok(Step::Over),
            Err(error) if is_transient(&error.failure) || is_waiting(&error) => {
                self.ended(source, End::Broken(error), Came { news: false, joined: true }, out).await
            }
            // "container … is terminated": its node knows nothing of it any more.
            Err(error) if matches!(error.failure, Failure::Invalid { .. }) => {
                let pod = source.pod(&self.pod, self.uid.as_ref()).await.map_err(unread)?;
                if pod.is_none_or(|pod| sight::is_going(&pod)) {
                    return Ok(self.lost_with_its_pod(out));
                }
                Err(self.gone(source).caused_by(error))
            }
            Err(error) => Err(unread(error)),
        }
    }

    /// Takes in what arrived; answers how the answer ends, when it does.
    fn take_in(&mut self, open: &mut Open, bytes: &[u8], now: Instant, out: &mut VecDeque<LogEvent>) -> Option<End> {
        let mut pieces = Vec::new();
        open.splitter.push(bytes, |piece| pieces.push(piece));
        let before = open.news;
        let end = pieces.into_iter().find_map(|piece| self.piece(open, piece, out));
        if open.news > before {
            self.pace.has_news((before == 0).then(|| now.since(open.opened)));
        }
        end
    }

    fn piece(&mut self, open: &mut Open, piece: Piece, out: &mut VecDeque<LogEvent>) -> Option<End> {
        open.pieces += 1;
        let text = match piece {
            Piece::Text(text) => text,
            Piece::Foreign(line) => {
                let words = Words::read(&line);
                // The end of a line that began before what was asked for.
                if words == Words::Unknown && open.cut && open.pieces == 1 {
                    return None;
                }
                tracing::debug!(pod = self.pod, line, "a node answers with words instead of a log");
                return Some(End::Words(words));
            }
        };
        let last = self.place.last();
        match self.place.sort(&mut open.answer, text) {
            Sorted::Old => {}
            Sorted::Back => return Some(End::Back),
            Sorted::New { text, gap } => {
                open.news += 1;
                let behind = self.behind && self.phase == Phase::Follow;
                let paused = last.filter(|last| behind && text.time.duration_since(*last) >= PAUSE);
                if self.phase != Phase::Tail(0) {
                    let gap = gap.or(paused).map(|after| LogGap { after, before: Some(text.time) });
                    let Text { time, offset, bytes } = text;
                    out.extend(gap.map(LogEvent::Gap));
                    out.push_back(LogEvent::Line(LogLine { time, begins: offset == 0, bytes }));
                }
            }
        }
        None
    }

    /// Takes in what is left of an answer that is over.
    fn finish(&mut self, open: &mut Open, out: &mut VecDeque<LogEvent>) -> End {
        let end = match std::mem::take(&mut open.splitter).finish() {
            // Half a time may be left by a cut that looks like an end.
            Some(Piece::Foreign(line)) if Words::read(&line) == Words::Unknown => None,
            // Of a container that may write on, half a line is no line yet: it is read again with its end.
            Some(Piece::Text(_)) if self.phase != Phase::Rest => None,
            Some(piece) => self.piece(open, piece, out),
            None => None,
        };
        end.unwrap_or(End::Closed)
    }

    /// Decides what follows an answer.
    async fn ended(
        &mut self,
        source: &Source,
        end: End,
        came: Came,
        out: &mut VecDeque<LogEvent>,
    ) -> Result<Step, Error> {
        let Came { news, joined } = came;
        if !matches!(end, End::Words(_)) {
            self.closed = matches!(end, End::Closed);
        }
        match (self.phase, &end) {
            (Phase::Tail(_), End::Closed) => {
                self.phase = self.after_tail();
                return Ok(Step::More);
            }
            (Phase::Rest, End::Closed) => {
                self.rounds += 1;
                let may_be_more = news && (self.container != Container::Runs || self.rounds < ROUNDS);
                if may_be_more || self.rounds < 2 {
                    return Ok(Step::More);
                }
                // Nothing more comes, by a file that does not hold the last line: what followed that may be gone with its own. The
                // log of a pod that is gone holds nothing at all.
                let lost = self.place.last().filter(|_| !joined);
                if let Some(after) = lost
                    && source.pod(&self.pod, self.uid.as_ref()).await.map_err(unread)?.is_some()
                {
                    out.push_back(LogEvent::Gap(LogGap { after, before: None }));
                }
                return Ok(Step::Over);
            }
            // A tail that was begun is gone on with from there.
            (Phase::Tail(_), _) if self.place.last().is_some() => self.phase = self.after_tail(),
            (Phase::Follow, End::Words(Words::CannotFollow)) => self.phase = Phase::Poll,
            (Phase::Follow, End::Silent) => self.pace.was_silent(),
            _ => {}
        }
        if self.look(source, &end, out).await? == Step::Over {
            return Ok(Step::Over);
        }
        self.go_on(source, end, news).await
    }

    /// Looks at the pod after an answer that may not have been all.
    async fn look(&mut self, source: &Source, end: &End, out: &mut VecDeque<LogEvent>) -> Result<Step, Error> {
        let pod = match source.pod(&self.pod, self.uid.as_ref()).await {
            Ok(pod) => pod,
            // Not known: what is asked next will show.
            Err(error) if is_transient(&error.failure) => return Ok(Step::More),
            Err(error) => return Err(unread(error)),
        };
        let Some(pod) = pod else { return Ok(self.lost_with_its_pod(out)) };
        if !sight::has_ended(&pod) {
            return Ok(Step::More);
        }
        match self.container {
            Container::Runs => self.container = Container::EndedJustNow,
            Container::EndedJustNow | Container::Ended if matches!(end, End::Words(Words::NoLog)) => {
                // A node removes the log of a pod that was told to end before the pod's object goes.
                return if sight::is_going(&pod) { Ok(self.lost_with_its_pod(out)) } else { Err(self.gone(source)) };
            }
            Container::EndedJustNow | Container::Ended => {}
        }
        if matches!(self.phase, Phase::Follow | Phase::Poll) {
            self.phase = Phase::Rest;
        }
        Ok(Step::More)
    }

    /// The log went with its pod: what was not told by then is lost.
    fn lost_with_its_pod(&self, out: &mut VecDeque<LogEvent>) -> Step {
        let gap = self.place.last().filter(|_| !self.closed).map(|after| LogGap { after, before: None });
        out.extend(gap.map(LogEvent::Gap));
        Step::Over
    }

    /// Lets some time pass where nothing came of an answer, and fails when that has been so for too long.
    async fn go_on(&mut self, source: &Source, end: End, news: bool) -> Result<Step, Error> {
        let is_trouble = match &end {
            End::Broken(_) | End::Words(Words::NoLog | Words::Unknown) => true,
            End::Silent => self.phase != Phase::Follow,
            End::Closed | End::Back | End::Words(Words::CannotFollow) => false,
        };
        if news || !is_trouble {
            self.pace.is_well();
        } else if self.pace.is_in_trouble(source.env.now()) {
            let error = self.troubled(source);
            return Err(if let End::Broken(cause) = end { error.caused_by(cause) } else { error });
        }
        match end {
            End::Silent => {}
            _ if self.phase == Phase::Poll => source.env.sleep(POLL).await,
            _ if news => {}
            _ => self.pace.pause(&source.env).await,
        }
        Ok(Step::More)
    }

    fn after_tail(&self) -> Phase {
        if self.follow && self.container == Container::Runs { Phase::Follow } else { Phase::Rest }
    }

    fn troubled(&self, source: &Source) -> Error {
        let place = if self.node.is_empty() { String::new() } else { format!(" on node {}", self.node) };
        let (workload, seconds) = (&source.workload, self.pace.patience().as_secs());
        let message = format!("the log of workload {workload:?}{place} could not be read for {seconds} s");
        Error::new(Code::AdapterUnavailable, message)
            .remedy("look whether that node is healthy and reachable from the API server")
            .detail("node", &self.node)
    }

    fn gone(&self, source: &Source) -> Error {
        let message = format!("the log of workload {:?} is no longer there: its node has removed it", source.workload);
        Error::new(Code::NotFound, message)
            .remedy("nothing brings it back; a later start writes a log of its own")
            .detail("node", &self.node)
    }
}

impl Container {
    /// What the pod says of it; the last lines of one that has just ended may still be on their way to the log.
    fn of(pod: &Pod, now: Timestamp) -> Self {
        let ended = app_state(pod).and_then(|state| state.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0));
        if !sight::has_ended(pod) {
            Self::Runs
        } else if ended.is_some_and(|ended| now.duration_since(ended).abs() < SETTLED) {
            Self::EndedJustNow
        } else {
            Self::Ended
        }
    }
}

/// Whether the container was told to be on its way still, while its pod says that it started.
fn is_waiting(error: &ClusterError) -> bool {
    matches!(&error.failure, Failure::Invalid { message, .. } if message.contains("is waiting to start"))
}
