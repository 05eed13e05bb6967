//! Faults: one server at a time is killed, stopped or made to transfer leadership, so that a majority always remains.
//! After each fault, all of them must recover.

use super::judge::Judge;
use crate::servers::{Sample, Servers};
use anyhow::{Result, bail};
use rustix::process::Signal;
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to catch up with the others.
const CATCHING_UP: Duration = Duration::from_secs(180);

/// The number of each fault.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Faults {
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    pub(crate) transfers: u64,
    /// Transfers that were refused or not completed in time.
    pub(crate) transfers_refused: u64,
    /// The longest time that all servers took to recover, in seconds.
    pub(crate) recovery_seconds_max: f64,
}

/// Runs until `end`. Servers are killed only before `kills_until`: after that, each has one life to be judged by.
pub(crate) fn run(
    servers: &Servers,
    judge: &Judge,
    random: &mut fastrand::Rng,
    kills_until: Instant,
    end: Instant,
) -> Result<Faults> {
    let mut faults = Faults::default();
    while Instant::now() < end && !judge.is_broken() {
        pause(random, 2.0..8.0, end);
        let node = random.u64(1..=3);
        let kills = Instant::now() < kills_until;
        match random.u8(0..if kills { 5 } else { 3 }) {
            0 | 1 => {
                servers.signal(node, Signal::STOP)?;
                pause(random, 0.3..5.0, end);
                servers.signal(node, Signal::CONT)?;
                faults.stops += 1;
            }
            2 => {
                let to = node.to_string();
                let done = servers.command(&["transfer-leader", &to, "--cluster", servers.address(node)]);
                faults.transfers += 1;
                faults.transfers_refused += u64::from(done.is_err());
            }
            _ => {
                servers.kill(node)?;
                pause(random, 0.3..4.0, end);
                servers.run(node, &[])?;
                faults.kills += 1;
            }
        }
        let begun = Instant::now();
        all_well(servers)?;
        faults.recovery_seconds_max = faults.recovery_seconds_max.max(begun.elapsed().as_secs_f64());
    }
    Ok(faults)
}

fn pause(random: &mut fastrand::Rng, seconds: std::ops::Range<f64>, end: Instant) {
    let time = Duration::from_secs_f64(seconds.start + random.f64() * (seconds.end - seconds.start));
    thread::sleep(time.min(end.saturating_duration_since(Instant::now())));
}

/// Waits until one leads and each has what any had at the beginning.
pub(crate) fn all_well(servers: &Servers) -> Result<()> {
    let begun = Instant::now();
    let last = |node| servers.figure(node, "chiplog_last_index");
    servers.leader()?;
    let due = servers.nodes().filter_map(|node| last(node).ok()).fold(0.0, f64::max);
    loop {
        servers.check()?;
        let behind = servers.nodes().find(|node| last(*node).map_or(true, |last| last < due));
        let Some(node) = behind else { return Ok(()) };
        if begun.elapsed() > CATCHING_UP {
            let sample = servers.process(node).and_then(|process| Sample::of(process).ok());
            bail!("server {node} has {:?}, not {due}, after {CATCHING_UP:?} ({sample:?})", last(node));
        }
        thread::sleep(Duration::from_millis(50));
    }
}
