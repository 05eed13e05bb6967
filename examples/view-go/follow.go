package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"chiplog.invalid/view-go/chiplogv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// An idle server sends a keep-alive this often; one that is silent for three times as long is left.
	keepAlive = 3 * time.Second
	silence   = 3 * keepAlive
	// How long a server may take to describe itself.
	patience = 5 * time.Second
	// The wait after a second failure in a row (after the first, another server is tried immediately); twice as long after each
	// further one.
	backoffMin = 10 * time.Millisecond
	backoffMax = 2 * time.Second
	// A server whose last record is older than that of another one, this often in a row, was cut off.
	behindMax = 3
	// A response holds at least a batch, whatever its size.
	messageBytesMax = bytesMax + 64<<20
	protocol        = 1
)

// The number of this kind of error, as in docs/protocol.md.
const kindDiscarded = 7

// final is an error that no other server will resolve.
type final struct{ error }

// follower applies a cluster's records to a view.
type follower struct {
	// The given servers, and those that they named.
	servers []string
	at      int
	view    *view
	until   uint64
	// Failures in a row.
	failures int
	// Receives the newest line about its progress.
	progress chan string
}

// follow applies what arrives, up to record until. It retries for ever, unless the error is permanent.
func follow(ctx context.Context, servers []string, v *view, until uint64, progress chan string) error {
	f := &follower{servers: servers, view: v, until: until, progress: progress}
	for v.applied < until {
		server := f.servers[f.at%len(f.servers)]
		err := f.read(ctx, server)
		if err == nil {
			return nil
		}
		if fatal := (final{}); errors.As(err, &fatal) {
			return fatal.error
		}
		f.at++
		fmt.Printf("%s: %v; continuing at %s\n", server, err, f.servers[f.at%len(f.servers)])
		f.wait()
	}
	return nil
}

func (f *follower) wait() {
	f.failures++
	if f.failures < 2 {
		return
	}
	pause := min(backoffMin<<min(f.failures-2, 16), backoffMax)
	time.Sleep(pause/2 + rand.N(pause))
}

// read processes one stream of one server, until the view is done (nil) or something fails.
func (f *follower) read(ctx context.Context, server string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, client, err := dial(server)
	if err != nil {
		return err
	}
	defer conn.Close()
	log, err := f.greet(ctx, client, server)
	if err != nil {
		return err
	}
	next := f.view.applied + 1
	stream, err := client.Read(ctx, &chiplogv1.ReadRequest{
		Start:  &chiplogv1.ReadRequest_Index{Index: next},
		Follow: true,
		// The view waits for a replica that has fewer records than the view: it never goes back.
		MinIndex:        next - 1,
		KeepAliveMillis: uint32(keepAlive / time.Millisecond),
	})
	if err != nil {
		return err
	}
	silent := time.AfterFunc(silence, func() { cancel(fmt.Errorf("nothing came for %v", silence)) })
	defer silent.Stop()
	begun, behind := false, 0
	for f.view.applied < f.until {
		response, err := stream.Recv()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			first, discarded := discardedBelow(err, stream)
			if !discarded {
				return classified(err)
			}
			return f.skip(first)
		}
		silent.Stop()
		if len(response.Batches) == 0 {
			if behind = f.behind(ctx, server, response.Last, behind); behind >= behindMax {
				return fmt.Errorf("it has records up to %d, and others have more", response.Last)
			}
		} else if err := f.take(log, server, response, !begun); err != nil {
			return err
		} else {
			begun, behind, f.failures = true, 0, 0
		}
		silent.Reset(silence)
	}
	return nil
}

func dial(server string) (*grpc.ClientConn, chiplogv1.LogClient, error) {
	conn, err := grpc.NewClient("passthrough:///"+server,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)))
	if err != nil {
		return nil, nil, final{err}
	}
	return conn, chiplogv1.NewLogClient(conn), nil
}

