//! Damage: a file of a replica that is down is lost, truncated or changed. The replica starts again, repairs its log
//! from the other replicas, and takes part again.

use super::{Check, World};
use crate::disk::Disk as _;
use crate::disk::sim::Damage;
use crate::error::ErrorKind;
use crate::testing::sim::excuse;
use crate::testing::sim::fault::Fault;
use crate::testing::sim::harm;
use crate::testing::sim::harm::Harm;
use crate::testing::sim::host::{Host, Maimed, State};
use crate::testing::sim::kept::Seal;
use crate::types::{EntryIndex, NodeId};
use std::time::Duration;

/// How many of the newest files are excluded: they are growing, or prepared and empty.
const NEWEST: usize = 4;
/// The first bytes of a file, in whose header a bit is flipped.
const BEGINNING: u64 = 64;

/// Kinds of damage, each about equally often.
const KINDS: [Fault; 7] = [
    Fault::Damage,
    Fault::Damage,
    Fault::Damage,
    Fault::DamagedState,
    Fault::DamagedOpening,
    Fault::DamagedCut,
    Fault::DamagedEnd,
];

impl World {
    /// Damages files of a replica while it is down.
    pub(super) fn damage(&mut self, node: NodeId) -> Check {
        if !self.may_maim(node) {
            return Ok(());
        }
        let all_run = self.all_run();
        let back = self.nemesis.rng.between(100, 2_000);
        self.cut_power(node, Duration::from_millis(back))?;
        // The files as the power cut left them.
        let Some(host) = self.hosts.get(&node) else { return Ok(()) };
        let image = host.disk.visible();
        let cut = harm::find(&image, Fault::DamagedCut, &mut self.nemesis.rng);
        // A log that was truncated is rare.
        let kind = match cut {
            Some(_) if self.nemesis.rng.permille(500) => Fault::DamagedCut,
            _ => self.nemesis.rng.pick(&KINDS).copied().unwrap_or(Fault::Damage),
        };
        let harm = match kind {
            Fault::Damage => None,
            Fault::DamagedCut => cut,
            kind => harm::find(&image, kind, &mut self.nemesis.rng),
        };
        match harm {
            // A lost vote is learnt from the others, so all of them have to run.
            Some(harm) if all_run || !harm.loses_state => self.harm(node, harm),
            _ => self.damage_full_segment(node),
        }
        Ok(())
    }

    /// Damages the newest files.
    pub(in crate::testing::sim) fn harm(&mut self, node: NodeId, harm: Harm) {
        let now = self.now();
        let Some(host) = self.hosts.get_mut(&node) else { return };
        for (name, bit) in &harm.bits {
            host.disk.damage(name, &Damage::FlipBit { bit: *bit });
        }
        (host.maimed, host.damaged) = (Some(Maimed::Rotten), true);
        (host.state_lost, host.begins_behind) = (harm.loses_state, harm.begins_behind);
        self.nemesis.maimed.insert(node);
        if harm.loses_state {
            self.nemesis.hold(node, now);
        }
        self.counts.add(harm.kind);
        self.story.note(now, || format!("TROUBLE {} at node {node}: {harm:?}", harm.kind));
    }

    /// Removes, truncates or changes a file that is followed by others.
    fn damage_full_segment(&mut self, node: NodeId) {
        let Some(host) = self.hosts.get(&node) else { return };
        // Nothing shows the beginning of the oldest segment. A file before it can be one that was discarded.
        let Some(oldest) = harm::begun(&host.disk.visible()).last().map(|segment| segment.name) else {
            return;
        };
        let mut files = self.full_segments(node);
        files.retain(|name| *name > oldest);
        let Some(name) = self.nemesis.rng.pick(&files).cloned() else { return };
        let (dice, len, bit) = (
            self.nemesis.rng.below(3),
            self.nemesis.rng.between(0, 60_000),
            self.nemesis.rng.between(0, BEGINNING * 8),
        );
        let Some(host) = self.hosts.get_mut(&node) else { return };
        match dice {
            0 => drop(host.disk.remove(&name).and_then(|()| host.disk.sync_dir())),
            1 => drop(host.disk.damage(&name, &Damage::Shorten { len })),
            _ => drop(host.disk.damage(&name, &Damage::FlipBit { bit })),
        }
        (host.maimed, host.damaged) = (Some(Maimed::Rotten), true);
        self.nemesis.maimed.insert(node);
        self.counts.add(Fault::Damage);
        let now = self.now();
        self.story.note(now, || format!("TROUBLE damage of kind {dice} to {name} of node {node}"));
    }

