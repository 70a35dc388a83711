//! What a workload wrote is read: each line once and in order, whatever happens on the way (S-56, I-14, F-24).

use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use pando_api::{Code, Error, LogEvent, LogGap, LogLine, LogOptions, LogStream, RuntimeAdapter as _, WorkloadRef};
use pando_cluster::{Cluster, LogRequest};
use pando_fakecluster::behaviour::Behaviour;

use super::fixture::SOON;
use crate::apps::{App, Tear, Torn, WEB, pod_name};
use crate::bed::{Bed, eventually};

/// What ends at once, with an error.
const CRASH: Behaviour = Behaviour::Exit { after: Duration::ZERO, code: 3 };

fn prints(lines: &[&str], then: Behaviour) -> Behaviour {
    Behaviour::Print { lines: lines.iter().map(|line| (*line).to_owned()).collect(), then: Box::new(then) }
}

fn followed() -> LogOptions {
    LogOptions { follow: true, ..LogOptions::default() }
}

fn web(app: &App<'_>) -> WorkloadRef {
    WorkloadRef { bundle_id: app.id.clone(), workload: WEB.to_owned() }
}

async fn open(app: &App<'_>, options: &LogOptions) -> Result<LogStream, Error> {
    app.runtime.logs(&web(app), options, &app.context()).await
}

/// Everything that a log tells until it ends by itself.
async fn events(app: &App<'_>, options: &LogOptions) -> Vec<LogEvent> {
    let log = open(app, options).await.unwrap_or_else(|error| panic!("{}: {error}", error.code));
    let end = app.bed.env().timeout(SOON * 3, log.try_collect()).await.expect("the log ends by itself");
    end.unwrap_or_else(|error| panic!("{}: {error}", error.code))
}

async fn lines(app: &App<'_>, options: &LogOptions) -> Vec<LogLine> {
    let line = |event| match event {
        LogEvent::Line(line) => line,
        LogEvent::Gap(gap) => panic!("nothing is missing: {gap:?}"),
    };
    events(app, options).await.into_iter().map(line).collect()
}

async fn bytes(app: &App<'_>, options: &LogOptions) -> Vec<u8> {
    lines(app, options).await.iter().flat_map(|line| line.bytes.to_vec()).collect()
}

async fn text(app: &App<'_>, options: &LogOptions) -> String {
    String::from_utf8(bytes(app, options).await).expect("the app writes text")
}

/// Waits until the workload's app has ended.
async fn has_ended(app: &App<'_>) {
    eventually(app.bed.env(), "the app has ended", SOON, || async {
        let workload = app.observed().await;
        (!workload.running && workload.exit_code.is_some()).then_some(())
    })
    .await;
}

/// Waits until the app's log has `count` lines: the last ones may reach it a moment late.
async fn has_written(app: &App<'_>, count: usize) -> Vec<LogLine> {
    eventually(app.bed.env(), &format!("{count} lines are written"), SOON, || async {
        let lines = lines(app, &LogOptions::default()).await;
        (lines.len() >= count).then_some(lines)
    })
    .await
}

pub(super) async fn the_newest_start_is_read(bed: &dyn Bed) {
    let app = App::new(bed, "newest");
    app.apply(&app.plan(&prints(&["one"], Behaviour::Run))).await;
    has_written(&app, 1).await;
    assert_eq!(text(&app, &LogOptions::default()).await, "one\n");
    app.apply(&app.plan(&prints(&["two"], Behaviour::Run))).await;
    has_written(&app, 1).await;
    assert_eq!(text(&app, &LogOptions::default()).await, "two\n");
}

pub(super) async fn a_crash_log_is_read_after_the_end(bed: &dyn Bed) {
    let app = App::new(bed, "crash");
    app.apply(&app.plan(&prints(&["going", "gone"], CRASH))).await;
    has_ended(&app).await;
    for options in [LogOptions::default(), followed()] {
        assert_eq!(text(&app, &options).await, "going\ngone\n", "{options:?}");
    }
    app.stop().await;
    assert_eq!(text(&app, &LogOptions::default()).await, "going\ngone\n", "a stop leaves it");
}