// greet asks a server about itself and learns the others from it. Returns the log's id.
func (f *follower) greet(ctx context.Context, client chiplogv1.LogClient, server string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	told, err := client.ServerInfo(ctx, &chiplogv1.ServerInfoRequest{})
	switch {
	case err != nil:
		return "", classified(err)
	case told.ProtocolMin > protocol || told.ProtocolMax < protocol:
		return "", final{fmt.Errorf("%s speaks revisions %d to %d", server, told.ProtocolMin, told.ProtocolMax)}
	case !slices.Contains(told.Features, "read.min_index"):
		return "", final{fmt.Errorf("%s cannot be read from as this view does", server)}
	case told.LogId == "":
		return "", errors.New("it is part of no cluster yet")
	case f.view.log != "" && f.view.log != told.LogId:
		return "", final{fmt.Errorf("%s has log %s, and this is a view of log %s", server, told.LogId, f.view.log)}
	}
	for _, other := range told.Servers {
		if other.Address != "" && !slices.Contains(f.servers, other.Address) {
			f.servers = append(f.servers, other.Address)
		}
	}
	return told.LogId, nil
}

// take applies a response's records.
func (f *follower) take(log, server string, response *chiplogv1.ReadResponse, first bool) error {
	next := f.view.applied + 1
	begin := next
	var wanted [][]byte
	for _, stored := range response.Batches {
		// The first batch of a stream can begin before the requested record.
		if stored.First > next || stored.First < next && !first {
			return fmt.Errorf("it sent record %d where %d is due", stored.First, next)
		}
		records, err := decode(stored.Batch)
		if err != nil {
			return fmt.Errorf("record %d and on: %w", stored.First, err)
		}
		skip := next - stored.First
		if skip >= uint64(len(records)) {
			return fmt.Errorf("it sent records before %d, which is due", next)
		}
		records = records[skip:]
		if left := f.until - next + 1; uint64(len(records)) > left {
			records = records[:left]
		}
		wanted = append(wanted, records...)
		next, first = next+uint64(len(records)), false
		if next > f.until {
			break
		}
	}
	if err := f.view.apply(log, begin, wanted); err != nil {
		return final{err}
	}
	f.tell(fmt.Sprintf("applied index %d of %d, from %s", f.view.applied, response.Last, server))
	return nil
}

// The newest line replaces one that was not printed yet.
func (f *follower) tell(line string) {
	select {
	case <-f.progress:
	default:
	}
	f.progress <- line
}

// A replica that was cut off from the others sends keep-alives for ever. Counts how often others had more.
func (f *follower) behind(ctx context.Context, server string, last uint64, before int) int {
	for _, other := range f.servers {
		if other == server {
			continue
		}
		if lastOf(ctx, other) > last {
			return before + 1
		}
	}
	return 0
}

// lastOf asks a server for its last record; 0: no answer.
func lastOf(ctx context.Context, server string) uint64 {
	conn, client, err := dial(server)
	if err != nil {
		return 0
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	info, err := client.Info(ctx, &chiplogv1.InfoRequest{AllowStale: true})
	if err != nil {
		return 0
	}
	return info.Last
}

// skip is for a view whose next record is gone: a new one begins with the log's first record, another must end.
func (f *follower) skip(first uint64) error {
	next := f.view.applied + 1
	if f.view.log != "" || first <= next {
		return final{fmt.Errorf("discarded: record %d, which this view needs next, is gone (the log begins with %d); it has to "+
			"be made again from a snapshot of what the records said", next, first)}
	}
	if f.until < first {
		return final{fmt.Errorf("discarded: records %d to %d are gone", next, first-1)}
	}
	fmt.Printf("discarded: records %d to %d are gone; this view begins with record %d\n", next, first-1, first)
	f.view.applied = first - 1 // nothing is written before the first record is
	return errors.New("what came first is gone")
}

// classified marks errors that recur at any server, by the status: all others pass, or another server helps.
func classified(err error) error {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.Unauthenticated, codes.PermissionDenied:
		return final{err}
	}
	return err
}

// discardedBelow reports whether a read failed because its start is gone, and where the log begins.
func discardedBelow(err error, stream grpc.ClientStream) (uint64, bool) {
	trailer := stream.Trailer()
	if status.Code(err) != codes.OutOfRange || number(trailer.Get("chiplog-kind")) != kindDiscarded {
		return 0, false
	}
	return number(trailer.Get("chiplog-first")), true
}

func number(values []string) uint64 {
	if len(values) == 0 {
		return 0
	}
	n, _ := strconv.ParseUint(values[0], 10, 64)
	return n
}
