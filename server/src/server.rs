//! A server that listens: gRPC for mounts, HTTP for people and monitors.

use crate::{
    config::Config,
    drives::Drives,
    http::{self, Pages},
    service::Services,
    store::{DataFolder, FolderError},
};
use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;

/// How long the end of a server waits for its streams, and for its drives each.
const STOP_WAIT: Duration = Duration::from_millis(700);
/// Bytes that one stream may have under way.
const STREAM_WINDOW: u32 = 2 << 20;
/// Bytes that one connection may have under way.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// How often a quiet connection is asked whether it lives.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// How long it has to answer.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams of one connection.
const STREAMS_MAX: u32 = 256;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// An address.
    #[error(
        "cannot listen on {address}: {source}; choose another with --listen or --http, \":0\" for a free port"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A server that runs.
pub struct Server {
    /// Where mounts connect.
    pub listen: SocketAddr,
    /// Where health and metrics are.
    pub http: SocketAddr,
    /// The data folder.
    pub data: PathBuf,
    drives: Arc<Drives>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts a server; it takes requests when this returns.
    ///
    /// # Errors
    /// When the data folder or an address cannot be used.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        // The recorder must be there before the first metric is named.
        http::recorder();
        let folder = DataFolder::open(&config.data, rand::random())?;
        let (grpc, listen) = bind(config.listen).await?;
        let (pages, http) = bind(config.http).await?;
        let drives = Arc::new(Drives::new(folder));
        let stop = watch::Sender::new(false);
        let tasks = vec![
            serve_grpc(grpc, Services::new(drives.clone(), stop.subscribe()), stop.subscribe()),
            serve_http(pages, Pages { drives: drives.clone(), stop: stop.subscribe() }),
        ];
        Ok(Self { listen, http, data: config.data.clone(), drives, stop, tasks })
    }

    /// The drives.
    pub fn drives(&self) -> &Arc<Drives> {
        &self.drives
    }

    /// Takes no more requests, ends streams, makes the indexes durable and closes the drives: about a second at
    /// most. What was acknowledged is durable without it.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        for mut task in self.tasks {
            if tokio::time::timeout(STOP_WAIT, &mut task).await.is_err() {
                task.abort();
            }
        }
        if tokio::time::timeout(STOP_WAIT, self.drives.close()).await.is_err() {
            tracing::warn!(
                "a drive did not close in time; its index is brought up to date at the next start"
            );
        }
    }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // A sender that is gone stops the server too.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn serve_grpc(listener: TcpListener, services: Services, stop: watch::Receiver<bool>) -> JoinHandle<()> {
    use tokio_stream::StreamExt;
    let incoming = TcpListenerStream::new(listener).map(|accepted| {
        accepted.inspect(|stream| {
            // Only latency is lost without it.
            let _ = stream.set_nodelay(true);
        })
    });
    let router = tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(STREAMS_MAX)
        .add_service(services.tide())
        .add_service(services.drives());
    tokio::spawn(async move {
        if let Err(error) = router.serve_with_incoming_shutdown(incoming, stopped(stop)).await {
            tracing::error!(%error, "the gRPC listener ended");
        }
    })
}

fn serve_http(listener: TcpListener, pages: Pages) -> JoinHandle<()> {
    let stop = pages.stop.clone();
    tokio::spawn(async move {
        let served = axum::serve(listener, http::routes(pages)).with_graceful_shutdown(stopped(stop));
        if let Err(error) = served.await {
            tracing::error!(%error, "the HTTP listener ended");
        }
    })
}
