//! The options of a transport, and its certificates.

use crate::listener::tls;
use chiplog::{NodeId, options};
use std::fmt;
use std::net::TcpListener;
use std::time::Duration;

options! {
    /// Options of a transport.
    ///
    /// ```
    /// use chiplog_net::peer::PeerOptions;
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let options = PeerOptions::new(chiplog::NodeId(1), listener, "127.0.0.1:7412 127.0.0.1:7411");
    /// assert_eq!(options.queue_bytes_max, 64 << 20);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[derive(Debug)]
    pub struct PeerOptions {
        /// This replica.
        pub node: NodeId,
        /// The listener for the other replicas' streams.
        pub listener: TcpListener,
        /// The address of this replica, as an [`Address`](crate::wire::address::Address).
        pub address: String,
        /// The cluster's election timeout: a connection that is silent for about this long is closed. Default 1 s.
        pub election_timeout: Duration,
        /// The limit in bytes of messages that wait for one peer, default 64 MiB. A larger message may wait alone.
        pub queue_bytes_max: usize,
        /// TLS in both directions. Default: no TLS.
        pub tls: Option<PeerTls>,
    }
}

impl PeerOptions {
    /// Options with the defaults.
    pub fn new(node: NodeId, listener: TcpListener, address: impl Into<String>) -> Self {
        Self {
            node,
            listener,
            address: address.into(),
            election_timeout: Duration::from_secs(1),
            queue_bytes_max: 64 << 20,
            tls: None,
        }
    }
}

/// Mutual TLS between replicas, all in PEM. A replica's certificate must have [`node_name`](tls::node_name), such as `node-3`, among
/// its alternative names. The host is not checked. The authority must sign for one cluster only.
///
/// ```
/// # fn read(_: &str) -> Vec<u8> { Vec::new() }
/// use chiplog_net::peer::PeerTls;
/// let tls = PeerTls { certificate: read("node-3.pem"), key: read("node-3.key"), authority: read("peers.pem") };
/// # drop(tls);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PeerTls {
    /// This replica's certificate, and the certificates between it and the authority.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// Certificates of the authority that signs the replicas' certificates.
    pub authority: Vec<u8>,
}

impl PeerTls {
    /// Checks that replicas with the same authority will accept this certificate for `node`.
    ///
    /// # Errors
    /// `InvalidArgument`: the certificate names another node, is not signed by the authority, has expired, or is not
    /// valid yet.
    pub fn check(&self, node: NodeId) -> chiplog::Result<()> {
        tls::check_node(&self.identity(), node)
    }

    pub(super) fn identity(&self) -> tls::Identity {
        let Self { certificate, key, authority } = self.clone();
        tls::Identity { certificate, key, authority: Some(authority) }
    }
}

impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerTls")
    }
}
