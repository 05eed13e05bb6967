/* Logs of servers from C: created, listed, their options, and how durable their records are. argv[2]: a server without
 * named logs of any test before. */
#include "check.h"

static void one(void *context, const chiplog_log_info_t *info) {
    char *names = context;
    CHECK(strlen(info->log_id) == 32 && info->group >= 1 && info->elsewhere == 0);
    strcat(strcat(names, info->name), info->sealed ? "! " : " ");
}

static chiplog_client_t *connect_to(const char *server, const char *log) {
    const char *servers[1] = {server};
    chiplog_client_options_t options;
    chiplog_client_options_init(&options, sizeof options);
    options.log = log;
    chiplog_client_t *client = NULL;
    FINE(chiplog_client_connect(servers, 1, &options, &client, &error));
    return client;
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    chiplog_client_t *client = connect_to(argv[2], "");
    FINE(chiplog_client_create_log(client, "users", NULL, &error));
    FINE(chiplog_client_create_log(client, "orders", "users", &error));
    FINE(chiplog_client_create_log(client, "other", NULL, &error));

    /* Batches of several logs of a group, all of them or none. */
    chiplog_client_t *pair[3] = {NULL, NULL, NULL};
    FINE(chiplog_client_of_log(client, "users", &pair[0], &error));
    FINE(chiplog_client_of_log(client, "orders", &pair[1], &error));
    FINE(chiplog_client_of_log(client, "other", &pair[2], &error));
    chiplog_builder_t *builder = NULL;
    chiplog_batch_t *batch = NULL;
    FINE(chiplog_builder_open(&builder, &error));
    FINE(chiplog_builder_push(builder, "a", 1, &error));
    FINE(chiplog_builder_push(builder, "b", 1, &error));
    FINE(chiplog_builder_build(builder, &batch, &error));
    chiplog_client_append_t appends[3] = {{pair[0], batch}, {pair[1], batch}, {pair[0], batch}};
    chiplog_appended_t at[3];
    FINE(chiplog_client_append_together(appends, 3, at, &error));
    CHECK(at[0].first == 1 && at[1].first == 1 && at[2].first == 3 && at[2].count == 2);
    FINE(chiplog_client_append_together(appends, 2, NULL, &error));
    FINE(chiplog_client_append_together(NULL, 0, NULL, &error));
    FINE(chiplog_client_seal_log(client, "users", &error));
    GIVES(CHIPLOG_SEALED, chiplog_client_append_together(appends, 2, at, &error));
    appends[0].client = pair[2];
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_append_together(appends, 2, at, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_append_together(NULL, 1, at, &error));
    appends[0].client = NULL;
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_append_together(appends, 2, at, &error));
    chiplog_remote_info_t info = {.size = sizeof info};
    FINE(chiplog_client_info(pair[1], &info, &error));
    CHECK(info.last == 4);
    chiplog_batch_close(batch);
    chiplog_builder_close(builder);
    for (int n = 0; n < 3; n++) {
        chiplog_client_close(pair[n]);
    }
    char names[1000] = "";
    FINE(chiplog_client_list_logs(client, NULL, one, names, &error));
    CHECK(strcmp(names, "orders other users! ") == 0);
    FINE(chiplog_client_list_logs(client, "o", one, names, &error));
    CHECK(strcmp(names, "orders other users! orders other ") == 0);
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_list_logs(client, NULL, NULL, NULL, &error));

    /* Options of a named log: its own ones. */
    chiplog_client_t *orders = NULL;
    GIVES(CHIPLOG_NOT_FOUND, chiplog_client_of_log(client, "none", &orders, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_of_log(client, NULL, &orders, &error));
    CHECK(orders == NULL);
    FINE(chiplog_client_of_log(client, "orders", &orders, &error));
    uint64_t value = 9;
    uint8_t is_set = 9;
    FINE(chiplog_client_log_option(orders, "retention_age", &value, &is_set, &error));
    CHECK(value == 0 && is_set == 0);
    chiplog_log_option_t changes[2] = {{"retention_age", 60000, 1, {0}}, {"retention_bytes", UINT64_MAX, 1, {0}}};
    FINE(chiplog_client_set_log_options(orders, changes, 2, LONG_MS, &error));
    FINE(chiplog_client_log_option(orders, "retention_age", &value, &is_set, &error));
    CHECK(value == 60000 && is_set == 1);
    FINE(chiplog_client_log_option(orders, "retention_bytes", &value, NULL, &error));
    CHECK(value == UINT64_MAX);
    changes[0].is_set = 0;
    FINE(chiplog_client_set_log_options(orders, changes, 1, LONG_MS, &error));
    FINE(chiplog_client_log_option(orders, "retention_age", NULL, &is_set, &error));
    CHECK(is_set == 0);
    chiplog_log_option_t of_its_group = {"session_window", 7, 1, {0}}, too_small = {"retention_bytes", 1, 1, {0}};
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_set_log_options(orders, &of_its_group, 1, LONG_MS, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_set_log_options(orders, &too_small, 1, LONG_MS, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_set_log_options(orders, NULL, 0, LONG_MS, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_log_option(orders, "none", &value, &is_set, &error));
    GIVES(CHIPLOG_INVALID_ARGUMENT, chiplog_client_log_option(NULL, "retention_age", &value, &is_set, &error));

    /* How durable records are: argv[3] is the name of the class of the default log. */
    CHECK(argc > 3);
    chiplog_producer_t *producer = NULL;
    FINE(chiplog_client_producer(client, NULL, &producer, &error));
    chiplog_ticket_t *ticket = NULL;
    chiplog_appended_t placed;
    FINE(chiplog_producer_submit(producer, "record", 6, &ticket, &error));
    FINE(chiplog_ticket_wait(ticket, LONG_MS, &placed, &error));
    CHECK(strcmp(chiplog_durability_name(placed.durability), argv[3]) == 0);
    chiplog_ticket_close(ticket);
    CHECK(chiplog_producer_close(producer) == 0);
    CHECK(strcmp(chiplog_durability_name(CHIPLOG_DURABILITY_UNKNOWN), "unknown") == 0);

    FINE(chiplog_client_delete_log(client, "orders", &error));
    GIVES(CHIPLOG_NOT_FOUND, chiplog_client_set_log_options(orders, changes, 1, LONG_MS, &error));
    chiplog_client_close(orders);
    chiplog_client_close(client);
    puts("all is well");
    return 0;
}
