//! The executor's state: tasks, timers, time.
//!
//! One lock guards it, and no foreign code (a poll, a waker, a drop) runs under that lock.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pando_cluster::Env;
use pando_cluster::env::{BoxFuture, Clock, Instant, Random, Spawn, Wall};

use super::Sim;
use super::rng::{Stream, Trace};

/// The id of the future that `block_on` was given.
pub(super) const MAIN: u64 = 0;

/// 2026-01-01T00:00:00Z.
const EPOCH: i64 = 1_767_225_600;

/// How many steps may pass in one instant.
const BUSY: u64 = 1_000_000;

/// How many of the latest choices a report shows.
const RECENT: usize = 16;

pub(super) struct Core {
    seed: u64,
    state: Mutex<State>,
}

struct State {
    now: Duration,
    limit: Duration,
    deadline: Duration,
    choices: Stream,
    trace: Trace,
    steps: u64,
    steps_of_instant: u64,
    recent: VecDeque<&'static str>,
    running: bool,
    closed: bool,
    next_task: u64,
    tasks: BTreeMap<u64, Slot>,
    ready: Vec<u64>,
    next_timer: u64,
    timers: BTreeMap<(Duration, u64), Waker>,
    processes: Vec<ProcessState>,
}

struct Slot {
    name: &'static str,
    process: usize,
    ready: bool,
    waker: Option<Waker>,
    /// `None` for the main future, and for a task while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
}

struct ProcessState {
    random: Stream,
    skew: SignedDuration,
    dead: bool,
    /// How often its tasks were polled.
    polls: u64,
    /// Taken out while it runs.
    after_poll: Option<AfterPoll>,
}

/// What is done after each poll of a process's tasks, given how many there were.
pub(super) type AfterPoll = Box<dyn FnMut(u64) + Send>;

/// What goes on next.
pub(super) enum Next {
    /// The future of `block_on`.
    Main,
    /// A task, taken out to be polled.
    Task(Taken),
    /// Nothing is ready, and time was not to move.
    Idle,
}

pub(super) struct Taken {
    id: u64,
    process: usize,
    future: BoxFuture<'static, ()>,
    waker: Waker,
}

impl Core {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let state = State {
            now: Duration::ZERO,
            limit: Sim::LIMIT,
            deadline: Duration::MAX,
            choices: Stream::new(seed, 0),
            trace: Trace::new(),
            steps: 0,
            steps_of_instant: 0,
            recent: VecDeque::with_capacity(RECENT),
            running: false,
            closed: false,
            next_task: MAIN + 1,
            tasks: BTreeMap::new(),
            ready: Vec::new(),
            next_timer: 0,
            timers: BTreeMap::new(),
            processes: Vec::new(),
        };
        let core = Arc::new(Self { seed, state: Mutex::new(state) });
        core.add_process();
        core
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a panic of the executor itself; what it left is still worth a report.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Duration {
        self.state().now
    }

    pub(super) fn set_limit(&self, limit: Duration) {
        let mut state = self.state();
        state.limit = limit;
        if state.running {
            state.deadline = state.now.saturating_add(limit);
        }
    }

    pub(super) fn add_process(&self) -> usize {
        let mut state = self.state();
        let index = state.processes.len();
        let random = Stream::new(self.seed, 1 + index as u64);
        state.processes.push(ProcessState {
            random,
            skew: SignedDuration::ZERO,
            dead: false,
            polls: 0,
            after_poll: None,
        });
        index
    }

    pub(super) fn skew_wall(&self, process: usize, by: SignedDuration) {
        let mut state = self.state();
        let skew = &mut state.processes[process].skew;
        *skew = skew.saturating_add(by);
    }

    pub(super) fn note(&self, what: &str) {
        self.state().trace.add(what.as_bytes());
    }

    pub(super) fn trace_hash(&self) -> u64 {
        self.state().trace.value()
    }

    pub(super) fn steps(&self) -> u64 {
        self.state().steps
    }

    pub(super) fn waker(self: &Arc<Self>, id: u64) -> Waker {
        Arc::new(TaskWaker { core: Arc::clone(self), id }).into()
    }

    pub(super) fn is_running(&self) -> bool {
        self.state().running
    }

