//! On a cluster: real connections and signals, to an API server in memory.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{TOKEN, World, ended, example};
use k8s_openapi::api::core::v1::{Container, Pod};
use pando_fakecluster::behaviour::{Behaviour, Daemons, Programs};
use pando_fakecluster::{FakeConfig, Image};
use serde_json::json;

const PLAN: &str =
    r#"{"bundle_id": "shop", "workloads": [{"name": "web", "image": "nginx:1.22", "env": {"KEY": "hunter2"}}]}"#;

fn world(config: FakeConfig) -> World {
    let world = World::with_cluster(config);
    world.write("plan.json", PLAN);
    world
}

#[test]
fn a_bundle_is_made_seen_stopped_and_taken_away() {
    let world = world(FakeConfig::default());
    let applied = world.run(&["apply", "plan.json"]);
    applied.says(0, &["web        created", "created   Namespace", "created   Pod"]);
    world.run(&["apply", "plan.json"]).says(0, &["unchanged", "Nothing was written"]);
    world.run(&["observe", "shop"]).says(0, &["web        running"]);
    world.run(&["stop", "shop"]).says(0, &["Bundle \"shop\" is stopped."]);
    let observed = world.run(&["observe", "shop", "-o", "json"]).json();
    assert_eq!((&observed["exists"], &observed["workloads"][0]["running"]), (&json!(true), &json!(false)));
    world.run(&["apply", "plan.json"]).says(0, &["started again"]);
    let destroyed = world.run(&["destroy", "shop", "-o", "json"]).json();
    assert_eq!(destroyed, json!({"bundle_id": "shop", "state": "destroyed"}));
    world.run(&["observe", "shop"]).says(0, &["There is nothing of bundle \"shop\"."]);
    world.run(&["destroy", "shop", "--keep-volumes=false", "--yes"]).says(0, &[]);
}

#[test]
fn a_doctor_tells_each_part_and_what_to_do_about_it() {
    let world = World::with_cluster(FakeConfig::default());
    world
        .run(&["doctor"])
        .says(0, &["API server", "isolation        ok", "apps run on node-1, node-2", "set node_cidr"]);
    let sick = world.run(&["doctor", "--set", "service_cidr=10.97.0.0/16", "-o", "json"]);
    assert_eq!(sick.code, 5, "{sick:?}");
    let checks = sick.json()["checks"].clone();
    let service = checks.as_array().and_then(|all| all.iter().find(|check| check["name"] == "service ranges"));
    let service = service.unwrap_or_else(|| panic!("{checks}"));
    assert_eq!(service["state"], "failed");
    assert!(service["fact"].as_str().is_some_and(|fact| fact.contains("10.96.0.1")), "{service}");
    assert!(service["remedy"].as_str().is_some_and(|remedy| remedy.contains("service_cidr")), "{service}");
}

#[test]
fn the_example_that_needs_no_other_image_runs() {
    let plan = example("hello.json").to_string_lossy().into_owned();
    World::with_cluster(FakeConfig::default()).run(&["apply", &plan]).says(0, &["web        created"]);
}

/// The app's program cannot be started.
#[derive(Debug)]
struct NoProgram;

impl Programs for NoProgram {
    fn behaviour(&self, pod: &Pod, container: &Container) -> Behaviour {
        match container.name.as_str() {
            "app" => Behaviour::StartError { message: "exec: \"hunter2\": no such file or directory".to_owned() },
            "gate" => Behaviour::DialUntilClosed { targets: Vec::new(), in_a_row: 1, limit: Duration::from_secs(5) },
            _ => Daemons.behaviour(pod, container),
        }
    }
}

/// The app says two things and then goes on as it is told.
#[derive(Debug)]
struct Says(Behaviour);

impl Programs for Says {
    fn behaviour(&self, pod: &Pod, container: &Container) -> Behaviour {
        match container.name.as_str() {
            "app" => Behaviour::Write {
                pieces: vec![b"hello\n".to_vec(), b"\x1b[31mred\n".to_vec()],
                then: Box::new(self.0.clone()),
            },
            "gate" => Behaviour::DialUntilClosed { targets: Vec::new(), in_a_row: 1, limit: Duration::from_secs(5) },
            _ => Daemons.behaviour(pod, container),
        }
    }
}

fn says(then: Behaviour) -> World {
    let world = world(FakeConfig { programs: Arc::new(Says(then)), ..FakeConfig::default() });
    world.run(&["apply", "plan.json"]).says(0, &["created"]);
    world
}

