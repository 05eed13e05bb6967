//! Config: a server's configuration. It comes from a TOML file, then the environment and flags, which
//! override it, then defaults.
//!
//! Invariants:
//! - An unknown key is an error that names it.
//! - Every key of the file can be set by `--set KEY=VALUE` and by a variable (`CHIPLOG__` and the key). Keys
//!   that differ from machine to machine have a flag and a variable of their own.
//!
//! Must not know: sockets, logs.

use super::limits::Limits;
use super::objects::Objects;
use super::size::{Size, narrow};
use crate::common::failure::{Failure, Result};
use chiplog::cluster::{Bootstrap, ClusterOptions};
use chiplog::internal::GroupDirectories;
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Logs, LogsOptions, NodeId, Options, ReadMode};
use chiplog_net::peer::GROUPS_MAX;
use chiplog_net::served::log_slot::DEFAULT_LOG;
use chiplog_net::wire::address::{Address, check_host_port};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use toml::{Table, Value};

/// The advice for a configuration file that is missing.
const NO_FILE: &str = "check the path that --config or CHIPLOG_CONFIG gives; `chiplog config show --node 1 > FILE`, without both, makes a file to begin with";

/// A server's configuration, in the form of its file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// This server's number in its cluster, from 1. Never the number of another server, or of a removed one.
    pub(crate) node: u64,
    /// The log's directory.
    pub(crate) data: PathBuf,
    /// A label of the server's location.
    pub(crate) zone: String,
    /// Allows listeners for other machines without TLS.
    pub(crate) insecure: bool,
    /// How long an orderly shutdown may take, in milliseconds.
    pub(crate) shutdown_millis: u64,
    /// How often certificates and tokens are checked, in seconds. 0: only on SIGHUP.
    pub(crate) reload_seconds: u64,
    /// The number of threads that serve clients. None: [`crate::common::runtime::threads`].
    pub(crate) threads: Option<u64>,
    /// The number of groups of named logs. 0: the server keeps no named logs.
    pub(crate) groups: u32,
    /// The number of voting servers that run each group. 0: all servers do.
    pub(crate) group_replicas: u32,
    /// Further directories for the groups of named logs, each meant to be on a disk of its own.
    pub(crate) group_directories: Vec<PathBuf>,
    /// The location of the object store. Empty: none.
    pub(crate) object_store: String,
    pub(crate) listen: Listen,
    pub(crate) advertise: Advertise,
    pub(crate) log: LogConfig,
    pub(crate) objects: Objects,
    pub(crate) cluster: ClusterConfig,
    pub(crate) limits: Limits,
    pub(crate) tls: Tls,
    pub(crate) auth: Auth,
}

/// The addresses to listen at, each `host:port`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listen {
    /// For clients and administration.
    pub(crate) client: String,
    /// For the other replicas.
    pub(crate) peer: String,
    /// For probes and metrics, plain HTTP. Empty: none.
    pub(crate) http: String,
    /// For clients of `logspec.Log`, whose requests name no log.
    pub(crate) logspec: Vec<LogAt>,
}

/// A named log and the address of its own listener, `NAME@host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct LogAt {
    pub(crate) log: String,
    pub(crate) address: String,
}

impl TryFrom<String> for LogAt {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        match text.split_once('@') {
            Some((log, address)) => Ok(Self { log: log.to_owned(), address: address.to_owned() }),
            None => Err(format!("{text:?} is not a log and an address, such as orders@127.0.0.1:7431")),
        }
    }
}

impl From<LogAt> for String {
    fn from(at: LogAt) -> Self {
        format!("{}@{}", at.log, at.address)
    }
}

/// The addresses at which others reach the server. Empty: those it listens at.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Advertise {
    pub(crate) client: String,
    pub(crate) peer: String,
}

