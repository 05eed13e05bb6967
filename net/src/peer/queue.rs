//! Queue: messages that wait for the streams to another replica. The log's own thread fills it and never waits. The
//! current streams empty it: the first takes urgent messages, the second all others; without a second stream the first
//! takes both. Its bounds and order are those of [`PeerQueue`].
//!
//! Invariant:
//! - One stream of each kind takes messages at a time: a stream that was replaced gets none.

use super::traffic::Counters;
use crate::wire::proto::v1::{PeerEnvelope, PeerHello, PeerMessage, peer_message};
use chiplog::transport::{Envelope, PeerQueue};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use tokio_stream::Stream;

/// One of the two streams to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    First,
    Second,
}

#[derive(Debug)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    counters: Arc<Counters>,
    /// Notified when a message arrives, for a task that waits without a stream.
    filled: Notify,
}

#[derive(Debug)]
struct Inner {
    messages: PeerQueue,
    /// The generation of the streams that take messages now.
    number: u64,
    /// The stream that takes messages that are not urgent; none as long as it is unknown.
    carrier: Option<Which>,
    wakers: [Option<Waker>; 2],
}

impl Queue {
    pub(super) fn new(bytes_max: usize, counters: Arc<Counters>) -> Self {
        let messages = PeerQueue::new(bytes_max);
        let inner = Inner { messages, number: 0, carrier: None, wakers: [None, None] };
        Self { inner: Mutex::new(inner), counters, filled: Notify::new() }
    }

    // Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message, or drops it if there is no room. Never blocks.
    pub(super) fn push(&self, envelope: Envelope) {
        let waker = {
            let mut inner = self.lock();
            let which = if envelope.urgent { Some(Which::First) } else { inner.carrier };
            if !inner.messages.push(envelope) {
                drop(inner);
                self.counters.dropped(1);
                return;
            }
            which.and_then(|which| inner.wakers[which as usize].take())
        };
        match waker {
            Some(waker) => waker.wake(),
            None => self.filled.notify_one(),
        }
    }

    /// Drops all waiting messages.
    pub(super) fn clear(&self) {
        let dropped = self.lock().messages.clear();
        self.counters.dropped(dropped);
    }

    pub(super) fn bytes(&self) -> usize {
        self.lock().messages.bytes()
    }

    /// Bytes of messages that are not urgent and were not sent yet.
    pub(super) fn backlog(&self) -> usize {
        self.lock().messages.backlog()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().messages.is_empty()
    }

    /// Waits until there is a message.
    pub(super) async fn filled(&self) {
        while self.is_empty() {
            self.filled.notified().await;
        }
    }

    /// Starts the first stream: a Hello and then urgent messages as they arrive. Ends earlier streams of this queue.
    pub(super) fn first(self: &Arc<Self>, hello: PeerHello) -> Outgoing {
        let number = self.end_streams();
        self.outgoing(Which::First, number, hello)
    }

    /// Starts the second stream beside the current first one: a Hello and then messages that are not urgent.
    pub(super) fn second(self: &Arc<Self>, hello: PeerHello) -> Outgoing {
        let number = self.carry(Which::Second);
        self.outgoing(Which::Second, number, hello)
    }

    /// There is no second stream: the first one takes all messages.
    pub(super) fn without_second(&self) {
        self.carry(Which::First);
    }

    fn outgoing(self: &Arc<Self>, which: Which, number: u64, hello: PeerHello) -> Outgoing {
        let hello = Some(PeerMessage { message: Some(peer_message::Message::Hello(hello)) });
        Outgoing { queue: self.clone(), which, number, hello }
    }

