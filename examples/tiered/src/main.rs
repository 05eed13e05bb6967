//! A log that is larger than its servers' disks, and that outlives all of them. Three servers keep older records in a bucket; a
//! view begins with the log's first record, which it reads from there; then all servers and their disks are destroyed, and a new
//! cluster is made of the bucket alone.
//!
//! ```text
//! bucket.rs     an S3 server in this process
//! servers.rs    the servers, as in ../cluster; and demo.rs
//! text.rs       the records, as in ../cluster
//! ```

mod bucket;
#[path = "../../cluster/src/demo.rs"]
mod demo;
#[path = "../../cluster/src/servers.rs"]
mod servers;
#[path = "../../cluster/src/text.rs"]
mod text;

use bucket::{Bucket, LOCATION};
use chiplog::vault::Vault;
use chiplog::{Index, Options, Reader, Start};
use chiplog_net::client::blocking::Client;
use chiplog_net::client::{ReadFrom, ReaderOptions};
use chiplog_net::follower::{Follower, FollowerOptions};
use clap::Parser as _;
use demo::count;
use servers::{PATIENCE, Servers};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use text::Text;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The bytes that a server keeps in files, at least.
const LOCAL_BYTES: u64 = 8 << 20;
/// Records that are in no object yet become one after this time.
const OBJECT_AGE: Duration = Duration::from_secs(1);
/// How many parts the records are appended in.
const PARTS: u64 = 8;

/// A log that is larger than its servers' disks, and comes back from a bucket alone.
#[derive(clap::Parser)]
#[command(version)]
struct Arguments {
    /// New or empty directory for servers and bucket, which is kept; by default a directory is made and removed
    dir: Option<PathBuf>,
    /// Text whose lines become the records, repeated [default: Newton's Opticks, built in]
    #[arg(long)]
    file: Option<PathBuf>,
    /// How much to append in total, 40 to 4096
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(40..=4096))]
    mib: u64,
    /// The chiplog to run [default: the one beside this program]
    #[arg(long, overrides_with = "chiplog")]
    chiplog: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tiered: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let text = Text::load(arguments.file.as_deref())?;
    let chiplog = demo::program(arguments.chiplog.as_deref())?;
    let dir = demo::directory(arguments.dir.as_deref())?;
    let dir = dir.canonicalize()?;
    let bucket = Bucket::start(&dir)?;
    let mut servers = Servers::new(&chiplog, &dir, arguments.dir.is_none())?;
    servers.settings = bucket.settings();
    servers.settings.extend([
        "groups=0".to_owned(), // one log: the bucket has objects of no other
        "objects.object_bytes=1MiB".to_owned(),
        format!("objects.object_age_seconds={}", OBJECT_AGE.as_secs()),
        format!("objects.local_bytes={LOCAL_BYTES}"),
    ]);
    let servers = Arc::new(servers);
    let at_signal = servers.clone();
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            at_signal.end(false);
            std::process::exit(130);
        }
    });
    let ran = run_stages(arguments, &text, &servers, &bucket, &dir);
    servers.end(ran.is_err());
    if ran.is_ok() && arguments.dir.is_some() {
        println!("The data is kept in {}. Look at it: chiplog info {0}/server-1", dir.display());
    }
    ran.map_err(|error| format!("{error}\nthe servers' data and their logs are in {}", dir.display()).into())
}

fn run_stages(
    arguments: &Arguments,
    text: &Text,
    servers: &Servers,
    bucket: &Bucket,
    dir: &Path,
) -> Result<()> {
    let began = Instant::now();
    let total = text.records_in(arguments.mib << 20);
    println!("1. Three servers, each a process (`chiplog serve`), and a bucket, an S3 server:");
    servers.assemble(told)?;
    let client = Client::connect(servers.clients(), Default::default())?;
    fill(&client, servers, bucket, text, total)?;
    boot_a_view(servers, bucket, text, total, &dir.join("view"))?;
    lose_all(servers, bucket, total)?;
    come_back(servers, bucket, text, total, &dir.join("backup"))?;
    println!("\nAll checks passed, in {:.1} s.", began.elapsed().as_secs_f64());
    Ok(())
}

