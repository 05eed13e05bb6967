//! Range: which bytes of an object a request wants, by its headers (RFC 9110, sections 13 and 14).
//!
//! One range is answered as 206. Several are answered with the whole object, which the standard permits, and so is a range that is no
//! range, and one whose `If-Range` does not name the object's tag.
//!
//! Must not know: tokens, sockets.

use http::HeaderMap;
use http::header::{HeaderName, IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
use std::ops::Range;

/// The kind of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selected {
    /// 200: everything.
    Whole,
    /// 206: these bytes, at least one.
    Part(Range<u64>),
    /// 416: the object ends before the range begins.
    Beyond,
    /// 304: the client has it.
    NotModified,
    /// 412: the client wants another one.
    PreconditionFailed,
}

/// The answer to a request for an object with this tag and size. `is_get`: only such a request has ranges.
pub(super) fn select(headers: &HeaderMap, is_get: bool, tag: &str, bytes: u64) -> Selected {
    if has(headers, &IF_MATCH) && !names(headers, &IF_MATCH, tag, false) {
        return Selected::PreconditionFailed;
    }
    if names(headers, &IF_NONE_MATCH, tag, true) {
        return Selected::NotModified;
    }
    let mut ranges = headers.get_all(RANGE).iter();
    let (Some(range), None) = (ranges.next(), ranges.next()) else { return Selected::Whole };
    // A date, which no answer has, matches nothing.
    let is_other = headers.get(IF_RANGE).is_some_and(|wanted| wanted.as_bytes() != tag.as_bytes());
    match range.to_str() {
        Ok(range) if is_get && !is_other => part(range, bytes),
        _ => Selected::Whole,
    }
}

fn has(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.contains_key(name)
}

/// Whether a list of tags has this one, or a star. `weak`: a weak tag of the same text counts, too (RFC 9110, 8.8.3.2).
fn names(headers: &HeaderMap, name: &HeaderName, tag: &str, weak: bool) -> bool {
    let lists = headers.get_all(name).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|wanted| {
        let wanted = wanted.trim();
        wanted == "*" || wanted.strip_prefix("W/").filter(|_| weak).unwrap_or(wanted) == tag
    })
}

/// The bytes of `bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-COUNT`.
fn part(range: &str, bytes: u64) -> Selected {
    let Some((unit, range)) = range.split_once('=') else { return Selected::Whole };
    let Some((first, last)) = range.trim().split_once('-').filter(|_| unit.eq_ignore_ascii_case("bytes"))
    else {
        return Selected::Whole;
    };
    // A number beyond all sizes is one, too.
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let wanted = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(bytes),
        (Some(first), None) if last.is_empty() => first..bytes,
        (None, Some(count)) if first.is_empty() => bytes.saturating_sub(count)..bytes,
        _ => return Selected::Whole,
    };
    if wanted.is_empty() { Selected::Beyond } else { Selected::Part(wanted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: &str = "\"crc32c-0000000a\"";

    fn selected(headers: &[(HeaderName, &str)], is_get: bool) -> Selected {
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| _ = map.append(name, value.parse().unwrap()));
        select(&map, is_get, TAG, 100)
    }

    #[test]
    fn ranges_are_those_of_the_standard() {
        for (range, expected) in [
            ("bytes=0-0", Selected::Part(0..1)),
            ("bytes=0-99", Selected::Part(0..100)),
            ("bytes=10-", Selected::Part(10..100)),
            ("BYTES=10-19", Selected::Part(10..20)),
            ("bytes=90-1000", Selected::Part(90..100)),
            ("bytes=99-99999999999999999999999", Selected::Part(99..100)),
            ("bytes=-1", Selected::Part(99..100)),
            ("bytes=-1000", Selected::Part(0..100)),
            ("bytes=-0", Selected::Beyond),
            ("bytes=100-", Selected::Beyond),
            ("bytes=100-200", Selected::Beyond),
            ("bytes=99999999999999999999999-", Selected::Beyond),
            ("bytes=20-10", Selected::Whole),
            ("bytes=0-1,5-6", Selected::Whole),
            ("bytes=-", Selected::Whole),
            ("bytes=+1-2", Selected::Whole),
            ("bytes=x", Selected::Whole),
            ("bytes", Selected::Whole),
            ("lines=1-2", Selected::Whole),
        ] {
            assert_eq!(selected(&[(RANGE, range)], true), expected, "{range}");
            assert_eq!(selected(&[(RANGE, range)], false), Selected::Whole, "HEAD {range}");
        }
        assert_eq!(selected(&[], true), Selected::Whole);
        assert_eq!(selected(&[(RANGE, "bytes=0-1"), (RANGE, "bytes=5-6")], true), Selected::Whole);
        assert_eq!(select(&HeaderMap::new(), true, TAG, 0), Selected::Whole);
    }

    #[test]
    fn conditions_are_about_the_tag() {
        let part = Selected::Part(0..10);
        let range = (RANGE, "bytes=0-9");
        for (name, value, expected) in [
            (IF_RANGE, TAG, part.clone()),
            (IF_RANGE, "\"other\"", Selected::Whole),
            (IF_RANGE, "W/\"crc32c-0000000a\"", Selected::Whole),
            (IF_RANGE, "Thu, 26 Nov 2026 00:00:00 GMT", Selected::Whole),
            (IF_MATCH, TAG, part.clone()),
            (IF_MATCH, "\"a\", *", part.clone()),
            (IF_MATCH, "\"other\"", Selected::PreconditionFailed),
            (IF_MATCH, "W/\"crc32c-0000000a\"", Selected::PreconditionFailed),
            (IF_NONE_MATCH, TAG, Selected::NotModified),
            (IF_NONE_MATCH, "\"a\",W/\"crc32c-0000000a\"", Selected::NotModified),
            (IF_NONE_MATCH, "\"other\"", part.clone()),
        ] {
            let shown = format!("{name}: {value}");
            assert_eq!(selected(&[range.clone(), (name, value)], true), expected, "{shown}");
        }
    }
}
