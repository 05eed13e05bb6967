//! A log over the network.

use crate::convert::errors::raise;
use crate::convert::input::BatchLimit;
use crate::convert::{input, values};
use crate::handles::closes::{Closes, closes};
use crate::handles::log::build;
use crate::handles::logs::ranges;
use crate::handles::options;
use crate::handles::producer::Producer;
use crate::handles::reader::{Reader, Stream, batches, start};
use crate::runtime::asyncio_bridge::{drive_result, none, running_loop};
use crate::runtime::close_flag::CloseFlag;
use crate::runtime::fork::Kept;
use crate::runtime::reader_lease::Source;
use crate::runtime::wait;
use crate::runtime::wait::Limit;
use crate::runtime::{notices, tokio_runtime};
use chiplog::{Appended, Batch, Error, ErrorKind, Index, Result, Start};
use chiplog_net::client;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyString};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// A log over the network: finds the leader and follows its changes.
///
/// `Client(servers, options=None)` connects to the cluster that `servers`, an iterable of "host:port", belong to:
/// one that answers is enough. `options`: `ClientOptions`, None: the defaults. Blocks for up to
/// `ClientOptions.timeout` seconds, without the GIL; Ctrl-C ends the wait. After a second it logs a warning with the
/// reason.
///
/// Raises `TimeoutError`, `UnavailableError`: none answered in time; `UnauthenticatedError`,
/// `PermissionDeniedError`: the token; `NotFoundError`: they have no log of that name; `UnsupportedError`: they run
/// an incompatible version; `InvalidArgumentError`, `TypeError`: no address, an option, or servers of different
/// logs.
///
/// Any number of threads may use it. In a forked child each call raises `ForkedError`. `with` and `async with`
/// close it.
/// Each call can take `ClientOptions.timeout` seconds with all its attempts.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Client {
    open: Kept<Open>,
    runtime: Handle,
}

struct Open {
    client: client::Client,
    close_flag: Arc<CloseFlag>,
}

/// The addresses of a call. A single text is refused because it is an iterable of its letters.
pub(crate) fn servers(servers: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if servers.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("servers must be a list of 'host:port', not one text"));
    }
    input::texts(servers)
}

fn info(py: Python<'_>, info: client::RemoteInfo) -> PyResult<Py<PyAny>> {
    Ok(values::remote_info(py, &info)?.unbind())
}

impl Client {
    fn around(client: client::Client, runtime: Handle) -> PyResult<Self> {
        let open = Open { client, close_flag: CloseFlag::of("client") };
        Ok(Self { open: Kept::new(open).map_err(raise)?, runtime })
    }

    /// Returns the client, and the flag that wakes calls that wait with it.
    fn open(&self) -> PyResult<(&client::Client, &Arc<CloseFlag>)> {
        let Open { client, close_flag } = self.open.get().map_err(raise)?;
        close_flag.check().map_err(raise)?;
        Ok((client, close_flag))
    }

    fn client(&self) -> PyResult<&client::Client> {
        self.open().map(|(client, _)| client)
    }

    /// Waits for a call.
    fn wait<T: Send>(&self, py: Python<'_>, call: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
        let (_, close_flag) = self.open()?;
        wait::to_the_end(py, Some(&self.runtime), close_flag.or(call))?.map_err(raise)
    }

    /// Starts a call for the running event loop.
    fn start<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl Future<Output = Result<T>> + Send + 'static,
        finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let close_flag = self.open()?.1.clone();
        drive_result(py, Some(self.runtime.clone()), async move { close_flag.or(call).await }, finish)
    }

    fn open_reader(&self, from: Start, follow: bool, given: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        let reader = self.client()?.reader_with(from, options::reader(given, follow)?);
        Reader::new(Source::Remote(Box::new(reader)), Some(self.runtime.clone()), None)
    }
}

/// The most batches of one call.
const TOGETHER_MAX: usize = 256;

/// Batches of several logs, to be appended together.
struct Together<'py> {
    /// The client of the first log, if there is one.
    first: Option<Bound<'py, Client>>,
    appends: Vec<(client::Client, Batch)>,
}

