//! Object store: how a command reaches the one that servers keep objects in.

use crate::common::failure::{Failure, Result};
use crate::connect::cluster::Connect;
use crate::serve::objects::Objects;
use chiplog::ErrorKind;
use chiplog::vault::Vault;
use chiplog_tier::{ServerVault, local_directory};
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;

/// Whether a text is HOST:PORT, which is no location.
fn is_host_and_port(text: &str) -> bool {
    let parts = text.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('/'));
    parts.is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// Whether a location is a server.
pub(crate) fn is_server(location: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| location.starts_with(scheme))
}

/// The options of a command that reads an object store.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Object store options")]
pub(crate) struct StoreAccess {
    /// The URL of the service, for S3 of another provider than Amazon.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    endpoint: String,

    /// The region of an S3 bucket.
    #[arg(long, value_name = "REGION", default_value = "", hide_default_value = true)]
    region: String,

    /// Permit an endpoint without TLS, which shows records and objects to the network.
    #[arg(long)]
    allow_http: bool,

    /// A file with access_key, secret_key and session_token, each as KEY = "TEXT", that only its owner may read.
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
}

impl StoreAccess {
    /// Opens the store at a location, if there is one.
    ///
    /// # Errors
    /// As [`Self::open`]; options without a location, which would have no effect.
    pub(crate) fn open_if_given(&self, location: Option<&str>) -> Result<Option<Arc<dyn Vault>>> {
        match location {
            Some(location) => self.open(location).map(Some),
            None if self.is_given() => Err(Failure::usage(
                "--endpoint, --region, --allow-http and --credentials are of an object store: give its location as --object-store, too",
            )),
            None => Ok(None),
        }
    }

    fn is_given(&self) -> bool {
        let Self { endpoint, region, allow_http, credentials } = self;
        !endpoint.is_empty() || !region.is_empty() || *allow_http || credentials.is_some()
    }

    /// Opens the store at a location, or the objects of a server's logs at `https://HOST:PORT`, which can only be read.
    ///
    /// # Errors
    /// As [`Self::open`]; options of stores for a server, and of servers for a store.
    pub(crate) fn open_or_server(&self, location: &str, connect: &Connect) -> Result<Arc<dyn Vault>> {
        match self.open_server(location, connect)? {
            Some(server) => Ok(server),
            None => self.open(location),
        }
    }

    /// Opens the objects of a server's logs. None: the location is that of a store.
    ///
    /// # Errors
    /// As [`Self::open_or_server`].
    pub(crate) fn open_server(&self, location: &str, connect: &Connect) -> Result<Option<Arc<ServerVault>>> {
        if !is_server(location) {
            if connect.is_on_command_line() {
                return Err(Failure::usage(
                    "--token-file, --token-in-plain-text and --tls-… are of a server, and the location is an object store: leave them out",
                ));
            }
            if is_host_and_port(location) {
                return Err(Failure::usage(format!(
                    "{location} is no location of an object store; if it is a server, write http://{location}, or https:// if it has TLS"
                )));
            }
            return Ok(None);
        }
        if self.is_given() {
            return Err(Failure::usage(
                "--endpoint, --region, --allow-http and --credentials are of an object store, and the location is a server: leave them out",
            ));
        }
        Ok(Some(Arc::new(ServerVault::open(location, connect.for_objects()?)?)))
    }

    /// Opens the sealed segments of the logs of the server at a location.
    ///
    /// # Errors
    /// As [`Self::open_or_server`].
    pub(crate) fn open_segments(location: &str, connect: &Connect) -> Result<ServerVault> {
        Ok(ServerVault::open_segments(location, connect.for_objects()?)?)
    }

    /// Opens the store at a location.
    ///
    /// # Errors
    /// The location or an option is wrong; `NotFound`: it is a directory that does not exist.
    pub(crate) fn open(&self, location: &str) -> Result<Arc<dyn Vault>> {
        if is_server(location) {
            return Err(Failure::usage(
                "this works on an object store itself, and the location is a server, which serves `chiplog tier list`, `verify` and \
                 `fetch` alone: give the location that the servers have as object_store",
            ));
        }
        // A server makes the directory; a command does not.
        if let Some(path) = local_directory(location).filter(|path| !path.is_dir()) {
            let what = format!(
                "there is no directory {}: mount it, or give the location that the servers have as object_store",
                path.display()
            );
            return Err(Failure::new(ErrorKind::NotFound, what));
        }
        let objects = Objects {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            allow_http: self.allow_http,
            credentials: self.credentials.clone(),
            ..Objects::default()
        };
        objects.open(location)
    }
}
