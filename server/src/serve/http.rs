//! Http: probes and metrics for monitoring.
//!
//! | path | response |
//! |---|---|
//! | `/livez` | 200 while the process answers |
//! | `/readyz` | 200 when the server takes part in its cluster, else 503 with the reason |
//! | `/metrics` | metrics for Prometheus |
//!
//! A connection serves one request, because its time is limited.

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

/// Announces that the connection serves no further request: it could be closed in the middle of one.
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
            (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], "not available\n".into())
        }
    }
}
