//! The manifest's values against the sources: each public field of a struct that Rust returns or accepts exists in
//! C and in Python, under its own name or the manifest's, or has a reason. There are no other fields.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/manifest.rs"]
mod manifest;

use manifest::{DOORS, entries, exported, is_public, manifest, names, options, root, source, text};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The folders of structs with public fields, searched recursively.
const SOURCES: &[&str] = &["core/src", "net/src/client", "net/src/follower"];
/// Folders that are not public.
const HIDDEN: &[&str] = &["testing"];
/// Python's values.
const PYTHON: &[&str] =
    &["python/lib/chiplog/_values.py", "python/lib/chiplog/_options.py", "python/lib/chiplog/_chiplog.pyi"];

type Fields = BTreeSet<String>;

/// Returns the structs below a folder that have public fields, with those fields.
fn structs(folder: &str) -> BTreeMap<String, Fields> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !HIDDEN.contains(&name) {
            found.extend(structs(&format!("{folder}/{name}")));
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        for (name, fields) in structs_in(&fs::read_to_string(&path).unwrap()) {
            let twice = found.insert(name.clone(), fields).is_some();
            assert!(!twice, "{folder} has two structs {name}: rename one");
        }
    }
    found
}

fn structs_in(source: &str) -> Vec<(String, Fields)> {
    let mut found = Vec::new();
    for item in syn::parse_file(source).unwrap().items {
        let item = match item {
            syn::Item::Struct(item) => Some(item),
            syn::Item::Macro(item) => options(&item),
            _ => None,
        };
        let Some(item) = item else { continue };
        let public = item.fields.iter().filter(|field| is_public(&field.vis));
        let fields: Fields = public.filter_map(|field| Some(field.ident.as_ref()?.to_string())).collect();
        if is_public(&item.vis) && !fields.is_empty() {
            found.push((item.ident.to_string(), fields));
        }
    }
    found
}

/// The classes of a Python file, with their fields and properties.
fn classes_in(source: &str) -> Vec<(String, Fields)> {
    let mut found: Vec<(String, Fields)> = Vec::new();
    let mut is_property = false;
    for line in source.lines() {
        if let Some(rest) = line.strip_prefix("class ") {
            found.push((rest.split(['(', ':']).next().unwrap().to_owned(), Fields::new()));
            continue;
        }
        if !line.is_empty() && !line.starts_with([' ', '@', ')']) {
            found.push((String::new(), Fields::new())); // no longer in a class
        }
        let Some((_, fields)) = found.last_mut() else { continue };
        let Some(inside) = line.strip_prefix("    ") else { continue };
        let name = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_')?;
            (end > 0).then(|| text[..end].to_owned())
        };
        if inside == "@property" {
            is_property = true;
            continue;
        }
        let field = match inside.strip_prefix("def ") {
            Some(method) if is_property => name(method),
            Some(_) => None,
            None => name(inside).filter(|name| inside[name.len()..].starts_with(": ")),
        };
        is_property = false;
        fields.extend(field);
    }
    found.retain(|(name, _)| !name.is_empty());
    found
}

fn table(entry: &toml::Table, key: &str) -> toml::Table {
    entry.get(key).map(|table| table.as_table().unwrap().clone()).unwrap_or_default()
}

/// Compares one value's fields with those of one language. Returns the differences.
fn compare(entry: &toml::Table, language: &str, rust: &Fields, there: &Fields) -> Vec<String> {
    let what = format!("{} in {language}", text(entry, "rust"));
    let named = table(entry, &format!("{language}_named"));
    let without = table(entry, &format!("{language}_without"));
    let mut wanted: Fields = names(entry, &format!("{language}_beside")).into_iter().collect();
    let mut wrong = Vec::new();
    for field in named.keys().chain(without.keys()).filter(|field| !rust.contains(*field)) {
        wrong.push(format!("{what}: Rust has no field {field}"));
    }
    for (field, reason) in &without {
        if reason.as_str().unwrap().len() < 10 || named.contains_key(field) {
            wrong.push(format!("{what}: {field} needs a reason of at least 10 characters, and no name"));
        }
    }
    for field in rust.iter().filter(|field| !without.contains_key(*field)) {
        let own = || vec![field.clone()];
        let here = named.get(field).map_or_else(own, |_| names(&named, field));
        wanted.extend(here);
    }
    wrong.extend(wanted.difference(there).map(|field| format!("{what}: there is no {field}")));
    wrong.extend(there.difference(&wanted).map(|field| format!("{what}: {field} is not in the manifest")));
    wrong
}

