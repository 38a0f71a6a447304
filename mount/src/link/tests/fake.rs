//! A server that does nothing by itself: each call is handed to the test, which answers it.

use std::collections::VecDeque;
use tidefs_proto::wire::{self, tide_server::Tide};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// A call of two streams: what the mount sends and how the test answers.
pub struct Call<Q, A> {
    pub requests: Streaming<Q>,
    pub answers: mpsc::Sender<Result<A, Status>>,
}

impl<Q, A> Call<Q, A> {
    /// The mount's next message.
    pub async fn next(&mut self) -> Q {
        let next = tokio::time::timeout(std::time::Duration::from_secs(20), self.requests.message());
        next.await.expect("in time").expect("no error").expect("not ended")
    }

    pub async fn answer(&self, answer: A) {
        self.answers.send(Ok(answer)).await.expect("mount listens");
    }

    /// Breaks the stream.
    pub async fn fail(self, status: Status) {
        let _ = self.answers.send(Err(status)).await;
    }
}

/// A question with the list of answers that it is to get.
pub struct Question<Q, A> {
    pub request: Q,
    pub answer: tokio::sync::oneshot::Sender<Result<A, Status>>,
}

impl<Q, A> Question<Q, A> {
    pub fn answer(self, answer: Result<A, Status>) -> Q {
        let _ = self.answer.send(answer);
        self.request
    }
}

pub type CommitCall = Call<wire::CommitRequest, wire::CommitReply>;
pub type FollowCall = Call<wire::FollowRequest, wire::FollowReply>;
pub type BlocksCall = Question<wire::FetchBlocksRequest, Vec<wire::BlockReply>>;
pub type DirectoriesCall = Question<wire::FetchDirectoriesRequest, Vec<wire::DirectoryPart>>;

pub struct Fake {
    pub url: String,
    pub attaches: mpsc::Receiver<Question<wire::AttachRequest, wire::AttachReply>>,
    pub commits: mpsc::Receiver<CommitCall>,
    pub follows: mpsc::Receiver<FollowCall>,
    pub blocks: mpsc::Receiver<BlocksCall>,
    pub directories: mpsc::Receiver<DirectoriesCall>,
    pub visibles: mpsc::Receiver<Question<wire::VisibleRequest, wire::VisibleReply>>,
    task: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    pub async fn start() -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub fn start_on(listener: TcpListener) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (attach, attaches) = mpsc::channel(8);
        let (commit, commits) = mpsc::channel(8);
        let (follow, follows) = mpsc::channel(8);
        let (block, blocks) = mpsc::channel(8);
        let (directory, directories) = mpsc::channel(8);
        let (visible, visibles) = mpsc::channel(8);
        let service = Service { attach, commit, follow, block, directory, visible };
        let server = tonic::transport::Server::builder()
            .add_service(wire::tide_server::TideServer::new(service))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(async move { server.await.unwrap() });
        Self { url, attaches, commits, follows, blocks, directories, visibles, task }
    }
}

struct Service {
    attach: mpsc::Sender<Question<wire::AttachRequest, wire::AttachReply>>,
    commit: mpsc::Sender<CommitCall>,
    follow: mpsc::Sender<FollowCall>,
    block: mpsc::Sender<BlocksCall>,
    directory: mpsc::Sender<DirectoriesCall>,
    visible: mpsc::Sender<Question<wire::VisibleRequest, wire::VisibleReply>>,
}

type Answers<A> = ReceiverStream<Result<A, Status>>;
type List<A> = tokio_stream::Iter<std::collections::vec_deque::IntoIter<Result<A, Status>>>;

async fn hand<Q, A>(
    to: &mpsc::Sender<Call<Q, A>>,
    request: Request<Streaming<Q>>,
) -> Result<Response<Answers<A>>, Status> {
    let (answers, stream) = mpsc::channel(64);
    let call = Call { requests: request.into_inner(), answers };
    to.send(call).await.map_err(|_| Status::unavailable("test is over"))?;
    Ok(Response::new(ReceiverStream::new(stream)))
}

async fn ask<Q, A>(to: &mpsc::Sender<Question<Q, A>>, request: Request<Q>) -> Result<A, Status> {
    let (answer, answered) = tokio::sync::oneshot::channel();
    let question = Question { request: request.into_inner(), answer };
    to.send(question).await.map_err(|_| Status::unavailable("test is over"))?;
    answered.await.unwrap_or_else(|_| Err(Status::unavailable("not answered")))
}

fn list<A>(answers: Vec<A>) -> Response<List<A>> {
    Response::new(tokio_stream::iter(answers.into_iter().map(Ok).collect::<VecDeque<_>>()))
}

#[tonic::async_trait]
impl Tide for Service {
    async fn attach(
        &self,
        request: Request<wire::AttachRequest>,
    ) -> Result<Response<wire::AttachReply>, Status> {
        ask(&self.attach, request).await.map(Response::new)
    }

    type CommitStream = Answers<wire::CommitReply>;
    async fn commit(
        &self,
        request: Request<Streaming<wire::CommitRequest>>,
    ) -> Result<Response<Self::CommitStream>, Status> {
        hand(&self.commit, request).await
    }

    type FollowStream = Answers<wire::FollowReply>;
    async fn follow(
        &self,
        request: Request<Streaming<wire::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        hand(&self.follow, request).await
    }

    type FetchDirectoriesStream = List<wire::DirectoryPart>;
    async fn fetch_directories(
        &self,
        request: Request<wire::FetchDirectoriesRequest>,
    ) -> Result<Response<Self::FetchDirectoriesStream>, Status> {
        ask(&self.directory, request).await.map(list)
    }

    type FetchBlocksStream = List<wire::BlockReply>;
    async fn fetch_blocks(
        &self,
        request: Request<wire::FetchBlocksRequest>,
    ) -> Result<Response<Self::FetchBlocksStream>, Status> {
        ask(&self.block, request).await.map(list)
    }

    async fn wait_visible(
        &self,
        request: Request<wire::VisibleRequest>,
    ) -> Result<Response<wire::VisibleReply>, Status> {
        ask(&self.visible, request).await.map(Response::new)
    }

    type LogStream = List<wire::LogLine>;
    async fn log(&self, _: Request<wire::LogRequest>) -> Result<Response<Self::LogStream>, Status> {
        Err(Status::unimplemented("log"))
    }
}
