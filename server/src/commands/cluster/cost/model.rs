//! The cost model: traffic and prices in, lines of dollars a month out. Pure functions.
//!
//! The classes are those of durability: the place where a record has to be before its append is acknowledged. A line has its
//! formula as text, made of the same numbers as its amount.
//!
//! Invariant: an amount comes from the prices and the traffic alone; no result is written down here.
//!
//! Must not know: servers, files, how anything is shown.

use super::amounts::{figure, price};
use super::prices::{Prices, Store};
use serde::Serialize;

/// The seconds of a month of 30 days.
pub(super) const MONTH_SECONDS: f64 = 2_592_000.0;
/// The bytes of a closed object; an object is one PUT.
const OBJECT_BYTES: f64 = 67_108_864.0;
/// The bytes of a request for a part of an object.
const REQUEST_BYTES: f64 = 4_194_304.0;
/// The bytes that a replica keeps of a slice that is in the store, about, without references; and of a batch in it.
const BLOCK_BYTES: f64 = 78.0;
const REFERENCE_BYTES: f64 = 72.0;

/// The appends to one group of replicas: a log on its own, or the named logs of a group.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Flow {
    pub(super) bytes_per_second: f64,
    /// None: there are always appends to wait for.
    pub(super) appends_per_second: Option<f64>,
    pub(super) replicas: f64,
    /// The replicas that get their copy from another zone.
    pub(super) copies_between_zones: f64,
    /// The bytes that one replica keeps.
    pub(super) stored_bytes: f64,
}

/// The traffic that the model computes the cost of.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) flows: Vec<Flow>,
    pub(super) read_bytes_per_second: f64,
    /// The part of what clients append that crosses zones on its way to the leader.
    pub(super) appends_between_zones: f64,
    /// The part of what clients read that crosses zones.
    pub(super) reads_between_zones: f64,
    pub(super) slices: Slices,
    /// How long payload stays on the disks of servers if it is in the store, too.
    pub(super) local_seconds: f64,
}

/// How slices are made, and where they go.
#[derive(Clone, Debug)]
pub(super) struct Slices {
    pub(super) seconds: f64,
    pub(super) bytes_max: f64,
    /// The time until an object covers a slice.
    pub(super) life_seconds: f64,
    pub(super) store: Store,
    /// The number of stores, each in a zone of its own, that get each slice.
    pub(super) copies: f64,
    /// Where closed objects go.
    pub(super) object_store: Store,
}

/// A class of durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Majority,
    MajorityAndSlices,
    Object,
}

impl Class {
    pub(super) const ALL: [Self; 3] = [Self::Majority, Self::MajorityAndSlices, Self::Object];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Majority => "majority",
            Self::MajorityAndSlices => "majority+slices",
            Self::Object => "object",
        }
    }
}

/// A kind of cost. A table has a row for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Replication,
    Appends,
    Reads,
    Puts,
    EntryPuts,
    Heads,
    Uploads,
    Gets,
    Retrievals,
    Disks,
    SliceStorage,
    ObjectPuts,
    ReadBacks,
    ObjectStorage,
}

impl Kind {
    pub(super) const ALL: [Self; 14] = [
        Self::Replication,
        Self::Appends,
        Self::Reads,
        Self::Puts,
        Self::EntryPuts,
        Self::Heads,
        Self::Uploads,
        Self::Gets,
        Self::Retrievals,
        Self::Disks,
        Self::SliceStorage,
        Self::ObjectPuts,
        Self::ReadBacks,
        Self::ObjectStorage,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Replication => "between zones: replication",
            Self::Appends => "between zones: clients that append",
            Self::Reads => "between zones: clients that read",
            Self::Puts => "PUTs of slices",
            Self::EntryPuts => "PUTs of slices of references",
            Self::Heads => "HEADs behind PUTs of slices",
            Self::Uploads => "bytes uploaded in slices",
            Self::Gets => "GETs of slices",
            Self::Retrievals => "bytes retrieved of slices",
            Self::Disks => "disks of servers",
            Self::SliceStorage => "storage of slices",
            Self::ObjectPuts => "PUTs of closed objects",
            Self::ReadBacks => "closed objects read back",
            Self::ObjectStorage => "storage of closed objects",
        }
    }
}

/// One line of a bill.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    pub(super) kind: Kind,
    pub(super) dollars: f64,
    pub(super) formula: String,
}

