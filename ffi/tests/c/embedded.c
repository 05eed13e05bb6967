/* The embedded log from C: appends, reads, sessions, read-only logs, options. argv[1]: a directory. */
#define _GNU_SOURCE
#include "embedded.h"
#include <pthread.h>
#include <unistd.h>

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
    chiplog_appended_t placed = {0, 0, 0, 0};
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

    chiplog_log_status_t status;
    status.size = sizeof status;
    FINE(chiplog_log_status(log, &status, &error));
    CHECK(status.first_index == 1 && status.last_index == 5 && status.durable_index == 5);
    CHECK(status.follows == 0 && strlen(status.log_id) == 32 && strlen(status.directory_id) == 32);
    chiplog_metrics_t metrics;
    metrics.size = sizeof metrics;
    FINE(chiplog_log_metrics(log, &metrics, &error));
    CHECK(metrics.appends == 3 && metrics.records == 5 && metrics.syncs > 0);
    CHECK(metrics.queue_appends == 0);
    chiplog_log_options_t options;
    options.size = sizeof options;
    FINE(chiplog_log_options(log, &options, &error));
    CHECK(options.segment_bytes == 1 << 20 && options.create == 1);
    chiplog_error_t *cause = NULL;
    FINE(chiplog_log_poison_cause(log, &cause, &error));
    CHECK(cause == NULL);
    uint64_t last = 0;
    uint64_t first_local = 0;
    FINE(chiplog_log_first_local_index(log, &first_local, &error));
    CHECK(first_local == 1);
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
        FINE(chiplog_session_try_submit(again, "z", 1, &ticket, &error));
        chiplog_ticket_close(ticket);
    }
    GIVES(CHIPLOG_BUSY, chiplog_session_submit_within(again, "z", 1, 10, &ticket, &error));
    FINE(chiplog_builder_push(builder, "z", 1, &error));
    GIVES(CHIPLOG_BUSY, chiplog_session_try_submit_batch(again, builder, &ticket, &error));
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
    chiplog_log_status_t status;
    status.size = sizeof status;
    FINE(chiplog_read_only_log_status(read_only, &status, &error));
    CHECK(status.last_index == 1);
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
    GIVES(CHIPLOG_CLOSED, chiplog_read_only_log_status(read_only, &status, &error));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_read_only_log_open(below("nothing"), &read_only, &error));
    FINE(chiplog_log_close(log, &error));
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
        uint64_t first_index, last_index, canary;
    } shorter = {3 * sizeof(uint64_t), 0, 0, 42};
    log = small("shorter");
    append(log, "x", 1);
    FINE(chiplog_log_status(log, (chiplog_log_status_t *)(void *)&shorter, &error));
    CHECK(shorter.first_index == 1 && shorter.last_index == 1 && shorter.canary == 42);
    shorter.size = 0;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_status(log, (chiplog_log_status_t *)(void *)&shorter, &error));
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

/* Older records in an object store: here a directory. */
static void objects(void) {
    chiplog_log_options_t options;
    chiplog_log_options_for_segments(&options, sizeof options, 256 << 10);
    CHECK(options.object_bytes == 64 << 20 && options.cache_bytes == 1 << 30);
    CHECK(options.object_store == NULL && options.object_delete_delay_ms == 24 * 3600 * 1000);
    CHECK(options.sorted_copies == 1 && options.object_scrub_ms == 30ull * 24 * 3600 * 1000);
    char store[5000];
    snprintf(store, sizeof store, "file://%s", below("store"));
    options.object_store = store;
    options.object_bytes = 64 << 10;
    options.local_bytes = 512 << 10;
    chiplog_log_t *log = NULL;
    FINE(chiplog_log_open(below("objects"), &options, &log, &error));
    static char record[4000];
    chiplog_metrics_t metrics;
    metrics.size = sizeof metrics;
    for (int n = 0; n < 500; n++)
        FINE(chiplog_log_append(log, record, sizeof record, NULL, &error));
    for (int tries = 0; tries < 6000; tries++) {
        FINE(chiplog_log_metrics(log, &metrics, &error));
        if (metrics.stored_bytes > 1 << 20)
            break;
        usleep(10000);
    }
    CHECK(metrics.stored_objects > 10 && metrics.object_failures == 0 && metrics.unstored_bytes > 0);
    uint64_t value = 0;
    uint8_t is_set = 0;
    FINE(chiplog_log_log_option(log, "object_bytes", &value, &is_set, &error));
    CHECK(value == 64 << 10 && is_set == 1);
    FINE(chiplog_log_options(log, &options, &error));
    CHECK(options.local_bytes == 512 << 10 && options.object_store == NULL);
    FINE(chiplog_log_close(log, &error));
}

int main(int argc, char **argv) {
    begin(argc, argv);
    objects();
    versions();
    append_and_read();
    sessions();
    from_outside();
    structs_that_grow();
    options_of_the_log();
    puts("all is well");
    return 0;
}
