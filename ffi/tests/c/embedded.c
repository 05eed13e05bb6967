/* The embedded log from C: each of its functions, and each error that a program can cause. argv[1]: a directory.
 * Last argument "no-fork": skips forks, because valgrind reports a child's copy of its parent's memory as lost. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[3000];

static const char *below(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static chiplog_log_t *small(const char *name) {
    chiplog_log_options_t options;
    chiplog_log_options_for_segments(&options, sizeof options, 1 << 20);
    chiplog_log_t *log = NULL;
    FINE(chiplog_log_open(below(name), &options, &log, &error));
    return log;
}

static void append(chiplog_log_t *log, const char *text, uint64_t wanted) {
    uint64_t index = 0;
    FINE(chiplog_log_append(log, text, strlen(text), &index, &error));
    CHECK(index == wanted);
}

static int is(const chiplog_record_t *record, uint64_t index, const char *text) {
    return record->index == index && record->length == strlen(text) && memcmp(record->data, text, record->length) == 0;
}

static void versions(void) {
    CHECK(strcmp(chiplog_version(), CHIPLOG_VERSION) == 0);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", CHIPLOG_VERSION_MAJOR, CHIPLOG_VERSION_MINOR, CHIPLOG_VERSION_PATCH);
    CHECK(strcmp(version, CHIPLOG_VERSION) == 0);
    CHECK(strcmp(chiplog_status_name(CHIPLOG_OUT_OF_RANGE), "out_of_range") == 0);
    CHECK(strcmp(chiplog_status_name(4711), "unknown") == 0);
}

static void append_and_read(void) {
    chiplog_log_t *log = small("plain");
    CHECK(strcmp(chiplog_log_path(log), below("plain")) == 0);
    append(log, "one", 1);
    append(log, "", 2);
    chiplog_slice_t records[3] = {{"two", 3}, {NULL, 0}, {"three", 5}};
    chiplog_appended_t placed = {0, 0};
    FINE(chiplog_log_append_records(log, records, 3, &placed, &error));
    CHECK(placed.first == 3 && placed.count == 3);
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_append_records(log, records, 0, NULL, &error));

    chiplog_reader_t *reader = NULL;
    FINE(chiplog_log_reader(log, CHIPLOG_START_FIRST, 0, &reader, &error));
    chiplog_record_t record;
    FINE(chiplog_reader_next_record(reader, 0, &record, &error));
    CHECK(is(&record, 1, "one") && record.timestamp_ms > 1600000000000ull);
    chiplog_records_t *batch = NULL, *rest = NULL, *one = NULL;
    FINE(chiplog_reader_next_batch(reader, 0, &batch, &error));
    FINE(chiplog_reader_next_run(reader, 1 << 20, 0, &rest, &error));
    const chiplog_record_t *array = NULL;
    size_t count = 0;
    FINE(chiplog_records_view(batch, &array, &count, &error));
    CHECK(count == 1 && is(array, 2, "") && array->data != NULL);
    uint64_t position = 0;
    FINE(chiplog_reader_position(reader, &position, &error));
    CHECK(position == 6);
    GIVES(CHIPLOG_TIMEOUT, chiplog_reader_next_record(reader, 0, &record, &error));
    GIVES(CHIPLOG_TIMEOUT, chiplog_reader_next_run(reader, 100, 10, &batch, &error));
    GIVES(CHIPLOG_TIMEOUT, chiplog_reader_wait(reader, 10, &error));
    CHECK(batch == NULL);
    FINE(chiplog_reader_seek(reader, CHIPLOG_START_INDEX, 5, &error));
    GIVES(CHIPLOG_OUT_OF_RANGE, chiplog_reader_seek(reader, CHIPLOG_START_INDEX, 9, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_reader_seek(reader, CHIPLOG_START_FIRST, 0, &error));
    FINE(chiplog_reader_wait(reader, CHIPLOG_FOREVER, &error));
    FINE(chiplog_reader_next_record(reader, CHIPLOG_FOREVER, &record, &error));
    CHECK(is(&record, 5, "three"));
    char server[8] = "x";
    FINE(chiplog_reader_server(reader, server, sizeof server, &error));
    CHECK(server[0] == 0);
    FINE(chiplog_log_read(log, 3, &one, &error));
    GIVES(CHIPLOG_OUT_OF_RANGE, chiplog_log_read(log, 6, &batch, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_reader(log, 99, 0, &reader, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_reader(log, CHIPLOG_START_FIRST, 7, &reader, &error));
    CHECK(reader == NULL);

    chiplog_info_t info;
    info.size = sizeof info;
    FINE(chiplog_log_info(log, &info, &error));
    CHECK(info.first == 1 && info.last == 5 && info.durable == 5 && info.follows == 0 && strlen(info.log_id) == 32);
    chiplog_stats_t stats;
    stats.size = sizeof stats;
    FINE(chiplog_log_stats(log, &stats, &error));
    CHECK(stats.appends == 3 && stats.records == 5 && stats.syncs > 0);
    chiplog_backlog_t backlog;
    backlog.size = sizeof backlog;
    FINE(chiplog_log_backlog(log, &backlog, &error));
    CHECK(backlog.queue_appends == 0);
    chiplog_log_options_t options;
    options.size = sizeof options;
    FINE(chiplog_log_options(log, &options, &error));
    CHECK(options.segment_bytes == 1 << 20 && options.create == 1);
    chiplog_error_t *cause = NULL;
    FINE(chiplog_log_poison_cause(log, &cause, &error));
    CHECK(cause == NULL);
    uint64_t last = 0;
    FINE(chiplog_log_barrier(log, LONG_MS, &last, &error));
    CHECK(last == 5);
    FINE(chiplog_log_wait_for(log, 5, 0, &error));
    GIVES(CHIPLOG_TIMEOUT, chiplog_log_wait_for(log, 6, 10, &error));
    FINE(chiplog_log_check_room(log, 100, &error));
    FINE(chiplog_log_discard(log, 5, &error));
    GIVES(CHIPLOG_DISCARDED, chiplog_log_read(log, 3, &batch, &error));
    GIVES(CHIPLOG_DISCARDED, chiplog_log_reader(log, CHIPLOG_START_INDEX, 2, &reader, &error));
    chiplog_ticket_t *ticket = NULL;
    FINE(chiplog_log_submit_discard(log, 6, &ticket, &error));
    FINE(chiplog_ticket_wait(ticket, LONG_MS, NULL, &error));
    chiplog_ticket_close(ticket);

    /* Records that were read stay valid after a discard and a close. */
    FINE(chiplog_log_close(log, &error));
    FINE(chiplog_records_view(rest, &array, &count, &error));
    CHECK(count == 3 && is(&array[0], 3, "two") && is(&array[1], 4, "") && is(&array[2], 5, "three"));
    FINE(chiplog_records_view(one, &array, &count, &error));
    CHECK(count == 1 && is(array, 3, "two"));
    chiplog_records_close(rest);
    chiplog_records_close(one);
    GIVES(CHIPLOG_CLOSED, chiplog_records_view(one, &array, &count, &error));
    CHECK(array == NULL && count == 0);
}

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

