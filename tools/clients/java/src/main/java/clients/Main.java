package clients;

import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * A standard grpc-java client of both log services. It calls their methods on a log of its own, and exits with 0 if all answers
 * were right.
 *
 * <p>java -cp … clients.Main 127.0.0.1:7411
 */
public final class Main {
  private static final int MESSAGE_BYTES_MAX = 64 << 20;

  public static void main(String[] args) throws Exception {
    ManagedChannel channel =
        NettyChannelBuilder.forTarget(args[0]).usePlaintext().maxInboundMessageSize(MESSAGE_BYTES_MAX).build();
    try {
      long last = logspec(logspec.LogGrpc.newStub(channel), logspec.LogGrpc.newBlockingStub(channel));
      nativeLog(chiplog.v1.LogGrpc.newStub(channel), chiplog.v1.LogGrpc.newBlockingStub(channel), last);
      System.out.println("all as it should be, with Java " + System.getProperty("java.version"));
    } finally {
      channel.shutdownNow().awaitTermination(10, TimeUnit.SECONDS);
    }
  }

  /** The service of existing clients. Returns the log's last index. */
  private static long logspec(logspec.LogGrpc.LogStub log, logspec.LogGrpc.LogBlockingStub blocking) throws Exception {
    var info = blocking.info(logspec.Logspec.InfoRequest.getDefaultInstance()).getOk();
    check(info.getFirstIndex() == 1 && info.getLastIndex() == 0, "a new log has " + info);

    // All requests are sent before the first reply is read: two, none, many empty ones, one large.
    var replies = new Replies<logspec.Logspec.AppendReply>();
    var requests = log.append(replies);
    int[] counts = {2, 0, 10_000, 1};
    for (int n = 0; n < counts.length; n++) {
      var request = logspec.Logspec.AppendRequest.newBuilder().setSequence(n + 1);
      for (int i = 0; i < counts[n]; i++) {
        request.addProposals(n == 3 ? ByteString.copyFrom(new byte[11 << 20]) : ByteString.copyFromUtf8(n == 0 ? "abc" : ""));
      }
      requests.onNext(request.build());
    }
    requests.onCompleted();
    long next = 1;
    for (int n = 0; n < counts.length; n++) {
      var reply = replies.next();
      check(reply.hasOk() && reply.getOk().getSequence() == n + 1, "reply " + (n + 1) + " is " + reply);
      check(reply.getOk().getIndexesCount() == counts[n], "one index each");
      for (long index : reply.getOk().getIndexesList()) {
        check(index == next++, "index " + index);
      }
    }
    check(replies.next() == null, "more replies than requests");
    long last = next - 1;

    var read = blocking.read(logspec.Logspec.ReadRequest.newBuilder().setNextIndex(1).build());
    for (long index = 1; index <= last; ) {
      for (var entry : read.next().getOk().getEntriesList()) {
        int wanted = index <= 2 ? 3 : index == last ? 11 << 20 : 0;
        check(entry.getIndex() == index && entry.getData().size() == wanted, "entry " + index);
        index++;
      }
    }

    check(blocking.discard(logspec.Logspec.DiscardRequest.newBuilder().setFirstIndex(100).build()).hasOk(), "a discard");
    var below = blocking.read(logspec.Logspec.ReadRequest.newBuilder().setNextIndex(99).build());
    check(below.next().getTruncated(), "a read below the first index");
    var changes = blocking.infoStream(logspec.Logspec.InfoRequest.newBuilder().setAllowStale(true).build());
    check(changes.next().getOk().getFirstIndex() == 100, "an info stream");

    var wrong = new Replies<logspec.Logspec.AppendReply>();
    log.append(wrong).onNext(logspec.Logspec.AppendRequest.newBuilder().setSequence(2).build());
    try {
      wrong.next();
      check(false, "a wrong sequence number was taken");
    } catch (StatusRuntimeException e) {
      check(e.getStatus().getCode() == Status.Code.INVALID_ARGUMENT, "a wrong sequence number: " + e);
    }
    return last;
  }

  /** The native service: batches in a session, sent twice, read as they are in the log. */
  private static void nativeLog(chiplog.v1.LogGrpc.LogStub log, chiplog.v1.LogGrpc.LogBlockingStub blocking, long last)
      throws Exception {
    var server = blocking.serverInfo(chiplog.v1.LogOuterClass.ServerInfoRequest.getDefaultInstance());
    check(server.getProtocolMin() <= 1 && server.getProtocolMax() >= 1, "the server speaks " + server);
    long session = blocking.openSession(chiplog.v1.LogOuterClass.OpenSessionRequest.getDefaultInstance()).getSession();
    var replies = new Replies<chiplog.v1.LogOuterClass.AppendResponse>();
    var requests = log.append(replies);
    int[] numbers = {1, 2, 2, 3};
    for (int number : numbers) {
      byte[] batch = Batch.encode(session, number, List.of(("first of " + number).getBytes(), new byte[0]));
      requests.onNext(chiplog.v1.LogOuterClass.AppendRequest.newBuilder().setBatch(ByteString.copyFrom(batch)).build());
    }
    requests.onCompleted();
    for (int number : numbers) {
      var reply = replies.next();
      check(reply.hasAppended(), "batch " + number + ": " + reply);
      check(reply.getAppended().getFirst() == last + 2L * number - 1, "batch " + number + " is at " + reply);
    }
    check(replies.next() == null, "more replies than batches");

    Iterator<chiplog.v1.LogOuterClass.ReadResponse> read =
        blocking.read(chiplog.v1.LogOuterClass.ReadRequest.newBuilder().setIndex(last + 1).build());
    List<String> records = new ArrayList<>();
    while (read.hasNext()) {
      for (var stored : read.next().getBatchesList()) {
        check(stored.getFirst() == last + 1 + records.size(), "a batch at " + stored.getFirst());
        for (byte[] record : Batch.decode(stored.getBatch().toByteArray())) {
          records.add(new String(record));
        }
      }
    }
    check(records.equals(List.of("first of 1", "", "first of 2", "", "first of 3", "")), "records " + records);
    blocking.closeSession(chiplog.v1.LogOuterClass.CloseSessionRequest.newBuilder().setSession(session).build());
  }

  /** Replies as they arrive. */
  private static final class Replies<T> implements StreamObserver<T> {
    private final BlockingQueue<Object> came = new ArrayBlockingQueue<>(1024);

    @Override
    public void onNext(T reply) {
      came.add(reply);
    }

    @Override
    public void onError(Throwable error) {
      came.add(error);
    }

    @Override
    public void onCompleted() {
      came.add(this);
    }

    /** The next reply; null: there are no more. */
    @SuppressWarnings("unchecked")
    T next() throws Exception {
      Object next = came.poll(60, TimeUnit.SECONDS);
      check(next != null, "no reply");
      if (next instanceof StatusRuntimeException refused) {
        throw refused;
      }
      if (next instanceof Throwable failed) {
        throw new IllegalStateException(failed);
      }
      return next == this ? null : (T) next;
    }
  }

  private static void check(boolean holds, String what) {
    if (!holds) {
      throw new IllegalStateException(what);
    }
  }
}