    /// Registers the main future, ready to be polled, until the answer is dropped.
    pub(super) fn enter(&self) -> Entered<'_> {
        let mut state = self.state();
        assert!(!state.running, "block_on inside block_on: await the inner future instead");
        state.running = true;
        state.deadline = state.now.saturating_add(state.limit);
        state.tasks.insert(MAIN, Slot { name: "main", process: 0, ready: true, waker: None, future: None });
        state.ready.push(MAIN);
        Entered(self)
    }

    /// Picks what goes on next. With `timers`, time moves when nothing is ready.
    pub(super) fn next(&self, timers: bool) -> Next {
        loop {
            let mut state = self.state();
            if !state.ready.is_empty() {
                return self.pick(&mut state);
            }
            if !timers {
                state.steps_of_instant = 0;
                return Next::Idle;
            }
            let Some(((due, _), _)) = state.timers.first_key_value() else {
                panic!("{}", state.report(self.seed, "deadlock: nothing is ready and no timer is set"));
            };
            let due = *due;
            assert!(
                due <= state.deadline,
                "{}",
                state.report(self.seed, &format!("not done within {:?} of virtual time", state.limit))
            );
            let woken = state.jump(due);
            drop(state);
            // All timers of one instant fire together: the seed, not their order, decides who goes first.
            woken.into_iter().for_each(Waker::wake);
        }
    }

    fn pick(&self, state: &mut State) -> Next {
        state.steps += 1;
        state.steps_of_instant += 1;
        assert!(
            state.steps_of_instant < BUSY,
            "{}",
            state.report(self.seed, &format!("busy loop: {BUSY} steps within one instant"))
        );
        let among = state.ready.len();
        let chosen = if among == 1 { 0 } else { state.choices.below(among) };
        let id = state.ready.swap_remove(chosen);
        let Some(slot) = state.tasks.get_mut(&id) else {
            unreachable!("a task that ends leaves the ready list");
        };
        slot.ready = false;
        let (name, process) = (slot.name, slot.process);
        let next = match (slot.future.take(), &slot.waker) {
            (Some(future), Some(waker)) => Next::Task(Taken { id, process, future, waker: waker.clone() }),
            _ => Next::Main,
        };
        state.trace.add(name.as_bytes());
        state.trace.add_u64(among as u64);
        if state.recent.len() == RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back(name);
        next
    }

    /// Polls a task once and keeps it if it is not done.
    pub(super) fn poll(&self, task: Taken) {
        let Taken { id, process, mut future, waker } = task;
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut state = self.state();
        match state.tasks.get_mut(&id) {
            Some(slot) if !done => {
                slot.future = Some(future);
                drop(state);
            }
            // Done, or its process was killed while it ran: it is dropped outside the lock.
            _ => {
                let slot = state.forget(id);
                drop(state);
                drop((slot, future));
            }
        }
        self.polled(process);
    }

    /// Counts a poll of one of the process's tasks, and does what is to be done after it: outside the lock, between two polls.
    fn polled(&self, process: usize) {
        let mut state = self.state();
        let of = &mut state.processes[process];
        of.polls += 1;
        let (polls, Some(mut after)) = (of.polls, of.after_poll.take()) else { return };
        drop(state);
        after(polls);
        let mut state = self.state();
        let of = &mut state.processes[process];
        if !of.dead && of.after_poll.is_none() {
            of.after_poll = Some(after);
        }
    }

    /// From now on `after` is done after each poll of the process's tasks, counted from here.
    fn after_poll(&self, process: usize, after: AfterPoll) {
        let mut state = self.state();
        let of = &mut state.processes[process];
        of.polls = 0;
        let before = of.after_poll.replace(after);
        drop(state);
        drop(before);
    }

    fn wake(&self, id: u64) {
        let mut state = self.state();
        if let Some(slot) = state.tasks.get_mut(&id)
            && !slot.ready
        {
            slot.ready = true;
            state.ready.push(id);
        }
    }

    fn spawn(self: &Arc<Self>, process: usize, name: &'static str, future: BoxFuture<'static, ()>) {
        let mut state = self.state();
        if state.closed || state.processes[process].dead {
            drop(state);
            drop(future);
            return;
        }
        let id = state.next_task;
        state.next_task += 1;
        let waker = Some(self.waker(id));
        state.tasks.insert(id, Slot { name, process, ready: true, waker, future: Some(future) });
        state.ready.push(id);
    }

    fn kill(&self, process: usize) {
        let mut state = self.state();
        state.processes[process].dead = true;
        let ids: Vec<_> = state
            .tasks
            .iter()
            .filter(|(id, slot)| **id != MAIN && slot.process == process)
            .map(|(id, _)| *id)
            .collect();
        let slots: Vec<_> = ids.into_iter().map(|id| state.forget(id)).collect();
        let after = state.processes[process].after_poll.take();
        drop(state);
        drop((slots, after));
    }

    /// Drops every task and timer; they hold the core, so without this nothing would ever be freed.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let tasks = std::mem::take(&mut state.tasks);
        state.ready.clear();
        let timers = std::mem::take(&mut state.timers);
        let after: Vec<_> = state.processes.iter_mut().map(|process| process.after_poll.take()).collect();
        drop(state);
        drop((tasks, timers, after));
    }
}

