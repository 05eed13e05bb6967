//! Metrics of the log, its clients and its peers, in the OpenMetrics text that Prometheus reads. They are
//! collected on request; nothing is stored here. `docs/metrics.md` explains each metric, and a test compares
//! that page with a server.

use super::Config;
use super::ready::not_ready;
use super::reload::Reloads;
use crate::common::failure::Result;
use chiplog::cluster::Role;
use chiplog::{Log, Logs};
use chiplog_net::listener::memory_budget::Budget;
use chiplog_net::peer::{PeerTraffic, PeerTransport};
use chiplog_net::served::gauges::{Gauges, Open};
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::served::refusals::{Refusal, Refusals};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
}

impl Metrics {
    pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    pub(super) fn new(figures: Figures) -> Self {
        let mut registry = Registry::with_prefix("chiplog");
        registry.register_collector(Box::new(figures));
        Self { registry }
    }

    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// The sources of the metrics.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) host: Arc<LogSlot>,
    pub(super) transport: Arc<PeerTransport>,
    pub(super) refusals: Arc<Refusals>,
    pub(super) budget: Budget,
    pub(super) bounds: Bounds,
    pub(super) reloads: Arc<Reloads>,
    pub(super) has_unstored_list: Arc<AtomicBool>,
}

/// Limits that depend on others or on the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    connections: u64,
    memory_bytes: u64,
}

impl Bounds {
    /// The bounds of a configuration in use.
    pub(super) fn of(config: &Config) -> Result<Self> {
        Ok(Self { connections: config.limits.connections_max, memory_bytes: config.memory_bytes_max()? })
    }
}

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page { encoder };
        let version = [(env!("CARGO_PKG_VERSION").to_owned(), 1)];
        page.family("build_info", "1 for the version that runs", "version", MetricType::Gauge, &version)?;
        page.gauge(
            "ready",
            "1 if clients should use this server",
            u64::from(not_ready(&self.host).is_none()),
        )?;
        of_clients(&mut page, self.host.gauges())?;
        if let Some(log) = self.host.opened() {
            of_log(&mut page, log)?;
        }
        if let Some(logs) = self.host.named() {
            of_groups(&mut page, logs)?;
        }
        let help = "1 if this server cannot use its object store";
        page.gauge("store_failing", help, u64::from(self.host.store_failure().is_some()))?;
        let help = "1 if this server leads the catalogue, and the object store does not have the list of the cluster's logs";
        page.gauge("unstored_list", help, u64::from(self.has_unstored_list.load(Ordering::Relaxed)))?;
        let copies = self.host.copies();
        page.gauge("copies", "copies of the log that this server sends blocks to", copies.now)?;
        page.counter("copies_begun", "times that sending to a copy began", copies.begun)?;
        page.counter("copies_bytes", "bytes of blocks sent to copies", copies.bytes)?;
        let objects = "bytes of objects read for copies that do not reach the object store, and over HTTP";
        page.counter("copies_objects_bytes", objects, copies.objects_bytes)?;
        page.counter(
            "http_segments_bytes",
            "bytes of segment files read for requests over HTTP",
            copies.segments_bytes,
        )?;
        of_peers(&mut page, &self.transport.traffic())?;
        page.counter(
            "peer_unaddressed",
            "messages for nodes of unknown address",
            self.transport.dropped_nowhere(),
        )?;
        of_doors(&mut page, self)
    }
}

fn of_doors(page: &mut Page<'_>, figures: &Figures) -> fmt::Result {
    let refused = |refusals: &Refusals| Refusal::ALL.map(|r| (r.name().to_owned(), refusals.read(r)));
    let (clients, peers) = (refused(&figures.refusals), refused(figures.transport.refusals()));
    let counter = MetricType::Counter;
    page.family(
        "refused",
        "requests and connections that the listener for clients refused or ended",
        "reason",
        counter,
        &clients,
    )?;
    page.family("peer_refused", "the same for the listener for peers", "reason", counter, &peers)?;
    let used = figures.budget.used_bytes() as u64;
    page.gauge("inflight_bytes", "bytes of received messages that are not in the log's queue yet", used)?;
    let answers = figures.budget.answer_bytes() as u64;
    page.gauge("answer_bytes", "bytes of prepared answers that are not sent yet", answers)?;
    let waiting = figures.budget.answers_waiting() as u64;
    page.gauge("answers_waiting", "answers that wait for memory", waiting)?;
    page.gauge("calls", "open calls of clients, of all kinds", figures.budget.streams() as u64)?;
    page.gauge("connections_max", "the maximum number of client connections", figures.bounds.connections)?;
    page.gauge("memory_max_bytes", "the most memory that the limits allow", figures.bounds.memory_bytes)?;
    let expiries = figures.reloads.expiries();
    let help = "the last second in which a certificate of this server is valid, since 1970";
    let name = "certificate_expires_timestamp_seconds";
    if !expiries.is_empty() {
        page.family(name, help, "certificate", MetricType::Gauge, &expiries)?;
    }
    let Reloads { done, failed, broken, .. } = &*figures.reloads;
    let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
    page.counter("reloads", "reloads that replaced certificates or tokens", read(done))?;
    page.counter("reload_failures", "reloads whose files could not be used", read(failed))?;
    page.gauge(
        "reload_broken",
        "sets of files that cannot be used now: the old ones stay in use",
        read(broken),
    )
}

