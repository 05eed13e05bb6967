//! TCP: the kernel's limit, for connections between replicas, of how long sent bytes may stay unacknowledged.
//!
//! A connection that is slow but moves is kept. It is closed if its packets are lost, or if the peer's program reads
//! nothing for this long while its kernel's buffer is full. Pings within HTTP/2 cannot distinguish a slow connection
//! from a dead one, because they wait behind large messages.
//!
//! Must not know: which peer it is.

use hyper_util::client::legacy::connect::HttpConnector;
use socket2::SockRef;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// Connects within `connect`; bytes that stay unacknowledged for `unacknowledged` close the connection.
pub(crate) fn connector(connect: Duration, unacknowledged: Duration) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false); // TLS is layered on top
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect));
    connector.set_tcp_user_timeout(Some(unacknowledged));
    connector
}

/// The same limit for an accepted connection.
///
/// # Errors
/// The connection has ended already.
pub(crate) fn give_up(stream: &TcpStream, unacknowledged: Duration) -> io::Result<()> {
    SockRef::from(stream).set_tcp_user_timeout(Some(unacknowledged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::codegen::Service;

    const LIMIT: Duration = Duration::from_millis(1234);

    fn limit(stream: &TcpStream) -> Option<Duration> {
        SockRef::from(stream).tcp_user_timeout().unwrap()
    }

    /// Lost packets on one of two connections went undetected for half a minute. A test without its own network cannot
    /// drop packets: it can only check that the kernel has the limit.
    #[tokio::test]
    async fn kernel_timeout_is_set_in_both_directions() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to: http::Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let mut connector = connector(Duration::from_secs(30), LIMIT);
        let (dialled, accepted) = tokio::join!(connector.call(to), listener.accept());
        let (dialled, accepted) = (dialled.unwrap().into_inner(), accepted.unwrap().0);
        assert_eq!((limit(&dialled), limit(&accepted)), (Some(LIMIT), None));
        give_up(&accepted, LIMIT).unwrap();
        assert_eq!(limit(&accepted), Some(LIMIT));
        assert!(dialled.nodelay().unwrap());
    }
}
