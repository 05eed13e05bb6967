//! Busiest: the named logs of a cluster that are appended to most.
//!
//! A rate is the growth of a log's counters between two lists.

use super::{View, now};
use crate::commands::cluster::logs::{Cluster, Shown};
use crate::common::failure::Result;
use crate::common::format;
use serde::Serialize;
use std::collections::HashMap;
use std::time::Instant;

/// The lists of a cluster's logs.
pub(super) struct Lists {
    cluster: Cluster,
    /// The most logs of a view.
    rows: usize,
    before: Before,
}

/// The counters of each log as they were known last, by the logs' ids, and when that was. None: there was no list yet.
#[derive(Default)]
struct Before(Option<HashMap<String, (Counters, Instant)>>);

/// The counters of a log.
#[derive(Clone, Copy)]
struct Counters {
    bytes: u64,
    last: u64,
}

/// One moment.
#[derive(Default, Serialize)]
pub(super) struct Busiest {
    time: String,
    /// The same in milliseconds since 1970.
    timestamp: u64,
    /// The number of all named logs.
    named_logs: u64,
    bytes_per_second: Option<f64>,
    records_per_second: Option<f64>,
    /// How many of them were appended to since the view before.
    active: Option<u64>,
    logs: Vec<Busy>,
    /// Why there is no list.
    error: Option<String>,
}

#[derive(Serialize)]
struct Busy {
    name: String,
    group: u32,
    bytes_per_second: Option<f64>,
    records_per_second: Option<f64>,
    first: u64,
    last: u64,
    bytes_appended: u64,
    known: bool,
}

impl Lists {
    pub(super) fn new(cluster: Cluster, rows: usize) -> Self {
        Self { cluster, rows, before: Before::default() }
    }

    /// Lists the logs as the first server that answers knows them.
    ///
    /// # Errors
    /// At the first list: no server answers, or they keep no named logs. A later view says so itself.
    pub(super) fn next(&mut self) -> Result<Busiest> {
        match self.cluster.list("", true) {
            Ok(logs) => Ok(self.before.compare(&logs, Instant::now(), self.rows)),
            Err(failure) if self.before.0.is_none() => Err(failure),
            Err(failure) => Ok(Busiest { error: Some(failure.to_string()), ..Busiest::now() }),
        }
    }
}

impl Before {
    /// Compares a list with the one before, which it replaces.
    fn compare(&mut self, logs: &[Shown], now: Instant, rows: usize) -> Busiest {
        let before = self.0.take();
        let then = |log: &Shown| before.as_ref()?.get(&log.log_id).copied();
        let counted = |log: &Shown| match log.known {
            true => Some((Counters { bytes: log.bytes_appended, last: log.last }, now)),
            false => then(log), // the leader of its group did not answer
        };
        self.0 = Some(logs.iter().filter_map(|log| Some((log.log_id.clone(), counted(log)?))).collect());
        // A log that is new, or was not known before, has no rate yet.
        let grown = |log: &Shown| {
            let (then, at) = then(log).filter(|_| log.known)?;
            let passed = now.duration_since(at);
            let rate = |now: u64, then: u64| format::rate(now.saturating_sub(then), passed);
            Some((rate(log.bytes_appended, then.bytes), rate(log.last, then.last)))
        };
        let mut busy: Vec<Busy> = logs
            .iter()
            .map(|log| {
                let rates = grown(log);
                Busy {
                    name: log.name.clone(),
                    group: log.group,
                    bytes_per_second: rates.map(|(bytes, _)| bytes),
                    records_per_second: rates.map(|(_, records)| records),
                    first: log.first,
                    last: log.last,
                    bytes_appended: log.bytes_appended,
                    known: log.known,
                }
            })
            .collect();
        let sum = |figure: fn(&Busy) -> Option<f64>| {
            before.as_ref().map(|_| busy.iter().filter_map(figure).fold(0.0, |sum, rate| sum + rate))
        };
        let (bytes_per_second, records_per_second) =
            (sum(|b| b.bytes_per_second), sum(|b| b.records_per_second));
        let is_active = |log: &&Busy| log.bytes_per_second.is_some_and(|rate| rate > 0.0);
        let active = before.as_ref().map(|_| busy.iter().filter(is_active).count() as u64);
        let rate = |busy: &Busy| busy.bytes_per_second.unwrap_or(0.0);
        busy.sort_by(|a, b| rate(b).total_cmp(&rate(a)).then(b.bytes_appended.cmp(&a.bytes_appended)));
        busy.truncate(rows);
        Busiest {
            named_logs: logs.len() as u64,
            bytes_per_second,
            records_per_second,
            active,
            logs: busy,
            ..Busiest::now()
        }
    }
}