    fn full_segments(&self, node: NodeId) -> Vec<String> {
        let Some(host) = self.hosts.get(&node) else { return Vec::new() };
        let mut files: Vec<String> = host.disk.visible().names().map(str::to_owned).collect();
        files.retain(|name| name.ends_with(".seg"));
        files.truncate(files.len().saturating_sub(NEWEST));
        files
    }

    /// Runs a replica that repairs its log.
    pub(super) fn nurse(&mut self, node: NodeId) -> Check {
        let now = self.now();
        let Some(host) = self.hosts.get_mut(&node).filter(|h| h.is_up()) else { return Ok(()) };
        host.clock.show(now, host.wrong_by_ms);
        let Some(patient) = &mut host.patient else { return Ok(()) };
        let outcome = patient.step(now);
        let deadline = patient.deadline(now);
        let (repaired, lacks) = (patient.repaired(), patient.lacks());
        if host.disk.is_off() {
            self.counts.add(Fault::PowerCutInRecovery);
            return self.cut_power(node, Duration::from_millis(300));
        }
        self.send_fresh(node)?;
        let nobody_has_it = lacks.is_some_and(|entry| self.has_nobody(entry));
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        // If a segment begins after an entry that was never committed, nothing shows where it began.
        let is_superseded = host.begins_behind.is_some_and(|entry| self.oracle.is_superseded(entry));
        match outcome {
            Ok(None) => {
                if let Some(deadline) = deadline {
                    self.run_at(node, 0, deadline.max(now.plus(Duration::from_micros(100))));
                }
                Ok(())
            }
            Ok(Some(opened)) => {
                self.story.note(now, || format!("node {node}: has repaired {repaired} places"));
                self.counts.add(Fault::Repair);
                if let Err(error) = host.recovers(opened, now) {
                    return self.refused_to_start(node, &error);
                }
                self.begins(node)
            }
            // No replica can help, and the error says so: an operator replaces the replica.
            Err(error) if error.kind() == ErrorKind::Corrupt && (nobody_has_it || is_superseded) => {
                self.story.note(now, || format!("node {node}: cannot be repaired: {error}"));
                self.oracle.excuse(if nobody_has_it { excuse::DISCARDED } else { excuse::SUPERSEDED });
                let unanswered = self.hosts.get_mut(&node).map(Host::retire).unwrap_or_default();
                self.lost(unanswered)?;
                self.after_damage(node)
            }
            Err(error) => {
                let is_full = host.disk.is_limited() && error.kind() == ErrorKind::Full;
                let failed = host.disk.faults_fired() > 0 || is_full;
                if !failed {
                    return Err(format!("node {node}: repair fails although its disk works: {error:?}"));
                }
                self.kill(node, Duration::from_millis(500))
            }
        }
    }

    /// Whether no member has this entry: it was discarded there, or has not arrived. A member that is off is asked by its disk. A replica
    /// that was removed, and runs on for a while, is not asked, and what it has behind its removal was perhaps never committed. False
    /// if there is nobody to ask.
    pub(in crate::testing::sim) fn has_nobody(&self, entry: EntryIndex) -> bool {
        let members = self.hosts.values().filter(|host| !self.left.contains(&host.node));
        let known: Vec<bool> = members.filter_map(|host| self.has_entry(host, entry)).collect();
        !known.is_empty() && known.iter().all(|has| !has)
    }

    /// Whether a host has this entry. None: it repairs its log itself, is gone, or its disk cannot be read.
    fn has_entry(&self, host: &Host, entry: EntryIndex) -> Option<bool> {
        if let Some(machine) = &host.machine {
            let summary = machine.summary();
            return Some(summary.base_raft < entry && summary.last_raft >= entry);
        }
        let config = &self.oracle.config;
        let mut members = config.voters.iter().chain(&config.outgoing).chain(&config.learners);
        let is_member = members.any(|node| *node == host.node);
        if host.state != State::Down || host.maimed.is_some() || !is_member {
            return None;
        }
        let there = host.entry_in_truth(&self.plan, entry, Seal::DISCARDED).ok()?;
        Some(there.is_some_and(|seal| seal != Seal::DISCARDED))
    }

    /// A replica with a damaged file takes part. It was repaired, or it has not noticed the damage and is replaced.
    pub(super) fn after_damage(&mut self, node: NodeId) -> Check {
        let Some(host) = self.hosts.get_mut(&node).filter(|h| h.damaged) else { return Ok(()) };
        (host.damaged, host.begins_behind) = (false, None);
        if host.repaired {
            // A former member can have rotted before this damage.
            host.maimed = host.has_rot.then_some(Maimed::Rotten);
            self.nemesis.left(node);
            return Ok(());
        }
        self.replace(node)
    }
}
