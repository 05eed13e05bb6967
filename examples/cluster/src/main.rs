//! A cluster of three servers: real processes on this machine. Eight programs append a real text over the network, and
//! the leader is killed meanwhile. No confirmed record is lost, none is there twice, and the killed server returns and
//! has all of them. The same servers then keep a thousand named logs, and another leader is killed.
//!
//! ```text
//! servers.rs    processes: started, killed, ended with this program
//! producers.rs  exactly-once appending over the network
//! tenants.rs    many named logs
//! view.rs       a copy of the log in this process, whose reader counts words and checks every record against the promises
//! text.rs       the records
//! demo.rs       the program, the directory, numbers
//! ```

mod demo;
mod producers;
mod servers;
mod tenants;
mod text;
mod view;

use chiplog::{ErrorKind, Index, ReadOnlyLog, Start};
use chiplog_net::client::ReadFrom;
use chiplog_net::client::blocking::Client;
use chiplog_net::follower::Follower;
use clap::Parser as _;
use demo::count;
use producers::{Promises, produce};
use servers::{ELECTION_MILLIS, PATIENCE, Servers};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use text::Text;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Programs that append.
const PRODUCERS: u64 = 8;

/// Three servers, the leader killed in mid-append: no confirmed record is lost, none is there twice.
#[derive(clap::Parser)]
#[command(version)]
struct Arguments {
    /// New or empty directory for the servers, which is kept; by default a directory is made and removed
    dir: Option<PathBuf>,
    /// Text whose lines become the records, repeated [default: Newton's Opticks, built in]
    #[arg(long)]
    file: Option<PathBuf>,
    /// How much to append in total, 1 to 4096
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4096))]
    mib: u64,
    /// Named logs, 1 to 10000
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    logs: u64,
    /// The chiplog to run [default: the one beside this program]
    #[arg(long, overrides_with = "chiplog")]
    chiplog: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cluster: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    // Before anything is created: a wrong name leaves nothing behind.
    let text = Text::load(arguments.file.as_deref())?;
    let chiplog = demo::program(arguments.chiplog.as_deref())?;
    let dir = demo::directory(arguments.dir.as_deref())?;
    let servers = Arc::new(Servers::new(&chiplog, &dir, arguments.dir.is_none())?);
    // The view's copy; it is closed before its directory is removed.
    let copy = Arc::<OnceLock<Follower>>::default();
    let is_interrupted = Arc::<AtomicBool>::default();
    let at_signal = (servers.clone(), copy.clone(), is_interrupted.clone());
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            let (servers, copy, is_interrupted) = at_signal;
            is_interrupted.store(true, Ordering::SeqCst);
            if let Some(copy) = copy.get() {
                let _ = copy.close();
            }
            servers.end(false);
            std::process::exit(130);
        }
    });
    let ran = run_stages(arguments, &text, &servers, &dir.join("view"), &copy);
    while is_interrupted.load(Ordering::SeqCst) {
        thread::park(); // the servers are being ended by the other thread, which ends the process
    }
    servers.end(ran.is_err());
    if ran.is_ok() && arguments.dir.is_some() {
        println!("The servers' data is kept in {}. Inspect it: chiplog info {0}/server-1", dir.display());
    }
    ran.map_err(|error| format!("{error}\nthe servers' data and their logs are in {}", dir.display()).into())
}

fn run_stages(
    arguments: &Arguments,
    text: &Text,
    servers: &Servers,
    view: &Path,
    copy: &OnceLock<Follower>,
) -> Result<()> {
    let began = Instant::now();
    let promises = Arc::new(Promises::new(text.records_in(arguments.mib << 20).max(10_000)));
    let name =
        arguments.file.as_ref().map_or("Isaac Newton's Opticks (1730)".into(), |f| f.display().to_string());
    println!(
        "The text: {name}, {} lines, repeated until there are {} records.\n",
        count(text.lines()),
        count(promises.total())
    );
    let client = assemble(servers)?;
    let leader = leader_other_than(&client, 0)?;
    let opened = view::copy(view, servers.clients(), &servers.place(leader)?.zone)?;
    let copy = copy.get_or_init(|| opened);
    println!(
        "\n2. {PRODUCERS} programs append over the network, each in a session of its own. A view in this program has a copy of\n   \
         the log, which server {leader} feeds; it reads that, counts words, and compares every record with the text."
    );
    let followed = thread::scope(|scope| -> Result<view::Followed> {
        let (all, promises, client, copy) = (servers.clients(), &promises, &client, copy);
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|n| {
                let all = all.clone();
                scope.spawn(move || promises.heed(produce(&all, text, promises, n, PRODUCERS)))
            })
            .collect();
        let view = scope.spawn(move || promises.heed(view::follow(copy, text, promises, PRODUCERS)));
        let story = promises.heed(lose_the_leader(client, servers, leader, promises));
        // The first failure is the cause: the other threads only noticed it.
        for producer in producers {
            producer.join().map_err(|_| "a producer panicked")??;
        }
        story?;
        view.join().map_err(|_| "the view panicked")?
    })?;
    let words = view::words_of(text, promises.total());
    if (followed.count, followed.words) != (promises.total(), words) {
        return Err(format!("A PROMISE IS BROKEN: the view has {followed:?}, not {words} words").into());
    }
    let fed: Vec<_> = followed.servers.iter().map(|server| servers.node_at(server)).collect::<Result<_>>()?;
    println!(
        "   All {} records are confirmed. The view has read them from its copy: {} words, as in the text, no record lost, none\n   \
         twice, each at the index where it was confirmed, those of a session in order. Server {} fed the copy, at the very next\n   \
         block; the view noticed nothing.",
        count(promises.confirmed()),
        count(words),
        fed.join(", then "),
    );
    discard_and_come_back(&client, servers, leader, text, &promises, copy)?;
    copy.close()?;
    tenants::serve_many(&client, servers, arguments.logs)?;
    println!("\nAll checks passed, in {:.1} s.", began.elapsed().as_secs_f64());
    Ok(())
}

