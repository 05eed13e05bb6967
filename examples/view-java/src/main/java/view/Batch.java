package view;

import com.github.luben.zstd.Zstd;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.zip.CRC32C;
import net.jpountz.lz4.LZ4Factory;
import net.jpountz.lz4.LZ4SafeDecompressor;

/** A batch as it is in the log: docs/format.md, section 5. */
final class Batch {
  /** The greatest length of a batch. */
  static final int BYTES_MAX = 256 << 20;

  private static final int HEADER_BYTES = 40;
  private static final int RECORDS_MAX = 1 << 20;
  private static final int CODEC_NONE = 0;
  private static final int CODEC_LZ4 = 1;
  private static final int CODEC_ZSTD = 2;
  /** Safe: it never reads or writes outside its buffers, whatever they hold. */
  private static final LZ4SafeDecompressor LZ4 = LZ4Factory.fastestInstance().safeDecompressor();

  private Batch() {}

  /** The bytes are not a valid batch. */
  static final class Damaged extends Exception {
    Damaged(String what) {
      super(what);
    }
  }

  /** Checks a batch and returns its records. */
  static List<byte[]> decode(byte[] bytes) throws Damaged {
    check(bytes.length >= HEADER_BYTES, "a batch is shorter than its header");
    ByteBuffer header = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    int length = header.getInt(4);
    int count = header.getInt(8);
    int unpacked = header.getInt(12);
    int codec = header.get(34);
    check(codec >= CODEC_NONE && codec <= CODEC_ZSTD, "codec " + codec + " is not known");
    check(header.get(35) == 0 && header.getInt(36) == 0, "bytes of a batch that are for later are not zero");
    check(length == bytes.length, "a batch of " + bytes.length + " bytes says that it has " + Integer.toUnsignedLong(length));
    check(count >= 1 && count <= RECORDS_MAX, "a batch of " + Integer.toUnsignedLong(count) + " records");
    boolean fits = unpacked >= 4 * count && unpacked <= BYTES_MAX;
    check(fits && (codec != CODEC_NONE || unpacked == length - HEADER_BYTES), "a batch's body of " + unpacked + " bytes");
    check((header.getLong(16) == 0) == (header.getLong(24) == 0), "a batch's session has no number, or its number no session");
    check(header.getInt(0) == checksum(bytes), "a batch fails its checksum");
    byte[] body = unpack(codec, bytes, unpacked);
    ByteBuffer table = ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN);
    int payload = unpacked - 4 * count;
    List<byte[]> records = new ArrayList<>(count);
    int start = 0;
    for (int n = 0; n < count; n++) {
      int end = table.getInt(payload + 4 * n);
      check(end >= start && end <= payload, "record " + n + " of a batch ends at " + Integer.toUnsignedLong(end));
      records.add(Arrays.copyOfRange(body, start, end));
      start = end;
    }
    check(start == payload, "a batch's last record ends before its payload does");
    return records;
  }

  private static byte[] unpack(int codec, byte[] bytes, int length) throws Damaged {
    if (codec == CODEC_NONE) {
      return Arrays.copyOfRange(bytes, HEADER_BYTES, bytes.length);
    }
    byte[] body = new byte[length];
    int packed = bytes.length - HEADER_BYTES;
    try {
      long got =
          codec == CODEC_LZ4
              ? LZ4.decompress(bytes, HEADER_BYTES, packed, body, 0, length)
              : Zstd.decompressByteArray(body, 0, length, bytes, HEADER_BYTES, packed);
      check(got == length, "a batch does not unpack to " + length + " bytes");
      return body;
    } catch (RuntimeException e) { // theirs have no other common ancestor
      throw new Damaged("a batch does not unpack: " + e.getMessage());
    }
  }

  private static int checksum(byte[] batch) {
    CRC32C crc = new CRC32C();
    crc.update(batch, 4, batch.length - 4);
    return (int) crc.getValue();
  }

  private static void check(boolean holds, String what) throws Damaged {
    if (!holds) {
      throw new Damaged(what);
    }
  }
}
