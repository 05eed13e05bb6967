/* The library does not touch the environment, signals or standard streams. argv[1]: a directory, argv[2]: a server that
 * stops when this program prints "now". */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

static int asked;

/* Replaces libc's getenv: each lookup calls this one. */
char *getenv(const char *name) {
    /* tokio's runtime always looks up this one. No other lookup is allowed. */
    if (strcmp(name, "TOKIO_UNSTABLE_SHARDED_BLOCKING_QUEUE") == 0) return NULL;
    fprintf(stderr, "the library looked up the environment variable %s\n", name);
    asked++;
    return NULL;
}

char *secure_getenv(const char *name) { return getenv(name); }

/* Each thread except this one blocks all signals that can be blocked. Returns the number of such threads. */
static int threads_without_signals(void) {
    int seen = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        if (task->d_name[0] == '.' || atoi(task->d_name) == getpid()) continue;
        char path[300], line[300];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL) continue; /* the thread has ended meanwhile */
        while (fgets(line, sizeof line, file) != NULL) {
            unsigned long long blocked;
            if (sscanf(line, "SigBlk: %llx", &blocked) == 1) {
                const int which[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGCHLD, SIGALRM};
                for (size_t n = 0; n < sizeof which / sizeof *which; n++)
                    CHECK(blocked & (1ull << (which[n] - 1)));
                seen++;
            }
        }
        fclose(file);
    }
    closedir(tasks);
    return seen;
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    struct sigaction before[65], after;
    sigset_t mask_before, mask_after;
    for (int n = 1; n < 65; n++) sigaction(n, NULL, &before[n]);
    sigprocmask(SIG_BLOCK, NULL, &mask_before);
    CHECK(before[SIGPIPE].sa_handler == SIG_DFL);

    char path[4096];
    snprintf(path, sizeof path, "%s/quiet", argv[1]);
    chiplog_log_options_t options;
    chiplog_log_options_for_segments(&options, sizeof options, 1 << 20);
    chiplog_log_t *log = NULL;
    FINE(chiplog_log_open(path, &options, &log, &error));
    FINE(chiplog_log_append(log, "x", 1, NULL, &error));
    chiplog_read_only_log_t *read_only = NULL;
    FINE(chiplog_read_only_log_open(path, &read_only, &error));
    CHECK(threads_without_signals() >= 2);

    const char *servers[1] = {argv[2]};
    chiplog_client_options_t calling;
    chiplog_client_options_init(&calling, sizeof calling);
    calling.timeout_ms = 2000;
    chiplog_client_t *client = NULL;
    FINE(chiplog_client_connect(servers, 1, &calling, &client, &error));
    chiplog_producer_t *producer = NULL;
    FINE(chiplog_client_producer(client, NULL, &producer, &error));
    FINE(chiplog_producer_append(producer, "x", 1, NULL, &error));
    snprintf(path, sizeof path, "%s/quiet-copy", argv[1]);
    chiplog_follower_options_t following;
    chiplog_follower_options_init(&following, sizeof following);
    following.files = &options;
    chiplog_follower_t *follower = NULL;
    FINE(chiplog_follower_open(path, servers, 1, CHIPLOG_START_FIRST, 0, &following, &follower, &error));
    FINE(chiplog_follower_wait_for(follower, 1, LONG_MS, &error));
    CHECK(threads_without_signals() >= 4);

    /* The server stops while its connection is written to: no signal kills this program. */
    puts("now");
    fflush(stdout);
    static char large[100 << 10];
    chiplog_remote_info_t info;
    info.size = sizeof info;
    chiplog_status_t status;
    for (int n = 0; n < 50; n++) status = chiplog_producer_try_send(producer, large, sizeof large, NULL);
    do {
        status = chiplog_producer_try_send(producer, large, sizeof large, NULL);
        status = chiplog_client_info(client, &info, NULL);
    } while (status == CHIPLOG_OK);
    CHECK(status == CHIPLOG_UNAVAILABLE || status == CHIPLOG_TIMEOUT);
    uint64_t left = 0;
    status = chiplog_producer_end(producer, 100, NULL, NULL, &left, NULL);
    CHECK(status != CHIPLOG_OK);
    CHECK(chiplog_producer_close(producer) == 0); /* what is left was reported */
    chiplog_client_close(client);
    FINE(chiplog_follower_close(follower, &error));
    chiplog_read_only_log_close(read_only);
    FINE(chiplog_log_close(log, &error));

    for (int n = 1; n < 65; n++) {
        sigaction(n, NULL, &after);
        CHECK(after.sa_handler == before[n].sa_handler && after.sa_flags == before[n].sa_flags);
    }
    sigprocmask(SIG_BLOCK, NULL, &mask_after);
    for (int n = 1; n < 65; n++) CHECK(sigismember(&mask_before, n) == sigismember(&mask_after, n));
    CHECK(asked == 0);
    puts("all is well");
    return 0;
}
