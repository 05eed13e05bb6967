/* A cluster from C: client, producer, reader, watch, follower. argv[1]: a directory, argv[2]: a server of an empty log.
 * Last argument "no-fork": skips forks, because valgrind reports a child's copy of its parent's memory as lost. */
#define _GNU_SOURCE
#include "check.h"
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

static chiplog_client_t *client;
static int outcomes;
static chiplog_status_t wanted = CHIPLOG_OK;

static void outcome(void *context, chiplog_status_t status, const chiplog_appended_t *placed, const chiplog_error_t *error) {
    chiplog_producer_t *producer = context;
    CHECK(status == wanted && (placed != NULL) == (status == CHIPLOG_OK) && (error == NULL) == (status == CHIPLOG_OK));
    if (error != NULL) return;
    CHECK(strcmp(chiplog_durability_name(placed->durability), "majority") == 0);
    /* On the client's thread a call that would wait returns an error. */
    chiplog_remote_info_t info;
    info.size = sizeof info;
    CHECK(chiplog_client_info(client, &info, NULL) == CHIPLOG_INVALID_ARGUMENT);
    CHECK(chiplog_producer_append(producer, "x", 1, NULL, NULL) == CHIPLOG_INVALID_ARGUMENT);
    __atomic_add_fetch(&outcomes, (int)placed->count, __ATOMIC_SEQ_CST);
}

