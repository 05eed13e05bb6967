//! The README contains the client's example unchanged, and the example says what it waits for.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

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

/// It was silent for 30 s when no server ran. Without the built example, as after `cargo test --test protocol`, there is nothing to run.
#[test]
fn example_says_what_it_waits_for() {
    let deps = std::env::current_exe().unwrap();
    let example = deps.ancestors().nth(2).unwrap().join("examples/client");
    let started = Command::new(example).arg("127.0.0.1:9").stderr(Stdio::piped()).spawn();
    let Ok(mut child) = started else { return };
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        said.contains("not connected yet to any of 127.0.0.1:9") && said.contains("up to 30 s"),
        "{said}"
    );
}
