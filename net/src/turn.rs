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
//! - memory is taken before the turn, here and by all callers: a work that has a turn waits for nothing;
//! - work that a client can ask for at no cost to itself is paced ([`paced`]): a place for it stays taken after the work for
//!   as long as the work took, so that all places together use half of the processors' time at most.
//!
//! Must not know: what the work is.

use crate::accounts::{Payer, Resource, Share};
use crate::verbatim::ahead;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::sleep;

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
    begun(payer, bytes, None, work).await
}

/// [`in_turn`], and the place for it stays taken for as long again as the work takes: also when the caller is gone.
///
/// # Errors
/// The runtime ends, or the work has panicked.
pub(crate) async fn paced<T: Send + 'static>(
    payer: &Arc<Payer>,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    begun(payer, bytes, Some(Resource::Paced), work).await
}

async fn begun<T: Send + 'static>(
    payer: &Arc<Payer>,
    bytes: usize,
    place: Option<Resource>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let payer = payer.clone();
    let working = async move {
        let place = match place {
            Some(resource) => Some(payer.take(resource, 1).await),
            None => None,
        };
        let memory = if bytes == 0 { None } else { Some(ahead(&payer, bytes).await) };
        let turn = payer.take(Resource::Turns, 1).await;
        let runtime = tokio::runtime::Handle::current();
        let working = spawn_blocking(move || {
            let _held = (turn, memory);
            let start = Instant::now();
            let done = work();
            if let Some(place) = place {
                runtime.spawn(rest(place, start.elapsed()));
            }
            done
        });
        working.await
    };
    let mut task = Task(tokio::spawn(working));
    (&mut task.0).await?
}

async fn rest(_place: Share, time: Duration) {
    sleep(time).await;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::budget::Budget;
    use std::pin::pin;
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

    /// A work of 100 ms leaves its place free 100 ms after its end, also when its caller has gone meanwhile; the turn itself
    /// is free at once.
    #[tokio::test(start_paused = true)]
    async fn paced_work_rests_for_as_long_as_it_took() {
        const LONG: Duration = Duration::from_millis(100);
        let payer = Budget::default().payer_of(&http::Extensions::new());
        for is_given_up in [false, true] {
            let (begin, begun) = tokio::sync::oneshot::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let mut work = Box::pin(paced(&payer, 0, move || {
                let _ = begin.send(());
                let _ = ended.recv();
            }));
            tokio::select! {
                _ = &mut work => panic!("it has not ended"),
                begun = begun => begun.unwrap(),
            }
            std::thread::sleep(LONG);
            let work = if is_given_up { None } else { Some(work) };
            end.send(()).unwrap();
            if let Some(work) = work {
                work.await.unwrap();
            }
            let ended = tokio::time::Instant::now();
            drop(payer.take(Resource::Turns, 1 << 20).await);
            assert_eq!(ended.elapsed(), Duration::ZERO, "the turn rests too");
            drop(payer.take(Resource::Paced, 1 << 20).await);
            assert!(ended.elapsed() >= LONG, "{:?} after its end", ended.elapsed());
        }
    }
}
