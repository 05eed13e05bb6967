// A view of a log, in Go: a table of lines and an index of words in SQLite, made of a cluster's records. It reads them over
// gRPC, as the native service chiplog.v1.Log gives them, and goes on at another server when one fails.
//
//	go run . -cluster 127.0.0.1:7411,127.0.0.1:7414 -db view.db [-until INDEX]
//
//	main.go     arguments; says how far it is
//	follow.go   which server, one stream after the other; that nothing is missing
//	batch.go    batches as they stand in the log, checked and unpacked
//	view.go     the tables, and how far they are
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

// How often the view says how far it is, when it gets on.
const tell = 500 * time.Millisecond

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "view:", err)
		os.Exit(1)
	}
}

func run() error {
	cluster := flag.String("cluster", "", "servers, `host:port[,host:port…]`; one that runs is enough, the others are learnt from it")
	db := flag.String("db", "", "the view's SQLite `file`; made if it is missing")
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

// Says the newest of what comes, at most once in a while.
func report(progress <-chan string) {
	for line := range progress {
		fmt.Println(line)
		time.Sleep(tell)
	}
}
