//! Notices: `tracing` events as texts for one callback. A process has one callback, so these tests run one at a time.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::ErrorKind;
use chiplog_net::client::{Client, ClientOptions};
use chiplog_net::notices::{Notice, Notices, Severity};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::Level;

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The notices that were passed on.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<String>>>);

impl Received {
    fn callback(&self) -> impl Fn(Notice<'_>) + Send + Sync + 'static {
        let received = self.clone();
        move |n| received.0.lock().unwrap().push(format!("{:?} {}: {}", n.severity, n.target, n.text))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[test]
fn events_of_the_wanted_severity_are_one_text_each() {
    let _turn = turn();
    let received = Received::default();
    Notices::subscribe(Severity::Info, received.callback()).unwrap();
    let error = std::io::Error::other("no such thing");
    tracing::error!(target: "chiplog::store", %error, segment = 7, name = "a b", "damage was found");
    tracing::warn!(target: "chiplog_net::peer", "{} of {} peers are silent", 1, 2);
    tracing::info!(target: "chiplog", limit = ?Some(3));
    tracing::debug!(target: "chiplog", "not wanted");
    tracing::error!(target: "h2::client", "of another crate");
    let _span = tracing::error_span!(target: "chiplog", "a span is not an event").entered();
    let wanted = [
        "Error chiplog::store: damage was found error=no such thing segment=7 name=\"a b\"",
        "Warn chiplog_net::peer: 1 of 2 peers are silent",
        "Info chiplog: limit=Some(3)",
    ];
    assert_eq!(received.take(), wanted);
    Notices::stop().unwrap();
    tracing::error!(target: "chiplog", "there is no callback");
    assert!(received.take().is_empty());
}

/// A client without a server was silent until its time was up.
#[tokio::test(flavor = "current_thread")]
#[allow(clippy::await_holding_lock, reason = "the tests run one at a time")]
async fn client_that_waits_for_servers_says_once_why() {
    let _turn = turn();
    let received = Received::default();
    Notices::subscribe(Severity::Warn, received.callback()).unwrap();
    // Ports that are bound and where nothing listens.
    let bound = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let options = |millis| ClientOptions::default().timeout(Duration::from_millis(millis));
    let connect = |millis| Client::connect(bound.map(|at| at.to_string()), options(millis));
    assert_eq!(connect(500).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(received.take().is_empty());
    assert_eq!(connect(3000).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let said = received.take();
    let [a, b] = bound;
    let begins = format!("not connected yet to any of {a}, {b}: ");
    assert!(said.len() == 1 && said[0].contains(&begins), "{said:?}");
    assert!(said[0].contains("refused") && said[0].ends_with("; trying for up to 3 s"), "{said:?}");
    Notices::stop().unwrap();
}

/// The log's own notices: opening it logs something at some level.
#[test]
fn notices_of_the_log_are_passed_on() {
    let _turn = turn();
    let received = Received::default();
    Notices::subscribe(Severity::Info, received.callback()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20)).unwrap();
    log.append(b"one").unwrap();
    log.discard(log.append(b"two").unwrap()).unwrap();
    log.close().unwrap();
    Notices::stop().unwrap();
    let lines = received.take();
    assert!(lines.iter().any(|line| line.contains("records before the first were discarded")), "{lines:?}");
}

#[test]
fn unwanted_events_are_disabled() {
    let _turn = turn();
    let enabled = || {
        Severity::ALL.map(|severity| match severity {
            Severity::Error => tracing::enabled!(target: "chiplog::x", Level::ERROR),
            Severity::Warn => tracing::enabled!(target: "chiplog::x", Level::WARN),
            Severity::Info => tracing::enabled!(target: "chiplog::x", Level::INFO),
            Severity::Debug => tracing::enabled!(target: "chiplog::x", Level::DEBUG),
            Severity::Trace => tracing::enabled!(target: "chiplog::x", Level::TRACE),
        })
    };
    for severity in [Severity::Warn, Severity::Trace, Severity::Error, Severity::Debug, Severity::Info] {
        Notices::subscribe(severity, |_| ()).unwrap();
        assert_eq!(enabled(), Severity::ALL.map(|one| one <= severity), "{severity:?}");
    }
    Notices::stop().unwrap();
    assert_eq!(enabled(), [false; 5]);
}

/// A context that was freed after `stop` had returned was passed to a callback that was still running.
#[test]
fn no_notice_follows_stop() {
    let _turn = turn();
    let (done, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..2)
        .map(|n| {
            let done = done.clone();
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    tracing::warn!(target: "chiplog", n, "again");
                }
            })
        })
        .collect();
    let late = Arc::new(AtomicBool::new(false));
    let mut rounds = 0;
    while rounds < 200 || count.load(Ordering::Relaxed) == 0 {
        let over = Arc::new(AtomicBool::new(false));
        let (is_over, count, is_late) = (over.clone(), count.clone(), late.clone());
        let callback = move |_: Notice<'_>| {
            std::thread::yield_now();
            is_late.fetch_or(is_over.load(Ordering::SeqCst), Ordering::SeqCst);
            count.fetch_add(1, Ordering::Relaxed);
        };
        Notices::subscribe(Severity::Warn, callback).unwrap();
        std::thread::yield_now();
        if rounds % 2 == 0 {
            Notices::stop().unwrap();
        } else {
            Notices::subscribe(Severity::Warn, |_| ()).unwrap(); // replaces the previous one
        }
        over.store(true, Ordering::SeqCst);
        rounds += 1;
    }
    done.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    Notices::stop().unwrap();
    assert!(!late.load(Ordering::SeqCst), "it ran after `stop` had returned");
}

#[test]
fn callback_gets_no_own_events_and_cannot_stop_itself() {
    let _turn = turn();
    let received = Received::default();
    let callback = received.callback();
    let refused = Arc::new(Mutex::new(Vec::new()));
    let kinds = refused.clone();
    let callback = move |notice: Notice<'_>| {
        assert!(Notices::is_inside());
        tracing::error!(target: "chiplog", "from the callback itself");
        assert!(Notices::is_inside(), "its own event did not end the callback");
        let [stop, other] = [Notices::stop(), Notices::subscribe(Severity::Error, |_| ())];
        kinds.lock().unwrap().extend([stop, other].map(|refused| refused.unwrap_err().kind()));
        callback(notice);
        panic!("ignored");
    };
    Notices::subscribe(Severity::Warn, callback).unwrap();
    tracing::warn!(target: "chiplog", "one");
    tracing::warn!(target: "chiplog", "two");
    Notices::stop().unwrap();
    assert!(!Notices::is_inside());
    assert_eq!(received.take(), ["Warn chiplog: one", "Warn chiplog: two"]);
    assert_eq!(*refused.lock().unwrap(), [ErrorKind::InvalidArgument; 4]);
}

const OTHER: &str = "in_a_process_with_another_subscriber";

#[test]
fn program_keeps_its_own_subscriber() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let out = child.args(["--exact", OTHER, "--ignored", "--nocapture"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stdout).contains("1 passed"), "{OTHER} did not run");
}

#[test]
#[ignore = "run by program_keeps_its_own_subscriber, in a process of its own"]
fn in_a_process_with_another_subscriber() {
    tracing::subscriber::set_global_default(tracing::subscriber::NoSubscriber::default()).unwrap();
    for _ in 0..2 {
        let refused = Notices::subscribe(Severity::Error, |_| panic!("must not be called")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("subscriber"), "{refused}");
    }
    Notices::stop().unwrap();
}
