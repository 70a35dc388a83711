//! The executor: choices by seed, virtual time, crashes, reports.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::oneshot;
use jiff::SignedDuration;
use pando_cluster::env::{Env, yield_now};
use pando_fakecluster::sim::{Sim, drop_at, droppable};

type Log = Arc<Mutex<Vec<String>>>;

fn push(log: &Log, what: impl Into<String>) {
    log.lock().unwrap().push(what.into());
}

/// Three tasks of three steps each, and what order they ran in.
fn interleave(seed: u64) -> (Vec<String>, u64) {
    let sim = Sim::new(seed);
    let log = Log::default();
    for name in ["a", "b", "c"] {
        let log = Arc::clone(&log);
        sim.env().spawn_detached(name, async move {
            for step in 0..3 {
                push(&log, format!("{name}{step}"));
                yield_now().await;
            }
        });
    }
    sim.settle();
    let order = log.lock().unwrap().clone();
    (order, sim.trace_hash())
}

fn panic_text(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("this should panic");
    panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap()
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..50 {
        assert_eq!(interleave(seed), interleave(seed), "seed {seed}");
    }
}

#[test]
fn seeds_differ_in_what_runs_first_and_steps_of_one_task_keep_their_order() {
    let runs: BTreeSet<_> = (0..200).map(|seed| interleave(seed).0).collect();
    // 9! / (3!)^3 = 1680 orders exist; 200 draws that repeat more than a few would show a poor stream.
    assert!(runs.len() > 170, "{}", runs.len());
    assert_eq!(runs.iter().map(|run| &run[0]).collect::<BTreeSet<_>>().len(), 3);
    for run in &runs {
        for name in ["a", "b", "c"] {
            let steps: Vec<_> = run.iter().filter(|step| step.starts_with(name)).collect();
            assert!(steps.is_sorted(), "{run:?}");
        }
    }
}

#[test]
fn the_trace_hash_sees_notes_and_their_borders() {
    let hash = |notes: &[&str]| {
        let sim = Sim::new(1);
        for note in notes {
            sim.note(note);
        }
        sim.trace_hash()
    };
    let all = [hash(&[]), hash(&["ab", "c"]), hash(&["a", "bc"]), hash(&["abc"]), hash(&["c", "ab"])];
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    assert_eq!(hash(&["ab", "c"]), hash(&["ab", "c"]));
}

#[test]
fn time_jumps_from_timer_to_timer_in_order() {
    let sim = Sim::new(3);
    let (env, log) = (sim.env(), Log::default());
    for seconds in [5_u64, 1, 3] {
        let (env, log) = (env.clone(), Arc::clone(&log));
        sim.env().spawn_detached("sleeper", async move {
            env.sleep(Duration::from_secs(seconds)).await;
            push(&log, format!("{} at {:?}", seconds, env.now().since_start()));
        });
    }
    sim.block_on(env.sleep(Duration::from_secs(4)));
    assert_eq!(*log.lock().unwrap(), ["1 at 1s", "3 at 3s"]);
    sim.advance(Duration::from_secs(1));
    assert_eq!(*log.lock().unwrap(), ["1 at 1s", "3 at 3s", "5 at 5s"]);
    assert_eq!(sim.now().since_start(), Duration::from_secs(5));
}

#[test]
fn timers_of_one_instant_fire_in_an_order_of_the_seed() {
    let first = |seed| {
        let sim = Sim::new(seed);
        let log = Log::default();
        for name in ["a", "b"] {
            let (env, log) = (sim.env(), Arc::clone(&log));
            sim.env().spawn_detached(name, async move {
                env.sleep(Duration::from_secs(1)).await;
                push(&log, name);
            });
        }
        sim.advance(Duration::from_secs(1));
        log.lock().unwrap()[0].clone()
    };
    assert_eq!((0..20).map(first).collect::<BTreeSet<_>>().len(), 2);
}

#[test]
fn a_timeout_drops_what_it_waited_for() {
    let sim = Sim::new(1);
    let env = sim.env();
    let (kept, mut ended) = oneshot::channel::<()>();
    let outcome = sim.block_on(env.timeout(Duration::from_secs(2), async move {
        let _kept = kept;
        std::future::pending::<()>().await;
    }));
    assert!(outcome.is_err());
    assert_eq!(env.now().since_start(), Duration::from_secs(2));
    assert!(ended.try_recv().is_err(), "the sender is gone");
}

