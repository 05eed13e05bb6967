//! Three replicas of one log in one process. Threads append a real text; the leader is cut off and ends meanwhile,
//! another one takes over, the old one returns and catches up. No confirmed record is lost, none is there twice, and
//! all three end up the same.
//!
//! ```text
//! trio.rs       the cluster: how three replicas are opened, found, cut off and brought back
//! producers.rs  exactly-once appending across leaders
//! check.rs      readers that check every record against the confirmations
//! text.rs       the records
//! ```

mod check;
mod producers;
mod text;
mod trio;

use chiplog::{Index, Log};
use clap::Parser as _;
use producers::{Promises, produce};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use text::Text;
use trio::{ELECTION_TIMEOUT, PATIENCE, Trio};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Three replicas of one log in one process: the leader is lost in mid-append, but no record.
#[derive(clap::Parser)]
#[command(version)]
struct Arguments {
    /// New or empty directory for the replicas, which are kept; by default a directory is made and removed
    dir: Option<PathBuf>,
    /// Text whose lines become the records, repeated [default: Newton's Opticks, built in]
    #[arg(long)]
    file: Option<PathBuf>,
    /// How much to append in total, 1 to 4096
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4096))]
    mib: u64,
    /// Threads that append, 1 to 256
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replicated: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    // Before anything is created: a wrong name leaves nothing behind.
    let text = Text::load(arguments.file.as_deref())?;
    let dir = match &arguments.dir {
        Some(dir) if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) => {
            return Err(format!("{} is not empty", dir.display()).into());
        }
        Some(dir) => dir.clone(),
        None => PathBuf::from(format!("chiplog-replicated-{}", std::process::id())),
    };
    fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let told = tell(arguments, &text, &dir);
    match (told, &arguments.dir) {
        (Ok(()), None) => Ok(fs::remove_dir_all(&dir)?),
        (Ok(()), Some(_)) => {
            println!("The replicas are kept. Inspect them: chiplog info {}", dir.join("replica-1").display());
            Ok(())
        }
        (Err(error), _) => {
            Err(format!("{error}\nthe replicas as they were then are in {}", dir.display()).into())
        }
    }
}

fn tell(arguments: &Arguments, text: &Text, dir: &Path) -> Result<()> {
    let began = Instant::now();
    let promises = Promises::new(text.records_in(arguments.mib << 20).max(10_000));
    let name =
        arguments.file.as_ref().map_or("Isaac Newton's Opticks (1730)".into(), |f| f.display().to_string());
    println!(
        "The text: {name}, {} lines, repeated until there are {} records.\nThe replicas: three directories in {}\n",
        count(text.lines()),
        count(promises.total()),
        dir.display()
    );
    let trio = Trio::create(dir)?;
    let leader = trio.leader()?;
    println!(
        "1. Replica 1 makes the log {:032x} and is its only voter. Replicas 2 and 3 join, catch up,\n   \
         and vote from then on: every record is on at least two disks before it is confirmed.",
        trio.log_id().map_or(0, |id| id.0)
    );
    println!(
        "\n2. {} threads append through replica {}, the leader, each in a session of its own. A reader follows\n   \
         a replica that does not lead, and compares every record with the text.",
        arguments.threads,
        leader.status().replica.node
    );
    let seen = thread::scope(|scope| -> Result<u64> {
        let (trio, promises) = (&trio, &promises);
        let threads = arguments.threads;
        let workers: Vec<_> = (0..threads)
            .map(|n| scope.spawn(move || promises.heed(produce(trio, text, promises, n, threads))))
            .collect();
        let view = scope.spawn(move || promises.heed(check::follow(trio, text, promises)));
        let story = promises.heed(lose_a_leader(trio, promises));
        // The first failure is the cause: the other threads only noticed it.
        for worker in workers {
            worker.join().map_err(|_| "a thread that appends panicked")??;
        }
        story?;
        view.join().map_err(|_| "the reader panicked")?
    })?;
    println!(
        "   All {} records are confirmed. The reader read all of them without an interruption: {} records, in order,\n   \
         without a gap, every one as in the text and where it was confirmed.",
        count(promises.confirmed()),
        count(seen)
    );
    let same = check::all_alike(&trio, text, &promises, Index(1))?;
    println!(
        "\n5. Read from end to end, all three replicas are the same: {} records, none lost, none twice, each where\n   \
         it was confirmed.",
        count(same)
    );
    discard(&trio, text, &promises)?;
    println!("\nAll checks passed, in {:.1} s.", began.elapsed().as_secs_f64());
    Ok(())
}