#[test]
fn the_manifest_lists_each_public_struct_with_all_fields() {
    let doors: BTreeSet<String> = DOORS.iter().flat_map(|file| exported(file)).collect();
    let mut rust: BTreeMap<String, Fields> = SOURCES.iter().flat_map(|folder| structs(folder)).collect();
    rust.retain(|name, _| doors.contains(name));
    let c = structs("ffi/src");
    let python: BTreeMap<String, Fields> = PYTHON.iter().flat_map(|file| classes_in(&source(file))).collect();

    let mut wrong = Vec::new();
    let mut listed = BTreeSet::new();
    for entry in entries(&manifest(), "value") {
        let name = text(&entry, "rust");
        assert!(listed.insert(name.clone()), "{name} is listed twice");
        assert!(text(&entry, "about").len() > 5, "{name}: about");
        let Some(fields) = rust.get(&name) else {
            wrong
                .push(format!("{name} is in ffi/parity.toml, but is not a public struct with public fields"));
            continue;
        };
        for (language, known) in [("c", &c), ("python", &python)] {
            let (there, reason) = (text(&entry, language), text(&entry, &format!("{language}_absent")));
            assert!(
                there.is_empty() != reason.is_empty(),
                "{name}: set exactly one of {language} and {language}_absent"
            );
            match known.get(&there) {
                Some(there) => wrong.extend(compare(&entry, language, fields, there)),
                None if there.is_empty() => assert!(reason.len() > 10, "{name}: {language}_absent"),
                None => wrong.push(format!("{name}: there is no {there} in {language}")),
            }
        }
    }
    wrong.extend(rust.keys().filter(|name| !listed.contains(*name)).map(|name| format!("{name} is missing")));
    assert!(wrong.is_empty(), "ffi/parity.toml, values:\n{}", wrong.join("\n"));
}

/// Tests the checks above.
#[test]
fn the_struct_readers_find_fields() {
    let found = structs_in("pub struct A { pub a: u8, b: u8 } struct B { pub c: u8 } pub struct C(pub u8);");
    assert_eq!(found, [("A".to_owned(), Fields::from(["a".to_owned()]))]);
    let source = "x: int\n\n@final\nclass A:\n    \"\"\"Text.\n    of: this\"\"\"\n\n    a: int\n    b_2: str = \"c: d\"\n\n    \
                  @property\n    def e(self) -> int: ...\n    def f(self) -> int: ...\n\n\ndef g() -> None:\n    h: int = 1\n\
                  class B(A):\n    i: int\n";
    let told = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Fields>();
    let [(a, of_a), (b, of_b)] = &classes_in(source)[..] else { panic!("two classes") };
    assert_eq!((a.as_str(), b.as_str()), ("A", "B"));
    assert_eq!((of_a, of_b), (&told(&["a", "b_2", "e", "of"]), &told(&["i"])));

    let entry: toml::Table = "rust = \"A\"\nc_beside = [\"size\"]\n[c_named]\na = \"a_ms\"\n[c_without]\n\
                              b = \"because of this\"\n"
        .parse()
        .unwrap();
    let rust = told(&["a", "b", "c"]);
    assert!(compare(&entry, "c", &rust, &told(&["a_ms", "c", "size"])).is_empty());
    assert_eq!(compare(&entry, "c", &rust, &told(&["a_ms", "size"])), ["A in c: there is no c"]);
    let more = compare(&entry, "c", &rust, &told(&["a_ms", "c", "d", "size"]));
    assert_eq!(more, ["A in c: d is not in the manifest"]);
    assert_eq!(compare(&entry, "c", &told(&["a", "c"]), &told(&["a_ms", "c", "size"])).len(), 1);
}