fn of_clients(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    page.gauge("connections", "open connections of clients", gauges.count(Open::Connections))?;
    let streams = [(Open::Appends, "append"), (Open::Reads, "read"), (Open::Watches, "watch")];
    let streams = streams.map(|(what, name)| (name.to_owned(), gauges.count(what)));
    page.family("streams", "open streams, by what they do", "stream", MetricType::Gauge, &streams)?;
    page.counter("read_bytes", "bytes of records that clients read", gauges.read_bytes())
}

fn of_log(page: &mut Page<'_>, log: &Log) -> fmt::Result {
    let (status, metrics) = (log.status(), log.metrics());
    let replica = &status.replica;
    page.gauge("first_index", "index of the first record that is not discarded", status.first_index.get())?;
    page.gauge("last_index", "index of the last committed record", status.last_index.get())?;
    page.gauge("durable_index", "index of the last record durable here", status.durable_index.get())?;
    page.gauge("committed_raft_index", "the last entry known committed", replica.committed_entry.get())?;
    page.gauge("last_raft_index", "the last entry, committed or not", replica.last_entry.get())?;
    page.gauge("term", "raft's term", replica.term.get())?;
    page.gauge("leader", "the node that leads; 0: unknown", replica.leader.map_or(0, |n| n.get()))?;
    page.gauge("used_bytes", "bytes of blocks from the first record on", status.bytes_used)?;
    page.gauge("capacity_bytes", "their limit; 0: the disk", status.bytes_capacity.unwrap_or(0))?;
    let (all, free) = disk_of(log);
    page.gauge("disk_bytes", "size of the disk that the log is on; 0: unknown", all)?;
    page.gauge("disk_free_bytes", "free bytes of that disk", free)?;
    page.gauge("segments", "segment files", status.segments)?;
    page.gauge("sessions", "open sessions", status.sessions.into())?;
    page.gauge("poisoned", "1 if a write failed", u64::from(log.poison_cause().is_some()))?;
    let roles = [
        (Role::Leader, "leader"),
        (Role::Follower, "follower"),
        (Role::Candidate, "candidate"),
        (Role::Learner, "learner"),
        (Role::Repairing, "repairing"),
        (Role::Removed, "removed"),
    ];
    let roles = roles.map(|(role, name)| (name.to_owned(), u64::from(role == replica.role)));
    page.family("role", "1 for the current role of this replica", "role", MetricType::Gauge, &roles)?;
    let running = metrics.syncing.as_secs_f64();
    page.gauge_f64("sync_running_seconds", "how long the current sync has run; 0: none runs", running)?;
    page.gauge("queue_appends", "appends that wait for the writer", metrics.queue_appends)?;
    page.gauge("queue_bytes", "bytes of these appends", metrics.queue_bytes)?;
    page.gauge("unwritten_bytes", "bytes of accepted appends that are not written yet", metrics.taken_bytes)?;
    page.gauge("uncommitted_bytes", "bytes written but not committed yet", metrics.uncommitted_bytes)?;
    page.counter("appends", "batches accepted", metrics.appends)?;
    page.counter("records", "records written", metrics.records)?;
    page.counter("blocks", "blocks written", metrics.blocks)?;
    page.counter("written_bytes", "bytes of blocks written", metrics.bytes)?;
    page.counter("rolls", "segments begun", metrics.rolls)?;
    page.counter(
        "scrubbed_bytes",
        "bytes of blocks that the scrubber read and checked",
        metrics.scrubbed_bytes,
    )?;
    page.counter("damaged", "damaged places found", metrics.damaged)?;
    page.counter("repaired", "damaged places repaired from other replicas", metrics.repaired)?;
    page.gauge("damaged_places", "places that are damaged at present", log.damaged_places())?;
    page.counter(
        "truncated_records",
        "records truncated because another leader has other records there",
        metrics.truncated_records,
    )?;
    page.counter("discarded_records", "records removed by discards or retention", metrics.discarded_records)?;
    of_objects(page, &metrics)?;
    histograms(page, &metrics)?;
    let peers = |value: fn(&chiplog::cluster::PeerStatus) -> u64| -> Vec<(String, u64)> {
        replica.peers.iter().map(|p| (p.node.to_string(), value(p))).collect()
    };
    let gauge = MetricType::Gauge;
    page.family(
        "peer_lag_entries",
        "entries that a peer lacks, reported by the leader",
        "node",
        gauge,
        &peers(|p| p.lag),
    )?;
    let active = peers(|p| u64::from(p.active));
    page.family("peer_active", "1 if the leader hears from the peer", "node", MetricType::Gauge, &active)
}

