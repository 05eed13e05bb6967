//! A log's replica in its cluster: barriers, membership, leadership.

use super::Log;
use crate::cluster::membership::Change;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::queue::inbox::{AdminRequest, InboxEvent};
use crate::sync::completer::Completer;
use crate::sync::completion::{Ticket, TicketValue};
use crate::types::{Index, NodeId};
use std::time::Duration;

/// How much longer than its time limit a caller waits for the replica's answer, which says more. A replica whose disk hangs looks at
/// no clock, and gives none.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

impl Log {
    /// Blocks until this replica has committed everything that any replica had committed when the call began. Returns
    /// the last record that is committed here when the barrier is passed, which can be a later one. Reads after it are
    /// linearizable. Works on any replica; a majority has to confirm.
    ///
    /// # Errors
    /// `Unavailable`: no majority answered within `timeout`, or this replica did not within a second more, because its disk hangs. `Busy`:
    /// 16,384 barriers already wait. `Removed`, `Poisoned`, `Closed`, `Forked`.
    pub fn barrier(&self, timeout: Duration) -> Result<Index> {
        self.may_wait()?;
        let last = answer(&self.submit_barrier(timeout)?, timeout).map_err(|error| match error.kind() {
            ErrorKind::Timeout => Error::with_source(ErrorKind::Unavailable, error.to_string(), &error),
            _ => error,
        })?;
        if self.view.log.is_none() { Ok(last) } else { Ok(self.view.positions.committed()) }
    }

    /// As [`Log::barrier`], but returns at once. While the replica's disk hangs, the ticket has no result. On a named log the result counts
    /// the records of all logs of its group: [`Log::last_index`] tells the last record afterwards. Up to 16,384 barriers can be in
    /// flight: waiting ones share one round
    /// trip.
    ///
    /// # Errors
    /// As [`Log::barrier`].
    pub fn submit_barrier(&self, timeout: Duration) -> Result<Ticket<Index>> {
        self.submit_request(AdminRequest::Barrier, timeout)
    }

    /// Blocks until this replica has committed record `index`, or knows that it was discarded. Use it to read here a
    /// record that was appended at the leader.
    ///
    /// # Errors
    /// `Timeout`: the record was not committed here within `timeout`. `Closed`, `Poisoned`, `Forked`.
    pub fn wait_for(&self, index: Index, timeout: Duration) -> Result<()> {
        self.check_fork()?;
        let positions = &self.view.positions;
        if positions.wait(index, Some(Duration::ZERO))? {
            return Ok(());
        }
        self.may_wait()?;
        if positions.wait(index, Some(timeout))? {
            return Ok(());
        }
        let what = format!("record {index} is not committed here within {timeout:?}");
        Err(Error::new(ErrorKind::Timeout, what))
    }

    /// Changes the membership of the cluster, one change at a time or several at once through a joint configuration.
    /// Only the leader accepts this. Blocks until the change is in force and [`Log::status`] shows it. A promotion
    /// first waits until its learner has caught up.
    ///
    /// Two kinds of change are refused. The first is a change after which a majority of the voters would not be
    /// responding: it would leave the cluster without a leader, perhaps for good. The second removes or demotes a
    /// responding voter while another voter, which would stay, is not responding: the number is probably mistyped. A
    /// voter counts as responding if it was heard within the last election time-out. A voter that was not has two
    /// more election time-outs to respond.
    ///
    /// # Errors
    /// `Membership`: names the change that is wrong, or the voters that do not respond; nothing was changed.
    /// `NotLeader`. `Timeout`: the message names the replica that lags, or the change may still come into force. `Unavailable`:
    /// this replica lost leadership meanwhile. Where the change may still come into force, [`Log::status`] shows
    /// whether it has. It is safe to retry.
    pub fn change_members(&self, changes: &[Change], timeout: Duration) -> Result<()> {
        self.may_wait()?;
        answer(&self.submit_change_members(changes, timeout)?, timeout)
    }

    /// As [`Log::change_members`], but returns at once.
    ///
    /// # Errors
    /// As [`Log::change_members`].
    pub fn submit_change_members(&self, changes: &[Change], timeout: Duration) -> Result<Ticket<()>> {
        self.submit_request(AdminRequest::Change(changes.to_vec(), false), timeout)
    }

    /// Transfers leadership to another voter. Only the leader accepts this. Blocks until `to` leads.
    ///
    /// # Errors
    /// `Membership`: `to` is not a voter. `NotLeader`. `Timeout`: neither `to` nor, as far as is known here, another
    /// replica became leader in time; or this replica did not answer, and may still transfer it. `Unavailable`: another replica leads
    /// now, or a later transfer replaced this one.
    pub fn transfer_leader(&self, to: NodeId, timeout: Duration) -> Result<()> {
        self.may_wait()?;
        answer(&self.submit_transfer_leader(to, timeout)?, timeout)
    }

    /// As [`Log::transfer_leader`], but returns at once.
    ///
    /// # Errors
    /// As [`Log::transfer_leader`].
    pub fn submit_transfer_leader(&self, to: NodeId, timeout: Duration) -> Result<Ticket<()>> {
        self.submit_request(AdminRequest::Transfer(to), timeout)
    }

    /// As [`Log::change_members`], but also makes a change that [`Log::change_members`] refuses because voters do not
    /// respond. The change comes into force once a majority of the resulting voters has received it. Until then no
    /// other change can be made: as long as no majority of the resulting voters responds, neither happens.
    ///
    /// # Errors
    /// As [`Log::change_members`], except for voters that do not respond.
    pub fn force_members(&self, changes: &[Change], timeout: Duration) -> Result<()> {
        self.may_wait()?;
        answer(&self.submit_force_members(changes, timeout)?, timeout)
    }

    /// As [`Log::force_members`], but returns at once.
    ///
    /// # Errors
    /// As [`Log::force_members`].
    pub fn submit_force_members(&self, changes: &[Change], timeout: Duration) -> Result<Ticket<()>> {
        self.submit_request(AdminRequest::Change(changes.to_vec(), true), timeout)
    }

    pub(crate) fn submit_request<T>(&self, request: AdminRequest, timeout: Duration) -> Result<Ticket<T>> {
        self.check_fork()?;
        let completer = Completer::new();
        let ticket = completer.ticket(0, 0, 0);
        self.inner.queue.push_question(InboxEvent::AdminRequest(request, timeout, completer))?;
        Ok(ticket.returning())
    }
}

/// The replica's answer to a request with this time limit.
///
/// # Errors
/// Those of the request. `Timeout`: also if there is none, because the disk hangs.
fn answer<T: TicketValue>(ticket: &Ticket<T>, timeout: Duration) -> Result<T> {
    match ticket.wait_timeout(timeout.saturating_add(ANSWER_GRACE)) {
        Err(error) if error.kind() == ErrorKind::Timeout => ticket.poll().unwrap_or_else(|| {
            let what = format!(
                "this replica did not answer within {timeout:?}: its disk may hang, and the request may still be carried out"
            );
            Err(Error::new(ErrorKind::Timeout, what))
        }),
        answered => answered,
    }
}
