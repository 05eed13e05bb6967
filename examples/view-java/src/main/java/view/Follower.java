package view;

import chiplog.v1.LogGrpc;
import chiplog.v1.LogOuterClass.InfoRequest;
import chiplog.v1.LogOuterClass.ReadRequest;
import chiplog.v1.LogOuterClass.ReadResponse;
import chiplog.v1.LogOuterClass.ServerInfoRequest;
import chiplog.v1.LogOuterClass.StoredBatch;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.BlockingClientCall;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Applies a cluster's records to a view: one stream after the other, each from the very next record on. It retries temporary
 * errors for ever, at one server after the other; permanent ones are {@link Final}.
 */
final class Follower implements AutoCloseable {
  /** An idle server sends a keep-alive this often; one that is silent for three times as long is left. */
  private static final int KEEP_ALIVE_MILLIS = 3000;

  /** How long a server may take to describe itself. */
  private static final int PATIENCE_MILLIS = 5000;

  /**
   * The wait after a second failure in a row (after the first, another server is tried immediately); twice as long after each
   * further one.
   */
  private static final long BACKOFF_MIN_MILLIS = 10;

  private static final long BACKOFF_MAX_MILLIS = 2000;

  /** A server whose last record is older than that of another one, this often in a row, was cut off. */
  private static final int BEHIND_MAX = 3;

  /** How often the view reports its progress. */
  private static final long TELL_MILLIS = 500;

  /** A response holds at least a batch, whatever its size. */
  private static final int MESSAGE_BYTES_MAX = Batch.BYTES_MAX + (64 << 20);

  private static final int PROTOCOL = 1;

  /** The number of this kind of error, as in docs/protocol.md. */
  private static final String KIND_DISCARDED = "7";

  private static final Metadata.Key<String> KIND = Metadata.Key.of("chiplog-kind", Metadata.ASCII_STRING_MARSHALLER);
  private static final Metadata.Key<String> FIRST = Metadata.Key.of("chiplog-first", Metadata.ASCII_STRING_MARSHALLER);

  /** No other server will resolve it. */
  static final class Final extends Exception {
    Final(String what) {
      super(what);
    }
  }

  /** Another server must be tried. */
  private static final class Elsewhere extends Exception {
    Elsewhere(String why) {
      super(why);
    }
  }

  /** The given servers, and those that they named. */
  private final List<String> servers;

  private final View view;
  private final long until;
  private int at;

  /** The next record. */
  private long next;

  /** Failures in a row. */
  private int failures;

  /** The progress, for {@link #tell}, and the last line printed. */
  private volatile String progress;

  private final Thread telling = new Thread(this::tell, "progress");

  Follower(List<String> servers, View view, long until) {
    this.servers = new ArrayList<>(servers);
    this.view = view;
    this.until = until;
    next = view.applied() + 1;
  }

  /** Applies what arrives, up to record {@code until}. */
  void run() throws Final, InterruptedException, SQLException {
    telling.setDaemon(true);
    telling.start();
    while (view.applied() < until) {
      String server = servers.get(at % servers.size());
      try {
        read(server);
      } catch (Elsewhere e) {
        at++;
        System.out.println(server + ": " + e.getMessage() + "; continuing at " + servers.get(at % servers.size()));
        backOff();
      }
    }
  }

  private void backOff() throws InterruptedException {
    failures++;
    if (failures >= 2) {
      long pause = Math.min(BACKOFF_MIN_MILLIS << Math.min(failures - 2, 16), BACKOFF_MAX_MILLIS);
      Thread.sleep(pause / 2 + ThreadLocalRandom.current().nextLong(pause));
    }
  }

  /** Processes one stream of one server until the view is done. */
  private void read(String server) throws Final, Elsewhere, InterruptedException, SQLException {
    ManagedChannel channel = channel(server);
    try {
      String log = greet(channel, server);
      ReadRequest request =
          ReadRequest.newBuilder()
              .setIndex(next)
              .setFollow(true)
              // The view waits for a replica that has fewer records than the view: it never goes back.
              .setMinIndex(next - 1)
              .setKeepAliveMillis(KEEP_ALIVE_MILLIS)
              .build();
      BlockingClientCall<?, ReadResponse> stream = LogGrpc.newBlockingV2Stub(channel).read(request);
      boolean begun = false;
      int behind = 0;
      while (view.applied() < until) {
        ReadResponse response = stream.read(3 * KEEP_ALIVE_MILLIS, TimeUnit.MILLISECONDS);
        if (response == null) {
          throw new Elsewhere("the stream ended");
        } else if (response.getBatchesCount() > 0) {
          take(log, server, response, !begun);
          begun = true;
          behind = 0;
          failures = 0;
        } else if (!othersHaveMore(server, response.getLast())) {
          behind = 0;
        } else if (++behind >= BEHIND_MAX) {
          throw new Elsewhere("it has records up to " + response.getLast() + ", and others have more");
        }
      }
    } catch (TimeoutException e) {
      throw new Elsewhere("nothing came for " + 3 * KEEP_ALIVE_MILLIS + " ms");
    } catch (StatusException e) {
      failed(e);
    } finally {
      channel.shutdownNow();
    }
  }

  private static ManagedChannel channel(String server) {
    return NettyChannelBuilder.forTarget(server).usePlaintext().maxInboundMessageSize(MESSAGE_BYTES_MAX).build();
  }