/// The objects of the default log. A server without an object store shows zeros.
fn of_objects(page: &mut Page<'_>, metrics: &chiplog::metrics::Metrics) -> fmt::Result {
    page.counter("stored_objects", "objects put into the object store", metrics.stored_objects)?;
    page.counter("stored_bytes", "bytes of these objects", metrics.stored_bytes)?;
    let help = "failed attempts to use the object store for the log's objects; each is repeated";
    page.counter("object_failures", help, metrics.object_failures)?;
    let help = "bytes of objects fetched from the object store for readers";
    page.counter("fetched_bytes", help, metrics.fetched_bytes)?;
    let help = "bytes of blocks here that are in no object known to be stored; 0 without objects";
    page.gauge("unstored_bytes", help, metrics.unstored_bytes)?;
    let help = "objects that were missing or damaged in the object store, and that this server stored again";
    page.counter("repaired_objects", help, metrics.repaired_objects)?;
    let help =
        "objects known to be missing or damaged in the object store, and that this server cannot make again";
    page.gauge("damaged_objects", help, metrics.damaged_objects)?;
    let help = "the last record in an object known to be stored; 0 if there is none";
    page.gauge("stored_index", help, metrics.stored_index)?;
    page.counter("stored_slices", "slices put into the object store", metrics.stored_slices)?;
    page.counter("sliced_bytes", "bytes of these slices", metrics.sliced_bytes)?;
    let help = "failed attempts to store or to find slices; each is repeated";
    page.counter("slice_failures", help, metrics.slice_failures)?;
    let help = "payload slices put into the object store, with the durability class object";
    page.counter("stored_payloads", help, metrics.stored_payloads)?;
    page.counter("payload_bytes", "bytes of these payload slices", metrics.payload_bytes)?;
    let help = "failed attempts to store payload slices; each is repeated for 10 s";
    page.counter("payload_failures", help, metrics.payload_failures)?;
    let help = "appends of the durability class object that were confirmed, and that the object store alone was not known to have";
    page.counter("unstored_confirmations", help, metrics.unstored_confirmations)?;
    let help = "bytes of blocks here that are neither in an object nor in a slice, as the leader knows; 0 without slices";
    page.gauge("unsliced_bytes", help, metrics.unsliced_bytes)?;
    let help = "the last record in an object or a slice, as the leader knows: it would survive the loss of all replicas";
    page.gauge("sliced_index", help, metrics.sliced_index)?;
    page.gauge("cached_bytes", "bytes of objects kept here for readers", metrics.cached_bytes)?;
    let help = "bytes of the newest objects that are kept on this disk; 0 without objects.fill_bytes";
    page.gauge("filled_bytes", help, metrics.filled_bytes)?;
    let help = "failed attempts to keep an object on this disk; each is repeated";
    page.counter("fill_failures", help, metrics.fill_failures)
}

/// The size of the disk that a log is on, and its free bytes; 0: unknown.
fn disk_of(log: &Log) -> (u64, u64) {
    let disk = rustix::fs::statvfs(log.path()).ok();
    disk.map_or((0, 0), |d| (d.f_blocks * d.f_frsize, d.f_bavail * d.f_frsize))
}