impl<'py> Together<'py> {
    /// Reads an iterable of pairs, up to what one call takes.
    ///
    /// # Errors
    /// `TooLarge`: it has more. `TypeError`: it is no iterable of pairs. `InvalidArgument`: a pair has no records.
    fn read(given: &Bound<'py, PyAny>, codec: &str) -> PyResult<Self> {
        let py = given.py();
        let (mut first, mut appends) = (None, Vec::new());
        for pair in given.try_iter()? {
            let pair = pair?;
            if appends.len() == TOGETHER_MAX {
                let what = format!(
                    "appends has more than {TOGETHER_MAX} pairs: append less together (the rest was not read)"
                );
                return Err(raise(Error::new(ErrorKind::TooLarge, what)));
            }
            let parts: PyResult<(Bound<'py, Client>, Bound<'py, PyAny>)> = pair.extract();
            let (client, records) = parts.map_err(|_| {
                let got = input::type_name(&pair);
                let what = format!(
                    "appends must have pairs of a chiplog.Client and an iterable of records, not {got}"
                );
                PyTypeError::new_err(what)
            })?;
            let of_log = client.get().client()?.clone();
            let limit =
                BatchLimit { bytes: of_log.batch_bytes_max(), option: "the servers' limit batch_bytes_max" };
            let records = input::records(&records, limit)?;
            let slices = input::slices(&records);
            let batch = py.detach(build(&slices, codec)?).map_err(raise)?;
            appends.push((of_log, batch));
            first.get_or_insert(client);
            py.check_signals()?;
        }
        Ok(Self { first, appends })
    }
}

