//! The output of the command: bills and the table of KIP-1176, as values for JSON and as text.

use super::amounts::{cents, figure, to_cents, whole};
use super::kip;
use super::model::{Bill, Class, Kind, Line};
use super::prices::Prices;
use super::traffic::Group;
use crate::common::format;
use serde::Serialize;
use std::fmt::Write as _;

/// All costs that no line has.
const NOT_INCLUDED: [&str; 8] = [
    "machines, and the operations and throughput of disks beyond what their price includes",
    "free room on disks, and the cache of class object",
    "the parts of multipart uploads, LIST, HEADs of objects, requests that are tried again",
    "messages between servers other than appended bytes: headers, acknowledgements, elections",
    "reads of records that are in the object store only",
    "transfer to the internet or another region, NAT gateways; a gateway endpoint to the store is free",
    "discounts, free tiers, cheaper storage of large amounts, taxes",
    "copies that follow outside the cluster, and backups",
];

/// The traffic, and how it is known.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    /// How long it was measured. None: it was given.
    pub(super) seconds: Option<u64>,
    pub(super) append_bytes_per_second: f64,
    pub(super) appends_per_second: Option<f64>,
    pub(super) read_bytes_per_second: f64,
    /// Whether they follow from a number of reads for each byte, and were not measured.
    pub(super) are_reads_assumed: bool,
    pub(super) stored_bytes: f64,
    pub(super) slices_per_second: f64,
    pub(super) zones: u32,
    /// Whether the zones are assumed, one for each server.
    pub(super) are_zones_assumed: bool,
    /// None: the traffic was given.
    pub(super) groups: Option<Vec<Group>>,
}

#[derive(Debug, Serialize)]
pub(super) struct OfClass {
    class: &'static str,
    dollars: f64,
    lines: Vec<Line>,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    traffic: Shown,
    classes: Vec<OfClass>,
    not_included: Vec<&'static str>,
    notes: Vec<String>,
    prices: Prices,
}

impl Report {
    pub(super) fn new(traffic: Shown, bills: Vec<Bill>, prices: Prices, notes: Vec<String>) -> Self {
        let classes = bills.into_iter().map(|mut bill| {
            let dollars = to_cents(bill.total());
            bill.lines.sort_by_key(|line| Kind::ALL.iter().position(|kind| *kind == line.kind));
            bill.lines.iter_mut().for_each(|line| line.dollars = to_cents(line.dollars));
            OfClass { class: bill.class.name(), dollars, lines: bill.lines }
        });
        let classes = classes.collect();
        Self { traffic, classes, not_included: NOT_INCLUDED.into(), notes, prices }
    }

    pub(super) fn words(&self, with_formulas: bool) -> String {
        let mut out = self.traffic.words();
        let Prices { name, date, .. } = &self.prices;
        _ = writeln!(out, "US dollars a month of 30 days, at the prices {name} of {date}:\n");
        let of = |class: &OfClass, kind: Kind| {
            let line = class.lines.iter().find(|line| line.kind == kind);
            line.map_or("-".to_owned(), |line| cents(line.dollars))
        };
        let mut rows = vec![row("$ A MONTH", Class::ALL.map(|class| class.name().to_uppercase()))];
        for kind in Kind::ALL {
            rows.push(row(kind.name(), self.classes.iter().map(|class| of(class, kind))));
        }
        rows.push(row("total", self.classes.iter().map(|class| cents(class.dollars))));
        out += &format::table(&right(rows));
        if with_formulas {
            for class in &self.classes {
                _ = writeln!(out, "\n{}:", class.class);
                let rows = class.lines.iter().map(formula).collect();
                out += &format::table(&second_right(rows));
            }
        }
        out.push('\n');
        for note in &self.notes {
            _ = writeln!(out, "Note: {note}.");
        }
        out + &list("Not included:", &self.not_included)
    }
}

