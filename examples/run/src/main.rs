//! Views in every language whose tools are installed, on one log. Three servers take a real text, one record a line.
//! All views follow it while servers and views are killed. At the end all have the same summary and equal tables, those
//! that the text itself gives, record for record.
//!
//! ```text
//! views.rs      the list: where each view is, how it is built and run
//! process.rs    a view that runs
//! compare.rs    the contents of tables, and the expected contents
//! servers.rs    the servers, as in ../cluster
//! liars.rs      tests: servers that send wrong answers
//! ```

mod compare;
#[cfg(test)]
mod liars;
mod process;
#[path = "../../cluster/src/servers.rs"]
#[expect(dead_code, reason = "the other example that has it uses all of it")]
mod servers;
mod views;

use chiplog::{Codec, Index};
use chiplog_net::client::ProducerOptions;
use chiplog_net::client::blocking::{Client, Producer};
use clap::Parser as _;
use compare::{Summary, expected, tables};
use process::{Files, PATIENCE, Process, Processes};
use servers::Servers;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use views::{Built, Place, Program, VIEWS};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Runs the views of all languages on one log, through the death of every server and of the views themselves.
#[derive(clap::Parser)]
#[command(version)]
struct Arguments {
    /// Records to append, at least 60
    #[arg(long, default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(60..))]
    records: u64,
    /// Text whose lines become the records, repeated [default: Newton's Opticks]
    #[arg(long)]
    file: Option<PathBuf>,
    /// Only these views, such as rust,go [default: all that can be built here]
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(VIEWS.iter().map(|v| v.name)))]
    views: Option<Vec<String>>,
    /// Directory of the programs of this workspace [default: beside this one]
    #[arg(long)]
    programs: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("run: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A built view, and its files.
struct Ready {
    name: &'static str,
    program: Program,
    files: Files,
}

fn run(arguments: &Arguments) -> Result<()> {
    let root = Path::new(ROOT).canonicalize()?;
    let file = arguments.file.clone().unwrap_or_else(|| root.join("examples/data/opticks.txt"));
    let text = fs::read(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let lines: Vec<&[u8]> = text.strip_suffix(b"\n").unwrap_or(&text).split(|b| *b == b'\n').collect();
    let records: Vec<&[u8]> = lines.iter().copied().cycle().take(arguments.records as usize).collect();
    let programs = match &arguments.programs {
        Some(programs) => programs.clone(),
        None => std::env::current_exe()?.parent().map(Path::to_path_buf).unwrap_or_default(),
    };
    let chiplog = programs.join("chiplog");
    if !chiplog.is_file() {
        return Err(format!(
            "there is no {}: build it with cargo build -p chiplog-server",
            chiplog.display()
        )
        .into());
    }
    let out = root.join("target/examples");
    let dir = out.join(format!("run-{}", std::process::id()));
    fs::create_dir_all(&out)?;
    let ready = build(arguments, &Place { root, programs, out }, &dir)?;
    fs::create_dir_all(&dir)?;
    let servers = Arc::new(Servers::new(&chiplog, &dir, true)?);
    let running = Processes::default();
    end_at_signals(&servers, &running)?;
    let ran = run_stages(&records, &ready, &servers, &running, &dir);
    servers.end(ran.is_err());
    ran.map_err(|error| format!("{error}\nthe views' and servers' files are in {}", dir.display()).into())
}

/// After Ctrl-C no process and no file is left.
fn end_at_signals(servers: &Arc<Servers>, running: &Processes) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (servers, running) = (servers.clone(), running.clone());
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            running.end();
            servers.end(false);
            std::process::exit(130);
        }
    });
    Ok(())
}

/// Builds the views that can be built here.
fn build(arguments: &Arguments, place: &Place, dir: &Path) -> Result<Vec<Ready>> {
    let mut ready = Vec::new();
    for view in VIEWS {
        if arguments.views.as_ref().is_some_and(|wanted| !wanted.iter().any(|name| name == view.name)) {
            continue;
        }
        match view.build(place)? {
            Built::Ready(program) => {
                let files = Files::new(&dir.join(view.name), view.copies);
                ready.push(Ready { name: view.name, program, files });
            }
            Built::Skipped(why) => println!("The view in {} is SKIPPED: {why}.", view.name),
        }
    }
    match ready.is_empty() {
        true => Err("there is no view to run".into()),
        false => Ok(ready),
    }
}

