//! The listener for probes, within limits: no client may use up the descriptors that clients and the log
//! need, or hold a connection forever.
//!
//! | limit | up to it | beyond it |
//! |---|---|---|
//! | [`CONNECTIONS_MAX`] | served | closes the oldest connection of the address that has most |
//! | [`TIME_MAX`], from the accept | served | closes the connection, whatever it does |
//!
//! It closes the oldest connection, not the newest: a probe takes a moment, so a connection that stays is not
//! a probe. It chooses the address with most connections, so a probe from elsewhere is answered however many
//! connections one client opens.
//!
//! Invariant: each connection wakes its own task when its time is up or when it is to be closed.
//!
//! Must not know: the requests.

use axum::serve::Listener;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

/// The maximum number of open connections.
const CONNECTIONS_MAX: usize = 64;
/// How long one connection may take for its request and the answer.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The listener for probes.
#[derive(Debug)]
pub(super) struct ProbeListener {
    listener: TcpListener,
    connections_max: usize,
    time_max: Duration,
    /// The open connections, oldest first, each with its address. Dropping an entry closes its connection.
    open: VecDeque<(IpAddr, oneshot::Sender<()>)>,
}

/// The bits of an IPv6 address that name a network. A host can use every address within one.
const NETWORK_BITS: u32 = 64;

/// The unit that counts as one address: an IPv4 address, or an IPv6 network.
fn address(remote: IpAddr) -> IpAddr {
    match remote.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> NETWORK_BITS << NETWORK_BITS).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

impl ProbeListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, connections_max: CONNECTIONS_MAX, time_max: TIME_MAX, open: VecDeque::new() }
    }

    fn admit(&mut self, stream: TcpStream, remote: IpAddr) -> Probe {
        self.open.retain(|(_, place)| !place.is_closed());
        let (place, taken) = oneshot::channel();
        self.open.push_back((address(remote), place));
        while self.open.len() > self.connections_max {
            self.make_room();
        }
        Probe { stream, time: Box::pin(sleep(self.time_max)), taken }
    }

    /// Closes the oldest connection of the address that has most; if several have the same number, the oldest
    /// of all.
    fn make_room(&mut self) {
        let mut of: HashMap<IpAddr, usize> = HashMap::new();
        self.open.iter().for_each(|(from, _)| *of.entry(*from).or_default() += 1);
        let most = of.values().max().copied().unwrap_or_default();
        let goes = self.open.iter().position(|(from, _)| of.get(from) == Some(&most));
        self.open.remove(goes.unwrap_or_default());
    }
}

impl Listener for ProbeListener {
    type Io = Probe;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Probe, SocketAddr) {
        let (stream, remote) = Listener::accept(&mut self.listener).await; // retries after errors
        (self.admit(stream, remote.ip()), remote)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection within its limits.
#[derive(Debug)]
pub(super) struct Probe {
    stream: TcpStream,
    time: Pin<Box<Sleep>>,
    taken: oneshot::Receiver<()>,
}

impl Probe {
    /// Returns the result of reading or writing; while that waits, checks the limits.
    fn within<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let is_over = done.is_pending()
            && (self.time.as_mut().poll(context).is_ready()
                || Pin::new(&mut self.taken).poll(context).is_ready());
        if is_over {
            let what = "a connection for probes exceeded its time";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)));
        }
        done
    }
}

impl AsyncRead for Probe {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.within(context, done)
    }
}