/// Appends all records, a part at a time: a server removes files when the next one begins, and what is in them is stored.
fn fill(client: &Client, servers: &Servers, bucket: &Bucket, text: &Text, total: u64) -> Result<()> {
    let (begun, mut bytes) = (Instant::now(), 0);
    for part in 0..PARTS {
        append(client, text, total * part / PARTS, total * (part + 1) / PARTS, |record| {
            bytes += record as u64
        })?;
        wait_until_stored(servers, total * (part + 1) / PARTS)?;
    }
    let kept = servers.places.iter().map(|place| segment_bytes(&place.data)).collect::<Result<Vec<_>>>()?;
    if kept.iter().any(|kept| *kept > bytes * 3 / 4) {
        return Err(format!("the servers keep {kept:?} bytes of {bytes}").into());
    }
    let kept: Vec<String> = kept.iter().map(|kept| (kept >> 20).to_string()).collect();
    let (objects, stored) = bucket.objects()?;
    println!(
        "\n2. {} records, {} MiB, are appended, each on the disks of at least two servers before it is confirmed. Every MiB, or what\n   \
         is {} s old, becomes an object in the bucket, and leaves a server's disk beyond {} MiB. After {:.1} s the bucket has {objects}\n   \
         objects of {} MiB, and the servers {} MiB in files.",
        count(total),
        bytes >> 20,
        OBJECT_AGE.as_secs(),
        LOCAL_BYTES >> 20,
        begun.elapsed().as_secs_f64(),
        stored >> 20,
        kept.join(", "),
    );
    Ok(())
}