/// Runs the stages in order.
fn run_stages(
    records: &[&[u8]],
    views: &[Ready],
    servers: &Servers,
    running: &Processes,
    dir: &Path,
) -> Result<()> {
    let began = Instant::now();
    let until = records.len() as u64;
    let client = assemble(servers)?;
    let leader = leader_other_than(&client, 0)?;
    // The leader first: a view that uses the first server that answers is fed by the one that dies.
    let mut cluster = servers.clients();
    let leads = servers.place(leader)?.client.clone();
    cluster.sort_by_key(|server| *server != leads);
    let start = |view: &Ready, files: &Files, until| -> Result<Process> {
        running.start(view.name, &view.program, &cluster, files, until)
    };
    let names: Vec<_> = views.iter().map(|view| view.name).collect();
    println!("Three servers, {until} lines to append; views in {}.", names.join(", "));
    let mut following: Vec<_> =
        views.iter().map(|view| start(view, &view.files, until)).collect::<Result<_>>()?;

    let mut parts = Parts { records, client: &client, done: 0 };
    parts.append(1, Codec::None)?;
    let at = parts.done;
    following.iter_mut().try_for_each(|view| view.wait_for(at))?;
    println!("All views have applied {at} records.");

    let killed = parts.while_appending(2, Codec::Lz4, || {
        servers.kill(leader)?;
        let next = leader_other_than(&client, leader)?;
        println!("kill -9 of server {leader}, which led, in mid-append; server {next} leads.");
        Ok(leader)
    })?;
    come_back(servers, killed, parts.done)?;

    let mut stood = Vec::new();
    following = parts.while_appending(3, Codec::Zstd, || {
        let mut again = Vec::new();
        for (view, process) in views.iter().zip(following) {
            stood.push(format!("{} at {}", view.name, process.kill()));
            again.push(start(view, &view.files, until)?);
        }
        Ok(again)
    })?;
    println!("kill -9 of every view ({}); they are started again.", stood.join(", "));
    // New records for all: a view that had applied everything before it was killed has nothing to print otherwise.
    parts.append(4, Codec::None)?;

    // Every server that has fed a view has died once then.
    for node in servers.places.iter().map(|place| place.node).filter(|node| *node != killed) {
        let at = parts.done;
        following.iter_mut().try_for_each(|view| view.wait_for(at))?;
        let part = parts.part() + 1;
        parts.while_appending(part, Codec::None, || {
            servers.kill(node)?;
            println!("kill -9 of server {node}, in mid-append.");
            Ok(())
        })?;
        come_back(servers, node, parts.done)?;
    }
    parts.append(PARTS, Codec::Lz4)?;

    let (summary, hash) = expected(records.iter().copied());
    for (view, process) in views.iter().zip(following) {
        check(view, process, &summary, hash)?;
        println!("  {:<7} {summary}", view.name);
    }
    for view in views {
        check(view, start(view, &view.files, until)?, &summary, hash)?;
    }
    println!(
        "All summaries and tables are equal, and what the text gives. Started once more, no view changes anything."
    );
    discarded(views, &client, servers, records, dir, &start)?;
    println!("All checks passed, in {:.1} s.", began.elapsed().as_secs_f64());
    Ok(())
}

/// Starts three servers and makes one cluster of them.
fn assemble(servers: &Servers) -> Result<Client> {
    servers.assemble(|_, _| ())?;
    Ok(Client::connect(servers.clients(), Default::default())?)
}

