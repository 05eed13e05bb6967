//! Nemesis: injects the faults that the plan allows, and ends the lasting ones.
//!
//! Faults stay within what the log promises to survive. Any number of hosts may be isolated, slow, stopped or without
//! power. Only one member at a time may lose data; it is then replaced or repaired. While a disk that was set back is
//! in use, or a replica has lost its last vote, there is no other fault, since the memory of the others is needed.

use super::admin::Task;
use super::{Check, Event, World};
use crate::cluster::options::Bootstrap;
use crate::disk::sim::{Call, Damage, Fault as DiskFault, Landed, Rng, SimDisk, Trouble as DiskTrouble};
use crate::error::{Error, ErrorKind};
use crate::sync::clock::Moment;
use crate::testing::sim::fault::Fault;
use crate::testing::sim::host::{Maimed, State};
use crate::testing::sim::machine::Machine;
use crate::testing::sim::network::Weather;
use crate::testing::sim::plan::Plan;
use crate::types::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A fault that lasts until it is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Weather,
    Walls,
    Limp(NodeId),
    Full(NodeId),
    Clock(NodeId),
    SlowLink,
    SlowFiles(NodeId),
    /// No object can be stored.
    StoreOut,
}

#[derive(Debug)]
pub(in crate::testing::sim) struct Nemesis {
    pub(in crate::testing::sim) rng: Rng,
    kinds: Vec<Fault>,
    troubles: BTreeMap<u64, Trouble>,
    next_trouble: u64,
    /// There are no new faults.
    pub(in crate::testing::sim) over: bool,
    /// Members whose data was lost, until they are replaced.
    pub(in crate::testing::sim) maimed: BTreeSet<NodeId>,
    /// There is no other fault until this member has left or this time has come.
    hold: Option<(NodeId, Moment)>,
}

impl Nemesis {
    pub(in crate::testing::sim) fn new(plan: &Plan, rng: Rng) -> Self {
        let by_itself = |f: &&Fault| {
            !matches!(
                f,
                // These follow from others.
                Fault::Replay
                    | Fault::Reorder
                    | Fault::CorruptHead
                    | Fault::CorruptBody
                    | Fault::QueueFull
                    | Fault::Paced
                    | Fault::AppendsWait
                    | Fault::RoomLater
                    | Fault::NoRoom
                    | Fault::NoRoomForTerms
                    | Fault::Jump
                    | Fault::DamagedState
                    | Fault::DamagedOpening
                    | Fault::DamagedCut
                    | Fault::DamagedEnd
                    | Fault::Repair
                    | Fault::FollowerSwitch
                    | Fault::FollowerChain
                    | Fault::FollowerJump
                    | Fault::Promote
                    | Fault::ShrinkToOne
                    | Fault::SessionExpired
                    | Fault::SessionEvicted
                    | Fault::SessionsFull
                    | Fault::SetOptions
                    | Fault::LogDropped
                    | Fault::LogSealed
                    | Fault::LogRetained
                    | Fault::LogFull
                    | Fault::CopyJoined
            )
        };
        Self {
            rng,
            kinds: plan.faults.iter().filter(by_itself).copied().collect(),
            troubles: BTreeMap::new(),
            next_trouble: 0,
            over: false,
            maimed: BTreeSet::new(),
            hold: None,
        }
    }

    /// Injects no other fault until this member is whole again, or has left, or enough time has passed.
    pub(super) fn hold(&mut self, node: NodeId, now: Moment) {
        self.hold_until(node, now.plus(HOLD_MAX));
    }

    /// As [`Self::hold`], until this time.
    pub(super) fn hold_until(&mut self, node: NodeId, until: Moment) {
        self.hold = Some((node, until));
    }

    /// Whether no fault lasts.
    pub(in crate::testing::sim) fn is_quiet(&self) -> bool {
        self.troubles.is_empty()
    }

    /// The lasting faults.
    pub(super) fn lasting(&self) -> impl Iterator<Item = &Trouble> {
        self.troubles.values()
    }

    /// A member has left the cluster.
    pub(in crate::testing::sim) fn left(&mut self, node: NodeId) {
        self.maimed.remove(&node);
        self.hold.take_if(|(held, _)| *held == node);
    }

    fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.rng.between(low, high))
    }
}

/// How long it may take until a disk that was set back, or a replica that has lost a vote, is found and replaced or
/// repaired.
const HOLD_MAX: Duration = Duration::from_secs(30);

