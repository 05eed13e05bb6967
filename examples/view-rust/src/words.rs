//! Words: the runs of ASCII letters, in lower case. The same in every language's view.

/// The words of a line, in order.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    line.split(|b| !b.is_ascii_alphabetic()).filter(|word| !word.is_empty()).map(<[u8]>::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_but_a_letter_divides() {
        let words: Vec<_> = words("PROP. II; Newton's 2nd na\u{ef}ve—Light".as_bytes())
            .map(|w| String::from_utf8(w).unwrap())
            .collect();
        assert_eq!(words, ["prop", "ii", "newton", "s", "nd", "na", "ve", "light"]);
        assert_eq!(super::words(b" 12 ").count(), 0);
    }
}
