//! What becomes of a pod on its node. The figures are those of Kubernetes 1.34.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::bed::{APP, Bed, pod, script, secs};
use pando_cluster::Kind;
use pando_fakecluster::behaviour::{Behaviour, Target};
use pando_fakecluster::{Delays, FakeConfig, Image};
use serde_json::{Value, json};

fn exit(after: u64, code: i32) -> Behaviour {
    Behaviour::Exit { after: secs(after), code }
}

#[test]
fn a_pod_runs_and_says_where_and_since_when() {
    let bed = Bed::new(FakeConfig::default());
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(1));
    let status = bed.pod("web").status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let ip = status.pod_ip.clone().unwrap();
    assert!(ip.starts_with("10.244."), "{ip}");
    assert_eq!(status.pod_ips.unwrap()[0].ip, ip);
    assert!(status.host_ip.unwrap().starts_with("172.18.0."));
    assert_eq!(bed.state("web", "app"), "running");
    let container = bed.container("web", "app");
    assert_eq!((container.ready, container.started, container.restart_count), (true, Some(true), 0));
    assert!(container.container_id.unwrap().starts_with("containerd://"));
    assert!(container.image_id.starts_with("registry.test/app@sha256:"), "{}", container.image_id);
    for kind in ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"] {
        assert_eq!(bed.condition("web", kind), "True", "{kind}");
    }
    assert_eq!(bed.running(), ["web/app"]);
    for reason in ["Scheduled", "Pulling", "Pulled", "Created", "Started"] {
        assert_eq!(bed.told("web", reason).len(), 1, "{reason}");
    }
}

#[test]
fn a_pod_is_seen_pending_before_it_is_seen_running() {
    let bed =
        Bed::new(FakeConfig { delays: Delays { sandbox: secs(2), ..Delays::default() }, ..FakeConfig::default() });
    bed.run(pod("web", json!({})));
    assert_eq!((bed.phase("web").as_str(), bed.state("web", "app").as_str()), ("Pending", "waiting ContainerCreating"));
    assert_eq!(bed.condition("web", "PodReadyToStartContainers"), "False");
    assert_eq!(bed.ip("web"), "");
    bed.sim.advance(secs(2));
    assert_eq!((bed.phase("web").as_str(), bed.state("web", "app").as_str()), ("Running", "running"));
}

#[test]
fn a_program_that_ends_shows_before_its_pod_has_ended() {
    for (code, reason, phase) in [(0, "Completed", "Succeeded"), (3, "Error", "Failed")] {
        let bed = Bed::new(script([("app", exit(5, code))]));
        bed.run(pod("job", json!({})));
        bed.sim.advance(secs(5));
        assert_eq!(bed.state("job", "app"), format!("terminated {reason} {code}"));
        assert_eq!(bed.phase("job"), "Running", "the container's end shows first");
        bed.sim.advance(secs(1));
        assert_eq!(bed.phase("job"), phase);
        let ended = bed.container("job", "app").state.unwrap().terminated.unwrap();
        let took = ended.finished_at.unwrap().0.duration_since(ended.started_at.unwrap().0);
        assert_eq!(took.as_secs(), 5);
        assert_eq!(bed.condition("job", "PodReadyToStartContainers"), "False");
        assert_eq!(bed.condition("job", "Ready"), if code == 0 { "False PodCompleted" } else { "False PodFailed" });
        bed.sim.advance(secs(3600));
        assert_eq!(bed.container("job", "app").restart_count, 0, "failed stays failed");
    }
}

#[test]
fn a_program_that_cannot_be_started_fails_its_pod_with_128() {
    let message = "exec: \"nope\": executable file not found in $PATH".to_owned();
    let bed = Bed::new(script([("app", Behaviour::StartError { message: message.clone() })]));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(2));
    assert_eq!((bed.phase("web").as_str(), bed.state("web", "app").as_str()), ("Failed", "terminated StartError 128"));
    assert_eq!(bed.container("web", "app").state.unwrap().terminated.unwrap().message, Some(message.clone()));
    assert_eq!(bed.told("web", "Failed"), [format!("Error: {message}")]);
}

