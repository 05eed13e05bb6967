//! Turn: work that keeps a thread for a while, such as reading the disk or unpacking. A few such works go on at a time.
//!
//! ```text
//! body of an answer ── awaits ──> task: memory, then a turn ──> thread that may block: the work
//!      │ dropped                    │ ends, leaves the line        │ goes on to its end, and keeps both until then
//! ```
//!
//! Invariants:
//! - a task of its own waits for the turn and uses it at once. HTTP/2 does not poll a body whose client gives no window: a
//!   turn that was given to such a body would lie unused for as long as the client likes;
//! - memory is taken before the turn, here and by all callers: a work that has a turn waits for nothing.
//!
//! Must not know: what the work is.

use crate::accounts::{Payer, Resource};
use crate::verbatim::ahead;
use std::sync::Arc;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

/// A task that ends with its handle.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Does the work in its turn, on a thread that may block. `bytes`: memory that it takes meanwhile and that nobody has paid
/// for; it counts as memory of answers.
///
/// # Errors
/// The runtime ends, or the work has panicked.
pub(crate) async fn in_turn<T: Send + 'static>(
    payer: &Arc<Payer>,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let payer = payer.clone();
    let working = async move {
        let memory = if bytes == 0 { None } else { Some(ahead(&payer, bytes).await) };
        let turn = payer.take(Resource::Turns, 1).await;
        let working = spawn_blocking(move || {
            let _held = (turn, memory);
            work()
        });
        working.await
    };
    let mut task = Task(tokio::spawn(working));
    (&mut task.0).await?
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::pin::pin;
    use std::time::Duration;
    use tokio::time::timeout;

    /// Polls this once while others have all turns, and not again when they are free: the others get all of them again.
    pub(crate) async fn leaves_its_turn(payer: &Arc<Payer>, asking: impl Future) {
        const ALL: usize = 1 << 20; // more than there are counts as all
        let others = payer.take(Resource::Turns, ALL).await;
        let mut asking = pin!(asking);
        let early = timeout(Duration::from_millis(50), &mut asking).await;
        assert!(early.is_err(), "needs no turn");
        drop(others);
        let others = timeout(Duration::from_secs(5), payer.take(Resource::Turns, ALL)).await;
        assert!(others.is_ok(), "keeps a turn and does not use it");
    }
}
