//! What the groups of a server have in common: threads, certificates, and how connections to peers are made.

use super::host::Host;
use super::options::PeerTls;
use super::shared::Shared;
use crate::listener::tls::{ServerTls, node_name};
use crate::served::refusals::Refusals;
use crate::wire::tcp;
use chiplog::NodeId;
use hyper_util::client::legacy::connect::HttpConnector;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// The flow-control window of a stream: several blocks.
pub(super) const WINDOW_BYTES: u32 = 16 << 20;

/// The state that all groups share.
pub(super) struct Common {
    pub(super) node: NodeId,
    pub(super) address: String,
    pub(super) election_timeout: Duration,
    pub(super) queue_bytes_max: usize,
    pub(super) tls: Option<Secured>,
    pub(super) refusals: Arc<Refusals>,
    pub(super) runtime: Handle,
    pub(super) closing: watch::Sender<bool>,
    /// Links that have not ended yet, of all groups.
    pub(super) links: AtomicUsize,
    /// Emptied when the transport is closed, and empty from then on: each refers to this.
    pub(super) groups: RwLock<BTreeMap<u32, Arc<Shared>>>,
    /// Makes replicas of groups that other servers ask for. None once the transport is closed: it can refer to this.
    pub(super) host: RwLock<Option<Arc<Host>>>,
    /// Held while it does, also if the caller does not wait any longer.
    pub(super) hosting: Arc<tokio::sync::Mutex<()>>,
}

/// TLS of the transport, in both directions.
pub(super) struct Secured {
    pub(super) server: Arc<ServerTls>,
    /// The identity for connections to others.
    pub(super) own: RwLock<PeerTls>,
}

impl Common {
    /// The state of a group, made at its first use. Only for groups that this program names: a caller's are found by
    /// [`Self::known_group`].
    pub(super) fn group(self: &Arc<Self>, group: u32) -> Arc<Shared> {
        let made = || Arc::new(Shared::new(group, self.clone()));
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        if self.is_closing() {
            return made(); // not kept: nothing would remove it
        }
        groups.entry(group).or_insert_with(made).clone()
    }

    /// Whether the transport is closed, or about to be.
    pub(super) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// A group, if it was used here.
    pub(super) fn known_group(&self, group: u32) -> Option<Arc<Shared>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// Returns an endpoint for one peer only, over connections that [`Self::connector`] makes. A connection that leaves
    /// a ping unanswered for `silence` is closed.
    pub(super) fn endpoint(
        &self,
        node: NodeId,
        address: &str,
        silence: Duration,
    ) -> Result<Endpoint, tonic::transport::Error> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
            .connect_timeout(2 * self.silence()) // TLS included
            .http2_keep_alive_interval(self.election_timeout / 2)
            .keep_alive_timeout(silence)
            .keep_alive_while_idle(true)
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_stream_window_size(WINDOW_BYTES);
        if let Some(secured) = &self.tls {
            let own = secured.own.read().unwrap_or_else(PoisonError::into_inner).clone();
            let config = ClientTlsConfig::new()
                .identity(Identity::from_pem(&own.certificate, &own.key))
                .ca_certificate(Certificate::from_pem(&own.authority))
                .domain_name(node_name(node));
            endpoint = endpoint.tls_config(config)?;
        }
        Ok(endpoint)
    }

    /// Returns the connector for peers.
    pub(super) fn connector(&self) -> HttpConnector {
        tcp::connector(self.election_timeout, self.unacknowledged())
    }

    /// How long a peer may leave a ping of the first stream unanswered.
    pub(super) fn silence(&self) -> Duration {
        self.election_timeout.max(Duration::from_millis(500))
    }

    /// How long a peer's kernel may leave bytes of either stream unacknowledged: twice the time after which the first
    /// stream is closed. If the whole network path is lost, the first stream detects it first. If packets were lost,
    /// there is more time to send them again.
    pub(super) fn unacknowledged(&self) -> Duration {
        2 * self.silence()
    }
}
