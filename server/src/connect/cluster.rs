//! Queries to servers.
//!
//! Invariant: no wait is unlimited: connecting takes up to [`CONNECT`], and each query has its own limit.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::Ui;
use crate::connect::target;
use chiplog::{ErrorKind, NodeId};
use chiplog_net::client::{Bearer, ClientOptions, ClientTls};
use chiplog_net::wire::address::check_host_port;
use chiplog_net::wire::connect_error::{TlsMismatch, is_unknown_host};
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::{StatusRequest, StatusResponse};
use chiplog_net::wire::status::without_replica;
use chiplog_net::wire::status::{from_first_status, from_status, is_stranger, to_status};
use chiplog_tier::ServerVaultOptions;
use clap::Args;
use std::cell::OnceCell;
use std::error::Error;
use std::iter::successors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, io};
use tokio::runtime::Runtime;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

const CONNECT: Duration = Duration::from_secs(3);
/// After this long, the command reports what it is waiting for.
pub(crate) const REPORT_AFTER: Duration = Duration::from_secs(1);
/// The advice for a server that accepts no connection.
const NO_SERVER: &str =
    "; check that a chiplog server runs there, and that this is its address for clients (listen.client)";

/// The advice for a host whose name has no address.
const NO_HOST: &str = "; check the name of the host, or give the server's IP address";

/// Options for connecting to servers: TLS and token.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection options")]
pub(crate) struct Connect {
    /// Use TLS, with servers whose certificates this authority (PEM) has signed.
    #[arg(long, env = "CHIPLOG_TLS_AUTHORITY", value_name = "FILE")]
    tls_authority: Option<PathBuf>,

    /// Certificate of this client (PEM), if the servers require one.
    #[arg(long, env = "CHIPLOG_TLS_CERTIFICATE", value_name = "FILE", requires_all = ["tls_key", "tls_authority"])]
    tls_certificate: Option<PathBuf>,

    /// Private key of this client (PEM).
    #[arg(long, env = "CHIPLOG_TLS_KEY", value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,

    /// File with the token, if the servers require one (`chiplog token`). Without this option the token
    /// itself may be in the environment variable CHIPLOG_TOKEN.
    #[arg(long, env = "CHIPLOG_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Send the token also to other machines without TLS. Anyone on the network path can read it.
    #[arg(long, env = "CHIPLOG_TOKEN_IN_PLAIN_TEXT", value_parser = clap::builder::FalseyValueParser::new())]
    token_in_plain_text: bool,

    /// The contents of the files. They are read once, because a file can be a pipe.
    #[arg(skip)]
    read: OnceCell<ClientOptions>,
}

/// The variable that holds the token itself; every user of the machine could read it in a flag.
pub(crate) const TOKEN_VARIABLE: &str = "CHIPLOG_TOKEN";
/// The advice if a server requires a token, or a different one.
pub(crate) const TOKEN_ADVICE: &str = "; give a token by --token-file or CHIPLOG_TOKEN";
/// The advice if the token that was given is not enough.
pub(crate) const OTHER_TOKEN_ADVICE: &str = "; give another token by --token-file or CHIPLOG_TOKEN";

impl Connect {
    /// The options of a client: the contents of the files, and defaults.
    ///
    /// # Errors
    /// `NotFound`, `Io`: a file cannot be read. `InvalidArgument`: a file holds no token, certificate or key.
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

    /// The options of a client that gets objects over HTTP.
    ///
    /// # Errors
    /// As [`Self::options`].
    pub(crate) fn for_objects(&self) -> Result<ServerVaultOptions> {
        let mut options = ServerVaultOptions::default().token(self.token()?);
        if let Some(tls) = self.tls()? {
            (options.authority, options.identity) = (Some(tls.authority), tls.identity);
        }
        Ok(options.token_in_plain_text(self.token_in_plain_text))
    }

