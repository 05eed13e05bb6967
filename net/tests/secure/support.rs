//! A log behind a listener with settings, and clients of it.

use crate::pki::{Authority, Leaf};
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, Log, NodeId, Options, ReadMode};
use chiplog_net::listener;
use chiplog_net::listener::Settings;
use chiplog_net::listener::auth::roles::{Access, AccessLayer, Tokens};
use chiplog_net::listener::memory_budget::{Budget, BudgetLimits};
use chiplog_net::listener::stream_budget::CallBudgetLayer;
use chiplog_net::served::log_slot::LogSlot;
use chiplog_net::served::refusals::{Refusal, Refusals};
use chiplog_net::service::admin::{AdminService, Found};
use chiplog_net::service::follow::Follow;
use chiplog_net::service::http_objects::HttpObjects;
use chiplog_net::service::log::{LogService, NativeOptions};
use chiplog_net::service::logspec::{Limits, LogspecService};
use chiplog_net::wire::address::Address;
use chiplog_net::wire::proto::logspec::InfoRequest;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// Longer than any successful operation takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The largest message of the services.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;

pub(crate) struct Served {
    pub(crate) address: String,
    /// The ports of named logs for `logspec.Log`.
    pub(crate) ports: BTreeMap<&'static str, String>,
    pub(crate) host: Arc<LogSlot>,
    pub(crate) log: Log,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) access: Arc<Access>,
    pub(crate) budget: Budget,
    serving: JoinHandle<()>,
    _dir: TempDir,
}

impl Served {
    pub(crate) async fn start(settings: Settings) -> Self {
        Self::with_tokens(settings, None).await
    }

    pub(crate) async fn with_tokens(settings: Settings, tokens: Option<Tokens>) -> Self {
        let budget = Budget::new(BudgetLimits::default(), settings.refusals.clone());
        Self::with(settings, tokens, budget, MESSAGE_BYTES_MAX).await
    }

    pub(crate) async fn with_budget(settings: Settings, budget: Budget) -> Self {
        Self::with(settings, None, budget, MESSAGE_BYTES_MAX).await
    }

    pub(crate) async fn with_message_bytes(settings: Settings, budget: Budget, message: usize) -> Self {
        Self::with(settings, None, budget, message).await
    }

    pub(crate) async fn with(
        settings: Settings,
        tokens: Option<Tokens>,
        budget: Budget,
        message_bytes_max: usize,
    ) -> Self {
        Self::with_log(settings, tokens, budget, message_bytes_max, Options::with_segment_bytes(1 << 20))
            .await
    }

    /// With segments of 16 MiB, for batches that are large once they are decompressed.
    pub(crate) async fn with_large_batches(settings: Settings, budget: Budget) -> Self {
        Self::with_log(settings, None, budget, MESSAGE_BYTES_MAX, Options::with_segment_bytes(16 << 20)).await
    }

    /// The same without mappings.
    pub(crate) async fn without_mappings(settings: Settings, budget: Budget) -> Self {
        let options = Options::with_segment_bytes(16 << 20).read_mode(ReadMode::Read);
        Self::with_log(settings, None, budget, MESSAGE_BYTES_MAX, options).await
    }

    /// With objects of about 128 KiB in this store, or another size.
    pub(crate) async fn with_objects(
        settings: Settings,
        tokens: Option<Tokens>,
        vault: Arc<dyn Vault>,
        (segment_bytes, object_bytes): (u32, u32),
    ) -> Self {
        let budget = Budget::new(BudgetLimits::default(), settings.refusals.clone());
        let options = Options::with_segment_bytes(segment_bytes).vault(vault).object_bytes(object_bytes);
        let options = options.object_scrub(None); // its requests are not counted on
        Self::with_log(settings, tokens, budget, MESSAGE_BYTES_MAX, options).await
    }

    async fn with_log(
        settings: Settings,
        tokens: Option<Tokens>,
        budget: Budget,
        message_bytes_max: usize,
        options: Options,
    ) -> Self {
        Self::with_log_in(tempfile::tempdir().unwrap(), settings, tokens, budget, message_bytes_max, options)
            .await
    }

