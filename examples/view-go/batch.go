package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// A batch, as in docs/format.md, section 5.
const (
	headerBytes = 40
	recordsMax  = 1 << 20
	bytesMax    = 256 << 20
)

const (
	codecNone = 0
	codecLz4  = 1
	codecZstd = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Never more than the batch's header says: the limit is the capacity of the destination.
var unzstd = must(zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true)))

// decode checks a batch and returns its records, which are slices of it unless it is packed.
func decode(batch []byte) ([][]byte, error) {
	if len(batch) < headerBytes {
		return nil, errors.New("a batch is shorter than its header")
	}
	le := binary.LittleEndian
	length, count, unpacked := le.Uint32(batch[4:]), le.Uint32(batch[8:]), le.Uint32(batch[12:])
	session, sequence, codec := le.Uint64(batch[16:]), le.Uint64(batch[24:]), batch[34]
	switch {
	case codec > codecZstd:
		return nil, fmt.Errorf("codec %d is not known", codec)
	case batch[35] != 0 || le.Uint32(batch[36:]) != 0:
		return nil, errors.New("bytes of a batch that are for later are not zero")
	case uint64(length) != uint64(len(batch)):
		return nil, fmt.Errorf("a batch of %d bytes says that it has %d", len(batch), length)
	case count < 1 || count > recordsMax:
		return nil, fmt.Errorf("a batch of %d records", count)
	case unpacked < 4*count || unpacked > bytesMax || codec == codecNone && unpacked != length-headerBytes:
		return nil, fmt.Errorf("a batch's body of %d bytes", unpacked)
	case (session == 0) != (sequence == 0):
		return nil, fmt.Errorf("a batch of session %d with number %d", session, sequence)
	case le.Uint32(batch) != crc32.Checksum(batch[4:], castagnoli):
		return nil, errors.New("a batch fails its checksum")
	}
	body, err := unpack(codec, batch[headerBytes:], int(unpacked))
	if err != nil {
		return nil, err
	}
	payload := unpacked - 4*count
	records, start := make([][]byte, count), uint32(0)
	for n := range records {
		end := le.Uint32(body[payload+4*uint32(n):])
		if end < start || end > payload {
			return nil, fmt.Errorf("record %d of a batch ends at %d", n, end)
		}
		records[n], start = body[start:end:end], end
	}
	if start != payload {
		return nil, errors.New("a batch's last record ends before its payload does")
	}
	return records, nil
}

func unpack(codec byte, packed []byte, length int) ([]byte, error) {
	if codec == codecNone {
		return packed, nil
	}
	body := make([]byte, length)
	var n int
	var err error
	if codec == codecLz4 {
		n, err = lz4.UncompressBlock(packed, body)
	} else {
		body, err = unzstd.DecodeAll(packed, body[:0])
		n = len(body)
	}
	if err == nil && n != length {
		err = fmt.Errorf("it has %d bytes of %d", n, length)
	}
	if err != nil {
		return nil, fmt.Errorf("a batch does not unpack: %w", err)
	}
	return body, nil
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
