/* Many named logs in one directory from C. argv[1]: a directory. */
#define _GNU_SOURCE
#include "embedded.h"
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static chiplog_status_t try_small_logs(const char *name, uint32_t groups, chiplog_logs_t **logs, chiplog_error_t **error) {
    chiplog_log_options_t group;
    chiplog_log_options_for_segments(&group, sizeof group, 256 << 10);
    group.sessions_max = 16;
    chiplog_logs_options_t options;
    chiplog_logs_options_init(&options, sizeof options);
    CHECK(options.size == sizeof options && options.groups == 2 && options.options == NULL);
    options.options = &group;
    options.groups = groups;
    return chiplog_logs_open(below(name), &options, logs, error);
}

static chiplog_logs_t *small_logs(const char *name, uint32_t groups) {
    chiplog_logs_t *logs = NULL;
    FINE(try_small_logs(name, groups, &logs, &error));
    return logs;
}

static chiplog_log_t *create(chiplog_logs_t *logs, const char *name, const char *beside) {
    chiplog_log_t *log = NULL;
    FINE(chiplog_logs_create(logs, name, beside, &log, &error));
    return log;
}

static chiplog_log_t *find(chiplog_logs_t *logs, const char *name) {
    chiplog_log_t *log = NULL;
    FINE(chiplog_logs_get(logs, name, &log, &error));
    return log;
}

/* The log's only record, from its first. */
static void has_one(chiplog_log_t *log, const char *text) {
    chiplog_reader_t *reader = NULL;
    chiplog_record_t record;
    FINE(chiplog_log_reader(log, CHIPLOG_START_FIRST, 0, &reader, &error));
    FINE(chiplog_reader_next_record(reader, 0, &record, &error));
    CHECK(is(&record, 1, text));
    GIVES(CHIPLOG_TIMEOUT, chiplog_reader_next_record(reader, 0, &record, &error));
    chiplog_reader_close(reader);
}

static uint64_t last_index(chiplog_log_t *log) {
    chiplog_log_status_t status;
    status.size = sizeof status;
    FINE(chiplog_log_status(log, &status, &error));
    return status.last_index;
}

static void groups_are_in_several_directories(void) {
    chiplog_log_options_t group;
    chiplog_log_options_for_segments(&group, sizeof group, 256 << 10);
    group.sessions_max = 16;
    chiplog_logs_options_t options;
    chiplog_logs_options_init(&options, sizeof options);
    CHECK(options.directories == NULL && options.directories_count == 0);
    options.options = &group;
    char first[512], second[512], path[600];
    snprintf(first, sizeof first, "%s", below("disk-1"));
    snprintf(second, sizeof second, "%s", below("disk-2"));
    CHECK(mkdir(first, 0700) == 0 && mkdir(second, 0700) == 0);
    const char *disks[] = {first, second};
    options.directories = disks;
    options.directories_count = 2;
    chiplog_logs_t *logs = NULL, *none = NULL;
    FINE(chiplog_logs_open(below("spread"), &options, &logs, &error));
    FINE(chiplog_log_close(create(logs, "orders", NULL), &error));
    FINE(chiplog_logs_close(logs, &error));
    snprintf(path, sizeof path, "%s/group-1/chiplog.id", first);
    CHECK(access(path, F_OK) == 0);
    snprintf(path, sizeof path, "%s/group-2/chiplog.id", second);
    CHECK(access(path, F_OK) == 0);
    options.directories_count = 1;
    GIVES(CHIPLOG_DIVERGED, chiplog_logs_open(below("spread"), &options, &none, &error));
    CHECK(none == NULL);
}

