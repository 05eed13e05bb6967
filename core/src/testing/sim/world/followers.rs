//! Followers: copies of the log that are no members, fed by replicas and by each other through the simulated network.
//!
//! ```text
//!  follower ── connects ──> source: FollowSource ── encode ──> network ──> decode ──> Applier ── sync ──> disk
//!      ^                                                        │
//!      └───── another source, if the stream breaks <── a gap, damage, a source that has ended
//! ```
//!
//! Checks:
//! - every entry that is fed is the one that was committed there, by term and digest;
//! - every record that a follower publishes is the one that was committed at its index, byte for byte;
//! - every entry that a follower has made durable is there after any crash;
//! - a sound source never refuses a follower, nor does a follower refuse a sound source;
//! - a copy of one named log has that log's records under its indexes, whatever entries it makes of them;
//! - once all faults have ended, every follower has all records of its source, from its own first record on.

use super::{Check, Event, World};
use crate::cluster::transport::Envelope;
use crate::disk::sim::SimDisk;
use crate::error::{Error, ErrorKind};
use crate::follower::message::{FollowFrom, FollowMessage};
use crate::follower::source::FollowSource;
use crate::sync::clock::Moment;
use crate::testing::sim::copy::{Chore, Copy, CopySetup};
use crate::testing::sim::fault::Fault;
use crate::testing::sim::host::ROOM_IS_NOTICED;
use crate::testing::sim::store_faults::StoreFaults;
use crate::types::{DirectoryId, EntryIndex, Index, LogId, LogNumber, NodeId};
use bytes::Bytes;
use std::time::Duration;

/// The node numbers of followers are above those of all replicas.
const NAMES_FROM: u64 = 1_000;
/// The interval of a follower's own steps when nothing arrives.
const LOOKS: Duration = Duration::from_millis(50);
/// The interval at which a source looks for more entries.
const FEEDS: Duration = Duration::from_millis(10);
/// The pause between two items while there are more.
const FEEDS_ON: Duration = Duration::from_micros(500);
/// The longest duration of a sync of a follower's disk, in microseconds.
const SYNC_MAX: u64 = 5_000;

#[derive(Debug)]
pub(in crate::testing::sim) enum FollowerEvent {
    /// The follower's own step.
    Wake {
        life: u32,
    },
    Synced {
        life: u32,
    },
    Start,
    /// Its disk has room again.
    Room,
    /// Its source looks for more entries.
    Deliver {
        stream: u64,
    },
    /// An item arrives.
    FollowMessage {
        stream: u64,
        number: u64,
        envelope: Box<Envelope>,
    },
}

/// The source, by the life of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Replica(NodeId, u32),
    Follower(usize, u32),
}

struct Stream {
    number: u64,
    source: Source,
    feed: FollowSource,
    sent: u64,
    heard: u64,
}

pub(in crate::testing::sim) struct Follower {
    node: NodeId,
    /// The named log of which it is a copy. None: of the whole group, or of the log.
    of: Option<LogNumber>,
    setup: CopySetup,
    disk: SimDisk,
    copy: Option<Copy>,
    up: bool,
    life: u32,
    /// Its log was created.
    made: bool,
    /// When its disk was last seen to be limited.
    limited_at: Option<Moment>,
    /// The last entry that the running sync covers; and the last durable one.
    syncing: EntryIndex,
    kept: EntryIndex,
    streams: u64,
    stream: Option<Stream>,
    source: Option<Source>,
    /// The time of its next own step.
    due: Option<Moment>,
}

impl Follower {
    fn stop(&mut self) {
        self.disk.power_off(); // before the drop, so that nothing it writes while it ends counts
        (self.copy, self.stream, self.due) = (None, None, None);
        self.up = false;
    }

    /// Whether its disk is limited, or was a moment ago.
    fn is_cramped(&self, now: Moment) -> bool {
        self.disk.is_limited() || self.limited_at.is_some_and(|at| now.since(at) < ROOM_IS_NOTICED)
    }