/// The log's limits. A missing one is derived from the segment size.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogConfig {
    pub(crate) segment_bytes: Option<Size>,
    pub(crate) capacity_bytes: Option<Size>,
    pub(crate) retention_bytes: Option<Size>,
    pub(crate) retention_seconds: Option<u64>,
    pub(crate) record_bytes_max: Option<Size>,
    pub(crate) batch_bytes_max: Option<Size>,
    pub(crate) block_bytes_max: Option<Size>,
    pub(crate) queue_bytes_max: Option<Size>,
    pub(crate) queue_appends_max: Option<u64>,
    pub(crate) queue_timeout_millis: Option<u64>,
    pub(crate) prefetch_bytes: Option<Size>,
    pub(crate) sessions_max: Option<u32>,
    pub(crate) session_window: Option<u16>,
    pub(crate) session_idle_max_seconds: Option<u64>,
    /// "map" or "read".
    pub(crate) read_mode: Option<Reading>,
    pub(crate) sorted_copies: Option<bool>,
}

/// The same as [`ReadMode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reading {
    Map,
    Read,
}

/// Options of replication.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClusterConfig {
    pub(crate) heartbeat_millis: u64,
    pub(crate) election_timeout_millis: u64,
    pub(crate) message_bytes_max: Size,
    pub(crate) messages_inflight_max: u16,
    pub(crate) uncommitted_bytes_max: Size,
    pub(crate) inbox_bytes_max: Size,
    /// The number of bytes that may wait for one peer.
    pub(crate) peer_queue_bytes_max: Size,
    /// 0: never.
    pub(crate) slow_disk_sync_millis: u64,
    pub(crate) scrub_bytes_per_second: Size,
}

/// Certificates, each a file in PEM. None: no TLS.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tls {
    /// For clients.
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    /// The authority that has to have signed the clients' certificates. None: clients need no certificate.
    pub(crate) client_authority: Option<PathBuf>,
    /// Between the replicas, in both directions.
    pub(crate) peer_certificate: Option<PathBuf>,
    pub(crate) peer_key: Option<PathBuf>,
    pub(crate) peer_authority: Option<PathBuf>,
}

/// Authorization of calls.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Auth {
    /// A file with the digests and roles of tokens. None: everyone may call everything.
    pub(crate) tokens: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: 0,
            data: PathBuf::from("/var/lib/chiplog"),
            zone: String::new(),
            insecure: false,
            shutdown_millis: 10_000,
            reload_seconds: 30,
            threads: None,
            groups: 0,
            group_replicas: 0,
            group_directories: Vec::new(),
            object_store: String::new(),
            listen: Listen::default(),
            advertise: Advertise::default(),
            log: LogConfig::default(),
            objects: Objects::default(),
            cluster: ClusterConfig::default(),
            limits: Limits::default(),
            tls: Tls::default(),
            auth: Auth::default(),
        }
    }
}

impl Default for Listen {
    fn default() -> Self {
        let at = |port: u16| format!("127.0.0.1:{port}");
        Self { client: at(7411), peer: at(7412), http: at(7413), logspec: Vec::new() }
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        let d = ClusterOptions::new(NodeId(1), Bootstrap::Existing, Arc::new(Nowhere));
        Self {
            heartbeat_millis: d.heartbeat.as_millis() as u64,
            election_timeout_millis: d.election_timeout.as_millis() as u64,
            message_bytes_max: Size(d.message_bytes_max.into()),
            messages_inflight_max: d.messages_inflight_max,
            uncommitted_bytes_max: Size(d.uncommitted_bytes_max as u64),
            inbox_bytes_max: Size(d.inbox_bytes_max as u64),
            peer_queue_bytes_max: Size(64 << 20),
            slow_disk_sync_millis: d.slow_disk_sync.map_or(0, |t| t.as_millis() as u64),
            scrub_bytes_per_second: Size(d.scrub_bytes_per_second),
        }
    }
}

/// A transport for options that are only checked.
#[derive(Debug)]
pub(super) struct Nowhere;

impl chiplog::transport::Transport for Nowhere {
    fn attach(&self, _: NodeId, _: chiplog::transport::Inbox) {}
    fn detach(&self, _: NodeId) {}
    fn send(&self, _: chiplog::transport::Envelope) {}
}

