//! The manifest, `parity.toml`, and the Rust sources, as the tests of both read them.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(unreachable_pub, reason = "as above")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The files that list what the crates export.
pub const DOORS: &[&str] = &[
    "core/src/lib.rs",
    "core/src/backup.rs",
    "core/src/cluster/mod.rs",
    "core/src/follower/mod.rs",
    "core/src/metrics.rs",
    "net/src/client/mod.rs",
    "net/src/client/blocking.rs",
    "net/src/follower/mod.rs",
];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

pub fn source(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

pub fn manifest() -> toml::Table {
    source("ffi/parity.toml").parse().unwrap()
}

/// The entries of one kind.
pub fn entries(manifest: &toml::Table, kind: &str) -> Vec<toml::Table> {
    let list = manifest.get(kind).and_then(|list| list.as_array()).unwrap();
    list.iter().map(|entry| entry.as_table().unwrap().clone()).collect()
}

/// Reads one name or several.
pub fn names(entry: &toml::Table, key: &str) -> Vec<String> {
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    match entry.get(key) {
        None => Vec::new(),
        Some(toml::Value::Array(list)) => list.iter().map(text).collect(),
        Some(one) => vec![text(one)],
    }
}

pub fn text(entry: &toml::Table, key: &str) -> String {
    names(entry, key).concat()
}

/// Returns the types that a file exports: those it declares and those it re-exports from its modules.
pub fn exported(file: &str) -> BTreeSet<String> {
    let mut found = Vec::new();
    for item in syn::parse_file(&source(file)).unwrap().items {
        let (vis, name) = match &item {
            syn::Item::Struct(item) => (&item.vis, &item.ident),
            syn::Item::Enum(item) => (&item.vis, &item.ident),
            syn::Item::Trait(item) => (&item.vis, &item.ident),
            syn::Item::Macro(item) => {
                found.extend(options(item).map(|item| item.ident.to_string()));
                continue;
            }
            syn::Item::Type(item) => (&item.vis, &item.ident),
            syn::Item::Use(item) => {
                // Items behind a feature are for tests of these crates.
                if is_public(&item.vis) && item.attrs.is_empty() {
                    leaves(&item.tree, &mut found);
                }
                continue;
            }
            _ => continue,
        };
        if is_public(vis) {
            found.push(name.to_string());
        }
    }
    // Constants are skipped.
    found.into_iter().filter(|name| name.chars().any(char::is_lowercase)).collect()
}

/// The struct that the macro `options!` declares.
pub fn options(item: &syn::ItemMacro) -> Option<syn::ItemStruct> {
    item.mac.path.is_ident("options").then(|| syn::parse2(item.mac.tokens.clone()).unwrap())
}

pub fn is_public(vis: &syn::Visibility) -> bool {
    matches!(vis, syn::Visibility::Public(_))
}

fn leaves(tree: &syn::UseTree, found: &mut Vec<String>) {
    match tree {
        syn::UseTree::Path(path) => leaves(&path.tree, found),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, found)),
        syn::UseTree::Name(name) => found.push(name.ident.to_string()),
        syn::UseTree::Rename(name) => found.push(name.rename.to_string()),
        syn::UseTree::Glob(_) => panic!("the crates export by name"),
    }
}
