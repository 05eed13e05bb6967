// A view of a log, in Go: a table of lines and an index of words in SQLite, made from a cluster's records. It reads them over
// gRPC, from the native service chiplog.v1.Log, and continues at another server when one fails.
//
//	go run . -cluster 127.0.0.1:7411,127.0.0.1:7414 -db view.db [-until INDEX]
//
//	main.go     arguments; prints the progress
//	follow.go   which server, one stream after the other; checks that nothing is missing
//	batch.go    batches as they are in the log, checked and unpacked
//	view.go     the tables, and their position
//
// The code in chiplogv1/ is generated from net/proto, and kept here so that a build needs Go alone:
//
//go:generate protoc -I ../../net/proto --go_out=. --go_opt=module=chiplog.invalid/view-go --go_opt=Mchiplog/v1/log.proto=chiplog.invalid/view-go/chiplogv1 --go-grpc_out=. --go-grpc_opt=module=chiplog.invalid/view-go --go-grpc_opt=Mchiplog/v1/log.proto=chiplog.invalid/view-go/chiplogv1 chiplog/v1/log.proto
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"time"
)

// How often the view reports its progress.
const tell = 500 * time.Millisecond

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "view:", err)
		os.Exit(1)
	}
}

func run() error {
	cluster := flag.String("cluster", "", "servers, `host:port[,host:port…]`; one that runs is enough, it names the others")
	db := flag.String("db", "", "the view's SQLite `file`; created if it is missing")
	until := flag.Uint64("until", math.MaxUint64, "end once this record is applied; not given: follow for ever")
	flag.Parse()
	if *cluster == "" || *db == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	view, err := openView(*db)
	if err != nil {
		return err
	}
	defer view.close()
	progress := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		report(progress)
	}()
	err = follow(context.Background(), strings.Split(*cluster, ","), view, *until, progress)
	close(progress)
	<-ended
	if err != nil {
		return err
	}
	summary, err := view.summary()
	if err == nil {
		fmt.Println(summary)
	}
	return err
}

// Prints the newest line of progress, at most once in a while.
func report(progress <-chan string) {
	for line := range progress {
		fmt.Println(line)
		time.Sleep(tell)
	}
}
