/* Shared by the tests in C and C++. */
#ifndef CHIPLOG_TESTS_CHECK_H
#define CHIPLOG_TESTS_CHECK_H
#include "chiplog.h"
#include "chiplog.h" /* including it twice does no harm */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long a test waits for something that must happen: longer than any machine needs. */
#define LONG_MS ((uint64_t)120 * 1000)

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);       \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

/* The call returns this status, and its error has the same status and a message. */
#define GIVES(wanted, call)                                                               \
    do {                                                                                  \
        chiplog_error_t *error = NULL;                                                    \
        chiplog_status_t wanted_ = (wanted), status_ = (call);                            \
        if (status_ != wanted_) {                                                         \
            fprintf(stderr, "%s:%d: %s gives %s: %s, not %s\n", __FILE__, __LINE__, #call, \
                    chiplog_status_name(status_), chiplog_error_message(error),           \
                    chiplog_status_name(wanted_));                                        \
            exit(1);                                                                      \
        }                                                                                 \
        CHECK((error == NULL) == (status_ == CHIPLOG_OK));                                \
        if (error != NULL) {                                                              \
            CHECK(chiplog_error_status(error) == status_);                                \
            CHECK(strlen(chiplog_error_message(error)) > 0);                              \
            chiplog_error_close(error);                                                   \
        }                                                                                 \
    } while (0)

#define FINE(call) GIVES(CHIPLOG_OK, call)
#endif
