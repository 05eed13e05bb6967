//! Places: how many connections are open, of all clients together and of each address; and which one leaves when one more
//! comes and there is no room.
//!
//! | one more comes, and | leaves |
//! |---|---|
//! | all places are taken | of the addresses that have one to spare, the one with most connections that proved nothing: the oldest to spare |
//! | all of its address are taken | the oldest of that address that proved nothing |
//! | every connection that could leave has proved something, or has a call open | the one that comes |
//!
//! To spare is a connection that proved nothing and has no call open, except health checks. A connection proves something when a
//! call on it is let in that needs a role, or by a client's certificate.
//!
//! Invariants:
//! - a place is counted until it is dropped or taken away, and no longer; an address without a place is not remembered;
//! - a connection that proved something keeps its place.
//!
//! Must not know: sockets.

use crate::listener::refusals::Refusal;
use crate::listener::stalled_calls::Calls;
use futures_util::task::AtomicWaker;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

/// The bits of an IPv6 address that name a network. A host has all that there are within one.
const NETWORK_BITS: u32 = 64;

/// Places for so many connections.
#[derive(Debug)]
pub(crate) struct Places {
    all_max: usize,
    of_address_max: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    next: u64,
    of: HashMap<IpAddr, OfAddress>,
}

#[derive(Debug, Default)]
struct OfAddress {
    count: usize,
    /// Those that proved nothing yet, the oldest first.
    unproven: BTreeMap<u64, Arc<Signal>>,
}

impl OfAddress {
    fn oldest_to_spare(&self) -> Option<u64> {
        let is_idle = |signal: &Signal| signal.calls.get().is_none_or(|calls| !calls.has_one_let_in());
        self.unproven.iter().find(|(_, signal)| is_idle(signal)).map(|(number, _)| *number)
    }
}

/// Tells a connection that its place is taken away.
#[derive(Debug, Default)]
struct Signal {
    /// Its place is counted no more: it was taken away or given back. Changes under the lock of the places.
    is_taken: AtomicBool,
    waker: AtomicWaker,
    /// The calls on it; not yet known during a handshake.
    calls: OnceLock<Arc<Calls>>,
}

// Nothing panics under the lock.
fn locked(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One address as it counts: that of IPv4, the network of IPv6.
pub(crate) fn address(remote: IpAddr) -> IpAddr {
    match remote.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> NETWORK_BITS << NETWORK_BITS).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

impl Places {
    pub(crate) fn new(all_max: usize, of_address_max: usize) -> Self {
        Self { all_max, of_address_max, taken: Arc::default() }
    }

    /// One for a connection from there; and whether another one was taken away for it, because of which limit.
    ///
    /// # Errors
    /// Which limit is reached.
    pub(crate) fn take(&self, remote: IpAddr) -> Result<(Place, Option<Refusal>), Refusal> {
        let address = address(remote);
        let mut taken = locked(&self.taken);
        let of_address = taken.of.get(&address).map_or(0, |of| of.count);
        let limit = if taken.all >= self.all_max {
            Some(Refusal::Connections)
        } else {
            (of_address >= self.of_address_max).then_some(Refusal::ConnectionsOfAddress)
        };
        let mut leaves = None;
        if let Some(limit) = limit {
            let within = (of_address >= self.of_address_max).then_some(address);
            leaves = Some(taken.make_room(within).ok_or(limit)?);
        }
        taken.all += 1;
        taken.next += 1;
        let (number, signal) = (taken.next, Arc::<Signal>::default());
        let of = taken.of.entry(address).or_default();
        of.count += 1;
        of.unproven.insert(number, signal.clone());
        drop(taken);
        if let Some(left) = leaves {
            left.waker.wake();
        }
        Ok((Place { seat: Seat { address, number, signal, taken: self.taken.clone() } }, limit))
    }
}

impl Taken {
    /// Takes away the place of a connection that proved nothing and has no call open that keeps it; of this address, or of
    /// the one that has most that proved nothing, among those that have one to spare. None: there is none.
    fn make_room(&mut self, within: Option<IpAddr>) -> Option<Arc<Signal>> {
        let (address, number) = match within {
            Some(address) => (address, self.of.get(&address)?.oldest_to_spare()?),
            None => {
                // Of equal addresses the one with the oldest connection to spare.
                let mut most: Option<(usize, IpAddr, u64)> = None;
                for (address, of) in &self.of {
                    let count = of.unproven.len();
                    if most.is_none_or(|(most, ..)| count >= most)
                        && let Some(number) = of.oldest_to_spare()
                        && most.is_none_or(|(most, _, oldest)| count > most || number < oldest)
                    {
                        most = Some((count, *address, number));
                    }
                }
                let (_, address, number) = most?;
                (address, number)
            }
        };
        let signal = self.leave(address, number)?;
        signal.is_taken.store(true, Ordering::Release);
        Some(signal)
    }

    /// A place is given back. Some: it had proved nothing.
    fn leave(&mut self, address: IpAddr, number: u64) -> Option<Arc<Signal>> {
        let of = self.of.get_mut(&address)?;
        let signal = of.unproven.remove(&number);
        self.all -= 1;
        of.count -= 1;
        if of.count == 0 {
            self.of.remove(&address);
        }
        signal
    }
}

/// A place, until it is dropped or taken away.
#[derive(Debug)]
pub(crate) struct Place {
    seat: Seat,
}

/// The place of a connection, for the layers that know what it proved.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    address: IpAddr,
    number: u64,
    signal: Arc<Signal>,
    taken: Arc<Mutex<Taken>>,
}

