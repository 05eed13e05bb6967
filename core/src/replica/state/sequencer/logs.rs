//! The decisions about the logs of a shared group: their commands, their options, the sessions on them.

use super::{Decision, Sequencer};
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOptions;
use crate::read::log_set::{sealed, unknown};
use crate::read::view::shared_group;
use crate::replica::queue::proposals::LogCommand;
use crate::store::format::geometry::{LOG_BYTES, LOGS_HEADER_BYTES, logs_room};
use crate::types::{Index, LogNumber};

/// The bytes of an opening that are left for a log which was deleted before it was open: it is opened, and dropped at once. Groups that an
/// earlier version has filled have less.
const KEPT_BYTES: usize = LOG_BYTES;

impl Sequencer {
    /// The decision on opening a log that is dropped at once, if it is not written.
    pub(super) fn decide_to_pass_over(&self, log: LogNumber) -> Option<Decision> {
        match self.logs.get(log) {
            Some(_) => Some(Decision::Done(Index(0))),
            None => self.check_open_log(log, 0).err().map(Decision::Refused),
        }
    }

    /// The decision on a command to a log of a shared group that changes nothing, or is refused. None: it is written.
    pub(super) fn decide_log(&self, command: LogCommand) -> Option<Decision> {
        let (log, state) = (command.log(), self.logs.get(command.log()));
        Some(match (command, state) {
            (LogCommand::Open { .. }, Some(_)) => Decision::Done(Index(0)),
            (LogCommand::Open { .. }, None) => Decision::Refused(self.check_open_log(log, KEPT_BYTES).err()?),
            (LogCommand::Drop { .. }, None) => Decision::Done(Index(0)),
            (LogCommand::Seal { .. }, Some(state)) if state.sealed => Decision::Done(state.next),
            (LogCommand::SetOptions { options, .. }, Some(_)) if options == self.logs.options(log) => {
                Decision::Done(Index(0))
            }
            (LogCommand::Discard { first, .. }, Some(state)) if first <= state.first => {
                Decision::Done(state.first)
            }
            // It would move the end of the log.
            (LogCommand::Discard { first, .. }, Some(state)) if state.sealed && first > state.next => {
                Decision::Refused(sealed(log, state.next))
            }
            (_, Some(_)) => return None,
            (_, None) => Decision::Refused(unknown(log)),
        })
    }

    /// Whether one more log may be opened. `kept`: the bytes of openings that have to be left.
    ///
    /// # Errors
    /// `InvalidArgument`: the group holds records of its own. `NotFound`: this log, or one that was created later, was
    /// open before. `Full`: the openings of its segments have no room for more logs.
    fn check_open_log(&self, log: LogNumber, kept: usize) -> Result<()> {
        if log.is_none() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "log 0 is the group's own; numbers begin at 1",
            ));
        }
        if !self.logs.is_shared() && self.end.next > Index(1) {
            let what = "this directory holds one log with records of its own; named logs need a directory of their own";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if log <= self.logs.opened() {
            return Err(unknown(log)); // it was dropped: its number must not get other records
        }
        if self.logs_bytes() + LOG_BYTES + kept > self.logs_room(&self.options_at_end()) {
            return Err(self.no_room_for_logs("more"));
        }
        Ok(())
    }

    /// The bytes of the logs, their options, and the objects in the opening of a segment: they share its room.
    fn logs_bytes(&self) -> usize {
        self.logs.encoded_bytes().saturating_sub(LOGS_HEADER_BYTES) + self.objects.encoded_bytes()
    }

    /// The bytes that the openings of this replica's segments have for them, with these options of the group.
    fn logs_room(&self, options: &LogOptions) -> usize {
        let (sessions_max, window) = self.sessions_to_fit(options);
        logs_room(self.segment_bytes, sessions_max, window)
    }

    fn no_room_for_logs(&self, what: &str) -> Error {
        let what = format!(
            "the group has {} logs, {} of them with options, and {} objects, and its segments have no room for {what}; drop \
             some, or use more groups or larger segments",
            self.logs.len(),
            self.logs.with_options().count(),
            self.objects.len()
        );
        Error::new(ErrorKind::Full, what)
    }

    /// Checks options that are to be set for one log of a shared group.
    ///
    /// # Errors
    /// `NotFound`: there is no such log. `InvalidArgument`: an option is out of bounds, or not one of a single log. `Full`:
    /// the openings of its segments have no room for more options.
    pub(crate) fn check_options_of(&self, log: LogNumber, options: &LogOptions) -> Result<()> {
        self.logs.get(log).ok_or_else(|| unknown(log))?;
        options.check_of_named_log()?;
        let bytes = self.logs_bytes() + options.encoded_bytes() - self.logs.options(log).encoded_bytes();
        if options.encoded_bytes() > self.logs.options(log).encoded_bytes()
            && bytes + KEPT_BYTES > self.logs_room(&self.options_at_end())
        {
            return Err(self.no_room_for_logs("more options"));
        }
        Ok(())
    }

    /// Checks options that are to be set for a whole shared group: its logs still have to fit beside the sessions, and each
    /// has limits of its own.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn check_for_logs(&self, options: &LogOptions) -> Result<()> {
        if !self.logs.is_shared() {
            return Ok(());
        }
        if let Some((option, _)) = options.iter().find(|(option, _)| option.is_of_named_logs_alone()) {
            let what = format!(
                "option {option} is not one of a whole group: unset it here, and set it for each named log"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let (room, bytes) = (self.logs_room(options), self.logs_bytes());
        if bytes <= room {
            return Ok(());
        }
        let (sessions_max, window) = self.sessions_to_fit(options);
        let what = format!(
            "{sessions_max} sessions that remember {window} batches each leave room for {room} bytes of logs at the start \
             of a segment, and the group has {} logs of {bytes} bytes with their options; lower sessions_max or \
             session_window",
            self.logs.len()
        );
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }

    /// Checks that a session can be opened on `log`.
    pub(super) fn check_session_log(&self, log: LogNumber) -> Result<()> {
        match log.is_none() {
            true if self.logs.is_shared() => Err(shared_group()),
            true => Ok(()),
            false => self.logs.check_append(log).map(drop),
        }
    }
}
