//! What can go wrong with one call, and which of it can go wrong with which call.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pando_cluster::{Failure, Kind};

use super::scenario::Faults;

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// One object is read.
    Get,
    /// A page of objects is read.
    List,
    /// A stream of changes is opened.
    Watch,
    /// A container's output is opened.
    Logs,
    /// An object is created.
    Create,
    /// An object is changed.
    Patch,
    /// An object is deleted, at whatever version it is.
    Delete,
    /// An object is deleted if it is at one version.
    DeleteAtVersion,
}

/// One call, as far as faults care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// What is asked for.
    pub verb: Verb,
    /// The kind of the objects.
    pub kind: Kind,
}

impl Asked {
    /// Whether the call is to change something.
    pub const fn writes(self) -> bool {
        matches!(self.verb, Verb::Create | Verb::Patch | Verb::Delete | Verb::DeleteAtVersion)
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.verb, self.kind)
    }
}

macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident $name:literal;)+) => {
        /// One fault. Those that the adapter cannot tell apart are one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[$doc])* $fault,)+
        }

        impl Fault {
            /// Every fault.
            pub const ALL: &[Self] = &[$(Self::$fault),+];

            /// Its name on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$fault => $name,)+ }
            }
        }
    };
}

faults! {
    /// F-01: nothing happens, and the API server is said to be unavailable.
    Unavailable "unavailable";
    /// F-04: nothing happens; the API server asks for two seconds of patience.
    Overloaded "overloaded";
    /// F-04: the quota's bookkeeping is in the way.
    QuotaConflict "quota-conflict";
    /// F-04: a right is missing, this once.
    Forbidden "forbidden";
    /// F-04: the credentials are not accepted, this once.
    Unauthorized "unauthorized";
    /// F-04: the object is said to break a rule, this once.
    Invalid "invalid";
    /// F-04: the object is said to be at another version.
    Conflict "conflict";
    /// F-04: the name is said to be taken.
    AlreadyExists "already-exists";
    /// F-04: the version is said to be too old.
    Expired "expired";
    /// F-03: the call is carried out, and its answer is lost.
    AnswerLost "answer-lost";
    /// F-14: the call takes four seconds to arrive.
    SlowThere "slow-there";
    /// F-14: the answer takes four seconds to come back: what it says is old by then.
    SlowBack "slow-back";
    /// F-14: nothing is answered, ever; the caller's deadline ends it.
    Hangs "hangs";
    /// F-14: nothing is answered, and the call is carried out just after the caller's deadline, beside what it does then.
    LateSoon "late-soon";
    /// F-14: nothing is answered, and the call is carried out minutes later, when its caller has long gone on.
    LateLong "late-long";
    /// F-10: the caller's process dies, and its call is carried out a little later.
    DiesInFlight "dies-in-flight";
    /// F-10: the caller's process dies, and its call is carried out minutes later.
    DiesLongBefore "dies-long-before";
    /// F-01: the API server cannot be reached for a minute from then on, longer than any call is tried.
    Outage "outage";
    /// F-08: the stream ends at once.
    WatchCut "watch-cut";
    /// F-08: the stream tells nothing and does not end.
    WatchSilent "watch-silent";
    /// F-08: the stream says that its version is too old (410).
    WatchExpired "watch-expired";
}

impl Fault {
    /// How long an API server that has too much to do asks to be left alone.
    pub(super) const PATIENCE: Duration = Duration::from_secs(2);
    /// How long the slow ways take.
    pub(super) const SLOW: Duration = Duration::from_secs(4);
    /// When a late call is carried out that its caller just gave up.
    pub(super) const SOON: Duration = Duration::from_millis(35_050);
    /// When a late call is carried out that everybody has forgotten.
    pub(super) const LONG: Duration = Duration::from_mins(2);
    /// When a dead caller's call is carried out.
    pub(super) const IN_FLIGHT: Duration = Duration::from_millis(700);
    /// How long an outage lasts.
    pub(super) const OUTAGE: Duration = Duration::from_mins(1);

    /// The faults that can befall a call: every one, or one of each class.
    pub(super) fn of(asked: Asked, which: Faults) -> impl Iterator<Item = Self> {
        let is_chosen = move |fault: &Self| match which {
            Faults::All => true,
            Faults::Classes => fault.is_of_a_class(asked),
            Faults::Lasting => fault.is_of_a_class(asked) && fault.may_last(),
        };
        Self::ALL.iter().copied().filter(move |fault| fault.befalls(asked) && is_chosen(fault))
    }

    /// Whether the fault may leave something behind: the operation fails for it, or it lands when that is over.
    const fn may_last(self) -> bool {
        !self.is_absorbed() || self.lands_late()
    }

