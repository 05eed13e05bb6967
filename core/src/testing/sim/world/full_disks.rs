//! Full disks: they fill up, with whole objects and with what readers fetch, too, and while no object can be stored. Processes start on
//! them.
//!
//! Checked here:
//! - a segment is refused only once a file has gone that is elsewhere, too, if there was one;
//! - files go that are beyond a replica's own limits and in the object store, although no segment can be made;
//! - no file of an object stays that nothing knows: it could not give way.

use super::nemesis::Trouble;
use super::{Check, Event, World};
use crate::disk::sim::Rng;
use crate::sync::clock::Moment;
use crate::testing::sim::host::{Host, State};
use crate::testing::sim::machine::disk_use::DiskUse;
use crate::testing::sim::plan::Plan;
use crate::testing::sim::setup::SEGMENT_BYTES;
use crate::types::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often whole objects are fetched.
const FILL_INTERVAL: Duration = Duration::from_millis(150);
/// How long files may stay that have to go at once, in addition to a few heartbeats.
const RELEASE_MAX: Duration = Duration::from_secs(1);
/// In how many of the runs with large records a disk stays full for long, in thousandths.
const LAST: u32 = 500;
/// The length of a cached object's name is less than this; that of one that is kept whole is more.
const CACHED_NAME_MAX: usize = 48;

/// The checks' knowledge of full disks.
#[derive(Debug)]
pub(in crate::testing::sim) struct FullDisks {
    /// The next full disk is the leader's, stays full for longer than appends may wait, and is the only fault meanwhile. Once, in some
    /// runs.
    is_to_last: bool,
    /// It stays full until then.
    lasts_until: Moment,
    /// Since when each process has had files that have to go at once.
    releases: BTreeMap<NodeId, (u32, Moment)>,
}

impl FullDisks {
    pub(super) fn new(plan: &Plan) -> Self {
        // Small records would not fill it in time.
        let is_to_last = plan.heavy && Rng::new(plan.seed ^ 0xf0_11d).permille(LAST);
        Self { is_to_last, lasts_until: Moment::START, releases: BTreeMap::new() }
    }
}

impl World {
    /// Whether a disk is full that stays so for long.
    pub(in crate::testing::sim) fn is_full_for_long(&self) -> bool {
        self.now() < self.full_disks.lasts_until
    }

    /// Ends all faults and fills the leader's disk for long, if this is such a run and a majority remains. False: it did not.
    pub(super) fn fill_leader(&mut self) -> Check<bool> {
        let fits = self.nemesis.maimed.is_empty() && self.admin.is_idle() && self.voters().len() >= 3;
        let Some(leader) = self.leader().filter(|_| fits && self.full_disks.is_to_last) else {
            return Ok(false);
        };
        self.full_disks.is_to_last = false;
        self.heal_all()?;
        let (now, lasts) = (self.now(), self.append_wait_max() + RELEASE_MAX);
        self.full_disks.lasts_until = now.plus(lasts);
        self.nemesis.hold_until(leader, now.plus(lasts));
        let Some(host) = self.hosts.get_mut(&leader) else { return Ok(false) };
        host.disk.limit_space(Some(host.disk.space_used()));
        self.story.note(now, || format!("TROUBLE node {leader} leads, and its disk is full for {lasts:?}"));
        let lasts_ms = lasts.as_millis() as u64;
        if let Some(vault) = &self.vault {
            // Else files would go that are in objects.
            vault.refuse_parts(&["/o/"]);
            self.lasts(Trouble::StoreOut, lasts_ms, lasts_ms);
        }
        Ok(self.lasts(Trouble::Full(leader), lasts_ms, lasts_ms))
    }

    /// Fills a disk, almost or altogether. Of a log with an object store, up to a size at which sorted copies and whole objects are still
    /// made.
    pub(super) fn fill_disk(&mut self, node: NodeId) -> bool {
        let mut node = node;
        let segment = u64::from(SEGMENT_BYTES);
        let (mut more, mut time_ms) = (self.nemesis.rng.between(0, 100_000), (1_000, 10_000));
        if self.vault.is_some() || self.plan.logs > 0 {
            if self.nemesis.rng.permille(300) {
                more = self.nemesis.rng.between(0, 24 * segment);
            }
            if self.nemesis.rng.permille(300) {
                node = self.leader().unwrap_or(node);
            }
        }
        if let Some(vault) = &self.vault
            && self.nemesis.rng.permille(400)
        {
            // Files stay because no object can be stored, until the disk is full. Once objects can be, the files have to go.
            vault.refuse_parts(&["/o/"]);
            self.lasts(Trouble::StoreOut, 2_000, 7_000);
            (more, time_ms) = (self.nemesis.rng.between(0, 3 * segment), (9_000, 16_000));
        }
        let Some(host) = self.hosts.get_mut(&node) else { return false };
        host.disk.limit_space(Some(host.disk.space_used() + more));
        self.lasts(Trouble::Full(node), time_ms.0, time_ms.1)
    }