#[test]
fn a_log_is_written_as_it_is() {
    let world = says(Behaviour::Exit { after: Duration::ZERO, code: 1 });
    for words in [&["logs", "shop", "web"][..], &["logs", "shop", "web", "-f", "-o", "json"]] {
        let run = world.run(words);
        assert_eq!((run.code, &*run.out, &*run.err), (0, "hello\n\x1b[31mred\n", ""), "{words:?}");
    }
    assert_eq!(world.run(&["logs", "shop", "web", "--tail", "1"]).out, "\x1b[31mred\n");
    assert_eq!(world.run(&["logs", "shop", "web", "--since", "2999-01-01T00:00:00Z"]).out, "");
    let stamped = world.run(&["logs", "shop", "web", "--timestamps", "--since", "1h"]).out;
    let (time, rest) = stamped.split_once(' ').expect("a time and a line");
    assert!(time.len() == 30 && time.ends_with('Z') && rest.starts_with("hello\n2"), "{stamped}");
}

#[test]
fn what_has_no_log_is_told_by_the_exit_code() {
    let world = says(Behaviour::Run);
    world.run(&["logs", "shop", "db"]).says(3, &["there is no workload \"db\" in bundle \"shop\"", "NOT_FOUND"]);
    world.run(&["logs", "other", "web"]).says(3, &["NOT_FOUND"]);
    world.run(&["logs", "shop", "Web"]).says(2, &["workload", "VALID_INVALID"]);
    world.run(&["logs", "shop", "web", "-f", "--timeout", "1s"]).says(5, &["hello\n", "did not end within 1s"]);
}

/// Follows the log until its first line was read.
fn following(world: &World) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = world.command(&["logs", "shop", "web", "-f"]).spawn().expect("the program starts");
    let mut out = BufReader::new(child.stdout.take().expect("its output is a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("it is text");
    assert_eq!(line, "hello\n");
    (child, out)
}

#[test]
fn a_followed_log_ends_with_130_when_it_is_interrupted() {
    let world = says(Behaviour::Run);
    let (child, out) = following(&world);
    signal(&child, "INT");
    ended(child.wait_with_output().expect("it ends")).says(130, &["interrupted: "]);
    drop(out);
}

#[test]
fn a_log_that_nobody_reads_any_more_ends_quietly() {
    let lines = (0..100_000).map(|number| number.to_string()).collect();
    let world = says(Behaviour::Print { lines, then: Box::new(Behaviour::Run) });
    let (child, out) = following(&world);
    drop(out);
    let run = ended(child.wait_with_output().expect("it ends"));
    assert_eq!((run.code, &*run.err), (0, ""));
}

#[test]
fn a_failed_start_is_a_failed_change_with_its_cause() {
    let world = world(FakeConfig { programs: Arc::new(NoProgram), ..FakeConfig::default() });
    let run = world.run(&["apply", "plan.json"]);
    run.says(
        6,
        &["error: workload \"web\"", "could not be started", "on node node-", "remedy: ", "code: ADAPTER_FAILED"],
    );
    let failure = world.run(&["apply", "plan.json", "-o", "json"]).failure();
    assert_eq!(
        (&failure["code"], &failure["details"]["workloads"][0]["outcome"]),
        (&json!("ADAPTER_FAILED"), &json!("failed"))
    );
    assert!(!run.err.contains("hunter2") && !failure.to_string().contains("hunter2"), "{run:?} {failure}");
}

#[test]
fn progress_is_told_as_lines_and_verbosely_with_the_request_id() {
    let run = world(FakeConfig::default()).run(&["apply", "plan.json", "-v", "--request-id", "deploy-7"]);
    run.says(0, &["preparing the namespace\n", "web: starting\n", "request_id=\"deploy-7\""]);
    assert!(!run.err.contains("hunter2") && !run.err.contains('\u{1b}'), "{}", run.err);
}

#[test]
fn not_even_the_most_talkative_log_shows_a_secret() {
    let run = world(FakeConfig::default()).with("RUST_LOG", "trace").run(&["apply", "plan.json", "-vvv"]);
    run.says(0, &["TRACE", "web        created"]);
    // As it is, and as a Secret carries it.
    for secret in ["hunter2", "aHVudGVyMg", TOKEN] {
        assert!(!run.err.contains(secret), "{secret}: {}", run.err);
    }
}

/// Starts an apply whose start takes an hour, and reads its progress until the pod is on its way.
fn waiting_apply(world: &World) -> Child {
    let mut child = world.command(&["apply", "plan.json", "--progress", "plain"]).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("its errors are a pipe"));
    let mut line = String::new();
    while !line.starts_with("web: ") || line.starts_with("web: starting") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).expect("it is text"), 0, "it ended before it began");
    }
    child.stderr = Some(lines.into_inner());
    child
}