/// The node that leads now.
fn leader_other_than(client: &Client, node: u64) -> Result<u64> {
    let began = Instant::now();
    loop {
        match client.info().map(|info| info.leader) {
            Ok(Some(leader)) if leader.get() != node => return Ok(leader.get()),
            other if began.elapsed() > PATIENCE => {
                return Err(format!("no leader was elected: {other:?}").into());
            }
            _ => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Starts a killed server again and waits until it has these records.
fn come_back(servers: &Servers, node: u64, last: u64) -> Result<()> {
    servers.start(node)?;
    let began = Instant::now();
    while servers.figure(node, "chiplog_last_index").is_none_or(|has| has < last) {
        if began.elapsed() > PATIENCE {
            return Err(format!("server {node} does not catch up").into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The number of parts of the records.
const PARTS: usize = 7;

/// The records to append, part by part, each once.
struct Parts<'a> {
    records: &'a [&'a [u8]],
    client: &'a Client,
    /// Records that are in the log.
    done: u64,
}

impl Parts<'_> {
    /// The part that was appended last, from 1.
    fn part(&self) -> usize {
        self.done as usize * PARTS / self.records.len()
    }

    /// Appends up to the end of this part.
    fn append(&mut self, part: usize, codec: Codec) -> Result<()> {
        self.while_appending(part, codec, || Ok(()))
    }

    /// The same, with an event in the middle: half the part is sent before, the rest while it happens.
    fn while_appending<T>(
        &mut self,
        part: usize,
        codec: Codec,
        happens: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let end = (self.records.len() * part).div_ceil(PARTS);
        let (before, behind) = self.records[self.done as usize..end].split_at((end - self.done as usize) / 2);
        let mut options = ProducerOptions::default();
        (options.codec, options.batch_records) = (codec, 100); // many batches, as from many programs
        (options.delivery_timeout, options.block_max) = (PATIENCE, PATIENCE);
        let producer = self.client.producer(options)?;
        let send = |records: &[&[u8]]| records.iter().try_for_each(|record| producer.send(record));
        send(before)?;
        let happened = thread::scope(|scope| -> Result<T> {
            let sending = scope.spawn(|| send(behind));
            let happened = happens();
            sending.join().map_err(|_| "the producer panicked")??;
            happened
        })?;
        self.end(producer, end)?;
        Ok(happened)
    }

    fn end(&mut self, producer: Producer, end: usize) -> Result<()> {
        producer.flush(PATIENCE)?;
        let closed = producer.close(PATIENCE);
        if !closed.all_acknowledged() {
            return Err(format!("records were not accepted: {closed:?}").into());
        }
        self.done = end as u64;
        Ok(())
    }
}

/// Waits for the view's end; it must succeed, with this summary and these tables.
fn check(view: &Ready, process: Process, summary: &Summary, hash: u64) -> Result<()> {
    let ended = process.end()?;
    let last = ended.lines.iter().any(|line| *line == summary.to_string());
    if !ended.success || !last {
        return Err(format!(
            "the view in {}: expected {summary}; its output:\n{}",
            view.name,
            ended.lines.join("\n")
        )
        .into());
    }
    match tables(&view.files.db)? == hash {
        true => Ok(()),
        false => Err(format!("the view in {}: its tables are not what the text gives", view.name).into()),
    }
}

/// How long a view runs before it is killed, one after the other: so it is interrupted in every phase.
const MOMENTS_MILLIS: [u64; 6] = [20, 70, 150, 300, 600, 1200];

/// A view that is killed repeatedly while it catches up; and one whose next record is discarded, which must report that
/// and end.
fn discarded(
    views: &[Ready],
    client: &Client,
    servers: &Servers,
    records: &[&[u8]],
    dir: &Path,
    start: &dyn Fn(&Ready, &Files, u64) -> Result<Process>,
) -> Result<()> {
    let last = records.len() as u64;
    let quarter = last / 4;
    let (summary, hash) = expected(records[..quarter as usize].iter().copied());
    let mut late = Vec::new();
    for &Ready { name, ref program, ref files } in views {
        let files = Files::new(&dir.join(format!("{name}-late")), files.copy.is_some());
        let mut view = Ready { name, program: program.clone(), files };
        for millis in MOMENTS_MILLIS {
            let process = start(&view, &view.files, quarter)?;
            thread::sleep(Duration::from_millis(millis));
            process.kill();
        }
        check(&view, start(&view, &view.files, quarter)?, &summary, hash)?;
        // Its copy may have the next record: it must make another one.
        view.files.copy = view.files.copy.map(|copy| copy.with_file_name("copy-again"));
        late.push(view);
    }
    println!(
        "kill -9 of each view {} times while it catches up: its tables are those of the text.",
        MOMENTS_MILLIS.len()
    );
    client.discard(Index(last / 2))?;
    // Every server has applied the discard before a view reads.
    for node in servers.places.iter().map(|place| place.node) {
        let began = Instant::now();
        while servers.figure(node, "chiplog_first_index") != Some(last / 2) {
            if began.elapsed() > PATIENCE {
                return Err(format!("server {node} does not apply the discard").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    for view in late {
        let ended = start(&view, &view.files, last)?.end()?;
        let says = ended.lines.iter().any(|line| line.to_lowercase().contains("discarded"));
        if ended.success || !says {
            let lines = ended.lines.join("\n");
            return Err(format!(
                "the view in {}: record {} is discarded; its output:\n{lines}",
                view.name,
                quarter + 1
            )
            .into());
        }
    }
    println!(
        "Records below {} are discarded: each view that is at {quarter} says so by name, and ends.",
        last / 2
    );
    Ok(())
}
