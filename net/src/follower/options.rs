//! Options of a follower: times, limits, whom it prefers.

use crate::client::{ClientOptions, ClientTls, Secret};
use chiplog::{Error, ErrorKind, Options, Result};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Deadlines and limits of a [`Follower`](super::Follower), and those of its files.
///
/// ```
/// let mut options = chiplog_net::follower::FollowerOptions::default();
/// options.zone = "west".into(); // a server of this zone, if one answers
/// options.files.retention_bytes = Some(10 << 30); // keeps less than the cluster does
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FollowerOptions {
    /// Those of the copy's own files: how large they are, what is kept (`retention_bytes`, `retention_age`) besides what
    /// the log itself discards. `segment_bytes` has to be at least that of the servers if their blocks are that large.
    /// `cluster` has to be none.
    pub files: Options,
    /// Which log; empty, the default: the servers' only one.
    pub log: String,
    /// A server of this zone is preferred to one that does not lead, and that to the leader. Default: no zone.
    pub zone: String,
    /// TLS towards servers; default: none.
    pub tls: Option<ClientTls>,
    /// The token that is shown to servers, where they want one; default: none.
    pub token: Option<Secret>,
    /// Whether the token may go to other machines without TLS; default: no, such a server is not asked.
    pub token_in_plain_text: bool,
    /// How long opening an empty directory waits for a server, default 30 s. One that holds a copy needs none.
    pub open_timeout: Duration,
    /// How often an idle server says that it is there, default 3 s. One that is silent for three times as long is left.
    pub keep_alive: Duration,
    /// How often another server is asked how far it is, default 10 s. A server that has less than what others had for
    /// three times as long is left.
    pub compare_interval: Duration,
    /// How long a connection may take to come about, default 2 s.
    pub connect_timeout: Duration,
    /// How long a server may take to begin to send, default 10 s.
    pub attempt_timeout: Duration,
    /// How long a server is waited for when it is asked about itself, default 1 s.
    pub probe_timeout: Duration,
    /// The wait after a second failure in a row (after the first, another server is tried at once), default 10 ms; twice
    /// as long after each further one, with jitter.
    pub backoff_min: Duration,
    /// The longest such wait, default 2 s.
    pub backoff_max: Duration,
    /// Bytes that a server may send ahead, default 4 MiB: what a follower whose disk is slow holds in memory, besides one
    /// response of 1 MiB or one block.
    pub window_bytes: u32,
}

impl Default for FollowerOptions {
    fn default() -> Self {
        Self {
            files: Options::default(),
            log: String::new(),
            zone: String::new(),
            tls: None,
            token: None,
            token_in_plain_text: false,
            open_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(3),
            compare_interval: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_secs(10),
            probe_timeout: Duration::from_secs(1),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(2),
            window_bytes: 4 << 20,
        }
    }
}

impl FollowerOptions {
    /// # Errors
    /// `InvalidArgument`: a time is out of its bounds; no certificates or no key in `tls`.
    pub(super) fn check(&self) -> Result<()> {
        for (name, time) in [
            ("keep_alive", self.keep_alive),
            ("compare_interval", self.compare_interval),
            ("connect_timeout", self.connect_timeout),
            ("attempt_timeout", self.attempt_timeout),
            ("probe_timeout", self.probe_timeout),
            ("backoff_min", self.backoff_min),
            ("backoff_max", self.backoff_max),
        ] {
            if time < Duration::from_millis(1) || time > DAY {
                let what = format!("option {name} is {time:?}; it must be from 1 ms to 24 h");
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
        }
        self.tls.as_ref().map_or(Ok(()), ClientTls::check)
    }

    /// How its servers are reached.
    pub(super) fn client(&self) -> ClientOptions {
        ClientOptions {
            log: self.log.clone(),
            attempt_timeout: self.attempt_timeout,
            connect_timeout: self.connect_timeout,
            probe_timeout: self.probe_timeout,
            backoff_min: self.backoff_min,
            backoff_max: self.backoff_max,
            keep_alive: self.keep_alive,
            window_bytes: self.window_bytes,
            tls: self.tls.clone(),
            token: self.token.clone(),
            token_in_plain_text: self.token_in_plain_text,
            ..ClientOptions::default()
        }
    }
}
