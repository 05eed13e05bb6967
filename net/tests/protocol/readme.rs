//! The README contains the client's example unchanged.

use std::path::Path;

#[test]
fn readme_contains_the_example_unchanged() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = std::fs::read_to_string(root.join("examples/client.rs")).unwrap();
    let body = program.split_once("\n\n").unwrap().1; // without the file's own comment
    let readme = std::fs::read_to_string(root.join("../README.md")).unwrap();
    assert!(
        readme.contains(&format!("```rust\n{body}```")),
        "README.md does not show net/examples/client.rs"
    );
}
