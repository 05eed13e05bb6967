//! `chiplog cost`: what replication and storage cost in a cloud, for a cluster's own traffic or for one that is given.

mod amounts;
mod kip;
mod model;
mod prices;
mod report;
mod traffic;

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format::{parse_bytes, parse_seconds};
use crate::common::number::whole_number;
use crate::common::output::{Ui, print};
use crate::connect::cluster::{Asker, Connect};
use crate::connect::target::Servers;
use clap::{Args, ValueEnum};
use model::{Flow, Slices, Workload, bills, copies_between_zones, part_in_other_zones};
use prices::{OF_THE_KIP, Prices, TODAY};
use report::{OfKip, Report, Shown};
use std::time::Duration;
use traffic::{Traffic, measure};

const HELP: &str = "\
Examples:
  chiplog cost log1:7411
      The cost of a month with the traffic of the next 10 s.
  chiplog cost log1:7411 --seconds 600 --fan-out 3 --retention 7d --formulas
  chiplog cost --append-rate 30MB/s --fan-out 3 --replicas 3 --zones 3 --retention 7d --slice 100ms
      Before there is a cluster.
  chiplog cost --append-rate 30MB/s --store s3-express --store-copies 3 --slice 10ms
  chiplog cost --append-rate 30MB/s --json | jq -r '.classes[] | [.class, .dollars] | @tsv'
  chiplog cost --print-prices > mine.toml && chiplog cost --append-rate 30MB/s --prices mine.toml
  chiplog cost --kip-1176
      The table of Kafka's KIP-1176 with the formula of each line, and what it leaves out.

Classes:
  majority         a majority of replicas has the record on disk; the disks keep all records. This version
                   has this class only. The others are computed for comparison.
  majority+slices  the same, and slices of the log go to an object store; the disks keep --local
  object           a slice in the object store has the record, a majority has a reference to it; the other
                   replicas fetch each slice once, and servers keep no payload

Lines:
  between zones  each byte is paid for by its sender and its receiver. Clients are spread evenly over the
                 zones; those that append call the leader, for those that read see --readers.
  slices         one for each --slice with an append, and for each --slice-bytes, of each group of logs;
                 kept until an object covers it: --slice-life
  closed objects of 64 MiB: the log for --retention

Measured are the bytes of blocks that leaders wrote, and the appends that they accepted, of the default log
and of all groups of named logs; and the bytes that clients read from all servers, unless --fan-out says them,
a log is named, or a server does not answer or does not count them.

JSON fields:
  traffic       seconds (measured; null: given), append_bytes_per_second, appends_per_second (null: enough for
                each slice), read_bytes_per_second, are_reads_assumed (by --fan-out or its default),
                stored_bytes, slices_per_second, zones,
                are_zones_assumed (servers without a label of their zone), groups (null: given), for each:
                log, leader, append_bytes_per_second, appends_per_second, replicas, copies_between_zones,
                stored_bytes
  classes       for each: class, dollars (a month), lines, for each: kind, dollars, formula
  not_included, notes
  prices        as in their file
  With --kip-1176: table, left_out (for each line: what, dollars, formula), saving_percent,
  metadata_events_per_second, metadata_formula, today (for each store: store, copies, intervals, for
  each: millis, dollars, lines), saving_percent_today (null: there is no s3-express), prices, prices_today";