    /// Whether a fault of its disk explains this error.
    fn may_fail(&self, error: &Error, now: Moment) -> bool {
        self.disk.faults_fired() > 0 || (error.kind() == ErrorKind::Full && self.is_cramped(now))
    }
}

impl World {
    /// Adds the plan's followers, and two copies of one log if there are named logs.
    pub(in crate::testing::sim) fn hang_followers(&mut self) {
        let whole = self.plan.followers as usize;
        let of_one_log = if self.plan.logs > 0 && whole > 0 { 2 } else { 0 };
        for n in 0..whole + of_one_log {
            let of = Some(self.main_log()).filter(|_| n >= whole);
            let disk = SimDisk::default();
            disk.forget_history();
            disk.set_chance(self.rng.next_u64());
            let retention_bytes =
                self.rng.permille(300).then_some(3 * u64::from(crate::testing::sim::setup::SEGMENT_BYTES));
            self.followers.push(Follower {
                node: NodeId(NAMES_FROM + n as u64),
                of,
                setup: {
                    let vault = self.vault.clone().filter(|_| n % 2 == 1);
                    let retention_bytes = retention_bytes.filter(|_| vault.is_none());
                    CopySetup { clock: std::sync::Arc::default(), retention_bytes, vault }
                },
                disk,
                copy: None,
                up: true,
                life: 1,
                made: false,
                limited_at: None,
                syncing: EntryIndex(0),
                kept: EntryIndex(0),
                streams: 0,
                stream: None,
                source: None,
                due: None,
            });
            self.follower_looks_after(n, Duration::from_millis(n as u64 + 1));
        }
    }

    /// The disks of those that have a copy of the whole log.
    pub(super) fn disks_of_copies(&self) -> Vec<SimDisk> {
        let whole = self.followers.iter().filter(|follower| follower.of.is_none() && follower.made);
        whole.map(|follower| follower.disk.clone()).collect()
    }

    fn follower_looks_after(&mut self, n: usize, time: Duration) {
        let at = self.now().plus(time);
        let follower = &mut self.followers[n];
        if follower.due.is_none_or(|due| due > at) {
            follower.due = Some(at);
            let event = FollowerEvent::Wake { life: follower.life };
            self.schedule.at(at, Event::Follower(n, event));
        }
    }

    pub(super) fn follower_event(&mut self, n: usize, event: FollowerEvent) -> Check {
        let now = self.now();
        let life = self.followers[n].life;
        self.followers[n].setup.clock.show(now, 0);
        if self.followers[n].disk.is_limited() {
            self.followers[n].limited_at = Some(now);
        }
        match event {
            FollowerEvent::Wake { life: of } if of == life && self.followers[n].due == Some(now) => {
                self.followers[n].due = None;
                if self.followers[n].up {
                    self.follower_looks_after(n, LOOKS);
                    self.chores(n)?;
                    if self.followers[n].up && self.followers[n].stream.is_none() {
                        self.connect(n)?;
                    }
                }
                Ok(())
            }
            FollowerEvent::Synced { life: of } if of == life && self.followers[n].up => {
                let follower = &mut self.followers[n];
                let Some(copy) = &mut follower.copy else { return Ok(()) };
                let outcome = copy.synced(now);
                if outcome.is_ok() {
                    follower.kept = follower.kept.max(follower.syncing);
                }
                self.follower_did(n, outcome)?;
                self.chores(n)
            }
            FollowerEvent::Start => self.start_follower(n),
            FollowerEvent::Room => {
                self.followers[n].disk.limit_space(None);
                Ok(())
            }
            FollowerEvent::Deliver { stream } => self.feed(n, stream),
            FollowerEvent::FollowMessage { stream, number, envelope } => {
                self.fed(n, stream, number, *envelope)
            }
            FollowerEvent::Wake { .. } | FollowerEvent::Synced { .. } => Ok(()),
        }
    }