    /// With the log of this directory and objects in this store.
    pub(crate) async fn with_objects_in(dir: TempDir, vault: Arc<dyn Vault>, segment_bytes: u32) -> Self {
        let settings = Settings::default();
        let budget = Budget::new(BudgetLimits::default(), settings.refusals.clone());
        let options = Options::with_segment_bytes(segment_bytes).vault(vault).object_scrub(None);
        Self::with_log_in(dir, settings, None, budget, MESSAGE_BYTES_MAX, options).await
    }

    async fn with_log_in(
        dir: TempDir,
        settings: Settings,
        tokens: Option<Tokens>,
        budget: Budget,
        message_bytes_max: usize,
        options: Options,
    ) -> Self {
        let log = Log::open(dir.path(), options).unwrap();
        let host = LogSlot::new();
        host.open(log.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let refusals = settings.refusals.clone();
        let limits = Limits::default().message_bytes_max(message_bytes_max).budget(budget.clone());
        let mut options = NativeOptions::default();
        (options.message_bytes_max, options.budget) = (message_bytes_max, budget.clone());
        let access = Arc::new(Access::new(tokens, refusals.clone()));
        let own = Address::new(address.as_str(), address.as_str(), "").unwrap();
        let found: Found = Box::new(|_| Err(Error::new(ErrorKind::Unsupported, "it has its log already")));
        let admin = AdminService::new(host.clone(), NodeId(1), own, "0", found);
        let (_, health) = tonic_health::server::health_reporter();
        let router = listener::server_with(&settings.limits)
            .layer(AccessLayer::new(access.clone()))
            .layer(CallBudgetLayer::new(budget.clone()))
            .add_service(budget.over(health, MESSAGE_BYTES_MAX))
            .add_service(LogspecService::new(host.clone(), limits).into_server())
            .add_service(LogService::with(host.clone(), options).into_service())
            .add_service(budget.over(admin, MESSAGE_BYTES_MAX))
            .add_service(Follow::new(host.clone()).into_service())
            .add_service(HttpObjects::new(host.clone()));
        let mut incoming = listener::incoming_with(listener, settings);
        let mut ports = BTreeMap::new();
        for name in ["tenant-7/0", "secret"] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ports.insert(name, listener.local_addr().unwrap().to_string());
            incoming = incoming.with_log_port(listener, name).unwrap();
        }
        let serving = tokio::spawn(async move { router.serve_with_incoming(incoming).await.unwrap() });
        Self { address, ports, host, log, refusals, access, budget, serving, _dir: dir }
    }

    /// Waits until exactly this number is counted.
    pub(crate) async fn refused(&self, refusal: Refusal, count: u64) {
        self.refused_at_least(refusal, count).await;
        assert_eq!(self.refusals.read(refusal), count, "{refusal:?}");
    }

    pub(crate) async fn refused_at_least(&self, refusal: Refusal, count: u64) {
        let begun = Instant::now();
        while self.refusals.read(refusal) < count {
            assert!(begun.elapsed() < PATIENCE, "{refusal:?}: {}", self.refusals.read(refusal));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap()
    }

    pub(crate) async fn plain(&self) -> Channel {
        self.endpoint().connect().await.unwrap()
    }

    /// Whether a client without TLS gets an answer.
    pub(crate) async fn ask_plainly(&self) -> Result<(), String> {
        let mut client = LogClient::new(self.endpoint().connect().await.map_err(|e| format!("{e:?}"))?);
        let info = client.info(InfoRequest { allow_stale: true });
        let answer = tokio::time::timeout(PATIENCE, info).await.expect("neither an answer nor a rejection");
        answer.map(drop).map_err(|e| format!("{e:?}"))
    }

    /// Calls the server as a client that trusts `authority`, uses the name `host`, and sends a certificate. Returns why
    /// there is no answer.
    pub(crate) async fn ask(
        &self,
        authority: &Authority,
        host: &str,
        shown: Option<&Leaf>,
    ) -> Result<(), String> {
        let mut tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&authority.pem)).domain_name(host);
        if let Some(leaf) = shown {
            tls = tls.identity(Identity::from_pem(&leaf.certificate, &leaf.key));
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address)).unwrap();
        let channel = endpoint.tls_config(tls).unwrap().connect().await.map_err(|e| format!("{e:?}"))?;
        let mut client = LogClient::new(channel);
        let info = client.info(InfoRequest { allow_stale: true });
        let answer = tokio::time::timeout(PATIENCE, info).await.expect("neither an answer nor a rejection");
        answer.map(drop).map_err(|e| format!("{e:?}"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
