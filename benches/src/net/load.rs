//! Load: appenders that each wait for the acknowledgement of one record before they send the next, spread over
//! connections to one server. One thread drives them all.

use super::wire::Wire;
use crate::data::Pool;
use crate::measure::{Latencies, Usage};
use crate::workload::{Outcome, Window};
use anyhow::{Context, Result, ensure};
use chiplog::BatchBuilder;
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The service that the load calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// `chiplog.v1.Log`.
    LogService,
    /// `logspec.Log`.
    Logspec,
}

/// How appenders share a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streams {
    /// Each has an append stream of its own, like independent callers.
    Own,
    /// All of a connection share one append stream, like those of one client: the service answers in order.
    Shared,
    /// The same, and each record goes to one of this many named logs at random.
    OfLogs(usize),
}

/// The kind of appender, and the numbers of connections and of appenders on each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) service: Service,
    pub(crate) streams: Streams,
    pub(crate) connections: usize,
    pub(crate) appenders: usize,
    pub(crate) record_bytes: usize,
}

/// How long the run waits for any answer before it fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// Different records.
const RECORDS: u64 = 512;
/// The first byte of an answer that means: appended. The same in both services.
const APPENDED: u8 = 0x0a;

/// Appenders of this shape, to the server at `address`.
///
/// # Errors
/// Those of [`Load::open`] and [`Load::run`].
pub(crate) fn appenders(shape: Shape, address: &str, pool: &Pool, window: Window) -> Result<Outcome> {
    Load::open(shape, address, pool)?.run(window)
}

/// Appenders with their connections.
pub(crate) struct Load {
    epoll: OwnedFd,
    connections: Vec<Connection>,
    requests: Requests,
}

impl Load {
    /// Opens the connections to the server at `address`.
    ///
    /// # Errors
    /// Errors of a connection.
    pub(crate) fn open(shape: Shape, address: &str, pool: &Pool) -> Result<Self> {
        let requests = Requests::new(shape, pool)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::with_capacity(shape.connections);
        for n in 0..shape.connections {
            let share =
                shape.appenders / shape.connections + usize::from(n < shape.appenders % shape.connections);
            let connection = Connection::open(address, shape, share)?;
            let data = epoll::EventData::new_u64(n as u64);
            epoll::add(&epoll, &connection.socket, data, epoll::EventFlags::IN)?;
            connections.push(connection);
        }
        Ok(Self { epoll, connections, requests })
    }

    /// Appends for the time of the window, once. Afterwards appends are under way, until the load is dropped.
    ///
    /// # Errors
    /// Errors of a connection, and any answer that is no acknowledgement.
    pub(crate) fn run(&mut self, window: Window) -> Result<Outcome> {
        run(&self.epoll, &mut self.connections, &self.requests, window)
    }
}

fn run(epoll: &OwnedFd, all: &mut [Connection], requests: &Requests, window: Window) -> Result<Outcome> {
    let mut scratch = vec![0; 256 << 10];
    let mut tally = Tally { counting: false, appends: 0, latencies: Latencies::new()?, last: Instant::now() };
    for connection in all.iter_mut() {
        connection.turn(requests, &mut tally)?;
        connection.flush()?;
    }
    let begun = Instant::now();
    let mut from = None;
    let mut events = Vec::with_capacity(all.len());
    loop {
        let now = Instant::now();
        match &from {
            None if now - begun >= window.warm_up => {
                from = Some((now, Usage::now()?));
                tally.counting = true;
            }
            Some((start, usage)) if now - *start >= window.measured => {
                let Tally { appends, latencies, .. } = tally;
                let (elapsed, usage) = (now - *start, Usage::now()?.since(usage));
                return Ok(Outcome { appends, elapsed, latencies, usage });
            }
            _ => ensure!(now - tally.last < PATIENCE, "no answer for {PATIENCE:?}"),
        }
        events.clear();
        let tick = rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&tick)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for answers"),
        }
        for event in &events {
            let connection = &mut all[event.data.u64() as usize];
            connection.read(&mut scratch)?;
            connection.turn(requests, &mut tally)?;
            connection.flush()?;
        }
    }
}

