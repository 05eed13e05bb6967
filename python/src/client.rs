//! A log over the network.

use crate::courier::{Finish, drive, ready};
use crate::desk::Source;
use crate::ending::Ending;
use crate::errors::raise;
use crate::fork::Kept;
use crate::producer::Producer;
use crate::reader::{Reader, Stream, batches, not_pickled, start};
use crate::wait::{self, Limit};
use crate::{options, runtime, values};
use chiplog::{Error, ErrorKind, Index, Result, Start};
use chiplog_net::client;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// A log over the network: finds and follows the leader.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Client {
    open: Kept<Open>,
    runtime: Handle,
}

struct Open {
    client: client::Client,
    ending: Arc<Ending>,
}

/// The addresses of a call; one text would be taken for its letters.
pub(crate) fn servers(servers: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if servers.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("servers are a list of 'host:port', not one text"));
    }
    servers.try_iter()?.map(|server| server?.extract()).collect()
}

impl Client {
    fn around(client: client::Client, runtime: Handle) -> PyResult<Self> {
        let open = Open { client, ending: Ending::of("client") };
        Ok(Self { open: Kept::new(open).map_err(raise)?, runtime })
    }

    /// The client, and what wakes whoever waits with it.
    fn open(&self) -> PyResult<(&client::Client, &Arc<Ending>)> {
        let Open { client, ending } = self.open.get().map_err(raise)?;
        ending.check().map_err(raise)?;
        Ok((client, ending))
    }

    fn client(&self) -> PyResult<&client::Client> {
        self.open().map(|(client, _)| client)
    }

    /// Waits for a call.
    fn wait<T: Send>(&self, py: Python<'_>, call: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
        let (_, ending) = self.open()?;
        let done = wait::block_on(py, &Limit::none(), Some(&self.runtime), ending.or(call))?;
        done.ok_or_else(|| PyRuntimeError::new_err("the call ended without an answer"))?.map_err(raise)
    }

