//! A server with named logs, and a stream of appends.

use crate::served::client::quick;
use crate::served::{One, PATIENCE};
use chiplog::{BatchBuilder, ErrorKind, Logs, LogsOptions, Options};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions};
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::*;
use chiplog_net::wire::status::from_status;
use tempfile::TempDir;
use tonic::transport::Channel;

/// A server with a default log and named logs.
pub(crate) struct Named {
    pub(crate) one: One,
    pub(crate) logs: Logs,
    pub(crate) _dir: TempDir,
    pub(crate) admin: AdminClient<Channel>,
}

impl Named {
    pub(crate) async fn new() -> Self {
        let (one, dir) = (One::new(), tempfile::tempdir().unwrap());
        let options = LogsOptions::default().options(Options::with_segment_bytes(1 << 20).sessions_max(64));
        let logs = Logs::open(dir.path(), options).unwrap();
        one.server.host.open_named(logs.clone());
        let admin = AdminClient::connect(format!("http://{}", one.address())).await.unwrap();
        Self { one, logs, _dir: dir, admin }
    }

    pub(crate) async fn create(&mut self, name: &str) -> Result<LogInfo, ErrorKind> {
        let request = CreateLogRequest { name: name.to_owned(), beside: String::new() };
        match self.admin.create_log(request).await {
            Ok(created) => Ok(created.into_inner().log.unwrap()),
            Err(status) => Err(from_status(&status).kind()),
        }
    }

    pub(crate) async fn delete(&mut self, name: &str) {
        self.admin
            .delete_log(DeleteLogRequest { name: name.to_owned(), log_id: String::new() })
            .await
            .unwrap();
    }

    pub(crate) fn options(name: &str) -> ClientOptions {
        quick().log(name.to_owned())
    }

    pub(crate) async fn client(&self, name: &str) -> Client {
        Client::connect([self.one.address()], Self::options(name)).await.unwrap()
    }
}

pub(crate) async fn append(client: &Client, records: &[&str]) -> u64 {
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    let mut last = 0;
    for record in records {
        last = producer.append(record.as_bytes()).await.unwrap().await.unwrap().get();
    }
    assert!(producer.close(PATIENCE).await.all_acknowledged());
    last
}

/// An append stream on which a test waits for each answer.
pub(crate) struct Appending {
    pub(crate) requests: tokio::sync::mpsc::Sender<AppendRequest>,
    pub(crate) answers: tonic::Streaming<AppendResponse>,
}

impl Appending {
    pub(crate) async fn open(address: &str) -> Self {
        Self::meaning(address, None).await
    }

    /// `meant`: the id of the first log, in the call's metadata.
    pub(crate) async fn meaning(address: &str, meant: Option<&str>) -> Self {
        let mut client = log_client::LogClient::connect(format!("http://{address}")).await.unwrap();
        let (requests, of_stream) = tokio::sync::mpsc::channel(16);
        let mut call = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(of_stream));
        if let Some(meant) = meant {
            call.metadata_mut().insert("chiplog-log-id", meant.parse().unwrap());
        }
        let answers = client.append(call).await.unwrap().into_inner();
        Self { requests, answers }
    }

    /// The index of the record, or why the batch was refused.
    pub(crate) async fn append(&mut self, log: &str, log_id: &str) -> Result<u64, Refused> {
        self.send(log, log_id).await;
        self.answer().await
    }

    pub(crate) async fn send(&self, log: &str, log_id: &str) {
        let batch = BatchBuilder::new().push(log.as_bytes()).unwrap().build().unwrap();
        let (log, log_id, batch) = (log.to_owned(), log_id.to_owned(), batch.as_bytes().clone());
        self.requests.send(AppendRequest { log, log_id, batch }).await.unwrap();
    }

    pub(crate) async fn answer(&mut self) -> Result<u64, Refused> {
        match self.answers.message().await.unwrap().unwrap().result.unwrap() {
            append_response::Result::Appended(appended) => Ok(appended.first),
            append_response::Result::Refused(refused) => Err(refused),
        }
    }
}

pub(crate) fn kind_of(refused: Result<u64, Refused>) -> Option<ErrorKind> {
    ErrorKind::from_code(refused.unwrap_err().kind)
}
