//! Plans as people have them, with programs as people run them; and the command line as people treat it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pando_api::{BundlePlan, Outcome, Written};
use pando_cluster::Env;
use pando_cluster::names::START_GATE;
use pando_fakecluster::behaviour::Behaviour;
use serde_json::{Value, json};

use super::fixture::SOON;
use crate::apps::{App, History, after, changing, is_of, may_run, pod_name, result_of, uid, with_env, with_volume};
use crate::bed::{Bed, eventually};

const BLOG: &str = include_str!("../../../../examples/blog.json");

/// The volume of the blog's database.
const BLOG_VOLUME: &str = "vol_01HQ8ABCDEFGHJKMNPQRSTVW01";

/// The password of the blog's database.
const PASSWORD: &str = "correct horse";

/// The example as the app's plan, its secrets filled in.
fn blog(app: &App<'_>) -> BundlePlan {
    let mut plan: Value = serde_json::from_str(BLOG).expect("the example is JSON");
    plan["bundle_id"] = json!(app.id);
    plan["workloads"][0]["image"] = json!(app.bed.db_image());
    plan["workloads"][1]["image"] = json!(app.bed.app_image());
    plan["workloads"][0]["env"]["POSTGRES_PASSWORD"] = json!(PASSWORD);
    plan["workloads"][1]["env"]["DATABASE_URL"] = json!(format!("postgres://postgres:{PASSWORD}@db:5432/postgres"));
    serde_json::from_value(plan).expect("the example is a plan")
}

/// What the database answers to a query; `None` where it is no real one.
async fn query(app: &App<'_>, sql: &str) -> Option<String> {
    let pod = pod_name(&app.pod_of("db").await);
    let psql = format!("PGPASSWORD=$POSTGRES_PASSWORD psql -h db -U postgres -At -c \"{sql}\" 2>&1");
    app.bed.shell(&pod, &psql).await.map(|said| said.trim().to_owned())
}

pub(super) async fn the_blog_of_the_examples_keeps_what_was_written_to_its_database(bed: &dyn Bed) {
    let app = App::new(bed, "realblog");
    let plan = blog(&app);
    let begun = bed.env().now();
    app.apply(&plan).await;
    println!("{}: both run after {:?}", app.id, bed.env().now().since(begun));
    let disk = app.disk(BLOG_VOLUME).await.expect("it is bound").metadata.uid;
    let written =
        query(&app, "create table posts (id serial, title text); insert into posts (title) values ('first')").await;
    assert!(written.is_none_or(|said| said.ends_with("INSERT 0 1")));
    let web = pod_name(&app.pod_of("web").await);
    let dials = "exec 3<>/dev/tcp/db/5432 && echo open; cat /usr/share/nginx/html/index.html";
    let said = bed.shell(&web, &format!("bash -c '{dials}'")).await;
    assert!(said.is_none_or(|said| said == "open\n<h1>blog</h1>\n"), "it finds its database, and its page");

    let news = changing(plan.clone(), "web", |web| "<h1>News</h1>\n".clone_into(&mut web.files[0].content));
    let more = changing(news.clone(), "db", |db| db.resources.memory_bytes = 300 << 20);
    for (name, plan) in [("another page", &news), ("more memory", &more), ("a stop", &more), ("a destruction", &more)] {
        let db = uid(&app.pod_of("db").await);
        match name {
            "a stop" => app.stop().await,
            "a destruction" => app.destroy().await,
            _ => {}
        }
        let result = app.apply(plan).await;
        let same = uid(&app.pod_of("db").await) == db;
        assert_eq!(same, name == "another page", "{name}: {result:?}");
        let count = query(&app, "select count(*) from posts where title = 'first'").await;
        assert!(count.as_deref().is_none_or(|count| count == "1"), "{name}: {count:?}");
        assert_eq!(app.disk(BLOG_VOLUME).await.expect("it is bound").metadata.uid, disk, "{name}");
        assert_eq!(app.apply(plan).await.written, Vec::<Written>::new(), "{name}");
    }
    for workload in ["db", "web"] {
        eventually(bed.env(), "it is healthy", SOON, || async {
            app.observed_of(workload).await.healthy.filter(|healthy| *healthy)
        })
        .await;
    }
}

/// How often the command line is killed.
const KILLS: u32 = 30;

/// A moment within the time that an apply of these plans takes.
fn a_moment(env: &Env) -> Duration {
    let mut random = [0; 2];
    env.random.fill(&mut random);
    Duration::from_millis(u64::from(u16::from_le_bytes(random)) * 10_000 / u64::from(u16::MAX))
}

pub(super) async fn a_command_line_that_is_killed_at_any_moment_leaves_what_the_next_apply_ends(bed: &dyn Bed) {
    let app = App::new(bed, "killed");
    let plan = |round: u32| {
        let web = after("db", app.part("web", &Behaviour::Listen { ports: vec![8080] }));
        let db = with_volume(app.part("db", &Behaviour::Run), "vol_killed", "/data");
        let plan = with_env(app.whole([web, db]), &[]);
        // Each plan replaces one of the two, or goes back to what was.
        changing(plan, if round.is_multiple_of(2) { "web" } else { "db" }, |it| {
            it.resources.memory_bytes = u64::from(16 + round % 3) << 20;
        })
    };
    let history = History::of(&app).await;
    let mut ended = 0;
    for round in 0..KILLS {
        let moment = a_moment(bed.env());
        ended += u32::from(bed.apply_and_kill(&plan(round), moment).await);
    }
    println!("{}: {KILLS} times, {ended} of them too late", app.id);
    let last = plan(KILLS);
    let result = app.apply(&last).await;
    assert!(!result.workloads.iter().any(|it| matches!(it.outcome, Outcome::Ended { .. })), "{result:?}");
    for workload in ["web", "db"] {
        assert!(app.observed_of(workload).await.running, "{workload}");
        assert!(result_of(&result, workload).unready_dependencies.is_empty());
    }
    let pods: Vec<Pod> = app.all().await;
    let is_gated = |pod: &Pod| {
        let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
        gates.into_iter().any(|gate| gate.name == START_GATE)
    };
    assert!(pods.len() == 2 && !pods.iter().any(is_gated), "nothing of the dead is left: {pods:?}");
    assert_eq!(app.apply(&last).await.written, Vec::<Written>::new());
    let moments = history.until_now(&app).await;
    let begun = moments.ever(|pod| is_of(pod, "web") || is_of(pod, "db")).len();
    assert!(begun > 5, "the dead had begun something: {begun}");
    for workload in ["web", "db"] {
        assert_eq!(moments.most(|pod| is_of(pod, workload) && may_run(pod)), 1, "{workload}: never two that may run");
    }
    let disk = app.disk("vol_killed").await.expect("it is bound");
    assert_eq!(disk.spec.and_then(|spec| spec.persistent_volume_reclaim_policy).as_deref(), Some("Retain"));
}