/// A key that overrides the file.
#[derive(Clone, Debug)]
pub(crate) struct Over {
    pub(crate) key: String,
    pub(crate) value: String,
    /// The source of the value, for errors: a flag or an environment variable.
    pub(crate) by: String,
}

impl Config {
    /// Loads the file's configuration, applies the overriding keys, and checks the result.
    ///
    /// # Errors
    /// The file cannot be read, or the file or a key is wrong. The message names the key and its source.
    pub(crate) fn load(file: Option<&Path>, over: &[Over]) -> Result<Self> {
        let mut table = Table::new();
        if let Some(file) = file {
            let text = fs::read_to_string(file).map_err(|e| {
                let failure = Failure::option_file("configuration", file, &e);
                match e.kind() {
                    io::ErrorKind::NotFound => failure.with_words(NO_FILE),
                    _ => failure,
                }
            })?;
            // Parse the file first, because these errors name line and column.
            let wrong = |e: toml::de::Error| Failure::usage(format!("{}: {}", file.display(), words(&e)));
            toml::from_str::<Self>(&text).map_err(wrong)?;
            table = text.parse().map_err(wrong)?;
        }
        for Over { key, value, by } in over {
            let wrong = |e: String| Failure::usage(format!("{by}: {e}"));
            set(&mut table, key, value).map_err(|e| wrong(e.to_string()))?;
            // Apply each key by itself, so that an error belongs to that key. The error has the key on a line
            // of its own.
            let tried = table.clone().try_into::<Self>();
            tried.map_err(|e: toml::de::Error| wrong(words(&e).trim().replace('\n', " ")))?;
        }
        let config: Self = table.try_into().map_err(|e: toml::de::Error| Failure::usage(words(&e)))?;
        config.check().map_err(|failure| match (file, over) {
            (Some(file), []) => failure.at(&file.display().to_string()),
            (Some(file), _) => failure.at(&format!("{}, with the keys that override it", file.display())),
            (None, _) => failure,
        })?;
        Ok(config)
    }

    /// Checks everything that does not depend on the machine.
    ///
    /// # Errors
    /// `InvalidArgument`: lists every mistake.
    fn check(&self) -> Result<()> {
        let checks = [self.check_places(), self.check_files(), self.check_numbers(), self.check_options()];
        let wrong: Vec<String> = checks.into_iter().flatten().collect();
        if wrong.is_empty() { Ok(()) } else { Err(Failure::usage(wrong.join("; "))) }
    }

    /// The mistakes in addresses and the zone.
    fn check_places(&self) -> Vec<String> {
        let Listen { client, peer, http, logspec } = &self.listen;
        let mut wrong = Vec::new();
        let mut places = vec![("listen.client", client), ("listen.peer", peer)];
        places.extend([("listen.http", http)].into_iter().filter(|(_, v)| !v.is_empty()));
        for (key, place) in places {
            // Port 0: any free port.
            let any = place.strip_suffix(":0").map(|host| format!("{host}:1"));
            wrong.extend(
                check_host_port(any.as_deref().unwrap_or(place)).err().map(|e| format!("{key}: {e}")),
            );
        }
        wrong.extend(logspec.iter().filter_map(|at| self.check_logspec(at).err()));
        let advertised =
            [("advertise.client", &self.advertise.client), ("advertise.peer", &self.advertise.peer)];
        for (key, place) in advertised.into_iter().filter(|(_, place)| !place.is_empty()) {
            wrong.extend(check_host_port(place).err().map(|e| format!("{key}: {e}")));
        }
        wrong.extend(Address::new("a:1", "a:1", self.zone.as_str()).err().map(|e| e.to_string()));
        wrong
    }