impl World {
    pub(in crate::testing::sim) fn nemesis_wakes(&mut self) -> Check {
        if self.nemesis.over {
            return Ok(());
        }
        let now = self.now();
        let mean = self.plan.fault_interval.as_millis() as u64;
        let next = self.nemesis.millis(mean / 4, mean * 7 / 4);
        self.schedule.after(next, Event::Nemesis);
        self.nemesis.hold.take_if(|(_, until)| *until < now);
        if self.nemesis.hold.is_some() || self.drill.is_some() {
            return Ok(());
        }
        let kinds = std::mem::take(&mut self.nemesis.kinds);
        let kind = self.nemesis.rng.pick(&kinds).copied();
        self.nemesis.kinds = kinds;
        kind.map_or(Ok(()), |kind| self.strike(kind))
    }

    fn strike(&mut self, kind: Fault) -> Check {
        let now = self.now();
        let up = self.up();
        let Some(node) = self.nemesis.rng.pick(&up).copied() else { return Ok(()) };
        self.story.mix(&[5, now.0, kind as u64, node.0]);
        let happened = match kind {
            Fault::Loss => self.bad_weather(),
            Fault::PartitionOneWay | Fault::PartitionTwoWay | Fault::Isolate => self.build_walls(kind, node),
            Fault::PowerCut | Fault::Kill | Fault::PowerCutOfAll | Fault::PowerCutInRecovery => {
                return self.cut(kind, node);
            }
            Fault::PowerCutInside => {
                let calls = self.nemesis.rng.between(0, 40);
                self.on_disk(node, |disk| disk.cut_power_after(calls));
                false // counted when it happens
            }
            Fault::LeaderKilled => return self.begin_drill(),
            Fault::Pause => self.pause(node),
            Fault::Close => return self.close(node),
            Fault::Damage => return self.damage(node),
            Fault::FollowerCrash | Fault::FollowerFull => return self.strike_follower(kind),
            Fault::Limp => self.limp(node),
            Fault::SlowLink => self.slow_link(node),
            Fault::SlowFiles => self.slow_files(node),
            Fault::SyncError | Fault::WriteError => self.break_disk(kind, node),
            Fault::DiskFull => self.fill_leader()? || self.fill_disk(node),
            Fault::Wipe => return self.wipe(node),
            Fault::Rollback => return self.roll_back(node),
            Fault::Rot => return self.rot(node),
            Fault::ClockAhead | Fault::ClockBack => self.set_clock(kind, node),
            Fault::Add | Fault::Demote | Fault::Remove | Fault::Joint | Fault::Transfer => {
                return self.change_members(kind, node);
            }
            Fault::ShrinkToTwo => return self.shrink(),
            Fault::LongAbsence => return self.long_absence(),
            _ => false,
        };
        if happened {
            self.counts.add(kind);
            self.story.note(now, || format!("TROUBLE {kind} at node {node}"));
        }
        Ok(())
    }

    pub(super) fn lasts(&mut self, trouble: Trouble, low_ms: u64, high_ms: u64) -> bool {
        let id = self.nemesis.next_trouble;
        self.nemesis.next_trouble += 1;
        self.nemesis.troubles.insert(id, trouble);
        let time = self.nemesis.millis(low_ms, high_ms);
        self.schedule.after(time, Event::EndTrouble(id));
        true
    }

    /// Ends a lasting fault.
    pub(in crate::testing::sim) fn end_trouble(&mut self, id: u64) -> Check {
        let Some(trouble) = self.nemesis.troubles.remove(&id) else { return Ok(()) };
        let now = self.now();
        self.story.note(now, || format!("{trouble:?} is over"));
        self.undo(trouble)
    }

    fn undo(&mut self, trouble: Trouble) -> Check {
        match trouble {
            Trouble::Weather => self.network.weather = Weather::default(),
            Trouble::Walls => self.network.open(),
            Trouble::Limp(node) => {
                if let Some(host) = self.hosts.get_mut(&node) {
                    host.limp = 1;
                }
            }
            Trouble::Full(node) => self.on_disk(node, |disk| disk.limit_space(None)),
            Trouble::StoreOut => {
                if let Some(vault) = &self.vault {
                    vault.refuse_parts(&[]);
                }
            }
            Trouble::Clock(node) => {
                if let Some(host) = self.hosts.get_mut(&node) {
                    host.wrong_by_ms = 0;
                }
            }
            Trouble::SlowLink => return self.hurry(),
            Trouble::SlowFiles(node) => {
                let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
                host.prepares_late = false;
                if let Some(machine) = &host.machine {
                    machine.prepares_late(false);
                    return self.settle(node);
                }
            }
        }
        Ok(())
    }

