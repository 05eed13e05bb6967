//! Prices: files of data, each with its date and its sources. Two are built in; a user gives others of the same format.
//!
//! Invariant: an unknown or missing field, a negative price and a store without a name are errors that say where.
//!
//! Must not know: servers, how anything is shown, what a price is used for.

use crate::common::failure::{Failure, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The prices that are used unless others are given.
pub(super) const TODAY: &str = "aws-2026-us-east-1";
/// The prices of the table in KIP-1176.
pub(super) const OF_THE_KIP: &str = "aws-2023-us-east-1";

/// The files that are built in, by name.
const BUILT_IN: [(&str, &str); 2] = [
    (TODAY, include_str!("../../../../prices/aws-2026-us-east-1.toml")),
    (OF_THE_KIP, include_str!("../../../../prices/aws-2023-us-east-1.toml")),
];

/// A file of prices, in US dollars. A month is one of 30 days.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prices {
    pub(super) name: String,
    /// The day on which these prices held, as `2026-11-26`.
    pub(super) date: String,
    /// The bytes of a GB on the bill.
    pub(super) gb_bytes: u64,
    pub(super) transfer: Transfer,
    pub(super) disk: Disk,
    /// The object stores. The first one is used unless another one is named.
    pub(super) store: Vec<Store>,
}

/// Transfer between two zones of a region.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Transfer {
    /// The sender's price.
    pub(super) out_per_gb: f64,
    /// The receiver's price.
    pub(super) in_per_gb: f64,
    pub(super) source: String,
    #[serde(default)]
    pub(super) checked: String,
}

/// A disk of a server.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Disk {
    pub(super) name: String,
    pub(super) gb_month: f64,
    pub(super) source: String,
    #[serde(default)]
    pub(super) checked: String,
}

/// An object store.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Store {
    pub(super) name: String,
    /// The zones that hold each object.
    pub(super) zones: u32,
    pub(super) put_per_1000: f64,
    pub(super) get_per_1000: f64,
    pub(super) storage_gb_month: f64,
    /// For the bytes of a PUT beyond `free_request_bytes`.
    #[serde(default)]
    pub(super) upload_per_gb: f64,
    /// For the bytes of a GET beyond `free_request_bytes`.
    #[serde(default)]
    pub(super) retrieval_per_gb: f64,
    #[serde(default)]
    pub(super) free_request_bytes: u64,
    pub(super) source: String,
    #[serde(default)]
    pub(super) checked: String,
}

impl Transfer {
    /// The price of moving a GB from one zone to another: the sender's and the receiver's.
    pub(super) fn per_gb(&self) -> f64 {
        self.out_per_gb + self.in_per_gb
    }
}

impl Prices {
    /// The prices of this name, or of the file of this path.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such file, or it is not a file of prices. `Io`: it cannot be read.
    pub(super) fn read(name_or_path: &str) -> Result<Self> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(name, text);
        }
        let path = Path::new(name_or_path);
        let text = fs::read_to_string(path).map_err(|e| {
            let names = BUILT_IN.map(|(name, _)| name).join(", ");
            Failure::option_file("--prices", path, &e)
                .with_words(&format!("give a file of prices, or one of these names: {names}"))
        })?;
        Self::parse(name_or_path, &text)
    }

    /// `place` names the text in errors.
    pub(super) fn parse(place: &str, text: &str) -> Result<Self> {
        let prices: Self = toml::from_str(text).map_err(|e| {
            let line = e.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let at = line.map_or_else(|| place.to_owned(), |line| format!("{place}, line {line}"));
            let what = e.message().trim().replace('\n', " ");
            Failure::usage(format!(
                "--prices: {what}: {at}; correct that line, `chiplog cost --print-prices` shows a file with all fields"
            ))
        })?;
        prices
            .check()
            .map_err(|what| Failure::usage(format!("--prices: {what}: {place}; correct it there")))?;
        Ok(prices)
    }

    fn check(&self) -> Result<(), String> {
        let Self { transfer, disk, store: stores, .. } = self;
        let mut prices = vec![
            ("transfer.out_per_gb".to_owned(), transfer.out_per_gb),
            ("transfer.in_per_gb".to_owned(), transfer.in_per_gb),
            ("disk.gb_month".to_owned(), disk.gb_month),
        ];
        let mut names = BTreeSet::new();
        for store in stores {
            let name = &store.name;
            if name.is_empty() || !names.insert(name) {
                return Err(format!("store.name is {name:?}, and each store needs a name of its own"));
            }
            if store.zones == 0 {
                return Err(format!("zones of the store {name} is 0, and the lowest number is 1"));
            }
            prices.extend([
                (format!("put_per_1000 of the store {name}"), store.put_per_1000),
                (format!("get_per_1000 of the store {name}"), store.get_per_1000),
                (format!("storage_gb_month of the store {name}"), store.storage_gb_month),
                (format!("upload_per_gb of the store {name}"), store.upload_per_gb),
                (format!("retrieval_per_gb of the store {name}"), store.retrieval_per_gb),
            ]);
        }
        if let Some((field, price)) = prices.iter().find(|(_, price)| !(price.is_finite() && *price >= 0.0)) {
            return Err(format!("{field} is {price}, which is no price"));
        }
        if self.gb_bytes == 0 {
            return Err("gb_bytes is 0; it is 1000000000 or 1073741824".into());
        }
        if stores.is_empty() {
            return Err("there is no [[store]], and one is needed".into());
        }
        Ok(())
    }

    /// The store of this name; without a name the first one.
    ///
    /// # Errors
    /// `InvalidArgument`: there is none of this name. `option` gave it.
    pub(super) fn store(&self, option: &str, name: Option<&str>) -> Result<&Store> {
        let found = match name {
            None => self.store.first(),
            Some(name) => self.store.iter().find(|store| store.name == name),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = self.store.iter().map(|store| store.name.as_str()).collect();
            Failure::usage(format!(
                "{option}: the prices {} have no store {:?}: give one of {}",
                self.name,
                name.unwrap_or_default(),
                names.join(", ")
            ))
        })
    }
}