async fn append_together(appends: Vec<(client::Client, Batch)>) -> Result<Vec<Appended>> {
    let pairs: Vec<_> = appends.iter().map(|(client, batch)| (client, batch)).collect();
    client::Client::append_together(&pairs).await
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (servers, options=None))]
    fn new(py: Python<'_>, servers: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let (servers, options) = (self::servers(servers)?, options::client(options)?);
        notices::ask(py)?;
        let runtime = tokio_runtime::handle().map_err(raise)?;
        let connected = client::Client::connect(servers, options);
        let client = wait::to_the_end(py, Some(&runtime), connected)?.map_err(raise)?;
        Self::around(client, runtime)
    }

    /// Connects. When awaited, gives the `Client`.
    ///
    /// `servers` and `options` are those of `Client`, and so is what it raises. Does not block. `RuntimeError`: no
    /// event loop runs on this thread.
    #[staticmethod]
    #[pyo3(signature = (servers, options=None))]
    fn connect_async(
        py: Python<'_>,
        servers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (servers, options) = (self::servers(servers)?, options::client(options)?);
        notices::ask(py)?;
        let runtime = tokio_runtime::handle().map_err(raise)?;
        let inside = runtime.clone();
        drive_result(py, Some(runtime), client::Client::connect(servers, options), move |py, client| {
            Ok(Py::new(py, Self::around(client, inside)?)?.into_any())
        })
    }

    /// Opens a producer: it collects records and appends them, by default exactly once. Returns a `Producer`.
    ///
    /// `options`: `ProducerOptions`, None: the defaults. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout` seconds;
    /// `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`; `InvalidArgumentError`,
    /// `TypeError`: an option.
    #[pyo3(signature = (options=None))]
    fn producer(&self, py: Python<'_>, options: Option<&Bound<'_, PyAny>>) -> PyResult<Producer> {
        let (client, exit_timeout) = (self.client()?, options::exit_timeout(options)?);
        let producer = self.wait(py, client.producer(options::producer(options)?))?;
        Producer::new(py, producer, self.runtime.clone(), exit_timeout)
    }

    /// Opens a producer. When awaited, gives the `Producer`.
    ///
    /// `options` are those of `producer`, and so is what it raises. Does not block. `RuntimeError`: no event loop
    /// runs on this thread.
    #[pyo3(signature = (options=None))]
    fn producer_async(&self, py: Python<'_>, options: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let (client, exit_timeout) = (self.client()?.clone(), options::exit_timeout(options)?);
        let (options, runtime) = (options::producer(options)?, self.runtime.clone());
        self.start(py, async move { client.producer(options).await }, move |py, producer| {
            Ok(Py::new(py, Producer::new(py, producer, runtime, exit_timeout)?)?.into_any())
        })
    }

    /// Reads from `start` on, and waits at the end for new records unless `follow` is False. Returns a `Reader`.
    ///
    /// `start`: an index from 1, a `Start`, or None: the first record. `options`: `ReaderOptions`, None: the
    /// defaults. Does not block: it connects at the first read, which raises errors about `start`.
    ///
    /// Raises `InvalidArgumentError`, `TypeError`: an argument or an option; `ClosedError`.
    #[pyo3(signature = (start=None, options=None, *, follow=true))]
    fn reader(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
        follow: bool,
    ) -> PyResult<Reader> {
        self.open_reader(self::start(start, Start::First)?, follow, options)
    }

    /// Reads from `start` on. Returns a `Reader` that ends at the end of the log.
    ///
    /// `start`: an index from 1, a `Start`, or None: the first record. `options`: `ReaderOptions`, None: the
    /// defaults. Does not block. Raises what `reader` does.
    #[pyo3(signature = (start=None, options=None))]
    fn read(&self, start: Option<&Bound<'_, PyAny>>, options: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        self.open_reader(self::start(start, Start::First)?, false, options)
    }

    /// Reads from `start` on, and waits at the end for new records. Returns a `Reader`.
    ///
    /// Without `start` it begins at the end: existing records are not read. `Reader.start` is the index of its
    /// first record.
    ///
    /// `start`: an index from 1, a `Start`, or None: the next record to be appended, as of the first read.
    /// `options`: `ReaderOptions`, None: the defaults. Does not block. Raises what `reader` does.
    #[pyo3(signature = (start=None, options=None))]
    fn tail(&self, start: Option<&Bound<'_, PyAny>>, options: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        self.open_reader(self::start(start, Start::Next)?, true, options)
    }

    /// Reads in batches from `start` on. Returns a `Stream` of `Batch`.
    ///
    /// `start`: an index from 1, a `Start`, or None: the first record. `options`: `ReaderOptions`, None: the
    /// defaults. `follow`: whether it waits at the end for new records; if not, it ends there. Does not block.
    /// Raises what `reader` does.
    #[pyo3(signature = (start=None, options=None, *, follow=false))]
    fn batches(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
        follow: bool,
    ) -> PyResult<Stream> {
        batches(py, self.open_reader(self::start(start, Start::First)?, follow, options)?)
    }

    /// Returns `RemoteInfo`: the state of the log, including everything that was acknowledged before the call.
    ///
    /// `stale`: as any replica knows it, without a majority. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout` seconds;
    /// `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`.
    #[pyo3(signature = (*, stale=false))]
    fn info<'py>(&self, py: Python<'py>, stale: bool) -> PyResult<Bound<'py, PyAny>> {
        let client = self.client()?;
        let info = if stale { self.wait(py, client.info_stale()) } else { self.wait(py, client.info()) };
        values::remote_info(py, &info?)
    }

    /// `info`, to be awaited: gives `RemoteInfo`.
    ///
    /// `stale` is that of `info`, and so is what it raises. Does not block. `RuntimeError`: no event loop runs on this
    /// thread.
    #[pyo3(signature = (*, stale=false))]
    fn info_async(&self, py: Python<'_>, stale: bool) -> PyResult<Py<PyAny>> {
        let client = self.client()?.clone();
        let call = async move { if stale { client.info_stale().await } else { client.info().await } };
        self.start(py, call, info)
    }

    /// Discards all records below `first`, an index from 1. Returns None.
    ///
    /// A `first` beyond the end moves the log's indexes forward for good: the log is empty then, and the next
    /// record gets the index `first`. `info().last + 1` empties the log without skipping an index. Blocks, without
    /// the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout` seconds;
    /// `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`; `InvalidArgumentError`,
    /// `TypeError`: `first`. Repeating the call does no harm.
    fn discard(&self, py: Python<'_>, #[pyo3(from_py_with = input::first)] first: u64) -> PyResult<()> {
        self.wait(py, self.client()?.discard(Index(first)))
    }

    /// `discard`, to be awaited: gives None once all records below `first`, an index from 1, are discarded.
    ///
    /// Raises what `discard` does. Does not block. `RuntimeError`: no event loop runs on this thread.
    fn discard_async(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = input::first)] first: u64,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client()?.clone();
        self.start(py, async move { client.discard(Index(first)).await }, none)
    }

    /// Connects to another log of the same servers, with the same options. Returns a `Client`.
    ///
    /// `name`: the log's name, "": the log "default". Such clients share one connection to each server for calls, and
    /// those for appends. A reader has one of its own. A producer that shares a connection ends its stream when it was
    /// idle for a second, and opens another one for its next record. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `NotFoundError`: no log of that name; `TimeoutError`, `UnavailableError`, `UnauthenticatedError`,
    /// `PermissionDeniedError`, `ClosedError`.
    fn of_log(&self, py: Python<'_>, name: &str) -> PyResult<Self> {
        let client = self.wait(py, self.client()?.of_log(name))?;
        Self::around(client, self.runtime.clone())
    }

    /// Connects to another log of the same servers. When awaited, gives the `Client`.
    ///
    /// `name` is that of `of_log`, and so is what it raises. Does not block. `RuntimeError`: no event loop runs on this
    /// thread.
    fn of_log_async(&self, py: Python<'_>, name: String) -> PyResult<Py<PyAny>> {
        let (client, runtime) = (self.client()?.clone(), self.runtime.clone());
        self.start(py, async move { client.of_log(name).await }, move |py, client| {
            Ok(Py::new(py, Self::around(client, runtime)?)?.into_any())
        })
    }

    /// Creates a named log on the servers. Returns `NamedLog` once it can be appended to.
    ///
    /// `of_log(name)` then connects to it. `name` is 1 to 249 of the characters
    /// `A-Z a-z 0-9 . _ -`, does not begin with `_`, and can end with `/` and a partition's number. `beside`: a log in
    /// whose group it is created. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `AlreadyExistsError`, also if the answer to a first attempt was lost; `InvalidArgumentError`: the name;
    /// `NotFoundError`: `beside`; `FullError`; `UnsupportedError`: the servers keep no named logs; `TimeoutError`,
    /// `UnavailableError`, `UnauthenticatedError`, `PermissionDeniedError`, `ClosedError`.
    #[pyo3(signature = (name, *, beside=None))]
    fn create_log<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        beside: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let client = self.client()?;
        let created = match beside {
            Some(other) => self.wait(py, client.create_log_beside(name, other)),
            None => self.wait(py, client.create_log(name)),
        };
        values::named_log(py, &created?)
    }

    /// Appends a batch to each of several named logs of servers, all or none. Returns a list of ranges.
    ///
    /// No crash and no copy of the group separates them; readers of two of the logs can see one a moment before the
    /// other. `appends`: an iterable of up to 256 pairs, a `Client` of a log (see `of_log`) and an iterable of records,
    /// bytes or objects with a buffer, at least one; a log may occur more than once. The logs are of one group of the
    /// same servers (see `create_log`). `codec`: the compression, "none", "lz4" or "zstd". The ranges are those of the
    /// records' indexes, in the order of `appends`. The batches are appended at most once: an attempt without an
    /// outcome is not repeated. Blocks for up to `ClientOptions.timeout` or `attempt_timeout` seconds of the first
    /// client, the longer one, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `UnavailableError`, `TimeoutError`: the batches MAY BE IN THE LOGS: if you append them again, they can be
    /// there twice. Wait some seconds, because a server can still have the request, and read the ends of the logs: all
    /// are there, or none. The same holds after Ctrl-C and `ClosedError` during the call. `NotFoundError`, `SealedError`:
    /// one of the logs takes no appends; `NotLeaderError`: no leader of the group answered in time; `BusyError`,
    /// `FullError`, `TooLargeError`, `UnsupportedError` (the leader runs an earlier version), `TypeError`,
    /// `UnauthenticatedError`, `PermissionDeniedError`, `InvalidArgumentError` (an argument, or logs of different
    /// groups): nothing was appended to any of them.
    #[staticmethod]
    #[pyo3(signature = (appends, codec="none"))]
    fn append_together<'py>(
        py: Python<'py>,
        appends: &Bound<'py, PyAny>,
        codec: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let Together { first, appends } = Together::read(appends, codec)?;
        let Some(first) = first else { return Ok(PyList::empty(py)) };
        let placed = first.get().wait(py, append_together(appends))?;
        ranges(py, &placed)
    }

    /// `append_together`, to be awaited: gives the list of ranges once all records are stored.
    ///
    /// `appends`, `codec`: as for `append_together`, of at least one pair. Does not block, except for compression, without
    /// the GIL. A cancelled task does not know whether the records are appended.
    ///
    /// Raises what `append_together` does. `RuntimeError`: no event loop runs on this thread; then nothing is appended.
    #[staticmethod]
    #[pyo3(signature = (appends, codec="none"))]
    fn append_together_async(py: Python<'_>, appends: &Bound<'_, PyAny>, codec: &str) -> PyResult<Py<PyAny>> {
        running_loop(py)?; // without a loop nothing is read
        let Together { first, appends } = Together::read(appends, codec)?;
        let none = || Error::new(ErrorKind::InvalidArgument, "appends has no pair; it needs at least one");
        let first = first.ok_or_else(|| raise(none()))?;
        let finish = |py: Python<'_>, placed: Vec<Appended>| Ok(ranges(py, &placed)?.into_any().unbind());
        first.get().start(py, append_together(appends), finish)
    }

    /// Deletes a named log of the servers with all its records. Returns None.
    ///
    /// `name`: the log's name. Its producers and readers get `NotFoundError`. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `NotFoundError`, also if the answer to a first attempt was lost; otherwise what `create_log` does.
    fn delete_log(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.wait(py, self.client()?.delete_log(name))
    }

    /// Seals a named log of the servers: it takes no more appends, its records stay. Returns None.
    ///
    /// `name`: the log's name. Blocks, without the GIL; Ctrl-C ends the wait. Repeating the call does no harm.
    ///
    /// Raises `NotFoundError`; otherwise what `create_log` does.
    fn seal_log(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.wait(py, self.client()?.seal_log(name))
    }

    /// Returns a list of `NamedLog`, by name: the named logs of the servers whose names begin with `prefix`.
    ///
    /// Blocks, without the GIL; Ctrl-C ends the wait. Raises what `create_log` does.
    #[pyo3(signature = (prefix=""))]
    fn list_logs<'py>(&self, py: Python<'py>, prefix: &str) -> PyResult<Bound<'py, PyList>> {
        let logs = self.wait(py, self.client()?.list_logs(prefix))?;
        values::named_logs(py, &logs)
    }

    /// Returns the options that are set for the log, a dict of names and values, as its leader knows them.
    ///
    /// Names and units: see `Log.set_log_options`. For an option that is not in it the leader's own applies. Blocks,
    /// without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `UnsupportedError`: the log has an option that this version does not know; otherwise what `info` does.
    fn log_options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let options = self.wait(py, self.client()?.log_options())?;
        values::log_options(py, &options)
    }

    /// Sets options of the log, all changes at once or none, and waits until that is committed. Returns None.
    ///
    /// `changes`: a mapping of names to values, as for `Log.set_log_options`; a value of None unsets the option.
    /// Options that are not named do not change. A limit of retention below what the log holds discards records at
    /// once, for good. A named log has options of its own, see `Log.set_log_options`;
    /// the others are set by a client of its group: `ClientOptions(log="_group-1")` and so on. `timeout`: seconds,
    /// from 0, up to 600: how long the leader waits for members that have not yet confirmed that they support
    /// options of the log. Blocks for up to 5 seconds more, or for `ClientOptions.timeout` if that is longer, without
    /// the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `InvalidArgumentError`, `TypeError`: an option or its value; `UnsupportedError`: a member runs an
    /// earlier version; `NotFoundError`: the log was deleted; `UnauthenticatedError`, `PermissionDeniedError`: the
    /// token, which needs the role `admin`; `FullError`, `BusyError`; `ClosedError`: nothing was changed.
    /// `TimeoutError`, `UnavailableError`: the change may or may not take effect. Repeating the call does no harm.
    #[pyo3(signature = (changes, timeout=10.0))]
    fn set_log_options(&self, py: Python<'_>, changes: &Bound<'_, PyMapping>, timeout: f64) -> PyResult<()> {
        let (changes, timeout) = (options::log_options(changes)?, wait::timeout(timeout)?);
        self.wait(py, self.client()?.set_log_options(&changes, timeout))
    }

    /// Opens a session, for a producer that continues in it after a restart. Returns its id.
    ///
    /// Pass `ProducerOptions(session=(id, 1))` first. After a restart pass the number of the first batch that is
    /// not known to be in the log. A session that is not used for long expires. Blocks, without the GIL; Ctrl-C
    /// ends the wait.
    ///
    /// Raises `TooManySessionsError`; `TimeoutError`, `UnavailableError`: no answer within `ClientOptions.timeout`
    /// seconds; `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`.
    fn open_session(&self, py: Python<'_>) -> PyResult<u64> {
        self.wait(py, self.client()?.open_session()).map(|session| session.get())
    }

    /// Watches the state of the log and its changes. Returns a `Watch`, an iterator of `RemoteInfo`.
    ///
    /// `interval`: seconds, from 0: the shortest time between two changes. Does not block.
    ///
    /// Raises `InvalidArgumentError`, `TypeError`: `interval`; `ClosedError`.
    #[pyo3(signature = (interval=0.1))]
    fn watch(&self, interval: f64) -> PyResult<Watch> {
        let interval = wait::seconds("interval", Some(interval))?.unwrap_or(Duration::MAX);
        let (client, close_flag) = self.open()?;
        let watch = tokio::sync::Mutex::new(client.watch(interval));
        let watching = Watching { watch, close_flag: CloseFlag::of("watch"), of: close_flag.clone() };
        let watching = Kept::new(Arc::new(watching)).map_err(raise)?;
        Ok(Watch { watching, runtime: self.runtime.clone() })
    }

    /// The largest batch that the servers accept, in bytes, as last reported by them. Raises `ClosedError`.
    #[getter]
    fn batch_bytes_max(&self) -> PyResult<usize> {
        Ok(self.client()?.batch_bytes_max())
    }

    /// Closes the client and its watches: calls that wait with them raise `ClosedError`. Returns None.
    ///
    /// Producers and readers continue until they are closed themselves. Does not block. Any thread may call it,
    /// more than once.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_now(py)
    }
}

