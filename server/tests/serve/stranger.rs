//! Stranger: a client that knows one server and believes it: what it is told has to be right wherever that server stands.

use crate::harness::{PATIENCE, Server, runtime};
use chiplog_net::service::logspec::AppendRequest;
use chiplog_net::wire::proto::logspec::append_reply::Reply;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::logspec::{InfoRequest, info_reply};
use std::thread::JoinHandle;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::transport::Channel;

/// What a server answered.
#[derive(Debug)]
pub(crate) enum Told {
    /// Yes: the index of what was appended, or the last one of the log.
    At(u64),
    /// That this server is to be asked.
    Elsewhere(String),
    /// No, or nothing at all.
    No,
}

impl Told {
    pub(crate) fn index(&self) -> Option<u64> {
        if let Self::At(index) = self { Some(*index) } else { None }
    }
}

/// What was asked at the same time.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) appended: Told,
    /// The log's end, asked for with a barrier: not older than the question.
    pub(crate) end: Told,
}

/// Connected to one server.
pub(crate) struct Stranger {
    runtime: Runtime,
    client: LogClient<Channel>,
}

impl Stranger {
    /// Connects, and asks something harmless: the connection stands.
    pub(crate) fn meet(server: &Server) -> Self {
        let runtime = runtime();
        let client = runtime.block_on(async {
            let mut client = LogClient::connect(format!("http://{}", server.client)).await.unwrap();
            client.info(InfoRequest { allow_stale: true }).await.unwrap();
            client
        });
        Self { runtime, client }
    }

    /// Asks it to append this record, and where its log ends; the answers may come much later.
    pub(crate) fn ask(self, record: Vec<u8>) -> JoinHandle<Answers> {
        std::thread::spawn(move || {
            let Self { runtime, client } = self;
            runtime.block_on(async {
                let (appended, end) = tokio::join!(
                    timeout(PATIENCE, append(client.clone(), record)),
                    timeout(PATIENCE, end(client.clone()))
                );
                let told = |told: Option<Told>| told.unwrap_or(Told::No);
                Answers { appended: told(appended.ok().flatten()), end: told(end.ok().flatten()) }
            })
        })
    }
}

async fn append(mut client: LogClient<Channel>, record: Vec<u8>) -> Option<Told> {
    let request = tokio_stream::iter([AppendRequest::new(1, [record])]);
    let reply = client.append(request).await.ok()?.into_inner().message().await.ok()??;
    Some(match reply.reply? {
        Reply::Ok(ok) => Told::At(ok.indexes[0]),
        Reply::Redirect(redirect) => Told::Elsewhere(redirect.host),
        Reply::Full(_) => Told::No,
    })
}

async fn end(mut client: LogClient<Channel>) -> Option<Told> {
    let reply = client.info(InfoRequest { allow_stale: false }).await.ok()?.into_inner();
    Some(match reply.reply? {
        info_reply::Reply::Ok(ok) => Told::At(ok.last_index),
        info_reply::Reply::Redirect(redirect) => Told::Elsewhere(redirect.host),
    })
}
