/* The C side of benches/rates.rs: the same work over the C ABI.
 *
 *   rates append DIRECTORY THREADS BYTES SECONDS     appends; prints records a second
 *   rates scan DIRECTORY                             reads all of it; prints bytes a second
 */
#define _GNU_SOURCE
#include <chiplog.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static chiplog_log_t *shared;
static size_t length;
static int stop;

static void must(chiplog_status_t status, chiplog_error_t *error) {
    if (status == CHIPLOG_OK) return;
    fprintf(stderr, "%s: %s\n", chiplog_status_name(status), chiplog_error_message(error));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void *append(void *count) {
    char *record = malloc(length);
    if (record == NULL) exit(1);
    memset(record, 'x', length);
    unsigned long long done = 0;
    chiplog_error_t *error = NULL;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        must(chiplog_log_append(shared, record, length, NULL, &error), error);
        done++;
    }
    free(record);
    *(unsigned long long *)count = done;
    return NULL;
}

int main(int argc, char **argv) {
    chiplog_error_t *error = NULL;
    if (argc < 3) return 2;
    must(chiplog_log_open(argv[2], NULL, &shared, &error), error);
    if (strcmp(argv[1], "append") == 0 && argc == 6) {
        enum { THREADS_MAX = 1024 };
        static pthread_t threads[THREADS_MAX];
        static unsigned long long counts[THREADS_MAX];
        int all = atoi(argv[3]);
        if (all < 1 || all > THREADS_MAX) return 2;
        length = (size_t)atol(argv[4]);
        double began = now();
        for (int n = 0; n < all; n++)
            if (pthread_create(&threads[n], NULL, append, &counts[n]) != 0) return 1;
        struct timespec seconds = {0, 0};
        double wanted = atof(argv[5]);
        seconds.tv_sec = (time_t)wanted;
        seconds.tv_nsec = (long)((wanted - (double)seconds.tv_sec) * 1e9);
        nanosleep(&seconds, NULL);
        __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
        unsigned long long done = 0;
        for (int n = 0; n < all; n++) {
            pthread_join(threads[n], NULL);
            done += counts[n];
        }
        printf("%.1f\n", (double)done / (now() - began));
    } else if (strcmp(argv[1], "scan") == 0) {
        chiplog_reader_t *reader = NULL;
        must(chiplog_log_reader(shared, CHIPLOG_START_FIRST, 0, &reader, &error), error);
        unsigned long long bytes = 0, sum = 0;
        double began = now();
        chiplog_records_t *run = NULL;
        while (chiplog_reader_next_run(reader, 1 << 20, 0, &run, NULL) == CHIPLOG_OK) {
            const chiplog_record_t *record;
            size_t count;
            must(chiplog_records_view(run, &record, &count, &error), error);
            for (size_t n = 0; n < count; n++) {
                bytes += record[n].length;
                sum += record[n].index;
            }
            chiplog_records_close(run);
        }
        double took = now() - began;
        if (sum == 0) return 1;
        printf("%.1f\n", (double)bytes / took);
        chiplog_reader_close(reader);
    } else {
        return 2;
    }
    must(chiplog_log_close(shared, &error), error);
    return 0;
}
