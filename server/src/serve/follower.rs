//! Serves a follower's copy at `--listen`: to readers and to other copies. It has no administration and no
//! peers, because it takes no part in its cluster.

use super::reload::Reloader;
use super::{Config, Doors, bind, doors, listening, report_health, services};
use crate::common::failure::{Failure, Result};
use chiplog_net::listener;
use chiplog_net::listener::auth::roles::AccessLayer;
use chiplog_net::listener::stream_budget::CallBudgetLayer;
use chiplog_net::served::log_slot::LogSlot;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long streams have to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// The services of a copy, on a runtime of their own.
pub(crate) struct CopyServer {
    pub(crate) at: SocketAddr,
    host: Arc<LogSlot>,
    runtime: Runtime,
    ending: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl CopyServer {
    /// Serves `host` at `config.listen.client`, with `config.tls`.
    ///
    /// # Errors
    /// The server cannot listen there, or other machines could reach it without TLS.
    pub(crate) fn start(config: &Config, host: &Arc<LogSlot>) -> Result<Self> {
        let (listener, at) = bind("--listen", &config.listen.client)?;
        let mut reloader = Reloader::default();
        let Doors { settings, access, budget, .. } = doors(config, &mut reloader)?;
        if settings.tls.is_none() && !at.ip().is_loopback() && !config.insecure {
            let what = format!(
                "--listen {at} is open to other machines without TLS: give --listen-certificate and --listen-key, or --insecure"
            );
            return Err(Failure::usage(what));
        }
        let (routes, reporter) = services::copy_routes(host, &budget)?;
        let mut server = listener::server_with(&settings.limits)
            .layer(AccessLayer::new(access))
            .layer(CallBudgetLayer::new(budget))
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(20)));
        let runtime = crate::common::runtime::runtime(None)?;
        let ending = watch::Sender::new(false);
        let mut ended = ending.subscribe();
        let until = async move { _ = ended.wait_for(|e| *e).await };
        let entered = runtime.enter();
        let listener = listening(listener)?;
        let serving = tokio::spawn(async move {
            let router = server.add_routes(routes);
            let connections = listener::incoming_with(listener, settings);
            if let Err(error) = router.serve_with_incoming_shutdown(connections, until).await {
                tracing::error!(%error, "the listener ended");
            }
        });
        let names = services::COPY_HEALTH_NAMES;
        tokio::spawn(report_health(host.clone(), reporter, names, ending.subscribe()));
        let every = Duration::from_secs(config.reload_seconds);
        tokio::spawn(reloader.run(Some(every), Arc::default(), ending.subscribe()));
        drop(entered);
        Ok(Self { at, host: host.clone(), runtime, ending, serving })
    }

    /// Shuts down in order: tells streams to end and waits briefly.
    pub(crate) fn shutdown(self) {
        self.host.drain();
        self.ending.send_replace(true);
        let ended = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.serving).await });
        if ended.is_err() {
            tracing::info!("some streams did not end in time and were cut off");
        }
        self.runtime.shutdown_background();
    }
}
