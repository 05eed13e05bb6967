//! `chiplog-sim`: simulations of chiplog clusters from the command line.
//!
//! `run 7` prints the story of seed 7; `range 0..2000` runs many and prints figures; `export 0..50 DIR` writes their
//! histories for other checkers; `bugs 0..300` checks that each planted bug is found.

mod figures;
mod many;

use anyhow::{Context, Result, bail};
use chiplog::LogNumber;
use chiplog::sim::{Plan, Simulation};
use clap::{Parser, Subcommand};
use figures::Figures;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Simulations of chiplog clusters: virtual time, simulated disks and networks, every kind of fault.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs one seed and prints its story.
    Run {
        seed: u64,
        /// Without any fault.
        #[arg(long)]
        calm: bool,
        /// Only the figures.
        #[arg(long)]
        quiet: bool,
        /// Adds the state of every replica after every step: a hundred times as many lines
        #[arg(long)]
        steps: bool,
        /// Adds the replicas' own log lines to the story
        #[arg(long)]
        log: bool,
    },
    /// Runs a range of seeds, FROM..TO, on all processors, and prints figures.
    Range {
        #[arg(value_parser = range)]
        seeds: Range<u64>,
        /// As one JSON object.
        #[arg(long)]
        json: bool,
        /// Threads; all processors by default.
        #[arg(long)]
        threads: Option<usize>,
    },
    /// Writes the histories of a range of seeds, one file of JSON lines each.
    Export {
        #[arg(value_parser = range)]
        seeds: Range<u64>,
        dir: PathBuf,
    },
    /// Plants one bug after the other, and reports which seed finds it.
    Bugs {
        #[arg(value_parser = range)]
        seeds: Range<u64>,
        /// Only this bug.
        #[arg(long)]
        only: Option<u32>,
        /// Try the seeds in their order. Without it, one that has found the bug before is tried first.
        #[arg(long)]
        in_order: bool,
    },
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("a range is FROM..TO")?;
    let number = |s: &str| s.parse::<u64>().map_err(|e| format!("{s:?}: {e}"));
    let seeds = number(from)?..number(to)?;
    if seeds.is_empty() { Err("the range is empty".to_owned()) } else { Ok(seeds) }
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().command {
        Command::Run { seed, calm, quiet, steps, log } => {
            if log {
                tracing_subscriber::fmt().without_time().with_target(false).with_ansi(false).init();
            }
            Ok(tell(
                seed,
                calm,
                if quiet {
                    Telling::Nothing
                } else if steps {
                    Telling::Steps
                } else {
                    Telling::Events
                },
            ))
        }
        Command::Range { seeds, json, threads } => {
            let threads = threads.unwrap_or_else(many::processors);
            let figures = Figures::of(seeds, threads, |report| {
                if let Some(violation) = &report.violation {
                    eprintln!("VIOLATION: {violation}\n");
                }
            });
            if json {
                figures.print_json()?
            } else {
                figures.print()
            }
            Ok(if figures.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Export { seeds, dir } => export(seeds, &dir),
        Command::Bugs { seeds, only, in_order } => bugs(seeds, only, in_order),
    }
}

/// How much of a story is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Telling {
    Nothing,
    Events,
    Steps,
}

/// Whether a line of a story, which begins with the time, describes a step.
fn is_step(line: &str) -> bool {
    line.trim_start().split_once(' ').is_some_and(|(_, what)| what.starts_with("  node"))
}

/// Runs one seed and prints its story.
fn tell(seed: u64, calm: bool, telling: Telling) -> ExitCode {
    let plan = if calm { Plan::calm(seed) } else { Plan::of(seed) };
    let mut simulation = Simulation::new(plan);
    if telling != Telling::Nothing {
        simulation = simulation.tell(move |line| {
            if telling == Telling::Steps || !is_step(line) {
                println!("{line}");
            }
        });
    }
    let began = Instant::now();
    let report = simulation.run();
    let took = began.elapsed();
    println!(
        "seed {seed}: {:.1} s simulated in {:.3} s ({:.0} x), {} events, {} appends acknowledged, {} records, {} leaders, fingerprint {:016x}",
        report.simulated.as_secs_f64(),
        took.as_secs_f64(),
        report.simulated.as_secs_f64() / took.as_secs_f64(),
        report.events,
        report.acknowledged,
        report.records,
        report.leaders,
        report.fingerprint,
    );
    for (fault, count) in report.counts.iter().filter(|(_, n)| *n > 0) {
        println!("  {:>8} {}", count, fault.name());
    }
    match report.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("VIOLATION: {violation}");
            ExitCode::FAILURE
        }
    }
}

