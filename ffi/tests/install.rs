//! `make install`: pkg-config and CMake find the library. It exports exactly the listed symbols, with a soname and
//! symbol versions.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Installed, archive, compiler, here, run};

fn has(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").output().is_ok_and(|out| out.status.success());
    if !there {
        eprintln!("SKIPPED: {tool} is not installed");
    }
    there
}

/// `UPDATE_HEADER=1` writes the list.
#[test]
fn exactly_the_listed_symbols_are_exported_with_versions() {
    if !has("nm") {
        return;
    }
    let lib = Installed::get().prefix.join("lib");
    let said = run(Command::new("nm")
        .args(["-D", "--defined-only", "--with-symbol-versions"])
        .arg(lib.join("libchiplog.so")));
    let mut exported: BTreeSet<String> = BTreeSet::new();
    for line in said.out.lines() {
        let mut words = line.split_whitespace().rev();
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        if kind != "A" {
            exported.insert(name.to_owned());
        }
    }
    let list = here().join("symbols.txt");
    let wanted: String = exported.iter().map(|name| format!("{name}\n")).collect();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        fs::write(&list, &wanted).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&list).unwrap_or_default(),
        wanted,
        "left: symbols.txt, right: libchiplog.so"
    );
    assert!(exported.iter().all(|name| name.ends_with("@@CHIPLOG_0.1")), "{wanted}");
    let header = fs::read_to_string(here().join("include/chiplog.h")).unwrap();
    for name in &exported {
        let bare = name.split('@').next().unwrap();
        assert!(header.contains(&format!("{bare}(")), "{bare} is exported and not in the header");
    }
    let said = run(Command::new("objdump").arg("-p").arg(lib.join("libchiplog.so")));
    assert!(said.out.contains("SONAME               libchiplog.so.0\n"), "{}", said.out);
    let needed: Vec<&str> = said.out.lines().filter(|line| line.contains("NEEDED")).collect();
    assert!(
        needed
            .iter()
            .all(|line| ["libc.", "libm.", "libgcc_s.", "ld-linux"].iter().any(|l| line.contains(l))),
        "{needed:?}"
    );
}

/// Also those of linked libraries: their licences require it.
#[test]
fn the_licences_are_installed() {
    let doc = Installed::get().prefix.join("share/doc/chiplog");
    for (name, word) in [("LICENSE", "Apache License"), ("THIRD-PARTY.txt", "tokio ")] {
        assert!(fs::read_to_string(doc.join(name)).unwrap().contains(word), "{name}");
    }
}

const PROGRAM: &str = "examples/c/embedded.c";

