/*
 * A view that follows: a copy of a cluster's log in this program, and a result derived from it: here the number of records and
 * bytes. One event loop waits for records and for events of the copy.
 *
 *   cc -o follower_view follower_view.c $(pkg-config --cflags --libs chiplog)
 *   ./follower_view /tmp/copy 1000 127.0.0.1:7411      ends when the copy has record 1000
 */
#include <chiplog.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(const char *what, chiplog_error_t *error) {
    fprintf(stderr, "%s: %s\n", what, chiplog_error_message(error));
    chiplog_error_close(error);
    return 1;
}

/* The result that is derived from the log. */
struct view {
    unsigned long long records, bytes, last;
};

/* Takes all available records. CHIPLOG_TIMEOUT: there are no more yet. */
static chiplog_status_t take(chiplog_reader_t *reader, struct view *view, chiplog_error_t **error) {
    for (;;) {
        chiplog_records_t *run = NULL;
        chiplog_status_t status = chiplog_reader_next_run(reader, 1 << 20, 0, &run, error);
        if (status != CHIPLOG_OK) return status;
        const chiplog_record_t *record = NULL;
        size_t count = 0;
        status = chiplog_records_view(run, &record, &count, error);
        for (size_t i = 0; i < count; i++) {
            view->records++;
            view->bytes += record[i].length;
            view->last = record[i].index;
        }
        chiplog_records_close(run);
        if (status != CHIPLOG_OK) return status;
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s DIRECTORY RECORD HOST:PORT...\n", argv[0]);
        return 2;
    }
    unsigned long long until = strtoull(argv[2], NULL, 10);
    chiplog_error_t *error = NULL;
    chiplog_follower_t *follower = NULL;
    const char *const *servers = (const char *const *)(argv + 3);
    if (chiplog_follower_open(argv[1], servers, (size_t)argc - 3, CHIPLOG_START_FIRST, 0, NULL, &follower, &error) != CHIPLOG_OK)
        return failed("open", error);
    chiplog_reader_t *reader = NULL;
    if (chiplog_follower_reader(follower, CHIPLOG_START_FIRST, 0, &reader, &error) != CHIPLOG_OK)
        return failed("reader", error);

    struct pollfd fds[2] = {{-1, POLLIN, 0}, {-1, POLLIN, 0}};
    if (chiplog_reader_descriptor(reader, &fds[0].fd, &error) != CHIPLOG_OK) return failed("descriptor", error);
    if (chiplog_follower_descriptor(follower, &fds[1].fd, &error) != CHIPLOG_OK) return failed("descriptor", error);

    struct view view = {0, 0, 0};
    while (view.last < until) {
        if (poll(fds, 2, -1) < 0) continue;
        if (fds[1].revents) {
            chiplog_event_t event;
            event.size = sizeof event;
            chiplog_status_t status;
            while ((status = chiplog_follower_next_event(follower, 0, &event, NULL, NULL)) == CHIPLOG_OK) {
                if (event.kind == CHIPLOG_EVENT_CONNECTED || event.kind == CHIPLOG_EVENT_SWITCHED)
                    printf("fed by %s\n", event.server);
                if (event.kind == CHIPLOG_EVENT_FAILED)
                    printf("looks for a server: %s\n", chiplog_status_name(event.cause));
            }
            if (status == CHIPLOG_CLOSED) return failed("the follower has ended", NULL);
        }
        chiplog_status_t status = take(reader, &view, &error);
        if (status == CHIPLOG_DISCARDED) {
            /* It jumped over records that all servers had discarded: the view starts again. */
            chiplog_error_close(error);
            chiplog_reader_close(reader);
            view.records = view.bytes = 0;
            if (chiplog_follower_reader(follower, CHIPLOG_START_FIRST, 0, &reader, &error) != CHIPLOG_OK)
                return failed("reader", error);
            if (chiplog_reader_descriptor(reader, &fds[0].fd, &error) != CHIPLOG_OK) return failed("descriptor", error);
        } else if (status == CHIPLOG_TIMEOUT) {
            chiplog_error_close(error);
        } else {
            return failed("read", error);
        }
    }
    printf("%llu records, %llu bytes, up to %llu\n", view.records, view.bytes, view.last);
    chiplog_reader_close(reader);
    if (chiplog_follower_close(follower, &error) != CHIPLOG_OK) return failed("close", error);
    return 0;
}