#[test]
fn init_containers_run_in_order_and_before_the_app() {
    let bed = Bed::new(script([("one", exit(2, 0)), ("two", exit(3, 0))]));
    let init = json!([{"name": "one", "image": "i"}, {"name": "two", "image": "i"}]);
    bed.run(pod("web", json!({"spec": {"initContainers": init}})));
    bed.sim.advance(secs(1));
    assert_eq!(bed.running(), ["web/one"]);
    assert_eq!(bed.state("web", "two"), "waiting PodInitializing");
    assert_eq!(bed.state("web", "app"), "waiting PodInitializing");
    assert_eq!(bed.condition("web", "Initialized"), "False ContainersNotInitialized");
    assert!(!bed.ip("web").is_empty(), "init containers have a network");
    bed.sim.advance(secs(2));
    assert_eq!((bed.running(), bed.phase("web").as_str()), (vec!["web/two".to_owned()], "Pending"));
    bed.sim.advance(secs(3));
    assert_eq!((bed.running(), bed.phase("web").as_str()), (vec!["web/app".to_owned()], "Running"));
    assert_eq!(bed.condition("web", "Initialized"), "True");
}

#[test]
fn a_failed_init_container_fails_the_pod_and_the_app_never_runs() {
    let bed = Bed::new(script([("gate", exit(2, 1))]));
    bed.run(pod("web", json!({"spec": {"initContainers": [{"name": "gate", "image": "i"}]}})));
    bed.sim.advance(secs(2));
    assert_eq!((bed.state("web", "gate").as_str(), bed.phase("web").as_str()), ("terminated Error 1", "Pending"));
    bed.sim.advance(secs(10));
    assert_eq!(bed.phase("web"), "Failed");
    assert_eq!(bed.state("web", "app"), "waiting PodInitializing");
    assert_eq!(bed.told("web", "Started").len(), 1, "the gate and nobody else");
}

#[test]
fn a_pull_that_fails_alternates_for_ever_and_starts_once_the_registry_heals() {
    let image = "registry.test/app:1";
    let missing = Image::missing(image);
    let bed = Bed::new(FakeConfig { images: [(image.to_owned(), missing)].into(), ..FakeConfig::default() });
    bed.run(pod("web", json!({})));
    let mut seen = Vec::new();
    for _ in 0..600 {
        bed.sim.advance(secs(1));
        let state = bed.state("web", "app");
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        assert_eq!(bed.phase("web"), "Pending");
    }
    let pair = ["waiting ErrImagePull", "waiting ImagePullBackOff", "waiting ContainerCreating"];
    assert_eq!(seen[..5], [pair[0], pair[1], pair[2], pair[0], pair[1]]);
    let waiting = bed.container("web", "app").state.unwrap().waiting.unwrap();
    assert!(waiting.message.unwrap().contains("registry.test/app:1: not found"));
    assert_eq!(bed.told("web", "BackOff"), [format!("Back-off pulling image {image:?}")]);
    bed.fake.set_image(image, Image::Pulled { after: secs(3) });
    bed.wait(secs(400), |bed| bed.phase("web") == "Running");
}

#[test]
fn what_no_pull_can_mend_is_told_and_stays() {
    let rows = [
        ("Never", Image::Pulled { after: secs(0) }, "waiting ErrImageNeverPull"),
        ("IfNotPresent", Image::InvalidName, "waiting InvalidImageName"),
    ];
    for (policy, image, expected) in rows {
        let bed = Bed::new(FakeConfig { other_images: image, ..FakeConfig::default() });
        bed.run(pod("web", json!({"spec": {"containers": [{"imagePullPolicy": policy}]}})));
        bed.sim.advance(secs(3600));
        assert_eq!((bed.state("web", "app").as_str(), bed.phase("web").as_str()), (expected, "Pending"));
    }
}

#[test]
fn an_image_is_pulled_once_a_node() {
    let bed = Bed::new(FakeConfig { other_images: Image::Pulled { after: secs(7) }, ..FakeConfig::default() });
    let here = json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}});
    bed.run(pod("first", here.clone()));
    assert_eq!(bed.wait(secs(60), |bed| bed.phase("first") == "Running"), secs(7));
    bed.run(pod("second", here));
    assert_eq!(bed.wait(secs(60), |bed| bed.phase("second") == "Running"), secs(0));
}

