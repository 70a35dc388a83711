//! The output of containers, in part, followed, and past the end of a pod.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use pando_cluster::{ByteStream, Cluster, LogRequest};
use pando_fakecluster::behaviour::Behaviour;
use pando_fakecluster::netpol::PodName;
use serde_json::json;

use crate::bed::{APP, Bed, pod, script, secs};

fn request() -> LogRequest {
    LogRequest {
        namespace: APP.to_owned(),
        pod: "web".to_owned(),
        container: "app".to_owned(),
        follow: false,
        since: None,
        tail_lines: None,
        limit_bytes: None,
        timestamps: false,
    }
}

fn log(bed: &Bed, change: impl FnOnce(&mut LogRequest)) -> String {
    String::from_utf8(log_bytes(bed, change)).unwrap()
}

fn log_bytes(bed: &Bed, change: impl FnOnce(&mut LogRequest)) -> Vec<u8> {
    let mut asked = request();
    change(&mut asked);
    let pieces = bed.sim.block_on(async {
        let stream = bed.fake.logs(&asked).await.unwrap_or_else(|error| panic!("{error}"));
        stream.try_collect::<Vec<_>>().await
    });
    pieces.unwrap().concat()
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

/// A bed whose pod writes `bytes` and runs on.
fn written(bytes: &[u8]) -> Bed {
    let write = Behaviour::Write { pieces: vec![bytes.to_vec()], then: Box::new(Behaviour::Run) };
    let bed = Bed::new(script([("app", write)]));
    bed.run(pod("web", json!({})));
    bed.sim.advance(secs(1));
    bed
}

fn web() -> PodName {
    PodName::new(APP, "web")
}

#[test]
fn bytes_are_what_they_are_and_the_last_line_may_have_no_end() {
    let bed = written(b"a\xff\r\n\nno end");
    let bytes = |bed: &Bed| log_bytes(bed, |it| it.timestamps = false);
    assert_eq!(bytes(&bed), b"a\xff\r\n\n", "what has no end is not stored while the container runs");
    bed.delete_pod("web", None);
    let followed = log_bytes(&bed, |it| it.follow = true);
    assert_eq!(followed, b"a\xff\r\n\nno end");
}

/// As kubelets do it: recorded from one.
#[test]
fn a_long_line_is_stored_in_parts() {
    let long = [&vec![b'x'; 40_000][..], b"\nend\n"].concat();
    let bed = written(&long);
    let stamped = log(&bed, |it| it.timestamps = true);
    assert_eq!(stamped.matches("2026-01-01T").count(), 2, "a line has the time of its first part");
    assert_eq!(
        log(&bed, |it| it.tail_lines = Some(2)).len(),
        40_000 - 2 * 16_384 + "\nend\n".len(),
        "parts are counted"
    );
}

#[test]
fn only_the_newest_file_is_read() {
    let bed = written(b"old\n");
    assert_eq!(log(&bed, |_| {}), "old\n");
    assert!(bed.fake.rotate_log(&web(), "app"));
    assert_eq!(log(&bed, |_| {}), "");
}

/// A pod that writes a number each millisecond, and its log, followed until it said 10.
async fn counting(bed: &Bed) -> ByteStream {
    let mut log = bed.fake.logs(&LogRequest { follow: true, ..request() }).await.unwrap();
    assert_eq!(numbers(&mut log, 10).await, (1..=10).collect::<Vec<_>>());
    log
}

async fn numbers(log: &mut ByteStream, count: usize) -> Vec<u32> {
    let lines: Vec<_> = log.take(count).try_collect().await.unwrap();
    lines.iter().map(|line| String::from_utf8_lossy(line).trim().parse().unwrap()).collect()
}

fn counts() -> Bed {
    let lines = (1..=4000).map(|number| number.to_string()).collect();
    let bed = Bed::new(script([("app", Behaviour::Print { lines, then: Box::new(Behaviour::Run) })]));
    bed.run(pod("web", json!({})));
    bed
}

#[test]
fn a_reader_that_keeps_up_does_not_notice_a_rotation() {
    let bed = counts();
    bed.sim.block_on(async {
        let mut log = counting(&bed).await;
        for hundred in 0..5 {
            let from = 11 + hundred * 100;
            assert_eq!(numbers(&mut log, 100).await, (from..from + 100).collect::<Vec<_>>());
            assert!(bed.fake.rotate_log(&web(), "app"));
        }
    });
}

/// As a kubelet did it: a whole file lost, and the next one told twice.
#[test]
fn a_slow_reader_loses_a_file_and_gets_another_twice() {
    let bed = counts();
    bed.sim.block_on(async {
        let mut log = counting(&bed).await;
        let written = async || bed.sim.env().sleep(Duration::from_millis(100)).await;
        written().await;
        for _ in 0..2 {
            assert!(bed.fake.rotate_log(&web(), "app"));
            written().await;
        }
        let read = numbers(&mut log, 300).await;
        let breaks: Vec<_> = read.windows(2).filter(|pair| pair[0] + 1 != pair[1]).collect();
        let [lost, twice] = breaks[..] else { panic!("two breaks: {breaks:?}") };
        assert!(lost[0] + 90 < lost[1], "{lost:?}");
        assert_eq!(twice[1], lost[1], "the newest file begins anew");
    });
}

/// As a kubelet did it: what was rotated before it had reached the end of its file it did not notice.
#[test]
fn a_reader_that_is_far_behind_hears_no_more_until_the_next_rotation() {
    let bed = counts();
    bed.sim.advance(Duration::from_millis(100));
    bed.sim.block_on(async {
        let mut log = bed.fake.logs(&LogRequest { follow: true, ..request() }).await.unwrap();
        let first = numbers(&mut log, 10).await;
        assert_eq!(first.last(), Some(&10));
        assert!(bed.fake.rotate_log(&web(), "app"));
        let env = bed.sim.env();
        let silent = async { while env.timeout(secs(1), numbers(&mut log, 1)).await.is_ok() {} };
        silent.await;
        assert!(bed.fake.rotate_log(&web(), "app"));
        assert!(env.timeout(secs(1), numbers(&mut log, 1)).await.is_ok_and(|number| number[0] > 1000));
    });
}
