//! Cluster: asks servers.
//!
//! Invariant: nothing waits for ever: a connection has [`CONNECT`], a question its own time.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::Ui;
use crate::connect::target;
use chiplog::{ErrorKind, NodeId};
use chiplog_net::client::{Bearer, ClientOptions, ClientTls};
use chiplog_net::served::log_slot::without_replica;
use chiplog_net::wire::address::check_host_port;
use chiplog_net::wire::connect_error::TlsMismatch;
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::{StatusRequest, StatusResponse};
use chiplog_net::wire::status::{from_first_status, from_status, is_stranger, to_status};
use clap::Args;
use std::cell::OnceCell;
use std::error::Error;
use std::iter::successors;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio::runtime::Runtime;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

const CONNECT: Duration = Duration::from_secs(3);
/// After so long it is said what is waited for.
pub(crate) const TELL_AFTER: Duration = Duration::from_secs(1);
/// What to do when nothing takes a connection.
const NO_SERVER: &str =
    "; does a chiplog server run there, and is this its address for clients (listen.client)?";

/// TLS towards servers.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection options")]
pub(crate) struct Connect {
    /// Speak TLS, to servers whose certificates this authority (PEM) has signed.
    #[arg(long, env = "CHIPLOG_TLS_AUTHORITY", value_name = "FILE")]
    tls_authority: Option<PathBuf>,

    /// Certificate of this client (PEM), where servers want one.
    #[arg(long, env = "CHIPLOG_TLS_CERTIFICATE", value_name = "FILE", requires_all = ["tls_key", "tls_authority"])]
    tls_certificate: Option<PathBuf>,

    /// Its private key (PEM).
    #[arg(long, env = "CHIPLOG_TLS_KEY", value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,

    /// File with the token to show, where servers want one (`chiplog token`). Without it the token itself may stand in
    /// the environment variable CHIPLOG_TOKEN.
    #[arg(long, env = "CHIPLOG_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Show the token also to servers on other machines that are not spoken to over TLS: anybody on the way can read it.
    #[arg(long, env = "CHIPLOG_TOKEN_IN_PLAIN_TEXT", value_parser = clap::builder::FalseyValueParser::new())]
    token_in_plain_text: bool,

    /// What the files hold: they are read once, for one can be a pipe.
    #[arg(skip)]
    read: OnceCell<ClientOptions>,
}

/// The token itself; a flag would show it to everybody on the machine.
pub(crate) const TOKEN_VARIABLE: &str = "CHIPLOG_TOKEN";
/// What to do when a server wants a token, or another one.
pub(crate) const TOKEN_ADVICE: &str = "; --token-file, or CHIPLOG_TOKEN";

impl Connect {
    /// The options of a client: what the files hold, and defaults.
    ///
    /// # Errors
    /// `NotFound`, `Io`: a file cannot be read. `InvalidArgument`: there is no token, no certificate, no key in it.
    pub(crate) fn options(&self) -> Result<ClientOptions> {
        if let Some(options) = self.read.get() {
            return Ok(options.clone());
        }
        let mut options = ClientOptions::default();
        options.tls = self.tls()?;
        options.token = self.token()?.map(Into::into);
        options.token_in_plain_text = self.token_in_plain_text;
        Ok(self.read.get_or_init(|| options).clone())
    }

    fn token(&self) -> Result<Option<String>> {
        let (text, from) = match &self.token_file {
            Some(file) => {
                let text =
                    fs::read_to_string(file).map_err(|e| Failure::option_file("--token-file", file, &e))?;
                (text, file.display().to_string())
            }
            None => match std::env::var(TOKEN_VARIABLE) {
                Ok(text) => (text, TOKEN_VARIABLE.to_owned()),
                Err(_) => return Ok(None),
            },
        };
        match text.trim() {
            "" => Err(Failure::usage(format!("{from}: there is no token in it"))),
            token => Ok(Some(token.to_owned())),
        }
    }

    fn tls(&self) -> Result<Option<ClientTls>> {
        let read =
            |flag: &str, path: &PathBuf| fs::read(path).map_err(|e| Failure::option_file(flag, path, &e));
        let Some(file) = &self.tls_authority else { return Ok(None) };
        let mut tls = ClientTls { authority: read("--tls-authority", file)?, identity: None };
        let wrong = |files: String| move |e: chiplog::Error| Failure::usage(format!("{files}: {e}"));
        tls.check().map_err(wrong(format!("--tls-authority {}", file.display())))?;
        if let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) {
            tls.identity = Some((read("--tls-certificate", certificate)?, read("--tls-key", key)?));
            let files = format!("--tls-certificate {}, --tls-key {}", certificate.display(), key.display());
            tls.check().map_err(wrong(files))?;
        }
        Ok(Some(tls))
    }
}

