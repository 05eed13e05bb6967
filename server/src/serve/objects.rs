//! Objects: the keys about the object store, and how it is opened.
//!
//! Secrets are in no key: they come from the environment, or from a file that only its owner may read.
//!
//! Must not know: sockets, what is stored.

use super::size::{Size, narrow};
use crate::common::failure::{Failure, Result};
use crate::common::secret;
use chiplog::vault::Vault;
use chiplog::{ErrorKind, Log, LogOption, Options};
use chiplog_tier::{ObjectVault, VaultOptions, local_directory};
use serde::{Deserialize, Serialize};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The keys of the section `[objects]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Objects {
    pub(crate) object_bytes: Option<Size>,
    pub(crate) object_age_seconds: Option<u64>,
    pub(crate) local_bytes: Option<Size>,
    pub(crate) local_age_seconds: Option<u64>,
    pub(crate) cache_bytes: Option<Size>,
    pub(crate) fill_bytes: Option<Size>,
    pub(crate) object_delete_delay_seconds: Option<u64>,
    /// 0: objects are not examined.
    pub(crate) object_scrub_seconds: Option<u64>,
    /// 0: no slices.
    pub(crate) slice_interval_millis: Option<u64>,
    pub(crate) slice_bytes: Option<Size>,
    /// The durability class `object`.
    pub(crate) payload_slices: Option<bool>,
    /// The URL of the service. Empty: the provider's own.
    pub(crate) endpoint: String,
    /// The region of the bucket. Empty: what the environment says.
    pub(crate) region: String,
    /// Permits an endpoint without TLS.
    pub(crate) allow_http: bool,
    /// The time limit of a request with all its attempts.
    pub(crate) timeout_millis: u64,
    /// A file with the keys. None: what the environment says.
    pub(crate) credentials: Option<PathBuf>,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            object_bytes: None,
            object_age_seconds: None,
            local_bytes: None,
            local_age_seconds: None,
            cache_bytes: None,
            fill_bytes: None,
            object_delete_delay_seconds: None,
            object_scrub_seconds: None,
            slice_interval_millis: None,
            slice_bytes: None,
            payload_slices: None,
            endpoint: String::new(),
            region: String::new(),
            allow_http: false,
            timeout_millis: VaultOptions::default().timeout.as_millis() as u64,
            credentials: None,
        }
    }
}

/// The file of credentials, in TOML.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Credentials {
    access_key: Option<String>,
    secret_key: Option<String>,
    session_token: Option<String>,
}

impl Objects {
    /// The mistake of a key that would never have an effect, if there is no object store. The default of `object_bytes` is none: `config show`
    /// prints it.
    pub(super) fn without_store(&self) -> Option<String> {
        let given = [
            ("objects.local_bytes", self.local_bytes.is_some()),
            ("objects.local_age_seconds", self.local_age_seconds.is_some()),
        ];
        if self.slice_interval_millis.is_some_and(|millis| millis > 0) {
            let what = "slices go to an object store";
            return Some(format!(
                "objects.slice_interval_millis is set, but object_store is not: {what}; set object_store, or remove the key"
            ));
        }
        if self.fill_bytes.is_some() {
            return Some(
                "objects.fill_bytes is set, but object_store is not: there are no objects; set object_store, or remove the key"
                    .into(),
            );
        }
        let default = Size(Options::default().object_bytes.into());
        let of_objects = [
            ("objects.object_bytes", self.object_bytes.is_some_and(|size| size != default)),
            ("objects.object_age_seconds", self.object_age_seconds.is_some()),
        ];
        if let Some((key, _)) = of_objects.into_iter().find(|(_, is_given)| *is_given) {
            return Some(format!(
                "{key} is set, but object_store is not: no object would be made; set object_store, or remove the key"
            ));
        }
        let (key, _) = given.into_iter().find(|(_, is_given)| *is_given)?;
        Some(format!(
            "{key} is set, but object_store is not: no file would ever go; set object_store, or remove the key"
        ))
    }

    /// The log's options with these keys.
    pub(super) fn apply(&self, base: Options) -> Result<Options> {
        let object_bytes = match self.object_bytes {
            Some(size) => narrow("objects.object_bytes", size)?,
            None => base.object_bytes,
        };
        let (cache_bytes, delay) = (base.cache_bytes, base.object_delete_delay);
        let slice_bytes = match self.slice_bytes {
            Some(size) => narrow("objects.slice_bytes", size)?,
            None => base.slice_bytes,
        };
        let slices = self.slice_interval_millis.filter(|millis| *millis > 0).map(Duration::from_millis);
        let scrub = match self.object_scrub_seconds {
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => base.object_scrub,
        };
        Ok(base
            .object_bytes(object_bytes)
            .object_age(self.object_age_seconds.map(Duration::from_secs))
            .local_bytes(self.local_bytes.map(|size| size.0))
            .local_age(self.local_age_seconds.map(Duration::from_secs))
            .cache_bytes(self.cache_bytes.map_or(cache_bytes, |size| size.0))
            .fill_bytes(self.fill_bytes.map(|size| size.0))
            .object_scrub(scrub)
            .slice_interval(slices)
            .slice_bytes(slice_bytes)
            .payload_slices(self.payload_slices.unwrap_or(false))
            .object_delete_delay(self.object_delete_delay_seconds.map_or(delay, Duration::from_secs)))
    }

    /// The same keys with every limit filled in.
    pub(super) fn filled(&self, options: &Options) -> Self {
        Self {
            object_bytes: Some(Size(options.object_bytes.into())),
            cache_bytes: Some(Size(options.cache_bytes)),
            object_delete_delay_seconds: Some(options.object_delete_delay.as_secs()),
            object_scrub_seconds: Some(options.object_scrub.map_or(0, |pass| pass.as_secs())),
            slice_interval_millis: Some(
                options.slice_interval.map_or(0, |interval| interval.as_millis() as u64),
            ),
            slice_bytes: Some(Size(options.slice_bytes.into())),
            payload_slices: Some(options.payload_slices),
            ..self.clone()
        }
    }

    /// Opens the object store of a server as [`Self::open`]. Of a directory of this machine the last part alone is made: one that is not
    /// mounted would else be made below the place where it belongs, and the disk of the system would fill up with objects. `data`: the
    /// server's own directory, which it makes as well.
    ///
    /// # Errors
    /// As [`Self::open`]. `NotFound`: the directory above is missing.
    pub(super) fn open_for_server(&self, location: &str, data: &Path) -> Result<Arc<dyn Vault>> {
        let missing = local_directory(location).filter(|path| !path.exists());
        if let Some(path) = &missing {
            let above = path.parent().unwrap_or(path);
            let is_own = path::absolute(data).is_ok_and(|data| path.starts_with(data));
            if !above.is_dir() && !is_own {
                let what = format!(
                    "object_store: there is no directory {} to make {} in: mount it or make it; a server makes the last part alone",
                    above.display(),
                    path.display()
                );
                return Err(Failure::new(ErrorKind::NotFound, what));
            }
        }
        let vault = self.open(location)?;
        if let Some(path) = missing {
            tracing::warn!(path = %path.display(), "made the directory of the object store, which was missing");
        }
        Ok(vault)
    }

    /// Opens the object store at a location. It makes no request: a store that is down is no error.
    ///
    /// # Errors
    /// The location, an option or the file of credentials is wrong; the directory cannot be made.
    pub(crate) fn open(&self, location: &str) -> Result<Arc<dyn Vault>> {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let keys = self.credentials.as_deref().map(credentials).transpose()?.unwrap_or_default();
        let options = VaultOptions::default()
            .endpoint(some(&self.endpoint))
            .region(some(&self.region))
            .allow_http(self.allow_http)
            .timeout(Duration::from_millis(self.timeout_millis))
            .access_key(keys.access_key)
            .secret_key(keys.secret_key)
            .session_token(keys.session_token);
        let vault = ObjectVault::open(location, options)
            .map_err(|e| Failure::new(e.kind(), format!("object_store: {e}")))?;
        Ok(Arc::new(vault))
    }
}

/// Reads a file of credentials. Errors show nothing of its contents.
fn credentials(file: &Path) -> Result<Credentials> {
    let text = secret::read(file).map_err(|e| e.at("objects.credentials"))?;
    toml::from_str(&text).map_err(|e| {
        let line = e.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
        Failure::usage(format!(
            "objects.credentials: {}, line {line}: give access_key, secret_key and session_token, each as KEY = \"TEXT\"; nothing else",
            file.display()
        ))
    })
}

/// Warns of a log, or a group, that has objects at a server without an object store.
pub(super) fn warn_without_store(log: &Log, has_store: bool) {
    let has_objects = log.log_options().get(LogOption::ObjectBytes).is_some();
    if has_objects && !has_store {
        tracing::warn!(
            path = %log.path().display(),
            "the log has objects in an object store, and object_store is not set here: this server stores none, and cannot read records that are not on its disk; set object_store as on the other servers"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn open(objects: &Objects, location: &str) -> Failure {
        objects.open(location).unwrap_err()
    }

    #[test]
    fn wrong_location_is_an_error_at_once_and_a_store_that_is_down_is_none() {
        let objects =
            Objects { endpoint: "http://127.0.0.1:1".into(), allow_http: true, ..Objects::default() };
        for wrong in ["relative/dir", "s3://", "ftp://a/b"] {
            let error = open(&objects, wrong);
            assert!(error.to_string().starts_with("object_store: "), "{error}");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        objects.open("s3://bucket/prefix").unwrap();
        let plain = Objects { allow_http: false, ..objects };
        let error = open(&plain, "s3://bucket/prefix");
        assert!(error.to_string().starts_with("object_store: "), "{error}");
    }

    /// `/mnt/objects/log` was made on the system's disk while `/mnt/objects` was not there.
    #[test]
    fn server_makes_the_last_part_of_a_directory_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| format!("file://{}/a%20b/{path}", dir.path().display());
        let objects = Objects::default();
        let error = objects.open_for_server(&at("store"), &dir.path().join("data")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            error.to_string().contains("a b to make ") && error.to_string().contains("mount it"),
            "{error}"
        );
        assert!(!dir.path().join("a b").exists());
        fs::create_dir(dir.path().join("a b")).unwrap();
        objects.open_for_server(&at("store"), &dir.path().join("data")).unwrap();
        assert!(dir.path().join("a b/store").is_dir());
        objects.open_for_server(&at("data/objects"), &dir.path().join("a b/data")).unwrap();
        objects.open_for_server(&at("store"), &dir.path().join("data")).unwrap();
    }

    #[test]
    fn credentials_are_private_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        let objects = Objects { credentials: Some(file.clone()), ..Objects::default() };
        let location = dir.path().join("vault").display().to_string();
        let error = open(&objects, &location).to_string();
        assert!(error.contains("objects.credentials"), "{error}");
        fs::write(&file, "access_key = \"me\"\nsecret_key = \"hidden\"\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let error = open(&objects, &location).to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        objects.open(&location).unwrap();
        fs::write(&file, "access_key = \"me\"\nsecret_key = hidden\n").unwrap();
        let error = open(&objects, &location).to_string();
        assert!(error.contains("line 2") && !error.contains("hidden"), "{error}");
        fs::write(&file, "secret_key = \"hidden\"\nother = \"hidden\"").unwrap();
        assert!(!open(&objects, &location).to_string().contains("hidden"));
    }
}
