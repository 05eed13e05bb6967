// A standard grpc-go client of the log service, with the habits of existing ones: it puts a description of its target where
// HTTP/2 wants a host, uses a dialer of its own, and pings idle connections.
//
//	go run . -server 127.0.0.1:7000
//	go run -modfile=old.mod . -server 127.0.0.1:7000     the same with grpc-go 1.19
//
// It calls all methods on a log of its own, and exits with 0 if all answers were right.
//
// The messages in logspec/ are generated, with protoc-gen-go:
//
//	protoc -I ../../../net/proto --go_out=logspec --go_opt=paths=source_relative \
//	  --go_opt=Mlogspec.proto=chiplog.invalid/clients/go/logspec logspec.proto
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"time"

	"chiplog.invalid/clients/go/logspec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const maxMessage = 64 << 20

func main() {
	log.SetFlags(0)
	server := flag.String("server", "127.0.0.1:7000", "host:port of a replica that leads")
	idle := flag.Duration("idle", 0, "how long to be idle in the midst of it")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	target := fmt.Sprintf("StaticLocator(len=3, first=tcp://%s)", *server)
	conn, err := grpc.Dial(target,
		grpc.WithInsecure(),
		grpc.WithAuthority(target),
		grpc.WithDialer(func(_ string, timeout time.Duration) (net.Conn, error) {
			return net.DialTimeout("tcp", *server, timeout)
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: time.Second, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	)
	must(err)
	c := client{conn}

	first, last := c.info(ctx)
	check(first == 1 && last == 0, "a new log has %d to %d", first, last)
	c.appends(ctx)
	time.Sleep(*idle)
	first, last = c.info(ctx)
	check(first == 1 && last == total, "after the appends the log has %d to %d", first, last)
	c.reads(ctx)
	c.discards(ctx)
	c.stumbles(ctx)
	fmt.Println("all as it should be, with grpc-go", grpc.Version)
}

// The appended records: two, none, many empty ones, one large.
const (
	many  = 100_000
	large = 11 << 20
	total = 2 + many + 1
)

type client struct{ conn *grpc.ClientConn }

func (c client) info(ctx context.Context) (first, last uint64) {
	reply := new(logspec.InfoReply)
	must(c.conn.Invoke(ctx, "/logspec.Log/Info", &logspec.InfoRequest{}, reply))
	return reply.GetOk().GetFirstIndex(), reply.GetOk().GetLastIndex()
}

func (c client) stream(ctx context.Context, method string) grpc.ClientStream {
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: method == "Append"}
	stream, err := c.conn.NewStream(ctx, desc, "/logspec.Log/"+method)
	must(err)
	return stream
}

// All requests are sent before the first reply is read.
func (c client) appends(ctx context.Context) {
	stream := c.stream(ctx, "Append")
	requests := [][][]byte{{[]byte("one"), []byte("two")}, nil, make([][]byte, many), {make([]byte, large)}}
	for n, proposals := range requests {
		must(stream.SendMsg(&logspec.AppendRequest{Sequence: uint64(n + 1), Proposals: proposals}))
	}
	must(stream.CloseSend())
	next := uint64(1)
	for n, proposals := range requests {
		reply := new(logspec.AppendReply)
		must(stream.RecvMsg(reply))
		ok := reply.GetOk()
		check(ok != nil, "request %d: %v", n+1, reply)
		check(ok.Sequence == uint64(n+1) && len(ok.Indexes) == len(proposals), "a wrong reply to request %d", n+1)
		for _, index := range ok.Indexes {
			check(index == next, "index %d where %d is next", index, next)
			next++
		}
	}
	check(stream.RecvMsg(new(logspec.AppendReply)) == io.EOF, "more replies than requests")
}

func (c client) read(ctx context.Context, next uint64) grpc.ClientStream {
	stream := c.stream(ctx, "Read")
	must(stream.SendMsg(&logspec.ReadRequest{NextIndex: next}))
	must(stream.CloseSend())
	return stream
}

func (c client) reads(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := c.read(ctx, 1)
	for next := uint64(1); next <= total; {
		reply := new(logspec.ReadReply)
		must(stream.RecvMsg(reply))
		check(reply.GetOk() != nil, "a read at %d: %v", next, reply)
		for _, entry := range reply.GetOk().Entries {
			wanted := 0
			switch entry.Index {
			case 1, 2:
				wanted = 3
			case total:
				wanted = large
			}
			check(entry.Index == next && len(entry.Data) == wanted && !entry.Skip, "a wrong entry at %d", next)
			next++
		}
	}
}

func (c client) discards(ctx context.Context) {
	reply := new(logspec.DiscardReply)
	must(c.conn.Invoke(ctx, "/logspec.Log/Discard", &logspec.DiscardRequest{FirstIndex: 1000}, reply))
	check(reply.GetOk() != nil, "a discard: %v", reply)
	first, last := c.info(ctx)
	check(first == 1000 && last == total, "after the discard the log has %d to %d", first, last)
	stream := c.read(ctx, 999)
	read := new(logspec.ReadReply)
	must(stream.RecvMsg(read))
	check(read.GetTruncated(), "a read below the first index: %v", read)
	check(stream.RecvMsg(read) == io.EOF, "more after it was truncated")
	watch := c.stream(ctx, "InfoStream")
	must(watch.SendMsg(&logspec.InfoRequest{AllowStale: true}))
	must(watch.CloseSend())
	info := new(logspec.InfoReply)
	must(watch.RecvMsg(info))
	check(info.GetOk().GetFirstIndex() == 1000, "an info stream begins with %v", info)
}

// A client's mistake is reported as one.
func (c client) stumbles(ctx context.Context) {
	stream := c.stream(ctx, "Append")
	must(stream.SendMsg(&logspec.AppendRequest{Sequence: 2}))
	err := stream.RecvMsg(new(logspec.AppendReply))
	check(status.Code(err) == codes.InvalidArgument, "a wrong sequence number: %v", err)
}

func must(err error) {
	if err != nil {
		log.Panicln(err)
	}
}

func check(holds bool, format string, args ...interface{}) {
	if !holds {
		log.Panicf(format, args...)
	}
}