    /// Does the work of its thread.
    fn chores(&mut self, n: usize) -> Check {
        let now = self.now();
        loop {
            let follower = &mut self.followers[n];
            let Some(copy) = follower.copy.as_mut().filter(|_| follower.up) else { return Ok(()) };
            match copy.chore(now) {
                Ok(Chore::Done) if follower.disk.is_off() => return self.follower_did(n, Ok(())),
                Ok(Chore::Done) => {}
                Ok(Chore::Sync) => {
                    follower.syncing = copy.committed();
                    let event = FollowerEvent::Synced { life: follower.life };
                    let takes = Duration::from_micros(self.rng.between(100, SYNC_MAX));
                    self.schedule.after(takes, Event::Follower(n, event));
                    return Ok(());
                }
                Ok(Chore::Wait(time)) => {
                    if let Some(time) = time {
                        self.follower_looks_after(n, time.max(Duration::from_millis(1)));
                    }
                    return Ok(());
                }
                Err(error) => return self.follower_did(n, Err(error)),
            }
        }
    }

    /// After a step: its power may have failed, or it may have ended because of its disk.
    fn follower_did(&mut self, n: usize, outcome: Result<(), Error>) -> Check {
        let now = self.now();
        let follower = &mut self.followers[n];
        if follower.disk.is_off() {
            return self.crash_follower(n, true);
        }
        if let Err(error) = outcome {
            let node = follower.node;
            self.story.note(now, || format!("follower {node}: ends: {error}"));
            if !follower.may_fail(&error, now) {
                return Err(format!("follower {node} ended although its disk is sound: {error:?}"));
            }
            return self.crash_follower(n, false);
        }
        let (node, made) = (follower.node, follower.made);
        let Some(copy) = &mut follower.copy else { return Ok(()) };
        let fresh = copy.fresh().map_err(|e| format!("follower {node} cannot read its records: {e:?}"))?;
        self.oracle.excuse_all(copy.take_excuses());
        for (log, index, record) in fresh {
            self.oracle.shows(node, follower.of.unwrap_or(log), index, &record)?;
        }
        debug_assert!(made, "a copy that runs was made");
        Ok(())
    }

    /// Ends its process by a power cut or a kill. It will start again.
    fn crash_follower(&mut self, n: usize, power: bool) -> Check {
        let now = self.now();
        let back = Duration::from_millis(self.rng.between(50, 3_000));
        let follower = &mut self.followers[n];
        let node = follower.node;
        follower.stop();
        follower.disk =
            if power { follower.disk.crash_randomly(&mut self.rng) } else { follower.disk.kill() };
        follower.disk.heal();
        if !power && follower.copy.is_none() {
            self.story.note(now, || format!("follower {node}: ended"));
        }
        self.schedule.after(back, Event::Follower(n, FollowerEvent::Start));
        Ok(())
    }