/// The groups of named logs. Labels name groups, not logs: thousands of logs add no series.
fn of_groups(page: &mut Page<'_>, logs: &Logs) -> fmt::Result {
    let system = std::iter::once(("system".to_owned(), logs.system().clone()));
    let groups = logs.groups().into_iter().map(|(number, group)| (number.to_string(), group));
    let all: Vec<_> =
        system.chain(groups).map(|(name, log)| (name, log.status(), log.metrics(), log)).collect();
    type Row = (String, chiplog::Status, chiplog::metrics::Metrics, Log);
    type Value = fn(&Row) -> u64;
    let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
    let rows: [(&str, &str, MetricType, Value); 30] = [
        ("group_logs", "named logs of the group", gauge, |(_, _, _, log)| log.named_logs() as u64),
        (
            "group_full_logs",
            "named logs of the group that are full by their own capacity_bytes",
            gauge,
            |(_, _, _, log)| log.full_logs() as u64,
        ),
        ("group_leader", "the node that leads the group; 0: unknown", gauge, |(_, status, _, _)| {
            status.replica.leader.map_or(0, |node| node.get())
        }),
        ("group_term", "raft's term in the group", gauge, |(_, status, _, _)| status.replica.term.get()),
        ("group_voters", "voters of the group", gauge, |(_, status, _, _)| {
            status.replica.voters().len() as u64
        }),
        ("group_used_bytes", "bytes of the group's blocks", gauge, |(_, status, _, _)| status.bytes_used),
        ("group_disk_bytes", "size of the disk that the group is on; 0: unknown", gauge, |(_, _, _, log)| {
            disk_of(log).0
        }),
        ("group_disk_free_bytes", "free bytes of that disk", gauge, |(_, _, _, log)| disk_of(log).1),
        ("group_queue_bytes", "bytes of appends that wait for the group's writer", gauge, |(_, _, m, _)| {
            m.queue_bytes
        }),
        ("group_poisoned", "1 if a write of the group failed", gauge, |(_, _, _, log)| {
            u64::from(log.poison_cause().is_some())
        }),
        ("group_appends", "batches that the group accepted", counter, |(_, _, m, _)| m.appends),
        ("group_written_bytes", "bytes of blocks that the group wrote", counter, |(_, _, m, _)| m.bytes),
        (
            "group_stored_objects",
            "objects of the group put into the object store",
            counter,
            |(_, _, m, _)| m.stored_objects,
        ),
        ("group_stored_bytes", "bytes of these objects", counter, |(_, _, m, _)| m.stored_bytes),
        (
            "group_object_failures",
            "failed attempts to use the object store for the group's objects; each is repeated",
            counter,
            |(_, _, m, _)| m.object_failures,
        ),
        (
            "group_fetched_bytes",
            "bytes of the group's objects fetched from the object store for readers",
            counter,
            |(_, _, m, _)| m.fetched_bytes,
        ),
        (
            "group_repaired_objects",
            "the group's objects that were missing or damaged, and that this server stored again",
            counter,
            |(_, _, m, _)| m.repaired_objects,
        ),
        (
            "group_damaged_objects",
            "the group's objects known to be missing or damaged, and that this server cannot make again",
            gauge,
            |(_, _, m, _)| m.damaged_objects,
        ),
        (
            "group_unstored_bytes",
            "bytes of the group's blocks here that are in no object known to be stored; 0 without objects",
            gauge,
            |(_, _, m, _)| m.unstored_bytes,
        ),
        ("group_stored_slices", "slices of the group put into the object store", counter, |(_, _, m, _)| {
            m.stored_slices
        }),
        ("group_sliced_bytes", "bytes of these slices", counter, |(_, _, m, _)| m.sliced_bytes),
        (
            "group_slice_failures",
            "failed attempts to store or to find slices of the group; each is repeated",
            counter,
            |(_, _, m, _)| m.slice_failures,
        ),
        (
            "group_stored_payloads",
            "payload slices of the group put into the object store, with the durability class object",
            counter,
            |(_, _, m, _)| m.stored_payloads,
        ),
        ("group_payload_bytes", "bytes of these payload slices", counter, |(_, _, m, _)| m.payload_bytes),
        (
            "group_payload_failures",
            "failed attempts to store payload slices of the group; each is repeated for 10 s",
            counter,
            |(_, _, m, _)| m.payload_failures,
        ),
        (
            "group_unstored_confirmations",
            "appends of the durability class object to the group's logs that were confirmed, and that the object store alone was not known to have",
            counter,
            |(_, _, m, _)| m.unstored_confirmations,
        ),
        (
            "group_unsliced_bytes",
            "bytes of the group's blocks here that are neither in an object nor in a slice, as its leader knows; 0 without slices",
            gauge,
            |(_, _, m, _)| m.unsliced_bytes,
        ),
        (
            "group_cached_bytes",
            "bytes of the group's objects kept here for readers",
            gauge,
            |(_, _, m, _)| m.cached_bytes,
        ),
        (
            "group_filled_bytes",
            "bytes of the group's newest objects that are kept on this disk",
            gauge,
            |(_, _, m, _)| m.filled_bytes,
        ),
        (
            "group_fill_failures",
            "failed attempts to keep an object of the group on this disk; each is repeated",
            counter,
            |(_, _, m, _)| m.fill_failures,
        ),
    ];
    for (name, help, kind, value) in rows {
        let values: Vec<_> = all.iter().map(|row| (row.0.clone(), value(row))).collect();
        page.family(name, help, "group", kind, &values)?;
    }
    Ok(())
}