static void notify(void *context) { outcome(context, CHIPLOG_OK, &(chiplog_appended_t){0, 0}, NULL); }

static void await(struct told *told, int calls) {
    pthread_mutex_lock(&told->lock);
    while (told->calls < calls) pthread_cond_wait(&told->changed, &told->lock);
    pthread_mutex_unlock(&told->lock);
}

static void tickets_and_batches(void) {
    chiplog_log_t *log = small("tickets");
    struct told told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 99, {0, 0}};
    chiplog_ticket_t *tickets[3];
    FINE(chiplog_log_submit(log, "a", 1, &tickets[0], &error));
    FINE(chiplog_log_try_submit(log, "b", 1, &tickets[1], &error));
    chiplog_slice_t records[2] = {{"c", 1}, {"d", 1}};
    FINE(chiplog_log_submit_records(log, records, 2, &tickets[2], &error));
    chiplog_appended_t placed;
    FINE(chiplog_ticket_wait(tickets[2], CHIPLOG_FOREVER, &placed, &error));
    CHECK(placed.first == 3 && placed.count == 2);
    FINE(chiplog_ticket_wait(tickets[0], LONG_MS, &placed, &error));
    FINE(chiplog_ticket_wait(tickets[0], LONG_MS, NULL, NULL));
    CHECK(placed.first == 1);
    uint8_t done = 9;
    FINE(chiplog_ticket_poll(tickets[2], &done, &placed, &error));
    CHECK(done == 1 && placed.first == 3);
    FINE(chiplog_ticket_on_complete(tickets[1], outcome, &told, &error));
    await(&told, 1);
    CHECK(told.status == CHIPLOG_OK && told.placed.first == 2);
    GIVES(CHIPLOG_CLOSED, chiplog_ticket_wait(tickets[1], 0, &placed, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_ticket_on_complete(tickets[0], NULL, NULL, &error));
    chiplog_ticket_close(tickets[0]);
    chiplog_ticket_close(tickets[0]);
    chiplog_ticket_close(tickets[2]);
    FINE(chiplog_log_submit_barrier(log, LONG_MS, &tickets[0], &error));
    FINE(chiplog_ticket_on_complete(tickets[0], outcome, &told, &error));
    await(&told, 2);
    CHECK(told.placed.first == 4);

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
    struct told told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 99, {0, 0}};
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

