//! Reading the log of one pod to its end, over as many answers as that takes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use pando_api::{Code, Error, LogEvent, LogGap, LogLine, LogOptions};
use pando_cluster::env::Instant;
use pando_cluster::resilient::{backoff, is_transient};
use pando_cluster::{ByteStream, Cluster, ClusterError, Env, Failure, LogRequest, ObjectKey, Uid};

use super::choose::app_state;
use super::lines::{Piece, Splitter};
use super::place::{Answer, Place, Sorted};
use super::words::Words;
use crate::call::name;
use crate::error::unread;
use crate::pod::APP;
use crate::record::{Revision, pod_revision};
use crate::sight;

/// A followed log that says nothing for so long may have been forgotten by its node: it is asked again, beside the state of the
/// container. Each time in vain the next silence may last twice as long…
const SILENCE: Duration = Duration::from_secs(5);
/// … up to this.
const LONGEST_SILENCE: Duration = Duration::from_mins(1);
/// A log that is not followed says something all the time.
const STALLED: Duration = Duration::from_secs(15);
/// So long the last lines may take from a container that has ended to its log.
const SETTLING: Duration = Duration::from_millis(500);
/// An end longer ago than this, by clocks that may differ, has settled.
const SETTLED: SignedDuration = SignedDuration::from_secs(10);
/// How often a log is asked for that cannot be followed, and whose reading came to nothing.
const POLL: Duration = Duration::from_secs(1);
/// The end of a log is believed when another answer brings nothing more, and of a container that runs after so many.
const ROUNDS: u32 = 3;
/// So long reading may come to nothing before that is told.
const TROUBLE: Duration = Duration::from_mins(2);
/// The same where somebody waits for an answer.
const BRIEF_TROUBLE: Duration = Duration::from_secs(30);
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
    place: Place,
    phase: Phase,
    follow: bool,
    /// The node cannot follow; it is asked each while.
    polling: bool,
    /// The container has ended.
    ended: bool,
    /// The last lines may still be on their way to the log.
    unsettled: bool,
    open: Option<Open>,
    /// Answers in a row that brought nothing.
    fruitless: u32,
    rounds: u32,
    silence: Duration,
    trouble: Option<Instant>,
    /// The reader was away: what is read may be behind.
    behind: bool,
}

