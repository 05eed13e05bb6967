//! Generated Go code in the repository matches the current protos.

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};
use std::path::Path;

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// The bytes of a Go string literal, without its quotes.
fn unescaped(literal: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = literal.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next().unwrap() {
            b'a' => 7,
            b'b' => 8,
            b't' => 9,
            b'n' => 10,
            b'v' => 11,
            b'f' => 12,
            b'r' => 13,
            b'x' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            quoted @ (b'"' | b'\\' | b'\'') => quoted,
            other => panic!("\\{} is not supported by this test", other as char),
        });
    }
    bytes
}

/// The descriptor in generated code.
fn embedded(code: &str) -> FileDescriptorProto {
    let (_, begin) = code.split_once("_rawDesc = ").unwrap();
    let mut bytes = Vec::new();
    for line in begin.lines() {
        let (first, last) = (line.find('"').unwrap(), line.rfind('"').unwrap());
        bytes.extend(unescaped(&line[first + 1..last]));
        if !line.ends_with('+') {
            break;
        }
    }
    FileDescriptorProto::decode(bytes.as_slice()).unwrap()
}

/// The file without comments, generator options, and derived names.
fn bare(mut file: FileDescriptorProto) -> FileDescriptorProto {
    fn strip(message: &mut DescriptorProto) {
        message.field.iter_mut().for_each(|field| field.json_name = None);
        message.nested_type.iter_mut().for_each(strip);
    }
    (file.source_code_info, file.options) = (None, None);
    file.message_type.iter_mut().for_each(strip);
    file
}

#[test]
fn go_code_matches_the_protos() {
    let files = FileDescriptorSet::decode(chiplog_net::wire::proto::DESCRIPTORS).unwrap().file;
    for (code, proto) in [
        ("examples/view-go/chiplogv1/log.pb.go", "chiplog/v1/log.proto"),
        ("tools/clients/go/logspec/logspec.pb.go", "logspec.proto"),
    ] {
        let ours = bare(files.iter().find(|file| file.name() == proto).unwrap().clone());
        let theirs = bare(embedded(&text(code)));
        for (ours, theirs) in ours.message_type.iter().zip(&theirs.message_type) {
            assert_eq!(theirs, ours, "left: {code}; right: {proto}");
        }
        assert_eq!(theirs, ours, "left: {code}; right: {proto}");
    }
    let calls = text("examples/view-go/chiplogv1/log_grpc.pb.go");
    let log = files.iter().find(|file| file.name() == "chiplog/v1/log.proto").unwrap();
    for method in &log.service[0].method {
        assert!(calls.contains(&format!("\"/chiplog.v1.Log/{}\"", method.name())), "{}", method.name());
    }
}
