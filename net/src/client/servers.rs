//! Servers: which servers there are, who of them leads, and the connections to them.
//!
//! Asks servers about themselves: those it was given at first, later also those that these named. Of two that name
//! different leaders, the one with the higher term is right: a leader that was cut off believes in itself for a while.
//!
//! Invariants:
//! - One question round at a time, however many ask; those who waited use what it brought.
//! - The lock is not held across an await.

use super::backoff::Backoff;
use super::token::{Bearer, Shown};
use super::{ClientOptions, ReadFrom};
use crate::native::PROTOCOL;
use crate::proto::v1::log_client::LogClient;
use crate::proto::v1::{Server, ServerInfoRequest, ServerInfoResponse};
use crate::status::from_status;
use chiplog::{BATCH_BYTES_MAX, Error, ErrorKind, Result};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::{Channel, Endpoint};

/// Room for one reply and its frame.
const MESSAGE_BYTES_MAX: usize = BATCH_BYTES_MAX + (2 << 20);

/// The default of HTTP/2, 16 KiB, costs a system call each.
const FRAME_BYTES: u32 = 256 << 10;

/// The limits that a server told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) batch_bytes_max: usize,
    pub(super) session_window: u16,
}

#[derive(Debug)]
pub(super) struct Servers {
    options: ClientOptions,
    seeds: Vec<String>,
    known: Mutex<Known>,
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    servers: Vec<Server>,
    leader: Option<String>,
    /// Of the newest answer that named a leader.
    term: u64,
    /// Was believed to lead, and did not answer as a leader.
    doubted: Option<String>,
    limits: Option<Limits>,
    /// For calls; streams have their own connections, so that none has to wait for another.
    channels: HashMap<String, Channel>,
}

/// Whether asking again changes nothing.
fn is_final(kind: ErrorKind) -> bool {
    use ErrorKind::{InvalidArgument, PermissionDenied, Unauthenticated, Unsupported};
    matches!(kind, Unsupported | Unauthenticated | PermissionDenied | InvalidArgument)
}

/// What one server said, or why not.
struct Answer {
    address: String,
    told: Result<ServerInfoResponse>,
}

impl Servers {
    pub(super) fn new(seeds: Vec<String>, options: ClientOptions) -> Self {
        Self { options, seeds, known: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the leader is; asks until `deadline`.
    ///
    /// # Errors
    /// `Unavailable`: nobody knew one; says what the last one that was asked answered. `Unsupported`.
    pub(super) async fn leader(&self, deadline: Instant) -> Result<String> {
        let mut backoff = Backoff::new(self.options.backoff_min, self.options.backoff_max);
        loop {
            if let Some(leader) = self.known().leader.clone() {
                return Ok(leader);
            }
            let asked = timeout_at(deadline, self.ask()).await;
            match asked {
                Ok(Ok(())) => {}
                Ok(Err(error)) if is_final(error.kind()) => return Err(error),
                Ok(Err(error)) => {
                    let wait = backoff.next();
                    if Instant::now() + wait >= deadline {
                        return Err(error);
                    }
                    sleep(wait).await;
                }
                Err(_) => {
                    let what = format!("no leader was found in time; asked {}", self.seeds.join(", "));
                    return Err(Error::new(ErrorKind::Unavailable, what));
                }
            }
        }
    }

    /// The leader's limits, as of the last time it was asked.
    pub(super) fn limits(&self) -> Limits {
        let cautious = Limits { batch_bytes_max: 1 << 20, session_window: 1 };
        self.known().limits.unwrap_or(cautious)
    }

    /// The server did not act as the leader.
    pub(super) fn doubt(&self, leader: &str) {
        let mut known = self.known();
        if known.leader.as_deref() == Some(leader) {
            known.doubted = known.leader.take();
        }
        known.channels.remove(leader);
    }

    /// A server says that this is the leader.
    pub(super) fn suggest(&self, leader: &str) {
        if crate::address::check_host_port(leader).is_ok() {
            self.known().leader = Some(leader.to_owned());
        }
    }

    /// A server to read from, one that is not in `avoid` if there is one.
    ///
    /// # Errors
    /// As [`Self::leader`].
    pub(super) async fn pick(
        &self,
        from: &ReadFrom,
        avoid: &BTreeSet<String>,
        deadline: Instant,
    ) -> Result<String> {
        if self.known().servers.is_empty() || *from == ReadFrom::Leader {
            let leader = self.leader(deadline).await?;
            // It may be the leader in name only: then whoever else there is.
            if *from == ReadFrom::Leader && !avoid.contains(&leader) {
                return Ok(leader);
            }
        }
        let known = self.known();
        let mut all: Vec<_> = known.servers.iter().map(|s| (&*s.address, &*s.zone)).collect();
        if all.is_empty() {
            all.extend(known.leader.as_deref().or(self.seeds.first().map(|s| &**s)).map(|s| (s, "")));
        }
        fastrand::shuffle(&mut all);
        let far = |zone: &str| matches!(from, ReadFrom::Nearest(near) if near != zone);
        let best = all.iter().min_by_key(|(address, zone)| (avoid.contains(*address), far(zone)));
        best.map(|(address, _)| (*address).to_owned())
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "no server is known"))
    }

