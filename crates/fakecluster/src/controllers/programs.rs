//! Plays the programs of containers.

use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, select};

use super::machines::{Exit, MountedFile, Process, ProcessId};
use crate::FakeCluster;
use crate::behaviour::{Behaviour, Dial, Host, Outcome, Target};
use crate::netpol::{End, PodName};

/// The exit code of a program that SIGTERM ended.
const TERMINATED: i32 = 143;
/// The exit code of a program that SIGKILL ended.
pub(super) const KILLED: i32 = 137;
/// How long a round of the isolation gate takes: its connections wait that long for an answer.
const GATE_ROUND: Duration = Duration::from_millis(250);

/// A program to be started.
pub(super) struct Start {
    pub(super) id: ProcessId,
    pub(super) pod: PodName,
    pub(super) node: String,
    pub(super) claims: Vec<String>,
    /// The volumes behind those claims.
    pub(super) volumes: Vec<String>,
    /// What it finds at its mounts.
    pub(super) files: Vec<MountedFile>,
    pub(super) behaviour: Behaviour,
}

/// Starts a program beside everything else.
pub(super) fn start(fake: &FakeCluster, start: Start) {
    let Start { id, pod, node, claims, volumes, files, behaviour } = start;
    let (term, asked) = oneshot::channel();
    let process = Process {
        pod,
        node,
        claims,
        files,
        since: fake.env().now(),
        // A server that only listens does so from its first instant, before it is scheduled once.
        ports: listening(&behaviour),
        term: Some(term),
        task: None,
        exit: None,
    };
    fake.machines().touch(&id.uid, |state| {
        state.logs.insert(id.clone(), super::logs::Log::default());
        for volume in &volumes {
            state.disks.open(volume, &id, process.since);
        }
        state.processes.insert(id.clone(), process);
    });
    let task = fake.env().spawn("program", live(fake.clone(), id.clone(), behaviour, asked));
    fake.machines().with(|state| {
        if let Some(process) = state.processes.get_mut(&id) {
            process.task = Some(task);
        }
    });
}

/// The end of a process that SIGKILL ended just now.
pub(super) fn killed(fake: &FakeCluster) -> Exit {
    Exit {
        code: KILLED,
        out_of_memory: false,
        message: String::new(),
        at: fake.env().wall.now(),
        when: fake.env().now(),
    }
}

async fn live(fake: FakeCluster, id: ProcessId, behaviour: Behaviour, asked: oneshot::Receiver<()>) {
    let works = Box::pin(act(&fake, &id, &behaviour));
    let Ending { code, out_of_memory, message } = match select(works, asked).await {
        Either::Left((end, _)) => end,
        // Whoever does not end at once goes on with its work meanwhile.
        Either::Right((_, works)) => match select(Box::pin(on_term(&fake, &behaviour)), works).await {
            Either::Left((code, _)) => Ending::of(code),
            Either::Right((end, _)) => end,
        },
    };
    let exit = Exit { code, out_of_memory, message, at: fake.env().wall.now(), when: fake.env().now() };
    fake.machines().touch(&id.uid, |state| state.end(&id, exit));
}

/// How a program came to its end by itself.
struct Ending {
    code: i32,
    out_of_memory: bool,
    /// What it left in its termination log.
    message: String,
}

impl Ending {
    const fn of(code: i32) -> Self {
        Self { code, out_of_memory: false, message: String::new() }
    }
}

/// What the program does by itself, until its end.
async fn act(fake: &FakeCluster, id: &ProcessId, behaviour: &Behaviour) -> Ending {
    let mut doing = behaviour;
    loop {
        match doing {
            Behaviour::Run | Behaviour::IgnoreTerm | Behaviour::TrapTerm { .. } => return std::future::pending().await,
            Behaviour::Listen { ports } => {
                fake.machines().touch(&id.uid, |state| {
                    if let Some(process) = state.processes.get_mut(id) {
                        process.ports.clone_from(ports);
                    }
                });
                return std::future::pending().await;
            }
            Behaviour::Exit { after, code } => {
                fake.env().sleep(*after).await;
                return Ending::of(*code);
            }
            Behaviour::Dial { targets, every, during, then } => {
                dial(fake, id, targets, *every, *during).await;
                doing = then;
            }
            Behaviour::DialUntilClosed { targets, in_a_row, limit } => {
                return dial_until_closed(fake, id, targets, *in_a_row, *limit).await;
            }
            Behaviour::Survey { targets, patience, pause } => survey(fake, id, targets, *patience, *pause).await,
            Behaviour::Print { lines, then } => {
                print(fake, id, lines).await;
                doing = then;
            }
            Behaviour::Write { pieces, then } => {
                for piece in pieces {
                    fake.machines().write(id, fake.env().wall.now(), piece);
                }
                doing = then;
            }
            Behaviour::Count { to, width, pause, then } => {
                count(fake, id, *to, *width, *pause).await;
                doing = then;
            }
            // The kernel kills the process; whether the node notices why is a matter of luck (3 of 5 did not).
            Behaviour::EatMemory => {
                return Ending { out_of_memory: fake.env().random_u64() % 5 < 2, ..Ending::of(KILLED) };
            }
            // The kubelet never gets to start such a one.
            Behaviour::StartError { .. } => return Ending::of(128),
        }
    }
}

/// What the program does when it is asked to end, and the code it exits with.
async fn on_term(fake: &FakeCluster, behaviour: &Behaviour) -> i32 {
    match last(behaviour) {
        Behaviour::IgnoreTerm => std::future::pending().await,
        Behaviour::TrapTerm { exit_after, code } => {
            fake.env().sleep(*exit_after).await;
            *code
        }
        _ => TERMINATED,
    }
}

