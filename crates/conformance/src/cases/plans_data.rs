//! What an app keeps and what it carries: volumes, files, secrets.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use pando_api::{FilePlan, HealthPlan, Outcome, WorkloadPlan, Written};
use pando_cluster::{Kind, ObjectKey};
use pando_fakecluster::behaviour::Behaviour;
use serde_json::json;

use super::fixture::{SOON, patch};
use crate::apps::{
    App, FILE_MODE, History, changing, may_run, places_that_hold, result_of, uid, with_env, with_volume,
};
use crate::bed::{Bed, eventually};

/// Where the script of a workload says that all was as it should be.
const PROVED: &str = "/tmp/proved";

/// A workload that becomes healthy when its script has made [`PROVED`], and ends with 7 when something was not as it should be.
fn proving(workload: WorkloadPlan) -> WorkloadPlan {
    let health = HealthPlan {
        command: ["test", "-f", PROVED].map(str::to_owned).into(),
        interval_seconds: 1,
        timeout_seconds: 5,
        retries: 2,
        ..HealthPlan::default()
    };
    WorkloadPlan { health: Some(health), ..workload }
}

/// Waits until the workload's script has found everything as it should be.
async fn proved(app: &App<'_>, workload: &str) {
    eventually(app.bed.env(), "the script has found all that it looked for", SOON, || async {
        let observed = app.observed_of(workload).await;
        assert!(observed.exit_code.is_none(), "the script found something else: {observed:?}");
        observed.healthy.filter(|it| *it)
    })
    .await;
}

/// Adds a line to a file on the volume and compares it with what should be there by now.
const COUNTS: &str = r#"trap 'exit 143' TERM
echo "$ROUND" >>/data/rounds
[ "$(tr '\n' ' ' </data/rounds)" = "$EXPECTED " ] || exit 7
touch /tmp/proved
while :; do sleep 3600 & wait $!; done
"#;

/// The policy that keeps a volume when its claim goes.
fn policy(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()).unwrap_or_default()
}

/// What must not change while data stays: the claim and the volume.
async fn identities(app: &App<'_>, volume: &str) -> (Option<String>, Option<String>) {
    let disk = app.disk(volume).await.expect("the claim is bound");
    assert_eq!(policy(&disk), "Retain", "whoever deletes the claim does not delete the data");
    (app.claim(volume).await.metadata.uid, disk.metadata.uid)
}

/// A cluster in memory knows who wrote to a disk: no two at once, and all of it is there.
fn is_on_the_disk(bed: &dyn Bed, disk: &PersistentVolume, writers: &[String]) {
    let Some(memory) = bed.memory() else { return };
    let disks = memory.fake().disks();
    let disk = &disks[disk.metadata.name.as_deref().expect("a stored volume has a name")];
    assert_eq!(disk.overlapping_writers(), []);
    for writer in writers {
        assert!(disk.holds(writer), "{writer} wrote to {disk:?}");
    }
}

pub(super) async fn data_stays_over_a_replacement_a_stop_and_a_destruction(bed: &dyn Bed) {
    let app = App::new(bed, "stays");
    let plan = |round: usize| {
        let expected: Vec<_> = (1..=round).map(|round| round.to_string()).collect();
        let counting = with_volume(proving(app.scripted("web", COUNTS)), "vol_rounds", "/data");
        with_env(app.whole([counting]), &[("ROUND", &round.to_string()), ("EXPECTED", &expected.join(" "))])
    };
    let history = History::of(&app).await;
    app.apply(&plan(1)).await;
    proved(&app, "web").await;
    let identity = identities(&app, "vol_rounds").await;
    let mut writers = vec![uid(&app.pod_of("web").await)];
    for (round, between) in ["a replacement", "a stop", "a destruction"].into_iter().enumerate() {
        match between {
            "a stop" => app.stop().await,
            "a destruction" => app.destroy().await,
            _ => {}
        }
        app.apply(&plan(round + 2)).await;
        proved(&app, "web").await;
        assert_eq!(identities(&app, "vol_rounds").await, identity, "after {between}");
        writers.push(uid(&app.pod_of("web").await));
    }
    assert_eq!(history.until_now(&app).await.most(may_run), 1, "never two that may write");
    is_on_the_disk(bed, &app.disk("vol_rounds").await.expect("it is bound"), &writers);
    let observed = app.observe().await.volumes;
    let [volume] = &*observed else { panic!("one volume: {observed:?}") };
    assert_eq!((&*volume.volume_id, volume.present), ("vol_rounds", true));
    let claim = app.claim("vol_rounds").await.metadata.name.expect("a name");
    assert_eq!(volume.handle, format!("{}/{claim}", app.namespace));
}

