//! The limits for the bindings: the same work in Rust, in the same minutes. Used by `python/bench/bench.py`.
//!
//! `limits scan DIR ROUNDS`: reads all batches of a log, checked; prints the best round's bytes of records per second.
//! `limits follow DIR SERVER INDEX`: copies a log until it has a record; prints the seconds since the opening.

use chiplog::{Index, Log, Options, Start};
use chiplog_net::follower::{Follower, FollowerOptions};
use std::error::Error;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["scan", dir, rounds] => scan(dir, rounds.parse()?),
        ["follow", dir, server, index] => follow(dir, server, Index(index.parse()?)),
        _ => Err("limits scan DIR ROUNDS | limits follow DIR SERVER INDEX".into()),
    }
}

fn scan(dir: &str, rounds: u32) -> Result<(), Box<dyn Error>> {
    let log = Log::open(dir, Options::default().create(false))?;
    let mut best = 0.0_f64;
    for _ in 0..rounds {
        let (begun, mut bytes) = (Instant::now(), 0);
        let mut reader = log.reader(Start::First)?;
        while let Some(batch) = reader.next_batch()? {
            bytes += batch.payload().len();
        }
        best = best.max(bytes as f64 / begun.elapsed().as_secs_f64());
    }
    println!("{best}");
    Ok(())
}

fn follow(dir: &str, server: &str, index: Index) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    let follower = Follower::open(dir, [server], Start::First, FollowerOptions::default())?;
    follower.wait_for(index, Duration::from_secs(3600))?;
    println!("{}", begun.elapsed().as_secs_f64());
    follower.close()?;
    Ok(())
}
