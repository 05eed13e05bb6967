//! Figures of many runs: the speed, the number of each fault, the duration of fail-overs.

use crate::many;
use anyhow::Result;
use chiplog::sim::{Counts, Report};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// With fewer runs, a fault that never happened may not have had the chance.
const SEEDS_FOR_ALL_FAULTS: u64 = 200;

/// The sum of many runs.
#[derive(Debug)]
pub(crate) struct Figures {
    seeds: Range<u64>,
    threads: usize,
    real: Duration,
    simulated: Duration,
    events: u64,
    acknowledged: u64,
    leaders: u64,
    counts: Counts,
    excuses: BTreeMap<&'static str, u64>,
    judged: (u64, u64),
    failovers: Vec<f64>,
    /// Seeds with a fail-over that took too long.
    late: Vec<u64>,
    violations: Vec<u64>,
}

#[derive(Serialize)]
struct Json {
    from: u64,
    to: u64,
    threads: usize,
    real_seconds: f64,
    simulated_seconds: f64,
    simulated_per_real: f64,
    events: u64,
    events_per_second: f64,
    appends_acknowledged: u64,
    leaders: u64,
    failovers: usize,
    failovers_in_time_percent: f64,
    failover_worst_election_timeouts: f64,
    failovers_late: Vec<u64>,
    faults: BTreeMap<&'static str, u64>,
    faults_missing: Vec<&'static str>,
    /// Failures that the checks excuse for a reason, and how often.
    excuses: BTreeMap<&'static str, u64>,
    /// How often the runs checked that appends continue, and that all members do.
    judged_appends: u64,
    judged_members: u64,
    violations: Vec<u64>,
}

impl Figures {
    /// Runs all seeds and adds up the results; `each` gets every report.
    pub(crate) fn of(seeds: Range<u64>, threads: usize, mut each: impl FnMut(&Report)) -> Self {
        let began = Instant::now();
        let mut sum = Self {
            seeds: seeds.clone(),
            threads,
            real: Duration::ZERO,
            simulated: Duration::ZERO,
            events: 0,
            acknowledged: 0,
            leaders: 0,
            counts: Counts::default(),
            excuses: BTreeMap::new(),
            judged: (0, 0),
            failovers: Vec::new(),
            late: Vec::new(),
            violations: Vec::new(),
        };
        many::each(&seeds.collect::<Vec<_>>(), threads, |report| {
            each(&report);
            sum.add(&report);
        });
        sum.real = began.elapsed();
        sum.violations.sort_unstable();
        sum.late.sort_unstable();
        sum
    }

    fn add(&mut self, report: &Report) {
        self.simulated += report.simulated;
        self.events += report.events;
        self.acknowledged += report.acknowledged;
        self.leaders += report.leaders;
        self.counts.add_all(&report.counts);
        for (why, times) in &report.excuses {
            *self.excuses.entry(why).or_default() += times;
        }
        self.judged = (self.judged.0 + report.judged.0, self.judged.1 + report.judged.1);
        for failover in &report.failovers {
            if !failover.is_in_time() {
                self.late.push(report.plan.seed);
            }
            self.failovers.push(failover.took.as_secs_f64() / failover.election_timeout.as_secs_f64());
        }
        if report.violation.is_some() {
            self.violations.push(report.plan.seed);
        }
    }

    /// Whether there was no violation, and, in many runs, every fault has happened.
    pub(crate) fn is_good(&self) -> bool {
        let many = self.seeds.end - self.seeds.start >= SEEDS_FOR_ALL_FAULTS;
        self.violations.is_empty() && (!many || self.counts.missing().is_empty())
    }

    fn json(&self) -> Json {
        let real = self.real.as_secs_f64();
        let count = self.failovers.len();
        let in_time = (count - self.late.len()) as f64;
        Json {
            from: self.seeds.start,
            to: self.seeds.end,
            threads: self.threads,
            real_seconds: real,
            simulated_seconds: self.simulated.as_secs_f64(),
            simulated_per_real: self.simulated.as_secs_f64() / real,
            events: self.events,
            events_per_second: self.events as f64 / real,
            appends_acknowledged: self.acknowledged,
            leaders: self.leaders,
            failovers: count,
            failovers_in_time_percent: if count == 0 { 100.0 } else { 100.0 * in_time / count as f64 },
            failover_worst_election_timeouts: self.failovers.iter().copied().fold(0.0, f64::max),
            failovers_late: self.late.clone(),
            faults: self.counts.iter().map(|(f, n)| (f.name(), n)).collect(),
            faults_missing: self.counts.missing().into_iter().map(|f| f.name()).collect(),
            excuses: self.excuses.clone(),
            judged_appends: self.judged.0,
            judged_members: self.judged.1,
            violations: self.violations.clone(),
        }
    }

    /// As one JSON object.
    pub(crate) fn print_json(&self) -> Result<()> {
        println!("{}", serde_json::to_string_pretty(&self.json())?);
        Ok(())
    }

    /// As text.
    pub(crate) fn print(&self) {
        let j = self.json();
        println!("seeds {}..{} on {} threads", j.from, j.to, j.threads);
        println!(
            "simulated {:.0} s in {:.1} s: {:.0} x real time; {} events, {:.0}/s; {} appends acknowledged, {} leaders",
            j.simulated_seconds,
            j.real_seconds,
            j.simulated_per_real,
            j.events,
            j.events_per_second,
            j.appends_acknowledged,
            j.leaders
        );
        println!(
            "fail-overs {}: {:.2} % within 2 election time-outs, worst {:.2}; late: {:?}",
            j.failovers, j.failovers_in_time_percent, j.failover_worst_election_timeouts, j.failovers_late
        );
        println!("faults:");
        for (fault, count) in self.counts.iter() {
            println!("  {:<22} {count:>9}", fault.name());
        }
        if !j.faults_missing.is_empty() {
            println!("never happened: {}", j.faults_missing.join(", "));
        }
        println!("judged: appends {} times, members {} times; excused:", j.judged_appends, j.judged_members);
        for (why, times) in &j.excuses {
            println!("  {times:>9} {why}");
        }
        println!("violations: {} {:?}", j.violations.len(), j.violations);
    }
}
