//! Sockets: what the kernel is told of connections between replicas: how long what was sent may stay unacknowledged.
//!
//! A line that is slow but moves is borne; one whose packets vanish is not, nor a program that reads nothing for so long, with
//! its kernel's buffer full. Pings within HTTP/2 cannot tell a slow line from a dead one, as they wait behind what is large.
//!
//! Must not know: which peer it is.

use hyper_util::client::legacy::connect::HttpConnector;
use socket2::SockRef;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// Dials within `connect`; what stays unacknowledged for `unacknowledged` ends the connection.
pub(crate) fn connector(connect: Duration, unacknowledged: Duration) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false); // TLS is made on top of it
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect));
    connector.set_tcp_user_timeout(Some(unacknowledged));
    connector
}

/// The same for a connection that was accepted.
///
/// # Errors
/// It has ended already.
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

    /// What vanishes on one of two connections was noticed by nobody for half a minute. A test without a network of its own
    /// cannot make packets vanish: that the kernel was told is what it can see.
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