static void logs_count_their_own_records(void) {
    chiplog_logs_t *logs = small_logs("own", 2);
    chiplog_log_t *orders = create(logs, "orders", NULL), *users = create(logs, "users", "");
    append(orders, "3 lenses", 1);
    append(users, "isaac", 1);
    has_one(orders, "3 lenses");
    has_one(users, "isaac");
    CHECK(strncmp(chiplog_log_path(orders), below("own/group-"), strlen(below("own/group-"))) == 0);
    chiplog_session_t *session = NULL;
    FINE(chiplog_log_open_session(orders, &session, &error));
    uint64_t index = 0;
    FINE(chiplog_session_append(session, "once", 4, &index, &error));
    CHECK(index == 2);
    chiplog_session_close(session);
    FINE(chiplog_log_discard(orders, 2, &error));

    chiplog_log_info_t info;
    info.size = sizeof info;
    FINE(chiplog_logs_info(logs, "orders", &info, &error));
    CHECK(strcmp(info.name, "orders") == 0 && strlen(info.log_id) == 32 && info.sealed == 0);
    CHECK(info.first_index == 2 && info.last_index == 2 && info.bytes_appended > 0 && info.group >= 1);
    CHECK(info.number == 1 && info.last_timestamp_ms > 1600000000000ull);
    chiplog_log_status_t status;
    status.size = sizeof status;
    FINE(chiplog_log_status(orders, &status, &error));
    CHECK(strcmp(status.log_id, info.log_id) == 0 && status.first_index == 2);
    GIVES(CHIPLOG_NOT_FOUND, chiplog_logs_info(logs, "nothing", &info, &error));
    info.size = 0;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_info(logs, "orders", &info, &error));

    /* Closing a handle leaves the log open, for other handles too. */
    chiplog_log_t *again = find(logs, "orders");
    FINE(chiplog_log_close(orders, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_log_append(orders, "x", 1, NULL, &error));
    append(again, "more", 3);

    /* A handle outlives the directory's. */
    FINE(chiplog_logs_close(logs, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_log_append(again, "x", 1, NULL, &error));
    CHECK(last_index(again) == 3);
    FINE(chiplog_log_close(again, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_logs_get(logs, "orders", &again, &error));
    CHECK(again == NULL);
    GIVES(CHIPLOG_CLOSED, chiplog_logs_close(logs, &error));
    FINE(chiplog_logs_close(NULL, &error));
    FINE(chiplog_log_close(users, &error));

    logs = small_logs("own", 2);
    users = find(logs, "users");
    has_one(users, "isaac");
    append(users, "albert", 2);
    FINE(chiplog_log_close(users, &error));
    FINE(chiplog_logs_close(logs, &error));
}

static void names_end(void) {
    chiplog_logs_t *logs = small_logs("ends", 2), *other = NULL;
    chiplog_log_t *log = create(logs, "a", NULL), *none = NULL;
    append(log, "old", 1);
    GIVES(CHIPLOG_ALREADY_EXISTS, chiplog_logs_create(logs, "a", NULL, &none, &error));
    FINE(chiplog_logs_seal(logs, "a", &error));
    FINE(chiplog_logs_seal(logs, "a", &error));
    GIVES(CHIPLOG_SEALED, chiplog_log_append(log, "x", 1, NULL, &error));
    has_one(log, "old");
    chiplog_reader_t *reader = NULL;
    chiplog_record_t record;
    FINE(chiplog_log_reader(log, CHIPLOG_START_FIRST, 0, &reader, &error));
    FINE(chiplog_logs_delete(logs, "a", &error));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_logs_delete(logs, "a", &error));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_logs_seal(logs, "a", &error));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_logs_get(logs, "a", &none, &error));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_log_append(log, "x", 1, NULL, &error));
    FINE(chiplog_reader_next_record(reader, 0, &record, &error));
    CHECK(is(&record, 1, "old"));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_reader_next_record(reader, LONG_MS, &record, &error));
    chiplog_reader_close(reader);
    chiplog_log_t *another = create(logs, "a", NULL);
    append(another, "new", 1);
    GIVES(CHIPLOG_NOT_FOUND, chiplog_log_append(log, "x", 1, NULL, &error));
    FINE(chiplog_log_close(log, &error));
    FINE(chiplog_log_close(another, &error));

    const char *wrong[] = {"", "_own", "a b", "a/b", "..", "a/01"};
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++)
        GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_create(logs, wrong[n], NULL, &none, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_create(logs, NULL, NULL, &none, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_create(logs, "b", NULL, NULL, &error));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_logs_create(logs, "b", "nothing", &none, &error));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_logs_get(logs, "b", &none, &error));
    CHECK(none == NULL);

    /* A directory holds named logs, or one log on its own. */
    chiplog_log_options_t group;
    chiplog_log_options_init(&group, sizeof group);
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_open(below("ends"), NULL, &none, &error));
    FINE(chiplog_log_close(small("alone"), &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_open(below("alone"), NULL, &other, &error));
    GIVES(CHIPLOG_LOCKED, chiplog_logs_open(below("ends"), NULL, &other, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_open(NULL, NULL, &other, &error));
    chiplog_logs_options_t options;
    chiplog_logs_options_init(&options, sizeof options);
    options.reserved = 1;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_open(below("never"), &options, &other, &error));
    options.reserved = 0;
    options.groups = 0;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_open(below("never"), &options, &other, &error));
    options.groups = 1;
    options.directories_count = 1;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_open(below("never"), &options, &other, &error));
    const char *missing[] = {"/nowhere/at/all"};
    options.directories = missing;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_open(below("never"), &options, &other, &error));
    options.directories_count = 0;
    options.options = &group;
    group.retention_bytes = (uint64_t)1 << 40;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_open(below("never"), &options, &other, &error));
    group.retention_bytes = 0;
    group.object_store = "no/location";
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_open("/never", &options, &other, &error));
    group.object_store = NULL;
    group.create = 0;
    GIVES(CHIPLOG_NOT_FOUND, chiplog_logs_open(below("never"), &options, &other, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_get((chiplog_logs_t *)(void *)&options, "a", &none, &error));
    CHECK(other == NULL && access(below("never"), F_OK) != 0);
    FINE(chiplog_logs_close(logs, &error));
}

