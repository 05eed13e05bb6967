//! Options from Python, `lib/chiplog/_options.py`. Each field that is not None replaces a default of the crates.
//!
//! Invariant: each field of a Python class is read here; a test passes an invalid value to each.

use crate::convert::errors::raise;
use crate::convert::input;
use crate::handles::unsent;
use chiplog::vault::Vault;
use chiplog::{
    Codec, Error, ErrorKind, Index, LogOption, Options, ReadMode, Sequence, SessionId, Start, Timestamp,
};
use chiplog_net::client::{ClientOptions, ClientTls, ProducerOptions, ReadFrom, ReaderOptions, Secret};
use chiplog_net::follower::FollowerOptions;
#[cfg(feature = "object-store")]
use chiplog_tier::{ObjectVault, VaultOptions};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyMapping;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

type Given<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// Returns the argument `name` if it is an object of class `class`.
fn of_class<'a, 'py>(given: Given<'a, 'py>, name: &str, class: &str) -> PyResult<Given<'a, 'py>> {
    let Some(given) = given else { return Ok(None) };
    if given.is_instance(&given.py().import("chiplog._options")?.getattr(class)?)? {
        return Ok(Some(given));
    }
    let got = input::type_name(given);
    Err(PyTypeError::new_err(format!("{name} is a chiplog.{class}, not {got}")))
}

fn extract<'a, 'py, T: FromPyObject<'a, 'py>>(value: &'a Bound<'py, PyAny>) -> PyResult<T> {
    value.extract().map_err(Into::into)
}

/// Returns the field, if it is set.
fn field<'py, T>(options: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    let value = options.getattr(name)?;
    if value.is_none() {
        return Ok(None);
    }
    extract(&value).map(Some).map_err(|error| {
        if error.is_instance_of::<PyTypeError>(options.py()) {
            let (got, takes) = (input::type_name(&value), takes(options, name));
            return PyTypeError::new_err(format!("option {name} is of type {got}; it takes {takes}"));
        }
        // The value of other types is not shown: it may be a secret.
        if value.extract::<f64>().is_ok() {
            refused(options, name, &value)
        } else {
            refused(options, name, &"not usable")
        }
    })
}

/// The error for an option with an invalid value.
fn refused(options: &Bound<'_, PyAny>, name: &str, value: &dyn Display) -> PyErr {
    invalid(format!("option {name} is {value}; it takes {}", takes(options, name)))
}

/// The valid values of an option, as its class describes them.
fn takes(options: &Bound<'_, PyAny>, name: &str) -> String {
    let type_of = || {
        let field = options.getattr("__dataclass_fields__")?.get_item(name)?;
        field.getattr("metadata")?.get_item("takes")?.extract::<String>()
    };
    type_of().unwrap_or_else(|_| "something else".into())
}

fn invalid(what: String) -> PyErr {
    raise(Error::new(ErrorKind::InvalidArgument, what))
}

/// Options of the log to set, or with None to unset.
///
/// # Errors
/// `InvalidArgument`: an unknown name, a value that is not a number in range, or no option at all. `TypeError`.
pub(crate) fn log_options(changes: &Bound<'_, PyMapping>) -> PyResult<Vec<(LogOption, Option<u64>)>> {
    if changes.is_empty()? {
        return Err(invalid("changes is empty: name at least one option of the log".into()));
    }
    let named = |item: Bound<'_, PyAny>| {
        let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let given: String = name.extract().map_err(|_: PyErr| {
            PyTypeError::new_err(format!(
                "the name of an option of the log must be a str, not {}",
                input::type_name(&name)
            ))
        })?;
        let option = LogOption::from_name(&given).ok_or_else(|| {
            let all = LogOption::ALL.map(LogOption::name).join(", ");
            invalid(format!("the log has no option {given:?}; its options are {all}"))
        })?;
        let value = if value.is_none() {
            None
        } else {
            Some(input::whole(&value, &format!("option {given} of the log"), "None, or a number from 0")?)
        };
        Ok((option, value))
    };
    changes.items()?.iter().map(named).collect()
}

/// A time in seconds.
struct Seconds(Duration);

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let seconds: f64 = value.extract()?;
        let time = Duration::try_from_secs_f64(seconds);
        time.map(Self).map_err(|_| PyValueError::new_err("not a time in seconds"))
    }
}

