//! The lists of objects or sealed segments that a server sends, read and checked.
//!
//! The small objects `root` and `begin/N`, from which a reader of a store learns which log this is and what is discarded, are made here
//! of the list: their contents follow from it.
//!
//! Must not know: the network, raft, segments.

use chiplog::LogId;
use chiplog::internal::{begin_name, begin_text, root_name, root_text};
use serde_json::Value;
use std::collections::BTreeMap;

/// The things that are read through a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The objects of logs in its object store.
    Objects,
    /// The files of sealed segments of logs without one.
    Segments,
}

impl Kind {
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Objects => "/v1/objects",
            Self::Segments => "/v1/segments",
        }
    }

    /// The name of the list of them.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Objects => "objects",
            Self::Segments => "segments",
        }
    }

    fn name_of(self, log: &str, number: u64) -> String {
        match self {
            Self::Objects => format!("{log}/o/{number:020}"),
            Self::Segments => format!("{log}/{number:020}.seg"),
        }
    }
}

/// No object is larger: it is one segment file.
pub(super) const OBJECT_BYTES_MAX: u64 = u32::MAX as u64;

/// The objects or segments of a log, as a server lists them.
#[derive(Debug)]
pub(super) struct Listed {
    /// Its name at the server.
    pub(super) name: String,
    pub(super) log_id: LogId,
    /// The number of the oldest object. The records of all before it are discarded.
    pub(super) first: u64,
    /// Names and sizes.
    pub(super) objects: BTreeMap<String, u64>,
    /// Why the server serves nothing of it, if so: it is a branch.
    pub(super) not_served: Option<String>,
}

/// The small objects of a log that is served: their names and contents (docs/format.md, section 18).
pub(super) fn made_of(log: &Listed) -> impl Iterator<Item = (String, String)> + use<> {
    let Listed { log_id, first, objects, not_served, .. } = log;
    let (log, has_objects) = (*log_id, !objects.is_empty() && not_served.is_none());
    let root = (root_name(log), root_text(log));
    let begin = Some((begin_name(log, *first), begin_text(log, *first))).filter(|_| *first > 0);
    Some(root).into_iter().chain(begin).filter(move |_| has_objects)
}

/// The logs in a list. None: it is not a list of a chiplog server.
pub(super) fn parse(kind: Kind, text: &[u8]) -> Option<Vec<Listed>> {
    let list: Value = serde_json::from_slice(text).ok()?;
    let log = |log: &Value| {
        let log_id = log.get("log_id")?.as_str().filter(|id| is_log_id(id))?.to_owned();
        let mut first = None;
        let mut objects = BTreeMap::new();
        for object in log.get(kind.name())?.as_array()? {
            let number = object.get("number")?.as_u64()?;
            first = first.or(Some(number));
            let name = object.get("name")?.as_str()?;
            if name != kind.name_of(&log_id, number) {
                return None;
            }
            let bytes = object.get("bytes")?.as_u64().filter(|bytes| *bytes <= OBJECT_BYTES_MAX)?;
            objects.insert(name.to_owned(), bytes);
        }
        let log_id = LogId(u128::from_str_radix(&log_id, 16).ok()?);
        let not_served = match log.get("not_served") {
            None | Some(Value::Null) => None,
            Some(why) => Some(why.as_str()?.to_owned()),
        };
        let name = log.get("log")?.as_str()?.to_owned();
        Some(Listed { name, log_id, first: first.unwrap_or(0), objects, not_served })
    };
    list.get("logs")?.as_array()?.iter().map(log).collect()
}

fn is_log_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_others_are_refused() {
        let parse = |text: &[u8]| parse(Kind::Objects, text);
        let id = "0000000000000000000000000000000a";
        let object = |number: u64, log: &str| {
            format!("{{\"name\":\"{log}/o/{number:020}\",\"number\":{number},\"bytes\":5}}")
        };
        let list = |object: &str| {
            format!("{{\"logs\":[{{\"log\":\"default\",\"log_id\":\"{id}\",\"objects\":[{object}]}}]}}")
        };
        let logs = parse(list(&object(7, id)).as_bytes()).unwrap();
        let made: Vec<_> = logs.iter().flat_map(made_of).collect();
        assert_eq!(logs[0].name, "default");
        assert_eq!(made[0].0, format!("{id}/root"));
        assert_eq!(made[1].0, format!("{id}/begin/00000000000000000007"));
        assert_eq!(made[1].1, format!("chiplog objects\nlog {id}\nbegin 7\n"));
        let logs = parse(list("").as_bytes()).unwrap();
        assert_eq!(logs.iter().flat_map(made_of).count(), 0, "it has no objects");
        let not_served =
            |why: &str| list(&object(7, id)).replace("]}]}", &format!("],\"not_served\":{why}}}]}}"));
        let logs = parse(not_served("\"a branch\"").as_bytes()).unwrap();
        assert_eq!((logs[0].not_served.as_deref(), logs[0].objects.len()), (Some("a branch"), 1));
        assert_eq!(logs.iter().flat_map(made_of).count(), 0, "it is not served");
        assert!(parse(not_served("null").as_bytes()).unwrap()[0].not_served.is_none());
        let large = object(7, id).replace(":5}", ":4611686018427387904}");
        let no_id = list("").replace(id, "../..");
        let upper = list("").replace(id, &id.to_uppercase());
        for text in [
            "",
            "{}",
            "[]",
            "{\"logs\":[{}]}",
            &list("{}"),
            &list(&object(7, "other")),
            &list(&large),
            &no_id,
            &list("").replace("\"log\":", "\"other\":"),
            &upper,
            &not_served("1"),
        ] {
            assert!(parse(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn lists_of_segments_have_names_of_files() {
        let id = "0000000000000000000000000000000a";
        let list = |name: &str| {
            let segment = format!("{{\"name\":\"{id}/{name}\",\"number\":7,\"bytes\":65536}}");
            let log = format!("\"log\":\"default\",\"log_id\":\"{id}\"");
            format!("{{\"logs\":[{{{log},\"segments\":[{segment}]}}]}}")
        };
        let logs = parse(Kind::Segments, list("00000000000000000007.seg").as_bytes()).unwrap();
        let name = format!("{id}/00000000000000000007.seg");
        assert_eq!(logs[0].objects.iter().next(), Some((&name, &65536)));
        assert!(parse(Kind::Objects, list("00000000000000000007.seg").as_bytes()).is_none());
        for name in
            ["00000000000000000008.seg", "7.seg", "o/00000000000000000007", "../00000000000000000007.seg"]
        {
            assert!(parse(Kind::Segments, list(name).as_bytes()).is_none(), "{name}");
        }
    }
}