#[test]
fn a_dropped_timer_keeps_nobody_waiting() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.block_on(async {
        let _ = env.timeout(Duration::from_hours(1), yield_now()).await;
    });
    let text = panic_text(|| sim.block_on(std::future::pending()));
    assert!(text.contains("deadlock"), "the hour's timer is off the clock: {text}");
}

#[test]
fn dropping_the_guard_ends_the_task() {
    let sim = Sim::new(1);
    let (env, log) = (sim.env(), Log::default());
    let task = {
        let (env, log) = (env.clone(), Arc::clone(&log));
        sim.env().spawn("counter", async move {
            loop {
                push(&log, "tick");
                env.sleep(Duration::from_secs(1)).await;
            }
        })
    };
    sim.advance(Duration::from_millis(2500));
    drop(task);
    sim.advance(Duration::from_secs(10));
    assert_eq!(log.lock().unwrap().len(), 3);
    assert!(panic_text(|| sim.block_on(std::future::pending())).contains("unfinished tasks: main x1\n"));
}

#[test]
fn a_deadlock_names_seed_and_tasks() {
    let sim = Sim::new(4711);
    for _ in 0..2 {
        sim.env().spawn_detached("waits for nobody", std::future::pending());
    }
    let text = panic_text(|| sim.block_on(std::future::pending()));
    for part in ["deadlock", "seed 4711", "main x1", "waits for nobody x2"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn the_virtual_time_limit_ends_a_wait_that_goes_on_and_on() {
    let sim = Sim::new(1);
    sim.set_limit(Duration::from_mins(1));
    let env = sim.env();
    sim.block_on(env.sleep(Duration::from_mins(1)));
    // The limit is each call's own.
    sim.block_on(env.sleep(Duration::from_mins(1)));
    let text = panic_text(|| {
        sim.block_on(async {
            loop {
                env.sleep(Duration::from_secs(7)).await;
            }
        });
    });
    assert!(text.contains("not done within 60s"), "{text}");
}

#[test]
fn a_busy_loop_is_told_from_progress() {
    let sim = Sim::new(1);
    sim.env().spawn_detached("spins", async {
        loop {
            yield_now().await;
        }
    });
    let text = panic_text(|| sim.settle());
    assert!(text.contains("busy loop") && text.contains("spins"), "{text}");
}

#[test]
fn the_wall_shows_the_epoch_plus_virtual_time_plus_skew() {
    let sim = Sim::new(1);
    let env = sim.env();
    let other = sim.process();
    assert_eq!(env.wall.now().to_string(), "2026-01-01T00:00:00Z");
    sim.block_on(env.sleep(Duration::from_secs(90)));
    sim.skew_wall(SignedDuration::from_secs(-3600));
    assert_eq!(env.wall.now().to_string(), "2025-12-31T23:01:30Z");
    assert_eq!(other.env().wall.now().to_string(), "2026-01-01T00:01:30Z");
    assert_eq!(env.now().since_start(), Duration::from_secs(90));
}

#[test]
fn random_numbers_follow_from_the_seed_and_not_from_the_schedule() {
    let draw = |env: &Env| [env.random_u64(), env.random_u64()];
    let quiet = Sim::new(9);
    let busy = Sim::new(9);
    for _ in 0..5 {
        busy.env().spawn_detached("noise", yield_now());
    }
    busy.settle();
    assert_eq!(draw(&quiet.env()), draw(&busy.env()));
    assert_ne!(draw(&Sim::new(9).env()), draw(&Sim::new(10).env()));
    assert_ne!(draw(&Sim::new(9).env()), draw(&Sim::new(9).process().env()));
    let mut odd = [0; 13];
    quiet.env().random.fill(&mut odd);
    assert!(odd[8..].iter().any(|byte| *byte != 0));
}

#[test]
fn a_killed_process_does_nothing_more_and_lets_go_of_everything() {
    let sim = Sim::new(1);
    let log = Log::default();
    let (adapter, other) = (sim.process(), sim.process());
    for (process, name) in [(&adapter, "adapter"), (&other, "other")] {
        let (env, log) = (process.env(), Arc::clone(&log));
        process.env().spawn_detached(name, async move {
            loop {
                env.sleep(Duration::from_secs(1)).await;
                push(&log, name);
            }
        });
    }
    sim.advance(Duration::from_millis(1500));
    assert_eq!(Arc::strong_count(&log), 3);
    adapter.kill();
    assert_eq!(Arc::strong_count(&log), 2);
    adapter.env().spawn_detached("late", async { unreachable!("the process is dead") });
    log.lock().unwrap().clear();
    sim.advance(Duration::from_secs(1));
    assert_eq!(*log.lock().unwrap(), ["other"]);
}

#[test]
fn a_process_may_kill_itself() {
    let sim = Sim::new(1);
    let process = sim.process();
    let kept = Arc::new(());
    let (suicide, held) = (process.clone(), Arc::clone(&kept));
    process.env().spawn_detached("falls", async move {
        suicide.kill();
        yield_now().await;
        drop(held);
        unreachable!("it is dropped at the await");
    });
    sim.settle();
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[test]
fn the_simulation_frees_its_tasks() {
    let kept = Arc::new(());
    let sim = Sim::new(1);
    let (env, held) = (sim.env(), Arc::clone(&kept));
    sim.env().spawn_detached("sleeper", async move {
        env.sleep(Duration::from_secs(1)).await;
        drop(held);
    });
    sim.settle();
    drop(sim);
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[test]
fn a_future_is_dropped_at_exactly_the_await_asked_for() {
    let sim = Sim::new(1);
    let env = sim.env();
    let run = |n| {
        let (env, log) = (env.clone(), Log::default());
        let inner = Arc::clone(&log);
        let outcome = sim.block_on(drop_at(
            async move {
                for step in 1..=3 {
                    push(&inner, format!("{step}"));
                    env.sleep(Duration::from_secs(1)).await;
                }
                "done"
            },
            n,
        ));
        let steps = log.lock().unwrap().len();
        (outcome, steps)
    };
    assert_eq!(run(0), (None, 0));
    assert_eq!(run(1), (None, 1));
    assert_eq!(run(3), (None, 3));
    assert_eq!(run(4), (Some("done"), 3));
}

#[test]
fn a_dropped_future_is_gone_while_its_caller_goes_on() {
    let sim = Sim::new(1);
    let kept = Arc::new(());
    let held = Arc::clone(&kept);
    sim.block_on(async {
        let outcome = drop_at(
            async move {
                std::future::pending::<()>().await;
                drop(held);
            },
            1,
        )
        .await;
        assert_eq!(outcome, None);
        assert_eq!(Arc::strong_count(&kept), 1, "dropped before the caller's next step");
    });
}

#[test]
fn what_is_done_after_a_poll_is_done_at_the_same_point_of_every_run() {
    let run = |seed, killed_after| {
        let sim = Sim::new(seed);
        let (process, log) = (sim.process(), Log::default());
        let (dies, counted) = (process.clone(), Arc::clone(&log));
        process.after_poll(move |polls| {
            push(&counted, format!("poll {polls}"));
            if Some(polls) == killed_after {
                dies.kill();
            }
        });
        for name in ["a", "b"] {
            let log = Arc::clone(&log);
            process.env().spawn_detached(name, async move {
                for step in 0..3 {
                    push(&log, format!("{name}{step}"));
                    yield_now().await;
                }
            });
        }
        sim.env().spawn_detached("another process", async { yield_now().await });
        sim.settle();
        log.lock().unwrap().clone()
    };
    for seed in 0..20 {
        let whole = run(seed, None);
        assert_eq!(whole.iter().filter(|line| line.starts_with("poll")).count(), 8, "two tasks of four polls each");
        for killed in 1..=8 {
            let end = whole.iter().position(|line| *line == format!("poll {killed}")).unwrap();
            assert_eq!(run(seed, Some(killed)), whole[..=end], "the same until then, and nothing after");
        }
    }
}

#[test]
fn a_future_is_dropped_by_somebody_else_and_tells_it() {
    let sim = Sim::new(1);
    let kept = Arc::new(());
    let held = Arc::clone(&kept);
    let (waits, dropper) = droppable(async move {
        std::future::pending::<()>().await;
        drop(held);
    });
    let process = sim.process();
    let (sender, answer) = oneshot::channel();
    process.env().spawn_detached("caller", async move {
        let _ = sender.send(waits.await);
    });
    let instant = Arc::new(Mutex::new(None));
    let outcome = Arc::clone(&instant);
    process.after_poll(move |polls| {
        if polls == 1 {
            *outcome.lock().unwrap() = Some((dropper.drop_now(), Arc::strong_count(&kept)));
        }
    });
    assert_eq!(sim.block_on(answer), Ok(None));
    assert_eq!(*instant.lock().unwrap(), Some((true, 1)), "there and then");
}
