//! Shared by the tests: the installed library, programs built against it, a server.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(unreachable_pub, reason = "as above")]

use chiplog::vault::MemoryVault;
use chiplog::{LogOption, Logs, LogsOptions, NodeId, Options};
use chiplog_net::listener;
use chiplog_net::listener::Settings;
use chiplog_net::listener::auth::roles::{Access, AccessLayer, Role, Tokens, digest_of};
use chiplog_net::listener::tls::{Identity, ServerTls};
use chiplog_net::service::admin::{AdminService, Found};
use chiplog_net::wire::address::Address;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The library, installed below this test's directory.
pub struct Installed {
    dir: tempfile::TempDir,
    pub prefix: PathBuf,
}

pub struct Said {
    pub out: String,
    pub err: String,
}

/// A compiler, from its usual variable or by its usual name.
pub fn compiler(tool: &str) -> Command {
    let variable = if tool == "cc" { "CC" } else { "CXX" };
    Command::new(std::env::var_os(variable).unwrap_or_else(|| tool.into()))
}

/// The static library that cargo built next to this test.
pub fn archive() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let places = [deps.join("libchiplog_ffi.a"), deps.parent().unwrap().join("libchiplog_ffi.a")];
    let there = |place: &&PathBuf| place.exists();
    places.iter().find(there).unwrap_or_else(|| panic!("no static library in {}", deps.display())).clone()
}

pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Installs as `make install` does.
pub fn install(prefix: &Path) {
    let mut install = Command::new(here().join("install.sh"));
    run(install.arg(archive()).arg(prefix).arg(env!("CARGO_PKG_VERSION")));
}

impl Installed {
    pub fn get() -> &'static Self {
        static INSTALLED: OnceLock<Installed> = OnceLock::new();
        INSTALLED.get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            let prefix = dir.path().join("prefix");
            install(&prefix);
            Self { dir, prefix }
        })
    }

    /// Builds a program of `tests/c`.
    pub fn build(&self, source: &str, language: &[&str], more: &[&str]) -> PathBuf {
        self.build_at(&here().join("tests/c").join(source), language, more)
    }

    pub fn build_at(&self, source: &Path, language: &[&str], more: &[&str]) -> PathBuf {
        static COUNT: Mutex<u32> = Mutex::new(0);
        let n = {
            let mut count = COUNT.lock().unwrap();
            *count += 1;
            *count
        };
        let program = self.dir.path().join(format!("program-{n}"));
        let is_cpp = source.extension() == Some(OsStr::new("cpp"));
        let mut command = compiler(if is_cpp { "c++" } else { "cc" });
        command.args(language).args(more).arg("-o").arg(&program).arg(source);
        command.arg(format!("-I{}", self.prefix.join("include").display()));
        let lib = self.prefix.join("lib");
        command.arg(format!("-L{}", lib.display())).arg(format!("-Wl,-rpath,{}", lib.display()));
        run(command.args(["-lchiplog", "-lpthread"]));
        program
    }

    pub fn has_sanitizer(&self) -> bool {
        let source = self.dir.path().join("sanitizer.c");
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let mut command = compiler("cc");
        command.arg("-fsanitize=address").arg("-o").arg(self.dir.path().join("sanitizer")).arg(&source);
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

/// Runs a program until it exits, which must be with success and within five minutes.
#[track_caller]
pub fn run(command: &mut Command) -> Said {
    run_with(command, |_| ())
}

/// As [`run`], and passes each printed line to `heard`.
#[track_caller]
pub fn run_with(command: &mut Command, mut heard: impl FnMut(&str)) -> Said {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.as_mut().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let _limited = limited(child.id());
    let mut stderr = child.stderr.take().unwrap();
    let err = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let mut out = String::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        heard(&line);
        out.push_str(&line);
        out.push('\n');
    }
    let status = child.wait().unwrap();
    let err = err.join().unwrap().unwrap();
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    Said { out, err }
}

/// Until the returned value is dropped, a process is killed once five minutes have passed.
fn limited(process: u32) -> Sender<()> {
    let (alive, ended) = channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(300)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("process {process} hangs, and is killed");
            let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
    });
    alive
}