fn histograms(page: &mut Page<'_>, metrics: &chiplog::metrics::Metrics) -> fmt::Result {
    let seconds = |n: usize| (2_u64 << n) as f64 / 1e6;
    let total = |micros: u64| micros as f64 / 1e6;
    let syncs = (&metrics.sync_micros_buckets[..], total(metrics.sync_micros_total));
    page.histogram("sync_seconds", "how long syncs of the disk took", syncs, seconds)?;
    let commits = (&metrics.commit_micros_buckets[..], total(metrics.commit_micros_total));
    let help = "how long writes of the leader took to be committed";
    page.histogram("commit_seconds", help, commits, seconds)?;
    let blocks = (&metrics.block_bytes_buckets[..], metrics.bytes as f64);
    page.histogram("block_bytes", "sizes of the blocks written", blocks, |n| (256_u64 << n) as f64)
}

fn of_peers(page: &mut Page<'_>, traffic: &[PeerTraffic]) -> fmt::Result {
    type Value = fn(&PeerTraffic) -> u64;
    let rows: [(&str, &str, MetricType, Value); 8] = [
        ("peer_connected", "1 if the stream to the peer is connected", MetricType::Gauge, |t| {
            t.connected.into()
        }),
        ("peer_queue_bytes", "bytes that wait to be sent to the peer", MetricType::Gauge, |t| t.queue_bytes),
        ("peer_sent", "messages sent", MetricType::Counter, |t| t.sent),
        ("peer_sent_bytes", "bytes sent", MetricType::Counter, |t| t.sent_bytes),
        ("peer_dropped", "messages dropped", MetricType::Counter, |t| t.dropped),
        ("peer_received", "messages received", MetricType::Counter, |t| t.received),
        ("peer_received_bytes", "bytes received", MetricType::Counter, |t| t.received_bytes),
        ("peer_reconnects", "times that the stream was reconnected", MetricType::Counter, |t| t.reconnects),
    ];
    for (name, help, kind, value) in rows {
        let values: Vec<_> = traffic.iter().map(|t| (t.node.to_string(), value(t))).collect();
        page.family(name, help, "node", kind, &values)?;
    }
    Ok(())
}

struct Page<'e> {
    encoder: DescriptorEncoder<'e>,
}

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.gauge_f64(name, help, value as f64)
    }

    fn gauge_f64(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    /// Counts per bucket, and the sum of all values. `bound` is the upper bound of a bucket; the last bucket
    /// has none.
    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        (counts, sum): (&[u64], f64),
        bound: impl Fn(usize) -> f64,
    ) -> fmt::Result {
        let bound = |n| if n + 1 == counts.len() { f64::INFINITY } else { bound(n) };
        let buckets: Vec<(f64, u64)> = counts.iter().enumerate().map(|(n, c)| (bound(n), *c)).collect();
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)
    }

    /// One value per label.
    fn family(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        kind: MetricType,
        values: &[(String, u64)],
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (of, value) in values {
            let labels = [(label, of.as_str())];
            let one = metric.encode_family(&labels)?;
            match kind {
                MetricType::Counter => ConstCounter::new(*value).encode(one)?,
                _ => ConstGauge::new(*value as f64).encode(one)?,
            }
        }
        Ok(())
    }
}
