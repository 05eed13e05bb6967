/* The embedded log with many threads, and in a forked child. argv[1]: a directory. Last argument "no-fork": skips the fork,
 * because valgrind reports a child's copy of its parent's memory as lost. */
#define _GNU_SOURCE
#include "embedded.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

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
    chiplog_log_status_t status;
    status.size = sizeof status;
    FINE(chiplog_log_status(shared, &status, &error));
    CHECK(status.last_index == THREADS * 200);
    /* The log is closed while other threads append. */
    for (int n = 0; n < THREADS; n++) CHECK(pthread_create(&all[n], NULL, n % 4 == 3 ? closes : appends, NULL) == 0);
    for (int n = 0; n < THREADS; n++) pthread_join(all[n], NULL);
    GIVES(CHIPLOG_CLOSED, chiplog_log_status(shared, &status, &error));
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

int main(int argc, char **argv) {
    begin(argc, argv);
    threads();
    if (strcmp(argv[argc - 1], "no-fork") != 0) a_forked_child();
    puts("all is well");
    return 0;
}