fn export(seeds: Range<u64>, dir: &PathBuf) -> Result<ExitCode> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for seed in seeds {
        let report = chiplog::sim::run(seed);
        if let Some(violation) = report.violation {
            bail!("{violation}");
        }
        // A history is of one log. Those of logs that come and go begin at any index, which porcupine's model does not know.
        let lasting = |log: &LogNumber| log.0 <= report.plan.logs;
        for (log, records) in report.logs.iter().filter(|(log, _)| lasting(log)) {
            let name = if log.is_none() { format!("{seed}.jsonl") } else { format!("{seed}-{log}.jsonl") };
            let file = dir.join(name);
            let records: Vec<(u64, u64)> = records.iter().map(|(index, n)| (index.get(), *n)).collect();
            let lines = format!(
                "{}{}\n",
                report.history.of(*log).json_lines(),
                serde_json::json!({ "log": records })
            );
            std::fs::write(&file, lines).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Plants one bug after the other.
fn bugs(seeds: Range<u64>, only: Option<u32>, in_order: bool) -> Result<ExitCode> {
    use chiplog::sim::bugs::{
        BUGS, COPIES_OF_ONE_LOG, COPIES_WITH_OBJECTS, GROUP_OBJECTS_FROM, GROUP_PAYLOADS, GROUP_SLICES,
        JOINED_COPIES, NAMED_LOGS_FROM, NAMES, OBJECTS_FROM, PAYLOADS_FROM, QUOTAS, REFUSALS, play,
    };
    let mut missed = 0;
    println!("{:>3}  {:<66} {:>8} {:>6}  found by", "bug", "what", "seed", "runs");
    for bug in BUGS.iter().filter(|b| only.is_none_or(|n| n == b.number)) {
        let found = match bug.scenario {
            Some(scenario) => {
                if let Err(what) = play(scenario) {
                    bail!("scenario {scenario} does not hold without a bug: {what}");
                }
                planted(bug.number, || play(scenario).err()).map(|what| (format!("{:>15}", "directed"), what))
            }
            None => {
                let can_find = |seed: &u64| match bug.number {
                    n if COPIES_OF_ONE_LOG.contains(&n) => {
                        Plan::of(*seed).followers > 0 && Plan::of(*seed).logs > 0
                    }
                    n if GROUP_PAYLOADS.contains(&n) => Plan::of(*seed).objects && Plan::of(*seed).logs > 0,
                    n if COPIES_WITH_OBJECTS.contains(&n) => {
                        let plan = Plan::of(*seed);
                        plan.objects && plan.logs > 0 && plan.followers > 0
                    }
                    n if GROUP_SLICES.contains(&n) => Plan::of(*seed).objects && Plan::of(*seed).logs > 0,
                    n if NAMES.contains(&n) => Plan::of(*seed).creators,
                    n if QUOTAS.contains(&n) => Plan::of(*seed).quotas,
                    n if JOINED_COPIES.contains(&n) => Plan::of(*seed).copies_join,
                    n if REFUSALS.contains(&n) => true,
                    PAYLOADS_FROM.. => Plan::of(*seed).objects && Plan::of(*seed).logs == 0,
                    GROUP_OBJECTS_FROM.. => Plan::of(*seed).objects && Plan::of(*seed).logs > 0,
                    OBJECTS_FROM.. => Plan::of(*seed).objects,
                    NAMED_LOGS_FROM.. => Plan::of(*seed).logs > 0,
                    _ => true,
                };
                let mut seeds: Vec<u64> = seeds.clone().filter(can_find).collect();
                let known = bug.seed.filter(|_| !in_order);
                if let Some(at) = seeds.iter().position(|seed| Some(*seed) == known) {
                    seeds[..=at].rotate_right(1);
                }
                let runs = |found| seeds.iter().take_while(|seed| **seed != found).count() + 1;
                let found =
                    planted(bug.number, || many::first(&seeds, many::processors(), |r| r.violation.clone()));
                if let Some(known) = known
                    && found.as_ref().is_some_and(|(seed, _)| *seed != known)
                {
                    eprintln!("seed {known} does not find bug {} any more", bug.number);
                }
                found.map(|(seed, violation)| (format!("{seed:>8} {:>6}", runs(seed)), violation.what))
            }
        };
        match found {
            Some((place, what)) => {
                let what: String = what.chars().take(110).collect();
                println!("{:>3}  {:<66} {place}  {what}", bug.number, bug.what);
            }
            None => {
                missed += 1;
                println!("{:>3}  {:<66} MISSED", bug.number, bug.what);
            }
        }
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The result of the runs while this bug is planted.
fn planted<T>(number: u32, run: impl FnOnce() -> T) -> T {
    use chiplog::sim::bugs::plant;
    plant(number);
    let outcome = run();
    plant(0);
    outcome
}