fn last(behaviour: &Behaviour) -> &Behaviour {
    match behaviour {
        Behaviour::Print { then, .. }
        | Behaviour::Write { then, .. }
        | Behaviour::Count { then, .. }
        | Behaviour::Dial { then, .. } => last(then),
        other => other,
    }
}

fn listening(behaviour: &Behaviour) -> Vec<u16> {
    match behaviour {
        Behaviour::Listen { ports } => ports.clone(),
        _ => Vec::new(),
    }
}

async fn print(fake: &FakeCluster, id: &ProcessId, lines: &[String]) {
    for line in lines {
        fake.machines().write(id, fake.env().wall.now(), format!("{line}\n").as_bytes());
        fake.env().sleep(Duration::from_millis(1)).await;
    }
}

/// The lines of a batch are a microsecond apart.
async fn count(fake: &FakeCluster, id: &ProcessId, to: u64, width: usize, pause: Duration) {
    for number in 1..=to {
        let batch = (number - 1) % Behaviour::BATCH;
        let at = fake.env().wall.now() + Duration::from_micros(batch);
        fake.machines().write(id, at, format!("{number} {:z<width$}\n", "").as_bytes());
        if batch + 1 == Behaviour::BATCH {
            fake.env().sleep(pause.max(Duration::from_millis(1))).await;
        }
    }
}

async fn dial(fake: &FakeCluster, id: &ProcessId, targets: &[Target], every: Duration, during: Duration) {
    let end = fake.env().now().plus(during);
    loop {
        round(fake, id, targets);
        let next = fake.env().now().plus(every.max(Duration::from_millis(1)));
        if next > end {
            return;
        }
        fake.env().clock.sleep_until(next).await;
    }
}

/// Leaves the words of an isolation gate: how long it took, or what was open to the last.
async fn dial_until_closed(
    fake: &FakeCluster,
    id: &ProcessId,
    targets: &[Target],
    in_a_row: u32,
    limit: Duration,
) -> Ending {
    let begun = fake.env().now();
    let mut closed = 0;
    loop {
        let open = round(fake, id, targets);
        closed = if open.is_empty() { closed + 1 } else { 0 };
        let spent = fake.env().now().since(begun);
        if closed >= in_a_row {
            return Ending { message: format!("closed after {} ms", spent.as_millis()), ..Ending::of(0) };
        }
        if spent >= limit {
            let open: Vec<_> = open.iter().map(|target| format!(" {target} is open;")).collect();
            return Ending { message: format!("after {} s:{}", limit.as_secs(), open.concat()), ..Ending::of(1) };
        }
        fake.env().sleep(GATE_ROUND).await;
    }
}

/// Dials all targets of a round beside each other: it is over when the last of them has its answer, or waits no longer.
async fn survey(fake: &FakeCluster, id: &ProcessId, targets: &[Target], patience: Duration, pause: Duration) -> ! {
    for round in 1_u64.. {
        let outcomes: Vec<_> = targets.iter().map(|target| dial_once(fake, id, target)).collect();
        if outcomes.contains(&Some(Outcome::Dropped)) {
            fake.env().sleep(patience).await;
        }
        for (index, outcome) in outcomes.into_iter().enumerate() {
            let line = format!("{round} {index} {}\n", outcome.map_or("noname", word));
            fake.machines().write(id, fake.env().wall.now(), line.as_bytes());
        }
        fake.machines().write(id, fake.env().wall.now(), format!("{round} .\n").as_bytes());
        fake.env().sleep(pause.max(Duration::from_millis(1))).await;
    }
    unreachable!("there are more rounds than time")
}

/// Dials every target once, in order, and logs what came of it; answers those that were open.
fn round(fake: &FakeCluster, id: &ProcessId, targets: &[Target]) -> Vec<String> {
    let mut open = Vec::new();
    for target in targets {
        let outcome = dial_once(fake, id, target).unwrap_or(Outcome::NoRoute);
        let to = format!("{} {}", host_text(&target.host), target.port);
        fake.machines().write(id, fake.env().wall.now(), format!("dial {to} {}\n", word(outcome)).as_bytes());
        if outcome == Outcome::Open {
            open.push(to);
        }
    }
    open
}

/// Dials a target and notes that it did; `None` where its name has no address, or who dials is gone.
fn dial_once(fake: &FakeCluster, id: &ProcessId, target: &Target) -> Option<Outcome> {
    let from = fake.machines().with(|state| state.processes.get(id).map(|process| process.pod.clone()))?;
    let end = match &target.host {
        Host::Address(ip) => Some(End::Address(*ip)),
        Host::Pod(pod) => Some(End::Pod(pod.clone())),
        Host::Name(name) => fake.resolve(name).first().copied().map(End::Address),
    };
    let outcome = end.map(|end| fake.dial_from(&id.uid, &end, target.port));
    let dial = Dial {
        at: fake.env().now(),
        from,
        uid: id.uid.clone(),
        container: id.container.clone(),
        target: target.clone(),
        outcome: outcome.unwrap_or(Outcome::NoRoute),
    };
    fake.machines().with(|state| state.dials.push(dial));
    outcome
}

fn host_text(host: &Host) -> String {
    match host {
        Host::Address(ip) => ip.to_string(),
        Host::Name(name) => name.clone(),
        Host::Pod(pod) => pod.to_string(),
    }
}

const fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Open => "open",
        Outcome::Refused => "refused",
        Outcome::Dropped => "dropped",
        Outcome::NoRoute => "noroute",
    }
}
