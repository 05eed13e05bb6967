//! The README shows the client's example as it is.

use std::path::Path;

#[test]
fn the_readme_shows_the_very_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = std::fs::read_to_string(root.join("examples/client.rs")).unwrap();
    let body = program.split_once("\n\n").unwrap().1; // without the file's own comment
    let readme = std::fs::read_to_string(root.join("../README.md")).unwrap();
    assert!(
        readme.contains(&format!("```rust\n{body}```")),
        "README.md does not show net/examples/client.rs"
    );
}
