//! Damage: a file of a replica that is down is lost, cut short or changed. Started again, the replica repairs its log with what
//! the others have, and takes part again.

use super::{Check, World};
use crate::disk::Disk as _;
use crate::disk::sim::Damage;
use crate::error::ErrorKind;
use crate::sim::fault::Fault;
use crate::sim::host::{Host, Maimed};
use crate::sim::oracle::excuse;
use crate::types::{NodeId, RaftIndex};
use std::time::Duration;

/// The newest files grow, or are prepared and empty.
const NEWEST: usize = 4;
/// The bytes of a file in which a bit turns over: in its header.
const BEGINNING: u64 = 64;

impl World {
    /// A file of a replica is damaged while it is down.
    pub(super) fn damage(&mut self, node: NodeId) -> Check {
        let files = self.full_segments(node);
        if files.len() < 2 || !self.may_maim(node) {
            return Ok(());
        }
        let back = self.nemesis.rng.between(100, 2_000);
        self.cut_power(node, Duration::from_millis(back))?;
        // Those that are left after the power cut.
        let files = self.full_segments(node);
        let Some(name) = self.nemesis.rng.pick(files.get(1..).unwrap_or_default()).cloned() else {
            return Ok(());
        };
        let (dice, len, bit) = (
            self.nemesis.rng.below(3),
            self.nemesis.rng.between(0, 60_000),
            self.nemesis.rng.between(0, BEGINNING * 8),
        );
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        match dice {
            0 => drop(host.disk.remove(&name).and_then(|()| host.disk.sync_dir())),
            1 => drop(host.disk.damage(&name, &Damage::Shorten { len })),
            _ => drop(host.disk.damage(&name, &Damage::FlipBit { bit })),
        }
        (host.maimed, host.damaged) = (Some(Maimed::Rotten), true);
        self.nemesis.maimed.insert(node);
        self.counts.add(Fault::Damage);
        let now = self.now();
        self.story.tell(now, || format!("TROUBLE damage of kind {dice} to {name} of node {node}"));
        Ok(())
    }

    fn full_segments(&self, node: NodeId) -> Vec<String> {
        let Some(host) = self.hosts.get(&node) else { return Vec::new() };
        let mut files: Vec<String> = host.disk.visible().names().map(str::to_owned).collect();
        files.retain(|name| name.ends_with(".seg"));
        files.truncate(files.len().saturating_sub(NEWEST));
        files
    }

    /// A replica that repairs its log goes on.
    pub(super) fn nurse(&mut self, node: NodeId) -> Check {
        let now = self.now();
        let Some(host) = self.hosts.get_mut(&node).filter(|h| h.is_up()) else { return Ok(()) };
        host.clock.show(now, host.wrong_by_ms);
        let Some(patient) = &mut host.patient else { return Ok(()) };
        let outcome = patient.turn(now);
        let deadline = patient.deadline(now);
        let (repaired, lacks) = (patient.repaired(), patient.lacks());
        if host.disk.is_off() {
            self.counts.add(Fault::PowerCutInRecovery);
            return self.cut_power(node, Duration::from_millis(300));
        }
        self.send_fresh(node)?;
        let nobody_has_it = lacks.is_some_and(|entry| self.has_nobody(entry));
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        match outcome {
            Ok(None) => {
                if let Some(deadline) = deadline {
                    self.run_at(node, 0, deadline.max(now.plus(Duration::from_micros(100))));
                }
                Ok(())
            }
            Ok(Some(opened)) => {
                self.story.tell(now, || format!("node {node}: has repaired {repaired} places"));
                self.counts.add(Fault::Repair);
                if let Err(error) = host.recovers(opened, now) {
                    return self.refused_to_start(node, &error);
                }
                self.begins(node)
            }
            // Nobody can help, and it says so: an operator replaces it.
            Err(error) if error.kind() == ErrorKind::Corrupt && nobody_has_it => {
                self.story.tell(now, || format!("node {node}: cannot be repaired: {error}"));
                self.oracle.excuse(excuse::DISCARDED);
                let unanswered = self.hosts.get_mut(&node).map(Host::retire).unwrap_or_default();
                self.lost(unanswered)?;
                self.after_damage(node)
            }
            Err(error) => {
                let failed = host.disk.faults_fired() > 0 || host.cramped;
                if !failed {
                    return Err(format!("node {node}: repair fails although its disk works: {error:?}"));
                }
                self.kill(node, Duration::from_millis(500))
            }
        }
    }

    /// Whether no replica that runs has this entry any more.
    fn has_nobody(&self, entry: RaftIndex) -> bool {
        let mut machines = self.hosts.values().filter_map(|h| h.machine.as_ref());
        machines.all(|m| m.glance().base_raft >= entry)
    }

    /// A replica whose file was damaged takes part: repaired, or without having noticed; then it is replaced.
    pub(super) fn after_damage(&mut self, node: NodeId) -> Check {
        let Some(host) = self.hosts.get_mut(&node).filter(|h| h.damaged) else { return Ok(()) };
        host.damaged = false;
        if host.repaired {
            host.maimed = None;
            self.nemesis.left(node);
            return Ok(());
        }
        self.replace(node)
    }
}
