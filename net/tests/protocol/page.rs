//! The page about the protocol matches the protos and the code.

use chiplog::ErrorKind;
use chiplog_net::client::ErrorClass;
use chiplog_net::listener::auth::roles::{METHODS, Needs, Reach};
use chiplog_net::wire::status::{ENDED, FIRST, KIND, LASTING, LEADER, NOT_APPENDED, RETRY_AFTER, code_of};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use std::path::Path;

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The names after a keyword at the start of a line.
fn named(proto: &str, keyword: &str) -> Vec<String> {
    let name = |line: &str| {
        let rest = line.trim().strip_prefix(keyword)?.strip_prefix(' ')?;
        rest.split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned)
    };
    proto.lines().filter_map(name).collect()
}

#[test]
fn page_lists_every_call_and_message() {
    let page = text("../docs/protocol.md");
    let words: Vec<&str> = page.split(|c: char| !c.is_alphanumeric()).collect();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/chiplog/v1");
    let mut found = 0;
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let proto = std::fs::read_to_string(&path).unwrap();
        for keyword in ["service", "rpc", "message", "enum"] {
            for name in named(&proto, keyword) {
                assert!(words.contains(&name.as_str()), "{keyword} {name} of {} is missing", path.display());
                found += 1;
            }
        }
    }
    assert!(found > 50, "{found}");
    for key in [KIND, LEADER, FIRST, LASTING, NOT_APPENDED, ENDED, RETRY_AFTER] {
        assert!(page.contains(&format!("| `{key}` |")), "{key}");
    }
}

#[test]
fn page_has_the_reach_of_every_method() {
    let page = text("../docs/security.md");
    for (method, needs) in METHODS.iter().filter(|(method, _)| !method.starts_with("/grpc.")) {
        let Needs::Role(_, reach) = needs else { panic!("{method} needs no token") };
        let row = match reach {
            Reach::Logs => "| logs |",
            Reach::Leaders => "| leaders |",
            Reach::Port => "| port |",
            Reach::Server => "| server |",
            Reach::NoLog => "| no log |",
        };
        let name = method[1..].replace('/', ".");
        let name = format!("`{}`", name.strip_prefix("chiplog.v1.").unwrap_or(&name));
        let rows: Vec<&str> =
            page.lines().filter(|line| line.starts_with("| ") && line.contains(&name)).collect();
        assert!(rows.len() == 1 && rows[0].starts_with(row), "{name} belongs to {row}: {rows:?}");
    }
}

/// The page promises this for `chiplog.v1`; calls have comments as well.
#[test]
fn every_field_and_call_has_a_comment() {
    let files = FileDescriptorSet::decode(chiplog_net::wire::proto::DESCRIPTORS).unwrap().file;
    let mut seen = 0;
    for file in files.iter().filter(|file| file.package() == "chiplog.v1") {
        let source = file.source_code_info.as_ref().unwrap();
        let is_said = |path: &[i32]| {
            let location = source.location.iter().find(|location| location.path == path);
            location.is_some_and(|location| !location.leading_comments().trim().is_empty())
        };
        let mut expect = |path: &[i32], what: String| {
            seen += 1;
            assert!(is_said(path), "{}: {what} has no comment", file.name());
        };
        // The field numbers in descriptors: messages 4, their fields 2; services 6, their methods 2.
        for (m, message) in (0..).zip(&file.message_type) {
            for (f, field) in (0..).zip(&message.field) {
                expect(&[4, m, 2, f], format!("{}.{}", message.name(), field.name()));
            }
        }
        for (s, service) in (0..).zip(&file.service) {
            for (m, method) in (0..).zip(&service.method) {
                expect(&[6, s, 2, m], format!("{}.{}", service.name(), method.name()));
            }
        }
    }
    assert!(seen > 150, "{seen}");
}

/// Converts `DataLoss` to `DATA_LOSS`.
fn screaming(name: &str) -> String {
    let mut out = String::new();
    for (n, c) in name.chars().enumerate() {
        if n > 0 && c.is_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

#[test]
fn error_table_matches_the_code() {
    let page = text("../docs/protocol.md");
    let rows: Vec<&str> = page
        .lines()
        .filter(|l| l.starts_with("| ") && l[2..].starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    let kinds: Vec<ErrorKind> = (1..).map_while(ErrorKind::from_code).collect();
    assert_eq!(rows.len(), kinds.len(), "one row per kind");
    for (row, kind) in rows.iter().zip(kinds) {
        let class = match ErrorClass::of(kind) {
            ErrorClass::Fatal => "fatal",
            ErrorClass::Retriable => "retry",
            ErrorClass::RefreshMetadata => "refresh",
        };
        let status = screaming(&format!("{:?}", code_of(kind)));
        assert_eq!(*row, format!("| {} | {} | {status} | {class} |", kind.code(), kind.name()));
    }
}
