//! The simulated network: when a message arrives, how many times, and in which state.
//!
//! Every ordered pair of replicas has two links, one for urgent messages and one for all others, like two streams
//! over two connections. Each link has its own delay and keeps the order of messages unless one is delayed by chance.
//! A link accepts a message only while few are in flight on it, and a slow link only once it has passed on the last
//! one; the sender's queue holds the rest. In addition there are weather (loss, replay, damage; the same for all
//! links) and walls (no message passes). All of it is set from outside; events are drawn from one generator and
//! counted.
//!
//! Must not know: replicas, raft, what a message says.

use super::fault::{Counts, Fault};
use crate::cluster::transport::Envelope;
use crate::disk::sim::Rng;
use crate::sync::clock::Moment;
use crate::types::NodeId;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many messages can be in flight on one link; more wait at the sender.
const UNDER_WAY_MAX: usize = 32;
/// A replayed message can arrive up to this much later.
pub(super) const REPLAY_DELAY_MAX: Duration = Duration::from_secs(3);

/// The probabilities of faults of a message, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weather {
    pub(super) loss: u32,
    pub(super) replay: u32,
    pub(super) reorder: u32,
    pub(super) corrupt: u32,
}

impl Weather {
    pub(super) fn is_fine(&self) -> bool {
        *self == Self::default()
    }
}

/// The direction in which messages between two replicas are stopped.
type Wall = (NodeId, NodeId);

#[derive(Debug)]
struct Link {
    /// The smallest delay of a message; the other field is the largest addition to it.
    delay: Duration,
    jitter: Duration,
    /// The time when the latest message in order arrives.
    latest: Moment,
    /// The future arrivals of all messages in flight.
    under_way: BTreeSet<(Moment, u64)>,
    /// Until then it passes on the last message that it accepted.
    busy_until: Moment,
}

/// The network between all replicas.
#[derive(Debug)]
pub(super) struct Network {
    /// By pair, and whether for urgent messages.
    links: BTreeMap<(NodeId, NodeId, bool), Link>,
    /// The bytes per second of slow links, by pair.
    slow: BTreeMap<(NodeId, NodeId), u64>,
    walls: BTreeSet<Wall>,
    pub(super) weather: Weather,
    rng: Rng,
    /// The usual delay; links differ from it.
    delay: Duration,
    sent: u64,
}

impl Network {
    pub(super) fn new(delay: Duration, mut rng: Rng) -> Self {
        let rng = rng.fork();
        Self {
            links: BTreeMap::new(),
            slow: BTreeMap::new(),
            walls: BTreeSet::new(),
            weather: Weather::default(),
            rng,
            delay,
            sent: 0,
        }
    }

    /// From now on no message passes from one to the other.
    pub(super) fn wall(&mut self, from: NodeId, to: NodeId) {
        self.walls.insert((from, to));
    }

    /// Isolates a node from all of these, in both directions.
    pub(super) fn isolate(&mut self, node: NodeId, from: &[NodeId]) {
        for other in from.iter().filter(|o| **o != node) {
            self.wall(node, *other);
            self.wall(*other, node);
        }
    }

    /// Removes all walls.
    pub(super) fn open(&mut self) {
        self.walls.clear();
    }

    /// Limits a link to `bytes` per second.
    pub(super) fn slow(&mut self, from: NodeId, to: NodeId, bytes: u64) {
        self.slow.insert((from, to), bytes);
    }

    /// Makes all links fast again. Messages on a slow link still arrive late, and later ones overtake them.
    pub(super) fn hurry(&mut self) {
        self.slow.clear();
        for link in self.links.values_mut() {
            (link.busy_until, link.latest) = (Moment::START, Moment::START);
            link.under_way.clear();
        }
    }

    /// Whether no link is slow.
    pub(super) fn is_fast(&self) -> bool {
        self.slow.is_empty()
    }

    /// Whether the network has no fault now.
    pub(super) fn is_sound(&self) -> bool {
        self.walls.is_empty() && self.weather.is_fine() && self.is_fast()
    }

    /// A digest of walls and weather; 0: there is no fault.
    pub(super) fn signature(&self) -> u64 {
        let Weather { loss, replay, reorder, corrupt } = self.weather;
        let walls = self.walls.iter().flat_map(|(from, to)| [from.0, to.0]);
        let slow = self.slow.iter().flat_map(|((from, to), bytes)| [from.0, to.0, *bytes]);
        let words = [loss, replay, reorder, corrupt].map(u64::from).into_iter().chain(walls).chain(slow);
        let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if self.is_sound() { 0 } else { words.fold(1, mix) | 1 }
    }

