//! Pins: makes and removes pins of the log's objects now and then, whatever else happens, and has all records stored before.
//!
//! Invariant: a pin that was made, and is not being removed, lacks no object.

use super::{Check, Event, World};
use crate::backup::Pin;
use crate::disk::sim::Rng;
use crate::types::{Index, Timestamp};
use std::time::Duration;

/// The most pins at a time.
const PINS_MAX: usize = 3;

/// The pins of a simulation.
#[derive(Debug)]
pub(in crate::testing::sim) struct Pins {
    rng: Rng,
    /// Pins that were said to be made, and whose removal was not begun.
    made: Vec<Pin>,
    attempts: u64,
}

impl Pins {
    pub(in crate::testing::sim) fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed ^ 0x9135_11ed), made: Vec::new(), attempts: 0 }
    }
}

impl World {
    /// Makes or removes a pin, and schedules the next time.
    pub(in crate::testing::sim) fn pins_wake(&mut self) -> Check {
        if self.nemesis.over {
            return Ok(());
        }
        if self.pins.rng.permille(300)
            && let Some(leader) = self.leader()
            && let Some(machine) = self.machine(leader)
        {
            machine.cut_objects();
        }
        if let Some((vault, log)) = self.vault.clone().zip(self.log) {
            let (now, pins) = (self.now(), &mut self.pins);
            if pins.made.len() >= PINS_MAX || (!pins.made.is_empty() && pins.rng.permille(300)) {
                let pin = pins.made.swap_remove(pins.rng.below(pins.made.len()));
                let removed = Pin::remove(&*vault, log, &pin.name).map_err(|error| error.kind());
                self.story.note(now, || format!("pin {} is removed: {removed:?}", pin.name));
            } else {
                pins.attempts += 1;
                let (name, by) = (format!("p{}", pins.attempts), pins.attempts);
                let upto = pins.rng.permille(500).then(|| Index(pins.rng.between(1, 2000)));
                let made = Pin::make_as(&*vault, log, &name, upto, Timestamp(0), by);
                pins.made.extend(made.as_ref().ok().cloned());
                let made = made.map_err(|error| error.kind());
                self.story.note(now, || format!("pin {name} up to {upto:?}: {made:?}"));
            }
        }
        self.judge_pins()?;
        let next = Duration::from_millis(self.pins.rng.between(100, 1_500));
        self.schedule.after(next, Event::Pins);
        Ok(())
    }

    /// Checks that no object under a pin is missing.
    pub(in crate::testing::sim) fn judge_pins(&self) -> Check {
        let Some((vault, log)) = self.vault.as_ref().zip(self.log) else { return Ok(()) };
        for pin in &self.pins.made {
            let lacks = vault.lacks(log, pin).map_err(|e| format!("pin {}: {e}", pin.name))?;
            if lacks > 0 {
                return Err(format!("{lacks} objects under {pin:?} are missing"));
            }
        }
        Ok(())
    }
}
