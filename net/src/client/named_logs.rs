//! Named logs: creating, listing, sealing and deleting the logs of servers that keep named logs.
//!
//! The catalogue of names is a log of its own, whose leader these calls go to.

use super::{Client, ClientOptions};
use crate::wire::log_info::from_wire;
use crate::wire::proto::v1::admin_client::AdminClient;
use crate::wire::proto::v1::{CreateLogRequest, DeleteLogRequest, ListLogsRequest, SealLogRequest};
use chiplog::{Error, ErrorKind, LogInfo, Result};

/// The log that holds the catalogue.
const SYSTEM_LOG: &str = "_system";
/// The logs that are asked for in one call.
const PAGE: u32 = 1000;

impl Client {
    /// Another log of the same servers, with the same options; empty: the log "default". All such clients share one
    /// connection to each server for calls, and those for append streams, of which a connection has at most 15. A reader
    /// and a watch have one of their own. A producer that shares a connection ends its append stream when it was idle for
    /// a second, and opens another one for its next record, which takes a round trip more.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn of_log(&self, name: impl Into<String>) -> Result<Self> {
        let options = ClientOptions { log: name.into(), ..self.options().clone() };
        let servers = self.servers();
        Self::connect_over(servers.connections().clone(), servers.all().into_iter().collect(), options).await
    }

    /// Creates a named log, and returns once it can be appended to. [`Client::of_log`] then connects to it. A name is 1 to
    /// 249 of the characters `A-Z a-z 0-9 . _ -`, does not begin with `_`, and can end with `/` and a partition's number.
    ///
    /// ```no_run
    /// # async fn create(client: chiplog_net::client::Client) -> chiplog::Result<()> {
    /// client.create_log("orders").await?;
    /// let orders = client.of_log("orders").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists`, also if the answer to a first attempt was lost. `InvalidArgument`: the name. `Full`: there is no
    /// room for more logs. `Unsupported`: the servers keep no named logs. `PermissionDenied`. As [`Client::info`].
    pub async fn create_log(&self, name: &str) -> Result<LogInfo> {
        self.create(CreateLogRequest { name: name.to_owned(), beside: String::new() }).await
    }

    /// As [`Client::create_log`], in the group of another log.
    ///
    /// # Errors
    /// As [`Client::create_log`]. `NotFound`: the other log does not exist.
    pub async fn create_log_beside(&self, name: &str, other: &str) -> Result<LogInfo> {
        self.create(CreateLogRequest { name: name.to_owned(), beside: other.to_owned() }).await
    }

    async fn create(&self, request: CreateLogRequest) -> Result<LogInfo> {
        let system = self.system().await?;
        let created = system.call_leader(request, |channel, request| {
            Box::pin(async move { AdminClient::new(channel).create_log(request).await })
        });
        let log = created.await?.log;
        from_wire(log.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the answer has no log"))?)
    }

    /// Deletes a named log with all its records. Its producers and readers get `NotFound`.
    ///
    /// # Errors
    /// `NotFound`, also if the answer to a first attempt was lost. Otherwise as [`Client::create_log`].
    pub async fn delete_log(&self, name: &str) -> Result<()> {
        // A repeated call must not delete a log that got the name meanwhile.
        let log_id = self.of_log(name).await?.servers().log_id();
        let request = DeleteLogRequest { name: name.to_owned(), log_id };
        let deleted = self
            .system()
            .await?
            .call_leader(request, |channel, request| {
                Box::pin(async move { AdminClient::new(channel).delete_log(request).await })
            })
            .await;
        deleted.map(drop)
    }

    /// Seals a named log: it takes no more appends, its records stay. It is safe to repeat.
    ///
    /// # Errors
    /// `NotFound`. Otherwise as [`Client::create_log`].
    pub async fn seal_log(&self, name: &str) -> Result<()> {
        let log = self.of_log(name).await?;
        let request = SealLogRequest { name: name.to_owned(), log_id: log.servers().log_id() };
        let sealed = log
            .call_leader(request, |channel, request| {
                Box::pin(async move { AdminClient::new(channel).seal_log(request).await })
            })
            .await;
        sealed.map(drop)
    }

    /// The named logs whose names begin with `prefix`, by name, as the leader of the catalogue knows them. Takes a call for
    /// each 1,000 logs.
    ///
    /// # Errors
    /// As [`Client::create_log`].
    pub async fn list_logs(&self, prefix: &str) -> Result<Vec<LogInfo>> {
        let system = self.system().await?;
        let mut logs: Vec<LogInfo> = Vec::new();
        loop {
            let after = logs.last().map_or_else(String::new, |log| log.name.clone());
            let request = ListLogsRequest { prefix: prefix.to_owned(), after, limit: PAGE };
            let page = system
                .call_leader(request, |channel, request| {
                    Box::pin(async move {
                        let mut admin = AdminClient::new(channel).max_decoding_message_size(16 << 20);
                        admin.list_logs(request).await
                    })
                })
                .await?;
            for log in page.logs {
                logs.push(from_wire(log)?);
            }
            if !page.more {
                return Ok(logs);
            }
        }
    }

    /// A client of the system log, to find its leader.
    async fn system(&self) -> Result<Self> {
        let system = self.inner.system.get_or_try_init(|| async {
            let connected = self.of_log(SYSTEM_LOG).await;
            connected.map(Box::new).map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::new(
                    ErrorKind::Unsupported,
                    "the servers keep no named logs: restart all of them with `groups`",
                ),
                _ => error,
            })
        });
        system.await.map(|system| (**system).clone())
    }
}