/* Stops the writer thread. 1: it is stopped; 2: it may continue. */
struct held {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stands, may_go;
};

static void stands_still(void *context, chiplog_status_t status, const chiplog_appended_t *placed, const chiplog_error_t *error) {
    struct held *held = context;
    CHECK(status == CHIPLOG_OK && placed != NULL && error == NULL);
    pthread_mutex_lock(&held->lock);
    held->stands = 1;
    pthread_cond_broadcast(&held->changed);
    while (!held->may_go) pthread_cond_wait(&held->changed, &held->lock);
    pthread_mutex_unlock(&held->lock);
}

static void held_until(struct held *held, int step) {
    pthread_mutex_lock(&held->lock);
    if (step == 2) held->may_go = 1;
    pthread_cond_broadcast(&held->changed);
    while (step == 1 && !held->stands) pthread_cond_wait(&held->changed, &held->lock);
    pthread_mutex_unlock(&held->lock);
}

static void sessions(void) {
    chiplog_log_options_t options;
    chiplog_log_options_for_segments(&options, sizeof options, 1 << 20);
    options.sessions_max = 2;
    options.session_window = 2;
    chiplog_log_t *log = NULL;
    FINE(chiplog_log_open(below("sessions"), &options, &log, &error));
    chiplog_session_t *session = NULL, *other = NULL, *third = NULL, *again = NULL;
    FINE(chiplog_log_open_session(log, &session, &error));
    FINE(chiplog_log_open_session(log, &other, &error));
    uint64_t id = 0, next = 0, index = 0;
    FINE(chiplog_session_append(other, "pay 20", 6, &index, &error));
    CHECK(index == 1);
    FINE(chiplog_session_id(session, &id, &error));
    FINE(chiplog_session_append(session, "pay 10", 6, &index, &error));
    FINE(chiplog_session_next_sequence(session, &next, &error));
    CHECK(id > 0 && next == 2 && index == 2);
    /* A session that never appended would be evicted. */
    GIVES(CHIPLOG_TOO_MANY_SESSIONS, chiplog_log_open_session(log, &third, &error));
    FINE(chiplog_log_resume_session(log, id, 1, &again, &error));
    FINE(chiplog_session_append(again, "pay 10", 6, &index, &error));
    CHECK(index == 2);
    chiplog_builder_t *builder = NULL;
    FINE(chiplog_builder_open(&builder, &error));
    FINE(chiplog_builder_push(builder, "x", 1, &error));
    chiplog_appended_t placed;
    FINE(chiplog_session_append_batch(again, builder, &placed, &error));
    CHECK(placed.first == 3 && chiplog_builder_count(builder) == 0);
    FINE(chiplog_builder_push(builder, "y", 1, &error));
    chiplog_ticket_t *ticket = NULL;
    FINE(chiplog_session_submit_batch(again, builder, &ticket, &error));
    chiplog_ticket_close(ticket);
    for (int n = 0; n < 5; n++) {
        FINE(chiplog_session_submit(again, "z", 1, &ticket, &error));
        chiplog_ticket_close(ticket);
    }
    /* The writer is stopped: two appends are in flight, and there is no space for a third. */
    struct held held = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    FINE(chiplog_log_submit(log, "held", 4, &ticket, &error));
    FINE(chiplog_ticket_on_complete(ticket, stands_still, &held, &error));
    held_until(&held, 1);
    for (int n = 0; n < 2; n++) {
        FINE(chiplog_session_submit_within(again, "z", 1, 0, &ticket, &error));
        chiplog_ticket_close(ticket);
    }
    GIVES(CHIPLOG_BUSY, chiplog_session_submit_within(again, "z", 1, 10, &ticket, &error));
    FINE(chiplog_builder_push(builder, "z", 1, &error));
    GIVES(CHIPLOG_BUSY, chiplog_session_submit_batch_within(again, builder, 0, &ticket, &error));
    CHECK(chiplog_builder_count(builder) == 1);
    held_until(&held, 2);
    FINE(chiplog_session_submit_batch_within(again, builder, CHIPLOG_FOREVER, &ticket, &error));
    CHECK(chiplog_builder_count(builder) == 0);
    FINE(chiplog_ticket_wait(ticket, LONG_MS, NULL, &error));
    chiplog_ticket_close(ticket);
    chiplog_session_close(again);
    FINE(chiplog_log_resume_session(log, id, 1, &again, &error));
    GIVES(CHIPLOG_SEQUENCE_FORGOTTEN, chiplog_session_append(again, "pay 10", 6, &index, &error));
    chiplog_session_close(again);
    FINE(chiplog_log_resume_session(log, id, 99, &again, &error));
    GIVES(CHIPLOG_SEQUENCE_GAP, chiplog_session_append(again, "pay 10", 6, &index, &error));
    chiplog_session_close(again);
    FINE(chiplog_log_resume_session(log, 4711, 1, &again, &error));
    GIVES(CHIPLOG_SESSION_EXPIRED, chiplog_session_append(again, "pay 10", 6, &index, &error));
    chiplog_session_close(again);
    FINE(chiplog_session_end(other, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_session_append(other, "x", 1, &index, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_session_end(other, &error));
    chiplog_session_close(other);
    chiplog_session_close(session);
    chiplog_builder_close(builder);
    FINE(chiplog_log_close(log, &error));
}

static void member(void *context, const chiplog_member_t *member) {
    (void)member;
    ++*(int *)context;
}

static void from_outside(void) {
    chiplog_log_t *log = small("viewed");
    chiplog_read_only_log_t *read_only = NULL;
    FINE(chiplog_read_only_log_open(below("viewed"), &read_only, &error));
    chiplog_reader_t *reader = NULL;
    FINE(chiplog_read_only_log_reader(read_only, CHIPLOG_START_FIRST, 0, &reader, &error));
    append(log, "seen", 1);
    chiplog_record_t record;
    FINE(chiplog_reader_next_record(reader, LONG_MS, &record, &error));
    CHECK(is(&record, 1, "seen"));
    chiplog_records_t *one = NULL;
    FINE(chiplog_read_only_log_read(read_only, 1, &one, &error));
    chiplog_records_close(one);
    chiplog_info_t info;
    info.size = sizeof info;
    FINE(chiplog_read_only_log_info(read_only, &info, &error));
    CHECK(info.last == 1);
    uint64_t unproven = 99;
    FINE(chiplog_read_only_log_unproven(read_only, &unproven, &error));
    int members = 0;
    uint8_t is_cluster = 9;
    FINE(chiplog_read_only_log_members(read_only, member, &members, &is_cluster, &error));
    CHECK(unproven < 99 && members == 0 && is_cluster == 0);
    chiplog_error_t *cause = NULL;
    FINE(chiplog_read_only_log_failure(read_only, &cause, &error));
    CHECK(cause == NULL);
    chiplog_reader_close(reader);
    chiplog_read_only_log_close(read_only);
    GIVES(CHIPLOG_CLOSED, chiplog_read_only_log_info(read_only, &info, &error));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_read_only_log_open(below("nothing"), &read_only, &error));
    FINE(chiplog_log_close(log, &error));
}

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

/* An older program with a shorter struct, a newer one with a longer one. */
static void structs_that_grow(void) {
    union {
        chiplog_log_options_t options;
        unsigned char bytes[sizeof(chiplog_log_options_t) + 64];
    } longer;
    memset(&longer, 0xff, sizeof longer);
    chiplog_log_options_for_segments(&longer.options, sizeof longer, 1 << 20);
    CHECK(longer.options.size == sizeof longer && longer.bytes[sizeof longer - 1] == 0);
    chiplog_log_t *log = NULL;
    FINE(chiplog_log_open(below("longer"), &longer.options, &log, &error));
    FINE(chiplog_log_close(log, &error));
    longer.bytes[sizeof longer - 1] = 1;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_open(below("longer"), &longer.options, &log, &error));
    struct {
        size_t size;
        uint64_t first, last, canary;
    } shorter = {3 * sizeof(uint64_t), 0, 0, 42};
    log = small("shorter");
    append(log, "x", 1);
    FINE(chiplog_log_info(log, (chiplog_info_t *)(void *)&shorter, &error));
    CHECK(shorter.first == 1 && shorter.last == 1 && shorter.canary == 42);
    shorter.size = 0;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_info(log, (chiplog_info_t *)(void *)&shorter, &error));
    FINE(chiplog_log_close(log, &error));
}

