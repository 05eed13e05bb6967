//! Attacks: for each, a server of its own, well-behaved clients alone, then the same clients beside the attack. The
//! figure is the 99th percentile beside the attack compared with that alone; and the server's memory before, meanwhile
//! and after.

use crate::attackers::Attack;
use crate::others::{self, CALLS, Times};
use crate::report::{Common, mib};
use crate::servers::{PATIENCE, Sample, Servers, WorkDir, bound};
use anyhow::{Context, Result, ensure};
use chiplog::{Codec, Index};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, Secret};
use chiplog_net::listener::auth::roles::{Role, digest_of, new_token};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often the memory is measured.
const LOOK: Duration = Duration::from_millis(100);
/// The pause after an attack: time to release memory.
const REST: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Attacks; all if none is named
    #[arg(value_enum)]
    attacks: Vec<Attack>,
    /// Seconds of each measurement, alone and beside the attack
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    secs: f64,
    /// The most that the 99th percentile beside an attack may be, as a multiple of that alone
    #[arg(long, value_name = "N", default_value_t = 3.0)]
    bar: f64,
    /// The most memory that the server may take [default: its metric chiplog_memory_max_bytes, which
    /// docs/configuration.md explains]
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Serialize)]
struct Report {
    seconds: f64,
    bar: f64,
    attacks: Vec<Attacked>,
    met: bool,
}

#[derive(Debug, Serialize)]
struct Attacked {
    attack: Attack,
    /// The attacker's output once its attack was complete.
    attacker: String,
    alone: Vec<Times>,
    beside: Vec<Times>,
    /// By call, beside / alone.
    p99_ratios: Vec<f64>,
    memory_before: u64,
    memory_peak: u64,
    memory_after: u64,
    /// `None`: the server reports none, and none was given. Memory is not judged then.
    memory_max: Option<u64>,
    descriptors_peak: u64,
    /// Whether the server ended, and why.
    ended: Option<String>,
    met: bool,
}

/// Whether all bars were met.
pub(crate) fn run(options: &Options) -> Result<bool> {
    ensure!(
        (0.5..=3600.0).contains(&options.secs),
        "--secs is {}; it must be from 0.5 to 3600",
        options.secs
    );
    let chosen = match &options.attacks[..] {
        [] => Attack::value_variants(),
        some => some,
    };
    let mut report = Report { seconds: options.secs, bar: options.bar, attacks: Vec::new(), met: true };
    for attack in chosen {
        eprintln!("{}", name(*attack));
        let attacked = one(*attack, options).with_context(|| name(*attack))?;
        report.met &= attacked.met;
        report.attacks.push(attacked);
    }
    options.common.output.put(&table(&report), &report)?;
    Ok(report.met)
}