struct Tally {
    counting: bool,
    appends: u64,
    latencies: Latencies,
    /// The time of the last answer.
    last: Instant,
}

struct Connection {
    socket: TcpStream,
    wire: Wire,
    /// By the number of the stream.
    lanes: Vec<Lane>,
}

/// An append stream.
struct Lane {
    /// Requests sent.
    sequence: u64,
    /// Appenders of its own.
    appenders: usize,
    /// The times at which the requests in flight were sent, in order.
    under_way: VecDeque<Instant>,
}

impl Connection {
    fn open(address: &str, shape: Shape, appenders: usize) -> Result<Self> {
        let socket = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let path = match shape.service {
            Service::LogService => "/chiplog.v1.Log/Append",
            Service::Logspec => "/logspec.Log/Append",
        };
        let (lanes, each) = match shape.streams {
            Streams::Own => (appenders, 1),
            Streams::Shared | Streams::OfLogs(_) => (1, appenders),
        };
        let mut wire = Wire::new();
        (0..lanes).for_each(|_| _ = wire.open(path));
        let lane = || Lane { sequence: 0, appenders: each, under_way: VecDeque::with_capacity(each) };
        let lanes = (0..lanes).map(|_| lane()).collect();
        Ok(Self { socket, wire, lanes })
    }

