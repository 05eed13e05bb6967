//! Figures: one moment of a cluster, as values and as text that fits the terminal.

use super::View;
use crate::commands::cluster::replicas::{complaints, number, or_dash, title};
use crate::common::format;
use serde::Serialize;
use std::time::Duration;

#[derive(Default, Serialize)]
pub(super) struct Figures {
    pub(super) time: String,
    /// The same in milliseconds since 1970.
    pub(super) timestamp: u64,
    pub(super) log_id: Option<String>,
    pub(super) leader: Option<u64>,
    pub(super) appends_per_second: Option<f64>,
    pub(super) records_per_second: Option<f64>,
    /// None: the servers keep none.
    pub(super) named_logs: Option<u64>,
    pub(super) replicas: Vec<Replica>,
}

#[derive(Default, Serialize)]
pub(super) struct Replica {
    pub(super) node: Option<u64>,
    pub(super) role: &'static str,
    pub(super) voter: bool,
    pub(super) client: String,
    pub(super) zone: String,
    pub(super) term: Option<u64>,
    pub(super) first: Option<u64>,
    pub(super) last: Option<u64>,
    pub(super) lag: Option<u64>,
    pub(super) records_per_second: Option<f64>,
    pub(super) written_bytes_per_second: Option<f64>,
    pub(super) bytes_used: Option<u64>,
    pub(super) bytes_capacity: Option<u64>,
    pub(super) disk_bytes: Option<u64>,
    pub(super) disk_free_bytes: Option<u64>,
    pub(super) sync_median_micros: Option<u64>,
    pub(super) sync_p99_micros: Option<u64>,
    pub(super) damaged: Option<u64>,
    pub(super) repaired: Option<u64>,
    pub(super) poison: Option<String>,
    pub(super) error: Option<String>,
}

/// A column: its head, its cells, and its rank. If the table is too wide, the highest rank is dropped first;
/// rank 0 stays.
type Column = (&'static str, fn(&Replica) -> String, u8);

const COLUMNS: [Column; 13] = [
    ("NODE", |r| number(r.node), 0),
    ("ROLE", role, 0),
    ("CLIENT", |r| r.client.clone(), 0),
    ("ZONE", |r| or_dash(&r.zone), 7),
    ("FIRST", |r| number(r.first), 9),
    ("LAST", |r| number(r.last), 0),
    ("LAG", |r| number(r.lag), 1),
    ("RECORDS/S", |r| rate(r.records_per_second), 2),
    ("WRITTEN/S", |r| r.written_bytes_per_second.map_or("-".into(), |b| format::bytes(b as u64)), 5),
    ("SYNC P50", |r| micros(r.sync_median_micros), 8),
    ("SYNC P99", |r| micros(r.sync_p99_micros), 3),
    ("USED", |r| used(r.bytes_used, r.bytes_capacity), 6),
    ("DISK", |r| disk(r.disk_bytes, r.disk_free_bytes), 4),
];

impl View for Figures {
    fn words(&self) -> String {
        let (log, leader) = self.title();
        format!("{}  {log}; {leader}; {}\n{}", self.at(), self.rates(), self.below(&COLUMNS))
    }

    /// Changing values come first, and less important columns are left out.
    fn narrow_words(&self, width: usize) -> String {
        let (log, leader) = self.title();
        let head = format!("{}  {leader}; {}; {log}", self.at(), self.rates());
        let mut columns = COLUMNS.to_vec();
        if self.replicas.iter().all(|r| r.zone.is_empty()) {
            columns.retain(|(name, ..)| *name != "ZONE");
        }
        while self.table(&columns).lines().any(|line| line.chars().count() > width) {
            let Some(least) = columns.iter().map(|(.., rank)| *rank).max().filter(|rank| *rank > 0) else {
                break;
            };
            columns.retain(|(.., rank)| *rank != least);
        }
        let text = format!("{head}\n{}", self.below(&columns));
        let fitting = text.lines().map(|line| line.chars().take(width).chain(['\n']).collect::<String>());
        fitting.collect()
    }
}

impl Figures {
    fn title(&self) -> (String, String) {
        let answered = self.replicas.iter().any(|r| r.error.is_none());
        title(self.log_id.as_deref(), self.leader, answered)
    }

    fn at(&self) -> String {
        self.time.clone()
    }

    fn rates(&self) -> String {
        let named = self.named_logs.map(|n| format!("; {}", format::many(n, "named log", "named logs")));
        format!(
            "{} records/s, {} appends/s{}",
            rate(self.records_per_second),
            rate(self.appends_per_second),
            named.unwrap_or_default()
        )
    }

    fn below(&self, columns: &[Column]) -> String {
        let said = self.replicas.iter().map(|r| (r.node, &r.poison, &r.error));
        self.table(columns) + &complaints(said)
    }

    fn table(&self, columns: &[Column]) -> String {
        let mut rows = vec![columns.iter().map(|(name, ..)| (*name).to_owned()).collect::<Vec<_>>()];
        rows.extend(self.replicas.iter().map(|r| columns.iter().map(|(_, cell, _)| cell(r)).collect()));
        format::table(&rows)
    }
}

fn role(r: &Replica) -> String {
    if r.voter || r.error.is_some() { r.role.into() } else { format!("{} (no vote)", r.role) }
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or("-".into(), format::per_second)
}

fn micros(micros: Option<u64>) -> String {
    micros.map_or("-".into(), |m| format::duration(Duration::from_micros(m)))
}

fn used(bytes: Option<u64>, capacity: Option<u64>) -> String {
    match (bytes, capacity) {
        (None, _) => "-".into(),
        (Some(bytes), None) => format::bytes(bytes),
        (Some(bytes), Some(capacity)) => {
            format!("{} ({}%)", format::bytes(bytes), bytes * 100 / capacity.max(1))
        }
    }
}

/// The used part of a disk, in percent.
fn disk(bytes: Option<u64>, free: Option<u64>) -> String {
    let (Some(bytes), Some(free)) = (bytes, free) else { return "-".into() };
    format!("{}%", bytes.saturating_sub(free) * 100 / bytes.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_terminal_shows_the_most_important_columns() {
        let replica = |node| Replica {
            node: Some(node),
            role: "unreachable",
            client: format!("127.0.0.1:974{node}"),
            first: Some(1),
            last: Some(123_456_789),
            lag: Some(1000),
            records_per_second: Some(54_321.0),
            written_bytes_per_second: Some(5e6),
            sync_median_micros: Some(1200),
            sync_p99_micros: Some(20_000),
            bytes_used: Some(5_000_000_000),
            disk_bytes: Some(100),
            disk_free_bytes: Some(10),
            error: Some(
                "it does not answer, and the reason is longer than a line of the terminal is wide".into(),
            ),
            ..Replica::default()
        };
        let figures =
            Figures { leader: Some(2), replicas: (1..=3).map(replica).collect(), ..Figures::default() };
        for width in [20, 60, 80, 200] {
            let words = figures.narrow_words(width);
            assert!(words.lines().all(|line| line.chars().count() <= width), "{words}");
            assert_eq!(words.lines().count(), 1 + 4 + 3);
        }
        let words = figures.narrow_words(80);
        for column in ["NODE", "ROLE", "LAST", "LAG", "RECORDS/S", "SYNC P99"] {
            assert!(words.contains(column), "{words}");
        }
        assert!(!words.contains("FIRST") && words.contains("node 2 leads; "), "{words}");
        let all = figures.narrow_words(200);
        assert!(all.contains("FIRST") && !all.contains("ZONE") && figures.words().contains("ZONE"), "{all}");
    }
}
