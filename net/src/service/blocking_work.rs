//! Blocking work: work that occupies a thread for a while, such as disk reads or decompression. The number of such
//! jobs at a time is small.
//!
//! ```text
//! body of an answer ── awaits ──> task: a turn ──> thread that may block: the work
//!      │ dropped                    │ ends,        │ continues to its end, and keeps the turn
//!                                   │ leaves the line   until then
//! ```
//!
//! Records can be in the object store alone. To read these takes no turn but a place among such reads ([`run_reading`]): while the store
//! does not answer, they delay each other, and nobody who reads files. Only in its turn a read finds out where its records are, because
//! that may take a look at the disk.
//!
//! Work that costs a client next to nothing to request is paced ([`run_paced`]). It takes a place before its turn.
//! Afterwards the place stays taken for three times as long as the work took. So the paced jobs use at most a quarter
//! of the time of as many processors as there are places. Only one job of each connection waits for a place at a time:
//! connections alternate, however many streams they have.
//!
//! Invariants:
//! - a separate task waits for the turn and uses it at once. HTTP/2 does not poll a body whose client gives no window:
//!   a turn that was granted to that body would stay unused as long as the client likes;
//! - nothing waits for the object store in a turn;
//! - every caller takes memory before the turn: a job with a turn waits for nothing. A read of the object store takes it
//!   once it has a place. A job with a place waits only for
//!   a turn; the number of places bounds its memory.
//!
//! Must not know: what the work is.

use crate::listener::auth::tokens::{Payer, Resource, Share};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

/// A place rests for this multiple of its work's time,
const RESTS: u32 = 3;
/// and at most for this long: a process that was stopped during the work did not work for that time.
const REST_MAX: Duration = Duration::from_secs(1);

/// A read of the object store waits for memory with a place, which others want, for this long.
const MEMORY_WAIT: Duration = Duration::from_secs(5);

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

/// Reads from `source` on a thread that may block, with memory that was taken for the answer: in a turn if what is read is in files, else
/// in a place among the reads of the object store. `is_in_files` says so, and may read the disk.
///
/// # Errors
/// The runtime is shutting down, or the work has panicked.
pub(crate) async fn run_reading<S: Send + 'static, T: Send + 'static>(
    payer: &Arc<Payer>,
    source: S,
    ahead: Option<Share>,
    is_in_files: impl FnOnce(&S) -> bool + Send + 'static,
    read: impl FnOnce(S, Option<Share>) -> T + Send + 'static,
) -> Result<T, JoinError> {
    let trying = run_blocking(payer, move || match is_in_files(&source) {
        true => Ok(read(source, ahead)),
        false => Err((source, ahead, read)),
    });
    let (source, ahead, read) = match trying.await? {
        Ok(done) => return Ok(done),
        Err(cold) => cold,
    };
    let payer = payer.clone();
    let working = async move {
        let (place, ahead) = cold_place(&payer, ahead).await;
        let working = spawn_blocking(move || {
            let _held = place;
            read(source, ahead)
        });
        working.await
    };
    let mut task = Task(tokio::spawn(working));
    (&mut task.0).await?
}

/// Waits for a place among the reads of the object store, and then for as much memory again as was taken. In line, a read holds no memory
/// that readers of files need; and without memory the place is given to others.
async fn cold_place(payer: &Arc<Payer>, ahead: Option<Share>) -> (Share, Option<Share>) {
    let pieces = ahead.as_ref().map(Share::amount);
    drop(ahead);
    loop {
        let place = payer.take(Resource::ColdReads, 1).await;
        let Some(pieces) = pieces else { return (place, None) };
        if let Ok(ahead) = timeout(MEMORY_WAIT, payer.take(Resource::Answers, pieces)).await {
            return (place, Some(ahead));
        }
    }
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
    use crate::service::tail::tests::Silence;
    use futures_util::FutureExt as _;
    use std::pin::pin;
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

    /// Polls this until it reads in the store, which is silent. Turns are free meanwhile.
    pub(crate) async fn keeps_no_turn<T>(
        payer: &Arc<Payer>,
        store: Silence,
        asking: impl Future<Output = T>,
    ) -> T {
        const ALL: usize = 1 << 20; // more than exist counts as all
        const LONG: Duration = Duration::from_secs(60);
        let mut asking = pin!(asking);
        tokio::select! {
            _ = &mut asking => panic!("it came from files"),
            () = store.asked() => {}
        }
        let turns = timeout(LONG, payer.take(Resource::Turns, ALL)).await;
        assert!(turns.is_ok(), "keeps a turn while it waits for the store");
        let places = payer.take(Resource::ColdReads, ALL).now_or_never();
        assert!(places.is_none(), "reads in the store without a place");
        drop((turns, store));
        asking.await
    }

    /// Readers of files go on while all places for reads of the store are taken; those of the store wait.
    #[tokio::test]
    async fn reads_of_the_store_delay_no_reads_of_files() {
        let payer = Budget::default().payer_of(&http::Extensions::new());
        let places = payer.take(Resource::ColdReads, 1 << 20).await;
        let add = |source: i32, _: Option<Share>| source + 1;
        let memory = payer.take(Resource::Answers, 1 << 20).await;
        assert_eq!(run_reading(&payer, 1, Some(memory), |_| true, add).await.unwrap(), 2);
        let memory = payer.take(Resource::Answers, 1 << 20).await;
        let mut cold = Box::pin(run_reading(&payer, 2, Some(memory), |_| false, add));
        assert!(timeout(Duration::from_millis(50), &mut cold).await.is_err(), "needs no place");
        drop(payer.take(Resource::Turns, 1 << 20).await);
        let memory = timeout(Duration::from_secs(60), payer.take(Resource::Answers, 1 << 20)).await;
        assert!(memory.is_ok(), "holds memory while it waits for a place");
        drop((places, memory));
        assert_eq!(cold.await.unwrap(), 3);
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
