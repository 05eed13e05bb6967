//! C and C++ programs that use the header and the shared library as `make install` lays them out. They are built
//! and run here, again under AddressSanitizer, and under valgrind if it is installed. Skipped parts are reported.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{Installed, Server, compiler, run, run_with, zeros_without_a_table};

const C99: &[&str] = &["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"];
/// The tests of the embedded log, one program a topic.
const EMBEDDED: [&str; 5] = ["embedded.c", "tickets.c", "errors.c", "threads.c", "logs.c"];
const CPP17: &[&str] = &["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic"];

/// Compiles the header alone, included twice, as the strictest C and C++.
#[test]
fn the_header_compiles_alone() {
    let installed = Installed::get();
    let dir = tempfile::tempdir().unwrap();
    for (name, tool, flags) in [("alone.c", "cc", C99), ("alone.cpp", "c++", CPP17)] {
        let source = dir.path().join(name);
        fs::write(&source, "#include \"chiplog.h\"\n#include <chiplog.h>\nint main(void) { return 0; }\n")
            .unwrap();
        let include = format!("-I{}", installed.prefix.join("include").display());
        run(compiler(tool).args(flags).arg(include).arg("-fsyntax-only").arg(&source));
    }
}

/// An append whose status is ignored is an error in C and C++ if the warning is enabled, and none otherwise.
#[test]
fn an_ignored_status_is_a_compiler_warning() {
    let installed = Installed::get();
    let dir = tempfile::tempdir().unwrap();
    let include = format!("-I{}", installed.prefix.join("include").display());
    let object = dir.path().join("unread.o").display().to_string();
    let text = "#include <chiplog.h>\nint main(void) { chiplog_log_append(NULL, \"x\", 1, NULL, NULL); return 0; }\n";
    for (name, tool, language) in [("unread.c", "cc", "-std=c99"), ("unread.cpp", "c++", "-std=c++17")] {
        let source = dir.path().join(name);
        fs::write(&source, text).unwrap();
        let compile = |more: &[&str]| {
            let mut command = compiler(tool);
            command
                .args([language, "-Werror=unused-result", &include, "-c", "-o", &object])
                .args(more)
                .arg(&source);
            command.output().unwrap()
        };
        let refused = compile(&[]);
        assert!(!refused.status.success(), "{name} compiles");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("unused-result"), "{name}: another error");
        assert!(compile(&["-DCHIPLOG_MUST_USE="]).status.success(), "{name} does not compile without it");
    }
}

#[test]
fn the_embedded_log_from_c() {
    let installed = Installed::get();
    for source in EMBEDDED {
        let program = installed.build(source, C99, &["-pthread"]);
        let dir = tempfile::tempdir().unwrap();
        run(Command::new(program).arg(dir.path()));
    }
}

#[test]
fn the_same_header_from_cpp() {
    let installed = Installed::get();
    let program = installed.build("concurrent.cpp", CPP17, &["-pthread"]);
    let dir = tempfile::tempdir().unwrap();
    run(Command::new(program).arg(dir.path()));
}

#[test]
fn a_cluster_from_c() {
    let installed = Installed::get();
    let program = installed.build("network.c", C99, &[]);
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start());
    run(Command::new(program).arg(dir.path()).arg(&server.address));
}

#[test]
fn logs_of_servers_from_c() {
    let installed = Installed::get();
    let program = installed.build("servers_logs.c", C99, &[]);
    for durability in ["majority", "majority+slices", "object"] {
        let (dir, server) = (tempfile::tempdir().unwrap(), Server::start_of_class(durability));
        run(Command::new(&program).arg(dir.path()).arg(&server.address).arg(durability));
    }
}

/// Only a batch that was found undecodable is skipped, also over the network.
#[test]
fn c_skips_an_undecodable_batch_of_a_server() {
    let installed = Installed::get();
    let program = installed.build("undecodable.c", C99, &[]);
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start());
    server.log.append(b"before").unwrap();
    server.log.append(&zeros_without_a_table()).unwrap();
    server.log.append(b"behind").unwrap();
    run(Command::new(program).arg(dir.path()).arg(&server.address));
}