/// Compute what replication and storage cost in a cloud: dollars a month, by class of durability and by line.
///
/// With servers, the traffic of their logs is measured for some seconds. With --append-rate it is given, and no
/// server is asked.
///
/// Prices are data with a date and a source: list prices of AWS in us-east-1, or those of a file. The output says
/// which costs are not included, above all the machines.
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Cost {
    /// Servers, by their address for clients. One that runs is enough; A,B,C are tried in turn. With /LOG after the
    /// servers: the group that holds this named log, alone. Without servers, --append-rate, --kip-1176 and
    /// --print-prices those of the variable CHIPLOG_SERVERS.
    #[arg(value_name = "HOST:PORT[/LOG]")]
    servers: Vec<Servers>,

    /// Measure for N seconds.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole_number::<u64>("a number of seconds", 1..=86_400))]
    seconds: u64,

    /// Compute for this many appended bytes per second, as in 30MB/s, and ask no server.
    #[arg(long, value_name = "SIZE/s", value_parser = rate, conflicts_with_all = ["servers", "seconds"])]
    append_rate: Option<u64>,

    /// With --append-rate: the bytes of an append. An interval without an append makes no slice. Default: each interval
    /// has one.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    batch: Option<u64>,

    /// With --append-rate: the number of replicas. Default: 3.
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>("a number of replicas", 1..=64))]
    replicas: Option<u32>,

    /// With --append-rate: the zones over which replicas and clients are spread. Default: 3.
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>("a number of zones", 1..=64))]
    zones: Option<u32>,

    /// The number of times that clients read each appended byte. Default: 1; with servers what clients read from them.
    #[arg(long, value_name = "N", value_parser = fan_out)]
    fan_out: Option<f64>,

    /// The replica that clients read from: any (their default), or the nearest (in their own zone).
    #[arg(long, value_enum, default_value_t = Readers::Any)]
    readers: Readers,

    /// How long records are kept. Default: 7d; with servers what they keep now.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    retention: Option<u64>,

    /// How long disks keep records that are in the object store, too.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_seconds)]
    local: u64,

    /// The interval of slices.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = interval)]
    slice: Duration,

    /// The largest slice.
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = size)]
    slice_bytes: u64,

    /// How long a slice stays in the store.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_seconds)]
    slice_life: u64,

    /// The object store for slices, as the prices name it. Default: their first one.
    #[arg(long, value_name = "NAME")]
    store: Option<String>,

    /// The stores that get each slice: 3 if each keeps it in one zone only, and a lost zone must lose nothing.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_number::<u32>("a number of stores", 1..=16))]
    store_copies: u32,

    /// The object store for closed objects. Default: the first one of the prices.
    #[arg(long, value_name = "NAME")]
    object_store: Option<String>,

    /// The prices: a file, or a name that is built in: aws-2026-us-east-1, aws-2023-us-east-1.
    #[arg(long, value_name = "FILE", default_value = TODAY)]
    prices: String,

    /// Show the formula of each line.
    #[arg(long)]
    formulas: bool,

    /// Show the table of Kafka's KIP-1176, with the formula of each line, and what it leaves out. --prices are those of today.
    #[arg(long, conflicts_with_all = ["servers", "append_rate", "batch", "replicas", "zones", "formulas", "seconds", "fan_out", "readers", "retention", "local",
        "slice", "slice_bytes", "slice_life", "store", "store_copies", "object_store"])]
    kip_1176: bool,

    /// Print the file of the prices of today, to make another one of it.
    #[arg(long, conflicts_with_all = ["servers", "append_rate", "kip_1176", "prices"])]
    print_prices: bool,

    #[command(flatten)]
    connect: Connect,
}

/// The replica that clients read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Readers {
    Any,
    Nearest,
}

/// Parses a rate: a size per second.
fn rate(text: &str) -> Result<u64, String> {
    let wrong = |_| format!("{text:?} is not a rate: give bytes per second, such as 30MB/s or 512KiB/s");
    parse_bytes(text.strip_suffix("/s").unwrap_or(text)).map_err(wrong)
}

/// Parses a size of at least a byte.
fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text)?.try_into().map(std::num::NonZero::get).map_err(|_| "give 1 byte or more".into())
}

fn fan_out(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| (0.0..=1e6).contains(n));
    number.ok_or_else(|| "give a number of reads from 0 to 1000000, such as 3 or 0.5".into())
}

