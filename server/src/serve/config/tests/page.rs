//! Checks `docs/configuration.md` against the code: every key with its default, its flag, its variable, and
//! its bounds.

use super::super::{Config, Over};
use crate::common::format::parse_bytes;
use serde_json::Value;
use std::collections::BTreeMap;

const PAGE: &str = include_str!("../../../../../docs/configuration.md");

struct Row {
    default: String,
    unit: String,
    bounds: String,
    flag: String,
    variable: String,
    what: String,
}

/// All rows, by key.
fn rows() -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for line in PAGE.lines().filter(|l| l.starts_with("| `")) {
        let cells: Vec<String> =
            line.trim_matches('|').split('|').map(|c| c.trim().trim_matches('`').to_owned()).collect();
        let [key, default, unit, bounds, flag, variable, what] = <[String; 7]>::try_from(cells).unwrap();
        let row = Row { default, unit, bounds, flag, variable, what };
        assert!(rows.insert(key.clone(), row).is_none(), "{key} is in the page twice");
    }
    rows
}

/// All keys with their defaults; null: none.
fn keys() -> BTreeMap<String, Value> {
    fn walk(prefix: &str, value: Value, keys: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(table) => {
                for (name, value) in table {
                    let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
                    walk(&key, value, keys);
                }
            }
            value => _ = keys.insert(prefix.to_owned(), value),
        }
    }
    let mut keys = BTreeMap::new();
    walk("", serde_json::to_value(Config::default().filled().unwrap()).unwrap(), &mut keys);
    keys
}

#[test]
fn page_lists_every_key_with_its_default() {
    let (rows, keys) = (rows(), keys());
    assert_eq!(rows.keys().collect::<Vec<_>>(), keys.keys().collect::<Vec<_>>(), "left: page, right: code");
    for (key, default) in keys {
        let row = &rows[&key];
        match default {
            Value::Null => assert_eq!(row.default, "none", "{key}"),
            Value::Number(n) => assert_eq!(parse_bytes(&row.default), Ok(n.as_u64().unwrap()), "{key}"),
            Value::String(text) if text.is_empty() => assert_eq!(row.default, "(empty)", "{key}"),
            Value::String(text) => assert_eq!(row.default, text, "{key}"),
            other => assert_eq!(row.default, other.to_string(), "{key}"),
        }
        let unit = key.rsplit(['_', '.']).find_map(|part| match part {
            "millis" => Some("ms"),
            "second" => Some("bytes/s"),
            "seconds" => Some("s"),
            "bytes" => Some("bytes"),
            _ => None,
        });
        assert_eq!(row.unit, unit.unwrap_or_default(), "{key}");
        assert!(!row.what.is_empty(), "{key}");
    }
}

#[test]
fn page_lists_the_flags_and_variables_of_serve() {
    let command = crate::commands::cli::command();
    let serve = command.get_subcommands().find(|c| c.get_name() == "serve").unwrap();
    for (key, row) in rows() {
        let long = key.replace(['.', '_'], "-");
        let argument = serve.get_arguments().find(|a| a.get_long() == Some(&long));
        let flag = argument.map_or(String::new(), |_| format!("--{long}"));
        let variable = argument.and_then(|a| a.get_env()).map_or("", |v| v.to_str().unwrap());
        assert_eq!((row.flag, row.variable.as_str()), (flag, variable), "{key}");
    }
}

/// Tries the bounds that the page gives as numbers: one less, one more, and the bounds themselves if no other
/// key matters.
#[test]
fn bounds_hold() {
    let load = |key: &str, value: u64| {
        let (key, value) = (key.to_owned(), value.to_string());
        Config::load(None, &[Over { by: format!("--set {key}={value}"), key, value }])
    };
    let mut checked = 0;
    for (key, row) in rows() {
        let Some((min, max)) = row.bounds.split_once(" to ") else { continue };
        let name = key.rsplit('.').next().unwrap().trim_end_matches("_millis");
        let refused = |value: u64| {
            let error = load(&key, value).expect_err(&format!("{key} = {value}")).to_string();
            assert!(error.contains(name), "{key} = {value}: {error}");
        };
        if let Ok(min) = parse_bytes(min).map_err(drop).and_then(|n| n.checked_sub(1).ok_or(())) {
            if key != "node" {
                refused(min); // the server checks `node`; `config check` works without one
            }
            checked += 1;
        }
        if let Ok(max) = parse_bytes(max) {
            refused(max + 1);
            checked += 1;
        }
        if let (true, Ok(min), Ok(max)) = (key.starts_with("limits."), parse_bytes(min), parse_bytes(max)) {
            for value in [min, max] {
                load(&key, value).unwrap_or_else(|e| panic!("{key} = {value}: {e}"));
            }
        }
    }
    assert!(checked > 30, "{checked}");
}
