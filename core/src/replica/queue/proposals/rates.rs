//! Rates: how many bytes may be appended to a log in a second. A log that was idle may take what one second allows at
//! once. An append of any size passes if that is not used up yet; the next ones wait longer for it.
//!
//! The generic cell rate algorithm (ITU-T I.371): for each log one moment, up to which its appends are paid for.
//!
//! Must not know: what waits in the queue.

use crate::error::{Error, ErrorKind};
use crate::options::log_options::LogOption;
use crate::types::LogNumber;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How far appends may be ahead of their rate.
const AHEAD_MAX: Duration = Duration::from_secs(1);

/// The logs whose rates are limited.
#[derive(Debug, Default)]
pub(super) struct Rates {
    logs: HashMap<LogNumber, Rate>,
}

#[derive(Debug)]
struct Rate {
    bytes_per_second: u64,
    /// When everything that was appended would have been appended at this rate.
    paid: Instant,
}

/// A log that has used up its rate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Limited {
    log: LogNumber,
    bytes_per_second: u64,
    /// The time until it may be appended to.
    pub(super) wait: Duration,
}

impl Rates {
    /// Limits a log to this many bytes a second. `None`: no limit.
    pub(super) fn set(&mut self, log: LogNumber, bytes_per_second: Option<u64>, now: Instant) {
        match bytes_per_second.filter(|limit| *limit < u64::MAX) {
            None => drop(self.logs.remove(&log)),
            Some(limit) => {
                let rate = self.logs.entry(log).or_insert(Rate { bytes_per_second: limit, paid: now });
                // The rest that is not paid for yet, at the new rate.
                let debt = rate.paid.saturating_duration_since(now).as_nanos();
                let debt = debt.saturating_mul(rate.bytes_per_second.into()) / u128::from(limit);
                let debt = Duration::from_nanos(u64::try_from(debt).unwrap_or(u64::MAX));
                *rate = Rate { bytes_per_second: limit, paid: now.checked_add(debt).unwrap_or(rate.paid) };
            }
        }
    }

    /// All that was appended is paid for: another leader has counted it.
    pub(super) fn forgive(&mut self, now: Instant) {
        self.logs.values_mut().for_each(|rate| rate.paid = now);
    }

    /// Of these logs the one that has to wait longest, if one has to wait.
    pub(super) fn limit(&self, logs: impl Iterator<Item = LogNumber>) -> Option<Limited> {
        if self.logs.is_empty() {
            return None;
        }
        self.limit_at(logs, Instant::now())
    }

    fn limit_at(&self, logs: impl Iterator<Item = LogNumber>, now: Instant) -> Option<Limited> {
        let limited = logs.filter_map(|log| {
            let rate = self.logs.get(&log)?;
            let wait = rate.paid.saturating_duration_since(now).checked_sub(AHEAD_MAX)?;
            let Rate { bytes_per_second, .. } = *rate;
            Some(Limited { log, bytes_per_second, wait }).filter(|limited| !limited.wait.is_zero())
        });
        limited.max_by_key(|limited| limited.wait)
    }

    /// Counts an append that was admitted.
    pub(super) fn spend(&mut self, log: LogNumber, bytes: usize) {
        if !self.logs.is_empty() {
            self.spend_at(log, bytes, Instant::now());
        }
    }

    fn spend_at(&mut self, log: LogNumber, bytes: usize, now: Instant) {
        if let Some(rate) = self.logs.get_mut(&log) {
            let nanos = u128::from(bytes as u64) * 1_000_000_000 / u128::from(rate.bytes_per_second);
            let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            let from = rate.paid.max(now);
            rate.paid = from.checked_add(time).unwrap_or(from);
        }
    }
}

impl Limited {
    /// The error of an append that does not wait for its turn.
    pub(super) fn error(&self) -> Error {
        let Self { log, bytes_per_second, wait } = self;
        let number = if log.is_none() { String::new() } else { format!(" (it is log {log} of its group)") };
        let what = format!(
            "the log takes {bytes_per_second} bytes a second, as its option {} says, and they are used up{number}: try again in {} \
             ms, or raise the option",
            LogOption::AppendBytesPerSecond,
            wait.as_millis() + 1
        );
        Error::retry_in(ErrorKind::Busy, what, *wait)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LOG: LogNumber = LogNumber(7);

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn idle_log_takes_a_second_of_its_rate_at_once_and_then_its_rate() {
        let start = Instant::now();
        let mut rates = Rates::default();
        rates.set(LOG, Some(1000), start);
        let wait = |rates: &Rates, millis| {
            rates.limit_at([LOG].into_iter(), after(start, millis)).map(|limited| limited.wait)
        };
        for _ in 0..10 {
            assert_eq!(wait(&rates, 0), None);
            rates.spend_at(LOG, 100, start);
        }
        assert_eq!(wait(&rates, 0), None, "exactly a second ahead");
        rates.spend_at(LOG, 100, start);
        assert_eq!(wait(&rates, 0), Some(Duration::from_millis(100)));
        assert_eq!(wait(&rates, 100), None);
        // Idle for long: no more than a second is saved.
        rates.spend_at(LOG, 1500, after(start, 60_000));
        assert_eq!(wait(&rates, 60_000), Some(Duration::from_millis(500)));
        // An append far above the rate passes, and the next ones wait for it.
        rates.spend_at(LOG, 10_000, after(start, 60_500));
        assert_eq!(wait(&rates, 60_500), Some(Duration::from_millis(10_000)));
    }

    #[test]
    fn limits_are_of_one_log_and_can_be_changed_and_removed() {
        let start = Instant::now();
        let mut rates = Rates::default();
        rates.set(LOG, Some(1), start);
        rates.spend_at(LOG, 5, start);
        rates.spend_at(LogNumber(8), 5, start);
        let wait = |rates: &Rates, log| rates.limit_at([LogNumber(8), log].into_iter(), start);
        assert_eq!(wait(&rates, LogNumber(9)), None);
        let limited = wait(&rates, LOG).unwrap();
        assert_eq!((limited.log, limited.wait), (LOG, Duration::from_secs(4)));
        assert_eq!(
            limited.error().to_string(),
            "the log takes 1 bytes a second, as its option append_bytes_per_second says, and they are used up (it is log 7 of its \
             group): try again in 4001 ms, or raise the option"
        );
        rates.set(LOG, Some(2), start);
        assert_eq!(
            wait(&rates, LOG).unwrap().wait,
            Duration::from_millis(1500),
            "a higher rate helps at once"
        );
        rates.forgive(start);
        assert_eq!(wait(&rates, LOG), None);
        rates.set(LOG, Some(u64::MAX), start);
        assert_eq!(wait(&rates, LOG), None);
        rates.set(LOG, Some(1), start);
        rates.spend_at(LOG, usize::MAX, start);
        assert!(wait(&rates, LOG).is_some(), "no overflow");
        rates.set(LOG, None, start);
        assert_eq!(wait(&rates, LOG), None);
    }
}
