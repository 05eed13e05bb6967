/* Certificates and tokens of clients and followers. argv[1]: a directory with authority.pem, client.pem, client.key and
 * stranger.pem, an unknown authority; argv[2]: a server that requires a certificate and a token. Its tokens are the names of
 * their roles. */
#include "check.h"

/* Reads a whole file. */
static char *bytes(const char *directory, const char *name, size_t *length) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    char *text = malloc(1 << 16);
    CHECK(text != NULL);
    *length = fread(text, 1, 1 << 16, file);
    fclose(file);
    return text;
}

static const char *servers[1];
static char path[4096];
static chiplog_log_options_t files;

static chiplog_status_t connects(const chiplog_client_options_t *options, chiplog_error_t **error) {
    chiplog_client_t *client = NULL;
    chiplog_status_t status = chiplog_client_connect(servers, 1, options, &client, error);
    CHECK((client != NULL) == (status == CHIPLOG_OK));
    chiplog_client_close(client);
    return status;
}

/* The same settings for a follower. */
static chiplog_status_t follows(const chiplog_client_options_t *options, chiplog_error_t **error) {
    chiplog_follower_options_t following;
    chiplog_follower_options_init(&following, sizeof following);
    following.files = &files;
    following.open_timeout_ms = options->timeout_ms;
    following.token = options->token;
    following.token_in_plain_text = options->token_in_plain_text;
    following.tls_authority = options->tls_authority;
    following.tls_authority_length = options->tls_authority_length;
    following.tls_certificate = options->tls_certificate;
    following.tls_certificate_length = options->tls_certificate_length;
    following.tls_key = options->tls_key;
    following.tls_key_length = options->tls_key_length;
    chiplog_follower_t *follower = NULL;
    chiplog_status_t status =
        chiplog_follower_open(path, servers, 1, CHIPLOG_START_FIRST, 0, &following, &follower, error);
    CHECK((follower != NULL) == (status == CHIPLOG_OK));
    if (status != CHIPLOG_OK) return status;
    FINE(chiplog_follower_wait_for(follower, 1, LONG_MS, &error));
    FINE(chiplog_follower_close(follower, &error));
    return CHIPLOG_OK;
}

static void both_give(chiplog_status_t status, const chiplog_client_options_t *options) {
    GIVES(status, connects(options, &error));
    /* A follower retries until its time-out and then returns the last error: there must have been one. */
    chiplog_client_options_t asked = *options;
    chiplog_status_t told;
    asked.timeout_ms = 1000;
    do {
        asked.timeout_ms *= 2;
        told = follows(&asked, NULL);
    } while ((told == CHIPLOG_TIMEOUT || told == CHIPLOG_UNAVAILABLE) && asked.timeout_ms < LONG_MS);
    CHECK(told == status);
}

static void unreachable(const char *whom, chiplog_status_t status) {
    if (status != CHIPLOG_UNAVAILABLE && status != CHIPLOG_TIMEOUT) printf("%s: %s\n", whom, chiplog_status_name(status));
    CHECK(status == CHIPLOG_UNAVAILABLE || status == CHIPLOG_TIMEOUT);
}

/* TLS does not say why it refuses a client. */
static void neither_gets_in(chiplog_client_options_t options) {
    options.timeout_ms = 1000;
    unreachable("a client", connects(&options, NULL));
    unreachable("a follower", follows(&options, NULL));
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    servers[0] = argv[2];
    snprintf(path, sizeof path, "%s/copy", argv[1]);
    chiplog_log_options_for_segments(&files, sizeof files, 1 << 20);
    size_t authority_length, stranger_length, certificate_length, key_length;
    char *authority = bytes(argv[1], "authority.pem", &authority_length);
    char *stranger = bytes(argv[1], "stranger.pem", &stranger_length);
    char *certificate = bytes(argv[1], "client.pem", &certificate_length);
    char *key = bytes(argv[1], "client.key", &key_length);
    chiplog_client_options_t good, options;
    chiplog_client_options_init(&good, sizeof good);
    good.timeout_ms = LONG_MS;
    good.tls_authority = authority;
    good.tls_authority_length = authority_length;
    good.tls_certificate = certificate;
    good.tls_certificate_length = certificate_length;
    good.tls_key = key;
    good.tls_key_length = key_length;
    good.token = "admin";

    chiplog_client_t *client = NULL;
    FINE(chiplog_client_connect(servers, 1, &good, &client, &error));
    chiplog_producer_t *producer = NULL;
    FINE(chiplog_client_producer(client, NULL, &producer, &error));
    FINE(chiplog_producer_append(producer, "guarded", 7, NULL, &error));
    FINE(chiplog_producer_end(producer, LONG_MS, NULL, NULL, NULL, &error));
    chiplog_producer_close(producer);
    chiplog_client_close(client);

    options = good;
    options.token = NULL;
    both_give(CHIPLOG_UNAUTHENTICATED, &options);
    options.token = "a guess";
    both_give(CHIPLOG_UNAUTHENTICATED, &options);
    options.token = "read";
    both_give(CHIPLOG_OK, &options);
    FINE(chiplog_client_connect(servers, 1, &options, &client, &error));
    GIVES(CHIPLOG_PERMISSION_DENIED, chiplog_client_discard(client, 1, &error));
    GIVES(CHIPLOG_PERMISSION_DENIED, chiplog_client_producer(client, NULL, &producer, &error));
    chiplog_client_close(client);

    snprintf(path, sizeof path, "%s/never", argv[1]);
    options = good;
    options.tls_authority = options.tls_certificate = options.tls_key = NULL;
    neither_gets_in(options);
    options = good;
    options.tls_certificate = options.tls_key = NULL;
    options.tls_certificate_length = options.tls_key_length = 0;
    neither_gets_in(options);
    options = good;
    options.tls_authority = stranger;
    options.tls_authority_length = stranger_length;
    neither_gets_in(options);

    /* Options that must be set together, and empty ones. */
    options = good;
    options.tls_key = NULL;
    both_give(CHIPLOG_INVALID_ARGUMENT, &options);
    options = good;
    options.tls_certificate = NULL;
    both_give(CHIPLOG_INVALID_ARGUMENT, &options);
    options = good;
    options.tls_authority = NULL;
    both_give(CHIPLOG_INVALID_ARGUMENT, &options);
    options = good;
    options.tls_certificate_length = 0;
    both_give(CHIPLOG_INVALID_ARGUMENT, &options);
    options = good;
    options.tls_key_length = 0;
    both_give(CHIPLOG_INVALID_ARGUMENT, &options);
    options = good;
    options.tls_authority_length = 0;
    both_give(CHIPLOG_INVALID_ARGUMENT, &options);
    options = good;
    options.tls_authority = "rubbish";
    options.tls_authority_length = 7;
    both_give(CHIPLOG_INVALID_ARGUMENT, &options);
    options = good;
    options.token_in_plain_text = 2;
    both_give(CHIPLOG_INVALID_ARGUMENT, &options);
    free(authority);
    free(stranger);
    free(certificate);
    free(key);
    puts("all is well");
    return 0;
}