    /// Ends all lasting faults, and starts all hosts.
    pub(in crate::testing::sim) fn heal_all(&mut self) -> Check {
        for (_, trouble) in std::mem::take(&mut self.nemesis.troubles) {
            self.undo(trouble)?;
        }
        if let Some(vault) = &self.vault {
            vault.heal();
        }
        self.network.open();
        self.network.weather = Weather::default();
        self.fix_followers();
        let now = self.now();
        for host in self.hosts.values_mut() {
            host.cut_recovery = None;
            match host.state {
                State::Down => self.schedule.at(now, Event::Start(host.node)),
                State::Paused => self.schedule.at(now, Event::Resume { node: host.node, life: host.life }),
                State::Up => {
                    host.disk.heal();
                    host.disk.spare_power();
                }
                State::Gone => {}
            }
        }
        Ok(())
    }

    fn on_disk(&mut self, node: NodeId, act: impl FnOnce(&SimDisk)) {
        if let Some(host) = self.hosts.get(&node) {
            act(&host.disk);
        }
    }

    // ---- the network ----

    fn bad_weather(&mut self) -> bool {
        let allowed = |w: &Self, f: Fault| w.plan.faults.contains(&f);
        let mut weather = Weather { loss: self.nemesis.rng.between(10, 300) as u32, ..Weather::default() };
        if allowed(self, Fault::Replay) {
            weather.replay = self.nemesis.rng.between(0, 500) as u32;
        }
        if allowed(self, Fault::Reorder) {
            weather.reorder = self.nemesis.rng.between(0, 300) as u32;
        }
        if allowed(self, Fault::CorruptHead) {
            weather.corrupt = self.nemesis.rng.between(0, 200) as u32;
        }
        self.network.weather = weather;
        let now = self.now();
        self.story.note(now, || format!("TROUBLE {weather:?}"));
        self.lasts(Trouble::Weather, 500, 10_000);
        false // losses are counted one by one
    }

    fn build_walls(&mut self, kind: Fault, node: NodeId) -> bool {
        let present = self.present();
        if present.len() < 2 {
            return false;
        }
        match kind {
            Fault::PartitionOneWay => {
                let into = self.nemesis.rng.permille(500);
                for other in present.iter().filter(|o| **o != node) {
                    // One direction, to one or to all.
                    if self.nemesis.rng.permille(600) {
                        let (from, to) = if into { (*other, node) } else { (node, *other) };
                        self.network.wall(from, to);
                    }
                }
            }
            Fault::Isolate => {
                // The leader is the most interesting.
                let node = self.leader().filter(|_| self.nemesis.rng.permille(500)).unwrap_or(node);
                self.network.isolate(node, &present);
            }
            _ => {
                let (mut here, mut there) = (Vec::new(), Vec::new());
                for n in present {
                    if self.nemesis.rng.permille(500) { here.push(n) } else { there.push(n) }
                }
                for n in here {
                    self.network.isolate(n, &there);
                }
            }
        }
        self.lasts(Trouble::Walls, 300, 12_000)
    }

    /// Slows the links from one replica, mostly the leader, to one of the others or to all.
    fn slow_link(&mut self, node: NodeId) -> bool {
        let node = self.leader().filter(|_| self.nemesis.rng.permille(700)).unwrap_or(node);
        let bytes = self.nemesis.rng.between(2_000, 60_000);
        let all = self.nemesis.rng.permille(300);
        let mut others = self.present();
        others.retain(|o| *o != node);
        let one = self.nemesis.rng.pick(&others).copied();
        for other in others.iter().filter(|o| all || Some(**o) == one) {
            self.network.slow(node, *other, bytes);
        }
        one.is_some() && self.lasts(Trouble::SlowLink, 1_000, 10_000)
    }

    // ---- processes ----

