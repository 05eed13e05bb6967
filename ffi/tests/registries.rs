//! The texts that registries show of the crates and the Python package exist, fit the registries' limits, and are
//! readable without the source tree.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 5] = ["core", "net", "tier", "server", "ffi"];

/// The categories of crates.io used here. Check there before you add another one.
const CATEGORIES: [&str; 8] = [
    "command-line-utilities",
    "concurrency",
    "data-structures",
    "database",
    "database-implementations",
    "external-ffi-bindings",
    "filesystem",
    "network-programming",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn manifest(folder: &str) -> toml::Table {
    fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap().parse().unwrap()
}

fn texts(value: &toml::Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// A link to a file of the source tree is broken on a registry's page.
fn check_readme(path: &Path) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.starts_with("# ") && text.len() > 300, "{}", path.display());
    for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
        assert!(link.starts_with("https://") || link.starts_with('#'), "{}: {link}", path.display());
    }
}

#[test]
fn the_crates_have_what_crates_io_shows() {
    let workspace = manifest(".");
    let shared = workspace["workspace"]["package"].as_table().unwrap();
    assert!(!texts(&shared["authors"]).is_empty() && shared["license"].as_str() == Some("Apache-2.0"));
    for folder in CRATES {
        let manifest = manifest(folder);
        let package = manifest["package"].as_table().unwrap();
        assert!(!package.contains_key("publish"), "{folder} is not published: remove it from this list");
        for inherited in ["license", "authors", "version", "rust-version"] {
            assert_eq!(package[inherited]["workspace"].as_bool(), Some(true), "{folder}: {inherited}");
        }
        let description = &package["description"];
        assert!(description.is_table() || description.as_str().unwrap().len() > 30, "{folder}");
        let (keywords, categories) = (texts(&package["keywords"]), texts(&package["categories"]));
        assert!((1..=5).contains(&keywords.len()) && keywords.iter().all(|k| k.len() <= 20), "{folder}");
        assert!((1..=5).contains(&categories.len()), "{folder}");
        assert!(categories.iter().all(|c| CATEGORIES.contains(&c.as_str())), "{folder}: {categories:?}");
        check_readme(&root().join(folder).join(package["readme"].as_str().unwrap()));
    }
}

#[test]
fn the_other_crates_are_not_published() {
    let members = texts(&manifest(".")["workspace"]["members"]);
    for folder in members.iter().filter(|folder| !CRATES.contains(&folder.as_str())) {
        assert_eq!(manifest(folder)["package"]["publish"].as_bool(), Some(false), "{folder}");
    }
}

#[test]
fn the_package_has_what_pypi_shows() {
    let text = fs::read_to_string(root().join("python/pyproject.toml")).unwrap();
    let project = text.parse::<toml::Table>().unwrap();
    let project = project["project"].as_table().unwrap();
    assert_eq!(project["license"].as_str(), Some("Apache-2.0"));
    assert!(!project["authors"].as_array().unwrap().is_empty() && !texts(&project["keywords"]).is_empty());
    let classifiers = texts(&project["classifiers"]);
    // PyPI rejects these beside a licence expression.
    assert!(!classifiers.iter().any(|c| c.starts_with("License ::")), "{classifiers:?}");
    for wanted in ["Development Status ::", "Operating System :: POSIX :: Linux", "Typing :: Typed"] {
        assert!(classifiers.iter().any(|c| c.starts_with(wanted)), "{wanted}");
    }
    check_readme(&root().join("python").join(project["readme"].as_str().unwrap()));
}
