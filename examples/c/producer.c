/*
 * A producer: appends the lines of standard input to a cluster, once each, also after failures.
 *
 *   cc -o producer producer.c $(pkg-config --cflags --libs chiplog) && ./producer 127.0.0.1:7411 <some-file
 */
#include <chiplog.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *what, chiplog_error_t *error) {
    fprintf(stderr, "%s: %s\n", what, chiplog_error_message(error));
    chiplog_error_close(error);
    return 1;
}

/* A record that was not delivered: a program that cannot lose it would store it here. */
static void left_over(void *context, const void *data, size_t length, uint8_t in_doubt) {
    (void)context;
    fprintf(stderr, "%s: %.*s\n", in_doubt ? "perhaps not in the log" : "not in the log", (int)length, (const char *)data);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s HOST:PORT...\n", argv[0]);
        return 2;
    }
    chiplog_error_t *error = NULL;
    chiplog_client_t *client = NULL;
    const char *const *servers = (const char *const *)(argv + 1);
    if (chiplog_client_connect(servers, (size_t)argc - 1, NULL, &client, &error) != CHIPLOG_OK)
        return failed("connect", error);

    chiplog_producer_options_t options;
    chiplog_producer_options_init(&options, sizeof options);
    options.codec = CHIPLOG_CODEC_LZ4;
    chiplog_producer_t *producer = NULL;
    if (chiplog_client_producer(client, &options, &producer, &error) != CHIPLOG_OK) return failed("producer", error);

    char line[4096];
    unsigned long long lines = 0;
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        /* Returns when the line is buffered; waits when the buffer is full. */
        if (chiplog_producer_send(producer, line, strlen(line), &error) != CHIPLOG_OK) return failed("send", error);
        lines++;
    }

    /* Waits until all are in the log. */
    chiplog_status_t status = chiplog_producer_end(producer, 60 * 1000, left_over, NULL, NULL, &error);
    chiplog_producer_close(producer);
    chiplog_client_close(client);
    if (status != CHIPLOG_OK) return failed("end", error);
    printf("%llu lines are in the log\n", lines);
    return 0;
}
