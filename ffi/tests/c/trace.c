/* chiplog's notices reach a callback. argv[1]: a directory; "no-fork" as the last argument: see threads.c. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static chiplog_log_t *log_of_all;

/* The notices that a callback received. */
struct heard {
    int calls, discards, wrong;
    uint32_t least;
};

static void hear(void *context, uint32_t severity, const char *target, const char *text) {
    struct heard *heard = context;
    chiplog_log_status_t status;
    status.size = sizeof status;
    /* Calls that can fail are refused here, also the one that removes this callback. */
    int refused = chiplog_log_status(log_of_all, &status, NULL) == CHIPLOG_INVALID_ARGUMENT &&
                  chiplog_trace(NULL, NULL, 0, NULL) == CHIPLOG_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    heard->calls++;
    if (strstr(text, "records before the first were discarded") != NULL) heard->discards++;
    if (severity > heard->least) heard->least = severity;
    if (!refused || severity < CHIPLOG_SEVERITY_ERROR || strncmp(target, "chiplog", 7) != 0) heard->wrong++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

/* Causes a notice: the writer reports each discard. */
static void discard_one(chiplog_log_t *log) {
    uint64_t index = 0;
    for (int n = 0; n < 2; n++) FINE(chiplog_log_append(log, "x", 1, &index, &error));
    FINE(chiplog_log_discard(log, index, &error));
}

static void await_discards(struct heard *heard, int wanted) {
    pthread_mutex_lock(&lock);
    while (heard->discards < wanted) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static chiplog_log_t *open_log(const char *directory, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    chiplog_log_options_t options;
    chiplog_log_options_for_segments(&options, sizeof options, 1 << 20);
    chiplog_log_t *log = NULL;
    FINE(chiplog_log_open(path, &options, &log, &error));
    return log;
}

static void notices_of_the_chosen_severity_arrive(void) {
    struct heard heard = {0, 0, 0, 0};
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_trace(hear, &heard, 0, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_trace(hear, &heard, 6, &error));
    FINE(chiplog_trace(hear, &heard, CHIPLOG_SEVERITY_INFO, &error));
    discard_one(log_of_all);
    await_discards(&heard, 1);
    /* A new severity replaces the last. */
    FINE(chiplog_trace(hear, &heard, CHIPLOG_SEVERITY_ERROR, &error));
    int calls = heard.calls; /* no thread is in the callback any more */
    CHECK(heard.wrong == 0 && heard.least == CHIPLOG_SEVERITY_INFO);
    discard_one(log_of_all);
    discard_one(log_of_all);
    FINE(chiplog_trace(NULL, NULL, 0, &error));
    CHECK(heard.calls == calls);
    FINE(chiplog_trace(NULL, NULL, 0, &error)); /* a second time: nothing happens */
}

static void *discards(void *context) {
    for (int n = 0; n < 100; n++) discard_one(context);
    return NULL;
}

/* The context is freed as soon as the callback is removed, while notices continue: AddressSanitizer detects a late call. */
static void a_context_is_freed_at_once(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, discards, log_of_all) == 0);
    for (int n = 0; n < 200; n++) {
        struct heard *heard = calloc(1, sizeof *heard);
        FINE(chiplog_trace(hear, heard, CHIPLOG_SEVERITY_TRACE, &error));
        if (n % 20 == 0) usleep(1000);
        FINE(chiplog_trace(NULL, NULL, 0, &error));
        CHECK(heard->wrong == 0);
        free(heard);
    }
    pthread_join(thread, NULL);
}

static void a_forked_child_sets_its_own_callback(const char *directory) {
    struct heard heard = {0, 0, 0, 0};
    FINE(chiplog_trace(hear, &heard, CHIPLOG_SEVERITY_INFO, &error));
    discard_one(log_of_all);
    await_discards(&heard, 1);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(60); /* a child that hangs fails the test */
        int before = heard.discards;
        chiplog_log_t *own = open_log(directory, "child");
        discard_one(own);
        CHECK(heard.discards == before);
        FINE(chiplog_trace(NULL, NULL, 0, &error));
        FINE(chiplog_trace(hear, &heard, CHIPLOG_SEVERITY_INFO, &error));
        discard_one(own);
        await_discards(&heard, before + 1);
        FINE(chiplog_log_close(own, &error));
        FINE(chiplog_trace(NULL, NULL, 0, &error));
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    int before = heard.discards;
    discard_one(log_of_all);
    await_discards(&heard, before + 1);
    FINE(chiplog_trace(NULL, NULL, 0, &error));
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    log_of_all = open_log(argv[1], "log");
    notices_of_the_chosen_severity_arrive();
    a_context_is_freed_at_once();
    if (strcmp(argv[argc - 1], "no-fork") != 0) a_forked_child_sets_its_own_callback(argv[1]);
    FINE(chiplog_log_close(log_of_all, &error));
    puts("all is well");
    return 0;
}
