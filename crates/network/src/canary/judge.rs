//! What the probers' words say: enforced, not enforced, or nothing at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use super::{Family, Leg, Prober, Way};

/// So many rounds in a row must be as the policy says: one packet may be lost.
const IN_A_ROW: usize = 2;

/// What came of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The right answer came.
    Open,
    /// No connection came about: refused, dropped, or no way there.
    Closed,
    /// The name is not known, or its server cannot be asked.
    NoName,
    /// The probe itself failed, in its own words. It says nothing about the network.
    Unknown(String),
}

impl Outcome {
    fn read(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match word {
            "open" => Some(Self::Open),
            "dropped" | "refused" | "noroute" => Some(Self::Closed),
            "noname" => Some(Self::NoName),
            "unknown" => Some(Self::Unknown(rest.trim().to_owned())),
            _ => None,
        }
    }
}

/// What one prober wrote so far.
#[derive(Clone, Debug)]
pub struct Record {
    prober: Prober,
    /// The round that is being written.
    writing: BTreeMap<usize, Outcome>,
    /// The last rounds that are complete, the newest last.
    rounds: Vec<Round>,
    /// The number of the newest complete round.
    newest: u64,
    /// The legs that once came through before there was a policy.
    opened: BTreeSet<usize>,
    /// The first round that began when the policy was there.
    policed_from: Option<u64>,
}

#[derive(Clone, Debug)]
struct Round {
    number: u64,
    outcomes: BTreeMap<usize, Outcome>,
}

/// What a canary found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every closed way was closed, and every admitted one open beside it.
    Enforced {
        /// How long after the policy's creation the last way was closed.
        time_to_deny: Duration,
    },
    /// A way that the policy closes stayed open.
    NotEnforced {
        /// Which, for a person.
        open: String,
        /// The families in which one stayed open; empty where that is not of a family.
        families: BTreeSet<Family>,
    },
    /// Nothing was proved.
    Inconclusive {
        /// Why, for a person.
        why: String,
        /// What a person can do about it.
        remedy: String,
    },
}

impl Record {
    /// Nothing was written so far.
    pub const fn new(prober: Prober) -> Self {
        Self {
            prober,
            writing: BTreeMap::new(),
            rounds: Vec::new(),
            newest: 0,
            opened: BTreeSet::new(),
            policed_from: None,
        }
    }

    /// Takes a line of the prober's log. A line that was taken before, since the log was read anew, changes nothing.
    pub fn take(&mut self, line: &str) {
        let Some((number, rest)) = line.split_once(' ') else { return };
        let Ok(number) = number.parse::<u64>() else { return };
        if number <= self.newest {
            return;
        }
        if rest.trim_end() == "." {
            let outcomes = std::mem::take(&mut self.writing);
            self.complete(Round { number, outcomes });
        } else if let Some((index, outcome)) = rest.split_once(' ')
            && let (Ok(index), Some(outcome)) = (index.parse(), Outcome::read(outcome.trim_end()))
        {
            self.writing.insert(index, outcome);
        }
    }

    fn complete(&mut self, round: Round) {
        self.newest = round.number;
        if self.policed_from.is_none() {
            let open = round.outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Open);
            self.opened.extend(open.map(|(index, _)| *index));
        }
        if self.rounds.len() == IN_A_ROW {
            self.rounds.remove(0);
        }
        self.rounds.push(round);
    }

    /// Whether everything came through in one round before there was a policy. The API server's address may be closed to
    /// pods by somebody else: it is no condition.
    pub fn is_open(&self) -> bool {
        let all = |round: &Round| {
            self.legs()
                .all(|(index, leg)| leg.way == Way::ApiServer || round.outcomes.get(&index) == Some(&Outcome::Open))
        };
        self.rounds.last().is_some_and(all)
    }

    /// The policy is there from now on. The round that is being written, and one that may have begun since, do not count.
    pub fn policed(&mut self) {
        self.policed_from = Some(self.newest + 2);
        self.rounds.clear();
    }

    /// Whether the last rounds were as the policy says.
    pub fn is_as_policed(&self) -> bool {
        let as_policed = |round: &Round| self.legs().all(|(index, leg)| self.is_as_policed_in(round, index, leg));
        self.counted().count() == IN_A_ROW && self.counted().all(as_policed)
    }

    fn is_as_policed_in(&self, round: &Round, index: usize, leg: &Leg) -> bool {
        match round.outcomes.get(&index) {
            Some(Outcome::Open) => !leg.way.is_closed(),
            Some(Outcome::Closed) => leg.way.is_closed(),
            // What never was open cannot be found closed; only the API server's address is let off (`is_open`).
            _ => leg.way == Way::ApiServer && !self.opened.contains(&index),
        }
    }

    /// The last rounds that began when the policy was there.
    fn counted(&self) -> impl Iterator<Item = &Round> {
        let from = self.policed_from.unwrap_or(u64::MAX);
        self.rounds.iter().filter(move |round| round.number >= from)
    }

    fn legs(&self) -> impl Iterator<Item = (usize, &Leg)> {
        self.prober.legs.iter().enumerate()
    }

    /// The legs whose last outcome is not as it is wanted, with that outcome; all of them where there is no round.
    fn amiss(&self, wanted: impl Fn(usize, &Leg, Option<&Outcome>) -> bool) -> Vec<Amiss<'_>> {
        let last = self.rounds.last();
        self.legs()
            .map(|(index, leg)| (index, leg, last.and_then(|round| round.outcomes.get(&index))))
            .filter(|(index, leg, outcome)| !wanted(*index, leg, *outcome))
            .map(|(_, leg, outcome)| Amiss { from: &self.prober.node, leg, outcome })
            .collect()
    }
}

