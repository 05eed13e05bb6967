//! Whole numbers on the command line. A wrong one is refused with the values that are allowed.

use std::ops::RangeInclusive;

/// An option's parser of whole numbers. `what` names the value for the message: "a number of records".
pub(crate) fn whole_number<T: TryFrom<u64> + 'static>(
    what: &'static str,
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| allowed(what, &range))
    }
}

/// The message with the values that are allowed.
fn allowed(what: &str, range: &RangeInclusive<u64>) -> String {
    match (*range.start(), *range.end()) {
        (0, u64::MAX) => format!("give {what}, such as 10"),
        (least, u64::MAX) => format!("give {what}, {least} or more"),
        (least, most) => format!("give {what} from {least} to {most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_the_range_are_taken_and_others_refused() {
        let records = whole_number::<u64>("a number of records", 0..=u64::MAX);
        assert_eq!(records("18446744073709551615"), Ok(u64::MAX));
        for wrong in ["abc", "", "-1", "1.5", "18446744073709551616", "10k"] {
            assert_eq!(records(wrong).unwrap_err(), "give a number of records, such as 10", "{wrong}");
        }
        let index = whole_number::<u64>("an index", 1..=u64::MAX);
        assert_eq!((index("1"), index("0")), (Ok(1), Err("give an index, 1 or more".into())));
        let threads = whole_number::<u16>("a number of threads", 1..=512);
        assert_eq!(threads("512"), Ok(512));
        assert_eq!(threads("513").unwrap_err(), "give a number of threads from 1 to 512");
        // A range that the type cannot hold.
        assert_eq!(
            whole_number::<u16>("a port", 0..=70_000)("65536").unwrap_err(),
            "give a port from 0 to 70000"
        );
    }
}
