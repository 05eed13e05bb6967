//! Stranger: a client that knows only one server and believes it. Its answers have to be correct whatever the
//! state of that server.

use crate::harness::{PATIENCE, Server, runtime};
use chiplog_net::service::logspec::AppendRequest;
use chiplog_net::wire::proto::logspec::append_reply::Reply;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::logspec::{InfoRequest, info_reply};
use std::thread::JoinHandle;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::transport::Channel;

/// The answer of a server.
#[derive(Debug)]
pub(crate) enum Answered {
    /// Success: the index of the appended record, or the log's last one.
    At(u64),
    /// The address of another server to ask.
    Elsewhere(String),
    /// A refusal, or no answer.
    No,
}

impl Answered {
    pub(crate) fn index(&self) -> Option<u64> {
        if let Self::At(index) = self { Some(*index) } else { None }
    }
}

/// Queries sent at the same time.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) appended: Answered,
    /// The log's end, queried with a barrier: not older than the query.
    pub(crate) end: Answered,
}

/// A connection to one server.
pub(crate) struct Stranger {
    runtime: Runtime,
    client: LogClient<Channel>,
}

impl Stranger {
    /// Connects and sends a harmless query, so that the connection is established.
    pub(crate) fn meet(server: &Server) -> Self {
        let runtime = runtime();
        let client = runtime.block_on(async {
            let mut client = LogClient::connect(format!("http://{}", server.client)).await.unwrap();
            client.info(InfoRequest { allow_stale: true }).await.unwrap();
            client
        });
        Self { runtime, client }
    }

    /// Asks the server to append this record, and for the end of its log. The answers may arrive much later.
    pub(crate) fn ask(self, record: Vec<u8>) -> JoinHandle<Answers> {
        std::thread::spawn(move || {
            let Self { runtime, client } = self;
            runtime.block_on(async {
                let (appended, end) = tokio::join!(
                    timeout(PATIENCE, append(client.clone(), record)),
                    timeout(PATIENCE, end(client.clone()))
                );
                let told = |told: Option<Answered>| told.unwrap_or(Answered::No);
                Answers { appended: told(appended.ok().flatten()), end: told(end.ok().flatten()) }
            })
        })
    }
}

async fn append(mut client: LogClient<Channel>, record: Vec<u8>) -> Option<Answered> {
    let request = tokio_stream::iter([AppendRequest::new(1, [record])]);
    let reply = client.append(request).await.ok()?.into_inner().message().await.ok()??;
    Some(match reply.reply? {
        Reply::Ok(ok) => Answered::At(ok.indexes[0]),
        Reply::Redirect(redirect) => Answered::Elsewhere(redirect.host),
        Reply::Full(_) => Answered::No,
    })
}

async fn end(mut client: LogClient<Channel>) -> Option<Answered> {
    let reply = client.info(InfoRequest { allow_stale: false }).await.ok()?.into_inner();
    Some(match reply.reply? {
        info_reply::Reply::Ok(ok) => Answered::At(ok.last_index),
        info_reply::Reply::Redirect(redirect) => Answered::Elsewhere(redirect.host),
    })
}
