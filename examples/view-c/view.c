/*
 * A view of a log, in C: a table of lines and an index of words in SQLite, made from a cluster's records. It has a copy of the
 * log in its own process. Any server feeds it, and it continues at another one when that dies.
 *
 *   cc -O2 -o view view.c $(pkg-config --cflags --libs chiplog sqlite3)
 *   ./view --cluster 127.0.0.1:7411 --dir copy --db view.db --until 1000
 *
 * The changes of a run of records and the index of its last one are written in one transaction. Whenever this is killed, the file
 * holds the records up to that index, each once. The same view exists in other languages; all end with the same summary.
 */
#include <chiplog.h>
#include <sqlite3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Records of one transaction are at most this many bytes, but at least one batch. */
#define RUN_BYTES (1 << 20)
#define TELL_MS 500
#define SERVERS_MAX 64

static const char SCHEMA[] =
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
    "CREATE TABLE IF NOT EXISTS lines (idx INTEGER PRIMARY KEY, text TEXT NOT NULL);"
    "CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;"
    /* One row: the log that the tables are of, and the last record in them. */
    "CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 1), log TEXT NOT NULL, applied INTEGER NOT NULL);";

/* The tables, and their position. */
struct view {
    sqlite3 *tables;
    sqlite3_stmt *line, *word, *position;
    char log[40]; /* empty: of no log yet */
    uint64_t applied;
};

static void die(const char *what, const char *why) {
    fprintf(stderr, "view: %s: %s\n", what, why);
    exit(1);
}

static void sql(struct view *view, int result) {
    if (result != SQLITE_OK && result != SQLITE_ROW && result != SQLITE_DONE) die("the tables", sqlite3_errmsg(view->tables));
}

static void check(struct view *view, chiplog_status_t status, chiplog_error_t *error) {
    if (status == CHIPLOG_OK) return;
    if (status == CHIPLOG_DISCARDED) {
        fprintf(stderr, "view: discarded: record %llu, which this view needs next, is gone; it has to be made again\n",
                (unsigned long long)view->applied + 1);
        exit(1);
    }
    die(chiplog_status_name(status), error ? chiplog_error_message(error) : "no more is known");
}

static sqlite3_stmt *prepare(struct view *view, const char *text) {
    sqlite3_stmt *statement = NULL;
    sql(view, sqlite3_prepare_v2(view->tables, text, -1, &statement, NULL));
    return statement;
}

static void run(struct view *view, sqlite3_stmt *statement) {
    sql(view, sqlite3_step(statement));
    sql(view, sqlite3_reset(statement));
}

static void open_view(struct view *view, const char *file) {
    if (sqlite3_open(file, &view->tables) != SQLITE_OK) die(file, sqlite3_errmsg(view->tables));
    sql(view, sqlite3_exec(view->tables, SCHEMA, NULL, NULL, NULL));
    sqlite3_stmt *position = prepare(view, "SELECT log, applied FROM position");
    if (sqlite3_step(position) == SQLITE_ROW) {
        snprintf(view->log, sizeof view->log, "%s", (const char *)sqlite3_column_text(position, 0));
        view->applied = (uint64_t)sqlite3_column_int64(position, 1);
    }
    sql(view, sqlite3_finalize(position));
    /* The bytes as they arrived, which a bound text need not be. */
    view->line = prepare(view, "INSERT INTO lines VALUES (?1, CAST(?2 AS TEXT))");
    view->word = prepare(view, "INSERT INTO words VALUES (?1, 1) ON CONFLICT (word) DO UPDATE SET count = count + 1");
    view->position = prepare(view, "INSERT OR REPLACE INTO position VALUES (1, ?1, ?2)");
}

/* Words are the runs of ASCII letters, in lower case. */
static void count_words(struct view *view, const char *bytes, size_t length) {
    for (size_t at = 0; at < length;) {
        char word[256];
        size_t letters = 0;
        char *all = word;
        size_t end = at;
        while (end < length && ((bytes[end] | 32) >= 'a' && (bytes[end] | 32) <= 'z')) end++;
        letters = end - at;
        if (letters > 0) {
            if (letters > sizeof word && (all = malloc(letters)) == NULL) die("a word", "no memory");
            for (size_t i = 0; i < letters; i++) all[i] = (char)(bytes[at + i] | 32);
            sql(view, sqlite3_bind_text(view->word, 1, all, (int)letters, SQLITE_TRANSIENT));
            run(view, view->word);
            if (all != word) free(all);
        }
        at = end + 1;
    }
}

/* Applies records up to `until`, all of them or none. */
static void apply(struct view *view, const char *log, const chiplog_record_t *record, size_t count, uint64_t until) {
    uint64_t applied = view->applied;
    int begun = view->log[0] != 0;
    sql(view, sqlite3_exec(view->tables, "BEGIN IMMEDIATE", NULL, NULL, NULL));
    for (size_t i = 0; i < count && record[i].index <= until; i++) {
        if (begun && record[i].index != applied + 1) die("the copy", "a record came that was not due");
        sql(view, sqlite3_bind_int64(view->line, 1, (sqlite3_int64)record[i].index));
        sql(view, sqlite3_bind_blob64(view->line, 2, record[i].data, record[i].length, SQLITE_STATIC));
        run(view, view->line);
        count_words(view, (const char *)record[i].data, record[i].length);
        applied = record[i].index;
        begun = 1;
    }
    sql(view, sqlite3_bind_text(view->position, 1, log, -1, SQLITE_STATIC));
    sql(view, sqlite3_bind_int64(view->position, 2, (sqlite3_int64)applied));
    run(view, view->position);
    /* Not committed: another run, with another end, begins as this one did. */
    if (applied == view->applied) die("the log begins behind the last record that was asked for", "nothing of it is there");
    sql(view, sqlite3_exec(view->tables, "COMMIT", NULL, NULL, NULL));
    if (view->log != log) snprintf(view->log, sizeof view->log, "%s", log);
    view->applied = applied;
}