fn name(attack: Attack) -> String {
    attack.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

fn one(attack: Attack, options: &Options) -> Result<Attacked> {
    let dir = WorkDir::new(&options.common.dir, &format!("attack-{}", name(attack)))?;
    let (own, attackers) = (new_token()?, new_token()?);
    let tokens = dir.path.join("tokens");
    let line = |token: &str| format!("{}:{}\n", Role::Append, digest_of(token));
    fs::write(&tokens, line(&own) + &line(&attackers))?;
    let mut settings = vec![format!("auth.tokens={}", tokens.display()), "insecure=true".to_owned()];
    settings.extend(options.common.set.iter().cloned());
    let servers = Servers::start(&dir.path, 1, settings)?;
    let address = servers.address(1);
    let record = fill(address, &own, attack)?;
    let reported = servers.figure(1, "chiplog_memory_max_bytes").ok().map(|bytes| bytes as u64);
    let memory_max = options.memory_mib.map(|mib| mib << 20).or(reported);
    let process = servers.process(1).context("the server runs")?;
    let seconds = Duration::from_secs_f64(options.secs);
    let alone = others::run(address, &own, record, seconds)?;
    let memory_before = Sample::of(process)?.anonymous_bytes;
    let (mut attacker, said) = start(attack, address, &attackers)?;
    let over = AtomicBool::new(false);
    let (beside, (memory_peak, descriptors_peak)) = thread::scope(|scope| {
        let looking = scope.spawn(|| peaks(process, &over));
        let beside = others::run(address, &own, record, seconds);
        over.store(true, Ordering::Relaxed);
        (beside, looking.join().unwrap_or_default())
    });
    let beside = beside?;
    let _ = attacker.kill();
    let _ = attacker.wait();
    let ended = servers.check().err().map(|error| error.to_string());
    if ended.is_none() {
        thread::sleep(REST);
    }
    let memory_after = Sample::of(process).unwrap_or_default().anonymous_bytes;
    let ratio = |n: usize| beside[n].p99_millis / alone[n].p99_millis.max(f64::MIN_POSITIVE);
    let p99_ratios: Vec<f64> = (0..CALLS.len()).map(ratio).collect();
    let failed = beside.iter().any(|times| times.failed > 0 || times.count == 0);
    let met = ended.is_none()
        && !failed
        && p99_ratios.iter().all(|ratio| *ratio <= options.bar)
        && memory_max.is_none_or(|max| memory_peak <= max);
    Ok(Attacked {
        attack,
        attacker: said,
        alone,
        beside,
        p99_ratios,
        memory_before,
        memory_peak,
        memory_after,
        memory_max,
        descriptors_peak,
        ended,
        met,
    })
}

/// Starts the attacker, and waits until its attack is complete.
fn start(attack: Attack, address: &str, token: &str) -> Result<(Child, String)> {
    let mut command = bound(&std::env::current_exe()?)?;
    command.args(["attacker", &name(attack), address, token]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut said = String::new();
    BufReader::new(child.stdout.take().context("its output")?).read_line(&mut said)?;
    Ok((child, said.trim().to_owned()))
}

/// The most memory and descriptors of a process until the flag is set.
fn peaks(process: u32, over: &AtomicBool) -> (u64, u64) {
    let mut peaks = (0, 0);
    while !over.load(Ordering::Relaxed) {
        let now = Sample::of(process).unwrap_or_default();
        peaks = (now.anonymous_bytes.max(peaks.0), now.descriptors.max(peaks.1));
        thread::sleep(LOOK);
    }
    peaks
}

/// Appends the records that the attack reads; and one record, whose index it returns, that the other clients read.
fn fill(address: &str, token: &str, attack: Attack) -> Result<Index> {
    const RECORD_BYTES: usize = 64 << 10;
    let (batches, batch_bytes, codec) = match attack {
        Attack::PackedReads | Attack::ManyConnections => (20, 14 << 20, Codec::Zstd),
        _ => (64, 1 << 20, Codec::None),
    };
    let mut options = ClientOptions::default();
    options.token = Some(Secret::from(token));
    crate::servers::block_on(async move {
        let client = Client::connect([address], options).await?;
        let mut producing = ProducerOptions::default();
        (producing.batch_bytes, producing.codec) = (batch_bytes, codec);
        let producer = client.producer(producing).await?;
        let mut random = fastrand::Rng::with_seed(15);
        let mut record = vec![0; RECORD_BYTES];
        for _ in 0..batches {
            let records: Vec<Vec<u8>> = (0..batch_bytes / RECORD_BYTES - 1)
                .map(|_| {
                    if codec == Codec::None {
                        random.fill(&mut record);
                    }
                    record.clone()
                })
                .collect();
            producer.send_batch(&records, |_| {}).await?;
        }
        producer.flush(PATIENCE).await?;
        let index = producer.append(b"one record").await?.await?;
        ensure!(producer.close(PATIENCE).await.all_acknowledged(), "records were not acknowledged");
        Ok(index)
    })
}

fn table(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} s alone, {} s beside the attack; p99 in milliseconds, bar {}x; the server's own memory in MiB",
        report.seconds, report.seconds, report.bar
    );
    for attacked in &report.attacks {
        let verdict = if attacked.met { "met" } else { "short" };
        let _ = writeln!(out, "\n{}  {verdict}  ({})", name(attacked.attack), attacked.attacker);
        for (n, call) in CALLS.iter().enumerate() {
            let (alone, beside) = (&attacked.alone[n], &attacked.beside[n]);
            let _ = writeln!(
                out,
                "  {:<8} p99 {:>9.2} alone {:>9.2} beside {:>8.2}x   {:>6} of {:>6} calls, {} failed, longest {:.0}",
                format!("{call:?}").to_lowercase(),
                alone.p99_millis,
                beside.p99_millis,
                attacked.p99_ratios[n],
                beside.count,
                alone.count,
                beside.failed,
                beside.max_millis
            );
        }
        let _ = writeln!(
            out,
            "  memory   {:>9.1} before {:>8.1} peak {:>8.1} after, bar {}; {} descriptors",
            mib(attacked.memory_before),
            mib(attacked.memory_peak),
            mib(attacked.memory_after),
            attacked.memory_max.map_or("unknown".to_owned(), |max| format!("{:.0}", mib(max))),
            attacked.descriptors_peak
        );
        if let Some(ended) = &attacked.ended {
            let _ = writeln!(out, "  THE SERVER ENDED: {ended}");
        }
    }
    out
}