/// `host:port`, checked.
pub(crate) fn host_port(text: &str) -> Result<String, String> {
    target::check_no_url(text)?;
    check_host_port(text).map(|()| text.to_owned()).map_err(|e| e.to_string())
}

/// Connects to servers.
#[derive(Clone)]
pub(crate) struct Dialler {
    tls: Option<ClientTlsConfig>,
    options: ClientOptions,
}

/// A connection over which calls show our token.
pub(crate) type Dialled = InterceptedService<Channel, Bearer>;

impl Dialler {
    /// Why a server cannot be used now, in words, and what to do. None: it can.
    pub(crate) async fn complaint(&self, server: &str) -> Option<String> {
        let asked = async {
            let mut admin = AdminClient::new(self.dial(server).await?);
            admin.status(StatusRequest::default()).await.map(tonic::Response::into_inner)
        };
        match tokio::time::timeout(CONNECT, asked).await {
            Ok(Ok(status)) if status.log_id.is_empty() => Some(waits(server, &status)),
            Ok(Ok(_)) => None,
            Ok(Err(status)) => Some(first_failure(server, &status).to_string()),
            Err(_) => Some(format!("{server}: no answer within {CONNECT:?}")),
        }
    }

    /// A connection, within [`CONNECT`].
    pub(crate) async fn dial(&self, server: &str) -> Result<Dialled, Status> {
        let bearer = Bearer::new(&self.options, server).map_err(|e| to_status(&e, None))?;
        let refused = |e: tonic::transport::Error| {
            let mut status = Status::unavailable("cannot connect");
            status.set_source(Arc::new(e)); // says why
            status
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{server}"));
        let mut endpoint = endpoint.map_err(refused)?.connect_timeout(CONNECT);
        if let Some(tls) = &self.tls {
            endpoint = endpoint.tls_config(tls.clone()).map_err(refused)?;
        }
        let late = |_| Status::unavailable("cannot connect in time");
        let channel =
            tokio::time::timeout(CONNECT, endpoint.connect()).await.map_err(late)?.map_err(refused)?;
        Ok(Dialled::new(channel, bearer))
    }
}

/// Asks servers, one question after the other.
pub(crate) struct Asker {
    runtime: Runtime,
    dialler: Dialler,
    ui: Ui,
}

/// The service at a server, with our token.
pub(crate) type Admin = AdminClient<Dialled>;

impl Asker {
    /// `ui` is told what is waited for.
    pub(crate) fn new(connect: &Connect, ui: &Ui) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot begin: {e}")))?;
        let options = connect.options()?;
        let tls = options.tls.clone().map(|tls| {
            let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(tls.authority));
            match tls.identity {
                Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
                None => config,
            }
        });
        Ok(Self { runtime, dialler: Dialler { tls, options }, ui: *ui })
    }

    /// Waits for what goes on over connections.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// For connections of other services.
    pub(crate) fn dialler(&self) -> &Dialler {
        &self.dialler
    }

    /// Asks one server, within `patience`.
    pub(crate) fn ask<T, F>(
        &self,
        server: &str,
        patience: Duration,
        question: impl FnOnce(Admin) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.try_ask(server, patience, question).map_err(|status| failure(server, &status))
    }

    /// The same, as the first that it is asked, and with a call that every version knows.
    pub(crate) fn ask_first<T, F>(
        &self,
        server: &str,
        patience: Duration,
        question: impl FnOnce(Admin) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.try_ask(server, patience, question).map_err(|status| first_failure(server, &status))
    }

    pub(crate) fn try_ask<T, F>(
        &self,
        server: &str,
        patience: Duration,
        question: impl FnOnce(Admin) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.runtime.block_on(async {
            let client = AdminClient::new(self.dialler.dial(server).await?);
            let late = |_| Status::deadline_exceeded(format!("no answer within {patience:?}"));
            tokio::time::timeout(patience, question(client)).await.map_err(late)?
        })
    }

    /// What a server says of itself.
    pub(crate) fn status(&self, server: &str) -> Result<StatusResponse> {
        self.ask_first(server, Duration::from_secs(5), |mut admin| async move {
            admin.status(StatusRequest::default()).await.map(tonic::Response::into_inner)
        })
    }

    /// What is to be done about a server that is not reached. None: something answers there.
    pub(crate) fn advice(&self, server: &str) -> Option<Advice> {
        let asked = self.try_ask(server, CONNECT, |mut admin| async move {
            admin.status(StatusRequest::default()).await.map(drop)
        });
        let status = asked.err()?;
        Some(Advice { words: advice(&status), exit: TlsMismatch::of(&status).map(exit_of) })
    }

    /// Tells on standard error what is waited for.
    pub(crate) fn say(&self, what: &str) {
        self.ui.say(what);
    }
}