    fn cut(&mut self, kind: Fault, node: NodeId) -> Check {
        let back = if self.nemesis.rng.permille(250) {
            self.nemesis.millis(3_000, 15_000)
        } else {
            self.nemesis.millis(50, 3_000)
        };
        let now = self.now();
        self.story.note(now, || format!("TROUBLE {kind} at node {node}"));
        match kind {
            Fault::Kill => {
                self.counts.add(kind);
                self.kill(node, back)
            }
            Fault::PowerCutOfAll => {
                self.counts.add(kind);
                for node in self.up() {
                    let back = self.nemesis.millis(50, 2_000);
                    self.cut_power(node, back)?;
                }
                Ok(())
            }
            _ => {
                if kind == Fault::PowerCutInRecovery {
                    let calls = self.nemesis.rng.between(1, 60);
                    if let Some(host) = self.hosts.get_mut(&node) {
                        host.cut_recovery = Some(calls);
                    }
                } else {
                    self.counts.add(kind);
                }
                self.cut_power(node, back)
            }
        }
    }

    fn pause(&mut self, node: NodeId) -> bool {
        let node = self.leader().filter(|_| self.nemesis.rng.permille(400)).unwrap_or(node);
        let time = self.nemesis.millis(50, 8_000);
        let Some(host) = self.hosts.get_mut(&node) else { return false };
        host.state = State::Paused;
        host.due = Default::default();
        self.schedule.after(time, Event::Resume { node, life: host.life });
        true
    }

    fn set_clock(&mut self, kind: Fault, node: NodeId) -> bool {
        let wrong = self.nemesis.rng.between(1_000, 3_600_000) as i64;
        let Some(host) = self.hosts.get_mut(&node) else { return false };
        host.wrong_by_ms = if kind == Fault::ClockAhead { wrong } else { -wrong };
        self.lasts(Trouble::Clock(node), 1_000, 20_000)
    }

    // ---- disks ----

    fn limp(&mut self, node: NodeId) -> bool {
        let node = self.leader().filter(|_| self.nemesis.rng.permille(400)).unwrap_or(node);
        let factor = self.nemesis.rng.between(20, 200) as u32;
        let Some(host) = self.hosts.get_mut(&node) else { return false };
        host.limp = factor;
        self.lasts(Trouble::Limp(node), 1_000, 10_000)
    }

    fn slow_files(&mut self, node: NodeId) -> bool {
        let node = self.leader().filter(|_| self.nemesis.rng.permille(300)).unwrap_or(node);
        let Some(host) = self.hosts.get_mut(&node) else { return false };
        host.prepares_late = true;
        if let Some(machine) = &host.machine {
            machine.prepares_late(true);
        }
        self.lasts(Trouble::SlowFiles(node), 1_000, 10_000)
    }

    fn break_disk(&mut self, kind: Fault, node: NodeId) -> bool {
        let call = if kind == Fault::SyncError { Call::Sync } else { Call::Write };
        let confirmed = match self.nemesis.rng.below(3) {
            0 => Landed::Nothing,
            1 => Landed::Some(self.nemesis.rng.next_u64()),
            _ => Landed::All,
        };
        let nth = self.nemesis.rng.between(1, 4);
        let fault = DiskFault { call: Some(call), nth, lasting: false, trouble: DiskTrouble::Eio(confirmed) };
        self.on_disk(node, |disk| disk.plan(fault));
        true
    }

    /// Whether a member may lose data now: it is one of at least three voters, or a learner, and no other member has
    /// lost data.
    pub(super) fn may_maim(&mut self, node: NodeId) -> bool {
        // A paused node, or the next leader, can know of a change already.
        let committed = |m: &Machine| m.summary().committed_raft;
        let most = self.hosts.values().filter_map(|h| h.machine.as_ref().map(committed)).max();
        let leads = self.leader().and_then(|n| self.hosts.get(&n)?.machine.as_ref().map(committed));
        if leads < most {
            return false;
        }
        // Members that were removed for good cannot replace it.
        let present = self.present();
        let voters: Vec<NodeId> = self.voters().into_iter().filter(|n| present.contains(n)).collect();
        self.nemesis.maimed.is_empty()
            && self.admin.is_idle()
            && (voters.len() >= 3 || !voters.contains(&node))
    }

    /// Whether all run and reach each other.
    pub(super) fn all_run(&self) -> bool {
        self.up().len() == self.present().len() && self.network.is_sound()
    }

    fn wipe(&mut self, node: NodeId) -> Check {
        if !self.may_maim(node) {
            return Ok(());
        }
        let now = self.now();
        self.story.note(now, || format!("TROUBLE wipe at node {node}"));
        self.counts.add(Fault::Wipe);
        self.nemesis.maimed.insert(node);
        self.cut_power(node, Duration::from_millis(500))?;
        let chance = self.nemesis.rng.next_u64();
        let rejoins = self.nemesis.rng.permille(500);
        let log = self.log;
        if let Some(host) = self.hosts.get_mut(&node) {
            host.loses(fresh_disk(chance), Maimed::Wiped);
            // An operator may even make it a new replica, with its old number.
            host.bootstrap = match log {
                Some(log) if rejoins => Bootstrap::Join(log),
                _ => Bootstrap::Existing,
            };
        }
        self.replace(node)
    }