    /// The largest group of these nodes that reach each other in both directions: the nodes with the most walls are
    /// left out first.
    pub(super) fn connected(&self, nodes: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let mut left = nodes.clone();
        loop {
            let walls = |n: &NodeId| {
                let here =
                    |(from, to): &&Wall| left.contains(from) && left.contains(to) && (from == n || to == n);
                self.walls.iter().filter(here).count()
            };
            match left.iter().map(|n| (walls(n), *n)).max() {
                Some((count, worst)) if count > 0 => left.remove(&worst),
                _ => return left,
            };
        }
    }

    /// Whether a link accepts a message now; if not, when it may.
    ///
    /// # Errors
    /// The moment to retry.
    pub(super) fn takes(
        &mut self,
        now: Moment,
        from: NodeId,
        to: NodeId,
        urgent: bool,
    ) -> Result<(), Moment> {
        let Some(link) = self.links.get_mut(&(from, to, urgent)) else { return Ok(()) };
        if now < link.busy_until {
            return Err(link.busy_until);
        }
        link.under_way = link.under_way.split_off(&(now, 0));
        match link.under_way.first().filter(|_| link.under_way.len() >= UNDER_WAY_MAX) {
            Some((at, _)) => Err(at.plus(Duration::from_nanos(1))),
            None => Ok(()),
        }
    }

    /// The copies of a message that arrive, and when.
    pub(super) fn send(
        &mut self,
        now: Moment,
        envelope: Envelope,
        counts: &mut Counts,
    ) -> Vec<(Moment, Envelope)> {
        let (pair, urgent) = ((envelope.from, envelope.to), envelope.urgent);
        self.sent += 1;
        if self.walls.contains(&pair) {
            return Vec::new(); // counted when the wall was set
        }
        let rate = self.slow.get(&pair).copied();
        let Self { rng, weather, delay, links, sent, .. } = self;
        let link = links.entry((pair.0, pair.1, urgent)).or_insert_with(|| Link {
            delay: Duration::from_nanos(rng.between(delay.as_nanos() as u64 / 4, delay.as_nanos() as u64)),
            jitter: delay.mul_f64(0.1 + rng.below(90) as f64 / 100.0),
            latest: now,
            under_way: BTreeSet::new(),
            busy_until: now,
        });
        link.under_way = link.under_way.split_off(&(now, 0));
        let takes = rate.map_or(0, |rate| envelope.bytes() as u64 * 1_000_000_000 / rate.max(1));
        link.busy_until = now.plus(Duration::from_nanos(takes));
        if rng.permille(weather.loss) {
            counts.add(Fault::Loss);
            return Vec::new();
        }
        let mut arrivals = Vec::with_capacity(1);
        let mut at = link.busy_until.plus(link.delay + jitter(rng, link.jitter));
        if rng.permille(weather.reorder) {
            // This message is delayed alone: later ones overtake it.
            at = at.plus(link.delay * 4 + jitter(rng, 8 * link.jitter));
            counts.add(Fault::Reorder);
        } else {
            at = at.max(link.latest);
            link.latest = at;
        }
        if rng.permille(weather.replay) {
            let later = if rng.permille(100) { REPLAY_DELAY_MAX } else { 4 * link.jitter };
            let again = at.plus(jitter(rng, later));
            link.under_way.insert((again, *sent));
            arrivals.push((again, envelope.clone()));
            counts.add(Fault::Replay);
        }
        let envelope = if rng.permille(weather.corrupt) { corrupt(envelope, rng, counts) } else { envelope };
        link.under_way.insert((at, *sent));
        arrivals.push((at, envelope));
        arrivals
    }
}

fn jitter(rng: &mut Rng, most: Duration) -> Duration {
    Duration::from_nanos(rng.between(0, most.as_nanos() as u64))
}

/// Flips one bit of a message, in its head or in a body.
fn corrupt(mut envelope: Envelope, rng: &mut Rng, counts: &mut Counts) -> Envelope {
    let full: Vec<usize> = (0..envelope.bodies.len()).filter(|n| !envelope.bodies[*n].is_empty()).collect();
    match rng.pick(&full) {
        Some(n) if rng.permille(600) => {
            flip_bit(&mut envelope.bodies[*n], rng);
            counts.add(Fault::CorruptBody);
        }
        _ if !envelope.head.is_empty() => {
            flip_bit(&mut envelope.head, rng);
            counts.add(Fault::CorruptHead);
        }
        _ => {}
    }
    envelope
}

