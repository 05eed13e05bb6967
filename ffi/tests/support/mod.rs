//! What the tests share: the library as it is installed, programs built against it, a server to talk to.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(unreachable_pub, reason = "as above")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// The library, installed below a directory of this test's.
pub struct Installed {
    dir: tempfile::TempDir,
    pub prefix: PathBuf,
}

pub struct Said {
    pub out: String,
    pub err: String,
}

/// A compiler by its usual variable, or its usual name.
pub fn compiler(tool: &str) -> Command {
    let variable = if tool == "cc" { "CC" } else { "CXX" };
    Command::new(std::env::var_os(variable).unwrap_or_else(|| tool.into()))
}

/// The static library that cargo built beside this test.
pub fn archive() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let places = [deps.join("libchiplog_ffi.a"), deps.parent().unwrap().join("libchiplog_ffi.a")];
    let there = |place: &&PathBuf| place.exists();
    places.iter().find(there).unwrap_or_else(|| panic!("no static library in {}", deps.display())).clone()
}

pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// As `make install` does it.
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

    /// Builds one of `tests/c`.
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

/// Runs a program to its end, which has to be a good one within five minutes.
#[track_caller]
pub fn run(command: &mut Command) -> Said {
    run_with(command, |_| ())
}

/// As [`run`], and hands each line that it says to `heard`.
#[track_caller]
pub fn run_with(command: &mut Command, mut heard: impl FnMut(&str)) -> Said {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.as_mut().unwrap_or_else(|e| panic!("{command:?}: {e}"));
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

/// A log of its own and its server, on threads of their own.
pub struct Server {
    pub address: String,
    runtime: Mutex<Option<tokio::runtime::Runtime>>,
    _dir: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let host = chiplog_net::host::Host::new();
        host.open(chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20)).unwrap());
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let follow = chiplog_net::follow::Follow::new(host.clone()).into_service();
        let service = chiplog_net::native::Native::new(host).into_service();
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let server = tonic::transport::Server::builder().add_service(service).add_service(follow);
        runtime.spawn(server.serve_with_incoming(incoming));
        Self { address, runtime: Mutex::new(Some(runtime)), _dir: dir }
    }

    /// Goes away: connections break.
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