    fn roll_back(&mut self, node: NodeId) -> Check {
        let voters = self.voters();
        if !self.may_maim(node) || !self.all_run() || voters.len() < 3 {
            return Ok(());
        }
        let chance = self.nemesis.rng.next_u64();
        let mut rng = self.nemesis.rng.fork();
        let now = self.now();
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        // The first time a copy of the disk is made, the second time it is put back.
        let Some(old) = host.old.take() else {
            for host in self.hosts.values_mut().filter(|h| h.is_up()) {
                host.old = Some(host.disk.state());
            }
            return Ok(());
        };
        let disk = SimDisk::new(old.crash(|versions| rng.below(versions)));
        disk.forget_history();
        disk.set_chance(chance);
        self.story.note(now, || format!("TROUBLE rollback at node {node}"));
        self.counts.add(Fault::Rollback);
        self.nemesis.maimed.insert(node);
        self.nemesis.hold(node, now);
        self.cut_power(node, Duration::from_millis(500))?;
        if let Some(host) = self.hosts.get_mut(&node) {
            host.loses(disk, Maimed::SetBack);
        }
        self.replace(node)
    }

    /// Flips a bit in a segment that does not grow any more. The replica may notice or not; it must not return the
    /// bytes to clients or send them to others.
    fn rot(&mut self, node: NodeId) -> Check {
        let Some(host) = self.hosts.get(&node) else { return Ok(()) };
        let mut segments: Vec<String> = host.disk.visible().names().map(str::to_owned).collect();
        segments.retain(|name| name.ends_with(".seg"));
        // The last ones are growing, or prepared and empty.
        segments.truncate(segments.len().saturating_sub(4));
        let Some(name) = self.nemesis.rng.pick(&segments).cloned() else { return Ok(()) };
        if !self.may_maim(node) {
            return Ok(());
        }
        let bit = self.nemesis.rng.between(0, 60_000 * 8);
        self.on_disk(node, |disk| {
            disk.damage(&name, &Damage::FlipBit { bit });
        });
        let now = self.now();
        self.story.note(now, || format!("TROUBLE rot at node {node}: bit {bit} of {name}"));
        self.counts.add(Fault::Rot);
        self.nemesis.maimed.insert(node);
        if let Some(host) = self.hosts.get_mut(&node) {
            (host.maimed, host.has_rot) = (Some(Maimed::Rotten), true);
        }
        self.replace(node)
    }

    // ---- membership ----

    fn change_members(&mut self, kind: Fault, node: NodeId) -> Check {
        if !self.admin.is_idle() {
            return Ok(());
        }
        let voters = self.voters();
        let Some(log) = self.log else { return Ok(()) };
        match kind {
            Fault::Add if self.present().len() < 9 => {
                let fresh = self.joining_server(log)?;
                self.order(Task::Add(fresh));
                if self.nemesis.rng.permille(600) && voters.len() < 7 {
                    self.order(Task::Promote(fresh));
                }
            }
            Fault::Remove if !voters.contains(&node) => self.order(Task::Remove(node)),
            Fault::Remove if voters.len() > 2 && self.may_leave(node, &voters) => {
                self.order(Task::Remove(node));
            }
            Fault::Demote if voters.len() > 2 && self.may_leave(node, &voters) => {
                self.order(Task::Demote(node));
                self.order(Task::Promote(node));
            }
            Fault::Joint if voters.len() > 1 && self.may_leave(node, &voters) => {
                let fresh = self.joining_server(log)?;
                self.order(Task::Add(fresh));
                self.order(Task::Replace { out: node, into: vec![fresh] });
            }
            Fault::Transfer if voters.len() > 1 && voters.contains(&node) => self.order(Task::Transfer(node)),
            _ => {}
        }
        Ok(())
    }

    /// Whether a voter may leave: those that stay and have lost nothing are a majority of those that stay. A leader that has slept can
    /// take messages of a lost one for new ones, and does not refuse.
    fn may_leave(&self, node: NodeId, voters: &[NodeId]) -> bool {
        let stay = voters.iter().filter(|voter| **voter != node);
        let well = stay.clone().filter(|voter| !self.nemesis.maimed.contains(voter));
        voters.contains(&node) && well.count() > stay.count() / 2
    }