/// Waits until a record and all before it are in the bucket, as far as each server knows.
fn wait_until_stored(servers: &Servers, last: u64) -> Result<()> {
    let begun = Instant::now();
    for place in &servers.places {
        let stored = || servers.figure(place.node, "chiplog_stored_index").unwrap_or(0);
        while stored() < last {
            if begun.elapsed() > PATIENCE {
                return Err(format!("only records up to {} of {last} are stored", stored()).into());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// Records `from` to `to`, appended once each, in order.
fn append(client: &Client, text: &Text, from: u64, to: u64, mut each: impl FnMut(usize)) -> Result<()> {
    let producer = client.producer(Default::default())?;
    for number in from..to {
        let record = text.record(number);
        each(record.len());
        producer.send(&record)?;
    }
    Ok(producer.flush(PATIENCE)?)
}

/// A view in this process: it has the log's first record at once, and no server sends records that are in the bucket.
fn boot_a_view(servers: &Servers, bucket: &Bucket, text: &Text, total: u64, dir: &Path) -> Result<()> {
    let begun = Instant::now();
    let vault: Arc<dyn Vault> = Arc::new(bucket.vault()?);
    let options = FollowerOptions::default().files(Options::with_segment_bytes(4 << 20).vault(vault));
    let view = Follower::open(dir, servers.clients(), Start::First, options)?;
    let mut reader = view.reader(Start::First)?;
    let first = reader.next_record()?.ok_or("the view has no record")?;
    check(text, first.index, first.data)?;
    let first = begun.elapsed();
    view.wait_for(Index(total), PATIENCE)?;
    let (records, bytes) = read_all(&mut reader, text)?;
    if records + 1 != total {
        return Err(broken(format!("the view has {} records of {total}", records + 1)));
    }
    let (status, fetched) = (view.status(), view.log().metrics().fetched_bytes);
    let server =
        status.server.map_or_else(|| Ok("no longer there".into()), |server| servers.node_at(&server))?;
    println!(
        "\n3. A view in this program has the log's first record after {} ms, and after {} ms has read all {}: {} MiB came from the\n   \
         bucket, {:.1} MiB of {} from server {server}.",
        first.as_millis(),
        begun.elapsed().as_millis(),
        count(total),
        fetched >> 20,
        status.received_bytes as f64 / f64::from(1 << 20),
        bytes >> 20,
    );
    Ok(view.close()?)
}

/// Reads on to the end of what is there. Returns the number of records, and their bytes.
fn read_all(reader: &mut Reader, text: &Text) -> Result<(u64, u64)> {
    let mut all = (0, 0);
    while let Some(record) = reader.next_record()? {
        check(text, record.index, record.data)?;
        all = (all.0 + 1, all.1 + record.data.len() as u64);
    }
    Ok(all)
}

/// The record at an index is always the same.
fn check(text: &Text, index: Index, data: &[u8]) -> Result<()> {
    match text.number_of(data) {
        Some(number) if number + 1 == index.get() => Ok(()),
        _ => Err(broken(format!("record {index} is another one"))),
    }
}

/// Waits until all records are in the bucket; then kills all servers and removes their disks.
fn lose_all(servers: &Servers, bucket: &Bucket, total: u64) -> Result<()> {
    wait_until_stored(servers, total)?;
    for place in &servers.places {
        servers.kill(place.node)?;
    }
    servers.places.iter().try_for_each(|place| fs::remove_dir_all(&place.data))?;
    println!(
        "\n4. All records are in the bucket (metric chiplog_stored_index of each server). kill -9 of all three servers, and their disks\n   \
         are destroyed. {} objects are left.",
        bucket.objects()?.0
    );
    Ok(())
}

/// Makes a new cluster of the bucket, and reads everything from each of its servers.
fn come_back(servers: &Servers, bucket: &Bucket, text: &Text, total: u64, backup: &Path) -> Result<()> {
    let begun = Instant::now();
    let [first, others @ ..] = &servers.places[..] else { return Err("there is no server".into()) };
    println!("\n5. A new cluster, made of the bucket alone:");
    let (backup, data) = (backup.display().to_string(), first.data.display().to_string());
    let access = bucket.arguments();
    let fetch = ["tier", "fetch", LOCATION, &backup];
    let arguments: Vec<&str> = fetch.into_iter().chain(access.iter().map(String::as_str)).collect();
    told(&fetch, &servers.command(&arguments)?);
    say(servers, &["restore", &backup, &data])?;
    servers.start(first.node)?;
    for other in others {
        servers.start(other.node)?;
        let add = ["member", "add", &other.client, "--cluster", &first.client, "--promote"];
        told(&add, &servers.change(&add)?);
    }
    let client = Client::connect(servers.clients(), Default::default())?;
    let info = client.info()?;
    if info.last < Index(total) {
        return Err(broken(format!("the log has records up to {} of {total}", info.last)));
    }
    append(&client, text, total, total + 1_000, |_| ())?;
    for place in &servers.places {
        let (mut next, reading) = (Index(1), Instant::now());
        // A reader goes on at another server if its own is silent for a moment, and ends where that one does, which may lack records yet.
        while next <= Index(total) {
            let options = ReaderOptions::default().follow(false).from(ReadFrom::Nearest(place.zone.clone()));
            let mut reader = client.reader_with(Start::Index(next), options);
            while let Some(record) = reader.next_record()? {
                if record.index != next {
                    return Err(broken(format!("record {} arrived instead of {next}", record.index)));
                }
                check(text, record.index, &record.data)?;
                next = next.next();
            }
            if next <= Index(total) && reading.elapsed() > PATIENCE {
                let last = next.previous();
                return Err(broken(format!("server {} has records up to {last} of {total}", place.node)));
            }
        }
    }
    println!(
        "   All {} records that were confirmed are there, {:.1} s after the loss, each at its index, and on every server. 1,000 more\n   \
         are appended behind them.",
        count(total),
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Runs a command and shows it with its output.
fn say(servers: &Servers, args: &[&str]) -> Result<()> {
    servers.command(args).map(|output| told(args, &output))
}

fn told(args: &[&str], output: &str) {
    println!("     $ chiplog {}\n     {}", args.join(" "), output.replace('\n', "\n     "));
}

fn broken(what: String) -> Box<dyn Error + Send + Sync> {
    format!("A PROMISE IS BROKEN: {what}").into()
}

/// Bytes of a directory's files of the log, as the disk has them.
fn segment_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(".seg") {
            bytes += entry.metadata().map_or(0, |file| file.len()); // it can be removed meanwhile
        }
    }
    Ok(bytes)
}
