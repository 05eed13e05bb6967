//! The list of views: where each is, what its build needs, and how it is run. Another language is one entry of
//! [`VIEWS`] and the function that it names.
//!
//! Every view takes `--cluster host:port[,host:port…] --db FILE --until INDEX`, and `--dir DIR` if it has a copy of the
//! log. It follows the rules of `examples/README.md` for tables, output and exit codes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Result;

/// A view in some language.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) name: &'static str,
    /// Files that must be in the repository.
    source: &'static str,
    /// Programs that must be on the machine.
    tools: &'static [&'static str],
    /// Libraries that pkg-config must know.
    libraries: &'static [&'static str],
    /// Whether it keeps a copy of the log, in `--dir`.
    pub(crate) copies: bool,
    /// Why it cannot be built, if that needs more than a search for tools.
    lacks: fn() -> Option<String>,
    build: fn(&Place) -> Result<Program>,
}

/// All views.
pub(crate) const VIEWS: &[View] = &[
    View {
        name: "rust",
        source: "examples/view-rust",
        tools: &[],
        libraries: &[],
        copies: true,
        lacks: nothing,
        build: rust,
    },
    View {
        name: "go",
        source: "examples/view-go",
        tools: &["go"],
        libraries: &[],
        copies: false,
        lacks: nothing,
        build: go,
    },
    View {
        name: "java",
        source: "examples/view-java",
        tools: &["mvn", "java"],
        libraries: &[],
        copies: false,
        lacks: nothing,
        build: java,
    },
    View {
        name: "c",
        source: "examples/view-c/view.c",
        tools: &["make", "cc", "pkg-config"],
        libraries: &["sqlite3"],
        copies: true,
        lacks: nothing,
        build: c,
    },
    View {
        name: "python",
        source: "examples/view-python/view.py",
        tools: &["make"],
        libraries: &[],
        copies: true,
        lacks: python_3_11,
        build: python,
    },
];

/// Directories.
#[derive(Debug)]
pub(crate) struct Place {
    /// The root of the repository.
    pub(crate) root: PathBuf,
    /// Directory of the built programs of this workspace.
    pub(crate) programs: PathBuf,
    /// Directory for the builds of other languages.
    pub(crate) out: PathBuf,
}

/// The command that starts a view; its own arguments follow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

/// A view, built or skipped.
pub(crate) enum Built {
    Ready(Program),
    /// The reason.
    Skipped(String),
}

impl View {
    /// Builds it, if possible.
    ///
    /// # Errors
    /// Everything that it needs is installed, and it does not build.
    pub(crate) fn build(&self, place: &Place) -> Result<Built> {
        if !place.root.join(self.source).exists() {
            return Ok(Built::Skipped(format!("there is no {} here", self.source)));
        }
        if let Some(tool) = self.tools.iter().find(|tool| !installed(tool)) {
            return Ok(Built::Skipped(format!("there is no {tool} on this machine")));
        }
        let known = |library: &&&str| {
            Command::new("pkg-config").args(["--exists", library]).status().is_ok_and(|s| s.success())
        };
        if let Some(library) = self.libraries.iter().find(|library| !known(library)) {
            return Ok(Built::Skipped(format!("there is no library {library} on this machine")));
        }
        if let Some(why) = (self.lacks)() {
            return Ok(Built::Skipped(why));
        }
        (self.build)(place).map(Built::Ready).map_err(|e| format!("the view in {}: {e}", self.name).into())
    }
}

impl Program {
    fn new(program: impl Into<OsString>, args: &[OsString]) -> Self {
        Self { program: program.into(), args: args.to_vec(), env: Vec::new() }
    }

    fn with(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().map(|(key, value)| (key, value)));
        command
    }
}

/// Whether there is a program of this name.
fn installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(tool).is_file())
}

/// Runs a step of a build; returns its standard output.
fn step(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!(
            "{command:?}: {}\n{said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    Ok(said.into_owned())
}

fn rust(place: &Place) -> Result<Program> {
    let program = place.programs.join("chiplog-example-view");
    match program.is_file() {
        true => Ok(Program::new(program, &[])),
        false => Err(format!(
            "there is no {}: build it with cargo build -p chiplog-example-view",
            program.display()
        )
        .into()),
    }
}

fn go(place: &Place) -> Result<Program> {
    let (source, program) = (place.root.join("examples/view-go"), place.out.join("view-go"));
    step(Command::new("go").arg("build").arg("-o").arg(&program).arg(".").current_dir(source))?;
    Ok(Program::new(program, &[]))
}

fn java(place: &Place) -> Result<Program> {
    let (source, out) = (place.root.join("examples/view-java"), place.out.join("view-java"));
    step(
        Command::new("mvn")
            .args(["-q", "-B"])
            .arg(format!("-Dout={}", out.display()))
            .arg("package")
            .current_dir(source),
    )?;
    let libraries = std::fs::read_to_string(out.join("classpath"))?;
    let classes = format!("{}:{}", out.join("classes").display(), libraries.trim());
    Ok(Program::new("java", &["-cp".into(), classes.into(), "view.Main".into()]))
}

/// Links against the installed library.
fn c(place: &Place) -> Result<Program> {
    let (source, program) = (place.root.join("examples/view-c/view.c"), place.out.join("view-c"));
    let prefix = place.root.join("target/install");
    step(
        Command::new("make")
            .args(["install-lib", "LIB_PROFILE=dev"])
            .arg(format!("PREFIX={}", prefix.display()))
            .current_dir(&place.root),
    )?;
    let lib = prefix.join("lib");
    let flags = step(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "chiplog", "sqlite3"])
            .env("PKG_CONFIG_PATH", lib.join("pkgconfig")),
    )?;
    step(Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(source).args(flags.split_whitespace()))?;
    Ok(Program::new(program, &[]).with("LD_LIBRARY_PATH", lib))
}

fn nothing() -> Option<String> {
    None
}

/// The interpreter: `PYTHON`, as `make` takes it, or `python3`.
fn interpreter() -> OsString {
    std::env::var_os("PYTHON").filter(|python| !python.is_empty()).unwrap_or_else(|| "python3".into())
}

/// The package needs Python 3.11.
fn python_3_11() -> Option<String> {
    let python = interpreter();
    let asked = Command::new(&python)
        .args(["-c", "import sys, venv; sys.exit(sys.version_info < (3, 11))"])
        .stderr(Stdio::null())
        .status();
    let here = asked.is_ok_and(|status| status.success());
    (!here)
        .then(|| format!("{} is not there, or older than 3.11 (PYTHON=path for another)", python.display()))
}

/// In an environment of its own, with the wheel installed.
fn python(place: &Place) -> Result<Program> {
    let environment = place.out.join("view-python");
    step(Command::new("make").arg("wheel-dev").env("PYTHON", interpreter()).current_dir(&place.root))?;
    let wheels = place.root.join("target/wheels-test");
    let newest = std::fs::read_dir(&wheels)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok())
        .ok_or_else(|| format!("make wheel-dev left no wheel in {}", wheels.display()))?;
    step(Command::new(interpreter()).args(["-m", "venv", "--clear"]).arg(&environment))?;
    let python = environment.join("bin/python");
    step(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--no-index"]).arg(newest))?;
    Ok(Program::new(python, &[view_py(&place.root)]))
}

fn view_py(root: &Path) -> OsString {
    root.join("examples/view-python/view.py").into()
}
