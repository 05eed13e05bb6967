/* chiplog_reader_cancel: one thread ends a call that waits on another. argv[1]: a directory, argv[2]: a server. */
#define _GNU_SOURCE
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

static chiplog_log_t *log_here;
static chiplog_client_t *client;

enum call { NEXT_RECORD, NEXT_BATCH, NEXT_RUN, WAIT, CALLS };

struct waiter {
    chiplog_reader_t *reader;
    enum call call;
    chiplog_status_t status;
};

/* Reads until a call fails. */
static void *waits(void *context) {
    struct waiter *waiter = context;
    do {
        chiplog_record_t record;
        chiplog_records_t *records = NULL;
        switch (waiter->call) {
        case NEXT_RECORD: waiter->status = chiplog_reader_next_record(waiter->reader, CHIPLOG_FOREVER, &record, NULL); break;
        case NEXT_BATCH: waiter->status = chiplog_reader_next_batch(waiter->reader, CHIPLOG_FOREVER, &records, NULL); break;
        case NEXT_RUN: waiter->status = chiplog_reader_next_run(waiter->reader, 1 << 20, CHIPLOG_FOREVER, &records, NULL); break;
        default: waiter->status = chiplog_reader_wait(waiter->reader, CHIPLOG_FOREVER, NULL); break;
        }
        chiplog_records_close(records);
    } while (waiter->status == CHIPLOG_OK);
    return NULL;
}

static pthread_t start(struct waiter *waiter, chiplog_reader_t *reader, enum call call) {
    pthread_t thread;
    waiter->reader = reader;
    waiter->call = call;
    waiter->status = CHIPLOG_OK;
    CHECK(pthread_create(&thread, NULL, waits, waiter) == 0);
    return thread;
}

static chiplog_reader_t *tail(int is_remote) {
    chiplog_reader_t *reader = NULL;
    if (is_remote) FINE(chiplog_client_reader(client, CHIPLOG_START_NEXT, 0, NULL, &reader, &error));
    else FINE(chiplog_log_reader(log_here, CHIPLOG_START_NEXT, 0, &reader, &error));
    return reader;
}

/* Each way to wait, a second thread that waits for its turn, and each later call. */
static void a_call_that_waits(int is_remote) {
    for (int call = 0; call < CALLS; call++) {
        chiplog_reader_t *reader = tail(is_remote);
        struct waiter one, other;
        pthread_t first = start(&one, reader, (enum call)call), second = start(&other, reader, NEXT_BATCH);
        if (call % 2) usleep(100 * 1000); /* by then they wait, or are about to: both are fine */
        FINE(chiplog_reader_cancel(reader, &error));
        pthread_join(first, NULL);
        pthread_join(second, NULL);
        CHECK(one.status == CHIPLOG_CANCELLED && other.status == CHIPLOG_CANCELLED);
        GIVES(CHIPLOG_CANCELLED, chiplog_reader_wait(reader, 0, &error));
        FINE(chiplog_reader_cancel(reader, &error));
        chiplog_reader_close(reader);
        GIVES(CHIPLOG_CLOSED, chiplog_reader_cancel(reader, &error));
    }
}

/* The reader is closed while the call on the other thread is ending. */
static void closed_at_once(int is_remote) {
    for (int n = 0; n < 20; n++) {
        struct waiter waiter;
        chiplog_reader_t *reader = tail(is_remote);
        pthread_t thread = start(&waiter, reader, NEXT_RECORD);
        if (n % 2) usleep(1000);
        FINE(chiplog_reader_cancel(reader, &error));
        chiplog_reader_close(reader);
        pthread_join(thread, NULL);
        /* If the call had not begun, it finds the handle closed. */
        CHECK(waiter.status == CHIPLOG_CANCELLED || waiter.status == CHIPLOG_CLOSED);
    }
}

struct late { int is_closed, ran_late; };

static void runs(void *context) {
    struct late *late = context;
    if (__atomic_load_n(&late->is_closed, __ATOMIC_SEQ_CST)) __atomic_store_n(&late->ran_late, 1, __ATOMIC_SEQ_CST);
}

/* The context is the caller's again once the reader was closed, also while another thread still waits with it. */
static void no_callback_after_the_close(int is_cancelled) {
    for (int n = 0; n < 30; n++) {
        struct waiter waiter;
        struct late late = {0, 0};
        chiplog_reader_t *reader = tail(0);
        FINE(chiplog_reader_on_more(reader, runs, &late, &error));
        pthread_t thread = start(&waiter, reader, WAIT);
        usleep(2000); /* by then it waits, mostly */
        if (is_cancelled) FINE(chiplog_reader_cancel(reader, &error));
        chiplog_reader_close(reader);
        __atomic_store_n(&late.is_closed, 1, __ATOMIC_SEQ_CST);
        FINE(chiplog_log_append(log_here, "x", 1, NULL, &error));
        pthread_join(thread, NULL);
        usleep(1000);
        CHECK(!__atomic_load_n(&late.ran_late, __ATOMIC_SEQ_CST));
    }
}