/// Starts three servers and makes one cluster of them.
fn assemble(servers: &Servers) -> Result<Client> {
    println!(
        "1. Three servers, each a process (`chiplog serve`). Server 1 is the first of a cluster, the others join it:"
    );
    servers.assemble(|args, output| println!("     $ chiplog {}\n     {output}", args.join(" ")))?;
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

/// Kills the leader in mid-append, and waits until appends continue.
fn lose_the_leader(client: &Client, servers: &Servers, leader: u64, promises: &Promises) -> Result<()> {
    let began = Instant::now();
    wait_for(promises, promises.total() * 9 / 20)?;
    let (confirmed, time) = (promises.confirmed(), began.elapsed());
    println!(
        "   {} records confirmed in {:.1} s: {} a second, each on the disks of at least two servers.",
        count(confirmed),
        time.as_secs_f64(),
        count((confirmed as f64 / time.as_secs_f64()) as u64)
    );
    promises.watch_silence();
    let under_way = promises.under_way();
    let killed = Instant::now();
    servers.kill(leader)?;
    let confirmed = promises.confirmed();
    let next = leader_other_than(client, leader)?;
    let elected = killed.elapsed();
    wait_for(promises, (confirmed + under_way + 1).max(promises.total() * 7 / 10).min(promises.total()))?;
    println!(
        "\n3. kill -9 of server {leader}, which leads, with {} records in flight. Server {next} leads after {} ms (an election\n   \
         time-out is {ELECTION_MILLIS} to {} ms). The producers resend what had no answer; each record is stored once.\n   \
         No record was confirmed for {} ms; neither producers nor readers had to do anything.",
        count(under_way),
        elected.as_millis(),
        2 * ELECTION_MILLIS,
        promises.silence().as_millis(),
    );
    Ok(())
}

/// Discards the first half, starts the killed server again, and compares all three.
fn discard_and_come_back(
    client: &Client,
    servers: &Servers,
    killed: u64,
    text: &Text,
    promises: &Promises,
    copy: &Follower,
) -> Result<()> {
    let (first, last) = (Index(promises.total() / 2 + 1), Index(promises.total()));
    client.discard(first)?;
    let info = client.info()?;
    if (info.first, info.last) != (first, last) {
        return Err(format!("A PROMISE IS BROKEN: the log has {} to {}", info.first, info.last).into());
    }
    match client.reader(Start::Index(first.previous()), ReadFrom::Leader).next_record() {
        Err(error) if error.kind() == ErrorKind::Discarded => {}
        other => return Err(format!("a discarded record was answered with {other:?}").into()),
    }
    let asked = Instant::now();
    while copy.status().first != first {
        if asked.elapsed() > PATIENCE {
            return Err(format!("the view's copy does not apply the discard: {:?}", copy.status()).into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    println!(
        "\n4. Everything below index {} is discarded, on all servers and in the view's copy; a request for an older record gets a\n   \
         clear error.",
        count(first.get())
    );
    let had = ReadOnlyLog::open(&servers.place(killed)?.data)?.last_index();
    let back = Instant::now();
    servers.start(killed)?;
    while servers.figure(killed, "chiplog_last_index") != Some(last.get()) {
        if back.elapsed() > PATIENCE {
            return Err(format!("server {killed} does not catch up").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    println!(
        "\n5. Server {killed}, whose files show records up to {}, is started again: after {} ms it has dropped any unconfirmed\n   \
         records, and has what it lacked and was not discarded.",
        count(had.get()),
        back.elapsed().as_millis(),
    );
    let mut digests = Vec::new();
    for place in &servers.places {
        let (zone, server) = (&place.zone, &place.client);
        digests.push(view::read_all(client, zone, server, text, promises, PRODUCERS, first)?);
    }
    digests.push(view::read_copy(copy, text, promises, PRODUCERS, first)?);
    if digests.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(format!("A PROMISE IS BROKEN: the servers, or the copy, differ: {digests:x?}").into());
    }
    println!(
        "   Read from end to end, the servers over the network, all three have the same {} records, each at the index where\n   \
         it was confirmed, and so has the view's copy.",
        count(last.get() + 1 - first.get())
    );
    Ok(())
}

fn wait_for(promises: &Promises, confirmed: u64) -> Result<()> {
    let mut last = (promises.confirmed(), Instant::now());
    while promises.confirmed() < confirmed {
        thread::sleep(Duration::from_millis(1));
        if promises.confirmed() > last.0 {
            last = (promises.confirmed(), Instant::now());
        }
        if promises.failed() || last.1.elapsed() > PATIENCE {
            return Err("no more records are confirmed".into());
        }
    }
    Ok(())
}
