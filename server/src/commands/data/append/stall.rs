//! Stall: reports when the servers have records and confirm none of them for a while.

use super::pump::Shared;
use crate::common::format;
use crate::connect::remote::GivenServers;
use chiplog::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// If no server accepts a record within this time, the command ends.
pub(super) const DELIVERY: Duration = Duration::from_secs(60);
/// How often a wait checks whether it should end.
pub(super) const STOP_CHECK: Duration = Duration::from_millis(250);
/// How long nothing is confirmed before that is reported. An election takes less.
const REPORT_AFTER: Duration = Duration::from_secs(3);

/// Reports each stall once: why, and until when the command waits. Never returns.
pub(super) async fn report(shared: Arc<Shared>, servers: GivenServers) {
    let (mut settled, mut since, mut is_told) = (0, Instant::now(), false);
    loop {
        tokio::time::sleep(STOP_CHECK).await;
        let now = shared.settled();
        if now != settled || !shared.is_waiting() {
            (settled, since, is_told) = (now, Instant::now(), false);
        } else if !is_told && since.elapsed() > REPORT_AFTER {
            is_told = true;
            let why = servers.why().await;
            let left = DELIVERY.saturating_sub(since.elapsed());
            let until = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + left;
            let until = format::time(Timestamp(until.as_secs() * 1000));
            let seconds = left.as_secs();
            servers.say(&format!(
                "the servers confirm nothing; waiting up to {seconds} s, until {until}, and sending again: {why}"
            ));
        }
    }
}
