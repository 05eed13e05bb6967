//! Certificate: whether a caller is the node that it claims to be.

use super::Common;
use crate::listener::connection_info::ConnectionInfo;
use crate::listener::tls::node_name;
use crate::served::refusals::Refusal;
use crate::wire::status::to_status;
use chiplog::{Error, ErrorKind, NodeId};
use tonic::Status;

/// Checks a caller's identity: under TLS, its certificate must name the node that it claims to be.
///
/// # Errors
/// PERMISSION_DENIED.
pub(super) fn check_node(
    common: &Common,
    node: NodeId,
    arrival: Option<&ConnectionInfo>,
) -> Result<(), Status> {
    if common.tls.is_none() || arrival.is_some_and(|arrival| arrival.is_node(node)) {
        return Ok(());
    }
    let what = format!("the certificate is not that of node {node}: it does not name {}", node_name(node));
    let refused = common.refusals.count(Refusal::PermissionDenied);
    if refused.is_power_of_two() {
        tracing::warn!(%node, refused, "a peer's certificate does not name the node that the peer claims to be"); // logged again at each attempt
    }
    Err(to_status(&Error::new(ErrorKind::PermissionDenied, what), None))
}