struct page {
    chiplog_logs_t *logs;
    char names[200];
};

static void note(void *context, const chiplog_log_info_t *info) {
    struct page *page = context;
    CHECK(info->size == sizeof *info);
    snprintf(page->names + strlen(page->names), sizeof page->names - strlen(page->names), "%s ", info->name);
    chiplog_log_info_t own;
    own.size = sizeof own;
    FINE(chiplog_logs_info(page->logs, info->name, &own, &error)); /* a call within the callback */
    CHECK(own.number == info->number);
}

static void lists(chiplog_logs_t *logs, const char *prefix, const char *after, size_t limit, const char *wanted) {
    struct page page = {logs, ""};
    FINE(chiplog_logs_list(logs, prefix, after, limit, note, &page, &error));
    if (strcmp(page.names, wanted) != 0) fprintf(stderr, "listed: %s\n", page.names);
    CHECK(strcmp(page.names, wanted) == 0);
}

static void pages(void) {
    chiplog_logs_t *logs = small_logs("pages", 2);
    const char *names[] = {"b/2", "a", "b/10", "c"};
    for (size_t n = 0; n < 4; n++) FINE(chiplog_log_close(create(logs, names[n], NULL), &error));
    lists(logs, NULL, NULL, SIZE_MAX, "a b/10 b/2 c ");
    lists(logs, "", "", 3, "a b/10 b/2 ");
    lists(logs, NULL, "b/2", 3, "c ");
    lists(logs, "b/", "a", SIZE_MAX, "b/10 b/2 ");
    lists(logs, "b/", "b/10", 1, "b/2 ");
    lists(logs, NULL, NULL, 0, "");
    lists(logs, NULL, "x", 9, "");
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_list(logs, NULL, NULL, 1, NULL, NULL, &error));
    FINE(chiplog_logs_close(logs, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_logs_list(logs, NULL, NULL, 1, note, NULL, &error));
}

static chiplog_batch_t *batch_of(const char *first, const char *second) {
    chiplog_builder_t *builder = NULL;
    chiplog_batch_t *batch = NULL;
    FINE(chiplog_builder_open(&builder, &error));
    FINE(chiplog_builder_push(builder, first, strlen(first), &error));
    FINE(chiplog_builder_push(builder, second, strlen(second), &error));
    FINE(chiplog_builder_build(builder, &batch, &error));
    chiplog_builder_close(builder);
    return batch;
}

