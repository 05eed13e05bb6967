//! A view of a log, in Rust: a table of lines and an index of words in SQLite, made from a cluster's records. It has a
//! copy of the log in its own process. Any server feeds it, and it continues at another one when that dies.
//!
//! ```text
//! servers ── Follower (a copy of the log in --dir) ── Reader: slices of its files ── view.rs: tables in --db
//! ```
//!
//! The same view exists in Go, Java and other languages; all end with the same summary and equal tables.

mod view;
mod words;

use chiplog::{ErrorKind, Index, Reader, RecordBatch, Start};
use chiplog_net::follower::{Follower, FollowerEvent, FollowerOptions};
use chiplog_net::wire::ids::to_hex;
use clap::Parser as _;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use view::View;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Records of one transaction, about: the work to repeat after a crash, and the memory in use.
const TRANSACTION_RECORDS: u64 = 4096;
/// How often the view reports its progress.
const PRINT_EVERY: Duration = Duration::from_millis(500);

/// A view of a log: a table of lines and an index of words in SQLite.
#[derive(clap::Parser)]
#[command(version)]
struct Arguments {
    /// Servers of the cluster; one that runs is enough, it names the others
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    cluster: Vec<String>,
    /// The view's SQLite file; created if it is missing
    #[arg(long, value_name = "FILE")]
    db: PathBuf,
    /// Directory of the copy of the log; created if it is missing
    #[arg(long)]
    dir: PathBuf,
    /// End once this record is applied [default: follow for ever]
    #[arg(long, value_name = "INDEX", default_value_t = u64::MAX, hide_default_value = true)]
    until: u64,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("view: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let mut view = View::open(&arguments.db)?;
    let until = Index(arguments.until);
    if view.applied() < until {
        let copy = open_copy(arguments, &view)?;
        let followed = follow(&copy, &mut view, until);
        print_events(&copy);
        copy.close()?;
        followed?;
    }
    let all = view.summary()?;
    println!(
        "{} records, {} distinct words, {} words, last index {}",
        all.records, all.distinct, all.words, all.last
    );
    Ok(())
}

/// Continues with the copy in the directory, or begins one with what the view needs next.
fn open_copy(arguments: &Arguments, view: &View) -> Result<Follower> {
    let next = view.applied().next();
    // A new view takes the first existing record; one that has begun needs the very next record.
    let from = if view.log().is_none() { Start::First } else { Start::Index(next) };
    let opened = Follower::open(&arguments.dir, &arguments.cluster, from, FollowerOptions::default());
    let copy = opened.map_err(|error| named(error, next))?;
    let found = to_hex(copy.log().log_id().get());
    match view.log() {
        Some(log) if log != found => {
            copy.close()?;
            Err(format!("the servers have log {found}; {} is a view of log {log}", arguments.db.display())
                .into())
        }
        _ => Ok(copy),
    }
}

/// Applies the records that arrive, up to record `until`.
fn follow(copy: &Follower, view: &mut View, until: Index) -> Result<()> {
    let log = to_hex(copy.log().log_id().get());
    let mut reader = start(copy, view)?;
    let (mut printed, mut printed_at) = (view.applied(), Instant::now());
    while view.applied() < until {
        let mut batches = Vec::new();
        match reader.wait(Some(PRINT_EVERY)) {
            Ok(true) => batches = read(&mut reader)?,
            Ok(false) => {}
            // The copy has ended by itself; its status has the reason.
            Err(error) => return Err(copy.status().stopped.unwrap_or(error).into()),
        }
        if let Some(first) = batches.first().map(RecordBatch::first) {
            if view.log().is_some() && first != view.applied().next() {
                return Err(format!("record {first} came where {} was due", view.applied().next()).into());
            }
            if first > until {
                let what =
                    format!("the log begins behind record {until}: nothing of what was asked for is there");
                return Err(what.into());
            }
            let records = batches.iter().flat_map(RecordBatch::iter);
            view.apply(&log, first, records.take_while(|r| r.index <= until).map(|r| r.data))?;
        }
        print_events(copy);
        if view.applied() > printed && (printed_at.elapsed() >= PRINT_EVERY || view.applied() >= until) {
            let server = copy.status().server.unwrap_or_else(|| "no server at the moment".into());
            println!("applied index {} of {}, fed by {server}", view.applied(), copy.status().source_last);
            (printed, printed_at) = (view.applied(), Instant::now());
        }
    }
    Ok(())
}

/// A reader of the copy, at the record that the view needs next.
fn start(copy: &Follower, view: &View) -> Result<Reader> {
    let next = view.applied().next();
    if view.log().is_some() {
        // A copy that was made again, or lost its newest files, must catch up with the view first.
        while let Err(error) = copy.wait_for(view.applied(), PRINT_EVERY) {
            match error.kind() {
                ErrorKind::Timeout => print_events(copy),
                _ => return Err(named(error, next)),
            }
        }
        return copy.reader(Start::Index(next)).map_err(|error| named(error, next));
    }
    let reader = copy.reader(Start::First)?;
    let first = reader.position();
    if first > next {
        println!(
            "discarded: records {next} to {} are gone; this view begins with record {first}",
            first.previous()
        );
    }
    Ok(reader)
}

/// The available records, up to about a transaction: slices of the copy's files, each checked.
fn read(reader: &mut Reader) -> Result<Vec<RecordBatch>> {
    let (mut batches, mut records) = (Vec::new(), 0);
    while records < TRANSACTION_RECORDS {
        let next = reader.position();
        match reader.next_batch() {
            Ok(Some(batch)) => {
                records += u64::from(batch.count());
                batches.push(batch);
            }
            Ok(None) => break,
            // The records read before it are applied; the next call returns the error again.
            Err(_) if !batches.is_empty() => break,
            Err(error) => return Err(named(error, next)),
        }
    }
    Ok(batches)
}

/// The error by its name, and the remedy if an operator must decide.
fn named(error: chiplog::Error, next: Index) -> Box<dyn Error + Send + Sync> {
    match error.kind() {
        ErrorKind::Discarded => format!(
            "discarded: record {next}, which this view needs next, is gone ({error}); it has to be made again from a snapshot \
             of what the records said"
        )
        .into(),
        _ => error.into(),
    }
}

/// Prints what has happened to the copy.
fn print_events(copy: &Follower) {
    while let Ok(event) = copy.next_event(Duration::ZERO) {
        match event {
            FollowerEvent::Connected { server } => println!("fed by {server}"),
            FollowerEvent::Switched { from, to } => {
                println!("{from} is gone: fed by {to}, from the very next block on")
            }
            FollowerEvent::Jumped { from, to } => {
                println!("discarded: the copy lacks records {from} to {}", to.previous())
            }
            FollowerEvent::Discarded { first } => println!("records below {first} were discarded in the log"),
            FollowerEvent::Failed { error, .. } => println!("{error}; continuing"),
            _ => {}
        }
    }
}