/// What is asked for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// So many of the last lines there are.
    Tail(u64),
    /// What comes.
    Follow,
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
        let ended = sight::has_ended(pod);
        let mut reading = Self {
            pod: name(&pod.metadata),
            uid: Uid::of(&pod.metadata),
            node: sight::node(pod).to_owned(),
            revision: pod_revision(pod),
            place: Place::new(options.since),
            phase: Phase::Rest,
            follow: options.follow,
            polling: false,
            ended,
            unsettled: ended && ended_just_now(pod, env.wall.now()),
            open: None,
            fruitless: 0,
            rounds: 0,
            silence: SILENCE,
            trouble: None,
            behind: false,
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
        let limit = if self.phase == Phase::Follow && !self.polling { self.silence } else { STALLED };
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
        self.ended(source, end, open.news > 0, out).await
    }

    async fn ask(&mut self, source: &Source, out: &mut VecDeque<LogEvent>) -> Result<Step, Error> {
        if self.phase == Phase::Rest && std::mem::take(&mut self.unsettled) {
            source.env.sleep(SETTLING).await;
        }
        let since = self.place.ask_since();
        let request = LogRequest {
            namespace: source.namespace.clone(),
            pod: self.pod.clone(),
            container: APP.to_owned(),
            follow: self.phase == Phase::Follow && !self.polling,
            since,
            tail_lines: match self.phase {
                // The last line is read though it is not wanted: what is written after it is.
                Phase::Tail(lines) => Some(lines.max(1)),
                Phase::Follow | Phase::Rest => None,
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
                self.ended(source, End::Broken(error), false, out).await
            }
            // "container … is terminated": its node knows nothing of it any more.
            Err(error) if matches!(error.failure, Failure::Invalid { .. }) => Err(self.gone(source).caused_by(error)),
            Err(error) => Err(unread(error)),
        }
    }

    /// Takes in what arrived; answers how the answer ends, when it does.
    fn take_in(&mut self, open: &mut Open, bytes: &[u8], now: Instant, out: &mut VecDeque<LogEvent>) -> Option<End> {
        let mut pieces = Vec::new();
        open.splitter.push(bytes, |piece| pieces.push(piece));
        let before = open.news;
        let end = pieces.into_iter().find_map(|piece| self.piece(open, piece, out));
        // What a fresh question brings at once, the one before it had been silent about: this node forgets.
        if open.news > before {
            let missed = before == 0 && now.since(open.opened) < POLL && self.silence > SILENCE;
            if missed {
                self.silence = SILENCE;
            }
            self.fruitless = 0;
            self.trouble = None;
        }
        end
    }

    fn piece(&mut self, open: &mut Open, piece: Piece, out: &mut VecDeque<LogEvent>) -> Option<End> {
        open.pieces += 1;
        if let Piece::Foreign { text } = &piece {
            return match Words::read(text) {
                // The end of a line that began before what was asked for.
                Words::Unknown if open.cut && open.pieces == 1 => None,
                words => {
                    tracing::debug!(pod = self.pod, text, "a node answers with words instead of a log");
                    Some(End::Words(words))
                }
            };
        }
        let last = self.place.last();
        match self.place.sort(&mut open.answer, piece) {
            Sorted::Old => None,
            Sorted::Back => Some(End::Back),
            Sorted::New { piece: Piece::Text { time, offset, bytes }, gap } => {
                open.news += 1;
                if self.phase != Phase::Tail(0) {
                    let paused = || {
                        let behind = self.behind && self.phase == Phase::Follow;
                        last.filter(|last| behind && time.duration_since(*last) >= PAUSE)
                    };
                    out.extend(gap.or_else(paused).map(|after| LogEvent::Gap(LogGap { after, before: Some(time) })));
                    out.push_back(LogEvent::Line(LogLine { time, begins: offset == 0, bytes }));
                }
                None
            }
            Sorted::New { .. } => None,
        }
    }

    /// Takes in what is left of an answer that is over.
    fn finish(&mut self, open: &mut Open, out: &mut VecDeque<LogEvent>) -> End {
        let end = match std::mem::take(&mut open.splitter).finish() {
            // Half a time may be left by a cut that looks like an end.
            Some(Piece::Foreign { text }) if Words::read(&text) == Words::Unknown => None,
            // Of a container that may write on, half a line is no line yet: it is read again with its end.
            Some(Piece::Text { .. }) if self.phase == Phase::Follow => None,
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
        news: bool,
        out: &mut VecDeque<LogEvent>,
    ) -> Result<Step, Error> {
        match (self.phase, &end) {
            (Phase::Tail(_), End::Closed) => {
                self.phase = self.after_tail();
                return Ok(Step::More);
            }
            (Phase::Rest, End::Closed) => {
                self.rounds += 1;
                let again = self.rounds < 2 || (news && (self.ended || self.rounds < ROUNDS));
                return Ok(if again { Step::More } else { Step::Over });
            }
            // A tail that was begun is gone on with from there.
            (Phase::Tail(_), _) if self.place.last().is_some() => self.phase = self.after_tail(),
            _ => {}
        }
        match &end {
            End::Words(Words::CannotFollow) => self.polling = true,
            End::Silent if self.phase == Phase::Follow => self.silence = (self.silence * 2).min(LONGEST_SILENCE),
            End::Closed | End::Broken(_) | End::Silent | End::Back | End::Words(_) => {}
        }
        if let Some(step) = self.look(source, &end, out).await? {
            return Ok(step);
        }
        if self.lasts_too_long(source, &end, news) {
            let error = self.troubled(source);
            return Err(if let End::Broken(cause) = end { error.caused_by(cause) } else { error });
        }
        self.pause(source, &end, news).await;
        Ok(Step::More)
    }

    /// Looks at the pod after an answer that may not have been all; answers a step when that decides it.
    async fn look(&mut self, source: &Source, end: &End, out: &mut VecDeque<LogEvent>) -> Result<Option<Step>, Error> {
        let key = ObjectKey::namespaced(pando_cluster::Kind::Pod, &*source.namespace, &*self.pod);
        let pod = match source.cluster.read::<Pod>(key.namespace.as_deref(), &key.name).await {
            Ok(pod) => pod.filter(|pod| Uid::of(&pod.metadata) == self.uid),
            // Not known: what is asked next will show.
            Err(error) if is_transient(&error.failure) => return Ok(None),
            Err(error) => return Err(unread(error)),
        };
        let Some(pod) = pod else {
            let was_cut = !matches!(end, End::Closed);
            let gap = self.place.last().filter(|_| was_cut).map(|after| LogEvent::Gap(LogGap { after, before: None }));
            out.extend(gap);
            return Ok(Some(Step::Over));
        };
        if !sight::has_ended(&pod) {
            return Ok(None);
        }
        if matches!(end, End::Words(Words::NoLog)) && std::mem::replace(&mut self.ended, true) {
            return Err(self.gone(source));
        }
        if self.phase == Phase::Follow {
            self.phase = Phase::Rest;
            self.unsettled = true;
        }
        self.ended = true;
        Ok(None)
    }

    /// Whether reading has come to nothing for too long.
    fn lasts_too_long(&mut self, source: &Source, end: &End, news: bool) -> bool {
        let is_trouble = match end {
            End::Broken(_) | End::Words(Words::NoLog | Words::Unknown) => true,
            End::Silent => self.phase != Phase::Follow,
            End::Closed | End::Back | End::Words(Words::CannotFollow) => false,
        };
        if news || !is_trouble {
            self.trouble = None;
            return false;
        }
        let now = source.env.now();
        now.since(*self.trouble.get_or_insert(now)) >= self.patience()
    }

    const fn patience(&self) -> Duration {
        if self.follow { TROUBLE } else { BRIEF_TROUBLE }
    }

    fn troubled(&self, source: &Source) -> Error {
        let place = if self.node.is_empty() { String::new() } else { format!(" on node {}", self.node) };
        let (workload, seconds) = (&source.workload, self.patience().as_secs());
        Error::new(
            Code::AdapterUnavailable,
            format!("the log of workload {workload:?}{place} could not be read for {seconds} s"),
        )
        .remedy("look whether that node is healthy and reachable from the API server")
        .detail("node", &self.node)
    }

    async fn pause(&mut self, source: &Source, end: &End, news: bool) {
        if news {
            self.fruitless = 0;
        }
        let pause = match end {
            End::Silent => return,
            _ if self.polling && self.phase == Phase::Follow => POLL,
            _ if news => return,
            End::Closed | End::Broken(_) | End::Back | End::Words(_) => {
                let longest = backoff(Duration::from_millis(50), POLL * 5, self.fruitless);
                longest / 2 + source.env.jitter(longest / 2)
            }
        };
        self.fruitless = self.fruitless.saturating_add(1);
        source.env.sleep(pause).await;
    }

    const fn after_tail(&self) -> Phase {
        if self.follow && !self.ended { Phase::Follow } else { Phase::Rest }
    }

    fn gone(&self, source: &Source) -> Error {
        let message = format!("the log of workload {:?} is no longer there: its node has removed it", source.workload);
        Error::new(Code::NotFound, message)
            .remedy("nothing brings it back; a later start writes a log of its own")
            .detail("node", &self.node)
    }
}

/// Whether the container was told to be on its way still, while its pod says that it started.
fn is_waiting(error: &ClusterError) -> bool {
    matches!(&error.failure, Failure::Invalid { message, .. } if message.contains("is waiting to start"))
}

/// Whether the last lines may still be on their way to the log.
fn ended_just_now(pod: &Pod, now: Timestamp) -> bool {
    let ended = app_state(pod).and_then(|state| state.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0));
    ended.is_some_and(|ended| now.duration_since(ended).abs() < SETTLED)
}
