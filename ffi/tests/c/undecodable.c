/* An undecodable batch in a server's log. argv[2]: a server whose log has one record, three records that cannot be
 * decompressed, and one record. */
#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc > 2);
    const char *servers[1] = {argv[2]};
    chiplog_client_t *client = NULL;
    FINE(chiplog_client_connect(servers, 1, NULL, &client, &error));
    chiplog_reader_t *reader = NULL;
    FINE(chiplog_client_reader(client, CHIPLOG_START_FIRST, 0, NULL, &reader, &error));
    chiplog_record_t record;
    FINE(chiplog_reader_skip_batch(reader, NULL, &error));
    FINE(chiplog_reader_next_record(reader, LONG_MS, &record, &error));
    CHECK(record.index == 1 && record.length == 6 && memcmp(record.data, "before", 6) == 0);
    /* No call has returned UNDECODABLE yet. */
    uint64_t next = 0;
    FINE(chiplog_reader_skip_batch(reader, &next, &error));
    CHECK(next == 2);
    for (int n = 0; n < 2; n++)
        GIVES(CHIPLOG_UNDECODABLE, chiplog_reader_next_record(reader, LONG_MS, &record, &error));
    FINE(chiplog_reader_skip_batch(reader, &next, &error));
    CHECK(next == 5);
    FINE(chiplog_reader_skip_batch(reader, &next, &error));
    CHECK(next == 5);
    FINE(chiplog_reader_next_record(reader, LONG_MS, &record, &error));
    CHECK(record.index == 5 && record.length == 6 && memcmp(record.data, "behind", 6) == 0);
    /* At the end of the log it skips no later record. */
    FINE(chiplog_reader_skip_batch(reader, &next, &error));
    CHECK(next == 6);
    chiplog_producer_t *producer = NULL;
    FINE(chiplog_client_producer(client, NULL, &producer, &error));
    FINE(chiplog_producer_append(producer, "came", 4, &next, &error));
    FINE(chiplog_reader_next_record(reader, LONG_MS, &record, &error));
    CHECK(record.index == next && next == 6 && record.length == 4 && memcmp(record.data, "came", 4) == 0);
    chiplog_producer_close(producer);
    chiplog_reader_close(reader);
    chiplog_client_close(client);
    return 0;
}
