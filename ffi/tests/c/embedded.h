/* Shared by the tests of the embedded log: small logs below the directory in argv[1]. */
#ifndef CHIPLOG_TESTS_EMBEDDED_H
#define CHIPLOG_TESTS_EMBEDDED_H
#include "check.h"

static char directory[3000];

static inline const char *below(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static inline chiplog_log_t *small(const char *name) {
    chiplog_log_options_t options;
    chiplog_log_options_for_segments(&options, sizeof options, 1 << 20);
    chiplog_log_t *log = NULL;
    FINE(chiplog_log_open(below(name), &options, &log, &error));
    return log;
}

static inline void append(chiplog_log_t *log, const char *text, uint64_t wanted) {
    uint64_t index = 0;
    FINE(chiplog_log_append(log, text, strlen(text), &index, &error));
    CHECK(index == wanted);
}

static inline int is(const chiplog_record_t *record, uint64_t index, const char *text) {
    return record->index == index && record->length == strlen(text) && memcmp(record->data, text, record->length) == 0;
}

/* The directory of this program. */
static inline void begin(int argc, char **argv) {
    CHECK(argc > 1);
    snprintf(directory, sizeof directory, "%s", argv[1]);
}
#endif
