//! Http: probes and metrics, for machines that look after servers.
//!
//! | path | says |
//! |---|---|
//! | `/livez` | 200 while the process answers |
//! | `/readyz` | 200 when the server takes part in its cluster, else 503 with the reason |
//! | `/metrics` | figures for Prometheus |
//!
//! A connection has one request: it has no time for pauses.

use super::metrics::Metrics;
use super::ready::not_ready;
use axum::Router;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use chiplog_net::served::log_slot::LogSlot;
use std::sync::Arc;

pub(super) fn router(host: Arc<LogSlot>, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(move || std::future::ready(readyz(&host))))
        .route("/metrics", get(move || std::future::ready(figures(&metrics))))
        .layer(map_response(last))
}

/// Says that nothing more is answered on the connection: it would be closed in the middle of a later request.
async fn last(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn readyz(host: &LogSlot) -> (StatusCode, String) {
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