pub(super) async fn bytes_are_passed_on_as_they_are(bed: &dyn Bed) {
    let app = App::new(bed, "bytes");
    let long = [&vec![b'x'; 100_000][..], b"\n"].concat();
    let pieces = [&b"a\xff\r\x1b[31m\n"[..], b"\n", b"  ", &long, b"no end"].map(<[u8]>::to_vec);
    app.apply(&app.plan(&Behaviour::Write { pieces: pieces.to_vec(), then: Box::new(CRASH) })).await;
    has_ended(&app).await;
    for options in [LogOptions::default(), followed()] {
        assert!(bytes(&app, &options).await == pieces.concat(), "{options:?}");
    }
    let lines = lines(&app, &LogOptions::default()).await;
    let parts: Vec<_> = lines.iter().map(|line| (line.begins, line.ends())).collect();
    assert_eq!(parts, [(true, true), (true, true), (true, false), (false, true), (true, false)]);
}

pub(super) async fn since_is_exact(bed: &dyn Bed) {
    let app = App::new(bed, "since");
    app.apply(&app.plan(&prints(&["one", "two", "three"], Behaviour::Run))).await;
    let times: Vec<Timestamp> = has_written(&app, 3).await.iter().map(|line| line.time).collect();
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    let after = |time: Timestamp| time + Duration::from_nanos(1);
    for (since, expected) in [
        (times[0], "one\ntwo\nthree\n"),
        (after(times[0]), "two\nthree\n"),
        (times[1], "two\nthree\n"),
        (times[2], "three\n"),
        (after(times[2]), ""),
    ] {
        let options = LogOptions { since: Some(since), ..LogOptions::default() };
        assert_eq!(text(&app, &options).await, expected, "{since}");
    }
}

pub(super) async fn only_the_last_lines_where_asked(bed: &dyn Bed) {
    let app = App::new(bed, "tail");
    app.apply(&app.plan(&prints(&["one", "two", "three"], CRASH))).await;
    has_ended(&app).await;
    has_written(&app, 3).await;
    for (tail, expected) in [(0, ""), (1, "three\n"), (2, "two\nthree\n"), (9, "one\ntwo\nthree\n")] {
        for follow in [false, true] {
            let options = LogOptions { follow, tail: Some(tail), since: None };
            assert_eq!(text(&app, &options).await, expected, "{options:?}");
        }
    }
}

pub(super) async fn a_followed_tail_goes_on_with_what_comes(bed: &dyn Bed) {
    let app = App::new(bed, "tailed");
    let later = Behaviour::Count { to: 2000, width: 3, pause: Duration::from_secs(2), then: Box::new(CRASH) };
    app.apply(&app.plan(&later)).await;
    has_written(&app, 1000).await;
    let options = LogOptions { follow: true, tail: Some(0), since: None };
    assert_eq!(numbers(&lines(&app, &options).await), (1001..=2000).collect::<Vec<_>>());
}

/// A log that is followed while `meanwhile` is done, until it ends by itself.
async fn while_followed(app: &App<'_>, meanwhile: impl AsyncFnOnce()) -> String {
    let mut log = open(app, &followed()).await.expect("the log opens");
    let first = app.bed.env().timeout(SOON, log.next()).await.expect("a line comes");
    let first = first.expect("the log goes on").expect("it can be read");
    let rest = app.bed.env().timeout(SOON, log.try_collect::<Vec<_>>());
    let (rest, ()) = join(rest, meanwhile()).await;
    let rest = rest.expect("the log ends by itself").expect("it can be read");
    let lines = [first].into_iter().chain(rest).map(|event| match event {
        LogEvent::Line(line) => String::from_utf8_lossy(&line.bytes).into_owned(),
        LogEvent::Gap(gap) => format!("{gap:?}"),
    });
    lines.collect()
}

pub(super) async fn a_followed_log_goes_on_with_the_next_start(bed: &dyn Bed) {
    let app = App::new(bed, "goes");
    let plan = |word: &str, then| app.plan(&prints(&[word], then));
    app.apply(&plan("one", Behaviour::Run)).await;
    let text = while_followed(&app, async || {
        app.apply(&plan("two", Behaviour::Run)).await;
        has_written(&app, 1).await;
        app.apply(&plan("three", CRASH)).await;
    })
    .await;
    assert_eq!(text, "one\ntwo\nthree\n");
}

pub(super) async fn a_followed_log_ends_when_the_workload_is_stopped(bed: &dyn Bed) {
    let app = App::new(bed, "stopped");
    app.apply(&app.plan(&prints(&["one"], Behaviour::Run))).await;
    assert_eq!(while_followed(&app, async || app.stop().await).await, "one\n");
}

pub(super) async fn a_followed_log_ends_when_the_app_is_taken_away(bed: &dyn Bed) {
    let app = App::new(bed, "taken");
    app.apply(&app.plan(&prints(&["one"], Behaviour::Run))).await;
    assert_eq!(while_followed(&app, async || app.destroy().await).await, "one\n");
}

