//! How long things may take: the waits that an operator meets, named once (spec §3). Paces of one mechanism stand with it.

use std::time::Duration;

/// A read of one object.
pub const READ: Duration = Duration::from_secs(10);
/// A write; admission webhooks may take 30 s of it.
pub const WRITE: Duration = Duration::from_secs(35);
/// A page of a list.
pub const PAGE: Duration = Duration::from_secs(30);
/// The opening of a stream.
pub const STREAM: Duration = Duration::from_secs(15);

/// At most so many tries of a call…
pub const TRIES: u32 = 5;
/// … begun within this time of the first, all but the second: a first one that hung may have taken longer.
pub const TRYING: Duration = Duration::from_secs(30);
/// The wait before the second try; it doubles with each.
pub const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// The longest wait of our own choice between two tries.
pub const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// The longest wait that an API server may ask for.
pub const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The life of one watch; the server closes it then.
pub const WATCH: Duration = Duration::from_secs(290);
/// A watch without event or bookmark for so long is dead: bookmarks come every 60 s.
pub const WATCH_SILENCE: Duration = Duration::from_secs(90);
/// The longest wait between two tries to open a watch.
pub const WATCH_BACKOFF: Duration = Duration::from_secs(30);

/// A namespace of the wanted name that is being deleted.
pub const NAMESPACE_GOES: Duration = Duration::from_mins(1);
/// Beyond its grace, how long a pod's object may take to go.
pub const STOP_SLACK: Duration = Duration::from_secs(30);
/// An image that cannot be had: so long, or seen twice.
pub const IMAGE_ERROR: Duration = Duration::from_secs(10);
/// A registry's rate limit.
pub const RATE_LIMIT: Duration = Duration::from_secs(30);
/// A container that cannot be configured or created.
pub const CONFIG_ERROR: Duration = Duration::from_secs(15);
/// A volume or file that cannot be mounted.
pub const MOUNT_ERROR: Duration = Duration::from_mins(2);
/// A volume that cannot be attached: to force it off a dead node takes 360 s.
pub const ATTACH_ERROR: Duration = Duration::from_mins(8);
/// A workload that others start after, until its health check passes.
pub const DEPENDENCY_READY: Duration = Duration::from_mins(2);
/// A quota that was widened and has not taken effect.
pub const QUOTA_SETTLES: Duration = Duration::from_secs(10);
/// How long facts about nodes and the API server's addresses are used before they are read again.
pub const CLUSTER_FACTS: Duration = Duration::from_mins(1);
/// A canary's pods, until they run: the helper image may have to be pulled.
pub const CANARY_STARTS: Duration = Duration::from_mins(2);
/// Until everything comes through between a canary's pods, before there is a policy.
pub const CANARY_OPENS: Duration = Duration::from_secs(20);
/// At most so long may a canary's policy take to close, however long a gate may wait.
pub const CANARY_CLOSES: Duration = Duration::from_mins(2);
/// A canary's namespaces of this age are somebody's who died.
pub const CANARY_IS_STALE: Duration = Duration::from_mins(6);
/// A pass that is older is found out anew by a health check.
pub const VERDICT_IS_RENEWED: Duration = Duration::from_mins(45);
/// A health check answers by a pass that is no older, where nothing newer could be found out.
pub const VERDICT_IS_FRESH: Duration = Duration::from_hours(1);
/// Apps are started by a pass that is no older.
pub const VERDICT_COUNTS: Duration = Duration::from_hours(3);
/// That policies are not enforced is believed for so long, and then found out anew.
pub const FAILURE_IS_KEPT: Duration = Duration::from_mins(5);
/// A process asks so often what others found out.
pub const VERDICT_IS_REREAD: Duration = Duration::from_mins(5);
/// Clocks may differ by so much.
pub const CLOCKS_DIFFER: Duration = Duration::from_mins(5);
