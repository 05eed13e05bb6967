//! Token: the headers that a client sends with every call: its token, and the id of its log.

use crate::client::ClientOptions;
use crate::wire::status::LOG_ID;
use chiplog::{Error, ErrorKind, Result};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// A text that `Debug` does not print.
///
/// ```
/// let secret = chiplog_net::client::Secret::from("password");
/// assert!(!format!("{secret:?}").contains("password"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A connection whose calls carry the token.
pub(crate) type Shown = InterceptedService<Channel, Bearer>;

/// Adds the token of a client's options, if there is one, to calls of any service. Its `Debug` output does not reveal
/// the token.
///
/// ```
/// use chiplog_net::client::{Bearer, ClientOptions};
/// use chiplog_net::wire::proto::v1::admin_client::AdminClient;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut options = ClientOptions::default();
/// options.token = Some("password".into());
/// let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:7411").connect_lazy();
/// let client = AdminClient::with_interceptor(channel, Bearer::new(&options, "127.0.0.1:7411")?);
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Bearer {
    token: Option<MetadataValue<Ascii>>,
    log: LogMark,
}

/// The id of a client's log, once the client knows it.
pub(crate) type LogMark = Arc<OnceLock<MetadataValue<Ascii>>>;

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.token.is_some() { "Bearer" } else { "no token" })
    }
}

impl Bearer {
    /// Returns the header for calls to this server, `host:port`.
    ///
    /// # Errors
    /// `InvalidArgument`: the token contains characters that a header must not have, or would be sent to another
    /// machine in plain text.
    pub fn new(options: &ClientOptions, server: &str) -> Result<Self> {
        let Some(token) = &options.token else { return Ok(Self { token: None, log: LogMark::default() }) };
        if options.tls.is_none() && !options.token_in_plain_text && !is_loopback(server) {
            let what = format!("not sending the token to {server} in plain text; use TLS");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let value: Option<MetadataValue<Ascii>> = format!("Bearer {}", token.0.trim()).parse().ok();
        let mut value = value
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "the token is not printable ASCII"))?;
        value.set_sensitive(true);
        Ok(Self { token: Some(value), log: LogMark::default() })
    }

    /// Also sends the log's id with each call, once it is known.
    pub(crate) fn meaning(self, log: LogMark) -> Self {
        Self { log, ..self }
    }
}

/// Whether `host:port` is on this machine, judged by the text alone.
fn is_loopback(server: &str) -> bool {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        if let Some(log) = self.log.get() {
            request.metadata_mut().insert(LOG_ID, log.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_sent_in_plain_text_on_this_machine_only() {
        let mut options = ClientOptions::default().token(Secret::from("t\n"));
        for here in ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.9.9.9:1"] {
            assert!(Bearer::new(&options, here).is_ok(), "{here}");
        }
        for there in ["10.0.0.1:1", "log1.example:1", "[2001:db8::1]:1", "localhost.example:1"] {
            assert!(Bearer::new(&options, there).is_err(), "{there}");
        }
        options.token_in_plain_text = true;
        let shown = Bearer::new(&options, "10.0.0.1:1").unwrap().call(Request::new(())).unwrap();
        assert_eq!(shown.metadata().get("authorization").unwrap(), "Bearer t");
        options.token = Some("pass\nphrase".into());
        assert!(Bearer::new(&options, "[::1]:1").is_err());
        assert!(!format!("{options:?}").contains("phrase"));
    }
}