pub(super) async fn a_followed_log_waits_for_a_start_on_its_way(bed: &dyn Bed) {
    let app = App::new(bed, "early");
    let plan = app.plan(&prints(&["one"], CRASH));
    let early = async {
        let opened = || async { open(&app, &followed()).await.ok() };
        let log = eventually(bed.env(), "there is a workload", SOON, opened).await;
        let events: Vec<_> = log.try_collect().await.expect("it can be read");
        events
    };
    let (events, _) = join(early, app.apply(&plan)).await;
    assert!(matches!(&*events, [LogEvent::Line(line)] if *line.bytes == *b"one\n"), "{events:?}");
}

pub(super) async fn what_is_not_there_has_no_log(bed: &dyn Bed) {
    let app = App::new(bed, "none");
    let refused = async |app: &App<'_>| open(app, &followed()).await.err().expect("there is nothing").code;
    assert_eq!(refused(&app).await, Code::NotFound, "no bundle");
    app.apply(&app.plan(&Behaviour::Run)).await;
    let other = WorkloadRef { workload: "db".to_owned(), ..web(&app) };
    let error = app.runtime.logs(&other, &followed(), &app.context()).await.err().expect("no such workload");
    assert_eq!(error.code, Code::NotFound, "{error}");
    let odd = WorkloadRef { workload: "../web".to_owned(), ..web(&app) };
    let error = app.runtime.logs(&odd, &followed(), &app.context()).await.err().expect("no such name");
    assert_eq!(error.code, Code::ValidInvalid, "{error}");
    app.stop().await;
    assert_eq!(text(&app, &LogOptions::default()).await, "", "a stopped workload has none");
}

/// Writes lines of one and the same time where the bed's clock stands still, bytes that are no text, and no end.
fn torn_app() -> (Behaviour, Vec<u8>) {
    let pieces: Vec<_> =
        [&b"one\n"[..], b"same\n", b"same\n", b"\xff\xfe\n", b"\n", b"two\nno end"].map(<[u8]>::to_vec).into();
    let whole = pieces.concat();
    (Behaviour::Write { pieces, then: Box::new(CRASH) }, whole)
}

pub(super) async fn a_log_that_is_cut_anywhere_is_read_once_and_in_order(bed: &dyn Bed) {
    let app = App::new(bed, "cut");
    let (behaviour, whole) = torn_app();
    app.apply(&app.plan(&behaviour)).await;
    has_ended(&app).await;
    assert_eq!(bytes(&app, &LogOptions::default()).await, whole);
    // The whole answer has so many bytes. In memory, all seeds together cut it nearly everywhere; elsewhere a few cuts must do.
    let (length, step) = (7 * 31 + whole.len(), if bed.memory().is_some() { 11 } else { 37 });
    let first = usize::try_from(bed.env().random_u64() % 11).expect("a small number");
    for at in (first..length).step_by(step) {
        for tear in [Tear::Cut, Tear::Close] {
            for follow in [false, true] {
                // An answer that ends too soon is found out by another one, unless that ends too soon as well.
                let tears = move |answer, _: &LogRequest| match answer {
                    0 => tear(at),
                    1 => Tear::Cut(at / 2),
                    2 => Tear::Cut(at + 17),
                    _ => Tear::Not,
                };
                let torn = app.by_way_of(Torn::new(bed.cluster(), 1 + at % 7, tears));
                let read = bytes(&torn, &LogOptions { follow, ..LogOptions::default() }).await;
                assert!(read == whole, "{:?}, {follow}: {read:?}", tear(at));
            }
        }
    }
}

pub(super) async fn a_log_that_falls_silent_is_asked_for_again(bed: &dyn Bed) {
    let app = App::new(bed, "silent");
    let later = Behaviour::Exit { after: Duration::from_secs(3), code: 0 };
    app.apply(&app.plan(&prints(&["one", "two", "three"], later))).await;
    for length in [0, 40, 90] {
        let tears = move |answer, _: &LogRequest| if answer == 0 { Tear::Silence(length) } else { Tear::Not };
        let torn = Torn::new(bed.cluster(), 10, tears);
        let cluster: Arc<dyn Cluster> = torn.clone();
        assert_eq!(text(&app.by_way_of(cluster), &followed()).await, "one\ntwo\nthree\n", "silent after {length}");
        assert!(torn.answers() > 1);
    }
}

