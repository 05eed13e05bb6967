//! Leader watchdog: whether to keep waiting for a leader that does not answer.
//!
//! A stopped process or an unplugged cable ends no connection. Time alone shows little: a large batch on a slow disk
//! takes long as well. But the other servers know when another leader was elected, so they are asked.
//!
//! Must not know: which call the leader does not answer.

use crate::client::Client;
use crate::client::retry::deadline::after;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// The minimal interval between two requests, whatever the timeouts are.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Asks the other servers about a silent leader, from time to time.
#[derive(Debug, Default)]
pub(crate) struct LeaderWatchdog {
    asked: Option<JoinHandle<bool>>,
    /// When the last request was answered.
    answered_at: Option<Instant>,
}

impl LeaderWatchdog {
    /// Returns once other servers report that the server, silent since `since`, no longer leads. May be dropped and
    /// called again: a request in progress continues.
    pub(crate) async fn is_deposition(&mut self, client: &Client, server: &Option<String>, since: Instant) {
        let Some(server) = server else { return std::future::pending().await };
        loop {
            let asked = match &mut self.asked {
                Some(asked) => asked,
                None => {
                    let quiet = self.answered_at.map_or(since, |answered_at| answered_at.max(since));
                    let pause = client.options().probe_timeout.max(PAUSE_MIN);
                    sleep_until(after(quiet, pause)).await;
                    let (client, server) = (client.clone(), server.clone());
                    let question = async move { client.servers().is_deposed(&server).await };
                    self.asked.insert(tokio::spawn(question))
                }
            };
            let deposed = asked.await.unwrap_or(false);
            (self.asked, self.answered_at) = (None, Some(Instant::now()));
            if deposed {
                return;
            }
        }
    }
}

impl Drop for LeaderWatchdog {
    fn drop(&mut self) {
        if let Some(asked) = &self.asked {
            asked.abort();
        }
    }
}
