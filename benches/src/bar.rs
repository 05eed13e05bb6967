//! Bar: a ratio that chiplog must reach, and the table of all of them.
//!
//! A ratio says what the log costs on this machine; it is comparable between machines where the figures are not. A bar
//! that is not met is printed as `short`. It never fails the process: on a loaded or throttled machine any timing can
//! be too slow.
//!
//! Must not know: which bars there are, how anything is measured.

use crate::machine::Machine;
use crate::report::number;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// One measured bar.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bar {
    /// Its name.
    pub name: String,
    /// The result of chiplog.
    pub figure: f64,
    /// The limit that it is compared with.
    pub limit: f64,
    /// Unit of both.
    pub unit: String,
    /// `figure / limit`; where both are medians of rounds, the median of the rounds' ratios.
    pub ratio: f64,
    /// The bar, such as `>= 0.70`.
    pub bar: String,
    /// Whether it is met.
    pub met: bool,
    /// How good the ratio is: 1 is just met, 2 twice as good as required.
    pub merit: f64,
    /// The meaning of figure and limit, and further observations.
    pub note: String,
    /// For a bar about connections: rates by connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<(f64, f64)>,
}

/// All bars of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bars {
    /// The machine.
    pub machine: Machine,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// The number of rounds; medians are shown.
    pub rounds: usize,
    /// The bars, in the order they were measured.
    pub bars: Vec<Bar>,
}

/// On which side of the bar the ratio must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    AtLeast(f64),
    AtMost(f64),
}

impl Side {
    fn met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(bar) => ratio >= bar,
            Self::AtMost(bar) => ratio <= bar,
        }
    }

    /// How much better than required: 1 is just met, 2 twice as good.
    fn merit(self, ratio: f64) -> f64 {
        match self {
            Self::AtLeast(bar) => ratio / bar,
            Self::AtMost(bar) => bar / ratio.max(1e-9),
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(bar) => format!(">= {bar:.2}"),
            Self::AtMost(bar) => format!("<= {bar:.2}"),
        }
    }
}

/// A bar of these values.
pub(crate) fn bar(
    name: &str,
    (figure, limit): (f64, f64),
    unit: &str,
    ratio: f64,
    side: Side,
    note: String,
) -> Bar {
    let (name, unit, bar) = (name.into(), unit.into(), side.text());
    Bar {
        name,
        figure,
        limit,
        unit,
        ratio,
        bar,
        met: side.met(ratio),
        merit: side.merit(ratio),
        note,
        curve: Vec::new(),
    }
}

impl Bars {
    /// The lines `NAME figure limit ratio bar met|short`, with a heading.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{}", self.machine);
        let _ = writeln!(out, "median of {} rounds of {} s\n", self.rounds, self.seconds);
        let widths = |out: &mut String, columns: [&str; 6], note: &str| {
            let [name, figure, limit, ratio, bar, met] = columns;
            let line = format!("{name:<22} {figure:>18} {limit:>18} {ratio:>6} {bar:>8} {met:<5}  {note}");
            let _ = writeln!(out, "{}", line.trim_end());
        };
        widths(&mut out, ["NAME", "figure", "limit", "ratio", "bar", "met"], "");
        for b in &self.bars {
            let figure = format!("{} {}", number(b.figure), b.unit);
            let limit = format!("{} {}", number(b.limit), b.unit);
            let met = if b.met { "met" } else { "short" };
            widths(&mut out, [&b.name, &figure, &limit, &format!("{:.2}", b.ratio), &b.bar, met], &b.note);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_on_its_side() {
        let met = |side, ratio| bar("x", (1.0, 1.0), "", ratio, side, String::new()).met;
        assert!(met(Side::AtLeast(0.9), 0.9) && !met(Side::AtLeast(0.9), 0.89));
        assert!(met(Side::AtMost(1.3), 1.3) && !met(Side::AtMost(1.3), 1.31));
    }
}
