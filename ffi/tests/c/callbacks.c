/* Event loops and callbacks: what readers and followers report, and when. argv[1]: a directory, argv[2]: a server,
 * argv[3]: a server of another log. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

static chiplog_client_t *client;
static chiplog_producer_t *producer;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int calls;

static void called(void) {
    pthread_mutex_lock(&lock);
    calls++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static void await_call(void) {
    pthread_mutex_lock(&lock);
    while (calls == 0) pthread_cond_wait(&changed, &lock);
    calls--;
    pthread_mutex_unlock(&lock);
}

static void notify(void *context) {
    (void)context;
    called();
}

static int readable(int descriptor, int timeout_ms) {
    struct pollfd fd = {descriptor, POLLIN, 0};
    return poll(&fd, 1, timeout_ms) == 1;
}

static uint64_t append(const char *text) {
    uint64_t index = 0;
    FINE(chiplog_producer_append(producer, text, strlen(text), &index, &error));
    return index;
}

static void *appends_later(void *context) {
    usleep(200 * 1000); /* by then the other thread waits, or is about to: both are fine */
    append("later");
    return context;
}

/* A reader over the network that starts at the next record. */
static chiplog_reader_t *tail(void) {
    chiplog_remote_info_t info;
    info.size = sizeof info;
    FINE(chiplog_client_info(client, &info, &error));
    chiplog_reader_t *reader = NULL;
    FINE(chiplog_client_reader(client, CHIPLOG_START_INDEX, info.last + 1, NULL, &reader, &error));
    return reader;
}

static void nothing_is_left(chiplog_reader_t *reader, int descriptor) {
    chiplog_record_t record;
    GIVES(CHIPLOG_TIMEOUT, chiplog_reader_next_record(reader, 0, &record, &error));
    CHECK(!readable(descriptor, 0));
}

/* A call that waits removes the hook of a remote reader's descriptor, which then was never readable again. */
static void a_descriptor_after_a_wait(void) {
    chiplog_reader_t *reader = tail();
    int descriptor = -1;
    FINE(chiplog_reader_descriptor(reader, &descriptor, &error));
    chiplog_record_t record;
    for (int waits = 0; waits < 2; waits++) {
        nothing_is_left(reader, descriptor);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, appends_later, NULL) == 0);
        if (waits) FINE(chiplog_reader_wait(reader, LONG_MS, &error));
        else FINE(chiplog_reader_next_record(reader, LONG_MS, &record, &error));
        CHECK(readable(descriptor, 0));
        if (waits) FINE(chiplog_reader_next_record(reader, 0, &record, &error));
        pthread_join(thread, NULL);
        nothing_is_left(reader, descriptor);
    }
    append("one more");
    CHECK(readable(descriptor, (int)LONG_MS));
    chiplog_reader_close(reader);
}

/* An event loop may watch a descriptor that was handed out: its number must not become another file's. */
static void a_descriptor_stays_open(chiplog_reader_t *reader) {
    int descriptor = -1, again = -1;
    FINE(chiplog_reader_descriptor(reader, &descriptor, &error));
    nothing_is_left(reader, descriptor);
    FINE(chiplog_reader_on_more(reader, notify, NULL, &error));
    CHECK(fcntl(descriptor, F_GETFD) >= 0);
    append("for the callback");
    await_call();
    CHECK(!readable(descriptor, 0));
    FINE(chiplog_reader_descriptor(reader, &again, &error));
    CHECK(again == descriptor && readable(descriptor, (int)LONG_MS));
    chiplog_record_t record;
    FINE(chiplog_reader_next_record(reader, LONG_MS, &record, &error));
    nothing_is_left(reader, descriptor);
    append("for the descriptor");
    CHECK(readable(descriptor, (int)LONG_MS));
    chiplog_reader_close(reader);
}

struct others {
    chiplog_client_t *client;
    chiplog_reader_t *reader;
};

/* On a thread of a client or follower no call may wait, whichever client it uses. */
static void calls_others(void *context) {
    struct others *others = context;
    chiplog_remote_info_t info;
    info.size = sizeof info;
    chiplog_record_t record;
    CHECK(chiplog_client_info(others->client, &info, NULL) == CHIPLOG_INVALID_ARGUMENT);
    CHECK(chiplog_reader_next_record(others->reader, LONG_MS, &record, NULL) == CHIPLOG_INVALID_ARGUMENT);
    called();
}

static void outcome(void *context, chiplog_status_t status, const chiplog_appended_t *placed, const chiplog_error_t *error) {
    CHECK(status == CHIPLOG_OK && placed != NULL && error == NULL);
    calls_others(context);
}