/// The lines of a class.
#[derive(Clone, Debug)]
pub(super) struct Bill {
    pub(super) class: Class,
    pub(super) lines: Vec<Line>,
}

impl Bill {
    pub(super) fn total(&self) -> f64 {
        self.lines.iter().map(|line| line.dollars).sum()
    }
}

impl Slices {
    /// The slices that a flow makes. An interval without an append makes none.
    pub(super) fn per_second(&self, flow: &Flow) -> f64 {
        if flow.bytes_per_second <= 0.0 {
            return 0.0;
        }
        let by_time = 1.0 / self.seconds;
        let by_time = flow.appends_per_second.map_or(by_time, |appends| by_time.min(appends));
        by_time.max(flow.bytes_per_second / self.bytes_max)
    }

    /// The bytes of each slice for which a store charges by size.
    fn charged_part(&self, flow: &Flow) -> f64 {
        let slice = flow.bytes_per_second / self.per_second(flow);
        if slice > 0.0 { (slice - self.store.free_request_bytes as f64).max(0.0) / slice } else { 0.0 }
    }
}

/// The average number of replicas outside the leader's zone, if the replicas are spread evenly and each leads equally often.
pub(super) fn copies_between_zones(replicas: u32, zones: u32) -> f64 {
    if replicas == 0 || zones == 0 {
        return 0.0;
    }
    let (each, more) = (replicas / zones, replicas % zones);
    let squares = more * (each + 1).pow(2) + (zones - more) * each.pow(2);
    f64::from(replicas) - f64::from(squares) / f64::from(replicas)
}

/// The part of evenly spread clients that are in another zone than the server they call.
pub(super) fn part_in_other_zones(zones: u32) -> f64 {
    1.0 - 1.0 / f64::from(zones.max(1))
}

/// The bills of all classes.
pub(super) fn bills(workload: &Workload, prices: &Prices) -> Vec<Bill> {
    Class::ALL.map(|class| bill(class, workload, prices)).into()
}

fn bill(class: Class, workload: &Workload, prices: &Prices) -> Bill {
    let appended = sum(&workload.flows, |flow| flow.bytes_per_second);
    let mut lines = vec![
        replication(class, workload, prices),
        client_transfer(Kind::Appends, appended, workload.appends_between_zones, prices),
        client_transfer(Kind::Reads, workload.read_bytes_per_second, workload.reads_between_zones, prices),
    ];
    if class != Class::Majority {
        let readers = |flow: &Flow| if class == Class::Object { flow.replicas - 1.0 } else { 0.0 };
        lines.extend(hop(&workload.slices, &workload.flows, prices, readers));
        lines.extend(requests_beside(class, &workload.slices, &workload.flows));
        lines.extend(objects(workload, prices));
        lines.extend(read_backs(class, workload, prices));
    }
    lines.push(disks(class, workload, prices));
    Bill { class, lines }
}

fn month_gb(bytes_per_second: f64, prices: &Prices) -> f64 {
    bytes_per_second * MONTH_SECONDS / prices.gb_bytes as f64
}

/// A sum over all flows.
fn sum(flows: &[Flow], of: impl Fn(&Flow) -> f64) -> f64 {
    flows.iter().map(of).sum()
}

fn replication(class: Class, workload: &Workload, prices: &Prices) -> Line {
    let is_object = class == Class::Object;
    let bytes = sum(&workload.flows, |flow| {
        let each = if is_object {
            let slices = workload.slices.per_second(flow);
            // Without a rate of appends each slice has at least one.
            let appends = flow.appends_per_second.unwrap_or(slices).max(slices);
            slices * BLOCK_BYTES + appends * REFERENCE_BYTES
        } else {
            flow.bytes_per_second
        };
        each * flow.copies_between_zones
    });
    let (gb, per_gb) = (month_gb(bytes, prices), prices.transfer.per_gb());
    let what = if is_object { "GB of references to copies" } else { "GB to copies" };
    let formula = format!("{} {what} in other zones x {}", figure(gb), price(per_gb));
    Line { kind: Kind::Replication, dollars: gb * per_gb, formula }
}

/// `part`: that of the bytes which crosses zones.
fn client_transfer(kind: Kind, bytes_per_second: f64, part: f64, prices: &Prices) -> Line {
    let (gb, per_gb) = (month_gb(bytes_per_second, prices), prices.transfer.per_gb());
    let formula = format!("{} GB x {} to other zones x {}", figure(gb), figure(part), price(per_gb));
    Line { kind, dollars: gb * part * per_gb, formula }
}