impl Busiest {
    /// Nothing but the time.
    fn now() -> Self {
        let now = now();
        Self { time: format::time(now), timestamp: now.get(), ..Self::default() }
    }
}

impl View for Busiest {
    fn words(&self) -> String {
        if let Some(error) = &self.error {
            return format!("{}  {error}\n", self.time);
        }
        let head = ["NAME", "GROUP", "RECORDS/S", "BYTES/S", "FIRST", "LAST", "APPENDED"];
        let row = |log: &Busy| {
            let known = |text: String| if log.known { text } else { "?".into() };
            [
                log.name.clone(),
                log.group.to_string(),
                known(records(log.records_per_second)),
                known(bytes(log.bytes_per_second)),
                known(log.first.to_string()),
                known(log.last.to_string()),
                known(format::bytes(log.bytes_appended)),
            ]
        };
        let rows: Vec<_> = [head.map(str::to_owned)].into_iter().chain(self.logs.iter().map(row)).collect();
        let active =
            self.active.map_or_else(String::new, |active| format!(", {} appended to", format::count(active)));
        format!(
            "{}  {}{active}; {} records/s, {}/s\n{}",
            self.time,
            format::many(self.named_logs, "named log", "named logs"),
            records(self.records_per_second),
            bytes(self.bytes_per_second),
            format::table(&rows)
        )
    }

    fn narrow_words(&self, width: usize) -> String {
        let words = self.words();
        words.lines().map(|line| line.chars().take(width).chain(['\n']).collect::<String>()).collect()
    }
}

fn records(rate: Option<f64>) -> String {
    rate.map_or("-".into(), format::per_second)
}

fn bytes(rate: Option<f64>) -> String {
    rate.map_or("-".into(), |rate| format::bytes(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog_net::wire::proto::v1::LogInfo;
    use std::time::Duration;

    fn log(name: &str, bytes: u64, last: u64) -> Shown {
        let log_id = format!("id of {name}");
        Shown::new(LogInfo {
            name: name.into(),
            log_id,
            bytes_appended: bytes,
            first: 1,
            last,
            ..LogInfo::default()
        })
    }

    #[test]
    fn logs_are_ordered_by_what_was_appended_since() {
        let (mut before, begun) = (Before::default(), Instant::now());
        let first = before.compare(&[log("large", 9_000, 9), log("busy", 10, 1)], begun, 2);
        assert_eq!(
            (first.logs[0].name.as_str(), first.logs[0].bytes_per_second, first.active),
            ("large", None, None)
        );
        let seconds = |n| begun + Duration::from_secs(n);
        let now = [log("large", 9_000, 9), log("busy", 2_010, 21), log("new", 1_000, 2)];
        let then = before.compare(&now, seconds(2), 2);
        let seen: Vec<_> = then.logs.iter().map(|log| (log.name.as_str(), log.bytes_per_second)).collect();
        assert_eq!(seen, [("busy", Some(1000.0)), ("large", Some(0.0))]);
        assert_eq!((then.named_logs, then.active, then.records_per_second), (3, Some(1), Some(10.0)));
        let words = then.words();
        assert!(words.contains("3 named logs, 1 appended to") && words.lines().count() == 4, "{words}");
        // The leader of a log's group does not answer for a while: its rate is over the time since it did.
        let mut silent = log("busy", 0, 0);
        silent.known = false;
        let view = before.compare(&[silent], seconds(4), 2);
        assert_eq!((view.logs[0].bytes_per_second, view.bytes_per_second), (None, Some(0.0)));
        let view = before.compare(&[log("busy", 6_010, 61)], seconds(6), 2);
        assert_eq!(view.logs[0].bytes_per_second, Some(1000.0));
        assert!(then.narrow_words(30).lines().all(|line| line.chars().count() <= 30));
    }
}
