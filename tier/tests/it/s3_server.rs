//! A real S3 server over HTTP, within the test: s3s, which checks signatures, over files.

use chiplog_tier::{ObjectVault, VaultOptions};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

pub(crate) struct S3Server {
    pub(crate) options: VaultOptions,
    /// Method, path and query of each request.
    requests: Arc<Mutex<Vec<String>>>,
    dir: TempDir,
    runtime: Option<Runtime>,
}

impl S3Server {
    /// Starts a server with the bucket `bucket`.
    pub(crate) fn start() -> Self {
        Self::with_tls(None)
    }

    /// Starts one, with TLS for the name `localhost` if there is a configuration for it.
    pub(crate) fn with_tls(tls: Option<ServerConfig>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bucket")).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(dir.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single("key", "secret"));
        let service = builder.build();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let endpoint = match tls {
            Some(_) => format!("https://localhost:{port}"),
            None => format!("http://127.0.0.1:{port}"),
        };
        let requests = Arc::default();
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        runtime.spawn(serve(listener, tls, service, Arc::clone(&requests)));
        let options = VaultOptions::default()
            .endpoint(endpoint)
            .allow_http(true)
            .access_key("key".to_owned())
            .secret_key("secret".to_owned());
        Self { options, requests, dir, runtime: Some(runtime) }
    }

    pub(crate) fn vault(&self, location: &str) -> ObjectVault {
        ObjectVault::open(location, self.options.clone()).unwrap()
    }

    /// Where the server keeps the bucket's objects.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.dir.path().join("bucket")
    }

    /// The requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    service: S3Service,
    requests: Arc<Mutex<Vec<String>>>,
) {
    // The server looks whether an object exists, and then writes it: two conditional requests at a time could both succeed.
    let one_by_one = Arc::new(tokio::sync::Mutex::new(()));
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let (service, requests, one_by_one) = (service.clone(), requests.clone(), one_by_one.clone());
        let handle = service_fn(move |request: http::Request<Incoming>| {
            let line = format!("{} {}", request.method(), request.uri().path_and_query().unwrap());
            requests.lock().unwrap().push(line);
            let is_conditional = request.headers().contains_key("if-none-match");
            let (service, one_by_one) = (service.clone(), one_by_one.clone());
            async move {
                let _turn = if is_conditional { Some(one_by_one.lock().await) } else { None };
                Service::call(&service, request).await
            }
        });
        let connections = http1::Builder::new();
        match tls.clone() {
            None => drop(tokio::spawn(connections.serve_connection(TokioIo::new(socket), handle))),
            Some(tls) => drop(tokio::spawn(async move {
                if let Ok(socket) = tls.accept(socket).await {
                    let _ = connections.serve_connection(TokioIo::new(socket), handle).await;
                }
            })),
        }
    }
}
