//! What a cluster's isolation is held to be, from one canary to the next (S-12).
//!
//! Pure: ages are given, and what is to be kept is text. A network plugin does not die often, and a canary takes seconds, so a verdict is
//! used again for its time; and since nodes are busy now and then, one that passed is not overthrown by a single run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use pando_cluster::budget;

use super::{Family, Verdict};

/// The form of what is kept. What an adapter of another form kept is no verdict to this one.
const FORM: &str = "1";

/// What one canary found, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it found.
    pub verdict: Verdict,
    /// The families of addresses that its pods had; none where they did not run.
    pub families: BTreeSet<Family>,
    /// The nodes whose pods had the policy.
    pub nodes: Vec<String>,
    /// When it began, by the API server's clock.
    pub at: Timestamp,
}

/// What a cluster's isolation is held to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What that is.
    pub held: Held,
    /// The families of addresses that were tried.
    pub families: BTreeSet<Family>,
    /// The nodes on which it was tried.
    pub nodes: Vec<String>,
    /// When the canary began that it rests on, by the API server's clock.
    pub at: Timestamp,
}

/// What the last canaries add up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The last one passed.
    Passed {
        /// How long after the policy's creation the last way was closed.
        time_to_deny: Duration,
    },
    /// The last one found a way open, and the one before it none: another has to decide.
    Doubted(Open),
    /// A way stays open.
    Failed(Open),
}

/// Ways that stayed open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Which, for a person.
    pub ways: String,
    /// Of which families; empty where that is not of a family.
    pub families: BTreeSet<Family>,
}

impl Standing {
    /// What is held after a canary found something, in view of what was held `before`; `None` where that stays as it was: the canary
    /// proved nothing, or passed and began before the one that `before` rests on.
    pub fn after(before: Option<&Self>, found: &Finding) -> Option<Self> {
        let is_outdated = before.is_some_and(|before| before.at > found.at && before.age(found.at).is_some());
        let held = match &found.verdict {
            Verdict::Enforced { .. } if is_outdated => return None,
            Verdict::Enforced { time_to_deny } => Held::Passed { time_to_deny: *time_to_deny },
            Verdict::NotEnforced { open, families } => {
                let open = Open { ways: open.clone(), families: families.clone() };
                let passed = before.is_some_and(|before| {
                    let age = before.age(found.at);
                    matches!(before.held, Held::Passed { .. }) && age.is_some_and(|age| age <= budget::VERDICT_COUNTS)
                });
                if passed { Held::Doubted(open) } else { Held::Failed(open) }
            }
            Verdict::Inconclusive { .. } => return None,
        };
        Some(Self { held, families: found.families.clone(), nodes: found.nodes.clone(), at: found.at })
    }

    /// How old it is at a time; `None` where it comes from the future by more than clocks may differ, so that nobody can tell.
    pub fn age(&self, now: Timestamp) -> Option<Duration> {
        let age = now.duration_since(self.at);
        if age.is_negative() && age.unsigned_abs() > budget::CLOCKS_DIFFER {
            return None;
        }
        Some(Duration::try_from(age).unwrap_or_default())
    }

    /// As text by names, to be kept; `adapter` is the version of whoever found it out.
    pub fn to_texts(&self, adapter: &str) -> BTreeMap<String, String> {
        let (verdict, more) = match &self.held {
            Held::Passed { time_to_deny } => ("passed", vec![(TIME_TO_DENY, time_to_deny.as_millis().to_string())]),
            Held::Doubted(open) => ("doubted", open.to_texts()),
            Held::Failed(open) => ("failed", open.to_texts()),
        };
        let common = [
            ("form", FORM.to_owned()),
            ("verdict", verdict.to_owned()),
            ("checked", self.at.to_string()),
            ("families", joined(&self.families)),
            ("nodes", self.nodes.join(",")),
            ("adapter-version", adapter.to_owned()),
        ];
        common.into_iter().chain(more).map(|(name, text)| (name.to_owned(), text)).collect()
    }

