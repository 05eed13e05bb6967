package clients;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32C;

/** A batch, as in docs/format.md. Not packed. */
final class Batch {
  private static final int HEADER_BYTES = 40;

  private Batch() {}

  static byte[] encode(long session, long sequence, List<byte[]> records) {
    int payload = records.stream().mapToInt(r -> r.length).sum();
    int body = payload + 4 * records.size();
    ByteBuffer batch = ByteBuffer.allocate(HEADER_BYTES + body).order(ByteOrder.LITTLE_ENDIAN);
    batch.putInt(0).putInt(HEADER_BYTES + body).putInt(records.size()).putInt(body);
    batch.putLong(session).putLong(sequence).putShort((short) (sequence - 1)).put(new byte[6]);
    records.forEach(batch::put);
    int end = 0;
    for (byte[] record : records) {
      end += record.length;
      batch.putInt(end);
    }
    batch.putInt(0, checksum(batch.array()));
    return batch.array();
  }

  static List<byte[]> decode(byte[] bytes) {
    ByteBuffer batch = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    if (batch.getInt(0) != checksum(bytes) || batch.getInt(4) != bytes.length || batch.get(34) != 0) {
      throw new IllegalStateException("a damaged or packed batch");
    }
    int count = batch.getInt(8);
    int table = bytes.length - 4 * count;
    List<byte[]> records = new ArrayList<>();
    int start = 0;
    for (int n = 0; n < count; n++) {
      int end = batch.getInt(table + 4 * n);
      byte[] record = new byte[end - start];
      batch.get(HEADER_BYTES + start, record);
      records.add(record);
      start = end;
    }
    return records;
  }

  private static int checksum(byte[] batch) {
    CRC32C crc = new CRC32C();
    crc.update(batch, 4, batch.length - 4);
    return (int) crc.getValue();
  }
}
