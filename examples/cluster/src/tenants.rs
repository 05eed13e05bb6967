//! Many named logs on the same servers: a log for each tenant, in two groups. The leader of a group is killed while
//! programs append to all of them; then every log is read and compared.

use crate::servers::{GROUPS, PATIENCE, Servers};
use crate::{PRODUCERS, count};
use chiplog::{ErrorKind, Start};
use chiplog_net::client::blocking::Client;
use chiplog_net::client::{ProducerOptions, ReadFrom, ReaderOptions};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Each program goes over its logs this often, with a producer for each log and round.
const ROUNDS: u64 = 2;
/// Records that a producer appends.
const RECORDS: u64 = 5;

/// Shared by the programs.
#[derive(Default)]
struct Progress {
    confirmed: AtomicU64,
    failed: AtomicBool,
}

fn name(tenant: u64) -> String {
    format!("tenant-{tenant:04}")
}

fn record(tenant: u64, number: u64) -> String {
    format!("{number} of tenant {tenant}")
}

/// Creates `tenants` logs, appends to all of them, and kills the leader of group 1 meanwhile.
pub(crate) fn serve_many(client: &Client, servers: &Servers, tenants: u64) -> Result<()> {
    let begun = Instant::now();
    in_parallel(tenants, |program| {
        let client = Client::connect(servers.clients(), Default::default())?;
        (program..tenants).step_by(PRODUCERS as usize).try_for_each(|tenant| {
            match client.create_log(&name(tenant)) {
                // The answer to a first attempt was lost: no other program uses these names.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                created => created.map(drop).map_err(Into::into),
            }
        })
    })?;
    println!(
        "\n6. The same servers keep {} named logs, in {GROUPS} groups that replicate, write and sync for all of their logs: created in\n   \
         {:.1} s. {PRODUCERS} programs append to each of them.",
        count(tenants),
        begun.elapsed().as_secs_f64()
    );
    let (begun, progress) = (Instant::now(), Progress::default());
    let all = tenants * ROUNDS * RECORDS;
    thread::scope(|scope| -> Result<()> {
        let programs = scope.spawn(|| {
            let appended = in_parallel(tenants, |program| append(servers, &progress, program, tenants));
            progress.failed.fetch_or(appended.is_err(), Ordering::Relaxed);
            appended
        });
        let story = lose_a_leader(servers, &progress, all);
        programs.join().map_err(|_| "a program panicked")??;
        story
    })?;
    println!(
        "   {} records are confirmed in {:.1} s, each program with a new producer for each log.",
        count(progress.confirmed.load(Ordering::Relaxed)),
        begun.elapsed().as_secs_f64()
    );
    let listed = client.list_logs("tenant-")?;
    if listed.len() as u64 != tenants {
        return Err(format!("A PROMISE IS BROKEN: {} logs are listed", listed.len()).into());
    }
    in_parallel(tenants, |program| {
        let client = Client::connect(servers.clients(), Default::default())?;
        (program..tenants).step_by(PRODUCERS as usize).try_for_each(|tenant| check(&client, tenant))
    })?;
    println!(
        "   Each of the {} logs has its {} records, in order, none lost, none twice, none of another log.",
        count(tenants),
        ROUNDS * RECORDS
    );
    Ok(())
}

/// Runs the work of all programs, each in a thread; returns the first error.
fn in_parallel(tenants: u64, work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let programs: Vec<_> = (0..PRODUCERS.min(tenants)).map(|n| scope.spawn(move || work(n))).collect();
        programs.into_iter().try_for_each(|program| program.join().map_err(|_| "a program panicked")?)
    })
}

/// Appends the records of one program's logs.
fn append(servers: &Servers, progress: &Progress, program: u64, tenants: u64) -> Result<()> {
    let client = Client::connect(servers.clients(), Default::default())?;
    for round in 0..ROUNDS {
        for tenant in (program..tenants).step_by(PRODUCERS as usize) {
            let producer = client.of_log(&name(tenant))?.producer(ProducerOptions::default())?;
            for number in round * RECORDS..(round + 1) * RECORDS {
                producer.send(record(tenant, number).as_bytes())?;
            }
            producer.flush(PATIENCE)?;
            progress.confirmed.fetch_add(RECORDS, Ordering::Relaxed);
            if !producer.close(Duration::from_secs(10)).all_acknowledged() {
                return Err(format!("records of {} were not confirmed", name(tenant)).into());
            }
        }
    }
    Ok(())
}

/// The leader of group 1, as a server that runs knows it.
fn leader_of_group(servers: &Servers, asked: u64) -> Option<u64> {
    servers.figure(asked, "chiplog_group_leader{group=\"1\"}").filter(|node| *node != 0)
}

/// Kills the leader of group 1 when a third of the records is confirmed, and starts it again.
fn lose_a_leader(servers: &Servers, progress: &Progress, all: u64) -> Result<()> {
    let is_third = || progress.confirmed.load(Ordering::Relaxed) >= all / 3;
    until("a third of the records is confirmed", progress, || is_third().then_some(()))?;
    let leader = until("group 1 has a leader", progress, || leader_of_group(servers, 1))?;
    let (killed, other) = (Instant::now(), if leader == 1 { 2 } else { 1 });
    servers.kill(leader)?;
    let next = until("another server leads group 1", progress, || {
        leader_of_group(servers, other).filter(|next| *next != leader)
    })?;
    println!(
        "   kill -9 of server {leader}, which leads group 1: server {next} leads it after {} ms; the other group's logs go on. Server\n   \
         {leader} is started again, and gets the lead of a group back later, so that the leaders are spread evenly.",
        killed.elapsed().as_millis()
    );
    servers.start(leader)
}

fn until<T>(what: &str, progress: &Progress, mut is: impl FnMut() -> Option<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = is() {
            return Ok(found);
        }
        if progress.failed.load(Ordering::Relaxed) || begun.elapsed() > PATIENCE {
            return Err(format!("it is never so that {what}").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Reads one log from end to end, and compares every record.
fn check(client: &Client, tenant: u64) -> Result<()> {
    let options = ReaderOptions::default().follow(false).from(ReadFrom::Leader);
    let log = client.of_log(&name(tenant))?;
    let mut reader = log.reader_with(Start::First, options);
    let mut number = 0;
    while let Some(found) = reader.next_record()? {
        if found.data != record(tenant, number).as_bytes() || found.index.get() != number + 1 {
            let (name, data) = (name(tenant), String::from_utf8_lossy(&found.data));
            return Err(format!("A PROMISE IS BROKEN: record {} of {name} is {data:?}", found.index).into());
        }
        number += 1;
    }
    match number == ROUNDS * RECORDS {
        true => Ok(()),
        false => Err(format!("A PROMISE IS BROKEN: {} has {number} records", name(tenant)).into()),
    }
}