static chiplog_log_t *shared;

static void *appends(void *context) {
    for (int n = 0; n < 200; n++) {
        chiplog_status_t status = chiplog_log_append(shared, "shared", 6, NULL, NULL);
        if (status == CHIPLOG_CLOSED) return context;
        CHECK(status == CHIPLOG_OK);
    }
    return context;
}

static void *closes(void *context) {
    chiplog_status_t status = chiplog_log_close(shared, NULL);
    CHECK(status == CHIPLOG_OK || status == CHIPLOG_CLOSED);
    return context;
}

static void threads(void) {
    enum { THREADS = 16 };
    pthread_t all[THREADS];
    shared = small("threads");
    for (int n = 0; n < THREADS; n++) CHECK(pthread_create(&all[n], NULL, appends, NULL) == 0);
    for (int n = 0; n < THREADS; n++) pthread_join(all[n], NULL);
    chiplog_info_t info;
    info.size = sizeof info;
    FINE(chiplog_log_info(shared, &info, &error));
    CHECK(info.last == THREADS * 200);
    /* The log is closed while other threads append. */
    for (int n = 0; n < THREADS; n++) CHECK(pthread_create(&all[n], NULL, n % 4 == 3 ? closes : appends, NULL) == 0);
    for (int n = 0; n < THREADS; n++) pthread_join(all[n], NULL);
    GIVES(CHIPLOG_CLOSED, chiplog_log_info(shared, &info, &error));
}