    /// Checks a listener of a named log.
    fn check_logspec(&self, at: &LogAt) -> std::result::Result<(), String> {
        let wrong = |what: &str| Err(format!("listen.logspec {:?}: {what}", String::from(at.clone())));
        if let Err(e) = Logs::check_name(&at.log) {
            return wrong(&e.to_string());
        }
        if let Err(e) = check_host_port(&at.address) {
            return wrong(&e.to_string());
        }
        if at.log == DEFAULT_LOG {
            return wrong("the default log is at listen.client");
        }
        let Listen { client, peer, http, logspec } = &self.listen;
        if logspec.iter().filter(|other| other.log == at.log).count() > 1 {
            return wrong("the log is listed twice, and clients are redirected to one port");
        }
        let is_taken = [client, peer, http].contains(&&at.address);
        if is_taken || logspec.iter().filter(|other| other.address == at.address).count() > 1 {
            return wrong("the address is used twice");
        }
        match self.groups {
            0 => wrong("groups is 0; a port for a named log needs at least 1"),
            _ => Ok(()),
        }
    }

    /// The mistakes in names of files and directories.
    fn check_files(&self) -> Vec<String> {
        let Tls { certificate, key, client_authority, peer_certificate, peer_key, peer_authority } =
            &self.tls;
        let client = [("tls.certificate", certificate), ("tls.key", key)];
        let peers = [
            ("tls.peer_certificate", peer_certificate),
            ("tls.peer_key", peer_key),
            ("tls.peer_authority", peer_authority),
        ];
        let others = [
            ("tls.client_authority", client_authority),
            ("auth.tokens", &self.auth.tokens),
            ("objects.credentials", &self.objects.credentials),
        ];
        let mut wrong = Vec::new();
        let directories = GroupDirectories::check(&self.data, &self.group_directories);
        wrong.extend(directories.err().map(|e| format!("group_directories: {e}")));
        for (key, file) in client.iter().chain(&peers).chain(&others) {
            if file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
                wrong.push(format!("{key} is empty: give a file, or remove the key"));
            }
        }
        let needed_by = client_authority.as_ref().map(|_| "tls.client_authority");
        wrong.extend(together(&client, needed_by).err().map(|e| e.to_string()));
        wrong.extend(together(&peers, None).err().map(|e| e.to_string()));
        wrong
    }

    /// The numbers that are out of bounds, among those that are named in the file.
    fn check_numbers(&self) -> Vec<String> {
        let ClusterConfig { heartbeat_millis, election_timeout_millis, .. } = self.cluster;
        let mut wrong = Vec::new();
        for (key, value, min, max) in [
            ("shutdown_millis", self.shutdown_millis, 0, 3_600_000),
            ("reload_seconds", self.reload_seconds, 0, 86_400),
            ("threads", self.threads.unwrap_or(1), 1, 1024),
            ("groups", self.groups.into(), 0, GROUPS_MAX.into()),
            ("cluster.heartbeat_millis", heartbeat_millis, 1, 60_000),
            ("objects.timeout_millis", self.objects.timeout_millis, 50, 3_600_000),
        ] {
            if !(min..=max).contains(&value) {
                wrong.push(format!("{key} is {value}; it has to be from {min} to {max}"));
            }
        }
        if !matches!(self.group_replicas, 0 | 1 | 3 | 5 | 7) {
            wrong.push(format!(
                "group_replicas is {}; it has to be 1, 3, 5 or 7, or 0 for all servers",
                self.group_replicas
            ));
        }
        for (key, value) in [
            ("log.retention_seconds", self.log.retention_seconds),
            ("log.session_idle_max_seconds", self.log.session_idle_max_seconds),
            ("objects.object_age_seconds", self.objects.object_age_seconds),
            ("objects.local_age_seconds", self.objects.local_age_seconds),
        ] {
            if value == Some(0) {
                wrong.push(format!("{key} is 0; it has to be at least 1"));
            }
        }
        wrong.extend(self.objects.without_store().filter(|_| self.object_store.is_empty()));
        if election_timeout_millis / 3 < heartbeat_millis {
            wrong.push(format!(
                "cluster.election_timeout_millis is {election_timeout_millis}; it has to be at least three times cluster.heartbeat_millis, which is {heartbeat_millis}"
            ));
        }
        wrong
    }

    /// The options that the log refuses, if every number is within bounds, and the limits that are wrong.
    fn check_options(&self) -> Vec<String> {
        let options = match self.options(Bootstrap::Existing, Arc::new(Nowhere), String::new()) {
            Ok(options) => options,
            Err(failure) => return vec![failure.to_string()],
        };
        // An object store needs room in the log's segments.
        let any: Option<Arc<dyn Vault>> =
            (!self.object_store.is_empty()).then(|| Arc::new(MemoryVault::default()) as Arc<dyn Vault>);
        let options = options.vault(any);
        let log = options.check().err().filter(|_| self.check_numbers().is_empty());
        let log = log.map(|e| {
            let e = e.to_string();
            format!("{e} (of the section [{}], in the file or by --set)", section_of(&e))
        });
        let limits = self.limits.check(options.batch_bytes_max).err().map(|e| e.to_string());
        log.into_iter().chain(limits).collect()
    }

    /// The options of this server's log, without its object store. `node` may still be missing.
    pub(crate) fn options(
        &self,
        bootstrap: Bootstrap,
        transport: Arc<dyn chiplog::transport::Transport>,
        address: String,
    ) -> Result<Options> {
        let c = &self.cluster;
        let mut cluster = ClusterOptions::new(NodeId(self.node.max(1)), bootstrap, transport);
        cluster.address = address;
        cluster.heartbeat = Duration::from_millis(c.heartbeat_millis);
        cluster.election_timeout = Duration::from_millis(c.election_timeout_millis);
        cluster.message_bytes_max = narrow("cluster.message_bytes_max", c.message_bytes_max)?;
        cluster.messages_inflight_max = c.messages_inflight_max;
        cluster.uncommitted_bytes_max = wide(c.uncommitted_bytes_max);
        cluster.inbox_bytes_max = wide(c.inbox_bytes_max);
        cluster.slow_disk_sync =
            (c.slow_disk_sync_millis > 0).then(|| Duration::from_millis(c.slow_disk_sync_millis));
        cluster.scrub_bytes_per_second = c.scrub_bytes_per_second.0;
        let l = &self.log;
        let base = match l.segment_bytes {
            Some(size) => Options::with_segment_bytes(narrow("log.segment_bytes", size)?),
            None => Options::default(),
        };
        let or = |key: &str, size: Option<Size>, default| size.map_or(Ok(default), |s| narrow(key, s));
        let base = self.objects.apply(base)?;
        Ok(base
            .clone()
            .capacity_bytes(l.capacity_bytes.map(|s| s.0))
            .retention_bytes(l.retention_bytes.map(|s| s.0))
            .retention_age(l.retention_seconds.map(Duration::from_secs))
            .record_bytes_max(or("log.record_bytes_max", l.record_bytes_max, base.record_bytes_max)?)
            .batch_bytes_max(or("log.batch_bytes_max", l.batch_bytes_max, base.batch_bytes_max)?)
            .block_bytes_max(or("log.block_bytes_max", l.block_bytes_max, base.block_bytes_max)?)
            .queue_bytes_max(l.queue_bytes_max.map_or(base.queue_bytes_max, wide))
            .queue_appends_max(l.queue_appends_max.map_or(base.queue_appends_max, |n| wide(Size(n))))
            .queue_timeout(l.queue_timeout_millis.map_or(base.queue_timeout, Duration::from_millis))
            .prefetch_bytes(or("log.prefetch_bytes", l.prefetch_bytes, base.prefetch_bytes)?)
            .sessions_max(l.sessions_max.unwrap_or(base.sessions_max))
            .session_window(l.session_window.unwrap_or(base.session_window))
            .session_idle_max(l.session_idle_max_seconds.map_or(base.session_idle_max, Duration::from_secs))
            .read_mode(match l.read_mode {
                Some(Reading::Read) => ReadMode::Read,
                Some(Reading::Map) | None => base.read_mode,
            })
            .sorted_copies(l.sorted_copies.unwrap_or(base.sorted_copies))
            .cluster(cluster))
    }

    /// The options of the groups of named logs, without their object store. They share the helper threads of `shared`. Retention by size
    /// and by age is of the default log alone; each group may take the whole capacity, and keeps `local_bytes` for itself.
    pub(crate) fn groups_options(
        &self,
        shared: &LogsOptions,
        bootstrap: Bootstrap,
        transport: Arc<dyn chiplog::transport::Transport>,
        address: String,
    ) -> Result<LogsOptions> {
        let mut options = self.options(bootstrap, transport, address)?;
        let cluster = options.cluster.take();
        (options.retention_bytes, options.retention_age) = (None, None);
        if self.log.sessions_max.is_none() {
            options.sessions_max = options.sessions_max.div_ceil(2); // small segments need room for the table of logs
        }
        let options = shared.clone().options(options);
        Ok(match cluster {
            Some(cluster) => options.cluster(move |_| cluster.clone()),
            None => options,
        })
    }

    /// The size of the largest message that clients may send.
    pub(crate) fn message_bytes_max(&self) -> Result<usize> {
        let options = self.options(Bootstrap::Existing, Arc::new(Nowhere), String::new())?;
        Ok(wide(Size(self.limits.message_bytes_max(options.batch_bytes_max))))
    }

    /// The most memory that the server uses.
    pub(crate) fn memory_bytes_max(&self) -> Result<u64> {
        let options = self.options(Bootstrap::Existing, Arc::new(Nowhere), String::new())?;
        let threads = self.threads.unwrap_or(crate::common::runtime::threads() as u64);
        Ok(self.limits.memory_bytes_max(&options, self.cluster.peer_queue_bytes_max.0, threads, self.logs()))
    }

    /// The number of logs and groups that the server can run: the default log, and the groups of named logs with the system log.
    fn logs(&self) -> u64 {
        u64::from(self.groups) + 1 + u64::from(self.groups > 0)
    }

    /// How many of them have an object store.
    pub(crate) fn logs_with_objects(&self) -> u64 {
        if self.object_store.is_empty() { 0 } else { self.logs() }
    }

    /// The same configuration with every limit filled in.
    pub(crate) fn filled(&self) -> Result<Self> {
        let o = self.options(Bootstrap::Existing, Arc::new(Nowhere), String::new())?;
        let size = |n: u64| Some(Size(n));
        let log = LogConfig {
            segment_bytes: size(o.segment_bytes.into()),
            record_bytes_max: size(o.record_bytes_max.into()),
            batch_bytes_max: size(o.batch_bytes_max.into()),
            block_bytes_max: size(o.block_bytes_max.into()),
            queue_bytes_max: size(o.queue_bytes_max as u64),
            queue_appends_max: Some(o.queue_appends_max as u64),
            queue_timeout_millis: Some(o.queue_timeout.as_millis() as u64),
            prefetch_bytes: size(o.prefetch_bytes.into()),
            sessions_max: Some(o.sessions_max),
            session_window: Some(o.session_window),
            session_idle_max_seconds: Some(o.session_idle_max.as_secs()),
            read_mode: Some(if o.read_mode == ReadMode::Read { Reading::Read } else { Reading::Map }),
            sorted_copies: Some(o.sorted_copies),
            ..self.log.clone()
        };
        let message_bytes_max = size(self.limits.message_bytes_max(o.batch_bytes_max));
        let limits = Limits { message_bytes_max, ..self.limits.clone() };
        Ok(Self { log, limits, objects: self.objects.filled(&o), ..self.clone() })
    }
}

