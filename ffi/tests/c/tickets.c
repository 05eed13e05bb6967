/* Tickets, event loops and callbacks of the embedded log. argv[1]: a directory. */
#define _GNU_SOURCE
#include "embedded.h"
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

struct told {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls;
    chiplog_status_t status;
    chiplog_appended_t placed;
};

static void outcome(void *context, chiplog_status_t status, const chiplog_appended_t *placed, const chiplog_error_t *error) {
    struct told *told = context;
    pthread_mutex_lock(&told->lock);
    CHECK((status == CHIPLOG_OK) == (placed != NULL) && (placed == NULL) == (error != NULL));
    told->calls++;
    told->status = status;
    if (placed != NULL) told->placed = *placed;
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->lock);
}

static void notify(void *context) { outcome(context, CHIPLOG_OK, &(chiplog_appended_t){0, 0, 0, 0}, NULL); }

static void await(struct told *told, int calls) {
    pthread_mutex_lock(&told->lock);
    while (told->calls < calls) pthread_cond_wait(&told->changed, &told->lock);
    pthread_mutex_unlock(&told->lock);
}

static void tickets_and_batches(void) {
    chiplog_log_t *log = small("tickets");
    struct told told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 99, {0, 0, 0, 0}};
    chiplog_ticket_t *tickets[3];
    FINE(chiplog_log_submit(log, "a", 1, &tickets[0], &error));
    FINE(chiplog_log_try_submit(log, "b", 1, &tickets[1], &error));
    chiplog_slice_t records[2] = {{"c", 1}, {"d", 1}};
    FINE(chiplog_log_submit_records(log, records, 2, &tickets[2], &error));
    chiplog_appended_t placed;
    FINE(chiplog_ticket_wait(tickets[2], CHIPLOG_FOREVER, &placed, &error));
    CHECK(placed.first == 3 && placed.count == 2 && placed.durability == CHIPLOG_DURABILITY_MAJORITY);
    FINE(chiplog_ticket_wait(tickets[0], LONG_MS, &placed, &error));
    FINE(chiplog_ticket_wait(tickets[0], LONG_MS, NULL, NULL));
    CHECK(placed.first == 1);
    uint8_t done = 9;
    FINE(chiplog_ticket_poll(tickets[2], &done, &placed, &error));
    CHECK(done == 1 && placed.first == 3 && placed.durability == CHIPLOG_DURABILITY_MAJORITY);
    FINE(chiplog_ticket_on_complete(tickets[1], outcome, &told, &error));
    await(&told, 1);
    CHECK(told.status == CHIPLOG_OK && told.placed.first == 2 && told.placed.durability == CHIPLOG_DURABILITY_MAJORITY);
    GIVES(CHIPLOG_CLOSED, chiplog_ticket_wait(tickets[1], 0, &placed, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_ticket_on_complete(tickets[0], NULL, NULL, &error));
    chiplog_ticket_close(tickets[0]);
    chiplog_ticket_close(tickets[0]);
    chiplog_ticket_close(tickets[2]);
    FINE(chiplog_log_submit_barrier(log, LONG_MS, &tickets[0], &error));
    FINE(chiplog_ticket_on_complete(tickets[0], outcome, &told, &error));
    await(&told, 2);
    CHECK(told.placed.first == 4 && told.placed.durability == CHIPLOG_DURABILITY_UNKNOWN); /* a command */

    chiplog_builder_t *builder = NULL;
    chiplog_batch_t *batch = NULL, *same = NULL;
    FINE(chiplog_builder_open(&builder, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_builder_build(builder, &batch, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_builder_codec(builder, 9, &error));
    FINE(chiplog_builder_codec(builder, CHIPLOG_CODEC_ZSTD, &error));
    static char zeros[4096];
    FINE(chiplog_builder_push(builder, zeros, sizeof zeros, &error));
    chiplog_slice_t pieces[3] = {{"pie", 3}, {NULL, 0}, {"ces", 3}};
    FINE(chiplog_builder_push_pieces(builder, pieces, 3, &error));
    CHECK(chiplog_builder_count(builder) == 2 && chiplog_builder_encoded_bytes(builder) > sizeof zeros);
    FINE(chiplog_builder_build(builder, &batch, &error));
    CHECK(chiplog_batch_count(batch) == 2 && chiplog_batch_codec(batch) == CHIPLOG_CODEC_ZSTD);
    chiplog_slice_t bytes = chiplog_batch_bytes(batch);
    CHECK(bytes.length > 40 && bytes.length < 400);
    FINE(chiplog_batch_decode(bytes.data, bytes.length, &same, &error));
    GIVES(CHIPLOG_CORRUPT, chiplog_batch_decode("no batch", 8, &batch, &error));
    uint64_t session = 9, sequence = 9;
    FINE(chiplog_batch_session(same, &session, &sequence, &error));
    CHECK(session == 0 && sequence == 0 && batch == NULL);
    FINE(chiplog_log_append_batch(log, same, &placed, &error));
    FINE(chiplog_log_submit_batch(log, same, &tickets[0], &error));
    FINE(chiplog_log_try_submit_batch(log, same, &tickets[1], &error));
    chiplog_batch_close(same);
    FINE(chiplog_ticket_wait(tickets[1], LONG_MS, &placed, &error));
    CHECK(placed.first == 9 && placed.count == 2);
    chiplog_ticket_close(tickets[0]);
    chiplog_ticket_close(tickets[1]);
    chiplog_records_t *one = NULL;
    FINE(chiplog_log_read(log, 10, &one, &error));
    const chiplog_record_t *array;
    size_t count;
    FINE(chiplog_records_view(one, &array, &count, &error));
    CHECK(is(array, 10, "pieces"));
    chiplog_records_close(one);
    chiplog_builder_close(builder);
    CHECK(chiplog_builder_count(builder) == 0 && chiplog_batch_count(same) == 0);
    CHECK(chiplog_batch_bytes(same).data == NULL);
    FINE(chiplog_log_close(log, &error));
}

static void an_event_loop(void) {
    chiplog_log_t *log = small("loop");
    chiplog_reader_t *reader = NULL;
    FINE(chiplog_log_reader(log, CHIPLOG_START_NEXT, 0, &reader, &error));
    struct pollfd fd = {-1, POLLIN, 0};
    FINE(chiplog_reader_descriptor(reader, &fd.fd, &error));
    int again = -1;
    FINE(chiplog_reader_descriptor(reader, &again, &error));
    CHECK(fd.fd >= 0 && fd.fd == again && poll(&fd, 1, 0) == 0);
    for (uint64_t n = 1; n <= 100; n++) {
        append(log, "x", n);
        CHECK(poll(&fd, 1, (int)LONG_MS) == 1);
        chiplog_record_t record;
        FINE(chiplog_reader_next_record(reader, 0, &record, &error));
        CHECK(record.index == n);
        GIVES(CHIPLOG_TIMEOUT, chiplog_reader_next_record(reader, 0, &record, &error));
        CHECK(poll(&fd, 1, 0) == 0);
    }
    /* The end of the log is reported, too. */
    struct told told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 99, {0, 0, 0, 0}};
    chiplog_reader_t *second = NULL;
    FINE(chiplog_log_reader(log, CHIPLOG_START_NEXT, 0, &second, &error));
    FINE(chiplog_reader_on_more(second, notify, &told, &error));
    CHECK(told.calls == 0);
    FINE(chiplog_log_close(log, &error));
    await(&told, 1);
    CHECK(poll(&fd, 1, (int)LONG_MS) == 1);
    chiplog_record_t record;
    GIVES(CHIPLOG_CLOSED, chiplog_reader_next_record(reader, 0, &record, &error));
    CHECK(poll(&fd, 1, 0) == 1);
    chiplog_reader_close(reader);
    chiplog_reader_close(second);
}

struct pair {
    chiplog_reader_t *other;
    int calls;
};

static void touches_the_other(void *context) {
    struct pair *pair = context;
    chiplog_record_t record;
    chiplog_status_t status = chiplog_reader_next_record(pair->other, 0, &record, NULL);
    CHECK(status == CHIPLOG_OK || status == CHIPLOG_TIMEOUT);
    __atomic_add_fetch(&pair->calls, 1, __ATOMIC_SEQ_CST);
}

/* A thread that set a callback also ran all others' callbacks while its own reader was locked: two such threads deadlocked. */
static void callbacks_that_touch_another_reader(void) {
    enum { ROUNDS = 2000 };
    chiplog_log_t *log = small("touched");
    struct pair pairs[2] = {{NULL, 0}, {NULL, 0}};
    for (int n = 0; n < 2; n++) FINE(chiplog_log_reader(log, CHIPLOG_START_FIRST, 0, &pairs[1 - n].other, &error));
    for (int round = 0; round < ROUNDS; round++) {
        FINE(chiplog_reader_on_more(pairs[1].other, touches_the_other, &pairs[0], &error));
        chiplog_ticket_t *ticket = NULL;
        FINE(chiplog_log_submit(log, "x", 1, &ticket, &error));
        if (round % 8 == 7) FINE(chiplog_ticket_wait(ticket, LONG_MS, NULL, &error));
        chiplog_ticket_close(ticket);
        FINE(chiplog_reader_on_more(pairs[0].other, touches_the_other, &pairs[1], &error));
    }
    chiplog_reader_close(pairs[0].other);
    chiplog_reader_close(pairs[1].other);
    CHECK(__atomic_load_n(&pairs[0].calls, __ATOMIC_SEQ_CST) + __atomic_load_n(&pairs[1].calls, __ATOMIC_SEQ_CST) > 0);
    FINE(chiplog_log_close(log, &error));
}

int main(int argc, char **argv) {
    begin(argc, argv);
    tickets_and_batches();
    an_event_loop();
    callbacks_that_touch_another_reader();
    puts("all is well");
    return 0;
}
