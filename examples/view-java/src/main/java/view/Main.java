package view;

import java.util.ArrayList;
import java.util.List;

/**
 * A view of a log, in Java: a table of lines and an index of words in SQLite, made from a cluster's records. It reads them over
 * gRPC, from the native service chiplog.v1.Log, and continues at another server when one fails.
 *
 * <pre>
 *   mvn -q package
 *   java -cp "target/classes:$(cat target/classpath)" view.Main \
 *     --cluster 127.0.0.1:7411,127.0.0.1:7414 --db view.db [--until INDEX]
 *
 *   Main      arguments
 *   Follower  which server, one stream after the other; checks that nothing is missing
 *   Batch     batches as they are in the log, checked and unpacked
 *   View      the tables, and their position
 * </pre>
 */
public final class Main {
  public static void main(String[] args) throws Exception {
    String db = null;
    long until = Long.MAX_VALUE;
    List<String> cluster = new ArrayList<>();
    for (int n = 0; n < args.length; n += 2) {
      String value = n + 1 < args.length ? args[n + 1] : usage();
      switch (args[n]) {
        case "--cluster" -> cluster.addAll(List.of(value.split(",")));
        case "--db" -> db = value;
        case "--until" -> until = Long.parseLong(value);
        default -> usage();
      }
    }
    if (db == null || cluster.isEmpty()) {
      usage();
    }
    try (View view = new View(db)) {
      try (Follower follower = new Follower(cluster, view, until)) {
        follower.run();
      }
      System.out.println(view.summary());
    } catch (Follower.Final failed) {
      System.err.println("view: " + failed.getMessage());
      System.exit(1);
    }
  }

  private static String usage() {
    System.err.println(
        "usage: view --cluster host:port[,host:port…] --db FILE [--until INDEX]\n"
            + "  --cluster  servers; one that runs is enough, it names the others\n"
            + "  --db       the view's SQLite file; created if it is missing\n"
            + "  --until    end once this record is applied; not given: follow for ever");
    System.exit(2);
    return null;
  }
}
