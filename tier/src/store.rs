//! From a location and options to a store.

use crate::call::tell;
use crate::http::Connector;
use crate::location::{Location, Provider, invalid};
use crate::options::VaultOptions;
use crate::options::is_true;
use chiplog::{Error, ErrorKind, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig, StaticCredentialProvider};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

/// A store, and what its vault has to know of it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// The prefix of all objects of the vault.
    pub(crate) prefix: Path,
    /// Whether large objects go up in parts. A directory takes them as they are.
    pub(crate) has_parts: bool,
    /// Added to the message when the store does not answer.
    pub(crate) hint: &'static str,
}

/// Checks the bounds of options.
fn check(options: &VaultOptions) -> Result<()> {
    let VaultOptions { endpoint, timeout, retries, access_key, secret_key, .. } = options;
    if !(Duration::from_millis(50)..=Duration::from_secs(3_600)).contains(timeout) {
        return Err(invalid(format!("timeout is {timeout:?} and must be 50 ms to 1 h")));
    }
    if *retries > 100 {
        return Err(invalid(format!("retries is {retries} and may be up to 100")));
    }
    if access_key.is_some() && secret_key.is_none() {
        return Err(invalid("access_key is set without secret_key: set both, or neither"));
    }
    endpoint.as_deref().map_or(Ok(()), check_endpoint)
}

fn check_endpoint(endpoint: &str) -> Result<()> {
    let is_url = url::Url::parse(endpoint).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
    });
    if !is_url {
        return Err(invalid("the endpoint is no URL http://HOST:PORT or https://HOST:PORT: correct it"));
    }
    Ok(())
}

/// Refuses an endpoint without TLS unless that is allowed.
fn check_plain_text(endpoint: Option<&str>, allow_http: Option<String>) -> Result<()> {
    match endpoint {
        Some(url)
            if !allow_http.is_some_and(|text| is_true(&text))
                && url.to_ascii_lowercase().starts_with("http://") =>
        {
            Err(invalid(
                "the endpoint has no TLS: use https://, or set allow_http if the network may see the objects",
            ))
        }
        _ => Ok(()),
    }
}

/// Opens a store. Makes a directory, but reaches no network.
///
/// # Errors
/// `InvalidArgument`: an option or variable is wrong; `Io`: the directory cannot be made.
pub(crate) fn open(location: &Location, options: &VaultOptions) -> Result<Store> {
    check(options)?;
    match location {
        Location::Directory(path) => directory(path),
        Location::Bucket { provider, bucket, prefix } => {
            let prefix = Path::parse(prefix)
                .map_err(|e| Error::with_cause(ErrorKind::InvalidArgument, format!("{location}: {e}"), e))?;
            let wrong = |e: object_store::Error| {
                let what = format!(
                    "cannot use {location} on {}: {e}; correct the options or variables",
                    provider.name()
                );
                Error::with_cause(ErrorKind::InvalidArgument, what, e)
            };
            let connector = Connector::new(options.timeout)?;
            let (objects, hint): (Arc<dyn ObjectStore>, _) = match provider {
                Provider::S3 => {
                    let builder = s3(bucket, options)?;
                    let key = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId);
                    let has_key = options.access_key.is_some() || key.is_some();
                    let hint = "; no key is set (AWS_ACCESS_KEY_ID), so the machine's role was looked for";
                    let store = builder.with_http_connector(connector).with_retry(retry(options)).build();
                    (Arc::new(store.map_err(wrong)?), if has_key { "" } else { hint })
                }
                Provider::Google => {
                    let builder = google(bucket, options)?.with_http_connector(connector);
                    (Arc::new(builder.with_retry(retry(options)).build().map_err(wrong)?), "")
                }
                Provider::Azure => {
                    let builder = azure(bucket, options)?.with_http_connector(connector);
                    (Arc::new(builder.with_retry(retry(options)).build().map_err(wrong)?), "")
                }
            };
            Ok(Store { objects, prefix, has_parts: true, hint })
        }
    }
}