#[test]
fn event_loops_and_callbacks_from_c() {
    let installed = Installed::get();
    let program = installed.build("callbacks.c", C99, &["-pthread"]);
    let (dir, server, other) = (tempfile::tempdir().unwrap(), Server::start(), Server::start());
    run(Command::new(program).arg(dir.path()).arg(&server.address).arg(&other.address));
}

#[test]
fn c_cancels_a_waiting_call() {
    let installed = Installed::get();
    let program = installed.build("cancel.c", C99, &["-pthread"]);
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start());
    run(Command::new(program).arg(dir.path()).arg(&server.address));
}

#[test]
fn notices_reach_a_callback_in_c() {
    let installed = Installed::get();
    let program = installed.build("trace.c", C99, &["-pthread"]);
    let dir = tempfile::tempdir().unwrap();
    run(Command::new(program).arg(dir.path()));
}

#[test]
fn certificates_and_tokens_from_c() {
    let installed = Installed::get();
    let program = installed.build("secure.c", C99, &[]);
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_guarded(dir.path());
    run(Command::new(program).arg(dir.path()).arg(&server.address));
}

/// Kinds of errors that no program of these tests meets, with the reason. Each other kind occurs in one of them.
const NOT_MET: &[(&str, &str)] = &[
    ("REMOVED", "the chiplog command removes a replica from a cluster, and clients switch to another one"),
    ("MEMBERSHIP", "no function of the header changes who belongs to a cluster"),
];

#[test]
fn every_kind_of_error_occurs_in_a_test_or_is_excused() {
    let here = support::here();
    let mut checks = String::new();
    for file in fs::read_dir(here.join("tests/c")).unwrap() {
        let source = fs::read_to_string(file.unwrap().path()).unwrap();
        let is_check =
            |line: &&str| ["GIVES(", "CHECK(", "both_give(", "wanted ="].iter().any(|w| line.contains(w));
        checks.extend(source.lines().filter(is_check).flat_map(|line| [line, "\n"]));
    }
    let header = fs::read_to_string(here.join("include/chiplog.h")).unwrap();
    let kinds: Vec<&str> = chiplog_kinds(&header);
    assert!(kinds.len() >= 30, "{kinds:?}");
    for kind in kinds {
        let is_met = checks.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|w| w == kind);
        let is_excused = NOT_MET.iter().any(|(name, _)| kind.ends_with(&format!("CHIPLOG_{name}")));
        assert!(is_met != is_excused, "{kind}: met {is_met}, excused {is_excused}");
    }
}

/// The names of the statuses, except CHIPLOG_OK.
fn chiplog_kinds(header: &str) -> Vec<&str> {
    let begin = header.find("#define CHIPLOG_IO ").unwrap();
    let end = header.find("#define CHIPLOG_SEALED ").unwrap();
    let defined = header[begin..].lines().take_while(|line| !line.starts_with("#define CHIPLOG_SEVERITY"));
    assert!(begin < end);
    defined.filter_map(|line| line.strip_prefix("#define ")?.split(' ').next()).collect()
}

/// The library reads no environment, sets no signals, and writes nothing to standard error; a server that stops
/// kills no program.
#[test]
fn the_library_leaves_the_process_alone() {
    let installed = Installed::get();
    let program = installed.build("quiet.c", C99, &["-rdynamic"]);
    let (dir, server) = (tempfile::tempdir().unwrap(), Server::start());
    let mut command = Command::new(program);
    command.arg(dir.path()).arg(&server.address).env("RUST_LOG", "trace").env("RUST_BACKTRACE", "1");
    let said = run_with(&mut command, |line| {
        if line == "now" {
            server.stop();
        }
    });
    assert_eq!(said.err, "", "words on standard error");
}

