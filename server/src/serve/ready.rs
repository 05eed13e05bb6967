//! Ready: whether clients should be sent to this server.

use chiplog::Role;
use chiplog_net::served::log_slot::LogSlot;
use std::borrow::Cow;
use std::time::Duration;

/// A disk that takes longer than this to make anything durable is taken for one that hangs.
const SYNC_MAX: Duration = Duration::from_secs(10);

/// Why they should not; None: they should.
pub(super) fn not_ready(host: &LogSlot) -> Option<Cow<'static, str>> {
    let why = plainly_not_ready(host);
    let shortage = || host.opened().and_then(chiplog::Log::shortage_cause);
    why.map(Cow::Borrowed).or_else(|| {
        shortage().map(|why| format!("has no room for what the log holds or may hold: {why}").into())
    })
}

fn plainly_not_ready(host: &LogSlot) -> Option<&'static str> {
    let Some(log) = host.opened() else { return Some("waits to become part of a cluster") };
    if host.is_draining() {
        return Some("about to end");
    }
    if log.poison_cause().is_some() {
        return Some("a write failed: takes no appends");
    }
    if log.stats().syncing > SYNC_MAX {
        return Some("the disk does not answer");
    }
    let status = log.status();
    match status.role {
        Role::Repairing => Some("repairs damaged blocks"),
        Role::Removed => Some("removed from the cluster"),
        Role::Observer => (!host.is_fed()).then_some("no server keeps it up to date"),
        _ if status.leader.is_none() => Some("knows no leader"),
        _ => None,
    }
}