/* Prints what has happened to the copy. */
static void tell_events(chiplog_follower_t *copy) {
    chiplog_event_t event;
    event.size = sizeof event;
    while (chiplog_follower_next_event(copy, 0, &event, NULL, NULL) == CHIPLOG_OK)
        if (event.kind == CHIPLOG_EVENT_CONNECTED || event.kind == CHIPLOG_EVENT_SWITCHED) printf("fed by %s\n", event.server);
    fflush(stdout);
}

/* Applies the records that arrive, up to record `until`. */
static void follow(struct view *view, chiplog_follower_t *copy, uint64_t until) {
    chiplog_error_t *error = NULL;
    chiplog_log_t *log = NULL;
    chiplog_log_status_t now;
    now.size = sizeof now;
    check(view, chiplog_follower_log(copy, &log, &error), error);
    check(view, chiplog_log_status(log, &now, &error), error);
    chiplog_log_close(log, NULL);
    if (view->log[0] && strcmp(view->log, now.log_id) != 0) die("the servers have another log than the tables", now.log_id);
    uint32_t start = CHIPLOG_START_FIRST;
    uint64_t value = 0;
    if (view->log[0]) {
        /* A copy that was made again must catch up with the view first. */
        check(view, chiplog_follower_wait_for(copy, view->applied, CHIPLOG_FOREVER, &error), error);
        start = CHIPLOG_START_INDEX;
        value = view->applied + 1;
    } else if (now.first_index > 1) {
        printf("discarded: records 1 to %llu are gone; this view begins with record %llu\n",
               (unsigned long long)now.first_index - 1, (unsigned long long)now.first_index);
    }
    chiplog_reader_t *reader = NULL;
    check(view, chiplog_follower_reader(copy, start, value, &reader, &error), error);
    uint64_t told = view->applied;
    while (view->applied < until) {
        chiplog_records_t *records = NULL;
        chiplog_status_t status = chiplog_reader_next_run(reader, RUN_BYTES, TELL_MS, &records, &error);
        if (status == CHIPLOG_TIMEOUT) {
            chiplog_error_close(error);
            error = NULL;
        } else {
            check(view, status, error);
            const chiplog_record_t *record = NULL;
            size_t count = 0;
            check(view, chiplog_records_view(records, &record, &count, &error), error);
            apply(view, now.log_id, record, count, until);
            chiplog_records_close(records);
        }
        tell_events(copy);
        if (view->applied > told) {
            printf("applied index %llu\n", (unsigned long long)view->applied);
            fflush(stdout);
            told = view->applied;
        }
    }
    chiplog_reader_close(reader);
}

static void summary(struct view *view) {
    sqlite3_stmt *all = prepare(view, "SELECT (SELECT count(*) FROM lines), count(*), coalesce(sum(count), 0) FROM words");
    sql(view, sqlite3_step(all));
    printf("%lld records, %lld distinct words, %lld words, last index %llu\n", (long long)sqlite3_column_int64(all, 0),
           (long long)sqlite3_column_int64(all, 1), (long long)sqlite3_column_int64(all, 2),
           (unsigned long long)view->applied);
    sql(view, sqlite3_finalize(all));
}

int main(int argc, char **argv) {
    char *cluster = NULL;
    const char *db = NULL, *dir = NULL;
    uint64_t until = INT64_MAX;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--cluster") == 0) cluster = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--db") == 0) db = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--dir") == 0) dir = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--until") == 0) until = strtoull(argv[i + 1], NULL, 10);
        else cluster = NULL, i = argc;
    }
    if (cluster == NULL || db == NULL || dir == NULL) {
        fprintf(stderr, "usage: %s --cluster HOST:PORT[,HOST:PORT...] --db FILE --dir DIR [--until INDEX]\n", argv[0]);
        return 2;
    }
    const char *servers[SERVERS_MAX];
    size_t count = 0;
    for (char *server = strtok(cluster, ","); server != NULL && count < SERVERS_MAX; server = strtok(NULL, ","))
        servers[count++] = server;

    struct view view;
    memset(&view, 0, sizeof view);
    open_view(&view, db);
    if (view.applied < until) {
        /* A new view takes the first existing record; one that has begun needs the very next record. */
        uint32_t start = view.log[0] ? CHIPLOG_START_INDEX : CHIPLOG_START_FIRST;
        uint64_t value = view.log[0] ? view.applied + 1 : 0;
        chiplog_error_t *error = NULL;
        chiplog_follower_t *copy = NULL;
        check(&view, chiplog_follower_open(dir, servers, count, start, value, NULL, &copy, &error), error);
        follow(&view, copy, until);
        check(&view, chiplog_follower_close(copy, &error), error);
    }
    summary(&view);
    return 0;
}