/// Slices through the store: the lines of requests, bytes and storage. `readers` get each slice of a flow.
pub(super) fn hop(
    slices: &Slices,
    flows: &[Flow],
    prices: &Prices,
    readers: impl Fn(&Flow) -> f64,
) -> Vec<Line> {
    let (store, copies) = (&slices.store, slices.copies);
    let to = if copies > 1.0 { format!(" x {} stores", figure(copies)) } else { String::new() };
    let a_month = |count: f64, what: &str| format!("{} {what} x {} s", figure(count), figure(MONTH_SECONDS));
    let puts = sum(flows, |flow| slices.per_second(flow));
    let gets = sum(flows, |flow| slices.per_second(flow) * readers(flow));
    let mut lines = vec![
        Line {
            kind: Kind::Puts,
            dollars: puts * MONTH_SECONDS * copies * store.put_per_1000 / 1000.0,
            formula: format!("{} x {}/1,000{to}", a_month(puts, "PUT/s"), price(store.put_per_1000)),
        },
        Line {
            kind: Kind::Gets,
            dollars: gets * MONTH_SECONDS * store.get_per_1000 / 1000.0,
            formula: format!("{} x {}/1,000", a_month(gets, "GET/s"), price(store.get_per_1000)),
        },
    ];
    let charged = |flow: &Flow| flow.bytes_per_second * slices.charged_part(flow);
    let up = month_gb(sum(flows, charged), prices);
    let down = month_gb(sum(flows, |flow| charged(flow) * readers(flow)), prices);
    lines.push(Line {
        kind: Kind::Uploads,
        dollars: up * copies * store.upload_per_gb,
        formula: format!("{} GB x {}{to}", figure(up), price(store.upload_per_gb)),
    });
    lines.push(Line {
        kind: Kind::Retrievals,
        dollars: down * store.retrieval_per_gb,
        formula: format!("{} GB x {}", figure(down), price(store.retrieval_per_gb)),
    });
    let held = sum(flows, |flow| flow.bytes_per_second) * slices.life_seconds / prices.gb_bytes as f64;
    lines.push(Line {
        kind: Kind::SliceStorage,
        dollars: held * copies * store.storage_gb_month,
        formula: format!("{} GB held x {}{to}", figure(held), price(store.storage_gb_month)),
    });
    lines
}

/// Requests beside the PUT and the GETs of each slice. Behind each PUT the leader asks whether the store is still the log's. In the class
/// `object` each payload slice has a slice of entries with the references, a few bytes.
fn requests_beside(class: Class, slices: &Slices, flows: &[Flow]) -> Vec<Line> {
    let (store, copies) = (&slices.store, slices.copies);
    let to = if copies > 1.0 { format!(" x {} stores", figure(copies)) } else { String::new() };
    let puts = sum(flows, |flow| slices.per_second(flow));
    let line = |kind, count: f64, what: &str, per_1000: f64| Line {
        kind,
        dollars: count * MONTH_SECONDS * copies * per_1000 / 1000.0,
        formula: format!(
            "{} {what} x {} s x {}/1,000{to}",
            figure(count),
            figure(MONTH_SECONDS),
            price(per_1000)
        ),
    };
    let heads = |count| line(Kind::Heads, count, "HEAD/s", store.get_per_1000);
    match class {
        Class::Majority => Vec::new(),
        Class::MajorityAndSlices => vec![heads(puts)],
        Class::Object => {
            vec![line(Kind::EntryPuts, puts, "PUT/s", store.put_per_1000), heads(2.0 * puts)]
        }
    }
}

/// In the class `object` each object is read once after it was stored, before payload goes.
fn read_backs(class: Class, workload: &Workload, prices: &Prices) -> Option<Line> {
    let store = &workload.slices.object_store;
    let bytes = sum(&workload.flows, |flow| flow.bytes_per_second) * MONTH_SECONDS;
    let (gets, free) = (bytes / REQUEST_BYTES, store.free_request_bytes as f64);
    let charged = gets * (REQUEST_BYTES - free).max(0.0) / prices.gb_bytes as f64;
    let mut formula = format!("{} GET x {}/1,000", figure(gets), price(store.get_per_1000));
    if store.retrieval_per_gb > 0.0 {
        formula += &format!(" + {} GB x {}", figure(charged), price(store.retrieval_per_gb));
    }
    let dollars = gets * store.get_per_1000 / 1000.0 + charged * store.retrieval_per_gb;
    (class == Class::Object).then_some(Line { kind: Kind::ReadBacks, dollars, formula })
}