/// The section with the key that the check of the log's options refuses, by its message: `option NAME is …`.
fn section_of(message: &str) -> &'static str {
    let name = message.trim_start_matches("options ").trim_start_matches("option ");
    let of_objects = ["object_", "local_", "cache_", "fill_", "slice_", "payload_"];
    match name {
        _ if name.starts_with("cluster.") => "cluster",
        _ if of_objects.iter().any(|begin| name.starts_with(begin)) => "objects",
        _ => "log",
    }
}

/// Checks that all of these keys are set, or none. With `needed_by` all have to be set.
fn together(keys: &[(&str, &Option<PathBuf>)], needed_by: Option<&str>) -> Result<()> {
    let given: Vec<&str> = keys.iter().filter(|(_, file)| file.is_some()).map(|(key, _)| *key).collect();
    let missing: Vec<&str> = keys.iter().filter(|(_, file)| file.is_none()).map(|(key, _)| *key).collect();
    let given = match given.is_empty() {
        true => needed_by.into_iter().collect(),
        false => given,
    };
    if given.is_empty() || missing.is_empty() {
        return Ok(());
    }
    let (given, missing) = (given.join(" and "), missing.join(" and "));
    Err(Failure::usage(format!("{given} without {missing}: set {missing} too, they work only together")))
}

