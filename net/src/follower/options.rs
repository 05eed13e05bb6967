//! Options of a follower: times, limits, preferred servers.

use crate::client::cluster::connections::check_window;
use crate::client::{ClientOptions, ClientTls, Secret};
use chiplog::{Error, ErrorKind, Options, Result, options};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

options! {
    /// Deadlines and limits of a [`Follower`](super::Follower), and options of its files.
    ///
    /// ```
    /// use chiplog::Options;
    /// use chiplog_net::follower::FollowerOptions;
    /// let options = FollowerOptions::default()
    ///     .log("orders".into()) // this named log alone
    ///     .zone("west".into()) // a server of this zone, if one answers
    ///     .files(Options::default().retention_bytes(10 << 30)); // keeps less than the cluster does
    /// ```
    #[derive(Clone, Debug)]
    pub struct FollowerOptions {
        /// Options of the copy's own files: their size, and how much is kept (`retention_bytes`, `retention_age`) in
        /// addition to the log's own discards. With `vault` the copy reads what is stored from the log's object store:
        /// it then has all records of the log, wherever it was to begin, and `local_bytes` bounds its files. If the servers' blocks
        /// fill their segments, `segment_bytes` must be at least that of the servers. `cluster` must be None.
        pub files: Options,
        /// The log's name; empty, the default: the log "default". A named log: the copy has this log alone, as a log on
        /// its own. `_group-1` and so on: the copy has all named logs of a group.
        pub log: String,
        /// Whether the copy reads objects through the servers that it is given, as with the object store in `files`: for a program that
        /// cannot reach the store, or has no credentials. The servers need an object store. Refused beside `vault`. For a named log the token must reach its
        /// whole group: an object has records of all logs there. Default: false.
        pub served_objects: bool,
        /// The preferred zone. A server of this zone comes first, then one that does not lead, then the leader.
        /// Default: no zone.
        pub zone: String,
        /// TLS settings; default: no TLS.
        pub tls: Option<ClientTls>,
        /// The token that is sent to servers, if they require one; default: none.
        pub token: Option<Secret>,
        /// Whether the token may be sent to other machines without TLS; default: no, those servers are not used.
        pub token_in_plain_text: bool,
        /// How long a new copy waits for a server, default 30 s. An existing copy needs none to open.
        pub open_timeout: Duration,
        /// How often an idle server sends a keep-alive, default 3 s. The follower leaves a server that is silent for
        /// three times as long.
        pub keep_alive: Duration,
        /// How often the follower asks another server for its last record, default 10 s. It leaves a server that is
        /// behind others for three times as long.
        pub compare_interval: Duration,
        /// The time limit of connecting, default 2 s.
        pub connect_timeout: Duration,
        /// How long a server may take to start sending, default 10 s.
        pub attempt_timeout: Duration,
        /// How long to wait for a server's answer about itself, default 1 s.
        pub probe_timeout: Duration,
        /// The wait after a second failure in a row, default 10 ms; it doubles after each further one, with jitter.
        /// After the first failure another server is tried at once.
        pub backoff_min: Duration,
        /// The longest wait between attempts, default 2 s.
        pub backoff_max: Duration,
        /// Bytes that a server may send ahead, 64 KiB to 2 GiB - 1, default 4 MiB. A follower with a slow disk holds these
        /// in memory, plus one response of 1 MiB or one block.
        pub window_bytes: u32,
    }
}

impl Default for FollowerOptions {
    fn default() -> Self {
        Self {
            files: Options::default(),
            log: String::new(),
            served_objects: false,
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
    /// `InvalidArgument`: a time or `window_bytes` is out of bounds; the certificates or the key in `tls` are invalid; whole objects for one named log.
    pub(super) fn check(&self) -> Result<()> {
        if self.files.vault.is_some() && self.served_objects {
            let what =
                "objects are read from the store that `files` has, or through servers: leave out one of them";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if self.files.fill_bytes.is_some() && super::is_named(&self.log) {
            let what = format!(
                "fill_bytes keeps whole objects, and those of log {:?} have the records of all logs of its group: leave it out; \
                 cache_bytes is how much this copy keeps of what its readers have read",
                self.log
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
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
        check_window(self.window_bytes)?;
        self.tls.as_ref().map_or(Ok(()), ClientTls::check)
    }

    /// The options for connections to its servers.
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
