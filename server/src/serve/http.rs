//! Http: probes and metrics, for machines that look after servers.
//!
//! | path | says |
//! |---|---|
//! | `/livez` | 200 while the process answers |
//! | `/readyz` | 200 when the server takes part in its cluster, else 503 with the reason |
//! | `/metrics` | figures for Prometheus |

use super::metrics::Metrics;
use super::ready::not_ready;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use chiplog_net::host::Host;
use std::sync::Arc;

pub(super) fn router(host: Arc<Host>, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(move || std::future::ready(readyz(&host))))
        .route("/metrics", get(move || std::future::ready(figures(&metrics))))
}

fn readyz(host: &Host) -> (StatusCode, String) {
    match not_ready(host) {
        None => (StatusCode::OK, "ok\n".into()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn figures(metrics: &Metrics) -> impl IntoResponse + use<> {
    match metrics.text() {
        Ok(text) => (StatusCode::OK, [(CONTENT_TYPE, Metrics::CONTENT_TYPE)], text),
        Err(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], "not to be had\n".into())
        }
    }
}