/// The closed part of the log in the store.
fn objects(workload: &Workload, prices: &Prices) -> [Line; 2] {
    let store = &workload.slices.object_store;
    let puts = sum(&workload.flows, |flow| flow.bytes_per_second) / OBJECT_BYTES * MONTH_SECONDS;
    let uploaded = puts * (OBJECT_BYTES - store.free_request_bytes as f64).max(0.0) / prices.gb_bytes as f64;
    let mut formula = format!("{} PUT x {}/1,000", figure(puts), price(store.put_per_1000));
    if store.upload_per_gb > 0.0 {
        formula += &format!(" + {} GB x {}", figure(uploaded), price(store.upload_per_gb));
    }
    let put = Line {
        kind: Kind::ObjectPuts,
        dollars: puts * store.put_per_1000 / 1000.0 + uploaded * store.upload_per_gb,
        formula,
    };
    let gb = sum(&workload.flows, |flow| flow.stored_bytes) / prices.gb_bytes as f64;
    let formula = format!("{} GB x {}", figure(gb), price(store.storage_gb_month));
    [put, Line { kind: Kind::ObjectStorage, dollars: gb * store.storage_gb_month, formula }]
}

fn disks(class: Class, workload: &Workload, prices: &Prices) -> Line {
    let bytes = match class {
        Class::Majority => sum(&workload.flows, |flow| flow.stored_bytes * flow.replicas),
        Class::MajorityAndSlices => sum(&workload.flows, |flow| {
            flow.stored_bytes.min(flow.bytes_per_second * workload.local_seconds) * flow.replicas
        }),
        Class::Object => 0.0,
    };
    let (gb, per_gb) = (bytes / prices.gb_bytes as f64, prices.disk.gb_month);
    let formula = match class {
        Class::Object => "servers keep no payload".to_owned(),
        _ => format!("{} GB on all replicas x {} ({})", figure(gb), price(per_gb), prices.disk.name),
    };
    Line { kind: Kind::Disks, dollars: gb * per_gb, formula }
}

#[cfg(test)]
mod tests {
    use super::super::prices::TODAY;
    use super::*;

    fn workload(prices: &Prices) -> Workload {
        // 1 GB/s, so that a month has 2,592,000 GB.
        let gb = prices.gb_bytes as f64;
        Workload {
            flows: vec![Flow {
                bytes_per_second: gb,
                appends_per_second: None,
                replicas: 3.0,
                copies_between_zones: 2.0,
                stored_bytes: 1000.0 * gb,
            }],
            read_bytes_per_second: 3.0 * gb,
            appends_between_zones: 0.5,
            reads_between_zones: 0.25,
            slices: Slices {
                seconds: 0.1,
                bytes_max: 1e18,
                life_seconds: 3600.0,
                store: prices.store("", Some("s3-express")).unwrap().clone(),
                copies: 3.0,
                object_store: prices.store("", None).unwrap().clone(),
            },
            local_seconds: 100.0,
        }
    }

    fn dollars(bill: &Bill, kind: Kind) -> Option<f64> {
        bill.lines.iter().find(|line| line.kind == kind).map(|line| line.dollars)
    }

    fn cents(bill: &Bill, kind: Kind) -> Option<i64> {
        dollars(bill, kind).map(|dollars| (dollars * 100.0).round() as i64)
    }