closes!(Client, "client", "servers and options");

impl Closes for Client {
    fn close_now(&self, _py: Python<'_>) -> PyResult<()> {
        self.open.get().map_err(raise)?.close_flag.close();
        Ok(())
    }
}

/// The state of a log, now and after each change: an iterator of `RemoteInfo`, also for `async for`.
///
/// Made by `Client.watch`. It never ends by itself; once the watch or its client is closed it raises `ClosedError`.
/// Any thread may use it, one at a time. `with` and `async with` close it.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Watch {
    watching: Kept<Arc<Watching>>,
    runtime: Handle,
}

struct Watching {
    watch: tokio::sync::Mutex<client::Watch>,
    close_flag: Arc<CloseFlag>,
    /// The client's flag.
    of: Arc<CloseFlag>,
}

impl Watching {
    async fn next(&self) -> Result<client::RemoteInfo> {
        self.of.or(self.close_flag.or(async { self.watch.lock().await.next().await })).await
    }
}

#[pymethods]
impl Watch {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.next(py, None)
    }

    /// Returns `RemoteInfo`: at once the first time, then after a change.
    ///
    /// `timeout`: seconds, from 0; None: no limit. Blocks, without the GIL; Ctrl-C ends the wait.
    ///
    /// Raises `TimeoutError`: nothing changed in time; `UnavailableError`: no server could be reached;
    /// `UnauthenticatedError`, `PermissionDeniedError`: the token; `ClosedError`; `InvalidArgumentError`,
    /// `TypeError`: `timeout`.
    #[pyo3(signature = (timeout=None))]
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let next = self.watching.get().map_err(raise)?.next();
        let info = wait::block_on(py, &Limit::new(timeout)?, Some(&self.runtime), next)?;
        let late = || raise(Error::new(ErrorKind::Timeout, "nothing changed in time"));
        values::remote_info(py, &info.ok_or_else(late)?.map_err(raise)?)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let watching = self.watching.get().map_err(raise)?.clone();
        drive_result(py, Some(self.runtime.clone()), async move { watching.next().await }, info)
    }

    /// Closes the watch; calls that wait with it raise `ClosedError`. Returns None.
    ///
    /// Does not block. Any thread may call it, more than once.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_now(py)
    }
}

closes!(Watch);

impl Closes for Watch {
    fn close_now(&self, _py: Python<'_>) -> PyResult<()> {
        self.watching.get().map_err(raise)?.close_flag.close();
        Ok(())
    }
}