    /// Removes voters until one or two are left; after a while there are three again, mostly.
    fn shrink(&mut self) -> Check {
        let mut voters = self.voters();
        let Some(log) = self.log else { return Ok(()) };
        if !self.admin.is_idle() || !self.nemesis.maimed.is_empty() || !(2..=5).contains(&voters.len()) {
            return Ok(());
        }
        let least = if self.nemesis.rng.permille(500) { 1 } else { 2 };
        let now = self.now();
        self.story.note(now, || format!("TROUBLE the cluster shrinks to {least} voters"));
        while voters.len() > least {
            let out = voters.swap_remove(self.nemesis.rng.below(voters.len()));
            self.order(Task::Remove(out));
        }
        if self.nemesis.rng.permille(700) {
            let rest = self.nemesis.millis(0, 4_000);
            self.order(Task::Rest(rest));
            for _ in least..3 {
                let fresh = self.joining_server(log)?;
                self.order(Task::Add(fresh));
                self.order(Task::Promote(fresh));
            }
        }
        Ok(())
    }

    /// A member is away while all other voters leave and new ones are added. It may know the new ones as learners.
    fn long_absence(&mut self) -> Check {
        let Some(log) = self.log else { return Ok(()) };
        let up = self.up();
        let Some(away) = self.nemesis.rng.pick(&up).copied() else { return Ok(()) };
        let voters = self.voters();
        let is_member = voters.contains(&away)
            || self.leader().and_then(|l| self.machine(l)).is_some_and(|m| m.learners().contains(&away));
        // The members that stay have to be a majority of the voters.
        let least = if voters.contains(&away) { 3 } else { 2 };
        let fits = (least..=5).contains(&voters.len()) && self.present().len() <= 7;
        if !self.admin.is_idle() || !self.nemesis.maimed.is_empty() || !is_member || !fits {
            return Ok(());
        }
        let now = self.now();
        let known = self.nemesis.rng.permille(600);
        self.story.note(now, || {
            format!("TROUBLE long_absence of node {away}, which knows the next voters: {known}")
        });
        let mut next = Vec::new();
        for _ in 0..2 {
            let fresh = self.joining_server(log)?;
            next.push(fresh);
        }
        let goes = |knows: Vec<NodeId>| Task::Away { node: away, knows };
        if !known {
            self.order(goes(Vec::new()));
        }
        for fresh in &next {
            self.order(Task::Add(*fresh));
        }
        if known {
            self.order(goes(next.clone()));
        }
        for fresh in next {
            self.order(Task::Promote(fresh));
        }
        for old in voters.into_iter().filter(|n| *n != away) {
            self.order(Task::Remove(old));
        }
        let rest = self.nemesis.millis(0, 3_500);
        self.order(Task::Rest(rest));
        self.order(Task::Back(away));
        Ok(())
    }

    /// A host's log could not be opened.
    pub(in crate::testing::sim) fn refused_to_start(&mut self, node: NodeId, error: &Error) -> Check {
        let now = self.now();
        self.story.note(now, || format!("node {node}: does not start: {error}"));
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        let wiped = host.maimed == Some(Maimed::Wiped) && error.kind() == ErrorKind::NotFound;
        let is_full = host.disk.is_limited() && error.kind() == ErrorKind::Full;
        let faulty = host.disk.faults_fired() > 0 || is_full;
        if wiped {
            let unanswered = host.retire();
            self.lost(unanswered)?;
            return self.after_damage(node);
        }
        if !faulty {
            return Err(format!(
                "node {node} does not start although its disk works, or has room: {error:?}"
            ));
        }
        host.disk.heal();
        let unanswered = host.kill();
        self.lost(unanswered)?;
        self.schedule.after(Duration::from_millis(500), Event::Start(node));
        Ok(())
    }

    /// Removes a host for good.
    pub(in crate::testing::sim) fn retire(&mut self, node: NodeId) -> Check {
        let now = self.now();
        let Some(host) = self.hosts.get_mut(&node).filter(|h| h.state != State::Gone) else { return Ok(()) };
        let unanswered = host.retire();
        self.story.note(now, || format!("node {node}: removed for good"));
        self.lost(unanswered)
    }
}

fn fresh_disk(chance: u64) -> SimDisk {
    let disk = SimDisk::default();
    disk.forget_history();
    disk.set_chance(chance);
    disk
}
