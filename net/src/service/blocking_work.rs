//! Blocking work: work that occupies a thread for a while, such as disk reads or decompression. The number of such
//! jobs at a time is small.
//!
//! ```text
//! body of an answer ── awaits ──> task: a turn ──> thread that may block: the work
//!      │ dropped                    │ ends,        │ continues to its end, and keeps the turn
//!                                   │ leaves the line   until then
//! ```
//!
//! Work that costs a client next to nothing to request is paced ([`run_paced`]). It takes a place before its turn.
//! Afterwards the place stays taken for three times as long as the work took. So the paced jobs use at most a quarter
//! of the time of as many processors as there are places. Only one job of each connection waits for a place at a time:
//! connections alternate, however many streams they have.
//!
//! Invariants:
//! - a separate task waits for the turn and uses it at once. HTTP/2 does not poll a body whose client gives no window:
//!   a turn that was granted to that body would stay unused as long as the client likes;
//! - every caller takes memory before the turn: a job with a turn waits for nothing. A job with a place waits only for
//!   a turn; the number of places bounds its memory.
//!
//! Must not know: what the work is.

use crate::listener::auth::tokens::{Payer, Resource, Share};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::sleep;

/// A place rests for this multiple of its work's time,
const RESTS: u32 = 3;
/// and at most for this long: a process that was stopped during the work did not work for that time.
const REST_MAX: Duration = Duration::from_secs(1);

/// A task that ends with its handle.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs the work in its turn, on a thread that may block.
///
/// # Errors
/// The runtime is shutting down, or the work has panicked.
pub(crate) async fn run_blocking<T: Send + 'static>(
    payer: &Arc<Payer>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let payer = payer.clone();
    let working = async move {
        let turn = payer.take(Resource::Turns, 1).await;
        let working = spawn_blocking(move || {
            let _held = turn;
            work()
        });
        working.await
    };
    let mut task = Task(tokio::spawn(working));
    (&mut task.0).await?
}

/// As [`run_blocking`], in a place that rests for [`RESTS`] times as long as the work takes, also if the caller is
/// gone.
///
/// # Errors
/// The runtime is shutting down, or the work has panicked.
pub(crate) async fn run_paced<T: Send + 'static>(
    payer: &Arc<Payer>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let payer = payer.clone();
    let working = async move {
        let first = payer.first_of_connection().await;
        let place = payer.take(Resource::Paced, 1).await;
        drop(first);
        let runtime = tokio::runtime::Handle::current();
        let working = run_blocking(&payer, move || {
            let start = Instant::now();
            let done = work();
            runtime.spawn(rest(place, (start.elapsed() * RESTS).min(REST_MAX)));
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
    use crate::listener::auth::tokens::{Accounts, RESOURCES};
    use crate::listener::memory_budget::Budget;
    use futures_util::FutureExt as _;
    use std::pin::pin;
    use tokio::time::timeout;
    use tokio_stream::{Stream, StreamExt as _};

    /// The number of tasks: a test's runtime has no others than those of [`run_blocking`] that wait for a turn or work.
    fn tasks() -> usize {
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }

    /// Waits until no work is under way or in line.
    pub(crate) async fn work_ends() {
        while tasks() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Reads the answers that there are, until the stream waits for new ones and not for work. Returns their number.
    pub(crate) async fn read_until_idle<S: Stream + Unpin>(answers: &mut S) -> usize {
        let mut read = 0;
        loop {
            match answers.next().now_or_never() {
                Some(answer) => {
                    assert!(answer.is_some(), "the stream has ended");
                    read += 1;
                }
                None if tasks() == 0 => return read,
                None => work_ends().await,
            }
        }
    }

    /// Polls this once while others have all turns, and not again when they are free: the others get all of them again.
    pub(crate) async fn frees_its_turn(payer: &Arc<Payer>, asking: impl Future) {
        const ALL: usize = 1 << 20; // more than exist counts as all
        let others = payer.take(Resource::Turns, ALL).await;
        let mut asking = pin!(asking);
        let early = timeout(Duration::from_millis(50), &mut asking).await;
        assert!(early.is_err(), "needs no turn");
        drop(others);
        let others = timeout(Duration::from_secs(5), payer.take(Resource::Turns, ALL)).await;
        assert!(others.is_ok(), "keeps a turn and does not use it");
    }

    /// A job of 100 ms frees its place 300 ms after its end, also if its caller is gone; the turn itself is free at
    /// once.
    #[tokio::test(start_paused = true)]
    async fn paced_work_rests_for_longer_than_it_took() {
        const LONG: Duration = Duration::from_millis(100);
        let payer = Budget::default().payer_of(&http::Extensions::new());
        for is_given_up in [false, true] {
            let (begin, begun) = tokio::sync::oneshot::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let mut work = Box::pin(run_paced(&payer, move || {
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
            assert!(ended.elapsed() >= LONG * RESTS, "{:?} after its end", ended.elapsed());
        }
    }

    /// The streams of one connection were in line before a later one of another connection.
    #[tokio::test]
    async fn connections_take_turns_for_a_place() {
        let accounts = Accounts::new([[8, 8, 8, 1]; RESOURCES]);
        let [busy, other] = [(); 2].map(|()| accounts.connection([10, 0, 0, 1].into()));
        let all = other.take(Resource::Paced, 1).await;
        let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (n, connection) in [&busy, &busy, &busy, &other].into_iter().enumerate() {
            let (payer, done) = (connection.for_call(None), done.clone());
            tokio::spawn(async move { run_paced(&payer, move || done.send(n)).await });
            tokio::task::yield_now().await;
        }
        while accounts.waiting(Resource::Paced) < 2 {
            tokio::task::yield_now().await;
        }
        drop(all);
        let mut came = Vec::new();
        for _ in 0..4 {
            came.extend(order.recv().await);
        }
        assert_eq!(came[..2], [0, 3], "{came:?}");
    }
}
