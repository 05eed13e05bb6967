//! How durable an acknowledged append is, in messages.

use crate::wire::proto::v1 as wire;
use chiplog::Durability;

#[cfg(feature = "server")]
pub(crate) fn to_wire(durability: Option<Durability>) -> wire::Durability {
    match durability {
        Some(Durability::Majority) => wire::Durability::Majority,
        Some(Durability::MajoritySlices) => wire::Durability::MajoritySlices,
        Some(Durability::Object) => wire::Durability::Object,
        _ => wire::Durability::Unspecified,
    }
}

/// `None`: the server does not tell, or tells what this version does not know.
pub(crate) fn from_wire(told: i32) -> Option<Durability> {
    match wire::Durability::try_from(told) {
        Ok(wire::Durability::Majority) => Some(Durability::Majority),
        Ok(wire::Durability::MajoritySlices) => Some(Durability::MajoritySlices),
        Ok(wire::Durability::Object) => Some(Durability::Object),
        Ok(wire::Durability::Unspecified) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_durability_is_absent() {
        assert_eq!((from_wire(0), from_wire(4), from_wire(-1)), (None, None, None));
    }

    #[cfg(feature = "server")]
    #[test]
    fn each_durability_comes_back() {
        for durability in [Durability::Majority, Durability::MajoritySlices, Durability::Object].map(Some) {
            assert_eq!(from_wire(to_wire(durability).into()), durability);
        }
        assert_eq!(from_wire(to_wire(None).into()), None);
    }
}
