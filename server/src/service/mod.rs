//! The gRPC services: they decode, ask, and answer.

mod admin;
mod attach;
mod commit;
mod fetch;
mod follow;
mod log;
mod status;
mod upload;

use crate::drives::Drives;
use std::sync::Arc;
use tidefs_proto::{
    limits::MESSAGE_BYTES_MAX,
    wire::{
        self,
        drives_server::DrivesServer,
        tide_server::{Tide, TideServer},
    },
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Messages of an answer that wait for the network at most.
const ANSWERS: usize = 16;

type Answers<T> = mpsc::Sender<Result<T, Status>>;
type AnswerStream<T> = ReceiverStream<Result<T, Status>>;

/// The services, on the drives of one server.
#[derive(Clone)]
pub struct Services {
    drives: Arc<Drives>,
    /// True when the server is stopping: streams end.
    stop: watch::Receiver<bool>,
}

impl Services {
    /// Services on `drives` whose streams end when `stop` turns true.
    pub fn new(drives: Arc<Drives>, stop: watch::Receiver<bool>) -> Self {
        Self { drives, stop }
    }

    /// The service that mounts use.
    pub fn tide(&self) -> TideServer<Self> {
        TideServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The service that makes and lists drives.
    pub fn drives(&self) -> DrivesServer<Self> {
        DrivesServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Runs a stream's work until it is done, the server stops, or the caller has gone; an error is its last word.
    fn stream<T, W, F>(&self, work: W) -> Response<AnswerStream<T>>
    where
        T: Send + 'static,
        W: FnOnce(Answers<T>) -> F,
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let (answers, stream) = mpsc::channel(ANSWERS);
        let work = work(answers.clone());
        let mut stop = self.stop.clone();
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = work => ended,
                _ = stop.wait_for(|stop| *stop) => Err(Status::unavailable("the server is stopping")),
                () = answers.closed() => return,
            };
            if let Err(status) = ended {
                // The caller may have gone.
                let _ = answers.send(Err(status)).await;
            }
        });
        Response::new(ReceiverStream::new(stream))
    }
}

/// Sends one message of an answer; an error when the caller has gone.
async fn give<T>(answers: &Answers<T>, message: T) -> Result<(), Status> {
    answers.send(Ok(message)).await.map_err(|_| Status::cancelled("the caller has gone"))
}

#[tonic::async_trait]
impl Tide for Services {
    type CommitStream = AnswerStream<wire::CommitReply>;
    type FollowStream = AnswerStream<wire::FollowReply>;
    type FetchDirectoriesStream = AnswerStream<wire::DirectoryPart>;
    type FetchBlocksStream = AnswerStream<wire::BlockReply>;
    type LogStream = AnswerStream<wire::LogLine>;

    async fn attach(
        &self,
        request: Request<wire::AttachRequest>,
    ) -> Result<Response<wire::AttachReply>, Status> {
        attach::attach(&self.drives, request.into_inner()).await.map(Response::new)
    }

    async fn commit(
        &self,
        request: Request<Streaming<wire::CommitRequest>>,
    ) -> Result<Response<Self::CommitStream>, Status> {
        let (drives, requests) = (self.drives.clone(), request.into_inner());
        Ok(self.stream(|answers| commit::commit(drives, requests, answers)))
    }

    async fn follow(
        &self,
        request: Request<Streaming<wire::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let (drives, requests) = (self.drives.clone(), request.into_inner());
        Ok(self.stream(|answers| follow::follow(drives, requests, answers)))
    }

    async fn fetch_directories(
        &self,
        request: Request<wire::FetchDirectoriesRequest>,
    ) -> Result<Response<Self::FetchDirectoriesStream>, Status> {
        let (drives, request) = (self.drives.clone(), request.into_inner());
        Ok(self.stream(|answers| fetch::directories(drives, request, answers)))
    }

    async fn fetch_blocks(
        &self,
        request: Request<wire::FetchBlocksRequest>,
    ) -> Result<Response<Self::FetchBlocksStream>, Status> {
        let (drives, request) = (self.drives.clone(), request.into_inner());
        Ok(self.stream(|answers| fetch::blocks(drives, request, answers)))
    }

    async fn wait_visible(
        &self,
        request: Request<wire::VisibleRequest>,
    ) -> Result<Response<wire::VisibleReply>, Status> {
        follow::wait_visible(&self.drives, self.stop.clone(), request.into_inner()).await.map(Response::new)
    }

    async fn log(&self, request: Request<wire::LogRequest>) -> Result<Response<Self::LogStream>, Status> {
        let (drives, request) = (self.drives.clone(), request.into_inner());
        Ok(self.stream(|answers| log::log(drives, request, answers)))
    }
}
