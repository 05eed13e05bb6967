module chiplog.invalid/view-go

go 1.26.0

require (
	github.com/klauspost/compress v1.20.3 // zstd, of packed batches
	github.com/pierrec/lz4/v4 v4.1.33 // lz4, of packed batches
	google.golang.org/grpc v1.85.0 // the native service of the servers
	google.golang.org/protobuf v1.36.12 // its messages
	modernc.org/sqlite v1.61.1 // the view's tables; SQLite in Go, without a C compiler
)

require (
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	modernc.org/libc v1.79.0 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
)