/// A word for the app, and what keeps its workload from starting.
type Spoiling<'a> = (&'a str, &'a (dyn Fn(&mut WorkloadPlan) + Sync));

pub(super) async fn a_volume_is_kept_also_where_its_app_did_not_start(bed: &dyn Bed) {
    let missing = |workload: &mut WorkloadPlan| "registry.invalid/nothing:1".clone_into(&mut workload.image);
    let broken = |workload: &mut WorkloadPlan| workload.entrypoint = vec!["/no-such-program".to_owned()];
    let changes: [Spoiling<'_>; 2] = [("noimage", &missing), ("noprogram", &broken)];
    for (word, change) in changes {
        let app = App::with(bed, word, &json!({"start_timeout_seconds": 45}));
        let behaviour = match word {
            "noprogram" => Behaviour::StartError { message: "exec: no such file".to_owned() },
            _ => Behaviour::Run,
        };
        let plan = app.whole([with_volume(app.part("web", &behaviour), "vol_early", "/data")]);
        app.refused(&changing(plan, "web", change)).await;
        let disk =
            app.disk("vol_early").await.unwrap_or_else(|| panic!("{word}: it was bound when its pod was placed"));
        assert_eq!(policy(&disk), "Retain", "{word}");
        assert_eq!(app.all::<Pod>().await, [], "{word}");
    }
}

pub(super) async fn a_volume_that_is_no_longer_kept_is_kept_again(bed: &dyn Bed) {
    let app = App::new(bed, "released");
    let plan = app.whole([with_volume(app.part("web", &Behaviour::Run), "vol_kept", "/data")]);
    app.apply(&plan).await;
    let disk = app.disk("vol_kept").await.expect("it is bound");
    let name = disk.metadata.name.expect("a stored volume has a name");
    let key = ObjectKey::cluster(Kind::PersistentVolume, &name);
    patch(bed, &key, json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}})).await.expect("it can be changed");
    let result = app.apply(&plan).await;
    let told: Vec<_> = result.written.iter().map(|it| (&*it.kind, &*it.name)).collect();
    assert_eq!(told, [("PersistentVolume", &*name)], "{result:?}");
    assert_eq!(policy(&app.disk("vol_kept").await.expect("it is bound")), "Retain");
    assert_eq!(app.apply(&plan).await.written, Vec::<Written>::new(), "once");
}

/// Looks at the file that the plan carries as the app does.
const READS: &str = r#"trap 'exit 143' TERM
[ "$(cat /etc/blog/site.conf)" = "$CONTENT" ] || exit 7
[ "$(stat -c %a /etc/blog/site.conf)" = 640 ] || exit 7
[ "$(stat -c %a /etc/issue.blog)" = 644 ] || exit 7
[ "$(cat /etc/issue.blog)" = 'beside others' ] || exit 7
grep -q ^root: /etc/passwd || exit 7
if echo changed 2>/dev/null >/etc/issue.blog; then exit 7; fi
touch /tmp/proved
while :; do sleep 3600 & wait $!; done
"#;

pub(super) async fn a_carried_file_is_where_and_how_the_plan_says_beside_the_images_own(bed: &dyn Bed) {
    let app = App::new(bed, "files");
    // What a shell, YAML or Kubernetes itself would each like to change.
    let content = "a = \"$HOME $(id)\"\n\tb: 'ü' %s \\n\n# $$(C)";
    let site = FilePlan { path: "/etc/blog/site.conf".to_owned(), content: content.to_owned(), mode: FILE_MODE };
    let issue = FilePlan { path: "/etc/issue.blog".to_owned(), content: "beside others\n".to_owned(), mode: 0 };
    let web = WorkloadPlan { files: vec![site, issue], ..proving(app.scripted("web", READS)) };
    let plan = with_env(app.whole([web]), &[("CONTENT", content)]);
    app.apply(&plan).await;
    proved(&app, "web").await;
    if let Some(memory) = bed.memory() {
        let pod = crate::apps::pod_name(&app.pod_of("web").await);
        let found = memory.fake().mounted_files(&pod, "app");
        let found: Vec<_> = found.iter().map(|file| (&*file.path, &*file.contents, file.mode)).collect();
        let expected = [
            ("/etc/blog/site.conf", content.as_bytes(), 0o640),
            ("/etc/issue.blog", b"beside others\n".as_slice(), 0o644),
        ];
        assert_eq!(found, expected);
    }
    let before = uid(&app.pod_of("web").await);
    let with_mode = |mode| changing(plan.clone(), "web", |web| web.files[1].mode = mode);
    assert_eq!(result_of(&app.apply(&with_mode(0o644)).await, "web").outcome, Outcome::Unchanged, "0 means 0644");
    assert_eq!(uid(&app.pod_of("web").await), before);
    // The script expects another mode: it says so by its code.
    let result = app.apply(&with_mode(0o600)).await;
    assert!(matches!(result_of(&result, "web").outcome, Outcome::Replaced | Outcome::Ended { .. }), "{result:?}");
    assert_ne!(uid(&app.pod_of("web").await), before, "another mode is another file");
}