/// A directory. Files and the directories' entries are synced: without that, an object could be lost after `put` has returned.
fn directory(path: &FilePath) -> Result<Store> {
    let failed = |doing: &str, e: std::io::Error| {
        let kind = match e.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::Io,
        };
        let what = format!("cannot {doing} the object store's directory {}: {e}", path.display());
        Error::with_cause(kind, what, e)
    };
    let missing: Vec<&FilePath> = path.ancestors().take_while(|dir| !dir.exists()).collect();
    std::fs::create_dir_all(path).map_err(|e| failed("make", e))?;
    // A directory is durable once the one above it is synced.
    for above in missing.iter().filter_map(|dir| dir.parent()) {
        let synced = std::fs::File::open(above).and_then(|entries| entries.sync_all());
        synced.map_err(|e| failed("sync what is above", e))?;
    }
    let store = LocalFileSystem::new_with_prefix(path).map_err(|e| {
        let what = format!("cannot use the object store's directory {}: {}", path.display(), tell(&e));
        Error::with_cause(ErrorKind::Io, what, e)
    })?;
    let objects = Arc::new(store.with_fsync(true));
    Ok(Store { objects, prefix: Path::default(), has_parts: false, hint: "" })
}

fn retry(options: &VaultOptions) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: options.retries as usize,
        retry_timeout: options.timeout,
    }
}

fn s3(bucket: &str, options: &VaultOptions) -> Result<AmazonS3Builder> {
    use AmazonS3ConfigKey as Key;
    let VaultOptions { endpoint, region, access_key, secret_key, session_token, allow_http, .. } = options;
    // Objects are deleted one at a time: some providers have no call for many.
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_disable_bulk_delete(true);
    if let Some(url) = endpoint {
        builder = builder.with_config(Key::S3Endpoint, url); // wins over AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL
    }
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    if let (Some(key_id), Some(secret_key)) = (access_key.clone(), secret_key.clone()) {
        // As a whole: a token in the environment belongs to the key there.
        let credential = AwsCredential { key_id, secret_key, token: session_token.clone() };
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(credential)));
    }
    if *allow_http {
        builder = builder.with_allow_http(true);
    }
    let at = builder.get_config_value(&Key::S3Endpoint).or(builder.get_config_value(&Key::Endpoint));
    if bucket.ends_with("--x-s3") && at.is_none() {
        builder = builder.with_s3_express(true);
    }
    check_plain_text(at.as_deref(), builder.get_config_value(&Key::Client(ClientConfigKey::AllowHttp)))?;
    Ok(builder)
}

fn google(bucket: &str, options: &VaultOptions) -> Result<GoogleCloudStorageBuilder> {
    let VaultOptions { endpoint, secret_key, allow_http, .. } = options;
    check_plain_text(endpoint.as_deref(), Some(allow_http.to_string()))?;
    let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
    if let Some(url) = endpoint {
        builder = builder.with_base_url(url);
    }
    if let Some(key) = secret_key {
        builder = builder.with_service_account_key(key);
    }
    // By default this builder allows it, unlike the others. The machine's account is asked for without TLS all the same.
    Ok(builder.with_config(GoogleConfigKey::Client(ClientConfigKey::AllowHttp), allow_http.to_string()))
}

fn azure(container: &str, options: &VaultOptions) -> Result<MicrosoftAzureBuilder> {
    let VaultOptions { endpoint, access_key, secret_key, allow_http, .. } = options;
    let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(container);
    if let Some(url) = endpoint {
        builder = builder.with_endpoint(url.clone());
    }
    if let Some(account) = access_key {
        builder = builder.with_account(account);
    }
    if let Some(key) = secret_key {
        builder = builder.with_access_key(key);
    }
    if *allow_http {
        builder = builder.with_allow_http(true);
    }
    let allows = builder.get_config_value(&AzureConfigKey::Client(ClientConfigKey::AllowHttp));
    let at = builder.get_config_value(&AzureConfigKey::Endpoint);
    check_plain_text(at.as_deref(), allows)?;
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `LocalFileSystem` syncs nothing by default: an object was lost in a power cut after `put` had returned.
    #[test]
    fn directory_is_synced() {
        let dir = tempfile::tempdir().unwrap();
        let store = directory(&dir.path().join("a/b")).unwrap();
        assert!(format!("{:?}", store.objects).contains("fsync: true"));
    }
}