impl Shown {
    fn words(&self) -> String {
        let bytes = |n: f64| format::bytes(n.max(0.0) as u64);
        let how = match self.seconds {
            Some(seconds) => format!("Measured for {}", format::span(seconds)),
            None => "Given".to_owned(),
        };
        let appends =
            self.appends_per_second.map_or_else(String::new, |n| format!(" in {} appends/s", figure(n)));
        let reads = if self.are_reads_assumed { " (assumed)" } else { "" };
        let mut out = format!(
            "{how}: {}/s appended{appends}, {}/s read{reads}, {} kept on each replica.\n",
            bytes(self.append_bytes_per_second),
            bytes(self.read_bytes_per_second),
            bytes(self.stored_bytes),
        );
        let zones = format::many(self.zones.into(), "zone", "zones");
        let assumed = if self.are_zones_assumed { " (assumed: servers have no zone)" } else { "" };
        _ = writeln!(out, "{zones}{assumed}, {} slices/s.", figure(self.slices_per_second));
        let Some(groups) = self.groups.as_ref().filter(|groups| groups.len() > 1) else { return out };
        let mut rows = vec![
            ["LOG", "LEADER", "APPENDED/S", "APPENDS/S", "REPLICAS", "IN OTHER ZONES", "KEPT"]
                .map(str::to_owned),
        ];
        for group in groups {
            rows.push([
                group.log.clone(),
                group.leader.to_string(),
                bytes(group.append_bytes_per_second),
                format::per_second(group.appends_per_second),
                group.replicas.to_string(),
                group.copies_between_zones.to_string(),
                format::bytes(group.stored_bytes),
            ]);
        }
        out + &format::table(&rows)
    }
}

/// The table of KIP-1176 as it is printed, with the prices that it was computed from.
#[derive(Debug, Serialize)]
pub(super) struct OfKip {
    #[serde(flatten)]
    pub(super) table: kip::Table,
    pub(super) prices: Prices,
    pub(super) prices_today: Prices,
}

impl OfKip {
    pub(super) fn words(&self) -> String {
        let Self { table, prices, prices_today } = self;
        let row = |row: &kip::Row| [row.what.to_owned(), cents(row.dollars), row.formula.clone()];
        let head = || ["", "$ A MONTH", "FORMULA"].map(str::to_owned);
        let mut out = format!(
            "KIP-1176: a broker a month of 30 days, at the prices {} of {}\n",
            prices.name, prices.date
        );
        let mut rows = vec![head()];
        rows.extend(table.table.iter().map(row));
        out += &format::table(&second_right(rows));
        _ = writeln!(out, "saved: {} % of the whole dollars, as the KIP has them\n", table.saving_percent);
        out += "Left out there:\n";
        let mut rows = vec![head()];
        rows.extend(table.left_out.iter().map(row));
        out += &format::table(&second_right(rows));
        let events = figure(table.metadata_events_per_second);
        _ = writeln!(out, "its own metadata: {events} events/s = {}\n", table.metadata_formula);
        out += &self.today(prices_today);
        out
    }

    fn today(&self, prices: &Prices) -> String {
        let mut out =
            format!("The same slices at the prices {} of {}, by interval\n", prices.name, prices.date);
        let mut rows = vec![self::row("$ A MONTH", kip::INTERVALS.map(|millis| format!("{millis} ms")))];
        for hop in &self.table.today {
            let to = if hop.copies > 1.0 { format!(", {} zones", figure(hop.copies)) } else { String::new() };
            let name = format!("{}{to}", hop.store);
            rows.push(self::row(&name, hop.intervals.iter().map(|interval| whole(interval.dollars))));
        }
        out += &format::table(&right(rows));
        out += "PUTs, one GET a slice, bytes up and down, and one hour of storage (112 GB held)\n";
        if let Some(saved) = self.table.saving_percent_today {
            _ = writeln!(out, "saved by the KIP's design with s3-express at 10 ms: {saved} %");
        }
        for hop in &self.table.today {
            let Some(interval) = hop.intervals.first() else { continue };
            let copies =
                if hop.copies > 1.0 { format!(", {} zones", figure(hop.copies)) } else { String::new() };
            _ = writeln!(out, "\n{}{copies}, {} ms:", hop.store, interval.millis);
            let rows = interval.lines.iter().map(formula).collect();
            out += &format::table(&second_right(rows));
        }
        out
    }
}

fn formula(line: &Line) -> [String; 3] {
    [line.kind.name().to_owned(), cents(line.dollars), line.formula.clone()]
}

/// A heading and its points, one a line.
fn list(heading: &str, points: &[&str]) -> String {
    points.iter().fold(format!("{heading}\n"), |all, point| all + "  " + point + "\n")
}

fn row(name: &str, cells: impl IntoIterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).collect()
}

/// All cells but the first of each row end where their column does.
fn right(mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let columns = rows.first().map_or(0, Vec::len);
    for column in 1..columns {
        align(rows.iter_mut().map(|row| &mut row[column]).collect());
    }
    rows
}

fn second_right(mut rows: Vec<[String; 3]>) -> Vec<[String; 3]> {
    align(rows.iter_mut().map(|row| &mut row[1]).collect());
    rows
}

fn align(cells: Vec<&mut String>) {
    let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    for cell in cells {
        *cell = format!("{cell:>width$}");
    }
}