    /// Whether the fault stands for those that the adapter takes in the same way as it: what passes is tried again, what does not
    /// is told.
    const fn is_of_a_class(self, asked: Asked) -> bool {
        match self {
            Self::Unavailable | Self::QuotaConflict | Self::Forbidden | Self::SlowThere | Self::WatchCut => false,
            Self::Unauthorized => !asked.writes(),
            Self::Overloaded
            | Self::Invalid
            | Self::Conflict
            | Self::AlreadyExists
            | Self::Expired
            | Self::AnswerLost
            | Self::SlowBack
            | Self::Hangs
            | Self::LateSoon
            | Self::LateLong
            | Self::DiesInFlight
            | Self::DiesLongBefore
            | Self::Outage
            | Self::WatchSilent
            | Self::WatchExpired => true,
        }
    }

    const fn befalls(self, asked: Asked) -> bool {
        match self {
            Self::Unavailable
            | Self::Overloaded
            | Self::Forbidden
            | Self::Unauthorized
            | Self::SlowBack
            | Self::Outage => true,
            Self::Hangs => !asked.writes(),
            Self::QuotaConflict => matches!(
                (asked.verb, asked.kind),
                (Verb::Create | Verb::Patch, Kind::Pod | Kind::Service | Kind::Secret)
            ),
            Self::Conflict => matches!(asked.verb, Verb::Patch | Verb::DeleteAtVersion),
            // Of a binding it is believed: only a lost answer makes it true, and that is another fault.
            Self::AlreadyExists => matches!(asked.verb, Verb::Create) && !matches!(asked.kind, Kind::RoleBinding),
            Self::Expired | Self::WatchCut | Self::WatchSilent | Self::WatchExpired => {
                matches!(asked.verb, Verb::Watch)
            }
            Self::Invalid
            | Self::AnswerLost
            | Self::SlowThere
            | Self::LateSoon
            | Self::LateLong
            | Self::DiesInFlight
            | Self::DiesLongBefore => asked.writes(),
        }
    }

    /// Whether an operation must succeed all the same: the fault is one of those that pass (S-9), or one that the
    /// protocol of starts expects.
    pub const fn is_absorbed(self) -> bool {
        match self {
            Self::Unavailable
            | Self::Overloaded
            | Self::QuotaConflict
            | Self::Conflict
            | Self::AlreadyExists
            | Self::Expired
            | Self::AnswerLost
            | Self::SlowThere
            | Self::SlowBack
            // A call that hung is made once more.
            | Self::Hangs
            | Self::LateSoon
            | Self::LateLong
            | Self::WatchCut
            | Self::WatchSilent
            | Self::WatchExpired => true,
            Self::Forbidden
            | Self::Unauthorized
            | Self::Invalid
            | Self::DiesInFlight
            | Self::DiesLongBefore
            | Self::Outage => false,
        }
    }

    /// Whether something may still land when the operation is over.
    pub const fn lands_late(self) -> bool {
        matches!(self, Self::LateSoon | Self::LateLong | Self::DiesInFlight | Self::DiesLongBefore)
    }

    /// What the caller is told where the call is answered by nothing but an error.
    pub(super) fn refusal(self, asked: Asked) -> Option<Failure> {
        let injected = || "injected".to_owned();
        Some(match self {
            Self::Unavailable | Self::Outage => Failure::Unavailable(injected()),
            Self::Overloaded => Failure::Overloaded { retry_after: Some(Self::PATIENCE) },
            Self::QuotaConflict => Failure::QuotaConflict(injected()),
            Self::Forbidden => {
                Failure::Forbidden { verb: format!("{:?}", asked.verb), resource: asked.kind.plural().to_owned() }
            }
            Self::Unauthorized => Failure::Unauthorized,
            Self::Invalid => Failure::Invalid { message: injected(), causes: Vec::new() },
            Self::Conflict => Failure::Conflict(injected()),
            Self::AlreadyExists => Failure::AlreadyExists { being_deleted: false },
            Self::Expired => Failure::Expired(injected()),
            Self::AnswerLost
            | Self::SlowThere
            | Self::SlowBack
            | Self::Hangs
            | Self::LateSoon
            | Self::LateLong
            | Self::DiesInFlight
            | Self::DiesLongBefore
            | Self::WatchCut
            | Self::WatchSilent
            | Self::WatchExpired => return None,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.iter().copied().find(|fault| fault.name() == text);
        named.ok_or_else(|| {
            format!(
                "{text:?} is no fault; there are {}",
                Self::ALL.iter().map(|it| it.name()).collect::<Vec<_>>().join(", ")
            )
        })
    }
}