    fn carry(&self, carrier: Which) -> u64 {
        let (number, waker) = {
            let mut inner = self.lock();
            inner.carrier = Some(carrier);
            (inner.number, inner.wakers[carrier as usize].take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        number
    }

    /// Ends the current streams. Returns the generation of the next ones.
    pub(super) fn end_streams(&self) -> u64 {
        let (number, wakers) = {
            let mut inner = self.lock();
            inner.number += 1;
            inner.carrier = None;
            inner.messages.stream_ended();
            (inner.number, std::mem::take(&mut inner.wakers))
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
        number
    }
}

/// The messages that one connection sends.
#[derive(Debug)]
pub(super) struct Outgoing {
    queue: Arc<Queue>,
    which: Which,
    number: u64,
    hello: Option<PeerMessage>,
}

impl Stream for Outgoing {
    type Item = PeerMessage;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<PeerMessage>> {
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(hello));
        }
        let envelope = {
            let mut inner = self.queue.lock();
            if inner.number != self.number {
                return Poll::Ready(None);
            }
            // HTTP/2 polls again once it has sent the previous message.
            let carries = inner.carrier == Some(self.which);
            let Some(envelope) = inner.messages.take(self.which == Which::First, carries) else {
                inner.wakers[self.which as usize] = Some(context.waker().clone());
                return Poll::Pending;
            };
            envelope
        };
        self.queue.counters.sent(envelope.bytes());
        let envelope = PeerEnvelope {
            head: envelope.head,
            bodies: envelope.bodies,
            to_directory: crate::wire::ids::to_bytes(envelope.to_directory.get()),
        };
        Poll::Ready(Some(PeerMessage { message: Some(peer_message::Message::Envelope(envelope)) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use chiplog::{DirectoryId, LogId, NodeId};
    use tokio_stream::StreamExt;

    fn message(bytes: usize, urgent: bool) -> Envelope {
        Envelope {
            log: LogId(1),
            from: NodeId(1),
            from_directory: DirectoryId(1),
            to: NodeId(2),
            to_directory: DirectoryId(0),
            head: Bytes::from(vec![bytes as u8; bytes]),
            bodies: Vec::new(),
            urgent,
        }
    }

    fn head_bytes(message: Option<PeerMessage>) -> Option<usize> {
        match message?.message? {
            peer_message::Message::Envelope(envelope) => Some(envelope.head.len()),
            peer_message::Message::Hello(_) => Some(0),
        }
    }

    /// Returns everything that a stream yields now.
    async fn taken(stream: &mut Outgoing) -> Vec<usize> {
        let mut all = Vec::new();
        while let Ok(next) = tokio::time::timeout(std::time::Duration::ZERO, stream.next()).await {
            match head_bytes(next) {
                Some(bytes) => all.push(bytes),
                None => return all,
            }
        }
        all
    }

    #[tokio::test]
    async fn excess_is_dropped_and_the_rest_keeps_its_order() {
        let counters = Arc::new(Counters::default());
        let queue = Arc::new(Queue::new(100, counters.clone()));
        for bytes in [60, 40, 1, 50] {
            queue.push(message(bytes, false));
        }
        assert_eq!((queue.bytes(), counters.read(NodeId(2), 0).dropped), (100, 2));
        let mut stream = queue.first(PeerHello::default());
        queue.without_second();
        assert_eq!(taken(&mut stream).await, [0, 60, 40]);
        assert!(queue.is_empty());
        queue.push(message(500, false));
        queue.push(message(1, false));
        assert_eq!(taken(&mut stream).await, [500], "a larger one is sent alone");
        assert_eq!(counters.read(NodeId(2), 0).dropped, 3);
        queue.push(message(7, false));
        queue.push(message(8, true));
        queue.clear();
        assert_eq!((queue.bytes(), counters.read(NodeId(2), 0).dropped), (0, 5));
    }

    #[tokio::test]
    async fn urgent_messages_overtake_others() {
        let counters = Arc::new(Counters::default());
        let queue = Arc::new(Queue::new(100, counters.clone()));
        for (bytes, urgent) in [(90, false), (20, false), (1, true), (2, true)] {
            queue.push(message(bytes, urgent));
        }
        assert_eq!(counters.read(NodeId(2), 0).dropped, 1, "urgent messages have their own room");
        let mut first = queue.first(PeerHello::default());
        assert_eq!(
            taken(&mut first).await,
            [0, 1, 2],
            "it is not known yet whether there is a second stream"
        );
        let mut second = queue.second(PeerHello::default());
        assert_eq!(taken(&mut second).await, [0, 90]);
        queue.push(message(3, true));
        queue.push(message(4, false));
        assert_eq!((taken(&mut first).await, taken(&mut second).await), (vec![3], vec![4]));

        // Without a second stream, urgent messages overtake on the first.
        let mut only = queue.first(PeerHello::default());
        assert!(taken(&mut first).await.is_empty() && taken(&mut second).await.is_empty());
        queue.without_second();
        for (bytes, urgent) in [(5, false), (6, true), (7, false), (8, true)] {
            queue.push(message(bytes, urgent));
        }
        assert_eq!(taken(&mut only).await, [0, 6, 8, 5, 7]);
    }

    #[tokio::test]
    async fn backlog_counts_messages_not_yet_sent() {
        let queue = Arc::new(Queue::new(100, Arc::default()));
        let mut first = queue.first(PeerHello::default());
        let mut second = queue.second(PeerHello::default());
        for (bytes, urgent) in [(50, false), (30, false), (1, true)] {
            queue.push(message(bytes, urgent));
        }
        assert_eq!((queue.backlog(), taken(&mut first).await), (80, vec![0, 1]));
        for left in [80, 80, 30] {
            assert!(second.next().await.is_some()); // the Hello first
            assert_eq!(queue.backlog(), left);
        }
        assert!(taken(&mut second).await.is_empty());
        assert_eq!(queue.backlog(), 0);
        queue.push(message(9, false));
        assert!(second.next().await.is_some());
        queue.end_streams();
        assert_eq!(queue.backlog(), 0);
    }

    #[tokio::test]
    async fn replaced_stream_gets_no_messages() {
        let queue = Arc::new(Queue::new(100, Arc::default()));
        let mut earlier = queue.first(PeerHello::default());
        assert_eq!(head_bytes(earlier.next().await), Some(0));
        let waiting = tokio::spawn(async move { earlier.next().await });
        tokio::task::yield_now().await;
        let mut later = queue.first(PeerHello::default());
        assert!(waiting.await.unwrap().is_none());
        queue.push(message(5, true));
        assert_eq!(head_bytes(later.next().await), Some(0));
        assert_eq!(head_bytes(later.next().await), Some(5));
        queue.end_streams();
        assert!(later.next().await.is_none());
    }
}
