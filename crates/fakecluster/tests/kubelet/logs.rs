//! The output of containers, in part, followed, and past the end of a pod.

use crate::bed::{APP, Bed, pod, script, secs};
use futures::TryStreamExt;
use pando_cluster::{Cluster, LogRequest};
use pando_fakecluster::behaviour::Behaviour;
use serde_json::json;

fn log(bed: &Bed, request: impl FnOnce(&mut LogRequest)) -> String {
    let mut asked = LogRequest {
        namespace: APP.to_owned(),
        pod: "web".to_owned(),
        container: "app".to_owned(),
        follow: false,
        since: None,
        tail_lines: None,
        limit_bytes: None,
        timestamps: false,
    };
    request(&mut asked);
    let pieces = bed.sim.block_on(async {
        let stream = bed.fake.logs(&asked).await.unwrap_or_else(|error| panic!("{error}"));
        stream.try_collect::<Vec<_>>().await
    });
    String::from_utf8(pieces.unwrap().concat()).unwrap()
}

#[test]
fn a_log_is_read_whole_or_in_part() {
    let lines = ["one", "two", "three"].map(str::to_owned).to_vec();
    let bed = Bed::new(script([("app", Behaviour::Print { lines, then: Box::new(Behaviour::Run) })]));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(2));
    assert_eq!(log(&bed, |_| {}), "one\ntwo\nthree\n");
    assert_eq!(log(&bed, |it| it.tail_lines = Some(2)), "two\nthree\n");
    assert_eq!(log(&bed, |it| it.tail_lines = Some(0)), "");
    assert_eq!(log(&bed, |it| it.limit_bytes = Some(5)), "one\nt");
    assert!(
        log(&bed, |it| it.timestamps = true)
            .starts_with("2026-01-01T00:00:00.000000000Z one\n2026-01-01T00:00:00.001000000Z two\n")
    );
    // The time asked for is cut to its whole second, and that second is included.
    assert_eq!(log(&bed, |it| it.since = Some("2026-01-01T00:00:00.9Z".parse().unwrap())), "one\ntwo\nthree\n");
    assert_eq!(log(&bed, |it| it.since = Some("2026-01-01T00:00:01Z".parse().unwrap())), "");
}

#[test]
fn a_followed_log_ends_with_the_container_also_when_the_pod_is_deleted() {
    let print = |then: Behaviour| Behaviour::Print { lines: vec!["a".to_owned(); 3000], then: Box::new(then) };
    let bed = Bed::new(script([("app", print(Behaviour::Exit { after: secs(1), code: 0 }))]));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(1));
    assert_eq!(log(&bed, |it| it.follow = true).len(), 6000);
    assert_eq!(bed.sim.now().since_start(), secs(4));
    let bed = Bed::new(script([("app", print(Behaviour::IgnoreTerm))]));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(1));
    bed.delete_pod("web", Some(1));
    let followed = log(&bed, |it| it.follow = true).len();
    assert!((3900..=4100).contains(&followed), "{followed}: two seconds' lines");
}
