//! The protos of `chiplog.v1` follow the default rules of `buf lint` (its set STANDARD), as far as descriptors show
//! them. `logspec.proto` is not checked: its names come from existing programs.

use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use std::collections::BTreeSet;

/// Accepted violations: buf's name of the rule, the place, the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("SERVICE_SUFFIX", "chiplog.v1.Log", "the name that clients call; a suffix adds nothing"),
    ("SERVICE_SUFFIX", "chiplog.v1.Admin", "as Log"),
    ("SERVICE_SUFFIX", "chiplog.v1.Follow", "as Log"),
    ("SERVICE_SUFFIX", "chiplog.v1.Peer", "as Log"),
    ("RPC_REQUEST_STANDARD_NAME", "chiplog.v1.Peer.Messages", "its stream carries messages, not requests"),
    ("RPC_RESPONSE_STANDARD_NAME", "chiplog.v1.Peer.Messages", "the answer to a Hello is a Hello"),
];

fn files() -> Vec<FileDescriptorProto> {
    FileDescriptorSet::decode(chiplog_net::wire::proto::DESCRIPTORS).unwrap().file
}

/// `PascalCase`: no underscore, starts with a capital, never two capitals in a row.
fn is_pascal(name: &str) -> bool {
    let capitals = |pair: &[u8]| pair.iter().all(u8::is_ascii_uppercase);
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|b| b.is_ascii_alphanumeric())
        && !name.as_bytes().windows(2).any(capitals)
}

/// `lower_snake_case`: words of lower-case letters and digits.
fn is_snake(name: &str) -> bool {
    let word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    name.split('_').all(word)
}

/// Converts `PascalCase` to `pascal_case`.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for (n, c) in name.chars().enumerate() {
        if n > 0 && c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The violations, with their places.
#[derive(Default)]
struct Lint {
    broken: BTreeSet<(&'static str, String)>,
    /// The request and response types of calls.
    used: BTreeSet<String>,
}

impl Lint {
    fn expect(&mut self, holds: bool, rule: &'static str, at: impl Into<String>) {
        if !holds {
            self.broken.insert((rule, at.into()));
        }
    }

    fn file(&mut self, file: &FileDescriptorProto) {
        let (path, package) = (file.name(), file.package());
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let version = package.rsplit('.').next().and_then(|last| last.strip_prefix('v'));
        self.expect(!package.is_empty(), "PACKAGE_DEFINED", path);
        self.expect(package.split('.').all(is_snake), "PACKAGE_LOWER_SNAKE_CASE", path);
        self.expect(folder == package.replace('.', "/"), "PACKAGE_DIRECTORY_MATCH", path);
        self.expect(
            version.is_some_and(|v| v.parse::<u32>().is_ok_and(|v| v > 0)),
            "PACKAGE_VERSION_SUFFIX",
            path,
        );
        self.expect(is_snake(name.trim_end_matches(".proto")), "FILE_LOWER_SNAKE_CASE", path);
        self.expect(file.syntax() == "proto3", "SYNTAX_SPECIFIED", path);
        self.expect(file.public_dependency.is_empty(), "IMPORT_NO_PUBLIC", path);
        self.expect(file.weak_dependency.is_empty(), "IMPORT_NO_WEAK", path);
        for message in &file.message_type {
            self.message(message, package);
        }
        for an_enum in &file.enum_type {
            self.an_enum(an_enum, package);
        }
        for service in &file.service {
            let at = format!("{package}.{}", service.name());
            self.expect(is_pascal(service.name()), "SERVICE_PASCAL_CASE", at.as_str());
            self.expect(service.name().ends_with("Service"), "SERVICE_SUFFIX", at.as_str());
            for method in &service.method {
                let at = format!("{at}.{}", method.name());
                let standard = |of: &str, end: &str| {
                    let names = [method.name().to_owned(), format!("{}{}", service.name(), method.name())];
                    names.iter().any(|name| of == format!(".{package}.{name}{end}"))
                };
                self.expect(is_pascal(method.name()), "RPC_PASCAL_CASE", at.as_str());
                let request = standard(method.input_type(), "Request");
                self.expect(request, "RPC_REQUEST_STANDARD_NAME", at.as_str());
                let response = standard(method.output_type(), "Response");
                self.expect(response, "RPC_RESPONSE_STANDARD_NAME", at.as_str());
                for message in [method.input_type(), method.output_type()] {
                    let first = self.used.insert(message.to_owned());
                    self.expect(first, "RPC_REQUEST_RESPONSE_UNIQUE", at.as_str());
                }
            }
        }
    }

