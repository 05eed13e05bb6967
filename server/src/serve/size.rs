//! Size: a number of bytes in a server's configuration.

use crate::common::failure::Failure;
use crate::common::format::parse_bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes that fits 32 bits. `key`: where it is from.
pub(super) fn narrow(key: &str, size: Size) -> Result<u32, Failure> {
    u32::try_from(size.0)
        .map_err(|_| Failure::usage(format!("{key} is {}; it has to be below 4 GiB", size.0)))
}

/// A number of bytes, written as a number or as text such as "64MiB".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number of bytes, or text such as \"64MiB\"")]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(n) => Ok(Self(n)),
            Written::Text(text) => parse_bytes(&text).map(Self).map_err(serde::de::Error::custom),
        }
    }
}