pub(super) async fn a_node_that_cannot_follow_is_asked_again_and_again(bed: &dyn Bed) {
    let app = App::new(bed, "watchers");
    let later = Behaviour::Count { to: 2000, width: 3, pause: Duration::from_secs(2), then: Box::new(CRASH) };
    app.apply(&app.plan(&later)).await;
    let tears = |_, request: &LogRequest| {
        if request.follow { Tear::Words("failed to create fsnotify watcher: too many open files") } else { Tear::Not }
    };
    let polled = app.by_way_of(Torn::new(bed.cluster(), 4096, tears));
    assert_eq!(numbers(&lines(&polled, &followed()).await), (1..=2000).collect::<Vec<_>>());
}

pub(super) async fn a_nodes_words_are_no_output(bed: &dyn Bed) {
    let app = App::new(bed, "words");
    app.apply(&app.plan(&prints(&["one"], CRASH))).await;
    has_ended(&app).await;
    for words in [
        "unable to retrieve container logs for containerd://0123456789abcdef",
        "failed to try resolving symlinks in path \"/var/log/pods/a_b_c/app/0.log\": no such file or directory\n",
    ] {
        for options in [LogOptions::default(), followed()] {
            let gone = app.by_way_of(Torn::new(bed.cluster(), 7, move |_, _| Tear::Words(words)));
            let log = open(&gone, &options).await.expect("the log opens");
            let error = log.try_collect::<Vec<_>>().await.expect_err("there is no log");
            assert_eq!(error.code, Code::NotFound, "{error}");
            let told = format!("{error} {:?} {:?}", error.remedy, error.details);
            assert!(!told.contains("/var/log") && !told.contains("0123456789"), "{told}");
        }
    }
}

/// A node removes the log of a pod that was told to end before the pod is gone: whether all was told by then shows in the log.
pub(super) async fn a_log_that_goes_before_its_pod_has_ended(bed: &dyn Bed) {
    let bed = bed.memory().expect("the bed is in memory");
    let bed = bed.beside(|config| config.delays.removal = Duration::from_secs(3)).await;
    // A line with its time has 35 bytes.
    for (torn, expected) in [(Tear::Not, "one\nuno\ntwo\n"), (Tear::Cut(40), "one\nLogGap")] {
        let app = App::new(&bed, "removed");
        let plan = |words: &[&str], then| app.plan(&prints(words, then));
        app.apply(&plan(&["one", "uno"], Behaviour::Run)).await;
        has_written(&app, 2).await;
        let tears = move |answer, request: &LogRequest| match (request.pod.as_str(), answer) {
            ("web-1", 0) => torn,
            ("web-1", _) => Tear::Words("unable to retrieve container logs for containerd://0123456789abcdef"),
            _ => Tear::Not,
        };
        let follower = app.by_way_of(Torn::new(bed.cluster(), 4096, tears));
        let text = while_followed(&follower, async || {
            app.apply(&plan(&["two"], CRASH)).await;
        });
        let text = text.await;
        assert!(text.starts_with(expected) && text.ends_with("two\n"), "{torn:?}: {text}");
    }
}

/// The numbers that an app counted.
fn numbers(lines: &[LogLine]) -> Vec<u64> {
    let number = |line: &LogLine| -> u64 {
        let text = String::from_utf8_lossy(&line.bytes);
        let (number, _) = text.split_once(' ').unwrap_or_else(|| panic!("{text:?} is a number and z"));
        number.parse().unwrap_or_else(|_| panic!("{text:?} begins with a number"))
    };
    lines.iter().map(number).collect()
}

pub(super) async fn a_slow_reader_is_told_what_it_lost(bed: &dyn Bed) {
    let memory = bed.memory().expect("the bed is in memory");
    for rotations in [0, 1, 3] {
        let app = App::new(bed, "slow");
        let counts = Behaviour::Count { to: 8000, width: 1, pause: Duration::from_secs(6), then: Box::new(CRASH) };
        app.apply(&app.plan(&counts)).await;
        let pod = pod_name(&app.pod().await);
        let mut log = open(&app, &followed()).await.expect("the log opens");
        let mut read = Vec::new();
        // Until the node is at the end of the file, so that it notices what follows.
        while read.len() < 3000 {
            read.push(log.next().await.expect("it goes on").expect("it can be read"));
        }
        for _ in 0..rotations {
            bed.env().sleep(Duration::from_secs(10)).await;
            assert!(memory.fake().rotate_log(&pod, "app"));
        }
        read.extend(log.try_collect::<Vec<_>>().await.expect("it can be read"));
        check_told(&read, 1, 8000, rotations > 1);
    }
}

