//! The example does what the page says, and the page shows the example as it is.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

/// Run twice in one directory: the second run finds the logs and records of the first one.
#[test]
fn each_tenant_has_its_log_and_its_view_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let run = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_chiplog-example-tenants"));
        let output = program.arg("7").current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let told = |records: u64, each: u64| {
        format!(
            "7 logs in 2 groups, {records} records\n\
             the last tenant has {{\"lenses\": {each}, \"mirrors\": {each}, \"prisms\": {each}}}\n"
        )
    };
    assert_eq!(run(), told(21, 7));
    assert_eq!(run(), told(42, 14));
}

#[test]
fn the_page_shows_this_very_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(root.join("src/main.rs")).unwrap();
    let body = source.split_once("\n\n").unwrap().1; // without the file's own comment
    let page = std::fs::read_to_string(root.join("../../docs/embedding.md")).unwrap();
    assert!(page.contains(&format!("```rust\n{body}```")), "docs/embedding.md does not show src/main.rs");
}
