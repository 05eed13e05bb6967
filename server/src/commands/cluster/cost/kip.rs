//! The table of Kafka's KIP-1176, computed from its inputs, and what that table leaves out. Pure functions.
//!
//! The table compares a broker a month before (followers in other zones copy the active segment from the leader) and after (they
//! fetch it from S3 Express One Zone). Two of its lines follow from prices. Two are given: the KIP does not derive them.
//!
//! Must not know: servers, files, how anything is shown.

use super::amounts::{cents, figure, price, to_cents};
use super::model::{self, Flow, Line, MONTH_SECONDS, Slices};
use super::prices::{Prices, Store};
use crate::common::failure::Result;
use serde::Serialize;

/// The KIP's inputs.
struct Inputs {
    /// The bytes that a follower of one broker copies. 30 MB/s are 108 GB/h; the KIP calculates with 112.
    gb_per_hour: f64,
    hours: f64,
    slices_per_second: f64,
    /// All that the KIP does not derive, before and after.
    rest_before: f64,
    rest_after: f64,
    /// The partitions of a broker, for the events of its metadata.
    partitions: f64,
}

const KIP: Inputs = Inputs {
    gb_per_hour: 112.0,
    hours: 720.0,
    slices_per_second: 100.0,
    rest_before: 866.0,
    rest_after: 776.0,
    partitions: 50.0,
};

/// The intervals of slices for which today's prices are shown, in milliseconds.
pub(super) const INTERVALS: [u32; 4] = [10, 50, 100, 250];
/// The stores, each in a zone of its own, that make a store of one zone survive the loss of a zone.
const QUORUM: f64 = 3.0;

/// A line of the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) what: &'static str,
    pub(super) dollars: f64,
    pub(super) formula: String,
}

impl Row {
    fn new(what: &'static str, dollars: f64, formula: String) -> Self {
        Self { what, dollars: to_cents(dollars), formula }
    }
}

/// Slices through one store at today's prices, at several intervals.
#[derive(Debug, Serialize)]
pub(super) struct Hop {
    pub(super) store: String,
    /// The stores that get each slice.
    pub(super) copies: f64,
    pub(super) intervals: Vec<Interval>,
}

#[derive(Debug, Serialize)]
pub(super) struct Interval {
    pub(super) millis: u32,
    pub(super) dollars: f64,
    pub(super) lines: Vec<Line>,
}

/// The whole answer.
#[derive(Debug, Serialize)]
pub(super) struct Table {
    pub(super) table: Vec<Row>,
    /// In percent, of the whole dollars that the KIP prints.
    pub(super) saving_percent: f64,
    pub(super) left_out: Vec<Row>,
    /// The events of the KIP's metadata per second and broker.
    pub(super) metadata_events_per_second: f64,
    pub(super) metadata_formula: String,
    pub(super) today: Vec<Hop>,
    /// The saving of the KIP's design at today's prices, in percent. None: there is no store of one zone.
    pub(super) saving_percent_today: Option<f64>,
}

fn flow(prices: &Prices) -> Flow {
    Flow {
        bytes_per_second: KIP.gb_per_hour * prices.gb_bytes as f64 / 3600.0,
        appends_per_second: None,
        replicas: 3.0,
        copies_between_zones: 2.0,
        stored_bytes: 0.0,
    }
}

/// The lines of slices through a store; each slice is fetched once and kept for an hour.
fn hop(store: &Store, prices: &Prices, seconds: f64, copies: f64) -> Vec<Line> {
    let slices = Slices {
        seconds,
        bytes_max: f64::INFINITY,
        life_seconds: 3600.0,
        store: store.clone(),
        copies,
        object_store: store.clone(),
    };
    model::hop(&slices, &[flow(prices)], prices, |_| 1.0)
}

/// The part that is saved, in percent, with one digit.
fn saved(before: f64, after: f64) -> f64 {
    ((before - after) / before * 1000.0).round() / 10.0
}

/// `then`: the prices of the KIP's table. `now`: the prices for the same traffic.
///
/// # Errors
/// `InvalidArgument`: `then` has no S3 Express.
pub(super) fn table(then: &Prices, now: &Prices) -> Result<Table> {
    let express = then.store("the table of KIP-1176", Some("s3-express"))?;
    let per_gb = then.transfer.per_gb();
    let copy = KIP.gb_per_hour * KIP.hours * per_gb;
    let puts = KIP.slices_per_second * MONTH_SECONDS * express.put_per_1000 / 1000.0;
    let (before, after) = (copy + KIP.rest_before, puts + KIP.rest_after);
    let requests = |what: &str, price_of: f64| {
        let (rate, month) = (figure(KIP.slices_per_second), figure(MONTH_SECONDS));
        format!("{rate} {what}/s x {month} s x {}/1,000", price(price_of))
    };
    let transfer = format!("{} GB/h x {} h x {}", figure(KIP.gb_per_hour), figure(KIP.hours), price(per_gb));
    let given = || "an input: the KIP does not derive it".to_owned();
    let sum = |a: f64, b: f64| format!("{} + {}", cents(a), cents(b));
    let rows = vec![
        Row::new("before: between zones, one copy", copy, transfer.clone()),
        Row::new("before: the rest", KIP.rest_before, given()),
        Row::new("before: total", before, sum(copy, KIP.rest_before)),
        Row::new("after: PUTs to S3 Express", puts, requests("PUT", express.put_per_1000)),
        Row::new("after: the rest", KIP.rest_after, given()),
        Row::new("after: total", after, sum(puts, KIP.rest_after)),
    ];
    let gets = KIP.slices_per_second * MONTH_SECONDS * express.get_per_1000 / 1000.0;
    let left_out = vec![
        Row::new("GETs, one follower", gets, requests("GET", express.get_per_1000)),
        Row::new("between zones, the other copy", copy, transfer.clone()),
        Row::new("between zones, both copies", 2.0 * copy, format!("2 x {transfer}")),
    ];
    let events = (2.0 + 2.0 * KIP.partitions) * KIP.slices_per_second;
    let (partitions, slices) = (figure(KIP.partitions), figure(KIP.slices_per_second));
    let today = today(now);
    let cheapest = |hop: &Hop| hop.intervals.first().map(|interval| interval.dollars);
    let express_today = today.iter().find(|hop| hop.store == express.name && hop.copies == 1.0);
    Ok(Table {
        table: rows,
        saving_percent: saved(before.floor(), after.floor()),
        left_out,
        metadata_events_per_second: events,
        metadata_formula: format!("(2 + 2 x {partitions} partitions) events a slice x {slices} slices/s"),
        saving_percent_today: express_today
            .and_then(cheapest)
            .map(|hop| saved(before.floor(), (hop + KIP.rest_after).floor())),
        today,
    })
}