static void a_callback_calls_others(const char *const *servers, chiplog_follower_t *follower) {
    struct others others = {NULL, NULL};
    FINE(chiplog_client_connect(servers, 1, NULL, &others.client, &error));
    FINE(chiplog_client_reader(others.client, CHIPLOG_START_FIRST, 0, NULL, &others.reader, &error));
    int descriptor = -1;
    FINE(chiplog_reader_descriptor(others.reader, &descriptor, &error));
    CHECK(readable(descriptor, (int)LONG_MS));
    FINE(chiplog_producer_send_with(producer, "asks", 4, outcome, &others, &error));
    await_call();
    chiplog_reader_t *copied = NULL;
    uint64_t last = append("copied");
    FINE(chiplog_follower_wait_for(follower, last, LONG_MS, &error));
    FINE(chiplog_follower_reader(follower, CHIPLOG_START_NEXT, 0, &copied, &error));
    FINE(chiplog_reader_on_more(copied, calls_others, &others, &error));
    append("asks");
    await_call();
    /* All of them still work. */
    chiplog_record_t record;
    FINE(chiplog_reader_next_record(others.reader, LONG_MS, &record, &error));
    CHECK(record.index == 1);
    chiplog_reader_close(copied);
    chiplog_reader_close(others.reader);
    chiplog_client_close(others.client);
}

static void events(chiplog_follower_t *follower) {
    int descriptor = -1, again = -1;
    chiplog_event_t event;
    event.size = sizeof event;
    do FINE(chiplog_follower_next_event(follower, LONG_MS, &event, NULL, &error));
    while (event.kind != CHIPLOG_EVENT_CONNECTED);
    FINE(chiplog_follower_descriptor(follower, &descriptor, &error));
    GIVES(CHIPLOG_TIMEOUT, chiplog_follower_next_event(follower, 0, &event, NULL, &error));
    CHECK(!readable(descriptor, 0));
    FINE(chiplog_follower_on_event(follower, notify, NULL, &error));
    CHECK(fcntl(descriptor, F_GETFD) >= 0);
    FINE(chiplog_client_discard(client, 2, &error));
    await_call();
    CHECK(!readable(descriptor, 0));
    FINE(chiplog_follower_descriptor(follower, &again, &error));
    CHECK(again == descriptor && readable(descriptor, (int)LONG_MS));
    FINE(chiplog_follower_next_event(follower, LONG_MS, &event, NULL, &error));
    CHECK(event.kind == CHIPLOG_EVENT_DISCARDED && event.to == 2);
}

int main(int argc, char **argv) {
    CHECK(argc > 3);
    const char *servers[1] = {argv[2]}, *others[1] = {argv[3]};
    FINE(chiplog_client_connect(servers, 1, NULL, &client, &error));
    FINE(chiplog_client_producer(client, NULL, &producer, &error));
    append("the first");
    char path[4096];
    snprintf(path, sizeof path, "%s/called", argv[1]);
    chiplog_log_options_t files;
    chiplog_log_options_for_segments(&files, sizeof files, 1 << 20);
    chiplog_follower_options_t following;
    chiplog_follower_options_init(&following, sizeof following);
    following.files = &files;
    following.open_timeout_ms = CHIPLOG_FOREVER;
    chiplog_follower_t *follower = NULL;
    FINE(chiplog_follower_open(path, servers, 1, CHIPLOG_START_LAST, 1, &following, &follower, &error));
    uint64_t last = append("the second");
    FINE(chiplog_follower_wait_for(follower, last, LONG_MS, &error));

    a_descriptor_after_a_wait();
    a_descriptor_stays_open(tail());
    last = append("the last before");
    FINE(chiplog_follower_wait_for(follower, last, LONG_MS, &error));
    chiplog_reader_t *copied = NULL;
    FINE(chiplog_follower_reader(follower, CHIPLOG_START_NEXT, 0, &copied, &error));
    a_descriptor_stays_open(copied);
    a_callback_calls_others(servers, follower);
    events(follower);
    FINE(chiplog_follower_close(follower, &error));

    /* Its servers now have another log. */
    FINE(chiplog_follower_open(path, others, 1, CHIPLOG_START_FIRST, 0, &following, &follower, &error));
    GIVES(CHIPLOG_DIVERGED, chiplog_follower_wait_for(follower, last + 1000, LONG_MS, &error));
    chiplog_follower_close(follower, NULL);

    /* A follower's times have bounds. */
    following.keep_alive_ms = CHIPLOG_FOREVER;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_follower_open(path, servers, 1, CHIPLOG_START_FIRST, 0, &following, &follower, &error));
    FINE(chiplog_producer_end(producer, LONG_MS, NULL, NULL, NULL, &error));
    chiplog_producer_close(producer);
    chiplog_client_close(client);
    puts("all is well");
    return 0;
}
