package main

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// A batch as a producer makes it.
func encode(t *testing.T, codec byte, records ...string) []byte {
	t.Helper()
	var body, ends []byte
	for _, record := range records {
		body = append(body, record...)
		ends = binary.LittleEndian.AppendUint32(ends, uint32(len(body)))
	}
	body = append(body, ends...)
	packed := body
	switch codec {
	case codecLz4:
		packed = make([]byte, lz4.CompressBlockBound(len(body)))
		n, err := lz4.CompressBlock(body, packed, nil)
		if err != nil || n == 0 {
			t.Fatal("it does not pack", err)
		}
		packed = packed[:n]
	case codecZstd:
		packed = must(zstd.NewWriter(nil)).EncodeAll(body, nil)
	}
	le := binary.LittleEndian
	batch := make([]byte, headerBytes, headerBytes+len(packed))
	le.PutUint32(batch[4:], uint32(headerBytes+len(packed)))
	le.PutUint32(batch[8:], uint32(len(records)))
	le.PutUint32(batch[12:], uint32(len(body)))
	batch[34] = codec
	return sum(append(batch, packed...))
}

func sum(batch []byte) []byte {
	binary.LittleEndian.PutUint32(batch, crc32.Checksum(batch[4:], castagnoli))
	return batch
}

var lines = []string{"light", "", string(bytes.Repeat([]byte("colours "), 100)), "rays"}

func TestBatchesOfEachCodec(t *testing.T) {
	for codec := byte(codecNone); codec <= codecZstd; codec++ {
		records, err := decode(encode(t, codec, lines...))
		if err != nil {
			t.Fatal(codec, err)
		}
		var got []string
		for _, record := range records {
			got = append(got, string(record))
		}
		if !slices.Equal(got, lines) {
			t.Fatal(codec, got)
		}
	}
}

func TestNoDamagedBatchIsTaken(t *testing.T) {
	for codec := byte(codecNone); codec <= codecZstd; codec++ {
		sound := encode(t, codec, lines...)
		for n := range sound {
			for bit := range 8 {
				batch := bytes.Clone(sound)
				batch[n] ^= 1 << bit
				if _, err := decode(batch); err == nil {
					t.Fatalf("codec %d: bit %d of byte %d", codec, bit, n)
				}
				// The same with a matching checksum, as a server with a bug would send it: an error or records, no panic.
				if n >= 4 {
					decode(sum(batch))
				}
			}
			if _, err := decode(sound[:n]); err == nil {
				t.Fatalf("codec %d: cut to %d bytes", codec, n)
			}
		}
	}
}

func TestWords(t *testing.T) {
	got := words([]byte("PROP. II; Newton's 2nd na\u00efve—Light"))
	if !slices.Equal(got, []string{"prop", "ii", "newton", "s", "nd", "na", "ve", "light"}) {
		t.Fatal(got)
	}
}