    /// What [`Self::to_texts`] said; `None` where it says nothing that this version understands.
    pub fn from_texts(texts: &BTreeMap<String, String>) -> Option<Self> {
        let text = |name: &str| texts.get(name).map(String::as_str);
        let open = || -> Option<Open> {
            Some(Open { ways: text(OPEN)?.to_owned(), families: families(text(OPEN_FAMILIES)?)? })
        };
        if text("form") != Some(FORM) {
            return None;
        }
        let held = match text("verdict")? {
            "passed" => Held::Passed { time_to_deny: Duration::from_millis(text(TIME_TO_DENY)?.parse().ok()?) },
            "doubted" => Held::Doubted(open()?),
            "failed" => Held::Failed(open()?),
            _ => return None,
        };
        Some(Self {
            held,
            families: families(text("families")?)?,
            nodes: parts(text("nodes")?).map(str::to_owned).collect(),
            at: text("checked")?.parse().ok()?,
        })
    }
}

const TIME_TO_DENY: &str = "time-to-deny-milliseconds";
const OPEN: &str = "open";
const OPEN_FAMILIES: &str = "open-families";

impl Open {
    fn to_texts(&self) -> Vec<(&'static str, String)> {
        vec![(OPEN, self.ways.clone()), (OPEN_FAMILIES, joined(&self.families))]
    }
}

fn joined(families: &BTreeSet<Family>) -> String {
    families.iter().map(|family| family.as_str()).collect::<Vec<_>>().join(",")
}

fn families(text: &str) -> Option<BTreeSet<Family>> {
    parts(text).map(|part| [Family::V4, Family::V6].into_iter().find(|family| family.as_str() == part)).collect()
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|part| !part.is_empty())
}

/// What a verdict is good for at its age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worth {
    /// It passed a moment ago: nothing is to be found out.
    Fresh,
    /// It passed, and a health check finds out anew.
    Aging,
    /// It passed too long ago for a health check to answer by it, and apps are still started by it.
    Old,
    /// A way is open, and was so a moment ago.
    Failed,
    /// It says nothing any more, or did not say anything to begin with.
    None,
}

impl Held {
    /// What it is good for when it is so old; `None` where nobody can tell how old it is.
    pub fn worth(&self, age: Option<Duration>) -> Worth {
        let Some(age) = age else { return Worth::None };
        match self {
            Self::Passed { .. } if age <= budget::VERDICT_IS_RENEWED => Worth::Fresh,
            Self::Passed { .. } if age <= budget::VERDICT_IS_FRESH => Worth::Aging,
            Self::Passed { .. } if age <= budget::VERDICT_COUNTS => Worth::Old,
            Self::Failed(_) if age <= budget::FAILURE_IS_KEPT => Worth::Failed,
            Self::Passed { .. } | Self::Doubted(_) | Self::Failed(_) => Worth::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + minutes * 60).expect("a time")
    }

    fn found(verdict: Verdict, minutes: i64) -> Finding {
        Finding {
            verdict,
            families: [Family::V4, Family::V6].into(),
            nodes: vec!["a".into(), "b".into()],
            at: at(minutes),
        }
    }

    fn passes(minutes: i64) -> Finding {
        found(Verdict::Enforced { time_to_deny: Duration::from_millis(1234) }, minutes)
    }

    fn fails(minutes: i64) -> Finding {
        found(Verdict::NotEnforced { open: "by IPv6 (a, b)".to_owned(), families: [Family::V6].into() }, minutes)
    }

    fn says_nothing(minutes: i64) -> Finding {
        found(Verdict::Inconclusive { why: "w".to_owned(), remedy: "r".to_owned() }, minutes)
    }

