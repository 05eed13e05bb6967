package view;

import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Two tables that are made from the log, and their position, in one SQLite file.
 *
 * <p>The changes of a run of records and the index of its last one are written in one transaction. Whenever the program dies, the
 * file holds the records up to {@link #applied}, each once, and none after them.
 */
final class View implements AutoCloseable {
  private static final String[] SCHEMA = {
    // A power cut can take the last transactions, whole ones, and the index with them: the log sends their records again.
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "CREATE TABLE IF NOT EXISTS lines (idx INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID",
    // One row: the log that the tables are of, and the last record in them.
    "CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 1), log TEXT NOT NULL, applied INTEGER NOT NULL)",
  };

  private final Connection connection;
  private String log = "";
  private long applied;

  /** Opens the file, or creates it. */
  View(String file) throws SQLException {
    connection = DriverManager.getConnection("jdbc:sqlite:" + file);
    try (Statement statement = connection.createStatement()) {
      for (String part : SCHEMA) {
        statement.execute(part);
      }
      try (ResultSet row = statement.executeQuery("SELECT log, applied FROM position")) {
        if (row.next()) {
          log = row.getString(1);
          applied = row.getLong(2);
        }
      }
    }
    connection.setAutoCommit(false);
  }

  /** The log that the tables are of; empty: none yet. */
  String log() {
    return log;
  }

  /** The last record in the tables; 0: none. */
  long applied() {
    return applied;
  }

  /** Applies consecutive records of this log, from {@code first} on: all of them, or none. */
  void apply(String log, long first, List<byte[]> records) throws SQLException {
    long next = first;
    // The bytes as they arrived, which a string need not be.
    try (PreparedStatement line = connection.prepareStatement("INSERT INTO lines (idx, text) VALUES (?, CAST(? AS TEXT))");
        PreparedStatement count =
            connection.prepareStatement(
                "INSERT INTO words (word, count) VALUES (?, ?)"
                    + " ON CONFLICT (word) DO UPDATE SET count = count + excluded.count");
        PreparedStatement position =
            connection.prepareStatement("INSERT OR REPLACE INTO position (id, log, applied) VALUES (1, ?, ?)")) {
      Map<String, Long> counts = new HashMap<>();
      for (byte[] record : records) {
        line.setLong(1, next++);
        line.setBytes(2, record);
        line.addBatch();
        words(record).forEach(word -> counts.merge(word, 1L, Long::sum));
      }
      line.executeBatch();
      for (Map.Entry<String, Long> word : counts.entrySet()) {
        count.setString(1, word.getKey());
        count.setLong(2, word.getValue());
        count.addBatch();
      }
      count.executeBatch();
      position.setString(1, log);
      position.setLong(2, next - 1);
      position.executeUpdate();
      connection.commit();
    } catch (SQLException e) {
      connection.rollback();
      throw e;
    }
    this.log = log;
    applied = next - 1;
  }

  /** Counts the records and words. */
  String summary() throws SQLException {
    try (Statement statement = connection.createStatement();
        ResultSet row =
            statement.executeQuery(
                "SELECT (SELECT count(*) FROM lines), count(*), coalesce(sum(count), 0) FROM words")) {
      row.next();
      return String.format(
          "%d records, %d distinct words, %d words, last index %d", row.getLong(1), row.getLong(2), row.getLong(3), applied);
    }
  }

  /** The runs of ASCII letters, in lower case. */
  static List<String> words(byte[] line) {
    List<String> found = new ArrayList<>();
    byte[] word = new byte[line.length];
    int length = 0;
    for (int n = 0; n <= line.length; n++) {
      int letter = n < line.length ? line[n] | 0x20 : 0;
      if (letter >= 'a' && letter <= 'z') {
        word[length++] = (byte) letter;
      } else if (length > 0) {
        found.add(new String(word, 0, length, StandardCharsets.US_ASCII));
        length = 0;
      }
    }
    return found;
  }

  @Override
  public void close() throws SQLException {
    connection.close();
  }
}
