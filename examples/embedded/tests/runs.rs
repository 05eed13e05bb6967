//! The example does what the README says, and the README shows the example as it is.

use std::path::Path;
use std::process::Command;

/// Run twice in one directory: the second run finds the first one's record.
#[test]
fn the_example_appends_and_reads_back_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let run = || {
        let output =
            Command::new(env!("CARGO_BIN_EXE_chiplog-example-embedded")).current_dir(dir.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(), "record 1 is durable\n1: 3 lenses to Cambridge\n");
    assert_eq!(run(), "record 2 is durable\n1: 3 lenses to Cambridge\n2: 3 lenses to Cambridge\n");
}

#[test]
fn the_readme_shows_this_very_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = std::fs::read_to_string(root.join("src/main.rs")).unwrap();
    let body = program.split_once("\n\n").unwrap().1; // without the file's own comment
    let readme = std::fs::read_to_string(root.join("../../README.md")).unwrap();
    assert!(
        readme.contains(&format!("```rust\n{body}```")),
        "README.md does not show examples/embedded/src/main.rs"
    );
}
