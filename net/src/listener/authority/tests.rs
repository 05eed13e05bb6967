use super::*;
use httlib_hpack::{Decoder, Encoder};
use proptest::prelude::*;
use tokio::io::AsyncReadExt as _;

const BAD: &[u8] = b"StaticLocator(len=3, first=tcp://10.0.0.1:7000)";
const GOOD: &[u8] = b"log1.example:7000";

/// A reader that returns its bytes in pieces.
struct Pieces<'a>(std::slice::Chunks<'a, u8>);

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(piece) = self.0.next() {
            buffer.put_slice(piece);
        }
        Poll::Ready(Ok(()))
    }
}

/// The output for `sent` in pieces, up to the end or an error.
fn through(sent: &[u8], piece: usize) -> (Vec<u8>, io::Result<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut mended = CheckedAuthority::new(Pieces(sent.chunks(piece)));
        let mut seen = Vec::new();
        let mut buffer = vec![0; piece.max(5)];
        loop {
            assert!(mended.held.len() <= HEADERS_BYTES_MAX + READ_BYTES.max(piece));
            match mended.read(&mut buffer).await {
                Ok(0) => return (seen, Ok(())),
                Ok(count) => seen.extend_from_slice(&buffer[..count]),
                Err(error) => return (seen, Err(error)),
            }
        }
    })
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a request.
fn request(encoder: &mut Encoder<'_>, authority: &[u8], packed: bool) -> Vec<u8> {
    let how = Encoder::WITH_INDEXING
        | Encoder::BEST_FORMAT
        | if packed { Encoder::HUFFMAN_NAME | Encoder::HUFFMAN_VALUE } else { 0 };
    let mut block = Vec::new();
    for (name, value) in [
        (":method", &b"POST"[..]),
        (":scheme", b"http"),
        (":path", b"/logspec.Log/Info"),
        (":authority", authority),
        ("te", b"trailers"),
    ] {
        encoder.encode((name.as_bytes().to_vec(), value.to_vec(), how), &mut block).unwrap();
    }
    block
}

/// The authorities in order, as a receiver sees them, and the bytes of all frames except headers.
fn receive(bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut rest = bytes.strip_prefix(PREFACE).unwrap();
    let (mut authorities, mut others, mut decoder) = (Vec::new(), Vec::new(), Decoder::default());
    while let Some(head) = Head::parse(rest) {
        if head.kind != HEADERS {
            let (frame, more) = rest.split_at(HEAD_BYTES + head.length);
            others.extend_from_slice(frame);
            rest = more;
            continue;
        }
        let Ok(Some(extent)) = extent(rest) else { panic!("the output has no valid headers") };
        let mut list = Vec::new();
        decoder.decode(&mut block(&rest[..extent]).unwrap(), &mut list).unwrap();
        authorities.extend(list.into_iter().filter(|h| h.0 == b":authority").map(|h| h.1));
        rest = &rest[extent..];
    }
    assert!(rest.is_empty());
    (authorities, others)
}

#[test]
fn valid_requests_pass_byte_for_byte() {
    let mut encoder = Encoder::default();
    let sent = [
        PREFACE.to_vec(),
        frame(4, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &request(&mut encoder, GOOD, true)),
        frame(0, END_STREAM, 1, &[7; 70_000]),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &request(&mut encoder, GOOD, true)),
        frame(6, 0, 0, b"pingping"),
    ]
    .concat();
    for piece in [1, 2, 8, 9, 10, 50, 4096, sent.len()] {
        let (seen, end) = through(&sent, piece);
        assert!(seen == sent, "in pieces of {piece}");
        end.unwrap();
    }
}

#[test]
fn invalid_authority_is_replaced_in_any_encoding() {
    for packed in [false, true] {
        let mut encoder = Encoder::default();
        let first = request(&mut encoder, BAD, packed);
        let second = request(&mut encoder, BAD, packed); // entirely from the table
        assert!(second.len() < 10);
        let third = request(&mut encoder, GOOD, packed);
        let padded = [&[3][..], &[0, 0, 0, 0, 16], &third, &[0; 3]].concat();
        let data = frame(0, 0, 1, &[7; 20_000]);
        let ping = frame(6, 0, 0, b"pingping");
        let sent = [
            PREFACE.to_vec(),
            ping.clone(),
            frame(HEADERS, 0, 1, &first[..7]),
            frame(CONTINUATION, 0, 1, &[]),
            frame(CONTINUATION, 0, 1, &first[7..8]),
            frame(CONTINUATION, END_HEADERS, 1, &first[8..]),
            data.clone(),
            frame(HEADERS, END_HEADERS | END_STREAM, 3, &second),
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 5, &padded),
            ping.clone(),
        ]
        .concat();
        for piece in [1, 2, 9, 10, 64, 1000, sent.len()] {
            let (seen, end) = through(&sent, piece);
            end.unwrap();
            let (authorities, others) = receive(&seen);
            assert_eq!(authorities.len(), 3, "in pieces of {piece}");
            assert!(authorities[..2].iter().all(|a| http::uri::Authority::try_from(&a[..]).is_ok()));
            assert_eq!(authorities[2], GOOD);
            assert!(others == [&ping[..], &data, &ping].concat());
        }
    }
}

