//! Scripts: the steps of a test with a log, chosen at random from a seed.

use chiplog::disk::sim::Rng;
use chiplog::{Codec, LogOption};

/// One step of a script.
#[derive(Clone, Debug)]
pub enum Step {
    /// Submits a batch; with a session, as its next sequence number.
    Append { session: Option<usize>, records: Vec<Vec<u8>>, codec: Codec },
    /// Submits a session's latest batch again.
    Retry { session: usize },
    /// Opens session number n of the script (0, 1, …).
    OpenSession,
    /// Closes a session.
    CloseSession { session: usize },
    /// Discards this many records from the front; more than there are moves the first index beyond the end.
    Discard { records: u64 },
    /// Sets an option of the log; `None` unsets it.
    SetOption { option: LogOption, value: Option<u64> },
    /// Waits for everything submitted.
    Wait,
    /// Waits for everything and then long enough for the log to prove its tail.
    Idle,
    /// Closes the log and opens it again, with segments of this size from now on.
    Reopen { segment_kib: u32 },
    /// Waits for everything, and reads in every way.
    Read,
    /// Cuts the power without waiting; each unsynced unit is kept with odds `keep` in 8.
    Crash { seed: u64, keep: usize },
}

/// The parameters of a script.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub steps: usize,
    /// The largest record.
    pub record_bytes: usize,
    /// About how many commands are in flight before a wait.
    pub in_flight: usize,
    pub sessions: bool,
    pub discards: bool,
}

/// The bytes of record `n` of a script: no two records are equal, and each shows its number.
pub fn record(n: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(n);
    let mut bytes = format!("<{n}>").into_bytes();
    while bytes.len() < length {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(length.max(3 + n.max(1).ilog10() as usize));
    bytes
}

/// A random script.
pub fn script(seed: u64, mix: Mix) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let (mut n, mut open, mut opened) = (0, Vec::new(), 0);
    let mut steps = Vec::new();
    while steps.len() < mix.steps {
        let pick = rng.below(100);
        steps.push(match pick {
            0..=4 if mix.sessions && opened < 3 => {
                open.push(opened);
                opened += 1;
                Step::OpenSession
            }
            5..=14 if !open.is_empty() => Step::Retry { session: open[rng.below(open.len())] },
            15 if !open.is_empty() => Step::CloseSession { session: open.swap_remove(rng.below(open.len())) },
            16..=20 if mix.discards => Step::Discard { records: rng.below(12) as u64 },
            21 if mix.discards && rng.below(4) == 0 => Step::Discard { records: 1000 },
            22 => Step::Idle,
            23 => Step::Reopen { segment_kib: [64, 64, 128][rng.below(3)] },
            _ if rng.below(mix.in_flight.max(1)) == 0 => Step::Wait,
            _ => {
                let count = if rng.below(3) == 0 { 1 + rng.below(5) } else { 1 };
                let records = (0..count)
                    .map(|_| {
                        n += 1;
                        let length = match rng.below(4) {
                            0 => rng.below(10),
                            1 | 2 => rng.below(200),
                            _ => rng.below(mix.record_bytes),
                        };
                        record(n, length)
                    })
                    .collect();
                let session = (!open.is_empty() && rng.below(2) == 0).then(|| open[rng.below(open.len())]);
                let codec = [Codec::None, Codec::None, Codec::Lz4, Codec::Zstd][rng.below(4)];
                Step::Append { session, records, codec }
            }
        });
    }
    steps
}
