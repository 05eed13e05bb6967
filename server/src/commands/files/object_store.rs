//! Object store: how a command reaches the one that servers keep objects in.

use crate::common::failure::{Failure, Result};
use crate::serve::objects::Objects;
use chiplog::ErrorKind;
use chiplog::vault::Vault;
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        let Self { endpoint, region, allow_http, credentials } = self;
        let is_given = !endpoint.is_empty() || !region.is_empty() || *allow_http || credentials.is_some();
        match location {
            Some(location) => self.open(location).map(Some),
            None if is_given => Err(Failure::usage(
                "--endpoint, --region, --allow-http and --credentials are of an object store: give its location as --object-store, too",
            )),
            None => Ok(None),
        }
    }

    /// Opens the store at a location.
    ///
    /// # Errors
    /// The location or an option is wrong; `NotFound`: it is a directory that does not exist.
    pub(crate) fn open(&self, location: &str) -> Result<Arc<dyn Vault>> {
        let path = location.strip_prefix("file://").unwrap_or(location);
        // A server makes the directory; a command that only reads does not.
        if path.starts_with('/') && !path.contains('%') && !Path::new(path).is_dir() {
            let what = format!(
                "there is no directory {path}: give the location that the servers have as object_store"
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
