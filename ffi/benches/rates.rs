//! Rates of the C ABI and of the Rust API, alternately, on the same disk: 128 threads append records of 2 KiB; then
//! all is read. Prints each round, and the median of the rounds' ratios as a bar.
//!
//!     cargo bench -p chiplog-ffi -- [--rounds N] [--seconds N] [--dir PATH] [--json-file PATH]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "../tests/support/mod.rs"]
mod support;

use chiplog::{Log, Options, Start};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Installed, run};

const THREADS: usize = 128;
const BYTES: usize = 2048;

fn option(name: &str) -> Option<String> {
    let mut given = std::env::args().skip_while(|argument| argument != name);
    given.nth(1)
}

fn append(dir: &Path, seconds: f64) -> f64 {
    let log = Log::open(dir, Options::default()).unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let record = vec![b'x'; BYTES];
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    log.append(&record).unwrap();
                    count += 1;
                }
                done.fetch_add(count, Ordering::Relaxed);
            });
        }
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
    });
    done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

fn scan(dir: &Path) -> f64 {
    let log = Log::open(dir, Options::default()).unwrap();
    let mut reader = log.reader(Start::First).unwrap();
    let (mut bytes, mut sum) = (0, 0u64);
    let began = Instant::now();
    while let Some(batch) = reader.next_batch().unwrap() {
        for record in batch.iter() {
            bytes += record.data.len();
            sum = sum.wrapping_add(record.index.get());
        }
    }
    let took = began.elapsed();
    assert!(sum > 0);
    bytes as f64 / took.as_secs_f64()
}

fn in_c(program: &Path, arguments: &[&str]) -> f64 {
    run(Command::new(program).args(arguments)).out.trim().parse().unwrap()
}

fn median(all: impl IntoIterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = all.into_iter().collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Measures Rust once and C once, in alternating order.
fn pair(round: usize, rust: impl FnOnce() -> f64, c: impl FnOnce() -> f64) -> (f64, f64) {
    if round.is_multiple_of(2) {
        let rust = rust();
        (rust, c())
    } else {
        let c = c();
        (rust(), c)
    }
}

/// C must reach 95 % of Rust's rate.
const LEAST: f64 = 0.95;

/// Prints the bar. Returns it as JSON, with the same fields as `chiplog-bench bars`.
fn bar(name: &str, unit: &str, pairs: &[(f64, f64)]) -> String {
    let (rust, c) = (median(pairs.iter().map(|p| p.0)), median(pairs.iter().map(|p| p.1)));
    let ratio = median(pairs.iter().map(|(rust, c)| c / rust));
    let met = ratio >= LEAST;
    let said = if met { "met" } else { "short" };
    println!("{name:<10} {c:>12.0} {unit} in C, {rust:>12.0} in Rust, {ratio:.2} >= {LEAST}: {said}");
    format!(
        r#"{{"name":"{name}","figure":{c:.1},"limit":{rust:.1},"unit":"{unit}","ratio":{ratio:.4},"bar":">= {LEAST}","met":{met}}}"#
    )
}

fn main() {
    let rounds: usize = option("--rounds").map_or(5, |n| n.parse().unwrap());
    let seconds: f64 = option("--seconds").map_or(3.0, |n| n.parse().unwrap());
    let base = option("--dir").map_or_else(std::env::temp_dir, PathBuf::from);
    let source = support::here().join("benches/rates.c");
    let program = Installed::get().build_at(&source, &["-std=c99", "-Wall", "-Wextra", "-Werror"], &["-O2"]);
    let work = tempfile::Builder::new().prefix("chiplog-rates").tempdir_in(base).unwrap();
    let dir = |name: String| work.path().join(name);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut appends = Vec::new();
    for round in 0..rounds {
        let (ours, theirs) = (dir(format!("rust-{round}")), dir(format!("c-{round}")));
        let (threads, bytes, time) = (THREADS.to_string(), BYTES.to_string(), seconds.to_string());
        let by_c = || in_c(&program, &["append", &text(&theirs), &threads, &bytes, &time]);
        let (rust, c) = pair(round, || append(&ours, seconds), by_c);
        println!("append {THREADS} x {BYTES}: Rust {rust:>10.0} records/s   C {c:>10.0}   {:.3}", c / rust);
        appends.push((rust, c));
        if round > 0 {
            std::fs::remove_dir_all(&ours).unwrap();
        }
        std::fs::remove_dir_all(&theirs).unwrap();
    }
    let there = dir("rust-0".into());
    scan(&there); // into the page cache
    let mut scans = Vec::new();
    for round in 0..rounds.max(5) {
        let (rust, c) = pair(round, || scan(&there), || in_c(&program, &["scan", &text(&there)]));
        println!("scan: Rust {:>8.0} MB/s   C {:>8.0}   {:.3}", rust / 1e6, c / 1e6, c / rust);
        scans.push((rust, c));
    }
    let bars = [bar("c_append", "/s", &appends), bar("c_scan", "B/s", &scans)];
    if let Some(path) = option("--json-file") {
        std::fs::write(path, format!("{{\"bars\":[{}]}}\n", bars.join(","))).unwrap();
    }
}
