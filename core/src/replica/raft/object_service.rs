//! Object service: the leader has another replica store an object, and learns whether it did. A replica that finds a stored object
//! damaged has the others store it again. This file takes messages; the node decides.

use super::Replica;
use crate::record::batch::Malformed;
use crate::replica::wire::object_message::{encode_answer, encode_request, parse_answer, parse_request};
use crate::store::format::objects::StoredObject;
use crate::types::NodeId;
use std::collections::VecDeque;

/// The most requests that wait. A later one replaces the last one: all are repeated.
const REQUESTS_MAX: usize = 64;

/// The requests, and the last answer: a later one replaces an earlier one.
#[derive(Debug, Default)]
pub(super) struct ObjectService {
    requested: VecDeque<(NodeId, u64)>,
    answered: Option<ObjectAnswer>,
}

/// A replica's answer about an object that it was asked to store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectAnswer {
    pub(crate) from: NodeId,
    pub(crate) number: u64,
    /// None: it could not.
    pub(crate) stored: Option<StoredObject>,
}

impl Replica {
    /// Asks another replica to store an object. If it is stored already: to examine it.
    pub(crate) fn request_object(&mut self, from: NodeId, number: u64) {
        self.post(from, encode_request(number));
    }

    /// Answers such a request.
    pub(crate) fn answer_object(&mut self, to: NodeId, number: u64, stored: Option<StoredObject>) {
        self.post(to, encode_answer(number, stored));
    }

    /// Takes a request: who asks, and for which object.
    pub(crate) fn take_object_request(&mut self) -> Option<(NodeId, u64)> {
        self.object_service.requested.pop_front()
    }

    /// Takes the last answer.
    pub(crate) fn take_object_answer(&mut self) -> Option<ObjectAnswer> {
        self.object_service.answered.take()
    }

    pub(super) fn on_object_request(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let number = parse_request(body)?;
        if from.0 != self.raw.raft.leader_id && self.member(from).is_none() {
            return Err("request for an object from a node that is no member");
        }
        let requested = &mut self.object_service.requested;
        if !requested.contains(&(from, number)) {
            requested.truncate(REQUESTS_MAX - 1);
            requested.push_back((from, number));
        }
        Ok(())
    }

    pub(super) fn on_object_answer(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let (number, stored) = parse_answer(body)?;
        self.object_service.answered = Some(ObjectAnswer { from, number, stored });
        Ok(())
    }
}