static void *appends(void *context) {
    for (int n = 0; n < 300; n++) FINE(chiplog_log_append(log_here, "x", 1, NULL, &error));
    return context;
}

/* A busy log: a cancelled reader ends, whatever the writer does at that moment. */
static void beside_a_writer(void) {
    pthread_t writer;
    CHECK(pthread_create(&writer, NULL, appends, NULL) == 0);
    for (int n = 0; n < 300; n++) {
        struct waiter waiter;
        chiplog_reader_t *reader = tail(0);
        pthread_t thread = start(&waiter, reader, (enum call)(n % WAIT)); /* not WAIT: it reads nothing and would not wait again */
        FINE(chiplog_reader_cancel(reader, &error));
        pthread_join(thread, NULL);
        CHECK(waiter.status == CHIPLOG_CANCELLED);
        chiplog_reader_close(reader);
    }
    pthread_join(writer, NULL);
}

/* Also if there is something to read: nothing is read, and another reader continues there. */
static void what_was_not_read_stays(void) {
    FINE(chiplog_log_append(log_here, "there", 5, NULL, &error));
    chiplog_reader_t *reader = NULL;
    FINE(chiplog_log_reader(log_here, CHIPLOG_START_LAST, 1, &reader, &error));
    uint64_t before = 0, after = 0;
    FINE(chiplog_reader_position(reader, &before, &error));
    FINE(chiplog_reader_cancel(reader, &error));
    chiplog_record_t record;
    chiplog_records_t *records = NULL;
    GIVES(CHIPLOG_CANCELLED, chiplog_reader_next_record(reader, CHIPLOG_FOREVER, &record, &error));
    GIVES(CHIPLOG_CANCELLED, chiplog_reader_next_run(reader, 1, 0, &records, &error));
    FINE(chiplog_reader_position(reader, &after, &error));
    CHECK(before == after && records == NULL);
    chiplog_reader_t *other = NULL;
    FINE(chiplog_log_reader(log_here, CHIPLOG_START_INDEX, after, &other, &error));
    FINE(chiplog_reader_next_record(other, 0, &record, &error));
    CHECK(record.length == 5 && memcmp(record.data, "there", 5) == 0);
    chiplog_reader_close(other);
    chiplog_reader_close(reader);
}

static void notify(void *context) {
    char byte = 1;
    CHECK(write(*(int *)context, &byte, 1) == 1);
}

static int readable(int descriptor, int timeout_ms) {
    struct pollfd fd = {descriptor, POLLIN, 0};
    return poll(&fd, 1, timeout_ms) == 1;
}

/* Descriptors and callbacks are notified as well. */
static void event_loops(int is_remote) {
    chiplog_reader_t *reader = tail(is_remote);
    chiplog_record_t record;
    int descriptor = -1;
    FINE(chiplog_reader_descriptor(reader, &descriptor, &error));
    GIVES(CHIPLOG_TIMEOUT, chiplog_reader_next_record(reader, 0, &record, &error));
    CHECK(!readable(descriptor, 0));
    FINE(chiplog_reader_cancel(reader, &error));
    CHECK(readable(descriptor, (int)LONG_MS));
    GIVES(CHIPLOG_CANCELLED, chiplog_reader_next_record(reader, 0, &record, &error));
    chiplog_reader_close(reader);

    int ends[2];
    for (int is_cancelled_first = 0; is_cancelled_first < 2; is_cancelled_first++) {
        CHECK(pipe(ends) == 0);
        reader = tail(is_remote);
        if (is_cancelled_first) FINE(chiplog_reader_cancel(reader, &error));
        FINE(chiplog_reader_on_more(reader, notify, &ends[1], &error));
        if (!is_cancelled_first) FINE(chiplog_reader_cancel(reader, &error));
        CHECK(readable(ends[0], (int)LONG_MS));
        chiplog_reader_close(reader);
        close(ends[0]);
        close(ends[1]);
    }
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    char path[4096];
    snprintf(path, sizeof path, "%s/log", argv[1]);
    chiplog_log_options_t options;
    chiplog_log_options_for_segments(&options, sizeof options, 1 << 20);
    FINE(chiplog_log_open(path, &options, &log_here, &error));
    const char *servers[] = {argv[2]};
    FINE(chiplog_client_connect(servers, 1, NULL, &client, &error));
    for (int is_remote = 0; is_remote < 2; is_remote++) {
        a_call_that_waits(is_remote);
        closed_at_once(is_remote);
        event_loops(is_remote);
    }
    no_callback_after_the_close(0);
    no_callback_after_the_close(1);
    beside_a_writer();
    what_was_not_read_stays();
    chiplog_client_close(client);
    FINE(chiplog_log_close(log_here, &error));
    puts("all is well");
    return 0;
}
