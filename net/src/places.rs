//! Places: how many connections are open, of all clients together and of each address.
//!
//! Invariant: a place is counted until it is dropped, and no longer; an address without a place is not remembered.
//!
//! Must not know: sockets.

use crate::refusals::Refusal;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    of: HashMap<IpAddr, usize>,
}

// Nothing panics under the lock.
fn locked(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What counts as one address: that of IPv4, the network of IPv6.
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

    /// One for a connection from there.
    ///
    /// # Errors
    /// Which limit is reached.
    pub(crate) fn take(&self, remote: IpAddr) -> Result<Place, Refusal> {
        let address = address(remote);
        let mut taken = locked(&self.taken);
        if taken.all >= self.all_max {
            return Err(Refusal::Connections);
        }
        let of_address = taken.of.get(&address).copied().unwrap_or_default();
        if of_address >= self.of_address_max {
            return Err(Refusal::ConnectionsOfAddress);
        }
        taken.all += 1;
        taken.of.insert(address, of_address + 1);
        Ok(Place { address, taken: self.taken.clone() })
    }
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    address: IpAddr,
    taken: Arc<Mutex<Taken>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = locked(&self.taken);
        taken.all -= 1;
        if let Some(of_address) = taken.of.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                taken.of.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_so_many_and_all_have_so_many() {
        let places = Places::new(5, 2);
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(ip);
        let mut open: Vec<Place> = [a, b, a, b].map(|from| places.take(from).unwrap()).into();
        assert_eq!(places.take(a).unwrap_err(), Refusal::ConnectionsOfAddress);
        open.push(places.take(c).unwrap());
        // All are taken: that is said first.
        assert_eq!(places.take(c).unwrap_err(), Refusal::Connections);
        assert_eq!(places.take(a).unwrap_err(), Refusal::Connections);
        drop(open.remove(0));
        open.push(places.take(a).unwrap());
        drop(open.pop());
        open.push(places.take(c).unwrap());
        drop(open);
        let taken = locked(&places.taken);
        assert_eq!((taken.all, taken.of.len()), (0, 0), "nothing is remembered");
    }

    #[test]
    fn a_host_is_one_address_whatever_it_writes_there() {
        assert_eq!(address(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_ne!(address(ip("10.0.0.1")), address(ip("10.0.0.2")));
        assert_eq!(address(ip("2001:db8:1:2::1")), address(ip("2001:db8:1:2:ffff:ffff:ffff:ffff")));
        assert_ne!(address(ip("2001:db8:1:2::1")), address(ip("2001:db8:1:3::1")));
    }
}
