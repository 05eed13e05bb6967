//! Places: the number of open connections, in total and per address; and which connection is closed when there is no
//! room for a new one.
//!
//! | limit reached | closed |
//! |---|---|
//! | all places | the oldest spare connection of the address with most unproven connections, among addresses that have a spare one |
//! | all places of its address | the oldest spare connection of that address |
//! | and every other connection is proven, or has a call open | the new connection |
//!
//! A connection is spare if it is unproven and has no open call except health checks. It becomes proven by a call that
//! needs a role and is let in, or by a client certificate.
//!
//! Invariants:
//! - a place is counted until it is dropped or taken away; an address without a place is not remembered;
//! - a proven connection keeps its place.
//!
//! Must not know: sockets.

use crate::listener::stalled_calls::Calls;
use crate::served::refusals::Refusal;
use futures_util::task::AtomicWaker;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

/// The bits of an IPv6 address that name a network. A host can use all addresses of its network.
const NETWORK_BITS: u32 = 64;

/// The places of a listener.
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
    /// Unproven connections, the oldest first.
    unproven: BTreeMap<u64, Arc<Signal>>,
}

impl OfAddress {
    fn oldest_to_spare(&self) -> Option<u64> {
        let is_idle = |signal: &Signal| signal.calls.get().is_none_or(|calls| !calls.has_one_let_in());
        self.unproven.iter().find(|(_, signal)| is_idle(signal)).map(|(number, _)| *number)
    }
}

/// Notifies a connection that its place was taken away.
#[derive(Debug, Default)]
struct Signal {
    /// Its place is no longer counted: it was taken away or returned. Changes under the lock of the places.
    is_taken: AtomicBool,
    waker: AtomicWaker,
    /// Its calls; not known yet during a handshake.
    calls: OnceLock<Arc<Calls>>,
}

// Nothing panics under the lock.
fn locked(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address that counts: the IPv4 address, or the IPv6 network.
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

    /// Takes a place for a connection from this address. If another connection lost its place, also returns the limit.
    ///
    /// # Errors
    /// The limit that is reached.
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
    /// Takes away the place of a spare connection: of this address, or of the address with most unproven connections
    /// among those that have a spare one. None: there is none.
    fn make_room(&mut self, within: Option<IpAddr>) -> Option<Arc<Signal>> {
        let (address, number) = match within {
            Some(address) => (address, self.of.get(&address)?.oldest_to_spare()?),
            None => {
                // Of equal addresses, the one with the oldest spare connection.
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

    /// Returns a place. Some: it was unproven.
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

/// A connection's place, for the layers that authenticate it.
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

    /// Ready: it was taken away, and the connection must end.
    pub(crate) fn poll_taken_away(&self, context: &mut Context<'_>) -> Poll<()> {
        let Signal { is_taken, waker, .. } = &*self.seat.signal;
        waker.register(context.waker());
        if is_taken.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Seat {
    /// Sets the calls of the connection.
    pub(crate) fn of_calls(&self, calls: &Arc<Calls>) {
        let _ = self.signal.calls.set(calls.clone());
    }

    /// Marks the connection as unproven: another one may take its place. Without a place nothing changes.
    pub(crate) fn disprove(&self) {
        let mut taken = locked(&self.taken);
        if !self.signal.is_taken.load(Ordering::Acquire)
            && let Some(of) = taken.of.get_mut(&self.address)
        {
            of.unproven.insert(self.number, self.signal.clone());
        }
    }

    /// Marks the connection as proven: it keeps its place.
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

    /// A proven place.
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
    fn connections_are_limited_per_address_and_in_total() {
        let places = Places::new(5, 2);
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip);
        let mut open: Vec<Place> = [a, b, a, b].map(|from| proven(&places, from).unwrap()).into();
        assert_eq!(proven(&places, a).unwrap_err(), Refusal::ConnectionsOfAddress);
        open.push(proven(&places, c).unwrap());
        // All are taken: this limit is returned first.
        assert_eq!(proven(&places, c).unwrap_err(), Refusal::Connections);
        assert_eq!(proven(&places, a).unwrap_err(), Refusal::Connections);
        drop(open.remove(0));
        open.push(proven(&places, a).unwrap());
        drop(open.pop());
        open.push(proven(&places, c).unwrap());
        drop(open);
        let taken = locked(&places.taken);
        assert_eq!((taken.all, taken.of.len()), (0, 0), "no address is left");
    }

    #[test]
    fn oldest_unproven_of_the_fullest_address_is_closed() {
        let places = Places::new(7, 5);
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip);
        let take = |from| places.take(from).unwrap();
        let kept = proven(&places, a).unwrap();
        let open: Vec<Place> = [b, a, a, a, a, b].map(|from| take(from).0).into();
        // All places are taken; `a` has most unproven ones.
        let (first, why) = take(c);
        assert_eq!(why, Some(Refusal::Connections));
        let gone: Vec<bool> = open.iter().map(is_taken_away).collect();
        assert_eq!(gone, [false, true, false, false, false, false]);
        // A connection with an open call stays.
        let calls = Calls::new();
        open[2].seat().of_calls(&calls);
        let call = calls.begin(Default::default(), Weight::Full);
        let (second, _) = take(c);
        assert!(is_taken_away(&open[3]) && !is_taken_away(&open[2]));
        drop(call);
        // An address at its own limit gives up one of its own places.
        let more: Vec<Place> = [c, c].map(|from| take(from).0).into();
        assert_eq!(take(c).1, Some(Refusal::Connections));
        assert!(is_taken_away(&first) && !is_taken_away(&kept));
        drop((open, more, first, second, kept));
        let taken = locked(&places.taken);
        assert_eq!((taken.all, taken.of.len()), (0, 0), "a place that was taken away is returned once");
    }

    /// A role was revoked after the connection had ended: this left a place behind, which was taken away again.
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
        // A place that was taken away is not taken away again either.
        kept.seat().disprove();
        let next = proven(&places, from).unwrap();
        assert!(is_taken_away(&kept));
        kept.seat().disprove();
        assert_eq!(proven(&places, from).unwrap_err(), Refusal::Connections);
        drop((kept, other, next));
        let taken = locked(&places.taken);
        assert_eq!((taken.all, taken.of.len()), (0, 0));
    }

    /// The address with most connections had only busy ones: no client could connect, although another address had a
    /// spare one.
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
        // Without a spare connection, the new one is rejected.
        let calls = Calls::new();
        last.seat().of_calls(&calls);
        let _call = calls.begin(Default::default(), Weight::Full);
        assert_eq!(places.take(b).unwrap_err(), Refusal::Connections);
        drop(busy);
        places.take(b).unwrap();
        assert!(is_taken_away(&open[0]));
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        assert_eq!(address(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_ne!(address(ip("10.0.0.1")), address(ip("10.0.0.2")));
        assert_eq!(address(ip("2001:db8:1:2::1")), address(ip("2001:db8:1:2:ffff:ffff:ffff:ffff")));
        assert_ne!(address(ip("2001:db8:1:2::1")), address(ip("2001:db8:1:3::1")));
    }
}