    /// In half of the runs with slices of named logs none can be stored at first: the first one then has to have what is there already.
    pub(in crate::testing::sim) fn delay_slices(&mut self) {
        let Some(vault) = self.vault.as_ref().filter(|vault| vault.takes_slices) else { return };
        let mut rng = Rng::new(self.plan.seed ^ 0x51_1ce5);
        if self.plan.logs > 0 && !self.plan.faults.is_empty() && rng.permille(500) {
            vault.refuse_parts(&["/s/"]);
            self.lasts(Trouble::StoreOut, 300, 2_000);
        }
    }

    /// Fetches whole objects, and schedules the next time.
    pub(in crate::testing::sim) fn fill_wakes(&mut self) -> Check {
        let now = self.now();
        for node in self.up() {
            let Some(host) = self.hosts.get_mut(&node) else { continue };
            let before = use_of(host);
            if let Some(machine) = host.running() {
                machine.fill(now);
            }
            judge_room(host, before)?;
            self.settle(node)?;
        }
        self.schedule.after(FILL_INTERVAL, Event::Fill);
        Ok(())
    }

    /// Checks the processes on full disks. Once a heartbeat.
    pub(super) fn judge_full_disks(&mut self, now: Moment) -> Check {
        let most = RELEASE_MAX + self.plan.heartbeat * 4;
        let full: BTreeSet<NodeId> = self.nemesis.full().collect();
        self.full_disks.releases.retain(|node, _| full.contains(node));
        for node in full {
            let Some(host) = self.hosts.get_mut(&node) else { continue };
            let is_slow = host.limp > 1 || host.prepares_late || host.slow_sync || host.closing.is_some();
            let life = host.life;
            let has_to =
                host.running().is_some_and(|m| !is_slow && !m.is_poisoned() && m.has_to_release(now));
            if !has_to {
                self.full_disks.releases.remove(&node);
                continue;
            }
            let (of, since) = self.full_disks.releases.entry(node).or_insert((life, now));
            if *of != life {
                (*of, *since) = (life, now);
            } else if now.since(*since) > most {
                return Err(format!(
                    "node {node} has no file for appends, and keeps files since {since} that are in the object store and beyond its own \
                     limits"
                ));
            }
        }
        self.judge_strays()
    }

    /// Checks that every file of an object is known to its process.
    pub(in crate::testing::sim) fn judge_strays(&self) -> Check {
        for host in self.hosts.values().filter(|host| host.is_up() && host.disk.faults_fired() == 0) {
            let Some(machine) = &host.machine else { continue };
            let image = host.disk.visible();
            let names =
                image.names().filter(|name| name.ends_with(".object") && name.len() < CACHED_NAME_MAX);
            let cached = machine.disk_use().cached;
            if let Some(stray) = names.into_iter().find(|name| !cached.contains(*name)) {
                return Err(format!("node {}: file {stray} stays, although nothing knows it", host.node));
            }
        }
        Ok(())
    }
}

/// The use of the full disk of a running process; None: it is not full.
pub(super) fn use_of(host: &mut Host) -> Option<DiskUse> {
    if !host.disk.is_limited() || host.state != State::Up {
        return None;
    }
    host.machine.as_ref().map(|machine| machine.disk_use())
}

/// Checks what a process on a full disk has done since `before`.
pub(super) fn judge_room(host: &mut Host, before: Option<DiskUse>) -> Check {
    let (node, faults) = (host.node, host.disk.faults_fired());
    let Some((before, after)) = before.zip(use_of(host)).filter(|_| faults == 0) else { return Ok(()) };
    let is_refused = after.refused_at.is_some() && after.refused_at != before.refused_at;
    if is_refused && !before.cached.is_empty() && before.cached.is_subset(&after.cached) {
        return Err(format!(
            "node {node}: a segment was refused, and all {} cached objects stay",
            before.cached.len()
        ));
    }
    Ok(())
}