#[test]
fn large_block_is_split_into_small_frames() {
    let mut block = request(&mut Encoder::default(), BAD, false);
    for _ in 0..9 {
        block.extend_from_slice(b"\x00\x01x\x7f\xa1\x1e"); // x: 4000 bytes
        block.extend_from_slice(&[b'y'; 4000]);
    }
    let sent = [PREFACE.to_vec(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)].concat();
    let (seen, end) = through(&sent, 1000);
    end.unwrap();
    let head = Head::parse(&seen[PREFACE.len()..]).unwrap();
    assert_eq!((head.length, head.flags), (FRAME_BYTES, END_STREAM));
    assert_eq!(receive(&seen).0.len(), 1);
}

/// Before anything was changed, the receiver rejects invalid bytes; afterwards they could mislead it.
#[test]
fn invalid_bytes_pass_or_end_the_connection() {
    let mut encoder = Encoder::default();
    let bad = frame(HEADERS, END_HEADERS, 1, &request(&mut encoder, BAD, true));
    let nonsense = [
        frame(HEADERS, END_HEADERS, 3, &[0xff; 30]), // no such index
        frame(HEADERS, END_HEADERS, 3, &[0x3f, 0xe2, 0x1f]), // a larger table than announced
        frame(HEADERS, END_HEADERS, 3, &[0xfe]),     // not in the table
        frame(HEADERS, END_HEADERS | PADDED, 3, &[9, 1, 2]), // more padding than content
        frame(HEADERS, END_HEADERS | PRIORITY, 3, &[0, 0]), // an incomplete priority
        frame(HEADERS, END_HEADERS, 3, &[0; HEADERS_BYTES_MAX]), // too much
        [frame(HEADERS, 0, 3, b""), frame(0, 0, 3, b"data")].concat(), // not continued
        [frame(HEADERS, 0, 3, b""), frame(CONTINUATION, END_HEADERS, 5, b"")].concat(),
        std::iter::once(frame(HEADERS, 0, 3, b""))
            .chain((0..100).map(|_| frame(CONTINUATION, 0, 3, b"")))
            .collect::<Vec<_>>()
            .concat(),
    ];
    for (n, nonsense) in nonsense.iter().enumerate() {
        for piece in [1, 13, 1 << 20] {
            let sent = [PREFACE, nonsense, &bad].concat();
            let (seen, end) = through(&sent, piece);
            assert!(seen == sent && end.is_ok(), "nonsense {n}, in pieces of {piece}");
            let (_, end) = through(&[PREFACE, &bad, nonsense, &bad].concat(), piece);
            assert_eq!(end.unwrap_err().kind(), io::ErrorKind::InvalidData, "nonsense {n}");
        }
    }
}

#[test]
fn truncated_headers_pass() {
    let sent =
        [PREFACE, &frame(HEADERS, END_HEADERS, 1, &request(&mut Encoder::default(), BAD, true))].concat();
    for end in 0..sent.len() {
        let (seen, result) = through(&sent[..end], 7);
        assert!(seen == sent[..end] && result.is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Arbitrary frames of arbitrary bytes: no panic, no loop; and no change as long as nothing is replaced.
    #[test]
    fn any_frames(
        frames in prop::collection::vec(
            (0u8..11, any::<u8>(), 0u32..4, prop::collection::vec(any::<u8>(), 0..60)), 0..20),
        tail in prop::collection::vec(any::<u8>(), 0..40),
        piece in 1usize..200,
    ) {
        let mut sent = PREFACE.to_vec();
        for (kind, flags, stream, payload) in frames {
            sent.extend(frame(kind, flags, stream, &payload));
        }
        sent.extend(tail);
        let (seen, end) = through(&sent, piece);
        let replaced = seen.windows(17).any(|w| w == b"authority.invalid");
        prop_assert!(replaced || (end.is_ok() && seen == sent));
    }

    /// Arbitrary bytes.
    #[test]
    fn any_bytes(sent in prop::collection::vec(any::<u8>(), 0..500), piece in 1usize..50) {
        let (seen, end) = through(&sent, piece);
        prop_assert!(end.is_ok() && seen == sent);
    }
}
