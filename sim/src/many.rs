//! Many runs at once: each is a function of its seed, so the number of threads changes only the time.

use chiplog::sim::{Report, run};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

/// The number of processors.
pub(crate) fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs all seeds and passes on each report, in no order.
pub(crate) fn each(seeds: &[u64], threads: usize, mut take: impl FnMut(Report)) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (tx, rx) = channel();
        for _ in 0..threads.max(1) {
            let (tx, next) = (tx.clone(), &next);
            scope.spawn(move || {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if tx.send(run(*seed)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tx);
        rx.iter().for_each(&mut take);
    });
}

/// Runs seeds, in their order, until `found` returns something for one; returns the first such seed.
pub(crate) fn first<T>(
    seeds: &[u64],
    threads: usize,
    found: impl Fn(&Report) -> Option<T>,
) -> Option<(u64, T)> {
    for some in seeds.chunks(threads.max(1)) {
        let mut all = Vec::new();
        each(some, threads, |report| all.extend(found(&report).map(|what| (report.plan.seed, what))));
        let place = |seed: u64| some.iter().position(|other| *other == seed);
        if let Some(best) = all.into_iter().min_by_key(|(seed, _)| place(*seed)) {
            return Some(best);
        }
    }
    None
}