    #[test]
    fn every_line_follows_from_its_prices() {
        let prices = Prices::read(TODAY).unwrap();
        let bills = bills(&workload(&prices), &prices);
        let [majority, slices, object] = &bills[..] else { panic!("three classes") };
        let gb = 2_592_000.0;
        let exact = |dollars: f64| Some((dollars * 100.0).round() as i64);
        for bill in [majority, slices] {
            assert_eq!(cents(bill, Kind::Replication), exact(gb * 2.0 * 0.02));
        }
        let references = 10.0 * 150.0 * 2.0 * gb / 1_073_741_824.0;
        assert_eq!(cents(object, Kind::Replication), exact(references * 0.02));
        for bill in &bills {
            assert_eq!(cents(bill, Kind::Appends), exact(gb * 0.5 * 0.02));
            assert_eq!(cents(bill, Kind::Reads), exact(gb * 3.0 * 0.25 * 0.02));
        }
        for bill in [slices, object] {
            assert_eq!(cents(bill, Kind::Puts), exact(10.0 * gb * 3.0 * 0.00113 / 1000.0));
            assert_eq!(cents(bill, Kind::Uploads), exact(gb * 3.0 * 0.0032));
            assert_eq!(cents(bill, Kind::SliceStorage), exact(3600.0 * 3.0 * 0.11));
            assert_eq!(cents(bill, Kind::ObjectPuts), exact(gb * 16.0 * 0.005 / 1000.0));
            assert_eq!(cents(bill, Kind::ObjectStorage), exact(1000.0 * 0.023));
        }
        // A second PUT for the references, and a HEAD behind each PUT.
        assert_eq!((cents(slices, Kind::EntryPuts), cents(slices, Kind::ReadBacks)), (None, None));
        assert_eq!(cents(object, Kind::EntryPuts), cents(object, Kind::Puts));
        assert_eq!(cents(slices, Kind::Heads), exact(10.0 * gb * 3.0 * 0.00003 / 1000.0));
        assert_eq!(cents(object, Kind::Heads), exact(20.0 * gb * 3.0 * 0.00003 / 1000.0));
        assert_eq!(cents(object, Kind::ReadBacks), exact(gb * 256.0 * 0.0004 / 1000.0));
        assert_eq!(cents(object, Kind::Gets), exact(10.0 * 2.0 * gb * 0.00003 / 1000.0));
        assert_eq!(cents(object, Kind::Retrievals), exact(gb * 2.0 * 0.0006));
        assert_eq!((cents(slices, Kind::Gets), cents(slices, Kind::Retrievals)), (Some(0), Some(0)));
        assert_eq!(cents(majority, Kind::Puts), None);
        assert_eq!(cents(majority, Kind::Disks), exact(3000.0 * 0.08));
        assert_eq!(cents(slices, Kind::Disks), exact(300.0 * 0.08));
        assert_eq!(cents(object, Kind::Disks), Some(0));
        for bill in &bills {
            let lines: f64 = Kind::ALL.iter().filter_map(|kind| dollars(bill, *kind)).sum();
            assert!((bill.total() - lines).abs() < 1e-6, "each kind is counted once");
        }
    }

    #[test]
    fn slices_are_made_by_time_by_size_and_only_of_appends() {
        let prices = Prices::read(TODAY).unwrap();
        let mut slices = workload(&prices).slices;
        slices.bytes_max = 1e6;
        let flow = |bytes_per_second, appends_per_second| Flow {
            bytes_per_second,
            appends_per_second,
            replicas: 3.0,
            copies_between_zones: 2.0,
            stored_bytes: 0.0,
        };
        for (flow, rate) in [
            (flow(1e6, None), 10.0),
            (flow(50e6, None), 50.0),
            (flow(100.0, Some(2.0)), 2.0),
            (flow(100.0, Some(200.0)), 10.0),
            (flow(50e6, Some(2.0)), 50.0),
            (flow(0.0, None), 0.0),
        ] {
            assert!((slices.per_second(&flow) - rate).abs() < 1e-9, "{flow:?}");
        }
        let of_kip = Prices::read(super::super::prices::OF_THE_KIP).unwrap();
        slices.store = of_kip.store("", Some("s3-express")).unwrap().clone();
        slices.bytes_max = 1e18;
        assert_eq!(slices.charged_part(&flow(5_242_880.0, None)), 0.0, "512 KiB a slice are free");
        assert!((slices.charged_part(&flow(2.0 * 5_242_880.0, None)) - 0.5).abs() < 1e-9);
        assert_eq!(slices.charged_part(&flow(0.0, None)), 0.0);
    }

    #[test]
    fn copies_cross_zones_as_the_leader_moves() {
        for (replicas, zones, copies) in
            [(3, 3, 2.0), (3, 1, 0.0), (1, 3, 0.0), (5, 3, 3.2), (3, 2, 4.0 / 3.0), (0, 0, 0.0)]
        {
            assert!((copies_between_zones(replicas, zones) - copies).abs() < 1e-9, "{replicas} {zones}");
        }
        assert!((part_in_other_zones(3) - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!([part_in_other_zones(1), part_in_other_zones(0)], [0.0, 0.0]);
    }
}