impl State {
    /// Moves time to `due` and takes the timers of that instant.
    fn jump(&mut self, due: Duration) -> Vec<Waker> {
        if due > self.now {
            self.now = due;
            self.steps_of_instant = 0;
            self.trace.add_u64(u64::try_from(due.as_nanos()).unwrap_or(u64::MAX));
        }
        let later = self.timers.split_off(&(due, u64::MAX));
        std::mem::replace(&mut self.timers, later).into_values().collect()
    }

    fn forget(&mut self, id: u64) -> Option<Slot> {
        let slot = self.tasks.remove(&id);
        if slot.as_ref().is_some_and(|slot| slot.ready) {
            self.ready.retain(|ready| *ready != id);
        }
        slot
    }

    fn report(&self, seed: u64, what: &str) -> String {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for slot in self.tasks.values() {
            *names.entry(slot.name).or_default() += 1;
        }
        let tasks: Vec<_> = names.iter().map(|(name, count)| format!("{name} x{count}")).collect();
        let recent: Vec<_> = self.recent.iter().copied().collect();
        format!(
            "{what} (seed {seed}, at {:?}, step {})\n  unfinished tasks: {}\n  latest steps: {}",
            self.now,
            self.steps,
            tasks.join(", "),
            recent.join(" → ")
        )
    }
}

/// Unregisters the main future, also when a panic passes.
pub(super) struct Entered<'a>(&'a Core);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.running = false;
        state.deadline = Duration::MAX;
        drop(state.forget(MAIN));
    }
}

struct TaskWaker {
    core: Arc<Core>,
    id: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.core.wake(self.id);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.core.wake(self.id);
    }
}

/// One process's view of the executor: all four ports of [`Env`].
#[derive(Clone)]
pub(super) struct Handle {
    core: Arc<Core>,
    process: usize,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimEnv").field("seed", &self.core.seed).field("process", &self.process).finish()
    }
}

impl Handle {
    pub(super) fn new(core: &Arc<Core>, process: usize) -> Self {
        Self { core: Arc::clone(core), process }
    }

    pub(super) fn into_env(self) -> Env {
        let this = Arc::new(self);
        Env { clock: this.clone(), wall: this.clone(), random: this.clone(), tasks: this }
    }

    pub(super) fn skew_wall(&self, by: SignedDuration) {
        self.core.skew_wall(self.process, by);
    }

    pub(super) fn kill(&self) {
        self.core.kill(self.process);
    }

    pub(super) fn after_poll(&self, after: AfterPoll) {
        self.core.after_poll(self.process, after);
    }
}

impl Clock for Handle {
    fn now(&self) -> Instant {
        Instant::from_start(self.core.now())
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { core: Arc::clone(&self.core), until: until.since_start(), timer: None })
    }
}

impl Wall for Handle {
    fn now(&self) -> Timestamp {
        let state = self.core.state();
        let epoch = Timestamp::constant(EPOCH, 0);
        let skew = state.processes[self.process].skew;
        // Past either end of the calendar the date stays where the calendar ends.
        let at = epoch.saturating_add(state.now).unwrap_or(Timestamp::MAX);
        at.saturating_add(skew).unwrap_or(at)
    }
}

impl Random for Handle {
    fn fill(&self, bytes: &mut [u8]) {
        self.core.state().processes[self.process].random.fill(bytes);
    }
}

impl Spawn for Handle {
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.core.spawn(self.process, name, task);
    }
}

/// A timer; dropping it takes it off the clock.
struct Sleep {
    core: Arc<Core>,
    until: Duration,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let core = Arc::clone(&self.core);
        let mut state = core.state();
        if state.now >= self.until {
            self.timer = None;
            return Poll::Ready(());
        }
        if !state.closed {
            let timer = self.timer.unwrap_or_else(|| {
                state.next_timer += 1;
                state.next_timer
            });
            self.timer = Some(timer);
            state.timers.insert((self.until, timer), context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            let waker = self.core.state().timers.remove(&(self.until, timer));
            drop(waker);
        }
    }
}