/// Every number from `first` to `last` is there once, in order, or a gap is told in its place.
fn check_told(read: &[LogEvent], first: u64, last: u64, may_be_lost: bool) {
    let mut before = first - 1;
    let mut gap: Option<LogGap> = None;
    for event in read {
        match event {
            LogEvent::Gap(told) => gap = Some(*told),
            LogEvent::Line(line) => {
                let [number] = numbers(std::slice::from_ref(line))[..] else { panic!("one line, one number") };
                assert!(number > before, "{number} comes after {before}");
                let is_next = number == before + 1;
                assert!(is_next || gap.take().is_some_and(|gap| gap.before == Some(line.time)), "{before}, {number}");
                assert!(is_next || may_be_lost, "{before}, {number}");
                before = number;
            }
        }
    }
    // What was written last may be lost with its file, too: then the gap leads to the end.
    let to_the_end = gap.is_some_and(|gap| gap.before.is_none());
    assert!(before == last || may_be_lost && to_the_end, "{before} of {last}, {gap:?}");
}

pub(super) async fn a_rotation_in_a_cut_is_told_as_a_gap(bed: &dyn Bed) {
    let memory = bed.memory().expect("the bed is in memory");
    let app = App::new(bed, "rotated");
    let counts = Behaviour::Count { to: 20_000, width: 1, pause: Duration::from_secs(1), then: Box::new(CRASH) };
    app.apply(&app.plan(&counts)).await;
    let pod = pod_name(&app.pod().await);
    let tears = |answer, _: &LogRequest| if answer == 0 { Tear::Silence(3000) } else { Tear::Not };
    let torn = app.by_way_of(Torn::new(bed.cluster(), 100, tears));
    let (read, ()) = join(events(&torn, &followed()), async {
        bed.env().sleep(Duration::from_secs(3)).await;
        assert!(memory.fake().rotate_log(&pod, "app"));
    })
    .await;
    assert_eq!(read.iter().filter(|event| matches!(event, LogEvent::Gap(_))).count(), 1);
    check_told(&read, 1, 20_000, true);
}

pub(super) async fn a_late_reader_is_told_what_it_lost(bed: &dyn Bed) {
    let app = App::new(bed, "late");
    // Where bytes take no time, fewer do.
    let (to, pause) = if bed.memory().is_some() { (25_000, 1000) } else { (80_000, 300) };
    let pause = Duration::from_millis(pause);
    app.apply(&app.plan(&Behaviour::Count { to, width: 1000, pause, then: Box::new(CRASH) })).await;
    // So far behind that the node is not at the end of its file when that is rotated, and for longer than a rotation takes.
    bed.env().sleep(Duration::from_secs(6)).await;
    let mut log = open(&app, &followed()).await.expect("the log opens");
    let first = log.next().await.expect("it goes on").expect("it can be read");
    bed.env().sleep(Duration::from_secs(12)).await;
    let rest: Vec<_> = log.try_collect().await.expect("it can be read");
    let mut read = vec![first];
    read.extend(rest);
    // What was rotated before the first question is not asked for.
    let [LogEvent::Line(line), ..] = &*read else { panic!("a line comes first") };
    let [first] = numbers(std::slice::from_ref(line))[..] else { panic!("it has a number") };
    check_told(&read, first, to, true);
}

pub(super) async fn a_hundred_thousand_lines_over_rotations_and_cuts(bed: &dyn Bed) {
    let app = App::new(bed, "many");
    // More than 100 MB, which are rotated each 10 s; in memory, where bytes take no time, a part of that.
    let (count, pause): (u64, _) = if bed.memory().is_some() { (25_000, 2000) } else { (100_000, 500) };
    let (width, pause) = (1000, Duration::from_millis(pause));
    app.apply(&app.plan(&Behaviour::Count { to: count, width, pause, then: Box::new(CRASH) })).await;
    // Each second answer is cut, after some megabytes and never at the same place.
    let tears = |answer: usize, _: &LogRequest| match answer % 4 {
        0 => Tear::Cut(1_000_000 + answer * 777_777 % 5_000_000),
        2 => Tear::Close(1_000_000 + answer * 333_333 % 5_000_000),
        _ => Tear::Cut(9_000_000 + answer),
    };
    let torn = Torn::new(bed.cluster(), 64 * 1024, tears);
    let cluster: Arc<dyn Cluster> = torn.clone();
    let lines = lines(&app.by_way_of(cluster), &followed()).await;
    assert!(torn.answers() > 4, "it was cut {} times", torn.answers());
    assert!(self::lines(&app, &LogOptions::default()).await.len() < lines.len(), "it was rotated");
    assert!(numbers(&lines).into_iter().eq(1..=count), "each number once and in order");
}