    /// What is held after these, in order, by its name.
    fn held(found: &[Finding]) -> Option<&'static str> {
        let standing = found.iter().fold(None, |before, found| Standing::after(before.as_ref(), found).or(before));
        standing.map(|standing| match standing.held {
            Held::Passed { .. } => "passed",
            Held::Doubted(_) => "doubted",
            Held::Failed(_) => "failed",
        })
    }

    #[test]
    fn two_runs_turn_a_pass_into_a_failure_and_one_turns_it_back() {
        let rows = [
            (vec![passes(0)], Some("passed")),
            (vec![fails(0)], Some("failed")),
            (vec![passes(0), fails(60)], Some("doubted")),
            (vec![passes(0), fails(60), fails(61)], Some("failed")),
            (vec![passes(0), fails(60), passes(61)], Some("passed")),
            (vec![passes(0), fails(60), passes(61), fails(100)], Some("doubted")),
            (vec![passes(0), fails(60), says_nothing(61), fails(62)], Some("failed")),
            (vec![fails(0), passes(1)], Some("passed")),
            // A pass that does not count any more is nothing to weigh against.
            (vec![passes(0), fails(181)], Some("failed")),
            // They ran beside each other, and the one that began later ended first.
            (vec![fails(2), passes(0)], Some("failed")),
            (vec![passes(2), fails(0)], Some("doubted")),
            // Whoever kept that has another clock.
            (vec![fails(60), passes(0)], Some("passed")),
            (vec![passes(60), fails(0)], Some("failed")),
            (vec![passes(0), says_nothing(1)], Some("passed")),
            (vec![says_nothing(1)], None),
        ];
        for (found, expected) in rows {
            assert_eq!(held(&found), expected, "{found:?}");
        }
    }

    #[test]
    fn a_verdict_is_worth_less_with_its_age() {
        let standing = |finding| Standing::after(None, &finding).expect("it proves something").held;
        let doubted = Standing::after(Standing::after(None, &passes(0)).as_ref(), &fails(1)).expect("the same").held;
        for (held, minutes, worth) in [
            (standing(passes(0)), 0, Worth::Fresh),
            (standing(passes(0)), 45, Worth::Fresh),
            (standing(passes(0)), 46, Worth::Aging),
            (standing(passes(0)), 60, Worth::Aging),
            (standing(passes(0)), 61, Worth::Old),
            (standing(passes(0)), 180, Worth::Old),
            (standing(passes(0)), 181, Worth::None),
            (standing(fails(0)), 5, Worth::Failed),
            (standing(fails(0)), 6, Worth::None),
            (doubted, 0, Worth::None),
        ] {
            assert_eq!(held.worth(Some(MINUTE * minutes)), worth, "{held:?} after {minutes} min");
            assert_eq!(held.worth(None), Worth::None);
        }
    }

    #[test]
    fn a_little_from_the_future_is_new_and_more_is_nothing() {
        let standing = Standing::after(None, &passes(0)).expect("it passed");
        assert_eq!(standing.age(at(3)), Some(3 * MINUTE));
        assert_eq!(standing.age(at(-5)), Some(Duration::ZERO));
        assert_eq!(standing.age(at(-6)), None);
    }

    #[test]
    fn what_is_kept_reads_as_it_was() {
        let before = Standing::after(None, &passes(0));
        let all = [before.clone(), Standing::after(None, &fails(7)), Standing::after(before.as_ref(), &fails(7))];
        for standing in all.into_iter().flatten() {
            let texts = standing.to_texts("0.1.0");
            assert_eq!(texts["adapter-version"], "0.1.0");
            assert_eq!(Standing::from_texts(&texts), Some(standing));
            for name in texts.keys().filter(|name| *name != "adapter-version") {
                let mut without = texts.clone();
                without.remove(name);
                assert_eq!(Standing::from_texts(&without), None, "without {name}");
                without.insert(name.clone(), "🦀,".to_owned());
                let free = ["nodes", "open"].contains(&&**name);
                assert_eq!(Standing::from_texts(&without).is_some(), free, "with a strange {name}");
            }
        }
    }
}