macro_rules! take {
    ($from:expr => $to:expr; $($name:ident),* $(,)?) => {
        $(if let Some(value) = field($from, stringify!($name))? {
            $to.$name = value;
        })*
    };
}

macro_rules! take_times {
    ($from:expr => $to:expr; $($name:ident),* $(,)?) => {
        $(if let Some(Seconds(value)) = field($from, stringify!($name))? {
            $to.$name = value;
        })*
    };
}

/// Opens the object store at a location.
#[cfg(feature = "object-store")]
fn vault(location: &str) -> PyResult<Arc<dyn Vault>> {
    match ObjectVault::open(location, VaultOptions::default()) {
        Ok(vault) => Ok(Arc::new(vault)),
        Err(error) => {
            Err(raise(Error::with_source(error.kind(), format!("option object_store: {error}"), &error)))
        }
    }
}

#[cfg(not(feature = "object-store"))]
fn vault(_: &str) -> PyResult<Arc<dyn Vault>> {
    Err(invalid(
        "option object_store is set, but this package was built without the feature object-store".into(),
    ))
}

/// `chiplog.Options`.
pub(crate) fn log(given: Given<'_, '_>) -> PyResult<Options> {
    let Some(from) = of_class(given, "options", "Options")? else { return Ok(Options::default()) };
    // Limits that depend on the segment size are lowered with it.
    let segment_bytes: Option<u32> = field(from, "segment_bytes")?;
    let mut to = segment_bytes.map_or_else(Options::default, Options::with_segment_bytes);
    take!(from => to; create, record_bytes_max, batch_bytes_max, block_bytes_max, queue_bytes_max,
        queue_appends_max, prefetch_bytes, sessions_max, session_window, object_bytes, cache_bytes,
        sorted_copies, slice_bytes, payload_slices);
    take_times!(from => to; queue_timeout, session_idle_max, object_delete_delay);
    to.capacity_bytes = field(from, "capacity_bytes")?;
    to.retention_bytes = field(from, "retention_bytes")?;
    to.retention_age = field(from, "retention_age")?.map(|Seconds(age)| age);
    if let Some(Seconds(pass)) = field(from, "object_scrub")? {
        to.object_scrub = (!pass.is_zero()).then_some(pass);
    }
    to.slice_interval = field(from, "slice_interval")?.map(|Seconds(interval)| interval);
    to.object_age = field(from, "object_age")?.map(|Seconds(age)| age);
    to.local_bytes = field(from, "local_bytes")?;
    to.fill_bytes = field(from, "fill_bytes")?;
    to.local_age = field(from, "local_age")?.map(|Seconds(age)| age);
    to.vault = field::<String>(from, "object_store")?.map(|location| vault(&location)).transpose()?;
    if let Some(mode) = field::<String>(from, "read_mode")? {
        to.read_mode = match &*mode {
            "map" => ReadMode::Map,
            "read" => ReadMode::Read,
            _ => return Err(refused(from, "read_mode", &format!("{mode:?}"))),
        };
    }
    Ok(to)
}

/// `chiplog.Tls`.
fn tls(from: &Bound<'_, PyAny>) -> PyResult<Option<ClientTls>> {
    let given = field::<Bound<'_, PyAny>>(from, "tls")?;
    let Some(tls) = of_class(given.as_ref(), "option tls", "Tls")? else { return Ok(None) };
    let missing = |what: &str| PyTypeError::new_err(format!("option tls: {what}"));
    let authority = field(tls, "authority")?.ok_or_else(|| missing("authority must be set"))?;
    let identity = match (field(tls, "certificate")?, field(tls, "key")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(missing("set certificate and key together, or neither")),
    };
    Ok(Some(ClientTls { authority, identity }))
}

/// `chiplog.ClientOptions`.
pub(crate) fn client(given: Given<'_, '_>) -> PyResult<ClientOptions> {
    let mut to = ClientOptions::default();
    let Some(from) = of_class(given, "options", "ClientOptions")? else { return Ok(to) };
    take!(from => to; log, window_bytes, token_in_plain_text);
    take_times!(from => to; timeout, attempt_timeout, connect_timeout, probe_timeout, backoff_min, backoff_max,
        keep_alive);
    to.tls = tls(from)?;
    to.token = field::<String>(from, "token")?.map(Secret::from);
    Ok(to)
}

