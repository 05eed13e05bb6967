/*
 * A log inside a program: appends records, reads them in order, and discards them from the front.
 *
 *   cc -o embedded embedded.c $(pkg-config --cflags --libs chiplog) && ./embedded /tmp/my-log
 */
#include <chiplog.h>
#include <stdio.h>
#include <string.h>

/* Prints the error, frees it, and ends main. */
static int failed(const char *what, chiplog_error_t *error) {
    fprintf(stderr, "%s: %s\n", what, chiplog_error_message(error));
    chiplog_error_close(error);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    chiplog_error_t *error = NULL;
    chiplog_log_options_t options;
    chiplog_log_options_for_segments(&options, sizeof options, 1 << 20); /* small files, for an example */
    chiplog_log_t *log = NULL;
    if (chiplog_log_open(argv[1], &options, &log, &error) != CHIPLOG_OK) return failed("open", error);

    /* One record: it is durable when this returns. */
    uint64_t index = 0;
    if (chiplog_log_append(log, "hello", 5, &index, &error) != CHIPLOG_OK) return failed("append", error);
    printf("durable at %llu\n", (unsigned long long)index);

    /* Several in one append, each from its own buffer: all of them are in the log, or none. */
    const char *words[] = {"to", "be", "or", "not"};
    chiplog_slice_t records[4];
    for (int i = 0; i < 4; i++) {
        records[i].data = words[i];
        records[i].length = strlen(words[i]);
    }
    chiplog_appended_t placed;
    if (chiplog_log_append_records(log, records, 4, &placed, &error) != CHIPLOG_OK) return failed("append", error);

    /* Appends without waiting; the ticket has the result. */
    chiplog_ticket_t *ticket = NULL;
    if (chiplog_log_submit(log, "world", 5, &ticket, &error) != CHIPLOG_OK) return failed("submit", error);
    chiplog_status_t status = chiplog_ticket_wait(ticket, CHIPLOG_FOREVER, &placed, &error);
    chiplog_ticket_close(ticket);
    if (status != CHIPLOG_OK) return failed("wait", error);

    /* All existing records, a run of batches at a time; the bytes are in the log's files until the run is closed. */
    chiplog_reader_t *reader = NULL;
    if (chiplog_log_reader(log, CHIPLOG_START_FIRST, 0, &reader, &error) != CHIPLOG_OK) return failed("reader", error);
    chiplog_records_t *run = NULL;
    while ((status = chiplog_reader_next_run(reader, 1 << 20, 0, &run, NULL)) == CHIPLOG_OK) {
        const chiplog_record_t *record = NULL;
        size_t count = 0;
        if (chiplog_records_view(run, &record, &count, &error) != CHIPLOG_OK) return failed("view", error);
        for (size_t i = 0; i < count; i++)
            printf("%llu: %.*s\n", (unsigned long long)record[i].index, (int)record[i].length,
                   (const char *)record[i].data);
        chiplog_records_close(run);
    }
    chiplog_reader_close(reader);
    if (status != CHIPLOG_TIMEOUT) return failed(chiplog_status_name(status), NULL); /* the end of the log */

    /* The first record is no longer needed. */
    if (chiplog_log_discard(log, index + 1, &error) != CHIPLOG_OK) return failed("discard", error);
    if (chiplog_log_close(log, &error) != CHIPLOG_OK) return failed("close", error);
    return 0;
}
