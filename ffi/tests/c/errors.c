/* Each error of the embedded log that a program can cause. argv[1]: a directory. */
#define _GNU_SOURCE
#include "embedded.h"
#include <signal.h>
#include <sys/resource.h>

static uint64_t fixed_clock(void *context) { return *(uint64_t *)context; }

static void errors(void) {
    chiplog_log_t *log = small("wrong"), *second = NULL;
    chiplog_log_options_t options;
    chiplog_log_options_init(&options, sizeof options);
    GIVES(CHIPLOG_LOCKED, chiplog_log_open(below("wrong"), NULL, &second, &error));
    options.create = 0;
    GIVES(CHIPLOG_NOT_FOUND, chiplog_log_open(below("none"), &options, &second, &error));
    options.create = 7;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_open(below("none"), &options, &second, &error));
    options.create = 1;
    options.segment_bytes = 5;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_open(below("none"), &options, &second, &error));
    options.segment_bytes = 64 << 20;
    options.object_store = "no/location";
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_open(below("none"), &options, &second, &error));
    options.object_store = "";
    options.cache_bytes = 1;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_open(below("none"), &options, &second, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_open(NULL, NULL, &second, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_open(below("none"), NULL, NULL, &error));
    CHECK(second == NULL);
    CHECK(chiplog_log_open(NULL, NULL, &second, NULL) == CHIPLOG_INVALID_ARGUMENT);

    /* A file in place of a directory; a segment full of garbage. */
    FILE *file = fopen(below("file"), "w");
    CHECK(file != NULL && fclose(file) == 0);
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_open(below("file"), NULL, &second, &error));
    char name[400];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    chiplog_error_t *kept = NULL;
    CHECK(chiplog_log_open(below(name), NULL, &second, &kept) == CHIPLOG_IO);
    CHECK(chiplog_error_os_error(kept) != 0 && !chiplog_error_is_retryable(kept) && !chiplog_error_is_fatal(kept));
    chiplog_error_close(kept);
    chiplog_error_close(kept);
    chiplog_error_close(NULL);
    CHECK(strcmp(chiplog_error_message(NULL), "") == 0);

    static char large[2 << 20];
    uint64_t index = 77;
    GIVES(CHIPLOG_TOO_LARGE, chiplog_log_append(log, large, sizeof large, &index, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_append(log, NULL, 5, &index, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_append(NULL, "x", 1, &index, &error));
    CHECK(index == 77);
    /* A handle of another kind, a made-up one, a closed one. */
    chiplog_reader_t *reader = NULL;
    FINE(chiplog_log_reader(log, CHIPLOG_START_FIRST, 0, &reader, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_append((chiplog_log_t *)(void *)reader, "x", 1, &index, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_append((chiplog_log_t *)(void *)&index, "x", 1, &index, &error));
    FINE(chiplog_log_close(log, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_log_close(log, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_log_append(log, "x", 1, &index, &error));
    FINE(chiplog_log_close(NULL, &error));
    chiplog_reader_close(NULL);
    chiplog_reader_close(reader);
    chiplog_reader_close(reader);
    CHECK(chiplog_log_path(log) == NULL);

    /* The capacity. */
    chiplog_log_options_for_segments(&options, sizeof options, 64 << 10);
    options.capacity_bytes = 128 << 10;
    uint64_t now = 1234567890123ull;
    options.clock = fixed_clock;
    options.clock_context = &now;
    options.read_by_copy = 1;
    FINE(chiplog_log_open(below("full"), &options, &log, &error));
    chiplog_status_t status;
    while ((status = chiplog_log_append(log, large, 5000, NULL, NULL)) == CHIPLOG_OK) {
    }
    CHECK(status == CHIPLOG_FULL);
    GIVES(CHIPLOG_FULL, chiplog_log_check_room(log, 5000, &error));
    chiplog_records_t *one = NULL;
    FINE(chiplog_log_read(log, 1, &one, &error));
    const chiplog_record_t *array;
    size_t count;
    FINE(chiplog_records_view(one, &array, &count, &error));
    CHECK(array->timestamp_ms == now);
    chiplog_records_close(one);
    FINE(chiplog_log_close(log, &error));

    /* Damage. */
    log = small("damaged");
    for (uint64_t n = 1; n <= 200; n++) FINE(chiplog_log_append(log, large, 1000, NULL, &error));
    FINE(chiplog_log_close(log, &error));
    char pattern[8192];
    char damaged[4096];
    snprintf(damaged, sizeof damaged, "%s", below("damaged"));
    snprintf(pattern, sizeof pattern,
             "for f in $(find '%s' -type f -size +100k); do yes garbage | head -c 3000 | dd of=\"$f\" bs=1000 seek=40 conv=notrunc iflag=fullblock 2>/dev/null; done",
             damaged);
    CHECK(system(pattern) == 0);
    chiplog_log_options_for_segments(&options, sizeof options, 1 << 20);
    GIVES(CHIPLOG_CORRUPT, chiplog_log_open(below("damaged"), &options, &log, &error));

    /* More than the queue accepts. */
    chiplog_log_options_for_segments(&options, sizeof options, 1 << 20);
    options.queue_appends_max = 1;
    FINE(chiplog_log_open(below("busy"), &options, &log, &error));
    chiplog_ticket_t *ticket = NULL;
    do {
        status = chiplog_log_try_submit(log, large, 1000, &ticket, NULL);
        chiplog_ticket_close(ticket);
    } while (status == CHIPLOG_OK);
    CHECK(status == CHIPLOG_BUSY);
    FINE(chiplog_log_close(log, &error));
}

/* The system refuses a write. Appends in flight have an unknown outcome, and the log accepts no more. */
static void a_disk_that_fails(void) {
    chiplog_log_t *log = small("failing");
    append(log, "x", 1);
    struct rlimit before, none;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0 && signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    none = before;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    GIVES(CHIPLOG_POISONED, chiplog_log_append(log, "y", 1, NULL, &error));
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    GIVES(CHIPLOG_POISONED, chiplog_log_append(log, "y", 1, NULL, &error));
    chiplog_error_t *cause = NULL;
    FINE(chiplog_log_poison_cause(log, &cause, &error));
    CHECK(cause != NULL && chiplog_error_is_fatal(cause));
    chiplog_error_close(cause);
    GIVES(CHIPLOG_POISONED, chiplog_log_close(log, &error));
}

static uint32_t crc32c(const unsigned char *bytes, size_t length) {
    uint32_t crc = ~0u;
    while (length-- > 0) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void put32(unsigned char *place, uint32_t value) {
    for (int n = 0; n < 4; n++) place[n] = (unsigned char)(value >> 8 * n);
}

/* Three records of 102,000 zeros in all, compressed, without the table of their ends. */
static size_t zeros_without_a_table(unsigned char *batch) {
    memset(batch, 0, 450);
    size_t n = 40;
    batch[n++] = 0x1f, batch[n++] = 0, batch[n++] = 1, batch[n++] = 0;
    memset(batch + n, 255, 399), n += 399;
    batch[n++] = 230, batch[n++] = 0x50, n += 5;
    put32(batch + 4, (uint32_t)n), put32(batch + 8, 3), put32(batch + 12, 102000);
    batch[34] = CHIPLOG_CODEC_LZ4;
    put32(batch, crc32c(batch + 4, n - 4));
    return n;
}

static void an_undecodable_batch(void) {
    chiplog_log_t *log = small("undecodable");
    append(log, "before", 1);
    unsigned char bytes[512];
    size_t length = zeros_without_a_table(bytes);
    chiplog_batch_t *batch = NULL;
    FINE(chiplog_batch_decode(bytes, length, &batch, &error));
    FINE(chiplog_log_append_batch(log, batch, NULL, &error));
    chiplog_batch_close(batch);
    put32(bytes + 12, 101999), put32(bytes, crc32c(bytes + 4, length - 4));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_batch_decode(bytes, length, &batch, &error));
    append(log, "behind", 5);
    chiplog_reader_t *reader = NULL;
    FINE(chiplog_log_reader(log, CHIPLOG_START_FIRST, 0, &reader, &error));
    chiplog_record_t record;
    FINE(chiplog_reader_next_record(reader, 0, &record, &error));
    uint64_t next = 0;
    FINE(chiplog_reader_skip_batch(reader, &next, &error));
    CHECK(next == 2);
    for (int n = 0; n < 2; n++) GIVES(CHIPLOG_UNDECODABLE, chiplog_reader_next_record(reader, 0, &record, &error));
    FINE(chiplog_reader_skip_batch(reader, &next, &error));
    CHECK(next == 5);
    FINE(chiplog_reader_next_record(reader, 0, &record, &error));
    CHECK(is(&record, 5, "behind"));
    FINE(chiplog_reader_skip_batch(reader, NULL, &error));
    GIVES(CHIPLOG_TIMEOUT, chiplog_reader_next_record(reader, 0, &record, &error));
    chiplog_reader_close(reader);
    FINE(chiplog_log_close(log, &error));
}

/* A directory whose header requires a reader of a later version: docs/format.md. */
static void a_log_of_a_later_version(void) {
    chiplog_log_t *log = small("later");
    FINE(chiplog_log_close(log, &error));
    unsigned char id[512];
    FILE *file = fopen(below("later/chiplog.id"), "r+");
    CHECK(file != NULL && fread(id, 1, sizeof id, file) == sizeof id);
    memset(id + 16, 0x7f, 4);
    uint32_t crc = crc32c(id + 12, sizeof id - 12);
    for (int n = 0; n < 4; n++) id[8 + n] = (unsigned char)(crc >> (8 * n));
    CHECK(fseek(file, 0, SEEK_SET) == 0 && fwrite(id, 1, sizeof id, file) == sizeof id && fclose(file) == 0);
    GIVES(CHIPLOG_UNSUPPORTED, chiplog_log_open(below("later"), NULL, &log, &error));
    chiplog_read_only_log_t *read_only = NULL;
    GIVES(CHIPLOG_UNSUPPORTED, chiplog_read_only_log_open(below("later"), &read_only, &error));
}

int main(int argc, char **argv) {
    begin(argc, argv);
    errors();
    a_disk_that_fails();
    an_undecodable_batch();
    a_log_of_a_later_version();
    puts("all is well");
    return 0;
}
