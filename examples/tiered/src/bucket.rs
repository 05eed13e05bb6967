//! The bucket: an S3 server in this process, over files. Servers reach it over HTTP, with keys, as they would reach Amazon's.

use chiplog_tier::{ObjectVault, VaultOptions};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const KEY: &str = "demo";
const SECRET: &str = "only for this demo";
/// The value of `object_store` at servers and commands.
pub(crate) const LOCATION: &str = "s3://bucket/chiplog";

/// A bucket that servers can reach. It is there until this is dropped.
#[derive(Debug)]
pub(crate) struct Bucket {
    endpoint: String,
    /// The file with the keys.
    credentials: PathBuf,
    files: PathBuf,
    _runtime: Runtime,
}

impl Bucket {
    /// Starts the S3 server; its files are in `dir`.
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let files = dir.join("s3/bucket");
        fs::create_dir_all(&files)?;
        let store = s3s_fs::FileSystem::new(dir.join("s3")).map_err(|e| format!("the S3 server: {e:?}"))?;
        let mut service = S3ServiceBuilder::new(store);
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let connection =
                    http1::Builder::new().serve_connection(TokioIo::new(socket), service.clone());
                drop(tokio::spawn(connection)); // an error is the client's to see
            }
        });
        let credentials = dir.join("keys.toml");
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&credentials)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        writeln!(file, "access_key = {KEY:?}\nsecret_key = {SECRET:?}")?;
        Ok(Self { endpoint, credentials, files, _runtime: runtime })
    }

    /// The settings of a server that stores objects here.
    pub(crate) fn settings(&self) -> Vec<String> {
        vec![
            format!("object_store={LOCATION}"),
            format!("objects.endpoint={}", self.endpoint),
            "objects.allow_http=true".to_owned(),
            format!("objects.credentials={}", self.credentials.display()),
        ]
    }

    /// The arguments with which a command reaches it.
    pub(crate) fn arguments(&self) -> [String; 5] {
        let (endpoint, keys) = (self.endpoint.clone(), self.credentials.display().to_string());
        ["--allow-http".to_owned(), "--endpoint".to_owned(), endpoint, "--credentials".to_owned(), keys]
    }

    /// The bucket for a program that reads objects itself.
    pub(crate) fn vault(&self) -> Result<ObjectVault> {
        let options = VaultOptions::default()
            .endpoint(self.endpoint.clone())
            .allow_http(true)
            .access_key(KEY.to_owned())
            .secret_key(SECRET.to_owned());
        Ok(ObjectVault::open(LOCATION, options)?)
    }

    /// How many objects there are, and their bytes.
    pub(crate) fn objects(&self) -> Result<(u64, u64)> {
        let mut all = (0, 0);
        let mut folders = vec![self.files.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    folders.push(entry.path());
                } else if entry.path().parent().is_some_and(|folder| folder.ends_with("o")) {
                    all = (all.0 + 1, all.1 + entry.metadata()?.len());
                }
            }
        }
        Ok(all)
    }
}