#[test]
fn a_missing_secret_holds_the_container_until_it_is_there() {
    let bed = Bed::new(FakeConfig::default());
    let from = json!({"spec": {"containers": [{"envFrom": [{"secretRef": {"name": "env"}}]}]}});
    bed.run(pod("web", from));
    bed.sim.advance(secs(30));
    assert_eq!(bed.state("web", "app"), "waiting CreateContainerConfigError");
    let waiting = bed.container("web", "app").state.unwrap().waiting.unwrap();
    assert_eq!(waiting.message.unwrap(), "secret \"env\" not found");
    bed.create(Kind::Secret, json!({"metadata": {"name": "env", "namespace": APP}, "stringData": {"A": "b"}}));
    assert_eq!(bed.phase("web"), "Running", "it is seen at once");
}

#[test]
fn a_missing_secret_volume_is_told_by_an_event_alone() {
    let bed = Bed::new(FakeConfig::default());
    let volumes = json!([{"name": "files", "secret": {"secretName": "tls"}}]);
    bed.run(pod("web", json!({"spec": {"volumes": volumes}})));
    bed.sim.advance(secs(30));
    assert_eq!(bed.state("web", "app"), "waiting ContainerCreating");
    assert_eq!(
        bed.told("web", "FailedMount"),
        ["MountVolume.SetUp failed for volume \"files\" : secret \"tls\" not found"]
    );
}

#[test]
fn deletion_waits_for_the_program_and_no_longer_than_its_grace() {
    let rows = [
        (Behaviour::Run, 0),
        (Behaviour::TrapTerm { exit_after: secs(2), code: 0 }, 2),
        (Behaviour::IgnoreTerm, 5),
        (Behaviour::TrapTerm { exit_after: secs(60), code: 0 }, 5),
    ];
    for (behaviour, expected) in rows {
        let bed = Bed::new(script([("app", behaviour.clone())]));
        bed.run(pod("web", json!({"spec": {"terminationGracePeriodSeconds": 5}})));
        bed.sim.advance(secs(1));
        bed.delete_pod("web", None);
        assert!(bed.pod("web").metadata.deletion_timestamp.is_some());
        let took = bed.wait(secs(60), |bed| bed.running().is_empty());
        assert_eq!(took, secs(expected), "{behaviour:?}");
        // With grace, the object outlives the program.
        assert!(!bed.is_gone("web"));
        bed.wait(secs(5), |bed| bed.is_gone("web"));
    }
}

#[test]
fn a_second_deletion_shortens_the_grace_and_never_lengthens_it() {
    for (second, expected) in [(3, 3), (60, 10)] {
        let bed = Bed::new(script([("app", Behaviour::IgnoreTerm)]));
        bed.run(pod("web", json!({"spec": {"terminationGracePeriodSeconds": 10}})));
        bed.sim.advance(secs(1));
        bed.delete_pod("web", None);
        bed.sim.advance(secs(1));
        bed.delete_pod("web", Some(second));
        let took = bed.wait(secs(60), |bed| bed.running().is_empty());
        assert_eq!(took, secs(expected - 1), "second deletion with {second} s");
    }
}

#[test]
fn an_unscheduled_or_ended_pod_goes_at_once() {
    let bed = Bed::new(script([("app", exit(1, 0))]));
    bed.run(pod("gated", json!({"spec": {"schedulingGates": [{"name": "pando.dev/start"}]}})));
    bed.delete_pod("gated", None);
    assert!(bed.is_gone("gated"));
    bed.run(pod("ended", json!({})));
    bed.wait(secs(10), |bed| bed.phase("ended") == "Succeeded");
    bed.delete_pod("ended", None);
    assert!(bed.is_gone("ended"));
}

#[test]
fn a_finalizer_holds_the_object_of_a_pod_whose_programs_have_ended() {
    let bed = Bed::new(FakeConfig::default());
    bed.run(pod("web", json!({"metadata": {"finalizers": ["test.dev/hold"]}})));
    bed.sim.advance(secs(1));
    bed.delete_pod("web", None);
    bed.sim.advance(secs(60));
    assert_eq!((bed.running(), bed.is_gone("web")), (vec![], false));
    bed.patch(Kind::Pod, "web", json!({"metadata": {"finalizers": null}}));
    assert!(bed.is_gone("web"));
}