/// Returns a codec by its name.
pub(crate) fn codec(name: &str) -> PyResult<Codec> {
    match name {
        "none" => Ok(Codec::None),
        "lz4" => Ok(Codec::Lz4),
        "zstd" => Ok(Codec::Zstd),
        _ => Err(invalid(format!("codec is {name:?}; it takes \"none\", \"lz4\" or \"zstd\""))),
    }
}

/// `chiplog.ProducerOptions`.
pub(crate) fn producer(given: Given<'_, '_>) -> PyResult<ProducerOptions> {
    let mut to = ProducerOptions::default();
    let Some(from) = of_class(given, "options", "ProducerOptions")? else { return Ok(to) };
    take!(from => to; batch_bytes, batch_records, buffer_bytes, inflight_max, exactly_once);
    take_times!(from => to; linger, block_max, request_timeout, delivery_timeout, full_max);
    if let Some(name) = field::<String>(from, "codec")? {
        to.codec = codec(&name)?;
    }
    to.session = field::<(u64, u64)>(from, "session")?.map(|(id, next)| (SessionId(id), Sequence(next)));
    Ok(to)
}

/// `chiplog.ProducerOptions.exit_timeout`, which only this package has.
pub(crate) fn exit_timeout(given: Given<'_, '_>) -> PyResult<Duration> {
    let Some(from) = of_class(given, "options", "ProducerOptions")? else { return Ok(unsent::EXIT_TIMEOUT) };
    Ok(field(from, "exit_timeout")?.map_or(unsent::EXIT_TIMEOUT, |Seconds(time)| time))
}

/// `chiplog.ReaderOptions`. The call that reads decides whether it waits at the end.
pub(crate) fn reader(given: Given<'_, '_>, follow: bool) -> PyResult<ReaderOptions> {
    let mut to = ReaderOptions::default();
    to.follow = follow;
    let Some(from) = of_class(given, "options", "ReaderOptions")? else { return Ok(to) };
    take_times!(from => to; keep_alive, timeout);
    if let Some(index) = field(from, "min_index")? {
        to.min_index = Index(index);
    }
    let zone: Option<String> = field(from, "zone")?;
    let leader = field::<bool>(from, "leader")?.unwrap_or(false);
    to.from = match (leader, zone) {
        (true, Some(_)) => {
            return Err(invalid("options leader and zone: set one of them, not both".into()));
        }
        (true, None) => ReadFrom::Leader,
        (false, Some(zone)) => ReadFrom::Nearest(zone),
        (false, None) => ReadFrom::Any,
    };
    Ok(to)
}

/// `chiplog.FollowerOptions`.
pub(crate) fn follower(given: Given<'_, '_>) -> PyResult<FollowerOptions> {
    let mut to = FollowerOptions::default();
    let Some(from) = of_class(given, "options", "FollowerOptions")? else { return Ok(to) };
    take!(from => to; log, served_objects, zone, window_bytes, token_in_plain_text);
    take_times!(from => to; open_timeout, keep_alive, compare_interval, connect_timeout, attempt_timeout,
        probe_timeout, backoff_min, backoff_max);
    let files = field::<Bound<'_, PyAny>>(from, "files")?;
    to.files = self::log(of_class(files.as_ref(), "option files", "Options")?)?;
    to.tls = tls(from)?;
    to.token = field::<String>(from, "token")?.map(Secret::from);
    Ok(to)
}

/// A start: an index, or a `chiplog.Start`.
pub(crate) fn start(from: &Bound<'_, PyAny>) -> PyResult<Start> {
    match input::whole(from, "start", input::INDEX) {
        Err(error) if error.is_instance_of::<PyTypeError>(from.py()) => {}
        index => return index.map(|index| Start::Index(Index(index))),
    }
    let unknown = |_| {
        let got = input::type_name(from);
        PyTypeError::new_err(format!("start must be an index or a chiplog.Start, not {got}"))
    };
    let kind: String = from.getattr("kind").and_then(|kind| kind.extract()).map_err(unknown)?;
    let given = from.getattr("value").map_err(unknown)?;
    let value = |what: &str| input::whole(&given, &format!("Start.{kind}"), what);
    match &*kind {
        "first" => Ok(Start::First),
        "next" => Ok(Start::Next),
        "index" => Ok(Start::Index(Index(value(input::INDEX)?))),
        "last" => Ok(Start::Last(value("a number of records, from 0")?)),
        "since" => Ok(Start::Timestamp(Timestamp(value("milliseconds since 1970, from 0")?))),
        _ => Err(invalid(format!("unknown kind of start: {kind:?}"))),
    }
}