#[test]
fn all_programs_run_under_address_sanitizer() {
    let installed = Installed::get();
    let flags = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g", "-pthread"];
    if !installed.has_sanitizer() {
        eprintln!("SKIPPED: this compiler has no AddressSanitizer");
        return;
    }
    let (server, called, other) = (Server::start(), Server::start(), Server::start());
    let more = [
        ("concurrent.cpp", CPP17),
        ("network.c", C99),
        ("callbacks.c", C99),
        ("cancel.c", C99),
        ("trace.c", C99),
    ];
    for (source, language) in EMBEDDED.map(|source| (source, C99)).into_iter().chain(more) {
        let program = installed.build(source, language, &flags);
        let server = if source == "callbacks.c" { &called } else { &server };
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        // A forked child does not free its parent's memory. That is no leak in the parent, which is checked.
        command.arg(dir.path()).arg(&server.address).env("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0");
        if source == "callbacks.c" {
            command.arg(&other.address);
        }
        run(&mut command);
    }
}

#[test]
fn the_main_programs_run_under_valgrind() {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: valgrind is not installed");
        return;
    }
    let installed = Installed::get();
    let server = Server::start();
    let more = [("concurrent.cpp", CPP17), ("network.c", C99)];
    for (source, language) in EMBEDDED.map(|source| (source, C99)).into_iter().chain(more) {
        let program = installed.build(source, language, &["-g"]);
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("valgrind");
        command.args([
            "--quiet",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ]);
        // Valgrind runs one thread at a time: a part of the concurrent program is enough.
        run(command.arg(program).arg(dir.path()).arg(&server.address).args(["30", "no-fork"]));
    }
}

/// Each piece of C in the README is a program or the body of a function. Each is compiled and run in its own
/// directory.
#[test]
fn the_c_of_the_readme_runs() {
    let installed = Installed::get();
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(support::here().join("README.md")).unwrap();
    let pieces: Vec<&str> =
        text.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let wanted = ["durable at 1\n", "at 2, and at 2 again\n", "orders at 2, stock at 1\n"];
    assert_eq!(pieces.len(), wanted.len());
    for (n, (piece, wanted)) in pieces.into_iter().zip(wanted).enumerate() {
        let program = match piece.contains("int main(") {
            true => piece.to_owned(),
            false => {
                format!("#include <chiplog.h>\n#include <stdio.h>\nint main(void) {{\n{piece}return 0;\n}}\n")
            }
        };
        let place = dir.path().join(format!("{n}"));
        fs::create_dir(&place).unwrap();
        let source = place.join("readme.c");
        fs::write(&source, program).unwrap();
        let mut built = Command::new(installed.build_at(&source, C99, &[]));
        assert_eq!(run(built.current_dir(&place)).out, wanted);
    }
}

/// The examples print what they promise.
#[test]
fn the_examples_run() {
    let installed = Installed::get();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples/c");
    let dir = tempfile::tempdir().unwrap();
    let build = |name: &str| installed.build_at(&examples.join(name), C99, &[]);
    let said = run(Command::new(build("embedded.c")).arg(dir.path().join("log")));
    let wanted = "durable at 1\n1: hello\n2: to\n3: be\n4: or\n5: not\n6: world\n";
    assert_eq!(said.out, wanted);
    let server = Server::start();
    let lines = dir.path().join("lines");
    fs::write(&lines, "a line\n".repeat(1000)).unwrap();
    let mut producer = Command::new(build("producer.c"));
    let said = run(producer.arg(&server.address).stdin(fs::File::open(&lines).unwrap()));
    assert_eq!(said.out, "1000 lines are in the log\n");
    let mut view = Command::new(build("follower_view.c"));
    let said = run(view.arg(dir.path().join("copy")).arg("1000").arg(&server.address));
    assert!(said.out.ends_with("1000 records, 6000 bytes, up to 1000\n"), "{}", said.out);
}