#[test]
fn a_deadline_ends_the_pod_with_its_reason() {
    let bed = Bed::new(script([("app", Behaviour::IgnoreTerm)]));
    bed.run(pod("job", json!({"spec": {"activeDeadlineSeconds": 6, "terminationGracePeriodSeconds": 2}})));
    bed.sim.advance(secs(7));
    assert_eq!(bed.phase("job"), "Running", "no end while a program runs");
    bed.sim.advance(secs(2));
    let status = bed.pod("job").status.unwrap();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("DeadlineExceeded")));
    assert_eq!(bed.state("job", "app"), "terminated Error 137");
}

#[test]
fn a_deadline_during_a_pull_leaves_a_container_that_never_ran_at_137() {
    let bed = Bed::new(FakeConfig { other_images: Image::missing("app"), ..FakeConfig::default() });
    bed.run(pod("job", json!({"spec": {"activeDeadlineSeconds": 6}})));
    bed.sim.advance(secs(8));
    assert_eq!(bed.pod("job").status.unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(bed.state("job", "app"), "terminated ContainerStatusUnknown 137");
    assert_eq!(bed.container("job", "app").state.unwrap().terminated.unwrap().started_at, None);
}

#[test]
fn readiness_follows_the_port_and_takes_its_thresholds() {
    let listens_later = Behaviour::Print {
        lines: vec!["warming up".to_owned(); 15_000],
        then: Box::new(Behaviour::Listen { ports: vec![8080] }),
    };
    let bed = Bed::new(script([("app", listens_later)]));
    let probe = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 10, "successThreshold": 2});
    bed.run(pod("web", json!({"spec": {"containers": [{"readinessProbe": probe}]}})));
    bed.sim.advance(secs(1));
    assert_eq!(
        (bed.phase("web").as_str(), bed.condition("web", "Ready").as_str()),
        ("Running", "False ContainersNotReady")
    );
    let refused = format!("Readiness probe failed: dial tcp {}:8080: connect: connection refused", bed.ip("web"));
    assert_eq!(bed.told("web", "Unhealthy"), [refused]);
    // The program listens after 15 s; the rounds at 20 s and 30 s pass.
    let took = bed.wait(secs(60), |bed| bed.condition("web", "Ready") == "True");
    assert_eq!(took, secs(29));
}

#[test]
fn a_failed_liveness_probe_ends_a_container_that_is_not_restarted() {
    let bed = Bed::new(script([("app", Behaviour::Run)]));
    let probe = json!({"httpGet": {"port": 80, "path": "/health"}, "periodSeconds": 1, "failureThreshold": 3});
    bed.run(pod("web", json!({"spec": {"containers": [{"livenessProbe": probe}]}})));
    bed.sim.advance(secs(4));
    assert_eq!((bed.phase("web").as_str(), bed.state("web", "app").as_str()), ("Failed", "terminated Error 143"));
}

#[test]
fn a_startup_probe_comes_before_readiness() {
    let bed = Bed::new(script([("app", Behaviour::Run)]));
    let startup = json!({"tcpSocket": {"port": 80}, "periodSeconds": 1, "failureThreshold": 100});
    bed.run(pod("web", json!({"spec": {"containers": [{"startupProbe": startup}]}})));
    bed.sim.advance(secs(5));
    let container = bed.container("web", "app");
    assert_eq!((container.started, container.ready), (Some(false), false));
}

#[test]
fn a_container_that_may_restart_does_so_with_growing_pauses() {
    let bed = Bed::new(script([("app", exit(1, 1))]));
    bed.run(pod("web", json!({"spec": {"restartPolicy": "Always"}})));
    bed.wait(secs(20), |bed| bed.state("web", "app") == "waiting CrashLoopBackOff");
    assert_eq!(bed.phase("web"), "Running");
    assert_eq!(bed.container("web", "app").last_state.unwrap().terminated.unwrap().exit_code, 1);
    bed.sim.advance(secs(3600));
    // Pauses of 0, 10, 20, 40, 80, 160 and then 300 s.
    let restarts = bed.container("web", "app").restart_count;
    assert!((14..=17).contains(&restarts), "{restarts}");
}