    /// Whether an option is given on the command line, and not by the environment, which is for all commands.
    pub(crate) fn is_on_command_line(&self) -> bool {
        let Self { tls_authority, tls_certificate, tls_key, token_file, token_in_plain_text, read: _ } = self;
        // An option that is not given has the value of its variable.
        let is_variable =
            |value: &Path, name: &str| env::var_os(name).is_some_and(|variable| variable == value);
        let files = [
            (tls_authority, "CHIPLOG_TLS_AUTHORITY"),
            (tls_certificate, "CHIPLOG_TLS_CERTIFICATE"),
            (tls_key, "CHIPLOG_TLS_KEY"),
            (token_file, "CHIPLOG_TOKEN_FILE"),
        ];
        let mut given = files.into_iter().filter_map(|(file, name)| Some((file.as_ref()?, name)));
        given.any(|(file, name)| !is_variable(file, name))
            || (*token_in_plain_text && env::var_os("CHIPLOG_TOKEN_IN_PLAIN_TEXT").is_none())
    }

    fn token(&self) -> Result<Option<String>> {
        let (text, from) = match &self.token_file {
            Some(file) => {
                let text =
                    fs::read_to_string(file).map_err(|e| Failure::option_file("--token-file", file, &e))?;
                (text, file.display().to_string())
            }
            None => match env::var(TOKEN_VARIABLE) {
                Ok(text) => (text, TOKEN_VARIABLE.to_owned()),
                Err(_) => return Ok(None),
            },
        };
        match text.trim() {
            "" => Err(Failure::usage(format!("{from}: it holds no token"))),
            several if several.lines().nth(1).is_some() => {
                let what = format!(
                    "{from}: it has several lines, and a client's token is one; is it the file of a server's tokens?"
                );
                Err(Failure::usage(what))
            }
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

/// Parses `host:port`, for a command that works on no named log.
pub(crate) fn host_port(text: &str) -> Result<String, String> {
    target::check_no_url(text)?;
    if let Some((server, log)) = text.split_once('/')
        && check_host_port(server).is_ok()
    {
        return Err(format!("this works on servers, not on their log {log}: give {server}"));
    }
    check_host_port(text).map(|()| text.to_owned()).map_err(|e| e.to_string())
}

/// Connects to servers.
#[derive(Clone)]
pub(crate) struct Dialler {
    tls: Option<ClientTlsConfig>,
    options: ClientOptions,
}

/// A connection whose calls carry our token.
pub(crate) type Dialled = InterceptedService<Channel, Bearer>;

impl Dialler {
    /// Why a server cannot be used now, and what to do. None: it can.
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

    /// Connects within [`CONNECT`].
    pub(crate) async fn dial(&self, server: &str) -> Result<Dialled, Status> {
        let bearer = Bearer::new(&self.options, server).map_err(|e| to_status(&e, None))?;
        let refused = |e: tonic::transport::Error| {
            let mut status = Status::unavailable("cannot connect");
            status.set_source(Arc::new(e)); // holds the reason
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

/// Sends queries to servers, one after the other.
pub(crate) struct Asker {
    runtime: Runtime,
    dialler: Dialler,
    ui: Ui,
}

/// The admin service of a server, with our token.
pub(crate) type Admin = AdminClient<Dialled>;

impl Asker {
    /// Reports through `ui` what it is waiting for.
    pub(crate) fn new(connect: &Connect, ui: &Ui) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot start the runtime: {e}")))?;
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

    /// Runs `work` on the connections' runtime until it is done.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// The dialler, for connections to other services.
    pub(crate) fn dialler(&self) -> &Dialler {
        &self.dialler
    }

    /// Queries one server, within `patience`.
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

    /// Like [`Self::ask`], for the first query to a server. The call has to be one that every version knows.
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

    /// The status of a server, as it reports it.
    pub(crate) fn status(&self, server: &str) -> Result<StatusResponse> {
        self.ask_first(server, Duration::from_secs(5), |mut admin| async move {
            admin.status(StatusRequest::default()).await.map(tonic::Response::into_inner)
        })
    }

    /// The advice for a server that cannot be reached. None: it answers.
    pub(crate) fn advice(&self, server: &str) -> Option<Advice> {
        let asked = self.try_ask(server, CONNECT, |mut admin| async move {
            admin.status(StatusRequest::default()).await.map(drop)
        });
        let status = asked.err()?;
        Some(Advice { words: advice(&status), exit: TlsMismatch::of(&status).map(exit_of) })
    }

    /// Reports on standard error what it is waiting for.
    pub(crate) fn say(&self, what: &str) {
        self.ui.say(what);
    }
}

/// Advice on a server that cannot be reached.
pub(crate) struct Advice {
    /// The text to append to the error; may be empty.
    pub(crate) words: &'static str,
    /// The exit code, if waiting does not help.
    pub(crate) exit: Option<Exit>,
}

/// The exit code if TLS settings differ between the options and every server: the options are wrong, or a
/// server's certificate is.
pub(crate) fn exit_of(mismatch: TlsMismatch) -> Exit {
    match mismatch {
        TlsMismatch::Expired { .. } | TlsMismatch::NotYetValid { .. } => Exit::Failure,
        _ => Exit::Usage,
    }
}

/// The answer of a server as a failure of the command.
pub(crate) fn failure(server: &str, status: &Status) -> Failure {
    let error = from_status(status);
    let advice = match status.code() {
        Code::Unauthenticated => TOKEN_ADVICE,
        Code::PermissionDenied => OTHER_TOKEN_ADVICE,
        _ => advice(status),
    };
    let failure = Failure::new(error.kind(), format!("{server}: {error}{advice}"));
    match TlsMismatch::of(status) {
        Some(mismatch) => failure.with_exit(exit_of(mismatch)),
        None => failure,
    }
}

/// Like [`failure`], for the first call to a server.
fn first_failure(server: &str, status: &Status) -> Failure {
    match is_stranger(status) {
        true => Failure::new(ErrorKind::Unavailable, format!("{server}: {}", from_first_status(status))),
        false => failure(server, status),
    }
}

/// Says that a server belongs to no cluster, and what to do.
pub(crate) fn waits(server: &str, status: &StatusResponse) -> String {
    match status.called_as {
        0 => format!("{server} is not part of a cluster yet; `chiplog member init {server}` makes one"),
        node => without_replica(server, NodeId(node)),
    }
}

/// The advice for a server that cannot be reached: an option, if TLS is the reason; else to check the server
/// and its address.
pub(crate) fn advice(status: &Status) -> &'static str {
    match tls_advice(status) {
        "" if is_refused(status) => NO_SERVER,
        "" if is_unknown_host(status) => NO_HOST,
        advice => advice,
    }
}

/// Whether the system could not connect.
fn is_refused(status: &Status) -> bool {
    let mut causes = successors(status.source(), |cause| (*cause).source());
    causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.raw_os_error().is_some()))
}

/// The advice if the server and the command do not agree on TLS; else empty.
pub(crate) fn tls_advice(status: &Status) -> &'static str {
    match TlsMismatch::of(status) {
        Some(TlsMismatch::Wanted) => "; give --tls-authority or CHIPLOG_TLS_AUTHORITY",
        // A port of probes has no TLS either, and everyone could read a token that is sent there without
        // TLS.
        Some(TlsMismatch::NotSpoken) => {
            "; is this its address for clients (listen.client)? For a server without TLS leave out --tls-authority and CHIPLOG_TLS_AUTHORITY"
        }
        Some(TlsMismatch::Untrusted) => {
            "; is this its address for clients (listen.client)? --tls-authority has to be the authority that signed the server's certificate (tls.certificate)"
        }
        Some(TlsMismatch::Refused) => "; give --tls-certificate and --tls-key",
        Some(TlsMismatch::Expired { .. } | TlsMismatch::NotYetValid { .. }) => {
            "; the server needs a valid one (tls.certificate), unless a clock is wrong"
        }
        Some(TlsMismatch::OtherHost) => {
            "; use an address that the certificate names, or give the server a certificate that names this address (tls.certificate)"
        }
        Some(TlsMismatch::OwnExpired) => {
            "; give a --tls-certificate that is valid now, unless a clock is wrong"
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
    fn token_from_a_pipe_is_read_once() {
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