    fn start_follower(&mut self, n: usize) -> Check {
        let now = self.now();
        let follower = &mut self.followers[n];
        if follower.up {
            return Ok(());
        }
        let node = follower.node;
        follower.life += 1;
        match Copy::open(&follower.disk, &follower.setup, now) {
            Ok(copy) => {
                if copy.committed() < follower.kept {
                    return Err(format!(
                        "follower {node} had made everything up to entry {} durable, and has restarted with {}",
                        follower.kept,
                        copy.committed()
                    ));
                }
                (follower.copy, follower.made) = (Some(copy), true);
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !follower.made => {}
            Err(error) if follower.may_fail(&error, now) => {
                self.story.note(now, || format!("follower {node}: does not start: {error}"));
                follower.disk.limit_space(None);
                self.schedule.after(Duration::from_millis(500), Event::Follower(n, FollowerEvent::Start));
                return Ok(());
            }
            Err(error) => {
                return Err(format!("follower {node} does not start although its disk is sound: {error:?}"));
            }
        }
        follower.up = true;
        self.story.note(now, || format!("follower {node}: starts"));
        self.follower_did(n, Ok(()))?;
        self.follower_looks_after(n, Duration::from_millis(1));
        Ok(())
    }

    // ---- streams ----

    /// Chooses a source: a replica, or a follower that was added before it.
    fn connect(&mut self, n: usize) -> Check {
        let (now, up) = (self.now(), self.up());
        let chained: Vec<usize> = (0..n)
            .filter(|other| self.followers[*other].copy.is_some() && self.followers[*other].up)
            .filter(|other| self.followers[*other].of == self.followers[n].of)
            .collect();
        let chain = !chained.is_empty() && self.rng.permille(400);
        let begins = if self.rng.permille(500) { FollowFrom::First } else { FollowFrom::Newest };
        let want = self.followers[n].copy.as_ref().map_or(begins, Copy::resume_point);
        let before = self.store_faults();
        let (source, feed) = if chain {
            let Some(other) = self.rng.pick(&chained).copied() else { return Ok(()) };
            let Some(copy) = &self.followers[other].copy else { return Ok(()) };
            (Source::Follower(other, self.followers[other].life), copy.follow(want))
        } else {
            let Some(node) = self.rng.pick(&up).copied() else { return Ok(()) };
            let Some(host) = self.hosts.get(&node) else { return Ok(()) };
            let Some(machine) = &host.machine else { return Ok(()) };
            let feed = match self.followers[n].of {
                Some(log) => machine.follow_log(log, id_of(log), want),
                None => machine.follow(want),
            };
            (Source::Replica(node, host.life), feed)
        };
        let follower = &mut self.followers[n];
        let node = follower.node;
        let feed = match feed {
            Ok(feed) if follower.setup.vault.is_some() => feed.skip_stored(),
            Ok(feed) => feed,
            Err(error) => return self.source_failed(n, source, before, &error),
        };
        follower.streams += 1;
        let number = follower.streams;
        if follower.source.replace(source).is_some_and(|before| before != source) {
            self.counts.add(Fault::FollowerSwitch);
        }
        if chain {
            self.counts.add(Fault::FollowerChain);
        }
        follower.stream = Some(Stream { number, source, feed, sent: 0, heard: 0 });
        self.story.note(now, || format!("follower {node}: is fed by {source:?} from {want:?}"));
        let delay = self.plan.delay * 2;
        self.schedule.after(delay, Event::Follower(n, FollowerEvent::Deliver { stream: number }));
        Ok(())
    }

    fn break_stream(&mut self, n: usize) {
        self.followers[n].stream = None;
        let pause = Duration::from_millis(self.rng.between(5, 200));
        self.follower_looks_after(n, pause);
    }

    /// How many calls of the object store have had a fault.
    pub(super) fn store_faults(&self) -> u64 {
        self.vault.as_ref().map_or(0, |vault| vault.faults())
    }

    /// A source refuses: there must be a fault. `before`: the faults of the object store when it was asked.
    fn source_failed(&mut self, n: usize, source: Source, before: u64, error: &Error) -> Check {
        let now = self.now();
        let node = self.followers[n].node;
        self.story.note(now, || format!("follower {node}: {source:?} stops feeding: {error}"));
        let faulty = match source {
            Source::Replica(node, _) => self
                .hosts
                .get(&node)
                .is_none_or(|h| h.maimed.is_some() || h.disk.faults_fired() > 0 || h.disk.is_off()),
            Source::Follower(other, _) => self.followers[other].may_fail(error, now),
        };
        let disk = match source {
            Source::Replica(node, _) => self.hosts.get(&node).map(|host| host.disk.clone()),
            Source::Follower(other, _) => Some(self.followers[other].disk.clone()),
        };
        let mut faults = StoreFaults::since(self.vault.clone(), &disk.unwrap_or_default(), before);
        let faulty = faulty || faults.explain(error, None);
        self.oracle.excuse_all(faults.take_excuses());
        if !faulty && matches!(error.kind(), ErrorKind::Diverged | ErrorKind::Corrupt | ErrorKind::Io) {
            return Err(format!(
                "{source:?} does not feed follower {node} although its disk is sound: {error:?}"
            ));
        }
        self.break_stream(n);
        Ok(())
    }

    /// The source looks for more entries and sends them.
    fn feed(&mut self, n: usize, number: u64) -> Check {
        let now = self.now();
        let bytes_max = self.rng.between(1, 100_000) as usize;
        let switch = self.rng.permille(3);
        let Some(stream) = self.followers[n].stream.as_ref().filter(|s| s.number == number) else {
            return Ok(());
        };
        let source = stream.source;
        let lives = match source {
            Source::Replica(node, life) => self.hosts.get(&node).is_some_and(|h| h.is_up() && h.life == life),
            Source::Follower(other, life) => self.followers[other].up && self.followers[other].life == life,
        };
        if !lives || switch {
            self.break_stream(n);
            return Ok(());
        }
        let from = match source {
            Source::Replica(node, _) => node,
            Source::Follower(other, _) => self.followers[other].node,
        };
        let to = self.followers[n].node;
        let before = self.store_faults();
        let Some(stream) = &mut self.followers[n].stream else { return Ok(()) };
        let fed = match stream.feed.next(bytes_max) {
            Ok(fed) => fed,
            Err(error) => return self.source_failed(n, source, before, &error),
        };
        let again = Event::Follower(n, FollowerEvent::Deliver { stream: number });
        let Some(fed) = fed else {
            self.schedule.after(FEEDS, again);
            return Ok(());
        };
        stream.sent += 1;
        let nth = stream.sent;
        let (head, bodies) = fed.encode();
        self.story.mix(&[6, now.0, to.0, head.len() as u64]);
        let envelope = envelope(self.log, from, to, head, bodies);
        let arrivals = self.network.send(now, envelope, &mut self.counts);
        if arrivals.is_empty() {
            self.break_stream(n); // as a connection breaks
            return Ok(());
        }
        for (at, envelope) in arrivals {
            let event =
                FollowerEvent::FollowMessage { stream: number, number: nth, envelope: Box::new(envelope) };
            self.schedule.at(at, Event::Follower(n, event));
        }
        self.schedule.after(FEEDS_ON, again);
        Ok(())
    }

    /// An item arrives at a follower.
    fn fed(&mut self, n: usize, number: u64, nth: u64, envelope: Envelope) -> Check {
        let now = self.now();
        let follower = &mut self.followers[n];
        let node = follower.node;
        let Some(stream) = follower.stream.as_mut().filter(|s| s.number == number && follower.up) else {
            return Ok(());
        };
        if nth <= stream.heard {
            return Ok(()); // it arrived before
        }
        if nth > stream.heard + 1 {
            self.break_stream(n); // an earlier one was lost
            return Ok(());
        }
        stream.heard = nth;
        let Ok(fed) = FollowMessage::decode(envelope.head, envelope.bodies) else {
            self.break_stream(n);
            return Ok(());
        };
        if let FollowMessage::Entries(entries) = &fed {
            // A copy of one log numbers its entries by itself.
            for entry in entries.iter().filter(|_| follower.of.is_none()) {
                self.oracle.is_fed(node, &entry.header)?;
            }
        }
        let outcome = match &mut follower.copy {
            Some(copy) => copy.apply(fed, now),
            None => {
                let FollowMessage::State(state) = fed else {
                    return Err(format!("follower {node} has no log yet, but was fed entries first"));
                };
                match Copy::create(&follower.disk, &follower.setup, &state, now) {
                    Ok(copy) => {
                        follower.kept = copy.committed();
                        (follower.copy, follower.made) = (Some(copy), true);
                        Ok(Ok(false))
                    }
                    Err(error) => Ok(Err(error)),
                }
            }
        };
        match outcome {
            Ok(Ok(jumped)) => {
                if jumped {
                    self.counts.add(Fault::FollowerJump);
                }
                self.follower_did(n, Ok(()))?;
                self.follower_looks_after(n, Duration::from_millis(1));
                Ok(())
            }
            Ok(Err(refusal)) => {
                self.story.note(now, || format!("follower {node}: refuses: {refusal}"));
                let full = refusal.kind() == ErrorKind::Full && follower.is_cramped(now);
                if full {
                    self.counts.add(Fault::FollowerFull);
                } else if !follower.may_fail(&refusal, now) && !follower.disk.is_off() {
                    return Err(format!("follower {node} refuses committed entries: {refusal:?}"));
                }
                self.break_stream(n);
                self.follower_did(n, Ok(()))
            }
            Err(error) => self.follower_did(n, Err(error)),
        }
    }

    // ---- faults, and their end ----

    /// Cuts a follower's power, kills it, or fills its disk.
    pub(super) fn strike_follower(&mut self, kind: Fault) -> Check {
        let up: Vec<usize> = (0..self.followers.len()).filter(|n| self.followers[*n].up).collect();
        let Some(n) = self.nemesis.rng.pick(&up).copied() else { return Ok(()) };
        let (now, node) = (self.now(), self.followers[n].node);
        self.story.note(now, || format!("TROUBLE {kind} at follower {node}"));
        if kind == Fault::FollowerFull {
            // Counted when it refuses an item.
            let more = self.nemesis.rng.between(0, 50_000);
            let follower = &mut self.followers[n];
            follower.disk.limit_space(Some(follower.disk.space_used() + more));
            let time = Duration::from_millis(self.nemesis.rng.between(1_000, 8_000));
            self.schedule.after(time, Event::Follower(n, FollowerEvent::Room));
            return Ok(());
        }
        self.counts.add(kind);
        if self.nemesis.rng.permille(300) {
            let calls = self.nemesis.rng.between(0, 40);
            self.followers[n].disk.cut_power_after(calls);
            return Ok(());
        }
        let power = self.nemesis.rng.permille(600);
        self.crash_follower(n, power)
    }

    /// All faults have ended.
    pub(super) fn fix_followers(&mut self) {
        for n in 0..self.followers.len() {
            let follower = &mut self.followers[n];
            follower.disk.heal();
            follower.disk.limit_space(None);
            follower.disk.spare_power();
            if !follower.up {
                self.schedule.after(Duration::from_millis(1), Event::Follower(n, FollowerEvent::Start));
            }
        }
    }

    /// Followers that lack committed entries.
    pub(in crate::testing::sim) fn followers_behind(&self, last: EntryIndex) -> Vec<NodeId> {
        let has_all = |copy: &Copy, of: Option<LogNumber>| match of {
            Some(log) => copy.last_record() >= self.oracle.contents.last(log),
            None => copy.committed() >= last,
        };
        let has = |f: &&Follower| f.up && f.copy.as_ref().is_some_and(|copy| has_all(copy, f.of));
        self.followers.iter().filter(|f| !has(f)).map(|f| f.node).collect()
    }

    /// Checks that every follower has all committed records, from its first record on. That is the log's first one, `begin`, if it
    /// reads objects and there are any. A copy of a group that began before there were objects keeps its beginning.
    pub(in crate::testing::sim) fn judge_followers(&mut self, begin: Index) -> Check {
        for follower in &mut self.followers {
            let node = follower.node;
            let Some(copy) = &mut follower.copy else { return Err(format!("follower {node} has no log")) };
            let read = |e| format!("follower {node} cannot read its log: {e:?}");
            let (firsts, all) = (copy.firsts().map_err(read)?, copy.all().map_err(read)?);
            if let Some(log) = follower.of {
                let begin = firsts.first().map_or(Index(1), |(_, first)| *first);
                let all = all.into_iter().map(|(_, index, record)| (log, index, record)).collect();
                self.oracle.has_all_of(node, log, begin, &all)?;
                continue;
            }
            self.oracle.has_all(node, &firsts, &all)?;
            if self.plan.logs == 0 && copy.reads_objects() && firsts != [(LogNumber::OWN, begin)] {
                return Err(format!("follower {node} begins at {firsts:?}, and the log at {begin}"));
            }
        }
        Ok(())
    }
}

/// The id of a named log.
fn id_of(log: LogNumber) -> LogId {
    LogId(u128::from(log.0) << 64)
}

fn envelope(log: Option<LogId>, from: NodeId, to: NodeId, head: Bytes, bodies: Vec<Bytes>) -> Envelope {
    Envelope {
        log: log.unwrap_or(LogId(0)),
        from,
        from_directory: DirectoryId(0),
        to,
        to_directory: DirectoryId(0),
        head,
        bodies,
        urgent: false,
    }
}