static void a_forked_child(void) {
    chiplog_log_t *log = small("forked");
    append(log, "before", 1);
    chiplog_reader_t *reader = NULL;
    FINE(chiplog_log_reader(log, CHIPLOG_START_FIRST, 0, &reader, &error));
    chiplog_ticket_t *ticket = NULL;
    FINE(chiplog_log_submit(log, "under way", 9, &ticket, &error));
    chiplog_records_t *one = NULL;
    FINE(chiplog_log_read(log, 1, &one, &error));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(60); /* a child that hangs fails the test */
        chiplog_record_t record;
        GIVES(CHIPLOG_FORKED, chiplog_log_append(log, "child", 5, NULL, &error));
        GIVES(CHIPLOG_FORKED, chiplog_reader_next_record(reader, CHIPLOG_FOREVER, &record, &error));
        GIVES(CHIPLOG_FORKED, chiplog_ticket_wait(ticket, CHIPLOG_FOREVER, NULL, &error));
        chiplog_ticket_close(ticket);
        chiplog_reader_close(reader);
        chiplog_records_close(one);
        GIVES(CHIPLOG_FORKED, chiplog_log_close(log, &error));
        GIVES(CHIPLOG_CLOSED, chiplog_log_close(log, &error));
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    FINE(chiplog_ticket_wait(ticket, CHIPLOG_FOREVER, NULL, &error));
    append(log, "after", 3);
    chiplog_records_close(one);
    chiplog_ticket_close(ticket);
    chiplog_reader_close(reader);
    FINE(chiplog_log_close(log, &error));
}

