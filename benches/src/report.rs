//! Results as values, as a table and as JSON.
//!
//! Must not know: how anything was measured.

use crate::machine::Machine;
use crate::measure::Percentiles;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// One measured case: a figure, and the limit measured with it, if there is one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Name of the workload.
    pub workload: String,
    /// The case, in words.
    pub case: String,
    /// The parameter that varies between the cases: threads, a rate, a size in bytes.
    pub x: f64,
    /// The result, in `unit`; the median over the rounds.
    pub figure: f64,
    /// Unit of figure and limit.
    pub unit: String,
    /// The result of the machine itself.
    pub limit: Option<f64>,
    /// The meaning of that limit.
    pub limit_is: Option<String>,
    /// Median over the rounds of figure / limit.
    pub ratio: Option<f64>,
    /// Latencies in microseconds.
    pub latency: Option<Percentiles>,
    /// Latencies of the limit, in microseconds.
    pub limit_latency: Option<Percentiles>,
    /// Further figures by name; the name contains the unit.
    pub more: BTreeMap<String, f64>,
}

/// All of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The machine.
    pub machine: Machine,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// The number of rounds; medians are shown.
    pub rounds: usize,
    /// The cases, in the order they ran.
    pub rows: Vec<Row>,
}

/// A number with its significant digits: `12,345`, `123`, `12.3`, `1.23`, `0.0123`.
pub(crate) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 100.0 {
        return thousands(value.round());
    }
    let digits = match magnitude {
        m if m >= 10.0 => 1,
        m if m >= 0.1 || m == 0.0 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}

impl Report {
    /// The table as text.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{}", self.machine);
        let _ = writeln!(
            out,
            "median of {} rounds of {} s; latencies in microseconds",
            self.rounds, self.seconds
        );
        let mut workload = "";
        for row in &self.rows {
            if row.workload != workload {
                workload = &row.workload;
                let _ = writeln!(out, "\n{workload}{}", Self::limit_note(row));
                let _ = writeln!(out, "{}", header());
            }
            let _ = writeln!(out, "{}", line(row));
        }
        out
    }

    fn limit_note(row: &Row) -> String {
        row.limit_is.as_ref().map_or(String::new(), |limit| format!("  (limit: {limit})"))
    }
}

fn header() -> String {
    format!(
        "  {:<34} {:>12} {:>12} {:>6}  {:>8} {:>8} {:>8} {:>9}  more",
        "case", "figure", "limit", "ratio", "p50", "p99", "p99.9", "max"
    )
}

fn line(row: &Row) -> String {
    let opt = |value: Option<f64>| value.map_or("-".into(), number);
    let latency = |pick: fn(&Percentiles) -> f64| opt(row.latency.as_ref().map(pick));
    let more: Vec<_> = row.more.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
    let mut out = format!(
        "  {:<34} {:>12} {:>12} {:>6}  {:>8} {:>8} {:>8} {:>9}  {}",
        format!("{} [{}]", row.case, row.unit),
        number(row.figure),
        opt(row.limit),
        row.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
        latency(|l| l.p50),
        latency(|l| l.p99),
        latency(|l| l.p999),
        latency(|l| l.max),
        more.join(", ")
    );
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let cases = [
            (1_234_567.0, "1,234,567"),
            (999.6, "1,000"),
            (123.4, "123"),
            (12.34, "12.3"),
            (1.5, "1.50"),
            (0.0123, "0.0123"),
            (0.0, "0.00"),
            (-4321.0, "-4,321"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }
}
