//! The log's state as the values of `lib/chiplog/_values.py`.

use crate::convert::errors;
use chiplog::cluster::Member;
use chiplog::metrics::Metrics;
use chiplog::{Error, LogInfo, LogOptions, Options, ReadMode, Status};
use chiplog_net::client::{Closed, RemoteInfo};
use chiplog_net::follower::{FollowerEvent, FollowerStatus};
use chiplog_net::wire::ids::to_hex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

type Value<'py> = PyResult<Bound<'py, PyAny>>;

/// Makes an object of class `name` with these fields.
fn make<'py>(py: Python<'py>, name: &str, fields: &Bound<'py, PyDict>) -> Value<'py> {
    made_in(py, "chiplog._values", name, fields)
}

fn made_in<'py>(py: Python<'py>, module: &str, name: &str, fields: &Bound<'py, PyDict>) -> Value<'py> {
    py.import(module)?.getattr(name)?.call((), Some(fields))
}

macro_rules! fields {
    ($py:expr; $($name:ident = $value:expr),* $(,)?) => {{
        let fields = PyDict::new($py);
        $(fields.set_item(stringify!($name), $value)?;)*
        fields
    }};
}

fn error<'py>(py: Python<'py>, error: Option<&Error>) -> PyResult<Option<Bound<'py, PyAny>>> {
    error.map(|e| errors::value(py, e)).transpose()
}

/// An id as text; None: it is unknown.
fn id(id: u128) -> Option<String> {
    (id != 0).then(|| to_hex(id))
}

pub(crate) fn status<'py>(py: Python<'py>, status: &Status) -> Value<'py> {
    let fields = fields!(py;
        log_id = to_hex(status.log_id.get()),
        directory_id = to_hex(status.directory_id.get()),
        follows = status.follows,
        first_index = status.first_index.get(),
        last_index = status.last_index.get(),
        durable_index = status.durable_index.get(),
        bytes_used = status.bytes_used,
        bytes_capacity = status.bytes_capacity,
        segments = status.segments,
        sessions = status.sessions,
        last_timestamp = status.last_timestamp.get(),
    );
    make(py, "Status", &fields)
}

/// The options in force, each with its value.
pub(crate) fn options<'py>(py: Python<'py>, options: &Options) -> Value<'py> {
    let fields = fields!(py;
        create = options.create,
        segment_bytes = options.segment_bytes,
        capacity_bytes = options.capacity_bytes,
        record_bytes_max = options.record_bytes_max,
        batch_bytes_max = options.batch_bytes_max,
        block_bytes_max = options.block_bytes_max,
        queue_bytes_max = options.queue_bytes_max,
        queue_appends_max = options.queue_appends_max,
        queue_timeout = options.queue_timeout.as_secs_f64(),
        read_mode = if options.read_mode == ReadMode::Read { "read" } else { "map" },
        prefetch_bytes = options.prefetch_bytes,
        retention_bytes = options.retention_bytes,
        retention_age = options.retention_age.map(|age| age.as_secs_f64()),
        sessions_max = options.sessions_max,
        session_window = options.session_window,
        session_idle_max = options.session_idle_max.as_secs_f64(),
        object_store = py.None(), // the vault does not tell its location
        object_bytes = options.object_bytes,
        object_age = options.object_age.map(|age| age.as_secs_f64()),
        local_bytes = options.local_bytes,
        local_age = options.local_age.map(|age| age.as_secs_f64()),
        cache_bytes = options.cache_bytes,
        fill_bytes = options.fill_bytes,
        object_delete_delay = options.object_delete_delay.as_secs_f64(),
        object_scrub = options.object_scrub.map_or(0.0, |pass| pass.as_secs_f64()),
        slice_interval = options.slice_interval.map(|interval| interval.as_secs_f64()),
        slice_bytes = options.slice_bytes,
        payload_slices = options.payload_slices,
        sorted_copies = options.sorted_copies,
    );
    made_in(py, "chiplog._options", "Options", &fields)
}

/// The members of a cluster; None: it is a log on its own.
pub(crate) fn members<'py>(
    py: Python<'py>,
    members: Option<Vec<Member>>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let Some(members) = members else { return Ok(None) };
    let list = PyList::empty(py);
    for member in members {
        let fields = fields!(py;
            node = member.node.get(),
            directory = id(member.directory.get()),
            address = member.address.as_str(),
            is_voter = member.is_voter(),
            is_leaving = member.is_leaving(),
        );
        list.append(make(py, "Member", &fields)?)?;
    }
    Ok(Some(list))
}

/// The options that are set for the log, by their names.
pub(crate) fn log_options<'py>(py: Python<'py>, options: &LogOptions) -> PyResult<Bound<'py, PyDict>> {
    let named = PyDict::new(py);
    for (option, value) in options.iter() {
        named.set_item(option.name(), value)?;
    }
    Ok(named)
}