pub(super) async fn what_a_workload_is_given_is_its_own_and_in_no_other_place(bed: &dyn Bed) {
    let app = App::new(bed, "given");
    let plan = app.blog();
    let result = app.apply(&plan).await;
    for (workload, key) in [("web", "DATABASE_URL"), ("db", "PASSWORD")] {
        let canary = format!("{key} of {}", app.id);
        let secret = app.key(Kind::Secret, &format!("pando-env-{workload}"));
        assert_eq!(places_that_hold(&app, &canary).await, [secret], "{workload}");
        for told in [format!("{result:?}"), format!("{plan:?}"), format!("{:?}", app.observe().await)] {
            assert!(!told.contains(&canary), "{told}");
        }
    }
    let secrets: Vec<Secret> = app.all().await;
    assert!(secrets.iter().all(|secret| secret.metadata.name.as_deref() != Some("pando-pull")), "nobody needs one");
    let files: Vec<ConfigMap> = app.all().await;
    let ours = files.iter().filter_map(|it| it.metadata.name.as_deref()).filter(|name| name.starts_with("pando-"));
    assert_eq!(ours.collect::<Vec<_>>(), ["pando-files-web"]);
}

/// The volumes of the plan are the app's, whether or not somebody mounts them.
pub(super) async fn a_volume_that_nobody_mounts_yet_is_there_and_bound_by_its_first_user(bed: &dyn Bed) {
    let app = App::new(bed, "early");
    let with = app.whole([with_volume(app.part("web", &Behaviour::Run), "vol_later", "/data")]);
    let mut unmounted = with.clone();
    unmounted.workloads[0].mounts.clear();
    let begun = bed.env().now();
    app.apply(&unmounted).await;
    assert!(bed.env().now().since(begun) < SOON, "a claim without a pod is never bound: nobody waits for that");
    let claim = app.claim("vol_later").await;
    assert_eq!(app.apply(&unmounted).await.written, Vec::<Written>::new());
    assert_eq!(result_of(&app.apply(&with).await, "web").outcome, Outcome::Replaced);
    assert_eq!(app.claim("vol_later").await.metadata.uid, claim.metadata.uid);
    identities(&app, "vol_later").await;
}

pub(super) async fn a_claim_that_a_stranger_made_is_not_taken_for_a_volume(bed: &dyn Bed) {
    let app = App::new(bed, "claimed");
    let plan = app.whole([with_volume(app.part("web", &Behaviour::Run), "vol_ours", "/data")]);
    app.apply(&app.whole([app.part("web", &Behaviour::Run)])).await;
    let before = uid(&app.pod_of("web").await);
    let theirs: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": pando_cluster::names::claim_name("vol_ours"), "namespace": &*app.namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }))
    .expect("a claim");
    let made = bed.admin().make(&theirs).await.expect("a claim");
    let error = app.refused(&plan).await;
    assert!(error.to_string().contains(theirs.metadata.name.as_deref().unwrap_or_default()), "{error}");
    assert!(error.remedy.is_some(), "{error:?}");
    let now = app.claim("vol_ours").await;
    assert_eq!((now.metadata.uid, now.metadata.labels), (made.metadata.uid, made.metadata.labels));
    assert_eq!(uid(&app.pod_of("web").await), before, "what ran goes on");
}

/// How long a stop of an app may take whose program does not hear that it is to end: its grace, and what Kubernetes takes.
const STOPS: Duration = Duration::from_secs(20);

pub(super) async fn a_program_that_does_not_end_is_not_joined_on_its_volume(bed: &dyn Bed) {
    let app = App::new(bed, "deaf");
    let plan = |behaviour: &Behaviour| app.whole([with_volume(app.part("web", behaviour), "vol_one", "/data")]);
    app.apply(&plan(&Behaviour::IgnoreTerm)).await;
    let first = uid(&app.pod_of("web").await);
    let history = History::of(&app).await;
    let begun = bed.env().now();
    app.apply(&plan(&Behaviour::Run)).await;
    let took = bed.env().now().since(begun);
    assert!(took >= Duration::from_secs(2) && took < STOPS, "it had its grace: {took:?}");
    assert_eq!(history.until_now(&app).await.most(|_| true), 1);
    let second = uid(&app.pod_of("web").await);
    is_on_the_disk(bed, &app.disk("vol_one").await.expect("it is bound"), &[first, second]);
}