fn flip_bit(bytes: &mut Bytes, rng: &mut Rng) {
    let mut changed = bytes.to_vec();
    let at = rng.below(changed.len());
    changed[at] ^= 1 << rng.below(8);
    *bytes = changed.into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DirectoryId, LogId};

    fn envelope(from: u64, to: u64, n: u8) -> Envelope {
        Envelope {
            log: LogId(1),
            from: NodeId(from),
            from_directory: DirectoryId(from.into()),
            to: NodeId(to),
            to_directory: DirectoryId(to.into()),
            head: Bytes::copy_from_slice(&[n; 20]),
            bodies: vec![Bytes::new(), Bytes::copy_from_slice(&[n; 20])],
            urgent: false,
        }
    }

    fn network(weather: Weather) -> Network {
        let mut network = Network::new(Duration::from_millis(1), Rng::new(3));
        network.weather = weather;
        network
    }

    /// Everything that arrives of many messages, by time.
    fn run(network: &mut Network, messages: u8) -> (Vec<Envelope>, Counts) {
        let mut counts = Counts::default();
        let mut arrived = Vec::new();
        for n in 0..messages {
            let now = Moment(u64::from(n) * 400_000);
            arrived.extend(network.send(now, envelope(1, 2, n), &mut counts));
        }
        arrived.sort_by_key(|(at, _)| *at);
        (arrived.into_iter().map(|(_, e)| e).collect(), counts)
    }

    #[test]
    fn fine_weather_delivers_each_message_once_and_in_order() {
        let (arrived, counts) = run(&mut network(Weather::default()), 200);
        assert_eq!(arrived, (0..200).map(|n| envelope(1, 2, n)).collect::<Vec<_>>());
        assert_eq!(counts, Counts::default());
    }

    #[test]
    fn bad_weather_loses_replays_reorders_and_damages_as_set() {
        let (arrived, counts) = run(&mut network(Weather { loss: 300, ..Weather::default() }), 200);
        assert_eq!(arrived.len() as u64, 200 - counts.of(Fault::Loss));
        assert!((40..80).contains(&counts.of(Fault::Loss)));
        let (arrived, counts) = run(&mut network(Weather { replay: 500, ..Weather::default() }), 200);
        assert_eq!(arrived.len() as u64, 200 + counts.of(Fault::Replay));
        assert!((70..130).contains(&counts.of(Fault::Replay)));
        let (arrived, counts) = run(&mut network(Weather { reorder: 200, ..Weather::default() }), 200);
        assert!(
            arrived.windows(2).filter(|w| w[0].head > w[1].head).count() > 10
                && counts.of(Fault::Reorder) > 20
        );
        let (arrived, counts) = run(&mut network(Weather { corrupt: 500, ..Weather::default() }), 200);
        let changed: Vec<_> = arrived.iter().filter(|e| **e != envelope(1, 2, e.head[3])).collect();
        let (heads, bodies) = (counts.of(Fault::CorruptHead), counts.of(Fault::CorruptBody));
        assert_eq!(changed.len() as u64, heads + bodies);
        assert!(heads > 10 && bodies > 20);
    }

    #[test]
    fn walls_stop_one_direction_and_links_accept_few_at_a_time() {
        let mut network = network(Weather::default());
        let mut counts = Counts::default();
        network.wall(NodeId(1), NodeId(2));
        assert!(network.send(Moment(0), envelope(1, 2, 0), &mut counts).is_empty());
        assert_eq!(network.send(Moment(0), envelope(2, 1, 0), &mut counts).len(), 1);
        network.isolate(NodeId(3), &[NodeId(1), NodeId(2), NodeId(3)]);
        assert!(network.send(Moment(0), envelope(2, 3, 0), &mut counts).is_empty() && !network.is_sound());
        network.open();
        assert!(network.is_sound());
        let mut passed = 0;
        let blocked = loop {
            match network.takes(Moment(0), NodeId(1), NodeId(2), false) {
                Ok(()) => passed += network.send(Moment(0), envelope(1, 2, 0), &mut counts).len(),
                Err(at) => break at,
            }
        };
        assert_eq!(passed, UNDER_WAY_MAX);
        assert_eq!(network.takes(blocked, NodeId(1), NodeId(2), false), Ok(()), "one has arrived");
        assert_eq!(network.takes(Moment(0), NodeId(1), NodeId(2), true), Ok(()), "another stream");
    }

    #[test]
    fn slow_link_passes_one_message_after_the_other() {
        let mut network = network(Weather::default());
        let mut counts = Counts::default();
        network.slow(NodeId(1), NodeId(2), 40);
        assert!(!network.is_sound() && network.signature() != 0);
        let arrivals = network.send(Moment(0), envelope(1, 2, 0), &mut counts);
        let second = Moment::START.plus(Duration::from_secs(1));
        assert!(arrivals[0].0 >= second, "40 bytes take a second");
        assert_eq!(network.takes(Moment(0), NodeId(1), NodeId(2), false), Err(second));
        network.hurry();
        assert_eq!(network.takes(Moment(0), NodeId(1), NodeId(2), false), Ok(()));
    }
}
