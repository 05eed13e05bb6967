//! Ready: whether clients should use this server.

use chiplog::cluster::Role;
use chiplog_net::served::log_slot::LogSlot;
use std::borrow::Cow;
use std::time::Duration;

/// If a sync takes longer than this, the disk is assumed to hang.
const SYNC_MAX: Duration = Duration::from_secs(10);

/// Why clients should not use this server. None: they should.
pub(super) fn not_ready(host: &LogSlot) -> Option<Cow<'static, str>> {
    let why = plainly_not_ready(host);
    let shortage = || host.opened().and_then(chiplog::Log::shortage_cause);
    why.map(Cow::Borrowed).or_else(|| {
        shortage().map(|why| format!("has no room for what the log holds or may hold: {why}").into())
    })
}

fn plainly_not_ready(host: &LogSlot) -> Option<&'static str> {
    let Some(log) = host.opened() else { return Some("waiting to join a cluster") };
    if host.is_draining() {
        return Some("shutting down");
    }
    if log.poison_cause().is_some() {
        return Some("a write failed: no appends are accepted");
    }
    if log.metrics().syncing > SYNC_MAX {
        return Some("the disk does not answer");
    }
    match log.role() {
        Role::Repairing => Some("repairing damaged blocks"),
        Role::Removed => Some("removed from the cluster"),
        Role::Observer => (!host.is_fed()).then_some("no server keeps it up to date"),
        _ if log.leader().is_none() => Some("knows no leader"),
        _ => None,
    }
}