/// A log and its server, on their own threads.
pub struct Server {
    pub address: String,
    pub log: chiplog::Log,
    runtime: Mutex<Option<tokio::runtime::Runtime>>,
    _dir: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(Settings::default(), None, Options::with_segment_bytes(1 << 20))
    }

    /// A server whose default log acknowledges records when they are this durable.
    pub fn start_of_class(durability: &str) -> Self {
        let mut options = Options::with_segment_bytes(1 << 20);
        if durability != "majority" {
            options.vault = Some(Arc::new(MemoryVault::default()));
            options.slice_interval = Some(Duration::from_millis(10));
            options.payload_slices = durability == "object";
        }
        let refers = options.payload_slices;
        let server = Self::start_with(Settings::default(), None, options);
        let begun = Instant::now();
        while refers && server.log.log_options().get(LogOption::PayloadSlices) != Some(1) {
            assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", server.log.status());
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// A server that requires a certificate and a token. `dir` receives the files that a client needs. The tokens
    /// are the names of their roles.
    pub fn start_guarded(dir: &Path) -> Self {
        let (ours, stranger) = (Authority::new(), Authority::new());
        let (certificate, key) = ours.sign("127.0.0.1");
        let identity = Identity {
            certificate: certificate.into_bytes(),
            key: key.into_bytes(),
            authority: Some(ours.pem.clone().into_bytes()),
        };
        let mut settings = Settings::default();
        settings.tls = Some(ServerTls::new(&identity).unwrap());
        let (certificate, key) = ours.sign("a-client");
        let files = [
            ("authority.pem", ours.pem),
            ("stranger.pem", stranger.pem),
            ("client.pem", certificate),
            ("client.key", key),
        ];
        for (name, pem) in files {
            std::fs::write(dir.join(name), pem).unwrap();
        }
        let line = |role: Role| format!("{role}:{}\n", digest_of(role.name()));
        let tokens: String = Role::ALL.into_iter().map(line).collect();
        let options = Options::with_segment_bytes(1 << 20);
        Self::start_with(settings, Some(tokens.parse().unwrap()), options)
    }

    fn start_with(settings: Settings, tokens: Option<Tokens>, options: Options) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let host = chiplog_net::served::log_slot::LogSlot::new();
        let log = chiplog::Log::open(dir.path().join("log"), options).unwrap();
        host.open(log.clone());
        let of_named = LogsOptions::default().options(Options::with_segment_bytes(1 << 20));
        host.open_named(Logs::open(dir.path().join("logs"), of_named).unwrap());
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let own = Address::new(address.as_str(), address.as_str(), "").unwrap();
        let found: Found = Box::new(|_| unreachable!("the server has its log already"));
        let admin = AdminService::new(host.clone(), NodeId(1), own, "0", found);
        let access = Arc::new(Access::new(tokens, settings.refusals.clone()));
        let server = listener::server_with(&settings.limits)
            .layer(AccessLayer::new(access))
            .add_service(chiplog_net::service::follow::Follow::new(host.clone()).into_service())
            .add_service(admin)
            .add_service(chiplog_net::service::log::LogService::new(host).into_service());
        runtime.spawn(async move {
            server.serve_with_incoming(listener::incoming_with(listener, settings)).await
        });
        Self { address, log, runtime: Mutex::new(Some(runtime)), _dir: dir }
    }

    /// Stops the server: connections break.
    pub fn stop(&self) {
        if let Some(runtime) = self.runtime.lock().unwrap().take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Three records of 102,000 zeros in all, compressed, without the table of their ends. Too large to be decompressed
/// where they are appended.
pub fn zeros_without_a_table() -> chiplog::Batch {
    // One literal, then a match of 4 + 15 + 399 * 255 + 230 bytes; the last five bytes are literals.
    let packed = [&[0x1f, 0, 1, 0][..], &[255; 399], &[230, 0x50, 0, 0, 0, 0, 0]].concat();
    let mut bytes = vec![0; 40];
    bytes[4..8].copy_from_slice(&(40 + packed.len() as u32).to_le_bytes());
    bytes[8..12].copy_from_slice(&3_u32.to_le_bytes());
    bytes[12..16].copy_from_slice(&102_000_u32.to_le_bytes());
    bytes[34] = 1; // lz4
    bytes.extend(packed);
    let crc = !bytes[4..].iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0x82f6_3b78 } else { c >> 1 })
    });
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    chiplog::Batch::decode(bytes.into()).unwrap()
}

/// An authority that signs certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Returns a certificate and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}