/// A leg whose outcome is not as it is wanted.
#[derive(Debug)]
struct Amiss<'a> {
    from: &'a str,
    leg: &'a Leg,
    outcome: Option<&'a Outcome>,
}

impl Amiss<'_> {
    fn place(&self) -> String {
        match &self.leg.to {
            Some(to) if to != self.from => format!("{} → {to}", self.from),
            _ => self.from.to_owned(),
        }
    }
}

impl Verdict {
    /// Why the canary cannot begin: what did not come through although nothing closed it.
    pub fn not_open(records: &[Record]) -> Verdict {
        let amiss: Vec<_> = records
            .iter()
            .flat_map(|record| {
                record.amiss(|_, leg, outcome| leg.way == Way::ApiServer || outcome == Some(&Outcome::Open))
            })
            .collect();
        inconclusive("without any policy, nothing came through ", &amiss, false)
    }

    /// What the records say when the time to close is over and not all is [as policed](Record::is_as_policed).
    pub fn overdue(records: &[Record]) -> Verdict {
        let amiss: Vec<_> = records
            .iter()
            .filter(|record| !record.is_as_policed())
            .flat_map(|record| {
                record.amiss(|index, leg, _| {
                    record.counted().last().is_some_and(|round| record.is_as_policed_in(round, index, leg))
                })
            })
            .collect();
        let open: Vec<_> =
            amiss.iter().filter(|it| it.leg.way.is_closed() && it.outcome == Some(&Outcome::Open)).collect();
        if open.is_empty() {
            return inconclusive("with the policy, nothing came through ", &amiss, true);
        }
        let families = open.iter().filter_map(|it| it.leg.family).collect();
        Verdict::NotEnforced { open: sentence(open.iter().map(|it| (it.leg, it.place()))), families }
    }
}

