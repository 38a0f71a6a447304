//! Health, metrics and a page over HTTP.

use crate::{drives::Drives, telemetry};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{Html, IntoResponse},
    routing::get,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// The process's recorder of metrics, installed at the first call.
pub fn recorder() -> Option<&'static PrometheusHandle> {
    let install = || {
        let builder = PrometheusBuilder::new().set_buckets(&telemetry::BUCKETS_SECONDS);
        let installed = builder.map_err(|error| error.to_string()).and_then(|builder| {
            let recorder = builder.build_recorder();
            let handle = recorder.handle();
            metrics::set_global_recorder(recorder).map_err(|error| error.to_string())?;
            Ok(handle)
        });
        installed.inspect_err(|error| tracing::warn!(error, "no metrics")).ok()
    };
    RECORDER.get_or_init(install).as_ref()
}

/// What the pages show.
#[derive(Clone)]
pub struct Pages {
    /// The drives.
    pub drives: Arc<Drives>,
    /// True when the server is stopping.
    pub stop: watch::Receiver<bool>,
}

/// The routes.
pub fn routes(pages: Pages) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics_text))
        .with_state(pages)
}

async fn healthz(State(pages): State<Pages>) -> (StatusCode, String) {
    if *pages.stop.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".into());
    }
    match pages.drives.failing() {
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        None => (StatusCode::OK, "ok\n".into()),
    }
}

async fn metrics_text() -> impl IntoResponse {
    let text = recorder().map(|recorder| {
        recorder.run_upkeep();
        recorder.render()
    });
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    match text {
        Some(text) => (StatusCode::OK, kind, text),
        None => (StatusCode::SERVICE_UNAVAILABLE, kind, "no metrics: see the log\n".into()),
    }
}

async fn page(State(pages): State<Pages>) -> Html<String> {
    // A drive's name holds nothing that HTML would take for more than text.
    let rows: String = pages.drives.list().iter().map(|record| format!("<li>{}</li>", record.name)).collect();
    Html(format!(
        "<!doctype html><title>tidefs</title><h1>tidefs-server</h1><ul>{rows}</ul>\
         <p><a href=/healthz>health</a> <a href=/metrics>metrics</a></p>\n"
    ))
}