static void options_of_the_log(void) {
    chiplog_log_t *log = small("with options");
    uint64_t value = 7;
    uint8_t is_set = 7;
    FINE(chiplog_log_log_option(log, "session_window", &value, &is_set, &error));
    CHECK(value == 0 && is_set == 0);
    CHECK(chiplog_log_session_window(log) > 5 && chiplog_log_record_bytes_max(log) > 1000);
    chiplog_log_option_t changes[] = {
        {.name = "session_window", .value = 5, .is_set = 1},
        {.name = "record_bytes_max", .value = 1000, .is_set = 1},
    };
    FINE(chiplog_log_set_log_options(log, changes, 2, 5000, &error));
    FINE(chiplog_log_log_option(log, "session_window", &value, &is_set, &error));
    CHECK(value == 5 && is_set == 1);
    CHECK(chiplog_log_session_window(log) == 5 && chiplog_log_record_bytes_max(log) == 1000);
    static char large[1001];
    GIVES(CHIPLOG_TOO_LARGE, chiplog_log_append(log, large, sizeof large, NULL, &error));

    chiplog_read_only_log_t *read_only = NULL;
    FINE(chiplog_read_only_log_open(below("with options"), &read_only, &error));
    FINE(chiplog_read_only_log_log_option(read_only, "record_bytes_max", &value, NULL, &error));
    CHECK(value == 1000);
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_read_only_log_log_option(read_only, "none of them", &value, NULL, &error));
    chiplog_read_only_log_close(read_only);

    chiplog_ticket_t *ticket = NULL;
    changes[1].is_set = 0;
    FINE(chiplog_log_submit_set_log_options(log, changes + 1, 1, 5000, &ticket, &error));
    FINE(chiplog_ticket_wait(ticket, CHIPLOG_FOREVER, NULL, &error));
    chiplog_ticket_close(ticket);
    FINE(chiplog_log_log_option(log, "record_bytes_max", &value, &is_set, &error));
    CHECK(value == 0 && is_set == 0);
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_log_option(log, "segment_bytes", &value, &is_set, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_log_option(log, NULL, &value, &is_set, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_set_log_options(log, changes, 0, 0, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_set_log_options(log, NULL, 1, 0, &error));
    changes[0].value = 0;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_set_log_options(log, changes, 1, 5000, &error));
    changes[1].name = "session_window";
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_set_log_options(log, changes, 2, 5000, &error));
    changes[1].name = NULL;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_set_log_options(log, changes, 2, 5000, &error));

    uint64_t index = 0;
    FINE(chiplog_log_append(log, "x", 1, &index, &error));
    FINE(chiplog_log_report_damage(log, index, &error));
    GIVES(CHIPLOG_OUT_OF_RANGE, chiplog_log_report_damage(log, index + 2, &error));
    chiplog_error_t *cause = NULL;
    FINE(chiplog_log_shortage_cause(log, &cause, &error));
    CHECK(cause == NULL && !chiplog_error_is_lasting(cause));
    FINE(chiplog_log_close(log, &error));
    CHECK(chiplog_log_session_window(log) == 0 && chiplog_log_record_bytes_max(log) == 0);
    GIVES(CHIPLOG_CLOSED, chiplog_log_report_damage(log, 1, &error));
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    snprintf(directory, sizeof directory, "%s", argv[1]);
    versions();
    append_and_read();
    tickets_and_batches();
    an_event_loop();
    callbacks_that_touch_another_reader();
    sessions();
    from_outside();
    errors();
    a_disk_that_fails();
    an_undecodable_batch();
    a_log_of_a_later_version();
    structs_that_grow();
    options_of_the_log();
    threads();
    if (strcmp(argv[argc - 1], "no-fork") != 0) a_forked_child();
    puts("all is well");
    return 0;
}
