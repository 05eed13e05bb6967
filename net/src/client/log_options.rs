//! Options of a log: limits that are stored in the log, and hold whichever server leads.

use super::Client;
use crate::wire::proto::v1::admin_client::AdminClient;
use crate::wire::proto::v1::{LogOption as WireOption, LogOptionsRequest, SetLogOptionsRequest};
use chiplog::{Error, ErrorKind, LogOption, LogOptions, Result};
use std::time::Duration;

/// How long an answer may take after the server has waited for members.
const ANSWER: Duration = Duration::from_secs(5);
/// The longest wait that servers accept.
const TIMEOUT_MAX: Duration = Duration::from_secs(600);

impl Client {
    /// The options that are set for the log, as its leader knows them. For an option that is not set the leader's own value
    /// holds. Of a named log: its own ones. A token needs the role `read`.
    ///
    /// # Errors
    /// `Unsupported`: the log has an option that this version does not know. As [`Client::info`].
    pub async fn log_options(&self) -> Result<LogOptions> {
        let answer = self.call_leader(LogOptionsRequest { log: self.log_name() }, |channel, request| {
            Box::pin(async move { AdminClient::new(channel).log_options(request).await })
        });
        from_wire(answer.await?.options)
    }

    /// Sets options of the log, or unsets those whose value is `None`: all changes at once, or none. Other options keep their
    /// values. Values are in bytes, milliseconds or a count, as [`LogOption`] says; `u64::MAX` means no limit. Returns once the
    /// change is committed; from then on every leader uses it. A limit of retention below what the log holds discards records
    /// at once, for good. `timeout`: how long the leader waits for members that have not confirmed yet that they know options of
    /// the log, from 1 ms to 600 s. The call can take that long and 5 s more, or `options.timeout` if that is longer.
    ///
    /// A named log has the options [`LogOption::OF_NAMED_LOGS`] of its own. The others are set for its group, with a client of
    /// the log `_group-1`, `_group-2` and so on. A token needs the role `admin`.
    ///
    /// ```no_run
    /// # async fn set(client: chiplog_net::client::Client) -> chiplog::Result<()> {
    /// use chiplog::LogOption;
    /// use std::time::Duration;
    /// let week = 7 * 24 * 3600 * 1000; // milliseconds
    /// client.set_log_options(&[(LogOption::RetentionAge, Some(week))], Duration::from_secs(10)).await?;
    /// assert_eq!(client.log_options().await?.get(LogOption::RetentionAge), Some(week));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`: no change, an option that is named twice, out of its bounds, or not one of a named log, or a conflict with
    /// the leader's other options. `Unsupported`: a member has not confirmed in time that it knows the options, or the server
    /// does not know one. Nothing was changed then. `NotFound`: the log was deleted. `PermissionDenied`. As [`Client::info`]; after
    /// `Timeout` and `Unavailable` the change may or may not take effect. It is safe to repeat.
    pub async fn set_log_options(
        &self,
        changes: &[(LogOption, Option<u64>)],
        timeout: Duration,
    ) -> Result<()> {
        for (n, (option, _)) in changes.iter().enumerate() {
            if changes[..n].iter().any(|(other, _)| other == option) {
                let what = format!("the changes name {option} twice: name it once");
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
        }
        let timeout = timeout.clamp(Duration::from_millis(1), TIMEOUT_MAX);
        let to_wire =
            |(option, value): &(LogOption, _)| WireOption { name: option.name().to_owned(), value: *value };
        let request = SetLogOptionsRequest {
            log: self.log_name(),
            changes: changes.iter().map(to_wire).collect(),
            timeout_millis: timeout.as_millis() as u32,
        };
        let attempt = self.options().attempt_timeout.max(timeout + ANSWER);
        let set = self.call_leader_for(attempt, request, |channel, request| {
            Box::pin(async move { AdminClient::new(channel).set_log_options(request).await })
        });
        set.await.map(drop)
    }
}

/// # Errors
/// `Unsupported`: an option is not known here.
fn from_wire(told: Vec<WireOption>) -> Result<LogOptions> {
    let mut options = LogOptions::default();
    for WireOption { name, value } in told {
        let option = LogOption::from_name(&name).ok_or_else(|| {
            let what = format!(
                "the log has the option {name}, which this version does not know: use a newer chiplog"
            );
            Error::new(ErrorKind::Unsupported, what)
        })?;
        options.set(option, value);
    }
    Ok(options)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn unknown_option_is_an_error() {
        let told = |name: &str| vec![WireOption { name: name.to_owned(), value: Some(7) }];
        assert_eq!(from_wire(told("sessions_max")).unwrap().get(LogOption::SessionsMax), Some(7));
        let error = from_wire(told("later")).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("later"), "{error}");
    }
}
