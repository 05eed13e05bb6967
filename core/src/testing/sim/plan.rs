//! The parameters of a run: how many replicas and clients, how long, and which faults. All of them follow from the
//! seed, and can be changed one by one.

use super::fault::Fault;
use crate::disk::sim::Rng;
use std::collections::BTreeSet;
use std::time::Duration;

/// The parameters of a run.
///
/// ```
/// use chiplog::sim::Plan;
/// let plan = Plan::of(7);
/// assert_eq!(plan, Plan::of(7));
/// assert!([1, 2, 3, 5, 7].contains(&plan.voters));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The seed of all random numbers.
    pub seed: u64,
    /// How many replicas vote at the beginning.
    pub voters: u64,
    /// How many replicas are learners at the beginning.
    pub learners: u64,
    /// How many copies of the log follow from outside.
    pub followers: u64,
    /// How many named logs the cluster's group has at the beginning; 0: the group is one log on its own. Further ones
    /// come and go during the run.
    pub logs: u32,
    /// The cluster's group is one of named logs, although it has none at the beginning.
    pub(super) is_bare_group: bool,
    /// Whether the run ends with a part in which two programs create and delete named logs of the same names.
    pub creators: bool,
    /// Whether named logs have capacities of their own, and more and larger records.
    pub quotas: bool,
    /// Whether new servers begin with a follower's copy.
    pub copies_join: bool,
    /// Whether the replicas have an object store.
    pub objects: bool,
    /// Whether branches are made of the log and used: in some runs with an object store, and without named logs.
    pub branches: bool,
    /// How many clients have no session.
    pub plain_clients: u32,
    /// How many clients have a session.
    pub session_clients: u32,
    /// How long faults are injected, in virtual time.
    pub trouble: Duration,
    /// How long the cluster may take to recover afterwards.
    pub wait_limit: Duration,
    /// The interval of the leader's heartbeats.
    pub heartbeat: Duration,
    /// A follower starts an election after hearing nothing for one to two times this long.
    pub election_timeout: Duration,
    /// The usual delay of a message.
    pub delay: Duration,
    /// The usual duration of a sync.
    pub sync_time: Duration,
    /// The mean pause of a client between two appends.
    pub think: Duration,
    /// Whether records are large, so that segments fill quickly.
    pub heavy: bool,
    /// The mean time between two faults.
    pub fault_interval: Duration,
    /// The faults that may happen.
    pub faults: BTreeSet<Fault>,
    /// A session that is idle for this long expires; longer than the run and all jumps of clocks, if none may.
    pub session_idle_max: Duration,
    /// How many sessions may be open at once; `None`: more than there ever are.
    pub sessions_max: Option<u32>,
    /// How many bytes of messages may wait for one other replica.
    pub queue_bytes_max: usize,
    /// How long a pass takes that reads all objects.
    pub object_scrub: Duration,
}

/// A fourth of all runs has named logs. From a generator of its own, so that the other parameters of a seed do not change.
fn named_logs(seed: u64) -> u32 {
    let mut rng = Rng::new(seed ^ 0x1095);
    if rng.permille(250) { rng.between(1, 4) as u32 } else { 0 }
}

/// A third of all runs has an object store, with named logs and without.
fn has_objects(seed: u64) -> bool {
    Rng::new(seed ^ 0x0b_7ec7).permille(333)
}

/// Two fifths of all runs with an object store and without named logs make branches.
fn has_branches(seed: u64) -> bool {
    has_objects(seed) && named_logs(seed) == 0 && Rng::new(seed ^ 0xb4_a7e4).permille(400)
}

/// Sessions do not expire within this: clocks jump by less.
const IDLE_NEVER: Duration = Duration::from_secs(24 * 3600);

/// Several passes over all objects in a run.
pub(super) const OBJECT_SCRUB: Duration = Duration::from_secs(2);

impl Plan {
    /// The plan that follows from a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x51ab_5e5e);
        let voters = [1, 2, 3, 3, 3, 3, 3, 5, 5, 7][rng.below(10)];
        let learners = [0, 0, 0, 1, 2][rng.below(5)];
        let heartbeat = Duration::from_millis([50, 100, 100, 200][rng.below(4)]);
        let election_timeout = heartbeat * [5, 10, 10][rng.below(3)];
        let mut faults = BTreeSet::new();
        for fault in Fault::ALL.iter().filter(|f| {
            use Fault::{BranchMade, CopyJoined, LogDropped, LogFull, LogRetained, LogSealed, SetOptions};
            !matches!(
                f,
                SetOptions | LogDropped | LogSealed | LogRetained | LogFull | BranchMade | CopyJoined
            )
        }) {
            if rng.permille(550) {
                faults.insert(*fault);
            }
        }
        // From a generator of its own, as with followers, so that the other parameters of a seed do not change.
        if Rng::new(seed ^ 0x0b_7104).permille(400) {
            faults.insert(Fault::SetOptions);
        }
        let expire = rng.permille(250).then(|| Duration::from_millis(rng.between(800, 4_000)));
        let crowd = rng.between(2, 4) as u32;
        let crowded = expire.is_some() && rng.permille(600);
        let micros = |rng: &mut Rng, low, high| Duration::from_micros(rng.between(low, high));
        Self {
            seed,
            voters,
            learners,
            followers: Rng::new(seed ^ 0xf0_110e).below(4) as u64,
            logs: named_logs(seed),
            is_bare_group: false,
            creators: named_logs(seed) > 0 && seed.is_multiple_of(2),
            // The seeds that `bugs.rs` has recorded play without.
            quotas: named_logs(seed) > 0 && (seed % 10 == 1 || matches!(seed % 11, 0 | 10)),
            copies_join: seed % 12 == 9 || seed % 16 == 9 || matches!(seed % 19, 14 | 15),
            objects: has_objects(seed),
            branches: has_branches(seed),
            plain_clients: rng.between(1, 3) as u32,
            session_clients: rng.between(1, 3) as u32,
            trouble: Duration::from_millis(rng.between(10_000, 25_000)),
            wait_limit: election_timeout * 60 + Duration::from_secs(20),
            heartbeat,
            election_timeout,
            delay: micros(&mut rng, 50, 5_000),
            sync_time: micros(&mut rng, 100, 5_000),
            think: Duration::from_millis(rng.between(30, 300)),
            heavy: rng.permille(400),
            fault_interval: Duration::from_millis(rng.between(300, 2_000)),
            faults,
            session_idle_max: expire.unwrap_or(IDLE_NEVER),
            sessions_max: crowded.then_some(crowd),
            // Small queues fill up; only large queues hold enough to make a leader slow down.
            queue_bytes_max: if seed.is_multiple_of(2) { 48 << 10 } else { 1 << 20 },
            object_scrub: OBJECT_SCRUB,
        }
    }

    /// Without any fault, to check that a run without faults is good.
    pub fn calm(seed: u64) -> Self {
        let (session_idle_max, sessions_max) = (IDLE_NEVER, None);
        Self { faults: BTreeSet::new(), session_idle_max, sessions_max, ..Self::of(seed) }
    }

    /// Whether the log's time follows the true one: no clock jumps, and none is wrong by more than 100 ms.
    pub(super) fn clocks_are_right(&self) -> bool {
        !self.faults.contains(&Fault::ClockAhead) && !self.faults.contains(&Fault::ClockBack)
    }

    /// Whether an idle session may expire.
    pub(super) fn sessions_expire(&self) -> bool {
        self.session_idle_max < IDLE_NEVER
    }
}