impl Place {
    pub(crate) fn seat(&self) -> Seat {
        self.seat.clone()
    }

    /// Ready: it was taken away, and the connection has to end.
    pub(crate) fn poll_taken_away(&self, context: &mut Context<'_>) -> Poll<()> {
        let Signal { is_taken, waker, .. } = &*self.seat.signal;
        waker.register(context.waker());
        if is_taken.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Seat {
    /// Tells which calls are on the connection.
    pub(crate) fn of_calls(&self, calls: &Arc<Calls>) {
        let _ = self.signal.calls.set(calls.clone());
    }

    /// The connection counts as one that proved nothing: another one may have its place. One without a place changes nothing.
    pub(crate) fn disprove(&self) {
        let mut taken = locked(&self.taken);
        if !self.signal.is_taken.load(Ordering::Acquire)
            && let Some(of) = taken.of.get_mut(&self.address)
        {
            of.unproven.insert(self.number, self.signal.clone());
        }
    }

    /// The connection keeps its place from now on.
    pub(crate) fn prove(&self) {
        if let Some(of) = locked(&self.taken).of.get_mut(&self.address) {
            of.unproven.remove(&self.number);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = locked(&self.seat.taken);
        if !self.seat.signal.is_taken.swap(true, Ordering::AcqRel) {
            taken.leave(self.seat.address, self.seat.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::stalled_calls::Weight;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A place that has proved something.
    fn proven(places: &Places, from: IpAddr) -> Result<Place, Refusal> {
        places.take(from).map(|(place, _)| {
            place.seat().prove();
            place
        })
    }

    fn is_taken_away(place: &Place) -> bool {
        place.poll_taken_away(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn an_address_has_so_many_and_all_have_so_many() {
        let places = Places::new(5, 2);
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip);
        let mut open: Vec<Place> = [a, b, a, b].map(|from| proven(&places, from).unwrap()).into();
        assert_eq!(proven(&places, a).unwrap_err(), Refusal::ConnectionsOfAddress);
        open.push(proven(&places, c).unwrap());
        // All are taken: that is said first.
        assert_eq!(proven(&places, c).unwrap_err(), Refusal::Connections);
        assert_eq!(proven(&places, a).unwrap_err(), Refusal::Connections);
        drop(open.remove(0));
        open.push(proven(&places, a).unwrap());
        drop(open.pop());
        open.push(proven(&places, c).unwrap());
        drop(open);
        let taken = locked(&places.taken);
        assert_eq!((taken.all, taken.of.len()), (0, 0), "nothing is remembered");
    }

    #[test]
    fn the_oldest_unproven_of_the_address_with_most_leaves() {
        let places = Places::new(7, 5);
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip);
        let take = |from| places.take(from).unwrap();
        let kept = proven(&places, a).unwrap();
        let open: Vec<Place> = [b, a, a, a, a, b].map(|from| take(from).0).into();
        // All places are taken; `a` has most that proved nothing.
        let (first, why) = take(c);
        assert_eq!(why, Some(Refusal::Connections));
        let gone: Vec<bool> = open.iter().map(is_taken_away).collect();
        assert_eq!(gone, [false, true, false, false, false, false]);
        // One that has a call open stays.
        let calls = Calls::new();
        open[2].seat().of_calls(&calls);
        let call = calls.begin(Default::default(), Weight::Full);
        let (second, _) = take(c);
        assert!(is_taken_away(&open[3]) && !is_taken_away(&open[2]));
        drop(call);
        // An address at its own limit makes room of its own.
        let more: Vec<Place> = [c, c].map(|from| take(from).0).into();
        assert_eq!(take(c).1, Some(Refusal::Connections));
        assert!(is_taken_away(&first) && !is_taken_away(&kept));
        drop((open, more, first, second, kept));
        let taken = locked(&places.taken);
        assert_eq!((taken.all, taken.of.len()), (0, 0), "a place that was taken away is given back once");
    }

    /// A role that was taken back after the connection had ended left a place behind that was given away again.
    #[test]
    fn place_of_an_ended_connection_is_not_given_away() {
        let places = Places::new(2, 2);
        let from = ip("10.0.0.1");
        let kept = proven(&places, from).unwrap();
        let ended = proven(&places, from).unwrap();
        let seat = ended.seat();
        drop(ended);
        seat.disprove();
        let other = proven(&places, from).unwrap();
        assert_eq!(proven(&places, from).unwrap_err(), Refusal::Connections);
        // A place that was taken away is not given away again either.
        kept.seat().disprove();
        let next = proven(&places, from).unwrap();
        assert!(is_taken_away(&kept));
        kept.seat().disprove();
        assert_eq!(proven(&places, from).unwrap_err(), Refusal::Connections);
        drop((kept, other, next));
        let taken = locked(&places.taken);
        assert_eq!((taken.all, taken.of.len()), (0, 0));
    }

    /// The address with most had only busy ones: nobody got in, although another address had one to spare.
    #[test]
    fn next_address_makes_room_when_all_of_the_first_are_busy() {
        let places = Places::new(4, 4);
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip);
        let open: Vec<Place> = [a, a, a, b].map(|from| places.take(from).unwrap().0).into();
        let calls: Vec<_> = open.iter().map(|place| (Calls::new(), place.seat())).collect();
        calls.iter().for_each(|(calls, seat)| seat.of_calls(calls));
        let begin = |of: usize, weight| calls[of].0.begin(Default::default(), weight);
        let busy = [0, 1, 2].map(|of| begin(of, Weight::Full));
        let _check = begin(3, Weight::Light);
        let (last, why) = places.take(c).unwrap();
        assert_eq!(why, Some(Refusal::Connections));
        assert_eq!(open.iter().map(is_taken_away).collect::<Vec<_>>(), [false, false, false, true]);
        // Without one to spare, the new one leaves.
        let calls = Calls::new();
        last.seat().of_calls(&calls);
        let _call = calls.begin(Default::default(), Weight::Full);
        assert_eq!(places.take(b).unwrap_err(), Refusal::Connections);
        drop(busy);
        places.take(b).unwrap();
        assert!(is_taken_away(&open[0]));
    }

    #[test]
    fn a_host_is_one_address_whatever_it_writes_there() {
        assert_eq!(address(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_ne!(address(ip("10.0.0.1")), address(ip("10.0.0.2")));
        assert_eq!(address(ip("2001:db8:1:2::1")), address(ip("2001:db8:1:2:ffff:ffff:ffff:ffff")));
        assert_ne!(address(ip("2001:db8:1:2::1")), address(ip("2001:db8:1:3::1")));
    }
}
