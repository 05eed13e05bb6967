//! `--format`: text with placeholders for the parts of a record.

use crate::common::format;
use chiplog::Record;
use std::io::{self, Write};
use std::str::FromStr;

/// A parsed format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Format(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Index,
    Time,
    Millis,
    Size,
    Data,
    Escaped,
    Hex,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut plain = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let place = match (c, c == '%' || c == '\\') {
                (c, false) => {
                    plain.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
                ('%', _) => percent(chars.next())?,
                _ => Piece::Text(vec![backslash(chars.next())?]),
            };
            match place {
                Piece::Text(bytes) => plain.extend(bytes),
                place => {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    pieces.push(place);
                }
            }
        }
        pieces.push(Piece::Text(plain));
        pieces.retain(|piece| *piece != Piece::Text(Vec::new()));
        Ok(Self(pieces))
    }
}

fn percent(c: Option<char>) -> Result<Piece, String> {
    Ok(match c {
        Some('i') => Piece::Index,
        Some('t') => Piece::Time,
        Some('T') => Piece::Millis,
        Some('s') => Piece::Size,
        Some('d') => Piece::Data,
        Some('e') => Piece::Escaped,
        Some('x') => Piece::Hex,
        Some('%') => Piece::Text(b"%".to_vec()),
        Some(c) => return Err(format!("%{c} is unknown; known are %i %t %T %s %d %e %x and %%")),
        None => return Err("the format ends in %; write %% for a percent sign".into()),
    })
}

fn backslash(c: Option<char>) -> Result<u8, String> {
    Ok(match c {
        Some('n') => b'\n',
        Some('r') => b'\r',
        Some('t') => b'\t',
        Some('0') => 0,
        Some('\\') => b'\\',
        Some(c) => return Err(format!("\\{c} is unknown; known are \\n \\r \\t \\0 and \\\\")),
        None => return Err("the format ends in a backslash; write \\\\ for a backslash".into()),
    })
}

impl Format {
    pub(super) fn write(&self, out: &mut impl Write, record: &Record<'_>) -> io::Result<()> {
        for piece in &self.0 {
            match piece {
                Piece::Text(bytes) => out.write_all(bytes)?,
                Piece::Index => write!(out, "{}", record.index)?,
                Piece::Time => write!(out, "{}", format::time(record.timestamp))?,
                Piece::Millis => write!(out, "{}", record.timestamp)?,
                Piece::Size => write!(out, "{}", record.data.len())?,
                Piece::Data => out.write_all(record.data)?,
                Piece::Escaped => out.write_all(format::escape(record.data).as_bytes())?,
                Piece::Hex => out.write_all(data_encoding::HEXLOWER.encode(record.data).as_bytes())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog::{Index, Timestamp};

    #[test]
    fn every_placeholder_is_filled() {
        let format: Format = "é %i|%t|%T|%s|%d|%e|%x|%%\\t\\\\\\0\\n".parse().unwrap();
        let mut out = Vec::new();
        let record = Record { index: Index(7), timestamp: Timestamp(1_700_000_000_123), data: b"a\n" };
        format.write(&mut out, &record).unwrap();
        let expected = "é 7|2023-11-14T22:13:20.123Z|1700000000123|2|a\n|a\\n|610a|%\t\\\0\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn unknown_placeholders_are_refused() {
        for bad in ["%", "%q", "\\", "\\q"] {
            assert!(bad.parse::<Format>().is_err(), "{bad}");
        }
    }
}