#[test]
fn one_line_of_cc_with_pkg_config_is_enough() {
    if !has("pkg-config") {
        return;
    }
    let (installed, dir) = (Installed::get(), tempfile::tempdir().unwrap());
    let pc = installed.prefix.join("lib/pkgconfig");
    let ask = |args: &[&str]| {
        let said = run(Command::new("pkg-config").args(args).arg("chiplog").env("PKG_CONFIG_PATH", &pc));
        said.out.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ask(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let source = here().parent().unwrap().join(PROGRAM);
    let program = dir.path().join("shared");
    run(compiler("cc").arg(&source).arg("-o").arg(&program).args(ask(&["--cflags", "--libs"])));
    let mut shared = Command::new(program);
    run(shared.arg(dir.path().join("log")).env("LD_LIBRARY_PATH", installed.prefix.join("lib")));
    // Without the shared library. The compiler finds the unwinder by itself; with -static it is in another library.
    let program = dir.path().join("static");
    let mut link = compiler("cc");
    link.arg(&source).arg("-o").arg(&program).args(ask(&["--cflags"]));
    let libs = ask(&["--static", "--libs"]);
    link.arg(installed.prefix.join("lib/libchiplog.a")).args(libs.iter().filter(|lib| *lib != "-lchiplog"));
    run(&mut link);
    run(Command::new(program).arg(dir.path().join("log-2")));
    assert!(archive().exists());
    // Without any shared library, if there is a static libc.
    let program = dir.path().join("wholly-static");
    fs::write(dir.path().join("empty.c"), "int main(void) { return 0; }\n").unwrap();
    let mut empty = compiler("cc");
    empty.arg(dir.path().join("empty.c")).arg("-o").arg(&program).arg("-static");
    if !empty.output().unwrap().status.success() {
        eprintln!("SKIPPED: there is no static libc");
        return;
    }
    run(compiler("cc")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .args(ask(&["--cflags"]))
        .arg("-static")
        .args(libs));
    run(Command::new(program).arg(dir.path().join("log-3")));
}

#[test]
fn cmake_finds_it() {
    if !has("cmake") {
        return;
    }
    let (installed, dir) = (Installed::get(), tempfile::tempdir().unwrap());
    let source = here().parent().unwrap().join(PROGRAM);
    let lists = format!(
        "cmake_minimum_required(VERSION 3.10)\nproject(uses C)\nfind_package(chiplog 0.1 REQUIRED)\n\
         add_executable(shared \"{0}\")\ntarget_link_libraries(shared chiplog::chiplog)\n\
         add_executable(static \"{0}\")\ntarget_link_libraries(static chiplog::static)\n",
        source.display()
    );
    fs::write(dir.path().join("CMakeLists.txt"), lists).unwrap();
    let build = dir.path().join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(dir.path()).arg("-B").arg(&build);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", installed.prefix.display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["shared", "static"] {
        run(Command::new(build.join(program)).arg(dir.path().join(format!("log-{program}"))));
    }
    fs::write(
        dir.path().join("CMakeLists.txt"),
        "cmake_minimum_required(VERSION 3.10)\nproject(uses C)\nfind_package(chiplog 99 REQUIRED)\n",
    )
    .unwrap();
    let mut refused = Command::new("cmake");
    refused.arg("-S").arg(dir.path()).arg("-B").arg(dir.path().join("no"));
    let refused =
        refused.arg(format!("-DCMAKE_PREFIX_PATH={}", installed.prefix.display())).output().unwrap();
    assert!(!refused.status.success(), "version 99 was found");
}

/// The installed libraries have no debug information. That of the shared one is in a file of its own, which
/// debuggers find by the library's build-id and debug link.
#[test]
fn the_library_is_stripped_and_debuggers_find_the_rest() {
    if !has("objcopy") || !has("readelf") || !has("addr2line") || !has("nm") {
        return;
    }
    let lib = Installed::get().prefix.join("lib");
    let (library, debug) = (lib.join("libchiplog.so"), lib.join(".debug").join(DEBUG_FILE));
    let ask = |tool: &str, args: &[&str], file: &Path| run(Command::new(tool).args(args).arg(file)).out;
    let sections = |file: &Path| ask("readelf", &["--section-headers", "--wide"], file);
    let shared = sections(&library);
    for section in [".debug_info", ".debug_line", ".symtab"] {
        assert!(!shared.contains(section), "{section} in the library");
        assert!(sections(&debug).contains(section), "no {section} in the debug file");
    }
    assert!(
        !shared.contains(".debug_") && !shared.contains(".strtab"),
        "more of it is in the library: {shared}"
    );
    assert!(shared.contains(".gnu_debuglink"));
    let build_id = |file: &Path| {
        let notes = ask("readelf", &["--notes"], file);
        let id =
            notes.split_once("Build ID: ").map(|(_, id)| id.split_whitespace().next().unwrap().to_owned());
        id.unwrap_or_else(|| panic!("{} has no build-id", file.display()))
    };
    assert_eq!(build_id(&library), build_id(&debug));
    let has_lines = |file: &Path| sections(file).contains("] .debug_line");
    assert!(has_lines(&archive()) && !has_lines(&lib.join("libchiplog.a")));

    // With the library alone, from any directory, as a debugger does: the source line of a function.
    let symbols = ask("nm", &["-D", "--defined-only"], &library);
    let open = symbols.lines().find(|line| line.contains(" chiplog_log_open@")).unwrap();
    let address = open.split(' ').next().unwrap();
    let found = run(Command::new("addr2line").arg("-e").arg(&library).arg(address).current_dir("/")).out;
    assert!(found.contains("ffi/src/handles/log/open.rs:"), "chiplog_log_open is at {found}");
    let away = tempfile::tempdir().unwrap();
    let alone = away.path().join("libchiplog.so");
    fs::copy(&library, &alone).unwrap();
    let found = run(Command::new("addr2line").arg("-e").arg(&alone).arg(address).current_dir("/")).out;
    assert!(!found.contains("open.rs"), "without the debug file: {found}");
    if has("gdb") {
        let mut gdb = Command::new("gdb");
        gdb.args(["--batch", "--nx", "-ex", "info line chiplog_log_open"]).arg(&library).current_dir("/");
        let found = run(&mut gdb).out;
        assert!(found.contains("open.rs"), "{found}");
    }
}

const DEBUG_FILE: &str = concat!("libchiplog.so.", env!("CARGO_PKG_VERSION"), ".debug");

/// objcopy is optional: without it the library is installed as linked.
#[test]
fn without_objcopy_the_library_is_installed_unstripped() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("prefix");
    let mut install = Command::new(here().join("install.sh"));
    install.arg(archive()).arg(&prefix).arg(env!("CARGO_PKG_VERSION")).env("OBJCOPY", "no-such-objcopy");
    let said = run(&mut install);
    assert!(said.err.contains("no-such-objcopy not found"), "{}", said.err);
    assert!(prefix.join("lib/libchiplog.so").exists() && !prefix.join("lib/.debug").exists());
    assert_eq!(
        fs::metadata(prefix.join("lib/libchiplog.a")).unwrap().len(),
        fs::metadata(archive()).unwrap().len()
    );
}
