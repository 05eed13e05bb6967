//! Queue: messages that wait for the stream to another replica. Filled by the log's own thread, which never waits;
//! emptied by the stream of the moment.
//!
//! Invariants:
//! - At most `bytes_max` wait, or one message that is larger.
//! - Beyond that the newest is dropped: what was sent before stays whole and in order, and raft sends again.
//! - One stream at a time takes messages: a stream that was replaced gets none.

use super::traffic::Counters;
use crate::proto::v1::{PeerEnvelope, PeerHello, PeerMessage, peer_message};
use chiplog::transport::Envelope;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use tokio_stream::Stream;

#[derive(Debug)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    bytes_max: usize,
    counters: Arc<Counters>,
    /// Rung when a message comes, for who waits without a stream.
    filled: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    messages: VecDeque<Envelope>,
    bytes: usize,
    /// Which stream takes messages now.
    stream: u64,
    waker: Option<Waker>,
}

impl Queue {
    pub(super) fn new(bytes_max: usize, counters: Arc<Counters>) -> Self {
        Self { inner: Mutex::default(), bytes_max, counters, filled: Notify::new() }
    }

    // Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a message, or drops it when there is no room. Never waits.
    pub(super) fn push(&self, envelope: Envelope) {
        let bytes = envelope.bytes();
        let waker = {
            let mut inner = self.lock();
            if inner.bytes > 0 && inner.bytes + bytes > self.bytes_max {
                drop(inner);
                self.counters.dropped(1);
                return;
            }
            inner.bytes += bytes;
            inner.messages.push_back(envelope);
            inner.waker.take()
        };
        match waker {
            Some(waker) => waker.wake(),
            None => self.filled.notify_one(),
        }
    }

    /// Drops all that waits.
    pub(super) fn clear(&self) {
        let dropped = {
            let mut inner = self.lock();
            inner.bytes = 0;
            std::mem::take(&mut inner.messages)
        };
        self.counters.dropped(dropped.len());
    }

    pub(super) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().messages.is_empty()
    }

    /// Returns once there is a message.
    pub(super) async fn filled(&self) {
        while self.is_empty() {
            self.filled.notified().await;
        }
    }

    /// A stream of a Hello and then of all messages as they come; earlier streams of this queue end.
    pub(super) fn stream(self: &Arc<Self>, hello: PeerHello) -> Outgoing {
        let (number, earlier) = {
            let mut inner = self.lock();
            inner.stream += 1;
            (inner.stream, inner.waker.take())
        };
        if let Some(waker) = earlier {
            waker.wake();
        }
        let hello = Some(PeerMessage { message: Some(peer_message::Message::Hello(hello)) });
        Outgoing { queue: self.clone(), number, hello }
    }

    /// Ends the stream of the moment.
    pub(super) fn end_stream(&self) {
        let waker = {
            let mut inner = self.lock();
            inner.stream += 1;
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What one connection sends.
#[derive(Debug)]
pub(super) struct Outgoing {
    queue: Arc<Queue>,
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
            if inner.stream != self.number {
                return Poll::Ready(None);
            }
            let Some(envelope) = inner.messages.pop_front() else {
                inner.waker = Some(context.waker().clone());
                return Poll::Pending;
            };
            inner.bytes -= envelope.bytes();
            envelope
        };
        self.queue.counters.sent(envelope.bytes());
        let envelope = PeerEnvelope {
            head: envelope.head,
            bodies: envelope.bodies,
            to_directory: crate::ids::to_bytes(envelope.to_directory.get()),
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

    fn message(bytes: usize) -> Envelope {
        Envelope {
            log: LogId(1),
            from: NodeId(1),
            from_directory: DirectoryId(1),
            to: NodeId(2),
            to_directory: DirectoryId(0),
            head: Bytes::from(vec![bytes as u8; bytes]),
            bodies: Vec::new(),
        }
    }

    fn head_bytes(message: Option<PeerMessage>) -> Option<usize> {
        match message?.message? {
            peer_message::Message::Envelope(envelope) => Some(envelope.head.len()),
            peer_message::Message::Hello(_) => Some(0),
        }
    }

    #[tokio::test]
    async fn what_is_too_much_is_dropped_and_the_rest_keeps_its_order() {
        let counters = Arc::new(Counters::default());
        let queue = Arc::new(Queue::new(100, counters.clone()));
        for bytes in [60, 40, 1, 50] {
            queue.push(message(bytes));
        }
        assert_eq!((queue.bytes(), counters.read(NodeId(2), 0).dropped), (100, 2));
        let mut stream = queue.stream(PeerHello::default());
        for bytes in [0, 60, 40] {
            assert_eq!(head_bytes(stream.next().await), Some(bytes));
        }
        assert!(queue.is_empty());
        queue.push(message(500));
        queue.push(message(1));
        assert_eq!(head_bytes(stream.next().await), Some(500), "a larger one goes alone");
        assert_eq!(counters.read(NodeId(2), 0).dropped, 3);
        queue.push(message(7));
        queue.clear();
        assert_eq!((queue.bytes(), counters.read(NodeId(2), 0).dropped), (0, 4));
    }

    #[tokio::test]
    async fn a_stream_that_was_replaced_takes_nothing() {
        let queue = Arc::new(Queue::new(100, Arc::default()));
        let mut earlier = queue.stream(PeerHello::default());
        assert_eq!(head_bytes(earlier.next().await), Some(0));
        let waiting = tokio::spawn(async move { earlier.next().await });
        tokio::task::yield_now().await;
        let mut later = queue.stream(PeerHello::default());
        assert!(waiting.await.unwrap().is_none());
        queue.push(message(5));
        assert_eq!(head_bytes(later.next().await), Some(0));
        assert_eq!(head_bytes(later.next().await), Some(5));
        queue.end_stream();
        assert!(later.next().await.is_none());
    }
}
