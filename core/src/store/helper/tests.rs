//! Tests of the helper thread, with work that records its order.

use super::*;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct NoLock(Sender<()>);

impl Lock for NoLock {}

impl Drop for NoLock {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Jobs of one log.
#[derive(Default)]
struct Work {
    jobs: Mutex<VecDeque<(Urgency, Job)>>,
    is_stopped: AtomicBool,
}

impl Work {
    fn add(&self, urgency: Urgency, job: impl FnOnce() + Send + 'static) {
        self.jobs.lock().unwrap().push_back((urgency, Box::new(job)));
    }
}

impl HelperWork for Work {
    fn urgency(&self) -> Option<Urgency> {
        self.jobs.lock().unwrap().front().map(|(urgency, _)| *urgency)
    }

    fn work(&self) {
        let job = self.jobs.lock().unwrap().pop_front();
        if let Some((_, job)) = job {
            job();
        }
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// Logs that share a thread, which waits in a job of the first one until it is let go.
struct Rig {
    helpers: Helpers,
    works: Vec<Arc<Work>>,
    shares: Vec<Share>,
    unlocked: Vec<Receiver<()>>,
}

impl Rig {
    fn new(logs: usize) -> Self {
        let mut rig = Self { helpers: Helpers::default(), works: vec![], shares: vec![], unlocked: vec![] };
        (0..logs).for_each(|_| rig.join(1));
        rig
    }

    fn join(&mut self, device: u64) {
        let (work, (sent, received)) = (Arc::new(Work::default()), channel());
        let share = self.helpers.join(device, Path::new("/"), work.clone(), Arc::new(NoLock(sent))).unwrap();
        self.works.push(work);
        self.shares.push(share);
        self.unlocked.push(received);
    }

    /// Has the thread wait in a job of log `n` until the sender is used. Returns once it does.
    fn hold(&self, n: usize) -> Sender<()> {
        let ((go, held), (begun, begins)) = (channel::<()>(), channel());
        self.works[n].add(Urgency::Ahead, move || {
            begun.send(()).unwrap();
            held.recv().unwrap();
        });
        self.shares[n].helper.wake();
        begins.recv_timeout(LONG).unwrap();
        go
    }

    /// Has all logs leave.
    fn end(self) {
        self.works.iter().for_each(|work| work.stop());
        self.shares.into_iter().for_each(|share| assert!(share.leave()));
    }
}

/// A job that notes its name.
fn noting(order: &Arc<Mutex<Vec<String>>>, name: impl Into<String>) -> impl FnOnce() + Send + 'static {
    let (order, name) = (order.clone(), name.into());
    move || order.lock().unwrap().push(name)
}

#[test]
fn awaited_work_comes_first_and_each_log_has_its_turn() {
    let rig = Rig::new(4);
    let order = Arc::<Mutex<Vec<String>>>::default();
    let go = rig.hold(0);
    for n in 1..4 {
        for step in 0..2 {
            rig.works[n].add(Urgency::Later, noting(&order, format!("later {n} {step}")));
        }
    }
    rig.works[0].add(Urgency::Ahead, noting(&order, "ahead"));
    rig.works[0].add(Urgency::Awaited, noting(&order, "awaited"));
    go.send(()).unwrap();
    let (sent, done) = channel();
    rig.works[3].add(Urgency::Later, move || sent.send(()).unwrap());
    rig.shares[3].helper.wake();
    done.recv_timeout(LONG).unwrap();
    let order = order.lock().unwrap().clone();
    assert_eq!(order[..2], ["ahead", "awaited"], "what can wait comes last");
    assert_eq!(order[2..5], ["later 1 0", "later 2 0", "later 3 0"], "each log has its turn");
    assert_eq!(order[5..], ["later 1 1", "later 2 1", "later 3 1"]);
    rig.end();
}

#[test]
fn long_job_gives_way_to_what_others_wait_for() {
    let rig = Rig::new(3);
    let order = Arc::<Mutex<Vec<String>>>::default();
    let (go, held) = channel::<()>();
    let (begun, begins) = channel();
    let helper = rig.shares[0].helper.clone();
    let noted = order.clone();
    rig.works[0].add(Urgency::Ahead, move || {
        begun.send(()).unwrap();
        held.recv().unwrap();
        helper.give_way();
        noted.lock().unwrap().push("filled".into());
    });
    helper_of(&rig).wake();
    begins.recv_timeout(LONG).unwrap();
    rig.works[1].add(Urgency::Short, noting(&order, "short"));
    let (helper, first) = (helper_of(&rig).clone(), noting(&order, "awaited"));
    rig.works[2].add(Urgency::Awaited, move || {
        helper.give_way(); // no third level
        first();
    });
    go.send(()).unwrap();
    let (sent, done) = channel();
    rig.works[2].add(Urgency::Later, move || sent.send(()).unwrap());
    helper_of(&rig).wake();
    done.recv_timeout(LONG).unwrap();
    assert_eq!(*order.lock().unwrap(), ["awaited", "filled", "short"]);
    helper_of(&rig).give_way(); // on another thread: nothing
    rig.end();
}

fn helper_of(rig: &Rig) -> &Arc<Helper> {
    rig.shares[0].helper()
}

#[test]
fn work_that_can_wait_is_not_put_off_for_ever() {
    let rig = Rig::new(2);
    let order = Arc::<Mutex<Vec<String>>>::default();
    let go = rig.hold(0);
    for _ in 0..100 {
        rig.works[0].add(Urgency::Ahead, noting(&order, "ahead"));
    }
    let (sent, done) = channel();
    rig.works[1].add(Urgency::Later, noting(&order, "later"));
    rig.works[0].add(Urgency::Ahead, move || sent.send(()).unwrap());
    go.send(()).unwrap();
    done.recv_timeout(LONG).unwrap();
    let at = order.lock().unwrap().iter().position(|name| name == "later").unwrap();
    assert!(at <= PASSED_MAX as usize, "{at}");
    rig.end();
}

#[test]
fn panic_ends_the_work_of_its_own_log_alone() {
    let mut rig = Rig::new(3);
    rig.works[1].add(Urgency::Ahead, || panic!("planned"));
    helper_of(&rig).wake();
    rig.unlocked[1].recv_timeout(LONG).unwrap();
    assert!(rig.works[1].is_stopped());
    assert!(!rig.shares.remove(1).leave(), "the close of its log reports it");
    let (sent, done) = channel();
    rig.works[2].add(Urgency::Later, move || sent.send(()).unwrap());
    helper_of(&rig).wake();
    done.recv_timeout(LONG).unwrap();
    rig.end();
}

#[test]
fn log_leaves_while_a_job_of_another_log_runs() {
    let mut rig = Rig::new(3);
    let go = rig.hold(0);
    rig.works[1].add(Urgency::Short, || panic!("it was stopped before"));
    rig.works[1].stop();
    assert!(rig.shares.remove(1).leave());
    rig.unlocked[1].try_recv().unwrap();
    go.send(()).unwrap();
    // The last ones leave beside each other.
    rig.works.iter().for_each(|work| work.stop());
    let leaving: Vec<_> =
        rig.shares.into_iter().map(|share| std::thread::spawn(move || share.leave())).collect();
    assert!(leaving.into_iter().all(|left| left.join().unwrap()));
}

#[test]
fn log_leaves_after_its_job_and_the_others_go_on() {
    let mut rig = Rig::new(2);
    let go = rig.hold(0);
    rig.works[0].stop();
    let first = rig.shares.remove(0);
    let leaving = std::thread::spawn(move || first.leave());
    assert!(rig.unlocked[0].try_recv().is_err(), "its job still runs");
    go.send(()).unwrap();
    assert!(leaving.join().unwrap());
    rig.unlocked[0].recv_timeout(LONG).unwrap();
    let (sent, done) = channel();
    rig.works[1].add(Urgency::Later, move || sent.send(()).unwrap());
    rig.shares[0].helper.wake();
    done.recv_timeout(LONG).unwrap();
    // The thread ends with the last log; the next one gets a new thread.
    let ended = rig.shares[0].helper.clone();
    rig.works[1].stop();
    assert!(rig.shares.remove(0).leave());
    assert!(ended.members().has_ended && ended.thread.lock().unwrap().is_none());
    rig.join(1);
    rig.join(2);
    assert!(!Arc::ptr_eq(&rig.shares[0].helper, &ended));
    assert!(!Arc::ptr_eq(&rig.shares[0].helper, &rig.shares[1].helper), "another disk");
    rig.end();
}