/// The text of a file that is built in, for a user to begin with.
pub(super) fn text_of_today() -> &'static str {
    BUILT_IN[0].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_files_are_named_as_they_say_and_have_sources() {
        for (name, _) in BUILT_IN {
            let prices = Prices::read(name).unwrap();
            assert_eq!(prices.name, name);
            assert!(prices.date.parse::<jiff::civil::Date>().is_ok(), "{}", prices.date);
            let of_stores = prices.store.iter().map(|s| (&s.source, &s.checked));
            let Prices { transfer, disk, .. } = &prices;
            let of_others = [(&transfer.source, &transfer.checked), (&disk.source, &disk.checked)];
            for (source, checked) in of_stores.chain(of_others) {
                assert!(source.starts_with("https://") && !checked.is_empty(), "{name}: {source}");
            }
            assert!((prices.transfer.per_gb() - 0.02).abs() < 1e-12);
        }
    }

    #[test]
    fn mistakes_in_a_file_are_reported_with_what_where_and_what_to_do() {
        let good = text_of_today();
        for (from, to, words) in [
            (
                "[disk]",
                "[disk]\ncolour = 1",
                &["unknown field `colour`", "f, line 15", "correct that line"][..],
            ),
            ("gb_month = 0.08", "", &["missing field `gb_month`", "f, line"]),
            ("out_per_gb = 0.01", "out_per_gb = \"x\"", &["invalid type", "f, line 9"]),
            ("out_per_gb = 0.01", "out_per_gb = -1", &["transfer.out_per_gb is -1, which is no price", "f;"]),
            (
                "get_per_1000 = 0.0004",
                "get_per_1000 = nan",
                &["get_per_1000 of the store s3-standard is NaN"],
            ),
            ("name = \"s3-express\"", "name = \"s3-standard\"", &["a name of its own"]),
            ("zones = 3", "zones = 0", &["zones of the store s3-standard is 0"]),
            ("gb_bytes = 1_073_741_824", "gb_bytes = 0", &["gb_bytes is 0"]),
            ("[disk]", "[disk", &["f, line 14"]),
        ] {
            assert!(good.contains(from), "{from}");
            let failure = Prices::parse("f", &good.replacen(from, to, 1)).unwrap_err();
            assert_eq!(failure.exit(), crate::common::exit::Exit::Usage);
            for word in words {
                assert!(failure.to_string().contains(word), "{word}: {failure}");
            }
        }
        let none = Prices::read("/nowhere/prices.toml").unwrap_err();
        assert!(
            none.to_string().contains("give a file of prices, or one of these names: aws-2026"),
            "{none}"
        );
        let store = Prices::read(TODAY).unwrap().store("--store", Some("gcs")).unwrap_err().to_string();
        assert!(
            store.contains("--store: ") && store.contains("give one of s3-standard, s3-express"),
            "{store}"
        );
    }
}