/// What is to be done about a server that is not reached.
pub(crate) struct Advice {
    /// Empty, or what follows the error.
    pub(crate) words: &'static str,
    /// How the command ends, where waiting does not mend it.
    pub(crate) exit: Option<Exit>,
}

/// How a command ends whose only servers do not mean the same by TLS as its options: those are wrong, or a server's certificate is.
pub(crate) fn exit_of(mismatch: TlsMismatch) -> Exit {
    match mismatch {
        TlsMismatch::Expired { .. } | TlsMismatch::NotYetValid { .. } => Exit::Failure,
        _ => Exit::Usage,
    }
}

/// What a server answered, as an error of the command.
pub(crate) fn failure(server: &str, status: &Status) -> Failure {
    let error = from_status(status);
    let advice = match status.code() {
        Code::Unauthenticated => TOKEN_ADVICE,
        _ => advice(status),
    };
    let failure = Failure::new(error.kind(), format!("{server}: {error}{advice}"));
    match TlsMismatch::of(status) {
        Some(mismatch) => failure.with_exit(exit_of(mismatch)),
        None => failure,
    }
}

/// The same, of the first call of a server.
fn first_failure(server: &str, status: &Status) -> Failure {
    match is_stranger(status) {
        true => Failure::new(ErrorKind::Unavailable, format!("{server}: {}", from_first_status(status))),
        false => failure(server, status),
    }
}

/// That a server is part of no cluster, and what makes it part of one.
pub(crate) fn waits(server: &str, status: &StatusResponse) -> String {
    match status.called_as {
        0 => format!("{server} is not part of a cluster yet; `chiplog member init {server}` makes one"),
        node => without_replica(server, NodeId(node)),
    }
}

/// What mends that a server is not reached: a flag, if it is about TLS; or that there is a server, one for clients.
pub(crate) fn advice(status: &Status) -> &'static str {
    match tls_advice(status) {
        "" if is_refused(status) => NO_SERVER,
        advice => advice,
    }
}

/// Whether the system made no connection.
fn is_refused(status: &Status) -> bool {
    let mut causes = successors(status.source(), |cause| (*cause).source());
    causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.raw_os_error().is_some()))
}

/// Which flag mends that a server and its client do not mean the same by TLS, if that is what the status is about.
pub(crate) fn tls_advice(status: &Status) -> &'static str {
    match TlsMismatch::of(status) {
        Some(TlsMismatch::Wanted) => "; --tls-authority, or CHIPLOG_TLS_AUTHORITY",
        // A port of probes speaks none either, and a token shown there without TLS can be read by anybody.
        Some(TlsMismatch::NotSpoken) => {
            "; is this its address for clients (listen.client)? Of a server that speaks no TLS leave out --tls-authority, and CHIPLOG_TLS_AUTHORITY"
        }
        Some(TlsMismatch::Untrusted) => {
            "; is this its address for clients (listen.client)? --tls-authority has to be the one that signed its certificate (tls.certificate)"
        }
        Some(TlsMismatch::Refused) => "; --tls-certificate and --tls-key",
        Some(TlsMismatch::Expired { .. } | TlsMismatch::NotYetValid { .. }) => {
            "; the server needs another one (tls.certificate), unless a clock is wrong"
        }
        Some(TlsMismatch::OtherHost) => {
            "; give an address that the certificate names, or the server one that names this (tls.certificate)"
        }
        Some(TlsMismatch::OwnExpired) => {
            "; --tls-certificate has to be one that is valid now, unless a clock is wrong"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn a_token_from_a_pipe_is_read_once() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"a secret\n").unwrap();
        drop(writer);
        let file = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        let connect = Connect { token_file: Some(file), ..Connect::default() };
        for _ in 0..3 {
            assert!(connect.options().unwrap().token.is_some());
        }
    }
}