  /** Asks a server about itself and learns the others from it. Returns the log's id. */
  private String greet(ManagedChannel channel, String server) throws Final, Elsewhere, StatusException, InterruptedException {
    var stub = LogGrpc.newBlockingV2Stub(channel).withDeadlineAfter(PATIENCE_MILLIS, TimeUnit.MILLISECONDS);
    var told = stub.serverInfo(ServerInfoRequest.getDefaultInstance());
    String log = told.getLogId();
    if (told.getProtocolMin() > PROTOCOL || told.getProtocolMax() < PROTOCOL) {
      throw new Final(server + " speaks revisions " + told.getProtocolMin() + " to " + told.getProtocolMax());
    } else if (!told.getFeaturesList().contains("read.min_index")) {
      throw new Final(server + " cannot be read from as this view does");
    } else if (log.isEmpty()) {
      throw new Elsewhere("it is part of no cluster yet");
    } else if (!view.log().isEmpty() && !view.log().equals(log)) {
      throw new Final(server + " has log " + log + ", and this is a view of log " + view.log());
    }
    for (var other : told.getServersList()) {
      if (!other.getAddress().isEmpty() && !servers.contains(other.getAddress())) {
        servers.add(other.getAddress());
      }
    }
    return log;
  }

  /** Applies a response's records. */
  private void take(String log, String server, ReadResponse response, boolean first) throws Elsewhere, SQLException {
    List<byte[]> wanted = new ArrayList<>();
    long due = next;
    for (StoredBatch stored : response.getBatchesList()) {
      // The first batch of a stream can begin before the requested record.
      if (stored.getFirst() > due || (stored.getFirst() < due && !first)) {
        throw new Elsewhere("it sent record " + stored.getFirst() + " where " + due + " is due");
      }
      List<byte[]> records;
      try {
        records = Batch.decode(stored.getBatch().toByteArray());
      } catch (Batch.Damaged e) {
        throw new Elsewhere("record " + stored.getFirst() + " and on: " + e.getMessage());
      }
      long skip = due - stored.getFirst();
      if (skip >= records.size()) {
        throw new Elsewhere("it sent records before " + due + ", which is due");
      }
      long end = Math.min(records.size() - skip, until - due + 1);
      wanted.addAll(records.subList((int) skip, (int) (skip + end)));
      due += end;
      first = false;
      if (due > until) {
        break;
      }
    }
    view.apply(log, next, wanted);
    next = due;
    progress = "applied index " + view.applied() + " of " + response.getLast() + ", from " + server;
  }

  /** A replica that was cut off from the others sends keep-alives for ever. Counts how often others had more. */
  private boolean othersHaveMore(String server, long last) throws InterruptedException {
    for (String other : servers) {
      if (!other.equals(server) && lastOf(other) > last) {
        return true;
      }
    }
    return false;
  }

  /** Asks a server for its last record; 0: no answer. */
  private static long lastOf(String server) throws InterruptedException {
    ManagedChannel channel = channel(server);
    try {
      var stub = LogGrpc.newBlockingV2Stub(channel).withDeadlineAfter(PATIENCE_MILLIS, TimeUnit.MILLISECONDS);
      return stub.info(InfoRequest.newBuilder().setAllowStale(true).build()).getLast();
    } catch (StatusException e) {
      return 0;
    } finally {
      channel.shutdownNow();
    }
  }

  /** By the status: errors that recur at any server are final; all others pass, or another server helps. */
  private void failed(StatusException e) throws Final, Elsewhere {
    Status.Code code = e.getStatus().getCode();
    Metadata trailers = e.getTrailers();
    if (code == Status.Code.OUT_OF_RANGE && trailers != null && KIND_DISCARDED.equals(trailers.get(KIND))) {
      String first = trailers.get(FIRST);
      skip(first == null ? 0 : Long.parseLong(first));
    }
    switch (code) {
      case INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, UNAUTHENTICATED, PERMISSION_DENIED -> throw new Final(e.getMessage());
      default -> throw new Elsewhere(e.getMessage());
    }
  }

  /** The next record is gone: a new view begins with the log's first one, another must end. */
  private void skip(long first) throws Final, Elsewhere {
    if (!view.log().isEmpty() || first <= next) {
      throw new Final(
          "discarded: record " + next + ", which this view needs next, is gone (the log begins with " + first
              + "); it has to be made again from a snapshot of what the records said");
    }
    if (until < first) {
      throw new Final("discarded: records " + next + " to " + (first - 1) + " are gone");
    }
    System.out.println(
        "discarded: records " + next + " to " + (first - 1) + " are gone; this view begins with record " + first);
    next = first; // nothing is written before that record is
    throw new Elsewhere("what came first is gone");
  }

  /** Prints the newest line of progress, from time to time. */
  private void tell() {
    String told = null;
    try {
      while (true) {
        String newest = progress;
        if (newest != null && !newest.equals(told)) {
          System.out.println(newest);
          told = newest;
        }
        Thread.sleep(TELL_MILLIS);
      }
    } catch (InterruptedException e) {
      // The view is done.
    }
  }

  @Override
  public void close() throws InterruptedException {
    telling.interrupt();
    telling.join();
  }
}