/// All stores; those of one zone also with a copy in each of three zones.
fn today(prices: &Prices) -> Vec<Hop> {
    let copies = |store: &Store| if store.zones == 1 { vec![1.0, QUORUM] } else { vec![1.0] };
    let stores = prices.store.iter().flat_map(|store| copies(store).into_iter().map(move |n| (store, n)));
    let hops = stores.map(|(store, copies)| {
        let intervals = INTERVALS.map(|millis| {
            let mut lines = hop(store, prices, f64::from(millis) / 1000.0, copies);
            let dollars = to_cents(lines.iter().map(|line| line.dollars).sum());
            lines.iter_mut().for_each(|line| line.dollars = to_cents(line.dollars));
            Interval { millis, dollars, lines }
        });
        Hop { store: store.name.clone(), copies, intervals: intervals.into() }
    });
    hops.collect()
}

#[cfg(test)]
mod tests {
    use super::super::model::Kind;
    use super::super::prices::{OF_THE_KIP, TODAY};
    use super::*;

    fn computed() -> Table {
        table(&Prices::read(OF_THE_KIP).unwrap(), &Prices::read(TODAY).unwrap()).unwrap()
    }

    #[test]
    fn table_of_the_kip_follows_to_the_cent() {
        let table = computed();
        let dollars: Vec<f64> = table.table.iter().map(|row| row.dollars).collect();
        assert_eq!(dollars, [1612.80, 866.0, 2478.80, 648.0, 776.0, 1424.0]);
        assert_eq!(table.saving_percent, 42.5);
        assert_eq!(table.table[0].formula, "112 GB/h x 720 h x $0.02");
        assert_eq!(table.table[3].formula, "100 PUT/s x 2,592,000 s x $0.0025/1,000");
        let left_out: Vec<f64> = table.left_out.iter().map(|row| row.dollars).collect();
        assert_eq!(left_out, [51.84, 1612.80, 3225.60]);
        assert_eq!(table.metadata_events_per_second, 10_200.0);
        assert_eq!(table.saving_percent_today, Some(43.7));
    }

    #[test]
    fn todays_figures_follow_to_the_cent() {
        let table = computed();
        let of = |store: &str, copies: f64| {
            let hop = table.today.iter().find(|hop| hop.store == store && hop.copies == copies).unwrap();
            hop.intervals.iter().map(|interval| interval.dollars).collect::<Vec<_>>()
        };
        // PUT, GET, upload, retrieval and an hour of storage: 292.90 + 7.78 + 258.05 + 48.38 + 12.32 at 10 ms.
        assert_eq!(of("s3-express", 1.0), [619.42, 378.89, 348.82, 330.78]);
        assert_eq!(of("s3-express", 3.0)[..2], [1745.95, 1036.78]);
        assert_eq!(of("s3-standard", 1.0), [1402.26, 282.51, 142.54, 58.56]);
        let whole = |dollars: f64| dollars.round() as u64;
        let design = [
            (of("s3-express", 1.0)[0], 619),
            (of("s3-express", 3.0)[0], 1746),
            (of("s3-express", 3.0)[1], 1037),
            (of("s3-standard", 1.0)[0], 1402),
            (of("s3-standard", 1.0)[1], 283),
            (of("s3-standard", 1.0)[2], 143),
            (of("s3-standard", 1.0)[3], 59),
        ];
        for (dollars, printed) in design {
            assert_eq!(whole(dollars), printed);
        }
    }

    /// The KIP's slices of about 300 KB lie in the 512 KiB of a request that were free in 2023.
    #[test]
    fn bytes_were_free_at_the_prices_of_the_kip() {
        let then = Prices::read(OF_THE_KIP).unwrap();
        let lines = hop(then.store("", Some("s3-express")).unwrap(), &then, 0.01, 1.0);
        let of = |kind: Kind| lines.iter().find(|line| line.kind == kind).unwrap().dollars;
        assert_eq!(
            [Kind::Puts, Kind::Gets, Kind::Uploads, Kind::Retrievals].map(of),
            [648.0, 51.84, 0.0, 0.0]
        );
    }
}
