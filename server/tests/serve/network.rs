//! Network: a network for a test, in which each direction of every cable can be cut.
//!
//! ```text
//! namespace hub: the test's thread, 10.77.0.254 on a bridge ──┬── namespace 1: node 1, 10.77.0.1
//!                                                             ├── namespace 2: node 2, 10.77.0.2
//!                                                             └── namespace 3: node 3, 10.77.0.3
//! ```
//!
//! Every host has static hardware addresses of all others. A cut gives one host a wrong address: its packets
//! vanish silently, as over a broken cable, while packets in the other direction still arrive.
//!
//! Needs `ip` (iproute2) and the permission to make namespaces. Where one is missing, these tests are skipped
//! and say so.
#![allow(unsafe_code, reason = "setns has no safe form among the crates that are here")]

use crate::harness::{Server, founded};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// The number of the test itself, beside the nodes 1, 2, 3.
pub(crate) const HUB: u64 = 254;
/// A number that no host has.
const NOWHERE: u64 = 99;

fn host(place: u64) -> String {
    format!("10.77.0.{place}")
}

fn hardware(place: u64) -> String {
    format!("02:00:00:00:00:{place:02x}")
}

/// Removed on drop; no process of the test may run in it then.
pub(crate) struct Network {
    name: String,
}

impl Network {
    /// Returns None, and prints why, if namespaces are not allowed.
    fn new() -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let network = Self { name: format!("chiplog-test-{}-{made}", std::process::id()) };
        match network.build() {
            Ok(()) => Some(network),
            Err(why) => {
                println!("SKIPPED, no network namespaces here: {why}");
                None
            }
        }
    }

    fn build(&self) -> Result<(), String> {
        let hub = self.namespace(HUB);
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "set", "lo", "up"])?;
        ip(&["-n", &hub, "link", "add", "eth0", "address", &hardware(HUB), "type", "bridge"])?;
        ip(&["-n", &hub, "addr", "add", &format!("{}/24", host(HUB)), "dev", "eth0"])?;
        ip(&["-n", &hub, "link", "set", "eth0", "up"])?;
        for node in 1..=3 {
            let (inside, port) = (self.namespace(node), format!("port{node}"));
            ip(&["netns", "add", &inside])?;
            let pair = ["type", "veth", "peer", "name", "eth0", "address", &hardware(node), "netns", &inside];
            ip(&[&["-n", &hub, "link", "add", &port][..], &pair].concat())?;
            ip(&["-n", &hub, "link", "set", &port, "master", "eth0", "up"])?;
            ip(&["-n", &inside, "link", "set", "lo", "up"])?;
            ip(&["-n", &inside, "addr", "add", &format!("{}/24", host(node)), "dev", "eth0"])?;
            ip(&["-n", &inside, "link", "set", "eth0", "up"])?;
        }
        for from in [1, 2, 3, HUB] {
            for to in [1, 2, 3, HUB].into_iter().filter(|to| *to != from) {
                self.point(from, to, to)?;
            }
        }
        Ok(())
    }

    pub(crate) fn namespace(&self, place: u64) -> String {
        format!("{}-{place}", self.name)
    }

    /// Packets from `from` to the address of `to` arrive at `at`.
    fn point(&self, from: u64, to: u64, at: u64) -> Result<(), String> {
        let to = host(to);
        let place = ["neigh", "replace", &to, "lladdr", &hardware(at), "dev", "eth0", "nud", "permanent"];
        ip(&[&["-n", &self.namespace(from)][..], &place].concat())
    }

    /// No packet from `from` reaches `to` any more; the other direction stays as it is.
    pub(crate) fn cut(&self, from: u64, to: u64) {
        self.point(from, to, NOWHERE).unwrap();
    }

    /// Packets from `from` reach `to` again.
    pub(crate) fn reconnect(&self, from: u64, to: u64) {
        self.point(from, to, to).unwrap();
    }

    /// Cuts both directions between `one` and each of `others`.
    pub(crate) fn part(&self, one: u64, others: &[u64]) {
        others.iter().for_each(|other| (self.cut(one, *other), self.cut(*other, one)).1);
    }

    /// Drops all packets of one connection from now on, in both directions: of the connections that `from`
    /// dialled to the peer port of `to`, the one that sent most. All others stay as they are.
    pub(crate) fn lose_busiest(&self, from: u64, to: u64) {
        let (here, there) = (self.namespace(from), self.namespace(to));
        let peer = format!("{}:7412", host(to));
        let shown = ["netns", "exec", &here, "ss", "-tniOH", "state", "established", "dst", &peer];
        let shown = Command::new("ip").args(shown).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        // Queues, local address, remote address, then names with values.
        let port_and_bytes = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (_, port) = words.get(2)?.rsplit_once(':')?;
            let sent = words.iter().find_map(|word| word.strip_prefix("bytes_sent:"))?;
            Some((sent.parse::<u64>().ok()?, port.to_owned()))
        };
        let (_, port) = shown.lines().filter_map(port_and_bytes).max().expect("a connection to a peer");
        for (place, side) in [(here, "sport"), (there, "dport")] {
            ip(&["-n", &place, "rule", "add", "ipproto", "tcp", side, &port, "blackhole"]).unwrap();
        }
    }

    /// Restores the whole network.
    pub(crate) fn heal(&self) {
        for from in [1, 2, 3, HUB] {
            [1, 2, 3, HUB].into_iter().filter(|to| *to != from).for_each(|to| self.reconnect(from, to));
        }
    }

    /// Moves this thread, and the processes it starts from now on, into the hub's network.
    fn enter(&self) {
        let hub = File::open(Path::new("/run/netns").join(self.namespace(HUB))).unwrap();
        // SAFETY: takes an open descriptor and a number; it moves this thread alone.
        let moved = unsafe { libc::setns(hub.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(moved, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for place in [1, 2, 3, HUB] {
            // A namespace that was never made needs no removal.
            let _ = ip(&["netns", "del", &self.namespace(place)]);
        }
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let ran = Command::new("ip").args(args).output().map_err(|e| format!("cannot run ip: {e}"))?;
    let said = String::from_utf8_lossy(&ran.stderr);
    if ran.status.success() { Ok(()) } else { Err(format!("ip {}: {}", args.join(" "), said.trim())) }
}

/// Three servers of one cluster, each in its own namespace, and a test that runs in the hub.
pub(crate) fn three_apart(test: impl FnOnce(&Network, &mut Vec<Server>) + Send) {
    let Some(network) = Network::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            network.enter();
            let at = |node| Server::within(&network.namespace(node), &host(node), node, dir.path());
            let mut servers = founded((1..=3).map(at).collect());
            test(&network, &mut servers);
        });
        if let Err(panic) = inside.join() {
            std::panic::resume_unwind(panic);
        }
    });
}
