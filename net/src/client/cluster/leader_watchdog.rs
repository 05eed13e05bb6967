//! Silence: whether a leader that owes an answer is still the one to wait for.
//!
//! A process that was stopped and a machine whose cable is out end no connection. Time alone tells little: a large batch
//! on a slow disk takes long as well. But the others know when they have elected somebody else, and are asked.
//!
//! Must not know: what was asked of the leader.

use crate::client::Client;
use crate::client::retry::deadline::after;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// However soon others are to answer, they are not asked more often.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Asks after a silent leader, every now and then.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    asked: Option<JoinHandle<bool>>,
    /// When the last question was answered.
    told: Option<Instant>,
}

impl Silence {
    /// Returns when the server, silent since `since`, does not lead any more, as others say. May be dropped and called
    /// again: a question that is under way stays so.
    pub(crate) async fn is_deposition(&mut self, client: &Client, server: &Option<String>, since: Instant) {
        let Some(server) = server else { return std::future::pending().await };
        loop {
            let asked = match &mut self.asked {
                Some(asked) => asked,
                None => {
                    let quiet = self.told.map_or(since, |told| told.max(since));
                    let pause = client.options().probe_timeout.max(PAUSE_MIN);
                    sleep_until(after(quiet, pause)).await;
                    let (client, server) = (client.clone(), server.clone());
                    let question = async move { client.servers().is_deposed(&server).await };
                    self.asked.insert(tokio::spawn(question))
                }
            };
            let deposed = asked.await.unwrap_or(false);
            (self.asked, self.told) = (None, Some(Instant::now()));
            if deposed {
                return;
            }
        }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        if let Some(asked) = &self.asked {
            asked.abort();
        }
    }
}
