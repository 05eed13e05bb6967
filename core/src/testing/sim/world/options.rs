//! Options: changes options of the log now and then, at the current leader, whatever else happens.
//!
//! Two kinds of options get other values, because no check has to know of them: how many batches of a session are
//! remembered (always more than a client has in flight), and limits that are never reached.

use super::{Asker, Check, Event, World};
use crate::error::Result as LogResult;
use crate::options::log_options::LogOption;
use crate::sync::completion::Appended;
use crate::testing::sim::fault::Fault;
use crate::testing::sim::machine::Request;
use crate::types::LogNumber;
use std::time::Duration;

/// How long a change waits for the members.
const PATIENCE: Duration = Duration::from_secs(3);
/// Values from here on are never reached.
const NEVER: u64 = 1 << 40;

impl World {
    /// Changes some options of the log, and schedules the next change.
    pub(in crate::testing::sim) fn options_wake(&mut self) -> Check {
        if self.nemesis.over {
            return Ok(());
        }
        if let Some(leader) = self.leader() {
            let mut changes: Vec<(LogOption, Option<u64>)> = (0..=self.options_rng.below(2))
                .map(|_| {
                    let option = [
                        LogOption::SessionWindow,
                        LogOption::SessionWindow,
                        LogOption::RetentionBytes,
                        LogOption::RetentionAge,
                        LogOption::CapacityBytes,
                    ][self.options_rng.below(5)];
                    let value = match option {
                        LogOption::SessionWindow => self.options_rng.between(8, 16),
                        _ => NEVER + self.options_rng.between(0, 1000),
                    };
                    (option, self.options_rng.permille(750).then_some(value))
                })
                .collect();
            // Few rows stay, so that runs of older ones are in objects alone.
            if self.plan.objects && self.plan.logs == 0 {
                changes.push((LogOption::ObjectRows, Some(2)));
            }
            // Of a group: its own options, or those of one of its lasting logs.
            let log = LogNumber(self.options_rng.below(self.plan.logs as usize + 1) as u32);
            let now = self.now();
            self.story
                .note(now, || format!("options of log {log} are changed at node {leader}: {changes:?}"));
            // The log shows the outcome.
            let retention = [LogOption::RetentionBytes, LogOption::RetentionAge];
            let last = |wanted| changes.iter().rev().find(|(option, _)| *option == wanted);
            let retains = retention.into_iter().filter_map(last).any(|(_, value)| value.is_some());
            let is_of_group = |option| !LogOption::OF_NAMED_LOGS.contains(&option);
            let is_foreign = LogOption::ALL
                .into_iter()
                .filter(|option| is_of_group(*option))
                .filter_map(last)
                .any(|(_, value)| value.is_some());
            let impossible = if log.is_none() { self.plan.logs > 0 && retains } else { is_foreign };
            let request = Request::SetOptions(log, changes);
            drop(self.submit(Asker::Options { impossible }, leader, request, PATIENCE));
        }
        let next = Duration::from_millis(self.options_rng.between(300, 2_500));
        self.schedule.after(next, Event::Options);
        Ok(())
    }

    /// A change was answered, or never will be.
    pub(in crate::testing::sim) fn on_options_result(
        &mut self,
        impossible: bool,
        result: Option<LogResult<Appended>>,
    ) -> Check {
        if let Some(Ok(_)) = result {
            if impossible {
                return Err(
                    "a group of named logs, or one of them, has accepted an option that it cannot have"
                        .to_owned(),
                );
            }
            self.counts.add(Fault::SetOptions);
        }
        Ok(())
    }
}