    fn message(&mut self, message: &DescriptorProto, within: &str) {
        let at = format!("{within}.{}", message.name());
        self.expect(is_pascal(message.name()), "MESSAGE_PASCAL_CASE", at.as_str());
        for field in &message.field {
            self.expect(is_snake(field.name()), "FIELD_LOWER_SNAKE_CASE", format!("{at}.{}", field.name()));
        }
        // The compiler generates a oneof with an internal name for an optional field.
        let made = |n: usize| {
            message.field.iter().any(|f| f.proto3_optional() && f.oneof_index == i32::try_from(n).ok())
        };
        for (_, oneof) in message.oneof_decl.iter().enumerate().filter(|(n, _)| !made(*n)) {
            self.expect(is_snake(oneof.name()), "ONEOF_LOWER_SNAKE_CASE", format!("{at}.{}", oneof.name()));
        }
        for nested in &message.nested_type {
            self.message(nested, &at);
        }
        for an_enum in &message.enum_type {
            self.an_enum(an_enum, &at);
        }
    }

    fn an_enum(&mut self, an_enum: &EnumDescriptorProto, within: &str) {
        let at = format!("{within}.{}", an_enum.name());
        self.expect(is_pascal(an_enum.name()), "ENUM_PASCAL_CASE", at.as_str());
        let alias = an_enum.options.as_ref().is_some_and(|options| options.allow_alias());
        self.expect(!alias, "ENUM_NO_ALLOW_ALIAS", at.as_str());
        let prefix = format!("{}_", snake(an_enum.name()).to_uppercase());
        for (n, value) in an_enum.value.iter().enumerate() {
            let (name, at) = (value.name(), format!("{at}.{}", value.name()));
            self.expect(name == name.to_uppercase(), "ENUM_VALUE_UPPER_SNAKE_CASE", at.as_str());
            self.expect(is_snake(&name.to_lowercase()), "ENUM_VALUE_UPPER_SNAKE_CASE", at.as_str());
            self.expect(name.starts_with(&prefix), "ENUM_VALUE_PREFIX", at.as_str());
            self.expect((value.number() == 0) == (n == 0), "ENUM_FIRST_VALUE_ZERO", at.as_str());
            let unspecified = name.ends_with("_UNSPECIFIED");
            self.expect(value.number() != 0 || unspecified, "ENUM_ZERO_VALUE_SUFFIX", at.as_str());
        }
    }
}

#[test]
fn protos_follow_the_rules_except_named_ones() {
    let mut lint = Lint::default();
    let files = files();
    let ours: Vec<_> = files.iter().filter(|file| file.name() != "logspec.proto").collect();
    assert_eq!(ours.len(), 4, "log, follow, admin, peer");
    ours.into_iter().for_each(|file| lint.file(file));
    let excused: BTreeSet<(&str, String)> =
        EXCEPTIONS.iter().map(|(rule, at, _)| (*rule, (*at).to_owned())).collect();
    assert_eq!(lint.broken, excused, "left: violations; right: accepted ones");
}

/// Violations that a lint with too few checks would miss.
#[test]
fn broken_rules_are_found() {
    let mut lint = Lint::default();
    let mut file = files().into_iter().find(|file| file.name() == "chiplog/v1/admin.proto").unwrap();
    file.package = Some("chiplog".into());
    file.service[0].method[0].name = Some("init".into());
    file.message_type[0].name = Some("HTTPRequest".into());
    file.message_type[1].field[0].name = Some("logId".into());
    file.enum_type[0].value[0].name = Some("NONE".into());
    lint.file(&file);
    let rules: BTreeSet<&str> = lint.broken.iter().map(|(rule, _)| *rule).collect();
    for rule in [
        "PACKAGE_DIRECTORY_MATCH",
        "PACKAGE_VERSION_SUFFIX",
        "RPC_PASCAL_CASE",
        "RPC_REQUEST_STANDARD_NAME",
        "MESSAGE_PASCAL_CASE",
        "FIELD_LOWER_SNAKE_CASE",
        "ENUM_VALUE_PREFIX",
        "ENUM_ZERO_VALUE_SUFFIX",
    ] {
        assert!(rules.contains(rule), "{rule}: {:?}", lint.broken);
    }
}