    /// One round of questions.
    async fn ask(&self) -> Result<()> {
        let _one_at_a_time = self.asking.lock().await;
        if self.known().leader.is_some() {
            return Ok(());
        }
        let mut asked = JoinSet::new();
        let all: BTreeSet<String> = {
            let known = self.known();
            self.seeds.iter().cloned().chain(known.servers.iter().map(|s| s.address.clone())).collect()
        };
        for address in all {
            let client = self.client(&address);
            let timeout = self.options.probe_timeout;
            asked.spawn(async move {
                let told = match client {
                    Ok(mut client) => {
                        match tokio::time::timeout(timeout, client.server_info(ServerInfoRequest {})).await {
                            Ok(Ok(told)) => Ok(told.into_inner()),
                            Ok(Err(status)) => Err(from_status(&status)),
                            Err(_) => {
                                Err(Error::new(ErrorKind::Timeout, format!("no answer within {timeout:?}")))
                            }
                        }
                    }
                    Err(error) => Err(error),
                };
                Answer { address, told }
            });
        }
        let mut failed = None;
        let mut best: Option<(u64, bool, String)> = None;
        while let Some(Ok(answer)) = asked.join_next().await {
            match self.judge(answer) {
                Ok(Some(found)) => {
                    let sure = found.1;
                    best = best.max(Some(found));
                    if sure {
                        break;
                    }
                }
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        match best {
            Some((term, _, leader)) => {
                let mut known = self.known();
                known.term = known.term.max(term);
                known.leader = Some(leader);
                known.doubted = None;
                Ok(())
            }
            None => Err(failed.unwrap_or_else(|| {
                Error::new(
                    ErrorKind::Unavailable,
                    "no leader is known: an election is under way, or too few servers run",
                )
            })),
        }
    }

    /// Whom the answer names as the leader: its term, whether that is sure, and its address.
    fn judge(&self, Answer { address, told }: Answer) -> Result<Option<(u64, bool, String)>> {
        let told = told.map_err(|e| Error::new(e.kind(), format!("{address}: {e}")))?;
        if told.protocol_min > *PROTOCOL.end() || told.protocol_max < *PROTOCOL.start() {
            let what = format!(
                "{address} speaks revisions {} to {} of the service, and this client {} to {}",
                told.protocol_min,
                told.protocol_max,
                PROTOCOL.start(),
                PROTOCOL.end()
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if told.node == 0 {
            return Ok(None); // part of no cluster yet
        }
        let mut known = self.known();
        if told.term >= known.term {
            known.servers.clone_from(&told.servers);
            let window = told.session_window.min(u16::MAX.into()) as u16;
            known.limits = Some(Limits {
                batch_bytes_max: told.batch_bytes_max as usize,
                session_window: window.max(1),
            });
        }
        if told.servers.is_empty() {
            return Ok(Some((told.term, true, address))); // a log on its own
        }
        let Some(leader) = told.servers.into_iter().find(|s| s.leader) else { return Ok(None) };
        let itself = leader.node == told.node;
        // Where it was reached can be reached.
        let leader = if itself { address } else { leader.address };
        let sure = itself && told.term >= known.term && known.doubted.as_ref() != Some(&leader);
        Ok(Some((told.term, sure, leader)))
    }

    /// For calls to a server.
    ///
    /// # Errors
    /// `InvalidArgument`: no address.
    pub(super) fn client(&self, address: &str) -> Result<LogClient<Shown>> {
        let known = self.known().channels.get(address).cloned();
        let channel = match known {
            Some(channel) => channel,
            None => {
                let channel = self.endpoint(address)?.connect_lazy();
                let mut known = self.known();
                // Servers come and go: what is named no more is not kept.
                let named: BTreeSet<_> = known.servers.iter().map(|s| s.address.clone()).collect();
                known.channels.retain(|a, _| named.contains(a) || self.seeds.contains(a));
                known.channels.insert(address.to_owned(), channel.clone());
                channel
            }
        };
        Ok(LogClient::with_interceptor(channel, Bearer::new(&self.options, address)?))
    }

    /// A connection of its own, for a stream.
    ///
    /// # Errors
    /// `InvalidArgument`: no address.
    pub(super) fn stream_client(&self, address: &str) -> Result<LogClient<Shown>> {
        let bearer = Bearer::new(&self.options, address)?;
        let client = LogClient::with_interceptor(self.endpoint(address)?.connect_lazy(), bearer);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint> {
        let options = &self.options;
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|e| Error::new(ErrorKind::InvalidArgument, format!("{address:?} is no address: {e}")))?;
        if let Some(tls) = &options.tls {
            endpoint = tls.apply(endpoint)?;
        }
        Ok(endpoint
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            .max_frame_size(FRAME_BYTES)
            .initial_stream_window_size(options.window_bytes)
            .initial_connection_window_size(options.window_bytes.saturating_mul(2))
            .http2_keep_alive_interval(options.keep_alive)
            .keep_alive_timeout(options.keep_alive)
            .keep_alive_while_idle(true))
    }
}