#[test]
fn a_program_killed_for_memory_ends_137_and_the_reason_is_only_sometimes_right() {
    let reasons: BTreeSet<_> = (0..20)
        .map(|seed| {
            let bed = Bed::seeded(seed, script([("app", Behaviour::EatMemory)]));
            bed.run(pod("web", json!({})));
            bed.sim.advance(secs(2));
            assert_eq!(bed.phase("web"), "Failed");
            bed.state("web", "app")
        })
        .collect();
    let expected = ["terminated Error 137", "terminated OOMKilled 137"].map(str::to_owned);
    assert_eq!(reasons, expected.into());
}

#[test]
fn a_test_can_kill_a_program() {
    let bed = Bed::new(FakeConfig::default());
    for name in ["web", "db"] {
        bed.run(pod(name, json!({})));
    }
    bed.sim.advance(secs(1));
    assert!(bed.fake.kill(&Bed::name("web"), "app"));
    assert!(bed.fake.kill_for_memory(&Bed::name("db"), "app"));
    assert!(!bed.fake.kill(&Bed::name("nobody"), "app"));
    bed.sim.advance(secs(1));
    assert_eq!(bed.state("web", "app"), "terminated Error 137");
    assert_eq!(bed.state("db", "app"), "terminated OOMKilled 137");
}

#[test]
fn pods_that_are_deleted_while_they_start_leave_nothing() {
    for millis in (0..6000).step_by(500) {
        let mut config = script([("gate", exit(2, 0))]);
        config.other_images = Image::Pulled { after: secs(1) };
        config.delays.sandbox = secs(1);
        let bed = Bed::seeded(millis, config);
        bed.run(pod("web", json!({"spec": {"initContainers": [{"name": "gate", "image": "i"}]}})));
        bed.sim.advance(Duration::from_millis(millis));
        bed.delete_pod("web", None);
        bed.wait(secs(60), |bed| bed.is_gone("web"));
        assert_eq!(bed.running(), Vec::<String>::new(), "deleted after {millis} ms");
    }
}

#[test]
fn one_seed_is_one_history_and_seeds_differ() {
    let run = |seed| {
        let bed = Bed::seeded(seed, script([("gate", exit(1, 0)), ("job", exit(3, 1))]));
        for (name, container) in [("a", "app"), ("b", "job"), ("c", "app")] {
            let init = json!([{"name": "gate", "image": "i"}]);
            bed.run(pod(name, json!({"spec": {"initContainers": init, "containers": [{"name": container}]}})));
        }
        bed.sim.advance(secs(2));
        bed.delete_pod("a", None);
        bed.sim.advance(secs(10));
        let objects: Vec<Value> = bed.fake.with(|store| store.all(Kind::Pod).map(|(_, pod)| pod.clone()).collect());
        bed.sim.note(&serde_json::to_string(&objects).unwrap());
        bed.sim.trace_hash()
    };
    let hashes: BTreeSet<_> = (0..20).map(run).collect();
    assert_eq!(hashes.len(), 20);
    assert_eq!(run(7), run(7));
    assert!(hashes.contains(&run(7)));
}

#[test]
fn programs_reach_what_really_runs() {
    let dial = Behaviour::Dial {
        targets: vec![Target::pod(APP, "web", 80), Target::pod(APP, "web", 81)],
        every: secs(1),
        during: secs(3),
        then: Box::new(exit(0, 0)),
    };
    let bed = Bed::new(script([("client", dial), ("app", Behaviour::Listen { ports: vec![80] })]));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(1));
    bed.run(pod("client", json!({"spec": {"containers": [{"name": "client"}]}})));
    bed.sim.advance(secs(5));
    assert_eq!(bed.phase("client"), "Succeeded");
    let dials = bed.fake.dials();
    let outcomes: Vec<_> = dials.iter().map(|it| format!("{} {:?}", it.target.port, it.outcome)).collect();
    assert_eq!(outcomes, ["80 Open", "81 Refused"].repeat(4));
    assert_eq!(dials[0].at.since_start(), secs(1), "from the first instant on");
}
