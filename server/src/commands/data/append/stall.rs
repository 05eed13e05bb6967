//! Stall: reports when the servers have records and confirm none of them for a while.

use super::pump::Shared;
use crate::common::format;
use crate::connect::remote::{GivenServers, Stall};
use chiplog::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// If no server accepts a record within this time, the command ends.
pub(super) const DELIVERY: Duration = Duration::from_secs(60);
/// The same if the log is full.
pub(super) const FULL_MAX: Duration = Duration::from_secs(5);
/// How often a wait checks whether it should end.
pub(super) const STOP_CHECK: Duration = Duration::from_millis(250);
/// How long nothing is confirmed before that is reported. An election takes less.
const REPORT_AFTER: Duration = Duration::from_secs(3);

/// Reports each stall once: why, and until when the command waits. Never returns.
pub(super) async fn report(shared: Arc<Shared>, servers: GivenServers) {
    let waiting = || shared.is_waiting().then(|| shared.settled());
    let why = || {
        let servers = servers.clone();
        async move { servers.why().await }
    };
    watch(REPORT_AFTER, waiting, why, |what| servers.say(what)).await;
}

/// Reports to `say` what `why` answers, once `waiting` has been the same for longer than `after`: how many have a result,
/// while something has none.
async fn watch<W: Future<Output = Stall>>(
    after: Duration,
    waiting: impl Fn() -> Option<u64>,
    why: impl Fn() -> W,
    say: impl Fn(&str),
) {
    let (mut settled, mut since, mut is_told) = (None, Instant::now(), false);
    loop {
        tokio::time::sleep(STOP_CHECK).await;
        let now = waiting();
        if now.is_none() || now != settled {
            (settled, since, is_told) = (now, Instant::now(), false);
        } else if !is_told && since.elapsed() > after {
            let why = why().await;
            // The answer takes a while, in which the stall can end.
            if waiting() != settled {
                settled = None;
                continue;
            }
            is_told = true;
            say(&words(&why, since.elapsed()));
        }
    }
}

/// The report of a stall that has lasted for this long.
fn words(why: &Stall, lasted: Duration) -> String {
    let left = DELIVERY.saturating_sub(lasted);
    let until = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + left;
    let until = format::time(Timestamp(until.as_secs() * 1000));
    let seconds = left.as_secs();
    match why {
        Stall::Full(why) => format!(
            "the log is full; waiting {} s in all for room, and sending again: {why}",
            FULL_MAX.as_secs()
        ),
        Stall::PerhapsFull(why) => format!(
            "the servers confirm nothing; waiting up to {seconds} s, until {until}, or {} s in all if the log is full, and sending again: {why}",
            FULL_MAX.as_secs()
        ),
        Stall::Other(why) => format!(
            "the servers confirm nothing; waiting up to {seconds} s, until {until}, and sending again: {why}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// A stall that lasts is reported, and one that ends while the servers are asked why is not.
    #[test]
    fn stall_that_ends_meanwhile_is_not_reported() {
        for (ends, reports) in [(false, 1), (true, 0)] {
            let (settled, asked, said) = (AtomicU64::new(3), AtomicU64::new(0), Mutex::new(Vec::new()));
            let why = || {
                asked.fetch_add(1, Relaxed);
                settled.fetch_add(ends.into(), Relaxed);
                std::future::ready(Stall::Other("it is slow".to_owned()))
            };
            let say = |what: &str| said.lock().unwrap().push(what.to_owned());
            let watched = watch(Duration::ZERO, || Some(settled.load(Relaxed)), why, say);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let until_asked = async {
                while asked.load(Relaxed) == 0 {
                    tokio::time::sleep(STOP_CHECK).await;
                }
                tokio::time::sleep(STOP_CHECK * 2).await;
            };
            runtime.block_on(async {
                tokio::select! {
                    _ = watched => panic!("the watch has ended"),
                    () = until_asked => {}
                }
            });
            let said = said.into_inner().unwrap();
            assert!(asked.into_inner() > 0 && said.len() == reports, "{said:?}");
            assert!(said.iter().all(|what| what.ends_with("it is slow")), "{said:?}");
        }
    }

    /// It promised nearly a minute, and the command ended after five seconds.
    #[test]
    fn report_of_a_full_log_promises_the_time_that_is_kept() {
        let lasted = Duration::from_secs(4);
        let full = words(&Stall::Full("no space left".into()), lasted);
        assert_eq!(full, "the log is full; waiting 5 s in all for room, and sending again: no space left");
        let perhaps = words(&Stall::PerhapsFull("it answers".into()), lasted);
        assert!(perhaps.contains("up to 56 s, until 2") && perhaps.contains("or 5 s in all if"), "{perhaps}");
        let other = words(&Stall::Other("it is down".into()), lasted);
        assert!(other.contains("up to 56 s, until 2") && !other.contains("full"), "{other}");
    }
}