fn signal(child: &Child, name: &str) {
    let kill = std::process::Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(kill.is_ok_and(|status| status.success()));
}

fn slow() -> FakeConfig {
    let images = [("nginx:1.22".to_owned(), Image::Pulled { after: Duration::from_hours(1) })].into();
    FakeConfig { images, ..FakeConfig::default() }
}

#[test]
fn an_interrupted_apply_takes_back_what_it_began_and_ends_with_130() {
    for name in ["INT", "TERM"] {
        let world = world(slow());
        let child = waiting_apply(&world);
        signal(&child, name);
        let run = ended(child.wait_with_output().expect("it ends"));
        run.says(130, &["interrupted: ", "pando-shop", "taken back: Pod web-1", "apply again"]);
        let observed = world.run(&["observe", "shop", "-o", "json"]).json();
        let web = &observed["workloads"][0];
        assert_eq!((&web["present"], &web["starting"], &web["running"]), (&json!(true), &json!(false), &json!(false)));
    }
}

/// The gate does not hear that it is to end.
#[derive(Debug)]
struct DeafGate;

impl Programs for DeafGate {
    fn behaviour(&self, pod: &Pod, container: &Container) -> Behaviour {
        match container.name.as_str() {
            "gate" => Behaviour::IgnoreTerm,
            _ => Daemons.behaviour(pod, container),
        }
    }
}

#[test]
fn a_second_interruption_ends_at_once() {
    let world = world(FakeConfig { programs: Arc::new(DeafGate), ..FakeConfig::default() });
    let plan = PLAN.replace(r#""image""#, r#""settings": {"stop_grace_seconds": 3600}, "image""#);
    world.write("plan.json", &plan);
    let mut child = waiting_apply(&world);
    signal(&child, "INT");
    let mut lines = BufReader::new(child.stderr.take().expect("its errors are a pipe"));
    let mut line = String::new();
    while !line.starts_with("taking back") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).expect("it is text"), 0, "it ended before it took anything back");
    }
    child.stderr = Some(lines.into_inner());
    signal(&child, "INT");
    let run = ended(child.wait_with_output().expect("it ends"));
    run.says(130, &["interrupted: not all that was begun was taken back", "pando-k8s stop shop"]);
}

#[test]
fn a_dry_run_tells_what_an_apply_then_does() {
    let world = world(FakeConfig::default());
    let dry_run = |words: &[&str]| world.run(&[&["apply", "plan.json", "--dry-run"], words].concat());
    let told = dry_run(&[]);
    told.says(0, &["web        created", "\n+   Namespace pando-shop\n", "\n+   Pod web-1\n", "Nothing was written."]);
    assert!(!told.out.contains('\u{1b}'), "no colours where nobody sees them: {}", told.out);
    world.run(&["observe", "shop"]).says(0, &["There is nothing of bundle"]);
    world.run(&["apply", "plan.json"]).says(0, &[]);
    dry_run(&[]).says(0, &["web        unchanged", "Nothing would change"]);
    assert_eq!(dry_run(&["-o", "json"]).json()["satisfied"], json!(true));
    world.write("plan.json", &PLAN.replace("1.22", "1.23").replace("hunter2", "hunter3"));
    let changed = dry_run(&[]);
    changed.says(0, &["web        replaced", "web: image: \"nginx:1.22\" -> \"nginx:1.23\"", "data.KEY: [redacted]"]);
    for run in [changed, dry_run(&["-o", "json", "-vvv"]), dry_run(&["-o", "yaml"])] {
        for secret in ["hunter", "aHVudGVy"] {
            assert!(!run.out.contains(secret) && !run.err.contains(secret), "{run:?}");
        }
    }
}

#[test]
fn a_call_takes_no_longer_than_it_may() {
    let run = world(slow()).run(&["apply", "plan.json", "--timeout", "1s"]);
    run.says(6, &["error: workload \"web\"", "still preparing the container"]);
}