    fn read(&mut self, scratch: &mut [u8]) -> Result<()> {
        loop {
            match self.socket.read(scratch) {
                Ok(0) => anyhow::bail!("the server closed a connection"),
                Ok(n) => {
                    self.wire.received(&scratch[..n]);
                    if n < scratch.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("reading answers"),
            }
        }
    }

    /// Processes the answers that arrived; all appenders that wait for none send.
    fn turn(&mut self, requests: &Requests, tally: &mut Tally) -> Result<()> {
        let now = Instant::now();
        while let Some(answer) = self.wire.next()? {
            check(self.wire.body(answer))?;
            let sent = self.lanes[answer.stream].under_way.pop_front().context("an answer to no request")?;
            tally.last = now;
            if tally.counting {
                tally.appends += 1;
                tally.latencies.record(now - sent);
            }
        }
        for (stream, lane) in self.lanes.iter_mut().enumerate() {
            while lane.under_way.len() < lane.appenders
                && requests.send(&mut self.wire, stream, lane.sequence + 1)
            {
                lane.sequence += 1;
                lane.under_way.push_back(now);
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let mut written = 0;
        while written < self.wire.out.len() {
            match self.socket.write(&self.wire.out[written..]) {
                Ok(n) => written += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("writing requests"),
            }
        }
        self.wire.out.drain(..written);
        if !self.wire.out.is_empty() {
            // Rare: the kernel's buffer takes some megabytes. Waiting is simpler than another event.
            self.socket.set_nonblocking(false)?;
            self.socket.write_all(&self.wire.out).context("writing requests")?;
            self.socket.set_nonblocking(true)?;
            self.wire.out.clear();
        }
        Ok(())
    }
}

/// # Errors
/// This answer is no acknowledgement.
fn check(answer: &[u8]) -> Result<()> {
    ensure!(answer.first() == Some(&APPENDED), "not appended: {:?}", String::from_utf8_lossy(answer));
    Ok(())
}

/// The name of a named log of the load, from 0.
pub(crate) fn log_name(n: usize) -> String {
    format!("log-{n}")
}

/// The field of a request that names its log.
fn log_field(n: usize) -> Vec<u8> {
    let name = log_name(n);
    let mut field = vec![0x0a];
    varint(name.len() as u64, &mut field);
    field.extend_from_slice(name.as_bytes());
    field
}

/// Requests as they are sent.
struct Requests {
    service: Service,
    /// The fields that name the logs to which records go; none: they are not named.
    logs: Vec<Vec<u8>>,
    /// For the native service whole messages, for the other one proposals.
    bodies: Vec<Vec<u8>>,
}

impl Requests {
    fn new(shape: Shape, pool: &Pool) -> Result<Self> {
        let service = shape.service;
        let logs = if let Streams::OfLogs(logs) = shape.streams { logs } else { 0 };
        ensure!(logs == 0 || service == Service::LogService, "only chiplog.v1.Log has many logs on a stream");
        let body = |n| {
            let record = pool.record(n, shape.record_bytes);
            let payload = match service {
                Service::LogService => BatchBuilder::new().push(record)?.build()?.as_bytes().to_vec(),
                Service::Logspec => record.to_vec(),
            };
            let mut body = vec![0x12]; // the field of the batch, and of a proposal
            varint(payload.len() as u64, &mut body);
            body.extend_from_slice(&payload);
            Ok(body)
        };
        let bodies = (0..RECORDS).map(body).collect::<Result<_>>()?;
        Ok(Self { service, logs: (0..logs).map(log_field).collect(), bodies })
    }

    fn send(&self, wire: &mut Wire, stream: usize, sequence: u64) -> bool {
        let body = &self.bodies[(sequence % RECORDS) as usize];
        match self.service {
            Service::LogService if self.logs.is_empty() => wire.send(stream, &[body]),
            Service::LogService => wire.send(stream, &[&self.logs[fastrand::usize(..self.logs.len())], body]),
            Service::Logspec => {
                let mut head = Vec::with_capacity(11);
                head.push(0x08); // the field of the sequence
                varint(sequence, &mut head);
                wire.send(stream, &[&head, body])
            }
        }
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog_net::listener;
    use chiplog_net::served::log_slot::LogSlot;
    use chiplog_net::service::log::LogService;
    use chiplog_net::service::logspec;

    #[test]
    fn appenders_of_all_shapes_append() {
        let dir = tempfile::tempdir().unwrap();
        let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(4 << 20)).unwrap();
        let host = LogSlot::new();
        host.open(log.clone());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let serving = std::thread::spawn(move || {
            super::super::block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let logspec = logspec::LogspecService::new(host.clone(), logspec::Limits::default());
                let serve = listener::server()
                    .add_service(LogService::new(host.clone()).into_service())
                    .add_service(logspec.into_server())
                    .serve_with_incoming(listener::incoming(listener));
                tokio::select! {
                    ended = serve => ended?,
                    ended = stopped => ended?,
                }
                Ok(())
            })
        });
        let window = Window { warm_up: Duration::from_millis(10), measured: Duration::from_millis(300) };
        for service in [Service::LogService, Service::Logspec] {
            for streams in [Streams::Own, Streams::Shared] {
                let before = log.last_index();
                let shape = Shape { service, streams, connections: 2, appenders: 5, record_bytes: 100 };
                let outcome = appenders(shape, &address, &Pool::new(1), window).unwrap();
                let appended = log.last_index().get() - before.get();
                assert!(appended >= outcome.appends, "{shape:?}: {appended}");
                assert_eq!(outcome.latencies.count(), outcome.appends);
            }
        }
        for service in [Service::LogService, Service::Logspec] {
            let streams = Streams::OfLogs(3);
            let shape = Shape { service, streams, connections: 1, appenders: 5, record_bytes: 100 };
            assert!(appenders(shape, &address, &Pool::new(1), window).is_err(), "it has no named logs");
        }
        let begun = Instant::now();
        while log.last_index().get() == 0 {
            assert!(begun.elapsed() < PATIENCE, "nothing was appended");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(log.reader(chiplog::Start::First).unwrap().next_record().unwrap().unwrap().data.len() == 100);
        stop.send(()).unwrap();
        serving.join().unwrap().unwrap();
    }
}