static void none_left(void *context, const void *data, size_t length, uint8_t in_doubt) {
    (void)context, (void)data, (void)length, (void)in_doubt;
    CHECK(!"a record was left");
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    const char *servers[1] = {argv[2]};
    chiplog_client_options_t options;
    chiplog_client_options_init(&options, sizeof options);
    options.timeout_ms = 500;
    options.connect_timeout_ms = 200;
    const char *nobody[1] = {"127.0.0.1:1"}, *nonsense[1] = {"no address"};
    chiplog_status_t status = chiplog_client_connect(nobody, 1, &options, &client, NULL);
    CHECK((status == CHIPLOG_UNAVAILABLE || status == CHIPLOG_TIMEOUT) && client == NULL);
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_connect(nonsense, 1, NULL, &client, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_connect(servers, 0, NULL, &client, &error));
    options.timeout_ms = LONG_MS;
    options.log = "";
    FINE(chiplog_client_connect(servers, 1, &options, &client, &error));

    chiplog_watch_t *watch = NULL;
    FINE(chiplog_client_watch(client, 10, &watch, &error));
    chiplog_reader_options_t reading;
    chiplog_reader_options_init(&reading, sizeof reading);
    reading.from = CHIPLOG_READ_FROM_LEADER;
    chiplog_reader_t *reader = NULL;
    FINE(chiplog_client_reader(client, CHIPLOG_START_FIRST, 0, &reading, &reader, &error));
    struct pollfd fd = {-1, POLLIN, 0};
    FINE(chiplog_reader_descriptor(reader, &fd.fd, &error));

    chiplog_producer_options_t producing;
    chiplog_producer_options_init(&producing, sizeof producing);
    producing.inflight_max = 0;
    chiplog_producer_t *producer = NULL;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_producer(client, &producing, &producer, &error));
    FINE(chiplog_client_producer(client, NULL, &producer, &error));
    uint64_t index = 0;
    FINE(chiplog_producer_append(producer, "one", 3, &index, &error));
    CHECK(index == 1);
    CHECK(poll(&fd, 1, (int)LONG_MS) == 1);
    chiplog_record_t record;
    FINE(chiplog_reader_next_record(reader, 0, &record, &error));
    CHECK(record.index == 1 && record.length == 3 && memcmp(record.data, "one", 3) == 0);
    GIVES(CHIPLOG_TIMEOUT, chiplog_reader_next_record(reader, 0, &record, &error));
    CHECK(poll(&fd, 1, 0) == 0);

    FINE(chiplog_producer_send(producer, "two", 3, &error));
    FINE(chiplog_producer_try_send(producer, "three", 5, &error));
    chiplog_ticket_t *tickets[2];
    FINE(chiplog_producer_submit(producer, "four", 4, &tickets[0], &error));
    FINE(chiplog_producer_try_submit(producer, "five", 4, &tickets[1], &error));
    chiplog_appended_t placed;
    FINE(chiplog_ticket_wait(tickets[1], LONG_MS, &placed, &error));
    CHECK(placed.first == 5 && placed.count == 1 && placed.durability == CHIPLOG_DURABILITY_MAJORITY);
    FINE(chiplog_ticket_wait(tickets[0], CHIPLOG_FOREVER, &placed, &error));
    uint8_t done = 0;
    FINE(chiplog_ticket_poll(tickets[0], &done, &placed, &error));
    CHECK(done == 1 && placed.first == 4);
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_ticket_on_complete(tickets[0], outcome, producer, &error));
    chiplog_ticket_close(tickets[0]);
    chiplog_ticket_close(tickets[1]);
    FINE(chiplog_producer_send_with(producer, "six", 3, outcome, producer, &error));
    chiplog_slice_t records[2] = {{"seven", 5}, {"eight", 5}};
    FINE(chiplog_producer_send_batch(producer, records, 2, outcome, producer, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_producer_send_batch(producer, records, 0, outcome, producer, &error));
    FINE(chiplog_producer_flush(producer, LONG_MS, &error));
    CHECK(__atomic_load_n(&outcomes, __ATOMIC_SEQ_CST) == 3 && chiplog_producer_buffered_bytes(producer) == 0);

    uint64_t next = 2;
    while (next < 9) {
        chiplog_records_t *run = NULL;
        FINE(chiplog_reader_next_run(reader, 1 << 20, LONG_MS, &run, &error));
        const chiplog_record_t *array;
        size_t count;
        FINE(chiplog_records_view(run, &array, &count, &error));
        for (size_t n = 0; n < count; n++) CHECK(array[n].index == next++);
        chiplog_records_close(run);
    }
    char server[300];
    FINE(chiplog_reader_server(reader, server, sizeof server, &error));
    CHECK(strlen(server) > 0);
    FINE(chiplog_reader_seek(reader, CHIPLOG_START_LAST, 1, &error));
    FINE(chiplog_reader_wait(reader, LONG_MS, &error));
    uint64_t position = 0;
    FINE(chiplog_reader_position(reader, &position, &error));
    CHECK(position == 8);
    chiplog_records_t *batch = NULL;
    FINE(chiplog_reader_next_batch(reader, 0, &batch, &error));
    chiplog_records_close(batch);
    chiplog_reader_close(reader);

    /* The reader ends where the log ends. */
    reading.follow = 0;
    FINE(chiplog_client_reader(client, CHIPLOG_START_INDEX, 8, &reading, &reader, &error));
    FINE(chiplog_reader_next_record(reader, CHIPLOG_FOREVER, &record, &error));
    CHECK(record.index == 8);
    FINE(chiplog_reader_next_record(reader, CHIPLOG_FOREVER, &record, &error));
    CHECK(record.data == NULL);
    FINE(chiplog_reader_next_batch(reader, CHIPLOG_FOREVER, &batch, &error));
    CHECK(batch == NULL);
    chiplog_reader_close(reader);

    chiplog_remote_info_t info;
    info.size = sizeof info;
    do FINE(chiplog_watch_next(watch, LONG_MS, &info, &error));
    while (info.last < 8);
    chiplog_watch_close(watch);
    FINE(chiplog_client_info(client, &info, &error));
    CHECK(info.first == 1 && info.last == 8 && strlen(info.log_id) == 32);
    FINE(chiplog_client_info_stale(client, &info, &error));
    size_t bytes = 0;
    uint64_t session = 0;
    FINE(chiplog_client_batch_bytes_max(client, &bytes, &error));
    FINE(chiplog_client_open_session(client, &session, &error));
    CHECK(bytes > 1000 && session > 0);

    /* A producer that continues in a session. It ends the session: the log then refuses the number. */
    for (int n = 0; n < 2; n++) {
        chiplog_producer_options_init(&producing, sizeof producing);
        producing.session = session;
        producing.session_next = 1;
        chiplog_producer_t *resumed = NULL;
        FINE(chiplog_client_producer(client, &producing, &resumed, &error));
        chiplog_slice_t nine[1] = {{"nine", 4}};
        /* The log may already hold what a resumed producer sends: such records are reported as in doubt. */
        wanted = n == 0 ? CHIPLOG_OK : CHIPLOG_CLOSED;
        FINE(chiplog_producer_send_batch(resumed, nine, 1, outcome, resumed, &error));
        GIVES(wanted, chiplog_producer_flush(resumed, LONG_MS, &error));
        uint64_t refused = 0;
        chiplog_status_t ended_as = chiplog_producer_end(resumed, LONG_MS, NULL, NULL, &refused, NULL);
        CHECK((ended_as == CHIPLOG_OK) == (refused == 0) && (n == 1 || ended_as == CHIPLOG_OK));
        chiplog_producer_close(resumed);
    }
    FINE(chiplog_client_info(client, &info, &error));
    CHECK(info.last == 9);

    /* A follower. */
    char path[4096];
    snprintf(path, sizeof path, "%s/copy", argv[1]);
    chiplog_log_options_t files;
    chiplog_log_options_for_segments(&files, sizeof files, 1 << 20);
    chiplog_follower_options_t following;
    chiplog_follower_options_init(&following, sizeof following);
    following.files = &files;
    following.open_timeout_ms = LONG_MS;
    chiplog_follower_t *follower = NULL;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_follower_open(path, servers, 1, 99, 1, &following, &follower, &error));
    following.served_objects = 2;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_follower_open(path, servers, 1, CHIPLOG_START_FIRST, 0, &following, &follower, &error));
    following.served_objects = 1; /* the log has no objects: that changes nothing */
    FINE(chiplog_follower_open(path, servers, 1, CHIPLOG_START_FIRST, 0, &following, &follower, &error));
    struct pollfd events = {-1, POLLIN, 0};
    FINE(chiplog_follower_descriptor(follower, &events.fd, &error));
    FINE(chiplog_follower_wait_for(follower, 9, LONG_MS, &error));
    GIVES(CHIPLOG_TIMEOUT, chiplog_follower_wait_for(follower, 10, 10, &error));
    CHECK(poll(&events, 1, (int)LONG_MS) == 1);
    chiplog_event_t event;
    event.size = sizeof event;
    chiplog_error_t *cause = NULL;
    do {
        FINE(chiplog_follower_next_event(follower, LONG_MS, &event, &cause, &error));
        chiplog_error_close(cause);
    } while (event.kind != CHIPLOG_EVENT_CONNECTED);
    CHECK(strlen(event.server) > 0);
    while (chiplog_follower_next_event(follower, 0, &event, NULL, NULL) == CHIPLOG_OK) {
    }
    chiplog_log_t *copy = NULL;
    FINE(chiplog_follower_log(follower, &copy, &error));
    GIVES(CHIPLOG_NOT_LEADER, chiplog_log_append(copy, "x", 1, NULL, &error));
    chiplog_log_status_t copied;
    copied.size = sizeof copied;
    FINE(chiplog_log_status(copy, &copied, &error));
    CHECK(copied.follows == 1 && copied.last_index == 9);
    FINE(chiplog_log_close(copy, &error));
    FINE(chiplog_follower_reader(follower, CHIPLOG_START_LAST, 1, &reader, &error));
    FINE(chiplog_reader_next_record(reader, LONG_MS, &record, &error));
    CHECK(record.index == 9 && memcmp(record.data, "nine", 4) == 0);
    FINE(chiplog_reader_descriptor(reader, &fd.fd, &error));
    CHECK(poll(&fd, 1, 0) == 0);
    FINE(chiplog_producer_send(producer, "ten", 3, &error));
    CHECK(poll(&fd, 1, (int)LONG_MS) == 1);
    FINE(chiplog_reader_next_record(reader, 0, &record, &error));
    CHECK(record.index == 10);
    chiplog_follower_status_t stands;
    stands.size = sizeof stands;
    FINE(chiplog_follower_status(follower, &stands, &cause, &error));
    CHECK(stands.last == 10 && stands.connects >= 1 && stands.stopped == CHIPLOG_OK && stands.received_records >= 10);
    chiplog_error_close(cause);
    FINE(chiplog_client_discard(client, 3, &error));

    /* In a forked child each call is refused. */
    int forks = strcmp(argv[argc - 1], "no-fork") != 0;
    pid_t pid = forks ? fork() : -1;
    CHECK(pid >= 0 || !forks);
    if (pid == 0) {
        alarm(60);
        GIVES(CHIPLOG_FORKED, chiplog_client_info(client, &info, &error));
        GIVES(CHIPLOG_FORKED, chiplog_producer_send(producer, "x", 1, &error));
        GIVES(CHIPLOG_FORKED, chiplog_follower_status(follower, &stands, NULL, &error));
        CHECK(chiplog_producer_close(producer) == 0);
        chiplog_client_close(client);
        GIVES(CHIPLOG_FORKED, chiplog_follower_close(follower, &error));
        _exit(0);
    }
    int ended = 0;
    if (forks) CHECK(waitpid(pid, &ended, 0) == pid && WIFEXITED(ended) && WEXITSTATUS(ended) == 0);

    FINE(chiplog_follower_close(follower, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_follower_close(follower, &error));
    FINE(chiplog_follower_close(NULL, &error));
    GIVES(CHIPLOG_CLOSED, chiplog_reader_next_record(reader, LONG_MS, &record, &error));
    chiplog_reader_close(reader);

    /* Closing a producer returns the number of unsent records. They continue to be sent while the client is open. */
    chiplog_producer_options_init(&producing, sizeof producing);
    producing.linger_ms = 60 * 1000;
    chiplog_producer_t *lingers = NULL;
    FINE(chiplog_client_producer(client, &producing, &lingers, &error));
    for (int n = 0; n < 3; n++) FINE(chiplog_producer_send(lingers, "late", 4, &error));
    CHECK(chiplog_producer_close(lingers) == 3);
    CHECK(chiplog_producer_close(lingers) == 0 && chiplog_producer_close(NULL) == 0);
    do FINE(chiplog_client_info(client, &info, &error));
    while (info.last < 13);
    CHECK(info.last == 13);

    uint64_t left = 9;
    FINE(chiplog_producer_end(producer, LONG_MS, none_left, NULL, &left, &error));
    CHECK(left == 0);
    GIVES(CHIPLOG_CLOSED, chiplog_producer_send(producer, "x", 1, &error));
    CHECK(chiplog_producer_close(producer) == 0);
    chiplog_client_close(client);
    chiplog_client_close(client);
    GIVES(CHIPLOG_CLOSED, chiplog_client_info(client, &info, &error));
    puts("all is well");
    return 0;
}