/// The message of an error in TOML. Types of numbers have their names in Rust there: `expected u64`.
fn words(error: &toml::de::Error) -> String {
    let mut text = error.to_string();
    for number in ["u16", "u32", "u64"] {
        text = text.replace(&format!("expected {number}"), "expected a whole number");
    }
    text
}

fn wide(size: Size) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
}

/// Sets `a.b` to a value: what TOML parses it as, or else text.
fn set(table: &mut Table, key: &str, value: &str) -> Result<()> {
    let mut at = table;
    let mut parts = key.split('.').peekable();
    while let Some(part) = parts.next() {
        if part.is_empty() {
            break;
        }
        if parts.peek().is_none() {
            let parsed = format!("v = {value}").parse::<Table>().ok().and_then(|mut t| t.remove("v"));
            at.insert(part.to_owned(), parsed.unwrap_or_else(|| Value::String(value.to_owned())));
            return Ok(());
        }
        match at.entry(part).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => at = inner,
            _ => return Err(Failure::usage(format!("{key}: {part} has no keys below it"))),
        }
    }
    Err(Failure::usage(format!("{key:?} is not a key")))
}

#[cfg(test)]
mod tests {
    mod page;

    use super::*;

    fn load(text: &str, over_keys: &[(&str, &str)]) -> Result<Config> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let over = |(key, value): &(&str, &str)| Over {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
            by: format!("--set {key}={value}"),
        };
        let over: Vec<_> = over_keys.iter().map(over).collect();
        Config::load(Some(file.path()), &over)
    }

    #[test]
    fn later_sources_override_earlier_ones() {
        let text = "node = 3\n[log]\nsegment_bytes = \"1MiB\"\n[listen]\nclient = \"[::1]:1\"";
        let config = load(text, &[("listen.client", "127.0.0.1:0"), ("node", "4"), ("zone", "7x")]).unwrap();
        assert_eq!(
            (config.node, config.listen.client.as_str(), config.zone.as_str()),
            (4, "127.0.0.1:0", "7x")
        );
        assert_eq!(config.log.segment_bytes, Some(Size(1 << 20)));
        let filled = config.filled().unwrap();
        assert_eq!(filled.filled().unwrap(), filled);
        let text = toml::to_string(&filled).unwrap();
        assert_eq!(load(&text, &[]).unwrap(), filled, "a printed configuration can be loaded");
    }

    #[test]
    fn errors_name_the_wrong_key() {
        for (text, over, named) in [
            ("nodes = 3", None, "nodes"),
            ("[log]\nsegment = 1", None, "segment"),
            ("[log]\nsegment_bytes = 1", None, "segment_bytes"),
            ("[log]\nsegment_bytes = \"8 parsecs\"", None, "segment_bytes"),
            ("", Some(("listen.cilent", "a:1")), "cilent"),
            ("", Some(("listen.client", "a")), "listen.client"),
            ("groups = 1", Some(("listen.logspec", "[\"orders\"]")), "such as orders@127.0.0.1:7431"),
            ("groups = 1", Some(("listen.logspec", "[\"_a@h:1\"]")), "kept for chiplog's own logs"),
            ("groups = 1", Some(("listen.logspec", "[\"a@h:0\"]")), "listen.logspec \"a@h:0\""),
            ("groups = 1", Some(("listen.logspec", "[\"a@h:1\", \"a@h:2\"]")), "listed twice"),
            ("", Some(("listen.logspec", "[\"a@h:1\"]")), "groups is 0"),
            ("groups = 1", Some(("listen.logspec", "[\"default@h:1\"]")), "at listen.client"),
            ("groups = 1", Some(("listen.logspec", "[\"a@h:1\", \"b@h:1\"]")), "used twice"),
            ("groups = 1", Some(("listen.logspec", "[\"a@127.0.0.1:7412\"]")), "used twice"),
            ("", Some(("group_directories", "/d1")), "group_directories"),
            ("", Some(("group_directories", "[\"\"]")), "group_directories: directory \"\""),
            ("", Some(("group_directories", "[\"/d1\", \"/d2\", \"/d1/\"]")), "the same as /d1, another one"),
            ("", Some(("group_directories", "[\"/d1\", \"/d1/x\"]")), "below /d1, another one"),
            (
                "data = \"/d\"",
                Some(("group_directories", "[\"/d\"]")),
                "the same as /d, the directory of the logs",
            ),
            (
                "data = \"/d/x\"",
                Some(("group_directories", "[\"/d\"]")),
                "above /d/x, the directory of the logs",
            ),
            ("data = \"d\"", Some(("group_directories", "[\"./d/x\"]")), "/d/x\" for groups"),
            ("", Some(("node.x.y", "1")), "node"),
            ("", Some(("", "1")), "not a key"),
            ("", Some(("cluster.heartbeat_millis", "900")), "heartbeat"),
            ("", Some(("listen.cilent", "a:1")), "--set listen.cilent=a:1"),
            ("", Some(("node", "foo")), "--set node=foo"),
            (
                "",
                Some(("objects.local_bytes", "1GiB")),
                "objects.local_bytes is set, but object_store is not",
            ),
            (
                "",
                Some(("objects.object_bytes", "1MiB")),
                "objects.object_bytes is set, but object_store is not",
            ),
            (
                "",
                Some(("objects.object_age_seconds", "60")),
                "objects.object_age_seconds is set, but object_store is not",
            ),
            ("", Some(("objects.fill_bytes", "1GiB")), "objects.fill_bytes is set, but object_store is not"),
            ("object_store = \"/o\"", Some(("objects.fill_bytes", "1")), "fill_bytes"),
            ("object_store = \"/o\"", Some(("objects.local_bytes", "1")), "local_bytes"),
            (
                "object_store = \"/o\"",
                Some(("objects.local_age_seconds", "0")),
                "objects.local_age_seconds is 0",
            ),
            ("", Some(("objects.object_bytes", "1")), "object_bytes"),
            ("", Some(("objects.credentials", "")), "objects.credentials is empty"),
            ("[objects]\nsecret_key = \"x\"", None, "secret_key"),
            ("", Some(("log.segment_bytes", "1")), "section [log],"),
            ("", Some(("log.sessions_max", "1000000")), "section [log],"),
            ("", Some(("cluster.inbox_bytes_max", "1")), "section [cluster],"),
            ("object_store = \"/o\"", Some(("objects.cache_bytes", "1")), "section [objects],"),
            ("object_store = \"/o\"", Some(("objects.slice_interval_millis", "1")), "section [objects],"),
            ("", Some(("tls.peer_authority", "")), "tls.peer_authority is empty"),
            ("", Some(("tls.key", "k")), "tls.key without tls.certificate:"),
            ("", Some(("tls.certificate", "k")), "set tls.key too"),
            (
                "",
                Some(("tls.client_authority", "k")),
                "tls.client_authority without tls.certificate and tls.key",
            ),
            ("[tls]\npeer_certificate = \"c\"", Some(("tls.peer_key", "k")), "set tls.peer_authority too"),
            ("", Some(("cluster.election_timeout_millis", "299")), "cluster.election_timeout_millis is 299;"),
            ("", Some(("auth.token", "k")), "token"),
            ("", Some(("limits.connection_max", "1")), "connection_max"),
            ("", Some(("limits.message_bytes_max", "32MiB")), "message_bytes_max"),
            ("", Some(("limits.inflight_bytes_max", "1KiB")), "inflight_bytes_max"),
            ("", Some(("limits.idle_seconds", "-1")), "idle_seconds"),
        ] {
            let error = load(text, over.as_slice()).unwrap_err().to_string();
            assert!(error.contains(named), "{text} {over:?}: {error}");
        }
    }
}