/// Cuts the leader off in mid-append, ends it, waits for another one, and brings the old one back.
fn lose_a_leader(trio: &Trio, promises: &Promises) -> Result<()> {
    let began = Instant::now();
    wait_for(promises, promises.total() * 9 / 20)?;
    let (confirmed, time) = (promises.confirmed(), began.elapsed());
    println!(
        "   {} records confirmed in {:.1} s: {} a second.",
        count(confirmed),
        time.as_secs_f64(),
        count((confirmed as f64 / time.as_secs_f64()) as u64)
    );
    let node = trio.leader()?.status().replica.node;
    let cut = Instant::now();
    trio.cut_off(node);
    thread::scope(|scope| -> Result<()> {
        // The cut-off leader continues for a moment and writes what it receives, but cannot have any of it confirmed.
        let end = scope.spawn(move || {
            thread::sleep(ELECTION_TIMEOUT / 6);
            trio.end(node)
        });
        let new = trio.leader_other_than(node)?.status().replica.node;
        let elected = cut.elapsed();
        let first = loop {
            match promises.first_by(new) {
                Some(first) => break first - cut,
                None if promises.failed() || cut.elapsed() > PATIENCE => {
                    return Err("the new leader confirms nothing".into());
                }
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        let left = end.join().map_err(|_| "ending a replica panicked")?;
        println!(
            "\n3. Replica {node} is cut off from the others in mid-append, and soon after dropped. {} entries are on its\n   \
             disk that it does not know to be on another one. Replica {new} is elected after {:.0} ms (an election\n   \
             time-out is {} to {} ms), and confirms its first append after {:.0} ms. When replica {node} fails the pending\n   \
             appends, the threads resume their sessions at replica {new} and resend.",
            count(left),
            millis(elected),
            ELECTION_TIMEOUT.as_millis(),
            2 * ELECTION_TIMEOUT.as_millis(),
            millis(first),
        );
        Ok(())
    })?;
    wait_for(promises, promises.total() * 7 / 10)?;
    match promises.repeated() {
        0 => println!("   None of those was in the log before."),
        n => println!(
            "   {} of those were in the log already: their sessions detect it, they get their original index,\n   \
             and are stored once.",
            count(n)
        ),
    }
    come_back(trio, node, promises)
}

fn come_back(trio: &Trio, node: chiplog::NodeId, promises: &Promises) -> Result<()> {
    let back = Instant::now();
    let log: Log = trio.bring_back(node)?;
    let (had, lead) = (log.last_index(), trio.leader()?.last_index());
    log.wait_for(lead, PATIENCE)?;
    println!(
        "\n4. Replica {node} is opened again, while the others continue. It lacks {} records, drops unconfirmed ones, and\n   \
         has caught up after {:.0} ms; {} records are confirmed by then.",
        count(lead.get().saturating_sub(had.get())),
        millis(back.elapsed()),
        count(promises.confirmed()),
    );
    Ok(())
}

/// Discards the first half everywhere, restarts everything, and checks again.
fn discard(trio: &Trio, text: &Text, promises: &Promises) -> Result<()> {
    let first = Index(promises.total() / 2 + 1);
    let leader = trio.leader()?;
    let before = leader.status().bytes_used;
    leader.discard(first)?;
    for log in trio.running() {
        log.barrier(PATIENCE)?;
    }
    check::discarded(trio, first)?;
    // The space is free once the discard is durable for good, which is a moment later.
    let asked = Instant::now();
    while leader.status().bytes_used >= before && asked.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
    println!(
        "\n6. Everything below index {} is discarded, on all three: {:.1} MiB freed on each; a request for an older record\n   \
         gets a clear error.",
        count(first.get()),
        before.saturating_sub(leader.status().bytes_used) as f64 / f64::from(1 << 20)
    );
    drop(leader);
    let began = Instant::now();
    trio.restart()?;
    let leader = trio.leader()?;
    println!(
        "\n7. All three are closed and opened again from their files; replica {} is elected after {:.0} ms.",
        leader.status().replica.node,
        millis(began.elapsed())
    );
    let same = check::all_alike(trio, text, promises, first)?;
    println!(
        "   Each holds the other {} records, checksums and contents verified, all three the same.",
        count(same)
    );
    Ok(())
}

fn wait_for(promises: &Promises, confirmed: u64) -> Result<()> {
    let began = Instant::now();
    let mut last = (promises.confirmed(), began);
    while promises.confirmed() < confirmed {
        thread::sleep(Duration::from_millis(2));
        if promises.confirmed() > last.0 {
            last = (promises.confirmed(), Instant::now());
        }
        if promises.failed() || last.1.elapsed() > PATIENCE {
            return Err("no more records are confirmed".into());
        }
    }
    Ok(())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// 1234567 as 1,234,567.
fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