pub(crate) fn metrics<'py>(py: Python<'py>, metrics: &Metrics) -> Value<'py> {
    let fields = fields!(py;
        appends = metrics.appends,
        records = metrics.records,
        blocks = metrics.blocks,
        bytes = metrics.bytes,
        syncs = metrics.syncs,
        sync_seconds_total = metrics.sync_micros_total as f64 / 1e6,
        sync_seconds_max = metrics.sync_micros_max as f64 / 1e6,
        sync_seconds_p50 = metrics.sync_latency(0.5).as_secs_f64(),
        sync_seconds_p99 = metrics.sync_latency(0.99).as_secs_f64(),
        rolls = metrics.rolls,
        scrubbed_bytes = metrics.scrubbed_bytes,
        damaged = metrics.damaged,
        repaired = metrics.repaired,
        truncated_records = metrics.truncated_records,
        discarded_records = metrics.discarded_records,
        syncing_seconds = metrics.syncing.as_secs_f64(),
        queue_appends = metrics.queue_appends,
        queue_bytes = metrics.queue_bytes,
        taken_bytes = metrics.taken_bytes,
        uncommitted_bytes = metrics.uncommitted_bytes,
        stored_objects = metrics.stored_objects,
        stored_bytes = metrics.stored_bytes,
        object_failures = metrics.object_failures,
        fetched_bytes = metrics.fetched_bytes,
        unstored_bytes = metrics.unstored_bytes,
        cached_bytes = metrics.cached_bytes,
        stored_index = metrics.stored_index,
        repaired_objects = metrics.repaired_objects,
        damaged_objects = metrics.damaged_objects,
        stored_slices = metrics.stored_slices,
        sliced_bytes = metrics.sliced_bytes,
        slice_failures = metrics.slice_failures,
        unsliced_bytes = metrics.unsliced_bytes,
        sliced_index = metrics.sliced_index,
        stored_payloads = metrics.stored_payloads,
        payload_bytes = metrics.payload_bytes,
        payload_failures = metrics.payload_failures,
        unstored_confirmations = metrics.unstored_confirmations,
        filled_bytes = metrics.filled_bytes,
        fill_failures = metrics.fill_failures,
    );
    make(py, "Metrics", &fields)
}

pub(crate) fn remote_info<'py>(py: Python<'py>, info: &RemoteInfo) -> Value<'py> {
    let fields = fields!(py;
        log_id = id(info.log_id.get()),
        first = info.first.get(),
        last = info.last.get(),
        bytes_used = info.bytes_used,
        bytes_capacity = info.bytes_capacity,
        node = info.node.get(),
        leader = info.leader.map(|node| node.get()),
        leader_address = info.leader_address.as_deref(),
        first_local = info.first_local.map(|first| first.get()),
    );
    make(py, "RemoteInfo", &fields)
}

pub(crate) fn named_log<'py>(py: Python<'py>, log: &LogInfo) -> Value<'py> {
    let fields = fields!(py;
        name = log.name.as_str(),
        number = log.number.get(),
        log_id = id(log.log_id.get()),
        group = log.group,
        first_index = log.first_index.get(),
        last_index = log.last_index.get(),
        bytes_appended = log.bytes_appended,
        last_timestamp = log.last_timestamp.get(),
        sealed = log.sealed,
        elsewhere = log.elsewhere,
    );
    make(py, "NamedLog", &fields)
}

pub(crate) fn closed<'py>(py: Python<'py>, closed: &Closed) -> Value<'py> {
    let left = PyList::empty(py);
    for record in &closed.left {
        let fields = fields!(py; record = PyBytes::new(py, &record.record), in_doubt = record.in_doubt);
        left.append(make(py, "Unacknowledged", &fields)?)?;
    }
    let failed = error(py, closed.failed.as_ref())?;
    let fields = fields!(py; left = left.to_tuple(), failed = failed, untold = closed.untold);
    make(py, "Closed", &fields)
}

pub(crate) fn follower_status<'py>(py: Python<'py>, status: &FollowerStatus) -> Value<'py> {
    let fields = fields!(py;
        server = status.server.as_deref(),
        connected_seconds = status.connected_since.map(|since| since.elapsed().as_secs_f64()),
        first = status.first.get(),
        last = status.last.get(),
        source_last = status.source_last.get(),
        fed = status.fed,
        last_error = error(py, status.last_error.as_ref())?,
        stopped = error(py, status.stopped.as_ref())?,
        connects = status.connects,
        jumps = status.jumps,
        received_bytes = status.received_bytes,
        received_records = status.received_records,
        lag = status.lag(),
    );
    make(py, "FollowerStatus", &fields)
}

pub(crate) fn follower_event<'py>(py: Python<'py>, event: &FollowerEvent) -> Value<'py> {
    let fields = match event {
        FollowerEvent::Connected { server } => fields!(py; kind = "connected", server = server),
        FollowerEvent::Switched { from, to } => {
            fields!(py; kind = "switched", server = to, server_before = from)
        }
        FollowerEvent::Jumped { from, to } => {
            fields!(py; kind = "jumped", first = to.get(), due = from.get())
        }
        FollowerEvent::Discarded { first } => fields!(py; kind = "discarded", first = first.get()),
        FollowerEvent::Failed { server, error } => {
            fields!(py; kind = "failed", server = server.as_deref(), error = errors::value(py, error)?)
        }
        FollowerEvent::Stopped { error } => fields!(py; kind = "stopped", error = errors::value(py, error)?),
        FollowerEvent::Missed { events } => fields!(py; kind = "missed", missed = events),
        _ => fields!(py; kind = "other"),
    };
    make(py, "FollowerEvent", &fields)
}

pub(crate) fn named_logs<'py>(py: Python<'py>, logs: &[LogInfo]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for log in logs {
        list.append(named_log(py, log)?)?;
    }
    Ok(list)
}

/// The indexes of `count` records from `first` on.
pub(crate) fn range(py: Python<'_>, first: u64, count: u64) -> PyResult<Py<PyAny>> {
    Ok(py.import("builtins")?.getattr("range")?.call1((first, first + count))?.unbind())
}
