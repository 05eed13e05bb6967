//! Leaving: sends a process's messages as fast as its links accept them, prepares files late, and counts the kinds of
//! room that a process lacks.

use super::{Check, Event, World};
use crate::testing::sim::fault::Fault;
use crate::testing::sim::machine::Machine;
use crate::testing::sim::machine::state::Room;
use crate::testing::sim::outbox::LANES;
use crate::types::NodeId;
use std::time::Duration;

/// How long the preparation of a late file takes, in milliseconds.
const LATE_MS: (u64, u64) = (20, 1_500);

impl World {
    /// Checks the messages that were sent, and passes them on as far as their links accept them.
    pub(super) fn send_fresh(&mut self, node: NodeId) -> Check {
        let Some(host) = self.hosts.get_mut(&node) else { return Ok(()) };
        let Some(outbox) = host.outbox() else { return Ok(()) };
        for envelope in outbox.fresh() {
            self.oracle.leaves(host, &self.plan, &envelope)?;
        }
        for _ in 0..outbox.take_dropped() {
            self.counts.add(Fault::QueueFull);
        }
        for to in outbox.waiting() {
            self.ship(node, to)?;
        }
        Ok(())
    }

    /// A link can accept more messages.
    pub(super) fn shipping(&mut self, node: NodeId, life: u32, to: NodeId) -> Check {
        let Some(host) = self.hosts.get(&node).filter(|h| h.life == life) else { return Ok(()) };
        if host.is_up() { self.ship(node, to) } else { Ok(()) }
    }

    fn ship(&mut self, node: NodeId, to: NodeId) -> Check {
        let now = self.now();
        let Some(host) = self.hosts.get(&node) else { return Ok(()) };
        let (Some(outbox), life) = (host.outbox(), host.life) else { return Ok(()) };
        let mut again = None;
        for urgent in LANES {
            loop {
                if let Err(at) = self.network.takes(now, node, to, urgent) {
                    again = Some(again.map_or(at, |before| at.min(before)));
                    break;
                }
                let Some(envelope) = outbox.next(to, urgent)? else { break };
                for (at, envelope) in self.network.send(now, envelope, &mut self.counts) {
                    self.schedule.at(at, Event::Deliver(Box::new(envelope)));
                }
            }
        }
        if let Some(at) = again.filter(|at| outbox.awaits(to, now, *at)) {
            self.schedule.at(at, Event::Ship { node, life, to });
        }
        Ok(())
    }

    /// All links are fast again.
    pub(in crate::testing::sim) fn hurry(&mut self) -> Check {
        self.network.hurry();
        let outboxes: Vec<_> =
            self.hosts.values().filter_map(|h| Some((h.node, h.is_up(), h.outbox()?))).collect();
        for (node, is_up, outbox) in outboxes {
            for to in outbox.waiting() {
                if is_up {
                    self.ship(node, to)?; // a paused one sends when it resumes
                }
            }
        }
        Ok(())
    }

    /// Schedules the work of a helper thread that is late.
    pub(super) fn call_helper(&mut self, node: NodeId) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let wants = host.prepares_late && host.machine.as_ref().is_some_and(Machine::wants_help);
        if wants && !host.help_is_due {
            host.help_is_due = true;
            let late = self.rng.between(LATE_MS.0, LATE_MS.1);
            self.schedule.after(Duration::from_millis(late), Event::Help { node, life: host.life });
        }
    }

    /// Does the work of a helper thread.
    pub(super) fn helps(&mut self, node: NodeId, life: u32) -> Check {
        let Some(host) = self.hosts.get_mut(&node).filter(|h| h.life == life) else { return Ok(()) };
        host.help_is_due = false;
        let Some(machine) = &host.machine else { return Ok(()) };
        machine.help();
        self.settle(node)
    }

    /// Counts the kinds of room that a process has begun to lack.
    pub(super) fn count_room(&mut self, node: NodeId) {
        let now = self.now();
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let Some(room) = host.machine.as_ref().map(Machine::room) else { return };
        let Room { awaits, held, short, silent, paced } = std::mem::replace(&mut host.room, room);
        let begun = [
            (Fault::AppendsWait, room.awaits && !awaits),
            (Fault::RoomLater, room.held && !held),
            (Fault::NoRoom, room.short && !short),
            (Fault::NoRoomForTerms, room.silent && !silent),
            (Fault::Paced, room.paced > paced),
        ];
        for (fault, _) in begun.into_iter().filter(|(_, begun)| *begun) {
            self.counts.add(fault);
            self.story.note(now, || format!("node {node}: {fault}"));
        }
    }
}