fn inconclusive(what: &str, amiss: &[Amiss<'_>], is_policed: bool) -> Verdict {
    let unknown = amiss.iter().find_map(|it| match it.outcome {
        Some(Outcome::Unknown(words)) => Some((it, words)),
        _ => None,
    });
    if let Some((it, words)) = unknown {
        return Verdict::Inconclusive {
            why: format!("a probe {} on node {} could not run: {words}", it.leg.way.as_str(), it.from),
            remedy: "use a helper_image whose wget and nc are those of busybox, e.g. busybox:1.37".to_owned(),
        };
    }
    // A name that is not resolved says less about what lies beneath than an address that is not reached.
    let counts = |leg: &Leg| leg.way != Way::Name && !(is_policed && leg.way.is_closed());
    let by_address: Vec<_> = amiss.iter().filter(|it| counts(it.leg)).collect();
    if by_address.is_empty() && amiss.iter().any(|it| it.leg.way == Way::Name) {
        let (why, remedy) = if is_policed {
            (
                "with the policy, pods cannot resolve names: it admits DNS at another place than where the cluster's is",
                "set dns_namespace and dns_labels to those of the cluster's DNS pods, and dns_addresses to a DNS cache on the nodes (the nameserver in a pod's /etc/resolv.conf)",
            )
        } else {
            (
                "pods cannot resolve names of Services even without a policy",
                "see to the cluster's DNS (kube-dns or CoreDNS), and that cluster_domain is its domain",
            )
        };
        return Verdict::Inconclusive { why: why.to_owned(), remedy: remedy.to_owned() };
    }
    if by_address.is_empty() {
        return Verdict::Inconclusive {
            why: "too few probes came to an end in time".to_owned(),
            remedy: "check again when the nodes are less busy".to_owned(),
        };
    }
    Verdict::Inconclusive {
        why: format!("{what}{}", sentence(by_address.iter().map(|it| (it.leg, it.place())))),
        remedy: if is_policed {
            "the network plugin closes what the policy admits: check its pods on these nodes, and whether somebody else's cluster-wide policy closes it"
        } else {
            "check the network plugin's pods on these nodes, and whether somebody else's cluster-wide policy closes it"
        }
        .to_owned(),
    }
}

/// Ways, each once, with the families and the places.
fn sentence<'a>(legs: impl Iterator<Item = (&'a Leg, String)>) -> String {
    let mut ways: BTreeMap<(Way, Option<Family>), BTreeSet<String>> = BTreeMap::new();
    for (leg, place) in legs {
        ways.entry((leg.way, leg.family)).or_default().insert(place);
    }
    ways.into_iter().fold(String::new(), |mut sentence, ((way, family), places)| {
        let places: Vec<_> = places.into_iter().collect();
        let family = family.map(|family| format!(" by {family}")).unwrap_or_default();
        let separator = if sentence.is_empty() { "" } else { "; " };
        // Writing into a String cannot fail.
        let _ = write!(sentence, "{separator}{}{family} ({})", way.as_str(), places.join(", "));
        sentence
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::canary::{Server, probers};

    fn records() -> Vec<Record> {
        let server = |node: &str, addresses: [&str; 2]| Server {
            node: node.to_owned(),
            addresses: addresses.map(|it| it.parse().expect("an address")).into(),
        };
        let policed = [server("a", ["10.0.0.1", "fd00::1"]), server("b", ["10.0.0.2", "fd00::2"])];
        let api = BTreeSet::from(["172.18.0.2:6443".parse().expect("an address")]);
        probers(&policed, &server("b", ["10.0.0.3", "fd00::3"]), "web.x", &api).into_iter().map(Record::new).collect()
    }

    /// Lets every prober write a round in which each leg has the outcome that `of` gives it.
    fn round(records: &mut [Record], number: u64, of: impl Fn(&str, &Leg) -> &'static str) {
        for record in records {
            let legs = record.prober.legs.clone();
            for (index, leg) in legs.iter().enumerate() {
                record.take(&format!("{number} {index} {}", of(&record.prober.node.clone(), leg)));
            }
            record.take(&format!("{number} ."));
        }
    }

    fn open(_: &str, _: &Leg) -> &'static str {
        "open"
    }

    fn enforced(_: &str, leg: &Leg) -> &'static str {
        if leg.way.is_closed() { "dropped" } else { "open" }
    }

    /// Records of probers that all came through, with the policy there and `of` in every round since.
    fn after(of: impl Fn(&str, &Leg) -> &'static str) -> Vec<Record> {
        let mut records = records();
        round(&mut records, 1, open);
        assert!(records.iter().all(Record::is_open));
        records.iter_mut().for_each(Record::policed);
        for number in 2..=5 {
            round(&mut records, number, &of);
        }
        records
    }

    #[test]
    fn closed_ways_that_were_open_before_and_admitted_ones_beside_them_are_a_pass() {
        let mut records = after(enforced);
        assert!(records.iter().all(Record::is_as_policed));
        round(&mut records, 6, open);
        assert!(!records[0].is_as_policed(), "one round that is not so is enough");
    }

    #[test]
    fn rounds_that_may_have_begun_before_the_policy_do_not_count() {
        let mut records = records();
        round(&mut records, 1, open);
        records.iter_mut().for_each(Record::policed);
        round(&mut records, 2, enforced);
        round(&mut records, 3, enforced);
        assert!(!records[0].is_as_policed() && records[0].counted().next().is_some());
        round(&mut records, 4, enforced);
        assert!(records.iter().all(Record::is_as_policed));
    }

    /// Each row: which closed ways stay open, and the words and families of the verdict.
    #[test]
    fn a_way_that_stays_open_is_told_with_family_and_nodes() {
        type Half = fn(&str, &Leg) -> bool;
        let rows: [(&str, Half, &str, &[Family]); 6] = [
            (
                "everything",
                |_, _| true,
                "from an app's pod to a pod of another namespace by IPv4",
                &[Family::V4, Family::V6],
            ),
            ("one family", |_, leg| leg.family == Some(Family::V6), "by IPv6 (a → b, b)", &[Family::V6]),
            (
                "one direction",
                |_, leg| leg.way == Way::In,
                "from a pod of another namespace to an app's pod by IPv4 (a, a → b)",
                &[Family::V4, Family::V6],
            ),
            ("one node", |from, leg| from == "b" && leg.way == Way::Out, "by IPv4 (b);", &[Family::V4, Family::V6]),
            (
                "the other's packets",
                |_, leg| leg.to.as_deref() == Some("a") && leg.way == Way::In,
                "by IPv4 (a);",
                &[Family::V4, Family::V6],
            ),
            (
                "nodes' addresses",
                |_, leg| leg.way == Way::ApiServer,
                "the API server's own address by IPv4 (a, b)",
                &[Family::V4],
            ),
        ];
        for (name, stays_open, words, expected) in rows {
            let records = after(|from, leg| if stays_open(from, leg) { "open" } else { enforced(from, leg) });
            match Verdict::overdue(&records) {
                Verdict::NotEnforced { open, families } => {
                    assert!(open.contains(words), "{name}: {open}");
                    assert_eq!(families.into_iter().collect::<Vec<_>>(), expected, "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    /// None of these may ever be a pass, though every closed way is "not open" in them.
    #[test]
    fn a_network_that_is_closed_for_another_reason_proves_nothing() {
        type Half = fn(&str, &Leg) -> &'static str;
        let rows: [(&str, Half, &str); 6] = [
            ("all is closed", |_, _| "dropped", "nothing came through from an app's pod to one of its own"),
            ("the probe cannot run", |_, _| "unknown nc: unrecognized option: z", "unrecognized option"),
            (
                "only closed probes cannot run",
                |_, leg| if leg.way.is_closed() { "unknown no answer within 3 s" } else { "open" },
                "no answer within 3 s",
            ),
            (
                "the name server is closed",
                |from, leg| if leg.way == Way::Name { "noname" } else { enforced(from, leg) },
                "cannot resolve names",
            ),
            (
                "Pando's server is closed out",
                |from, leg| if leg.way == Way::Proxy { "refused" } else { enforced(from, leg) },
                "from Pando's server to an app's pod by IPv4",
            ),
            ("nobody writes", |_, _| "perhaps", "nothing came through"),
        ];
        for (name, of, words) in rows {
            let records = after(of);
            assert!(!records.iter().all(Record::is_as_policed), "{name}");
            match Verdict::overdue(&records) {
                Verdict::Inconclusive { why, remedy } => {
                    assert!(why.contains(words), "{name}: {why}");
                    assert!(!remedy.is_empty());
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_was_never_open_cannot_be_found_closed() {
        let silent = records();
        let mut records = records();
        round(&mut records, 1, |_, leg| if leg.way == Way::Out { "dropped" } else { "open" });
        assert!(!records[0].is_open());
        match Verdict::not_open(&records) {
            Verdict::Inconclusive { why, .. } => assert!(why.contains("without any policy"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(Verdict::not_open(&silent), Verdict::Inconclusive { .. }), "nobody wrote");
    }

    #[test]
    fn an_address_of_the_api_server_that_pods_never_reach_is_let_off() {
        let before =
            |_: &str, leg: &Leg| if leg.way == Way::ApiServer { "unknown no answer within 3 s" } else { "open" };
        let mut records = records();
        round(&mut records, 1, before);
        assert!(records.iter().all(Record::is_open));
        records.iter_mut().for_each(Record::policed);
        for number in 2..=4 {
            round(&mut records, number, |from, leg| {
                if leg.way == Way::ApiServer { before(from, leg) } else { enforced(from, leg) }
            });
        }
        assert!(records.iter().all(Record::is_as_policed));
    }

    #[test]
    fn a_log_that_is_read_anew_changes_nothing() {
        let mut records = records();
        for number in 1..=3 {
            round(&mut records, number, open);
        }
        records.iter_mut().for_each(Record::policed);
        for number in 1..=3 {
            round(&mut records, number, enforced);
        }
        assert!(records.iter().all(|record| record.counted().next().is_none()));
        records[0].take("no line of ours");
        records[0].take("");
        records[0].take("4 0");
    }
}
