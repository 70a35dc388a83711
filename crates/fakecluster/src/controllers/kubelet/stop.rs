//! The end of a pod: SIGTERM, grace, SIGKILL.

use std::time::Duration;

use pando_cluster::env::Instant;

use super::container::{Ended, Stage};
use super::work::PodWork;
use crate::FakeCluster;
use crate::controllers::programs::{KILLED, killed};

/// A pod that is being stopped.
pub(super) struct Stop {
    since: Instant,
    grace: Duration,
}

impl PodWork {
    /// Begins to stop the pod when its deletion was asked for; a later request may only shorten the grace.
    pub(super) fn look_at_deletion(&mut self, fake: &FakeCluster) {
        if self.pod.metadata.deletion_timestamp.is_none() {
            return;
        }
        let asked = self.pod.metadata.deletion_grace_period_seconds;
        let grace = asked.map_or_else(|| self.own_grace(), |it| Duration::from_secs(it.try_into().unwrap_or(0)));
        match &mut self.stop {
            Some(stop) => stop.grace = stop.grace.min(grace),
            None => self.begin_stop(fake, grace),
        }
    }

    /// SIGTERM to whatever runs; nothing more is started.
    pub(super) fn begin_stop(&mut self, fake: &FakeCluster, grace: Duration) {
        for container in self.containers.iter().filter(|it| it.is_running()) {
            self.tell(fake, Some(container), false, "Killing", format!("Stopping container {}", container.name()));
            let id = self.process(container.name());
            fake.machines().with(|state| state.term(&id));
        }
        self.stop = Some(Stop { since: fake.env().now(), grace });
    }

    pub(super) fn go_on_stopping(&mut self, fake: &FakeCluster) {
        let Some(stop) = &self.stop else { return };
        let due = stop.since.plus(stop.grace);
        if self.containers.iter().any(super::container::ContainerWork::is_running) {
            if fake.env().now() < due {
                return self.look_again(due);
            }
            self.kill_all(fake);
        }
        self.close_the_books();
    }

    fn kill_all(&mut self, fake: &FakeCluster) {
        let exit = killed(fake);
        let uid = self.uid.clone();
        fake.machines().touch(&uid, |state| {
            let alive: Vec<_> = state.alive(&uid).cloned().collect();
            for id in &alive {
                state.end(id, exit.clone());
            }
        });
        for container in &mut self.containers {
            container.see_exit(&exit);
        }
    }

    /// What never ran counts as killed; a container behind one that failed just never came to be.
    fn close_the_books(&mut self) {
        let spec = self.spec().clone();
        if self.containers.iter().any(|it| it.init && it.has_failed_for_good(&spec)) && self.verdict.is_none() {
            return;
        }
        for container in &mut self.containers {
            if let Stage::Ended(_) = container.stage {
                continue;
            }
            container.stage = Stage::Ended(Ended {
                code: KILLED,
                reason: "ContainerStatusUnknown",
                message: "The container could not be located when the pod was terminated".to_owned(),
                since: None,
                at: None,
            });
        }
    }

    /// SIGKILL for one container whose grace is over.
    pub(super) fn kill_when_due(&mut self, fake: &FakeCluster, index: usize, due: Instant) {
        if fake.env().now() < due {
            return self.look_again(due);
        }
        let id = self.process(self.containers[index].name());
        let exit = killed(fake);
        fake.machines().touch(&self.uid, |state| state.end(&id, exit));
    }

    /// The pod's object is gone: what runs of it is ended, for a while beside whoever has its name by now.
    ///
    /// Answers whether anything of it still runs.
    pub(super) fn orphaned(&mut self, fake: &FakeCluster) -> bool {
        let alive: Vec<_> = fake.machines().with(|state| state.alive(&self.uid).cloned().collect());
        if alive.is_empty() {
            return false;
        }
        let now = fake.env().now();
        let stop = self.stop.get_or_insert(Stop { since: now, grace: Duration::MAX });
        if stop.grace > fake.config().delays.orphan {
            *stop = Stop { since: now, grace: fake.config().delays.orphan };
            fake.machines().with(|state| alive.iter().for_each(|id| state.term(id)));
        }
        let due = stop.since.plus(stop.grace);
        self.next = Some(due);
        if now >= due {
            self.kill_all(fake);
            return false;
        }
        true
    }
}