impl AsyncWrite for Probe {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.within(context, done)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        this.within(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_flush(context);
        this.within(context, done)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_shutdown(context);
        this.within(context, done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream as Client;
    use std::time::Instant;
    use tokio::net::TcpSocket;
    use tokio::sync::oneshot::error::TryRecvError;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A listener with a page of `page` bytes, on a thread of its own.
    fn served(connections_max: usize, time_max: Duration, page: usize) -> SocketAddr {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                let router = Router::new().route("/", get(move || async move { "x".repeat(page) }));
                let door = ProbeListener { connections_max, time_max, ..ProbeListener::new(listener) };
                axum::serve(door, router).await.unwrap();
            });
        });
        told.recv().unwrap()
    }

    fn connect(at: SocketAddr, said: &str) -> Client {
        let mut client = Client::connect(at).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(said.as_bytes()).unwrap();
        client
    }

    const ASK: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    /// The first byte of an answer. None: the connection ended.
    fn first_byte(client: &mut Client) -> Option<u8> {
        let mut byte = [0];
        match client.read_exact(&mut byte) {
            Ok(()) => Some(byte[0]),
            Err(error) => {
                let ended = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
                assert!(ended.contains(&error.kind()), "{error}");
                None
            }
        }
    }

    #[test]
    fn silent_or_unreading_client_is_disconnected() {
        let time = Duration::from_secs(2);
        let at = served(8, time, 64 << 20);
        for said in ["", "GET / HTTP/1.1\r\nhost:", "PRI * HTTP/2.0\r\n\r\n"] {
            let begun = Instant::now();
            let mut client = connect(at, said);
            while first_byte(&mut client).is_some() {} // an error page may arrive
            assert!(begun.elapsed() >= time / 2, "{said:?}");
        }
        // A client that sends a request and never reads a page that fits no buffer.
        let mut client = connect(at, ASK);
        std::thread::sleep(time * 3);
        let mut all = Vec::new();
        let _ = client.read_to_end(&mut all);
        assert!(!all.is_empty() && all.len() < 64 << 20, "{} bytes", all.len());
    }

    #[test]
    fn oldest_connection_is_closed_for_a_new_one() {
        let at = served(3, PATIENCE * 2, 10);
        let mut open: Vec<Client> = (0..3).map(|_| connect(at, "GET")).collect();
        // All three are accepted: the rest of a request is answered. Then the client may send another.
        for client in &mut open {
            client.write_all(&ASK.as_bytes()[3..]).unwrap();
            assert_eq!(first_byte(client), Some(b'H'));
        }
        let mut fourth = connect(at, ASK);
        assert_eq!(first_byte(&mut fourth), Some(b'H'));
        let ends = |client: &mut Client, within| {
            client.set_read_timeout(Some(within)).unwrap();
            client.read_to_end(&mut Vec::new()).is_ok()
        };
        assert!(ends(&mut open[0], PATIENCE), "the oldest goes");
        let stays = |client: &mut Client| !ends(client, Duration::from_millis(300));
        assert!(stays(&mut open[1]) && stays(&mut open[2]) && stays(&mut fourth), "the others stay");
    }

    /// A client that opened connections without end displaced a probe before it was answered, and the
    /// supervisor killed a healthy server.
    #[tokio::test]
    async fn client_with_many_connections_displaces_no_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let mut door = ProbeListener { connections_max: 3, ..ProbeListener::new(listener) };
        let mut came: Vec<(u8, Probe)> = Vec::new();
        let mut dialled = Vec::new();
        for from in [1, 2, 2, 2, 3, 2, 2] {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from(([127, 0, 0, from], 0))).unwrap();
            let (dialling, (probe, remote)) = tokio::join!(socket.connect(at), Listener::accept(&mut door));
            dialled.push(dialling.unwrap());
            assert_eq!(remote.ip(), IpAddr::from([127, 0, 0, from]));
            came.push((from, probe));
        }
        let is_open = |(from, probe): &mut (u8, Probe)| match probe.taken.try_recv() {
            Err(TryRecvError::Empty) => Some(*from),
            _ => None,
        };
        let open: Vec<u8> = came.iter_mut().filter_map(is_open).collect();
        assert_eq!(open, [1, 3, 2], "the newest of the many, and the others");
    }

    #[test]
    fn addresses_of_one_host_count_as_one() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(address(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_eq!(address(ip("2001:db8:1:2::1")), address(ip("2001:db8:1:2:ffff:ffff:ffff:ffff")));
        assert_ne!(address(ip("2001:db8:1:2::1")), address(ip("2001:db8:1:3::1")));
    }
}