static void together(void) {
    chiplog_logs_t *logs = small_logs("together", 2);
    chiplog_log_t *from = create(logs, "account-1", NULL), *to = create(logs, "account-2", "account-1");
    chiplog_log_t *ended = create(logs, "account-3", "account-1"), *elsewhere = create(logs, "other", NULL);
    chiplog_batch_t *batch = batch_of("5", "of them");
    chiplog_append_t appends[] = {{from, batch}, {to, batch}, {from, batch}};
    chiplog_appended_t placed[3];
    FINE(chiplog_logs_append_together(logs, appends, 3, placed, &error));
    CHECK(placed[0].first == 1 && placed[1].first == 1 && placed[2].first == 3 && placed[2].count == 2);
    FINE(chiplog_logs_append_together(logs, appends, 2, NULL, &error));
    FINE(chiplog_logs_append_together(logs, NULL, 0, NULL, &error));
    CHECK(last_index(from) == 6 && last_index(to) == 4);

    /* Nothing is appended to any log if one of them refuses. */
    FINE(chiplog_logs_seal(logs, "account-3", &error));
    placed[0].first = 77;
    chiplog_append_t sealed[] = {{from, batch}, {ended, batch}, {to, batch}};
    GIVES(CHIPLOG_SEALED, chiplog_logs_append_together(logs, sealed, 3, placed, &error));
    FINE(chiplog_logs_delete(logs, "account-3", &error));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_logs_append_together(logs, sealed, 3, placed, &error));
    chiplog_append_t groups[] = {{from, batch}, {elsewhere, batch}};
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_append_together(logs, groups, 2, placed, &error));
    static char large[60000];
    chiplog_batch_t *whole = NULL;
    chiplog_builder_t *builder = NULL;
    FINE(chiplog_builder_open(&builder, &error));
    FINE(chiplog_builder_push(builder, large, sizeof large, &error));
    FINE(chiplog_builder_build(builder, &whole, &error));
    chiplog_append_t many[8];
    for (size_t n = 0; n < 8; n++) many[n] = (chiplog_append_t){from, whole};
    GIVES(CHIPLOG_TOO_LARGE, chiplog_logs_append_together(logs, many, 8, NULL, &error));
    chiplog_append_t unset[] = {{from, batch}, {to, NULL}}, mixed[] = {{from, (chiplog_batch_t *)(void *)from}};
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_append_together(logs, unset, 2, placed, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_append_together(logs, mixed, 1, placed, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_append_together(logs, NULL, 2, placed, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_append_together(logs, appends, SIZE_MAX, placed, &error));
    CHECK(placed[0].first == 77 && last_index(from) == 6 && last_index(to) == 4);

    FINE(chiplog_logs_close(logs, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_logs_append_together(logs, appends, 3, placed, &error));
    chiplog_builder_close(builder);
    chiplog_batch_close(whole);
    chiplog_batch_close(batch);
    chiplog_log_t *handles[] = {from, to, ended, elsewhere};
    for (size_t n = 0; n < 4; n++) FINE(chiplog_log_close(handles[n], &error));
}

struct settled {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count;
};

static void one_settled(void *context, chiplog_status_t status, const chiplog_appended_t *placed, const chiplog_error_t *why) {
    struct settled *settled = context;
    CHECK(status == CHIPLOG_OK && placed->count == 2 && why == NULL);
    pthread_mutex_lock(&settled->lock);
    settled->count++;
    pthread_cond_signal(&settled->changed);
    pthread_mutex_unlock(&settled->lock);
}

static void submitted_together(void) {
    chiplog_logs_t *logs = small_logs("submitted", 2), *strangers = small_logs("strangers", 1);
    chiplog_log_t *from = create(logs, "account-1", NULL), *to = create(logs, "account-2", "account-1");
    chiplog_log_t *elsewhere = create(logs, "other", NULL), *stranger = create(strangers, "account-1", NULL);
    chiplog_batch_t *batch = batch_of("5", "of them");
    chiplog_append_t appends[] = {{from, batch}, {to, batch}, {from, batch}};
    chiplog_ticket_t *tickets[3] = {NULL, NULL, NULL};
    chiplog_appended_t placed;
    FINE(chiplog_logs_submit_together(logs, appends, 3, tickets, &error));
    uint64_t firsts[] = {1, 1, 3};
    for (size_t n = 0; n < 3; n++) {
        FINE(chiplog_ticket_wait(tickets[n], LONG_MS, &placed, &error));
        CHECK(placed.first == firsts[n] && placed.count == 2);
        chiplog_ticket_close(tickets[n]);
    }
    struct settled settled = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    FINE(chiplog_logs_try_submit_together(logs, appends, 2, tickets, &error));
    for (size_t n = 0; n < 2; n++) {
        FINE(chiplog_ticket_on_complete(tickets[n], one_settled, &settled, &error));
    }
    pthread_mutex_lock(&settled.lock);
    while (settled.count < 2) pthread_cond_wait(&settled.changed, &settled.lock);
    pthread_mutex_unlock(&settled.lock);
    FINE(chiplog_logs_submit_together(logs, NULL, 0, NULL, &error));

    /* A submission that fails leaves no ticket. */
    chiplog_append_t groups[] = {{from, batch}, {elsewhere, batch}}, others[] = {{stranger, batch}, {from, batch}};
    chiplog_append_t mixed[] = {{from, batch}, {stranger, batch}};
    for (size_t n = 0; n < 2; n++) tickets[n] = (chiplog_ticket_t *)(void *)from;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_submit_together(logs, groups, 2, tickets, &error));
    CHECK(tickets[0] == NULL && tickets[1] == NULL);
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_try_submit_together(logs, others, 2, tickets, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_submit_together(logs, mixed, 2, tickets, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_append_together(logs, others, 1, NULL, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_submit_together(logs, appends, 2, NULL, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_submit_together(logs, NULL, 2, tickets, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_submit_together(logs, appends, SIZE_MAX, tickets, &error));
    FINE(chiplog_logs_seal(logs, "account-2", &error));
    FINE(chiplog_logs_submit_together(logs, appends, 3, tickets, &error));
    for (size_t n = 0; n < 3; n++) {
        GIVES(CHIPLOG_SEALED, chiplog_ticket_wait(tickets[n], LONG_MS, &placed, &error));
        chiplog_ticket_close(tickets[n]);
    }
    CHECK(last_index(from) == 6 && last_index(to) == 4 && last_index(stranger) == 0);
    FINE(chiplog_logs_close(logs, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_logs_submit_together(logs, appends, 3, tickets, &error));
    FINE(chiplog_logs_close(strangers, &error));
    chiplog_batch_close(batch);
    chiplog_log_t *handles[] = {from, to, elsewhere, stranger};
    for (size_t n = 0; n < 4; n++) FINE(chiplog_log_close(handles[n], &error));
}

struct called {
    pthread_t main;
    chiplog_logs_t *logs;
    chiplog_append_t append;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls, on_main;
};

/* In a callback on a group's own thread, calls that wait are refused; closing is not. */
static void limits(void) {
    chiplog_logs_t *logs = small_logs("limits", 1);
    chiplog_log_t *limited = create(logs, "limited", NULL), *other = create(logs, "other", NULL);
    chiplog_log_option_t changes[] = {
        {.name = "retention_bytes", .value = 1 << 20, .is_set = 1},
        {.name = "append_bytes_per_second", .value = 1, .is_set = 1},
    };
    FINE(chiplog_log_set_log_options(limited, changes, 2, 5000, &error));
    uint64_t value = 0;
    uint8_t is_set = 0;
    FINE(chiplog_log_log_option(limited, "retention_bytes", &value, &is_set, &error));
    CHECK(value == 1 << 20 && is_set == 1);
    FINE(chiplog_log_log_option(other, "retention_bytes", &value, &is_set, &error));
    CHECK(is_set == 0);
    append(limited, "of any size, once", 1);
    chiplog_ticket_t *ticket = NULL;
    chiplog_error_t *busy = NULL;
    CHECK(chiplog_log_try_submit(limited, "x", 1, &ticket, &busy) == CHIPLOG_BUSY);
    CHECK(chiplog_error_retry_after_ms(busy) > 5000 && chiplog_error_retry_after_ms(NULL) == 0);
    chiplog_error_close(busy);
    append(other, "x", 1);
    chiplog_log_option_t of_group = {.name = "session_window", .value = 5, .is_set = 1};
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_log_set_log_options(limited, &of_group, 1, 5000, &error));
    FINE(chiplog_log_close(limited, &error));
    FINE(chiplog_log_close(other, &error));
    FINE(chiplog_logs_close(logs, &error));
}

static void in_callback(void *context, chiplog_status_t status, const chiplog_appended_t *placed, const chiplog_error_t *error) {
    struct called *called = context;
    chiplog_log_t *log = NULL;
    CHECK(status == CHIPLOG_OK && placed != NULL && error == NULL);
    int on_main = pthread_equal(pthread_self(), called->main);
    if (!on_main) {
        GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_create(called->logs, "b", NULL, &log, &error));
        GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_seal(called->logs, "a", &error));
        GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_delete(called->logs, "a", &error));
        GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_logs_append_together(called->logs, &called->append, 1, NULL, &error));
        FINE(chiplog_logs_get(called->logs, "a", &log, &error));
        FINE(chiplog_log_close(log, &error));
        FINE(chiplog_logs_close(called->logs, &error));
    }
    pthread_mutex_lock(&called->lock);
    called->calls++;
    called->on_main = on_main;
    pthread_cond_signal(&called->changed);
    pthread_mutex_unlock(&called->lock);
}

static void callbacks(void) {
    chiplog_logs_t *logs = small_logs("callbacks", 2);
    chiplog_log_t *log = create(logs, "a", NULL), *none = NULL;
    chiplog_batch_t *batch = batch_of("x", "y");
    struct called called = {pthread_self(), logs, {log, batch}, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 1};
    /* If the append is durable before the callback is set, it is called on this thread. */
    for (int n = 1; called.on_main; n++) {
        chiplog_ticket_t *ticket = NULL;
        FINE(chiplog_log_submit(log, "x", 1, &ticket, &error));
        FINE(chiplog_ticket_on_complete(ticket, in_callback, &called, &error));
        pthread_mutex_lock(&called.lock);
        while (called.calls < n) pthread_cond_wait(&called.changed, &called.lock);
        pthread_mutex_unlock(&called.lock);
    }
    GIVES(CHIPLOG_CLOSED, chiplog_logs_get(logs, "a", &none, &error));
    FINE(chiplog_log_close(log, &error));
    chiplog_batch_close(batch);
    /* The callback's group closes after the callback, and unlocks its directory then. */
    chiplog_status_t status = CHIPLOG_LOCKED;
    for (int n = 0; n < 12000 && status == CHIPLOG_LOCKED; n++) {
        if (n > 0) usleep(10000);
        status = try_small_logs("callbacks", 2, &logs, NULL);
    }
    CHECK(status == CHIPLOG_OK);
    log = find(logs, "a");
    CHECK(last_index(log) == (uint64_t)called.calls);
    FINE(chiplog_log_close(log, &error));
    FINE(chiplog_logs_close(logs, &error));
}

static void forked(void) {
    chiplog_logs_t *logs = small_logs("forked", 1);
    chiplog_log_t *log = create(logs, "a", NULL), *none = NULL;
    append(log, "x", 1);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        GIVES(CHIPLOG_FORKED, chiplog_logs_create(logs, "b", NULL, &none, &error));
        GIVES(CHIPLOG_FORKED, chiplog_logs_get(logs, "a", &none, &error));
        GIVES(CHIPLOG_FORKED, chiplog_logs_append_together(logs, NULL, 0, NULL, &error));
        GIVES(CHIPLOG_FORKED, chiplog_log_append(log, "x", 1, NULL, &error));
        GIVES(CHIPLOG_FORKED, chiplog_logs_close(logs, &error));
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    append(log, "y", 2);
    FINE(chiplog_log_close(log, &error));
    FINE(chiplog_logs_close(logs, &error));
}

int main(int argc, char **argv) {
    begin(argc, argv);
    logs_count_their_own_records();
    groups_are_in_several_directories();
    names_end();
    pages();
    together();
    submitted_together();
    limits();
    callbacks();
    if (argc < 4 || strcmp(argv[argc - 1], "no-fork") != 0) forked();
    puts("all is well");
    return 0;
}