/// Parses the interval of slices: milliseconds or seconds with their unit.
fn interval(text: &str) -> Result<Duration, String> {
    let number = |unit: &str| text.strip_suffix(unit)?.parse::<u64>().ok();
    let millis =
        number("ms").or_else(|| number("s")?.checked_mul(1000)).filter(|n| (1..=3_600_000).contains(n));
    let wrong = || format!("{text:?} is not an interval: give 1ms to 3600s, such as 100ms or 1s");
    millis.map(Duration::from_millis).ok_or_else(wrong)
}

/// How long records are kept where nothing is measured: 7 days.
const RETENTION_SECONDS: u64 = 7 * 86_400;

impl Cost {
    /// The servers that are given, or those of the environment.
    fn servers(&self) -> Result<Servers> {
        if !self.servers.is_empty() {
            return Servers::joined(&self.servers);
        }
        match std::env::var("CHIPLOG_SERVERS") {
            Ok(text) if !text.is_empty() => {
                text.parse().map_err(|e| Failure::usage(format!("CHIPLOG_SERVERS: {e}")))
            }
            _ => Err(Failure::usage(
                "there is no traffic to compute the cost of: give HOST:PORT of a server, or --append-rate such as 30MB/s",
            )),
        }
    }

    /// Checks that options of a given traffic do not come with a measured one.
    fn check(&self) -> Result<()> {
        let given = [
            ("--batch", self.batch.is_some()),
            ("--replicas", self.replicas.is_some()),
            ("--zones", self.zones.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given && self.append_rate.is_none()) {
            None => Ok(()),
            Some((option, _)) => Err(Failure::usage(format!(
                "{option} describes a traffic that is given, and no --append-rate is: give --append-rate such as 30MB/s, or leave {option} out, servers report it"
            ))),
        }
    }

    fn zones(&self) -> u32 {
        self.zones.unwrap_or(3)
    }

    /// The traffic that the options give.
    fn given(&self, rate: u64) -> Flow {
        let (bytes_per_second, replicas) = (rate as f64, self.replicas.unwrap_or(3));
        Flow {
            bytes_per_second,
            appends_per_second: self.batch.map(|bytes| bytes_per_second / bytes as f64),
            replicas: replicas.into(),
            copies_between_zones: copies_between_zones(replicas, self.zones()),
            stored_bytes: bytes_per_second * self.retention.unwrap_or(RETENTION_SECONDS) as f64,
        }
    }

    fn slices(&self, prices: &Prices) -> Result<Slices> {
        Ok(Slices {
            seconds: self.slice.as_secs_f64(),
            bytes_max: self.slice_bytes as f64,
            life_seconds: self.slice_life as f64,
            store: prices.store("--store", self.store.as_deref())?.clone(),
            copies: self.store_copies.into(),
            object_store: prices.store("--object-store", self.object_store.as_deref())?.clone(),
        })
    }

    fn workload(&self, flows: Vec<Flow>, reads: Option<f64>, zones: u32, slices: Slices) -> Workload {
        let in_other_zones = part_in_other_zones(zones);
        let appended: f64 = flows.iter().map(|flow| flow.bytes_per_second).sum();
        Workload {
            flows,
            read_bytes_per_second: reads.unwrap_or(appended * self.fan_out.unwrap_or(1.0)),
            appends_between_zones: in_other_zones,
            reads_between_zones: if self.readers == Readers::Any { in_other_zones } else { 0.0 },
            slices,
            local_seconds: self.local as f64,
        }
    }

    /// The limits of the figures, for the user.
    fn notes(&self, slices: &Slices, are_reads_unknown: bool) -> Vec<String> {
        let mut notes = Vec::new();
        if are_reads_unknown {
            notes.push("not all servers report what clients read: each byte is assumed to be read once, --fan-out N changes it".to_owned());
        }
        if slices.store.zones == 1 && slices.copies < 2.0 {
            notes.push(format!(
                "{} keeps a slice in one zone: class object loses records if that zone is lost, with --store-copies 3 it does not",
                slices.store.name
            ));
        }
        notes
    }
}

fn show_kip(args: &Cost, ui: &Ui) -> Result<Exit> {
    let (prices, prices_today) = (Prices::read(OF_THE_KIP)?, Prices::read(&args.prices)?);
    let table = kip::table(&prices, &prices_today)?;
    Ui { quiet: false, ..*ui }.result(&OfKip { table, prices, prices_today }, OfKip::words)?;
    Ok(Exit::Ok)
}

pub(crate) fn run(args: &Cost, ui: &Ui) -> Result<Exit> {
    if args.print_prices {
        print(prices::text_of_today().as_bytes())?;
        return Ok(Exit::Ok);
    }
    if args.kip_1176 {
        return show_kip(args, ui);
    }
    // Mistakes in the options are reported before any server is asked.
    args.check()?;
    let prices = Prices::read(&args.prices)?;
    let slices = args.slices(&prices)?;
    let measured = match args.append_rate {
        Some(_) => None,
        None => {
            let (asker, servers) = (Asker::new(&args.connect, ui)?, args.servers()?);
            Some(measure(&asker, &servers, Duration::from_secs(args.seconds))?)
        }
    };
    let flows: Vec<Flow> = match &measured {
        Some(Traffic { groups, .. }) => {
            groups.iter().map(|group| group.flow(args.retention.map(|seconds| seconds as f64))).collect()
        }
        None => vec![args.given(args.append_rate.unwrap_or_default())],
    };
    let zones = measured.as_ref().map_or(args.zones(), |traffic| traffic.zones);
    let reads = measured.as_ref().and_then(|traffic| traffic.read_bytes_per_second);
    let reads = reads.filter(|_| args.fan_out.is_none());
    let notes = args.notes(&slices, measured.is_some() && reads.is_none() && args.fan_out.is_none());
    let workload = args.workload(flows, reads, zones, slices);
    let sum = |of: fn(&Flow) -> f64| workload.flows.iter().map(of).sum::<f64>();
    let appended = sum(|flow| flow.bytes_per_second);
    let appends: Option<Vec<f64>> = workload.flows.iter().map(|flow| flow.appends_per_second).collect();
    let shown = Shown {
        seconds: measured.is_some().then_some(args.seconds),
        append_bytes_per_second: appended,
        appends_per_second: appends.map(|all| all.iter().sum()),
        read_bytes_per_second: workload.read_bytes_per_second,
        are_reads_assumed: reads.is_none(),
        stored_bytes: sum(|flow| flow.stored_bytes),
        slices_per_second: workload.flows.iter().map(|flow| workload.slices.per_second(flow)).sum(),
        zones,
        are_zones_assumed: measured.as_ref().is_some_and(|traffic| !traffic.are_zones_known),
        groups: measured.map(|traffic| traffic.groups),
    };
    let bills = bills(&workload, &prices);
    let report = Report::new(shown, bills, prices, notes);
    Ui { quiet: false, ..*ui }.result(&report, |report| report.words(args.formulas))?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_options_are_parsed() {
        assert_eq!([rate("30MB/s"), rate("512KiB"), rate("0")], [Ok(30_000_000), Ok(524_288), Ok(0)]);
        assert_eq!(interval("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(interval("2s"), Ok(Duration::from_secs(2)));
        assert_eq!([fan_out("3"), fan_out("0.5")], [Ok(3.0), Ok(0.5)]);
        for wrong in [rate("30MB/h"), rate(""), size("0")] {
            assert!(wrong.unwrap_err().contains("give "));
        }
        for wrong in ["100", "0ms", "4000s", "1.5s", ""] {
            assert!(interval(wrong).unwrap_err().contains("give "), "{wrong}");
        }
        for wrong in ["-1", "nan", "inf", "x"] {
            assert!(fan_out(wrong).unwrap_err().starts_with("give "), "{wrong}");
        }
    }
}