    fn open_reader(&self, from: Start, follow: bool, given: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        let reader = self.client()?.reader_with(from, options::reader(given, follow)?);
        Reader::new(Source::Remote(Box::new(reader)), Some(self.runtime.clone()), None)
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (servers, options=None))]
    fn new(py: Python<'_>, servers: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let (servers, options) = (self::servers(servers)?, options::client(options)?);
        let runtime = runtime::handle().map_err(raise)?;
        let connected = client::Client::connect(servers, options);
        let found = wait::block_on(py, &Limit::none(), Some(&runtime), connected)?;
        let late = || raise(Error::new(ErrorKind::Timeout, "no server answered"));
        Self::around(found.ok_or_else(late)?.map_err(raise)?, runtime)
    }

    /// Connects, to be awaited.
    #[staticmethod]
    #[pyo3(signature = (servers, options=None))]
    fn connect_async(
        py: Python<'_>,
        servers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (servers, options) = (self::servers(servers)?, options::client(options)?);
        let runtime = runtime::handle().map_err(raise)?;
        let inside = runtime.clone();
        drive(py, Some(runtime), async move {
            let found = client::Client::connect(servers, options).await;
            let finish: Finish =
                Box::new(move |py| Ok(Py::new(py, Self::around(found.map_err(raise)?, inside)?)?.into_any()));
            finish
        })
    }

    /// A producer: gathers records and appends them, by default once each.
    #[pyo3(signature = (options=None))]
    fn producer(&self, py: Python<'_>, options: Option<&Bound<'_, PyAny>>) -> PyResult<Producer> {
        let (client, options) = (self.client()?, options::producer(options)?);
        let producer = self.wait(py, client.producer(options))?;
        Producer::new(producer, self.runtime.clone())
    }

    /// A producer, to be awaited.
    #[pyo3(signature = (options=None))]
    fn producer_async(&self, py: Python<'_>, options: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let (client, ending) = self.open()?;
        let (client, ending, options) = (client.clone(), ending.clone(), options::producer(options)?);
        let runtime = self.runtime.clone();
        drive(py, Some(self.runtime.clone()), async move {
            let producer = ending.or(client.producer(options)).await;
            let finish: Finish = Box::new(move |py| {
                Ok(Py::new(py, Producer::new(producer.map_err(raise)?, runtime)?)?.into_any())
            });
            finish
        })
    }

    /// A reader from `start`, the first record if not given, that waits at the end unless `follow` is False.
    #[pyo3(signature = (start=None, options=None, *, follow=true))]
    fn reader(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
        follow: bool,
    ) -> PyResult<Reader> {
        self.open_reader(self::start(start, Start::First)?, follow, options)
    }

    /// Reads from `start`, the first record if not given, to the end there is when it comes there.
    #[pyo3(signature = (start=None, options=None))]
    fn read(&self, start: Option<&Bound<'_, PyAny>>, options: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        self.open_reader(self::start(start, Start::First)?, false, options)
    }

    /// Reads from `start`, the next record to come if not given, and waits at the end for more.
    #[pyo3(signature = (start=None, options=None))]
    fn tail(&self, start: Option<&Bound<'_, PyAny>>, options: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        self.open_reader(self::start(start, Start::Next)?, true, options)
    }

    /// Reads in batches from `start`, the first record if not given; waits at the end if it follows.
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

    /// How the log stands: with all that was acknowledged before; `stale`: as any replica knows it, without a majority.
    #[pyo3(signature = (*, stale=false))]
    fn info<'py>(&self, py: Python<'py>, stale: bool) -> PyResult<Bound<'py, PyAny>> {
        let client = self.client()?;
        let info = if stale { self.wait(py, client.info_stale()) } else { self.wait(py, client.info()) };
        values::remote_info(py, &info?)
    }

    /// How the log stands, to be awaited.
    #[pyo3(signature = (*, stale=false))]
    fn info_async(&self, py: Python<'_>, stale: bool) -> PyResult<Py<PyAny>> {
        let (client, ending) = self.open()?;
        let (client, ending) = (client.clone(), ending.clone());
        drive(py, Some(self.runtime.clone()), async move {
            let info = async { if stale { client.info_stale().await } else { client.info().await } };
            let info = ending.or(info).await;
            let finish: Finish =
                Box::new(move |py| Ok(values::remote_info(py, &info.map_err(raise)?)?.unbind()));
            finish
        })
    }

    /// Discards all records below `first`. A `first` beyond the end moves the log's numbers on for good: it is empty
    /// then, and the next record gets the index `first`. `info().last + 1` empties it and loses no number.
    fn discard(&self, py: Python<'_>, first: u64) -> PyResult<()> {
        self.wait(py, self.client()?.discard(Index(first)))
    }

    /// `discard`, to be awaited.
    fn discard_async(&self, py: Python<'_>, first: u64) -> PyResult<Py<PyAny>> {
        let client = self.client()?.clone();
        drive(py, Some(self.runtime.clone()), async move {
            let done = client.discard(Index(first)).await;
            let finish: Finish = Box::new(move |py| done.map(|()| py.None()).map_err(raise));
            finish
        })
    }

    /// Opens a session, for a producer that is to go on in it after a restart: its id.
    fn open_session(&self, py: Python<'_>) -> PyResult<u64> {
        self.wait(py, self.client()?.open_session()).map(|session| session.get())
    }

    /// How the log stands, now and whenever that changes: at most every `interval` seconds.
    #[pyo3(signature = (interval=0.1))]
    fn watch(&self, interval: f64) -> PyResult<Watch> {
        let interval = wait::timeout(Some(interval))?.unwrap_or(Duration::MAX);
        let (client, ending) = self.open()?;
        let watch = tokio::sync::Mutex::new(client.watch(interval));
        let watching = Watching { watch, ending: Ending::of("watch"), of: ending.clone() };
        let watching = Kept::new(Arc::new(watching)).map_err(raise)?;
        Ok(Watch { watching, runtime: self.runtime.clone() })
    }

    /// The largest batch that the servers take, in bytes.
    #[getter]
    fn batch_bytes_max(&self) -> PyResult<usize> {
        Ok(self.client()?.batch_bytes_max())
    }

    /// Ends its calls and watches: whoever waits is woken with `ClosedError`. From any thread. Producers and readers go on:
    /// they are closed by themselves.
    fn close(&self) -> PyResult<()> {
        self.open.get().map_err(raise)?.ending.close();
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close()
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        ready(py, Ok(slf.into_any().unbind()))
    }

    fn __aexit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        self.close()?;
        ready(py, Ok(py.None()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(not_pickled("client", "list of servers with its options"))
    }
}

/// How a log stands, now and whenever that changes.
#[pyclass(frozen, module = "chiplog")]
pub(crate) struct Watch {
    watching: Kept<Arc<Watching>>,
    runtime: Handle,
}

struct Watching {
    watch: tokio::sync::Mutex<client::Watch>,
    ending: Arc<Ending>,
    /// The client's.
    of: Arc<Ending>,
}

impl Watching {
    async fn next(&self) -> Result<client::RemoteInfo> {
        self.of.or(self.ending.or(async { self.watch.lock().await.next().await })).await
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

    /// How it stands: at once the first time, then when it has changed.
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
        drive(py, Some(self.runtime.clone()), async move {
            let info = watching.next().await;
            let finish: Finish =
                Box::new(move |py| Ok(values::remote_info(py, &info.map_err(raise)?)?.unbind()));
            finish
        })
    }

    /// Ends watching; whoever waits is woken with `ClosedError`. From any thread.
    fn close(&self) -> PyResult<()> {
        self.watching.get().map_err(raise)?.ending.close();
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close()
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        ready(py, Ok(slf.into_any().unbind()))
    }

    fn __aexit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        self.close()?;
        ready(py, Ok(py.None()))
    }
}
