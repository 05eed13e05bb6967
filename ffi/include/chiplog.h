/*
 * chiplog.h: a durable log in a directory, the same log over the network, and a copy of it in the program.
 *
 * Generated from the sources by cbindgen: do not edit by hand.
 *
 * THREADS
 *   Any thread may call any function. Many threads at once may use the same log, directory of logs, client, producer,
 *   follower, read-only log, batch, records, ticket or error. A reader, a session, a builder and a watch serve one thread
 *   at a time: a second caller waits until the first call returns. A function's own comment adds to this.
 *   chiplog_reader_cancel ends a call that waits with a reader on another thread.
 *   Each function that takes a callback says on which thread the callback runs: a thread of the log or of the client. A
 *   callback must not block, wait for the same log or client, or throw. A callback that blocks holds up every caller, and
 *   can deadlock. Calls that chiplog recognises as blocking fail there with CHIPLOG_INVALID_ARGUMENT.
 *   The callback of chiplog_trace, which receives chiplog's notices, can run on any thread.
 *   chiplog's own threads block all signals. chiplog sets no signal handler, writes to no standard stream, ends no process
 *   and causes no SIGPIPE. It reads no environment variable, except that tokio, which runs clients and followers, looks
 *   up TOKIO_UNSTABLE_SHARDED_BLOCKING_QUEUE.
 *
 * LIFETIMES
 *   A handle (chiplog_..._t *) is a number, not an address. A call with a closed handle returns CHIPLOG_CLOSED; a call with
 *   NULL or a handle of another type returns CHIPLOG_INVALID_ARGUMENT. One thread may close a handle while another uses
 *   it: the object is freed when the last call returns. Closing NULL or a closed handle does nothing.
 *   "Borrowed": the caller keeps ownership, and chiplog stops using the memory when the call returns, or at the time that
 *   the comment names.
 *   "The caller owns X and must close it": pass X to the function with _close in its name.
 *   The bytes of records (chiplog_record_t) are in mapped files or in buffers that the records hold. They are valid until
 *   chiplog_records_close, even if everything else is closed, and no longer.
 *   Handles that are open when a program ends do no harm, but records that are not durable yet are lost. The library does
 *   not register with atexit(), so nothing is sent or written at exit. Before the program ends, close logs and followers,
 *   and end producers with chiplog_producer_end.
 *
 * ERRORS
 *   A function that can fail returns chiplog_status_t: CHIPLOG_OK, which is 0, or the number of an error's kind. If `error`
 *   is not NULL, `*error` is set to NULL on success, and on failure to an error that the caller owns and must close. A
 *   result is written only on success; on failure, returned handles are NULL.
 *   After CHIPLOG_POISONED, CHIPLOG_UNAVAILABLE or CHIPLOG_TIMEOUT an append may be in the log, or get there later. Over
 *   the network the same holds for CHIPLOG_CLOSED. Within a session it can be sent again under the same number.
 *
 * FORK
 *   A handle belongs to the process that made it. In a forked child each call with it returns CHIPLOG_FORKED, and closing
 *   it changes nothing in the parent. Records that were read stay readable. The child may open its own handles.
 *
 * STRUCTS THAT GROW
 *   A struct that begins with `size` may be longer in a later version. Options: fill them with their init function.
 *   Results: set `size` to the size of the struct before the call. Old programs then work with new libraries, and new
 *   programs with old libraries.
 *
 * TIMES are in milliseconds. CHIPLOG_FOREVER as a time-out means no limit. Texts are UTF-8. Paths may hold any bytes.
 */

#ifndef CHIPLOG_H
#define CHIPLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** The version of this header. Compare it with chiplog_version(), the version of the library. */
#define CHIPLOG_VERSION "0.1.0"
#define CHIPLOG_VERSION_MAJOR 0
#define CHIPLOG_VERSION_MINOR 1
#define CHIPLOG_VERSION_PATCH 0

/** A time-out without limit. */
#define CHIPLOG_FOREVER UINT64_MAX

/** Marks functions whose status must be checked: gcc and clang warn if it is ignored. To turn the warning off, define
 * this macro as nothing before including this header. */
#ifndef CHIPLOG_MUST_USE
#if defined(__GNUC__) || defined(__clang__)
#define CHIPLOG_MUST_USE __attribute__((warn_unused_result))
#else
#define CHIPLOG_MUST_USE
#endif
#endif

/**
 * Success.
 */
#define CHIPLOG_OK 0

/**
 * The operating system refused or failed a call.
 */
#define CHIPLOG_IO 1

/**
 * Stored bytes fail their checksum or contradict each other. Nothing corrupt is ever served.
 */
#define CHIPLOG_CORRUPT 2

/**
 * An earlier write or sync failed: the log refuses appends until it is opened again. Appends that were in flight
 * have an unknown outcome. Also a bug in chiplog itself; the message then says so.
 */
#define CHIPLOG_POISONED 3

/**
 * The configured capacity or the disk is full. Nothing was written.
 */
#define CHIPLOG_FULL 4

/**
 * The queue of waiting appends stayed at its limit for as long as the caller was willing to wait.
 */
#define CHIPLOG_BUSY 5

/**
 * The time-out passed. A submitted append may still become durable. For a reader: there is nothing to read yet.
 */
#define CHIPLOG_TIMEOUT 6

/**
 * The record is below the first index: it was discarded.
 */
#define CHIPLOG_DISCARDED 7

/**
 * There is no such record yet.
 */
#define CHIPLOG_OUT_OF_RANGE 8

/**
 * An argument or option is out of its bounds.
 */
#define CHIPLOG_INVALID_ARGUMENT 9

/**
 * A record or batch exceeds its size limit.
 */
#define CHIPLOG_TOO_LARGE 10

/**
 * Another handle or process has the directory open for writing.
 */
#define CHIPLOG_LOCKED 11

/**
 * The handle was closed.
 */
#define CHIPLOG_CLOSED 12

/**
 * The handle was made before fork() and used in the child.
 */
#define CHIPLOG_FORKED 13

/**
 * There is no log at this path.
 */
#define CHIPLOG_NOT_FOUND 14

/**
 * The files were written by a newer version of the format.
 */
#define CHIPLOG_UNSUPPORTED 15

/**
 * The session is not known: it was never opened, was closed, or was idle for too long.
 */
#define CHIPLOG_SESSION_EXPIRED 16

/**
 * A sequence number skips one or more that the log has not seen.
 */
#define CHIPLOG_SEQUENCE_GAP 17

/**
 * The record IS IN THE LOG once, and durable; only its index is no longer known. Continue with the next number.
 */
#define CHIPLOG_SEQUENCE_FORGOTTEN 18

/**
 * The log's limit of open sessions is reached.
 */
#define CHIPLOG_TOO_MANY_SESSIONS 19

/**
 * This replica is not the leader, or this log is a follower's copy.
 */
#define CHIPLOG_NOT_LEADER 20

/**
 * No majority, or no server, answered in time.
 */
#define CHIPLOG_UNAVAILABLE 21

/**
 * This replica was removed from the cluster.
 */
#define CHIPLOG_REMOVED 22

/**
 * This change of membership is not possible.
 */
#define CHIPLOG_MEMBERSHIP 23

/**
 * Two logs have different contents: nothing that was sent was stored.
 */
#define CHIPLOG_DIVERGED 24

/**
 * The server requires a token, and got none or an unknown one.
 */
#define CHIPLOG_UNAUTHENTICATED 25

/**
 * The token's role does not allow this call.
 */
#define CHIPLOG_PERMISSION_DENIED 26

/**
 * A batch in the log is as it was appended, but it cannot be decompressed. This is not damage.
 * chiplog_reader_skip_batch skips it.
 */
#define CHIPLOG_UNDECODABLE 27

/**
 * chiplog_reader_cancel ended the call. Nothing was read and nothing is lost.
 */
#define CHIPLOG_CANCELLED 28

/**
 * A log of this name exists already.
 */
#define CHIPLOG_ALREADY_EXISTS 29

/**
 * The log is sealed: it takes no more appends. Its records can still be read.
 */
#define CHIPLOG_SEALED 30

/**
 * Something failed and needs attention.
 */
#define CHIPLOG_SEVERITY_ERROR 1

/**
 * Something is wrong, but chiplog continues.
 */
#define CHIPLOG_SEVERITY_WARN 2

/**
 * Something changed, such as the leader.
 */
#define CHIPLOG_SEVERITY_INFO 3

/**
 * Details that help to find a cause.
 */
#define CHIPLOG_SEVERITY_DEBUG 4

/**
 * Every step.
 */
#define CHIPLOG_SEVERITY_TRACE 5

/**
 * The reader begins at the first record that is not discarded. The value must be 0.
 */
#define CHIPLOG_START_FIRST 0

/**
 * At the next record to be appended. The value must be 0.
 */
#define CHIPLOG_START_NEXT 1

/**
 * At the record whose index is the value; this may be the next one to be appended.
 */
#define CHIPLOG_START_INDEX 2

/**
 * As many records before the end as the value says; at the first one if there are fewer.
 */
#define CHIPLOG_START_LAST 3

/**
 * At the first record written at this time or later: milliseconds since 1970.
 */
#define CHIPLOG_START_TIMESTAMP 4

/**
 * Batches are not compressed.
 */
#define CHIPLOG_CODEC_NONE 0

/**
 * Batches are compressed with lz4.
 */
#define CHIPLOG_CODEC_LZ4 1

/**
 * Batches are compressed with zstd.
 */
#define CHIPLOG_CODEC_ZSTD 2

/**
 * It is not known how durable the records are: a server of an earlier version acknowledged them. Also of a command.
 */
#define CHIPLOG_DURABILITY_UNKNOWN 0

/**
 * The records are on stable storage at a majority of the voters. Of a log on its own: on its disk. In a log that has or
 * had the class "object", their payload can be in the object store alone: then a reference to it is there.
 */
#define CHIPLOG_DURABILITY_MAJORITY 1

/**
 * The same. Soon after, within about the leader's slice_interval_ms, they are in the object store, too.
 */
#define CHIPLOG_DURABILITY_MAJORITY_SLICES 2

/**
 * The records are in the object store, and a reference to them is on stable storage at a majority of the voters.
 */
#define CHIPLOG_DURABILITY_OBJECT 3

/**
 * Read from any replica: acknowledged records become visible after a moment.
 */
#define CHIPLOG_READ_FROM_ANY 0

/**
 * Read from the leader: acknowledged records are visible at once.
 */
#define CHIPLOG_READ_FROM_LEADER 1

/**
 * Read from a replica of the zone if one answers, else from any replica.
 */
#define CHIPLOG_READ_FROM_NEAREST 2

/**
 * A server sends; the first one since the follower was opened: `server`.
 */
#define CHIPLOG_EVENT_CONNECTED 1

/**
 * Another server than before sends: `before`, `server`.
 */
#define CHIPLOG_EVENT_SWITCHED 2

/**
 * Records are missing here because all servers had discarded them. Rebuild from record `to`; record `from` was
 * expected.
 */
#define CHIPLOG_EVENT_JUMPED 3

/**
 * Records below `to` were discarded.
 */
#define CHIPLOG_EVENT_DISCARDED 4

/**
 * The stream from `server` broke, or, if `server` is empty, no server could be reached: `cause`. The follower keeps
 * trying.
 */
#define CHIPLOG_EVENT_FAILED 5

/**
 * The follower ended by itself; this is the last event: `cause`.
 */
#define CHIPLOG_EVENT_STOPPED 6

/**
 * `to` events were dropped because the program did not take them in time.
 */
#define CHIPLOG_EVENT_MISSED 7

/**
 * One or more records, encoded and checksummed: the unit of appending. Immutable: many threads may use it at once,
 * and it can be appended any number of times.
 */
typedef struct chiplog_batch_t chiplog_batch_t;

/**
 * A batch under construction. Any thread may use it, one call at a time: other calls wait.
 */
typedef struct chiplog_builder_t chiplog_builder_t;

/**
 * A log over the network. Many threads may use it at once. It has a thread of its own, which runs the callbacks: a
 * callback may only make calls that never wait. In a forked child each call returns CHIPLOG_FORKED.
 */
typedef struct chiplog_client_t chiplog_client_t;

/**
 * An error: what went wrong, where, and what to do. The caller that receives it owns it. Immutable: many threads may
 * use it at once.
 */
typedef struct chiplog_error_t chiplog_error_t;

/**
 * A copy of a log in this process, kept up to date from any server of its cluster. It does not vote, and the cluster
 * need not know of it. Many threads may use it at once. It has threads of its own. In a forked child each call
 * returns CHIPLOG_FORKED.
 */
typedef struct chiplog_follower_t chiplog_follower_t;

/**
 * A durable log in a directory. Many threads may use it at once. Close it with chiplog_log_close. In a forked child
 * each call returns CHIPLOG_FORKED.
 */
typedef struct chiplog_log_t chiplog_log_t;

/**
 * Many named logs in one directory. Each is a chiplog_log_t with indexes from 1, readers, sessions and discards of its
 * own. Logs are kept in groups; those of a group share its threads, writes and syncs. Many threads may use it at once.
 * Close it with chiplog_logs_close. In a forked child each call returns CHIPLOG_FORKED.
 */
typedef struct chiplog_logs_t chiplog_logs_t;

/**
 * Appends records over the network. It collects them into batches, keeps several in flight, and sends again after a
 * failure. Records are in the log in the order in which they were sent. Many threads may use it at once. In a forked
 * child each call returns CHIPLOG_FORKED.
 */
typedef struct chiplog_producer_t chiplog_producer_t;

/**
 * Read-only access to a log, also while another process writes it. Takes no lock and changes nothing. Many threads
 * may use it at once.
 */
typedef struct chiplog_read_only_log_t chiplog_read_only_log_t;

/**
 * Reads records in order and checks each. One thread at a time: other calls wait. It may outlive its log.
 */
typedef struct chiplog_reader_t chiplog_reader_t;

/**
 * Records that were read: views into the log's files, without a copy if the batch is not compressed. They keep their
 * files alive, even if those are discarded or the log is closed. Immutable: many threads may use them at once.
 */
typedef struct chiplog_records_t chiplog_records_t;

/**
 * Appends that take effect exactly once and in order, even if they are repeated. To survive a crash, a program must
 * remember only the session's id and the number of the next append: see chiplog_log_resume_session. One thread at a
 * time, which preserves the order: other calls wait.
 */
typedef struct chiplog_session_t chiplog_session_t;

/**
 * An append or a command in flight. Many threads may use it at once. Closing it does not cancel the append: nothing
 * does.
 */
typedef struct chiplog_ticket_t chiplog_ticket_t;

/**
 * Reports the state of a log whenever it changes. One thread at a time: other calls wait.
 */
typedef struct chiplog_watch_t chiplog_watch_t;

/**
 * The result of a call: 0 (CHIPLOG_OK), or the number of an error's kind. The numbers are the same in Rust and
 * Python and never change. Later versions may add more.
 */
typedef int32_t chiplog_status_t;

/**
 * Called with each notice. `severity` is CHIPLOG_SEVERITY_...; `target` is the part of chiplog that reports; `text`
 * is the notice in UTF-8, usually one line. Both texts are for people and valid only during the call. The callback
 * runs on any thread, on several at once, and on the program's own threads in the middle of a call. chiplog may hold
 * locks that other calls need. So the callback must not block, throw, or call a function that can fail: each of
 * those returns CHIPLOG_INVALID_ARGUMENT there. It should only write a line to a file or a queue.
 */
typedef void (*chiplog_trace_fn)(void *context,
                                 uint32_t severity,
                                 const char *target,
                                 const char *text);

/**
 * Returns the time in milliseconds since 1970. Called on chiplog's threads, also on several at once. It must not
 * throw or block.
 */
typedef uint64_t (*chiplog_clock_fn)(void *context);

/**
 * The options for opening a log. Fill it with chiplog_log_options_init, then set the fields that should differ.
 * Opening the log checks the limits; the error names the one that is out of bounds. These options are not stored in
 * the log.
 */
typedef struct {
  /**
   * sizeof(chiplog_log_options_t) as the caller was compiled with it.
   */
  size_t size;
  /**
   * Create a log if the directory holds none: 1 or 0. Default 1. Missing directories are created, with their
   * parents.
   */
  uint8_t create;
  /**
   * Read by pread into buffers instead of through mappings: 1 or 0. Default 0. With mappings the process gets
   * SIGBUS if the device cannot read a page or another program shortens a file.
   */
  uint8_t read_by_copy;
  /**
   * The number of a session's latest batches whose indexes the log remembers: 1 to 1,024, default 128.
   */
  uint16_t session_window;
  /**
   * Size of a segment file: 64 KiB to 1 GiB, default 64 MiB. A log takes at least three segments on disk. Below 40
   * MiB, other limits must be lowered as well: chiplog_log_options_for_segments fills options that fit.
   */
  uint32_t segment_bytes;
  /**
   * The largest record, default 16 MiB.
   */
  uint32_t record_bytes_max;
  /**
   * The largest encoded batch, default 32 MiB. It must fit into a segment, of which an eighth and some headers are
   * reserved.
   */
  uint32_t batch_bytes_max;
  /**
   * The largest block of appends that are written together, default 4 MiB.
   */
  uint32_t block_bytes_max;
  /**
   * How far a sequential reader reads ahead, default 8 MiB. 0 leaves this to the kernel.
   */
  uint32_t prefetch_bytes;
  /**
   * The largest number of open exactly-once sessions, default 4,096.
   */
  uint32_t sessions_max;
  /**
   * With an object store: how many bytes of blocks an object has at most, 64 KiB to 512 MiB, default 64 MiB.
   */
  uint32_t object_bytes;
  /**
   * Limit of the bytes of retained blocks. Beyond it appends fail with CHIPLOG_FULL. 0, the default: no limit but
   * the disk.
   */
  uint64_t capacity_bytes;
  /**
   * Keep about this many bytes: whole segments are discarded from the front. 0, the default: keep all.
   */
  uint64_t retention_bytes;
  /**
   * Discard segments whose newest record is older than this. 0, the default: keep all.
   */
  uint64_t retention_age_ms;
  /**
   * Bytes that may wait for the writer, default 64 MiB. Beyond it appends wait.
   */
  uint64_t queue_bytes_max;
  /**
   * Appends that may wait for the writer, default 65,536. Beyond it appends wait.
   */
  uint64_t queue_appends_max;
  /**
   * How long an append waits for space in the queue before it fails with CHIPLOG_BUSY. Default 60 s.
   */
  uint64_t queue_timeout_ms;
  /**
   * A session that sends nothing for this long expires. Default 24 h.
   */
  uint64_t session_idle_max_ms;
  /**
   * The source of timestamps. NULL, the default: the machine's clock.
   */
  chiplog_clock_fn clock;
  /**
   * The argument of `clock`. Borrowed until the log is closed.
   */
  void *clock_context;
  /**
   * The object store in which the log keeps copies of its older records: "s3://BUCKET/PREFIX", "gs://BUCKET/PREFIX",
   * "az://CONTAINER/PREFIX", "file:///DIRECTORY" or an absolute path. Keys, region and endpoint come from the variables
   * that the store's own programs use, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. NULL or empty, the default: none.
   * Opening the log makes no request, and a store that is down stops no append. A follower reads the log's older records
   * from there. Borrowed for the call.
   */
  const char *object_store;
  /**
   * Records that are older than this are stored, even if they make a small object. 0, the default: only full objects.
   */
  uint64_t object_age_ms;
  /**
   * Keep at most about this many bytes of records on this disk that are in the object store: older ones are read from
   * there. A new replica with this limit, `local_age_ms` or `fill_bytes` begins with records that are in no object. At least
   * two segments. 0, the default: keep all.
   */
  uint64_t local_bytes;
  /**
   * Keep records that are in the object store on this disk no longer than this. 0, the default: keep all.
   */
  uint64_t local_age_ms;
  /**
   * Bytes of objects that are kept on this disk after they were read, default 1 GiB, at least 8 MiB.
   */
  uint64_t cache_bytes;
  /**
   * How long objects are kept after their records were discarded, default 24 h.
   */
  uint64_t object_delete_delay_ms;
  /**
   * For named logs: whether full segments of a group are copied in the order of their logs, so that one of many logs is read at the
   * speed of a log on its own: 1 or 0. Default 1. A copy takes about the space of its segment, and gives way where the disk is full.
   */
  uint32_t sorted_copies;
  /**
   * Not used; must be 0.
   */
  uint32_t reserved;
  /**
   * How long a pass over all stored objects takes, in which each is read and compared with what the log says of it. A
   * missing or damaged one is stored again, by a replica that has its entries in files. At least 100 ms, default 30 days. 0: objects
   * are not examined.
   */
  uint64_t object_scrub_ms;
  /**
   * How often the newest committed entries, which no object has yet, go to the object store as a slice: 10 ms to 60 s. 0 (the
   * default): only objects are stored. Needs `object_store`. Of named logs each
   * group stores slices of its own, and so does the catalogue.
   */
  uint64_t slice_interval_ms;
  /**
   * How many bytes of blocks a slice has at most: 512 KiB to 8 MiB, default 4 MiB. As many are stored at once.
   */
  uint32_t slice_bytes;
  /**
   * 1: appends go to the object store, and only references to them are replicated: the durability class "object". Needs
   * `object_store` and `slice_interval_ms`. Of named logs each group has payload slices of its own. 0 (the default): appends are
   * replicated whole.
   */
  uint32_t payload_slices;
  /**
   * Download whole objects at leisure, and keep this many bytes of the newest ones on this disk: readers of these records need no
   * object store. Files and these objects together stay within `local_bytes` and `capacity_bytes`. At least 64 KiB. 0 (the default):
   * none.
   */
  uint64_t fill_bytes;
} chiplog_log_options_t;

/**
 * The position of records in the log.
 */
typedef struct {
  /**
   * Index of the first record. For a command: its answer.
   */
  uint64_t first;
  /**
   * The number of records: at least 1. Their indexes are consecutive.
   */
  uint64_t count;
  /**
   * How durable the records were when they were acknowledged: CHIPLOG_DURABILITY_...
   */
  uint32_t durability;
  /**
   * Not used; 0.
   */
  uint32_t reserved;
} chiplog_appended_t;

/**
 * Bytes of the caller's, laid out as a struct iovec: one record, or a piece of one. `data` may be NULL if `length`
 * is 0.
 */
typedef struct {
  /**
   * The first byte.
   */
  const void *data;
  /**
   * The number of bytes.
   */
  size_t length;
} chiplog_slice_t;

/**
 * The state of a log.
 */
typedef struct {
  /**
   * sizeof(chiplog_log_status_t) as the caller was compiled with it. Set it first.
   */
  size_t size;
  /**
   * The first record that is not discarded. For an empty log: the first one to be appended.
   */
  uint64_t first_index;
  /**
   * The last committed record. For an empty log: first_index - 1.
   */
  uint64_t last_index;
  /**
   * The last record that is durable here.
   */
  uint64_t durable_index;
  /**
   * Bytes from the first record on.
   */
  uint64_t bytes_used;
  /**
   * The configured limit of `bytes_used`. 0: none, or unknown.
   */
  uint64_t bytes_capacity;
  /**
   * The number of segments.
   */
  uint64_t segments;
  /**
   * The number of open exactly-once sessions.
   */
  uint64_t sessions;
  /**
   * When the newest block was written: milliseconds since 1970.
   */
  uint64_t last_timestamp_ms;
  /**
   * The log's permanent name: 32 hexadecimal digits and a NUL.
   */
  char log_id[40];
  /**
   * This copy's permanent name, in the same form.
   */
  char directory_id[40];
  /**
   * Whether this copy is a follower's: 1 or 0.
   */
  uint8_t follows;
  /**
   * Not used; must be 0.
   */
  uint8_t reserved[7];
} chiplog_log_status_t;

/**
 * Counters of a log since it was opened, and the work that waits in it now.
 */
typedef struct {
  /**
   * sizeof(chiplog_metrics_t) as the caller was compiled with it. Set it first.
   */
  size_t size;
  /**
   * Batches accepted, including duplicates within sessions.
   */
  uint64_t appends;
  /**
   * Records written.
   */
  uint64_t records;
  /**
   * Blocks written.
   */
  uint64_t blocks;
  /**
   * Bytes of blocks written, with headers and padding.
   */
  uint64_t bytes;
  /**
   * Syncs that succeeded.
   */
  uint64_t syncs;
  /**
   * Time spent in syncs, in microseconds.
   */
  uint64_t sync_micros_total;
  /**
   * The longest sync, in microseconds.
   */
  uint64_t sync_micros_max;
  /**
   * The median sync time, in microseconds, rounded up to a power of two.
   */
  uint64_t sync_micros_p50;
  /**
   * The 99th percentile of sync times, in microseconds, rounded up to a power of two.
   */
  uint64_t sync_micros_p99;
  /**
   * How often a new segment was begun.
   */
  uint64_t rolls;
  /**
   * Bytes that the scrub has read and checked.
   */
  uint64_t scrubbed_bytes;
  /**
   * The number of places found where blocks are damaged.
   */
  uint64_t damaged;
  /**
   * The number of those places that were repaired.
   */
  uint64_t repaired;
  /**
   * How long the current sync has been running, in microseconds. 0: there is none.
   */
  uint64_t syncing_micros;
  /**
   * Records truncated because another leader has others in their place. None of them was known to be committed.
   */
  uint64_t truncated_records;
  /**
   * Records removed by discards or retention.
   */
  uint64_t discarded_records;
  /**
   * Appends that wait for the writer now.
   */
  uint64_t queue_appends;
  /**
   * Bytes of these appends.
   */
  uint64_t queue_bytes;
  /**
   * Bytes of appends that the writer has taken and not yet written.
   */
  uint64_t taken_bytes;
  /**
   * Bytes that are written and not yet committed.
   */
  uint64_t uncommitted_bytes;
  /**
   * Objects that were put into the object store.
   */
  uint64_t stored_objects;
  /**
   * Bytes of these objects.
   */
  uint64_t stored_bytes;
  /**
   * Attempts to use the object store for objects of the log that failed. Each is repeated.
   */
  uint64_t object_failures;
  /**
   * Bytes of objects that were fetched from the object store for readers.
   */
  uint64_t fetched_bytes;
  /**
   * Bytes of blocks here that are in no object known to be stored now. 0 in a log without objects.
   */
  uint64_t unstored_bytes;
  /**
   * Bytes of objects that are kept here for readers now.
   */
  uint64_t cached_bytes;
  /**
   * The last record that is in an object known to be stored; 0 if there is none.
   */
  uint64_t stored_index;
  /**
   * Objects that were missing or damaged in the object store, and that were stored again here.
   */
  uint64_t repaired_objects;
  /**
   * Objects that are known to be missing or damaged now, and cannot be made again here.
   */
  uint64_t damaged_objects;
  /**
   * Slices that were put into the object store: short stretches of the newest entries, until an object has them.
   */
  uint64_t stored_slices;
  /**
   * Bytes of these slices.
   */
  uint64_t sliced_bytes;
  /**
   * Attempts to store or to find slices that failed. Each is repeated.
   */
  uint64_t slice_failures;
  /**
   * Bytes of blocks here that are neither in an object nor in a slice now. 0 without slices.
   */
  uint64_t unsliced_bytes;
  /**
   * The last record that is in an object or a slice, as far as is known here: it would survive the loss of all replicas.
   */
  uint64_t sliced_index;
  /**
   * Payload slices that were put into the object store, with the durability class "object".
   */
  uint64_t stored_payloads;
  /**
   * Bytes of these slices.
   */
  uint64_t payload_bytes;
  /**
   * Attempts to store them that failed. Each is repeated for 10 s.
   */
  uint64_t payload_failures;
  /**
   * Appends of the durability class "object" that were confirmed here, and that the object store alone was not known to have.
   */
  uint64_t unstored_confirmations;
  /**
   * Bytes of the newest objects that are kept on this disk now: see `fill_bytes`.
   */
  uint64_t filled_bytes;
  /**
   * Attempts to keep an object that failed. Each is repeated.
   */
  uint64_t fill_failures;
} chiplog_metrics_t;

/**
 * An option of the log to set or to unset.
 */
typedef struct {
  /**
   * The name: "retention_bytes", "retention_age" (ms), "capacity_bytes", "record_bytes_max", "sessions_max",
   * "session_window", "session_idle_max" (ms), "append_bytes_per_second", "object_bytes", "object_age" (ms),
   * "payload_slices" (1 or 0) or "object_rows". A named log has "retention_bytes", "retention_age",
   * "capacity_bytes", "record_bytes_max", "sessions_max", "session_idle_max" and "append_bytes_per_second" of its own; the others
   * are set for its group.
   * Once "object_bytes" is set, the log has objects, and it cannot be unset. A log with an object store sets it itself.
   * Nor can "payload_slices" be unset: set it to 0 instead; nor "object_rows".
   */
  const char *name;
  /**
   * The value, in bytes, milliseconds or a count. UINT64_MAX means no limit, for the first three options,
   * "append_bytes_per_second" and "object_age".
   */
  uint64_t value;
  /**
   * 1 sets the option. 0 unsets it: the leader's own option applies then.
   */
  uint8_t is_set;
  /**
   * Not used; must be 0.
   */
  uint8_t reserved[7];
} chiplog_log_option_t;

/**
 * Called once with the outcome of an append or a command. On success `status` is CHIPLOG_OK and `appended` is the
 * position. On failure `appended` is NULL and `error` is the reason. Both are borrowed and valid only during the
 * call. The callback must not throw, block, or wait for the same log or client. The function that takes it says on
 * which thread it runs.
 */
typedef void (*chiplog_outcome_fn)(void *context,
                                   chiplog_status_t status,
                                   const chiplog_appended_t *appended,
                                   const chiplog_error_t *error);

/**
 * A record that was read. Its bytes are borrowed: see the function that returned it.
 */
typedef struct {
  /**
   * Its index in the log.
   */
  uint64_t index;
  /**
   * When the log accepted it: milliseconds since 1970.
   */
  uint64_t timestamp_ms;
  /**
   * Its bytes; never NULL.
   */
  const void *data;
  /**
   * The number of bytes.
   */
  size_t length;
} chiplog_record_t;

/**
 * Called once when there is something to take. It must not throw or block: it should only notify another thread.
 */
typedef void (*chiplog_notify_fn)(void *context);

/**
 * A replica of a cluster.
 */
typedef struct {
  /**
   * Its node number.
   */
  uint64_t node;
  /**
   * The address where it is reached, with a NUL at the end.
   */
  char address[520];
  /**
   * Whether it votes: 1 or 0.
   */
  uint8_t is_voter;
  /**
   * Whether it is leaving: 1 or 0.
   */
  uint8_t is_leaving;
  /**
   * Not used; must be 0.
   */
  uint8_t reserved[6];
  /**
   * The directory id that it must have: 32 hexadecimal digits and a NUL. All 0: unknown.
   */
  char directory_id[40];
} chiplog_member_t;

/**
 * Called with each member; the member is valid only during the call. The callback must not throw.
 */
typedef void (*chiplog_member_fn)(void *context,
                                  const chiplog_member_t *member);

/**
 * Options for opening a directory of named logs. Fill it with chiplog_logs_options_init, then set the fields that
 * should differ. They are not stored in the directory.
 */
typedef struct {
  /**
   * sizeof(chiplog_logs_options_t) as the caller was compiled with it.
   */
  size_t size;
  /**
   * Options of each group. NULL, the default: the defaults. retention_bytes and retention_age_ms must be 0: discard
   * records of each named log. With object_store each group has objects of its own, and local_bytes, local_age_ms and
   * cache_bytes are of each group. Segments have a table of the group's logs: if they are smaller than 8 MiB, lower
   * sessions_max to make room for it.
   */
  const chiplog_log_options_t *options;
  /**
   * The number of groups, 1 to 1,024, default 2. A group has a thread and one sync at a time. A directory that is
   * opened with a larger number gets more groups; a smaller one leaves all there are.
   */
  uint32_t groups;
  /**
   * Not used; must be 0.
   */
  uint32_t reserved;
  /**
   * Further directories for the groups, each meant to be on a disk of its own: `directories_count` paths, up to 64. NULL,
   * the default: none. A new group goes to the one with the fewest groups, the first of these; one that exists is found
   * in any of them and in the directory of the logs. They have to exist, apart from each other and from that one.
   */
  const char *const *directories;
  /**
   * The number of `directories`.
   */
  size_t directories_count;
} chiplog_logs_options_t;

/**
 * The state of a named log.
 */
typedef struct {
  /**
   * sizeof(chiplog_log_info_t) as the caller was compiled with it. Set it first. In chiplog_log_info_fn: as the
   * library was compiled with it.
   */
  size_t size;
  /**
   * Its number, which no other log of this directory, or of these servers, ever had.
   */
  uint32_t number;
  /**
   * The group that holds it, from 1.
   */
  uint32_t group;
  /**
   * The first record that is not discarded.
   */
  uint64_t first_index;
  /**
   * The last committed record. Without records: first_index - 1.
   */
  uint64_t last_index;
  /**
   * Bytes of all batches that were ever appended to it.
   */
  uint64_t bytes_appended;
  /**
   * When it was last appended to: milliseconds since 1970. 0: never.
   */
  uint64_t last_timestamp_ms;
  /**
   * Whether it takes no more appends: 1 or 0.
   */
  uint8_t sealed;
  /**
   * 1: its group does not run on the server that answered, which knows none of the values from first_index to sealed.
   * chiplog_client_info of a client of the log returns them. Else 0.
   */
  uint8_t elsewhere;
  /**
   * Not used; must be 0.
   */
  uint8_t reserved[6];
  /**
   * Its permanent id: 32 hexadecimal digits and a NUL.
   */
  char log_id[40];
  /**
   * Its name, up to 260 bytes and a NUL.
   */
  char name[264];
} chiplog_log_info_t;

/**
 * Called with each log; the state is valid only during the call. The callback must not throw.
 */
typedef void (*chiplog_log_info_fn)(void *context,
                                    const chiplog_log_info_t *info);

/**
 * A batch, and the named log that it is appended to.
 */
typedef struct {
  /**
   * The log.
   */
  chiplog_log_t *log;
  /**
   * The batch.
   */
  const chiplog_batch_t *batch;
} chiplog_append_t;

/**
 * Deadlines and limits of a client. Fill it with chiplog_client_options_init, then set the fields that should
 * differ.
 */
typedef struct {
  /**
   * sizeof(chiplog_client_options_t) as the caller was compiled with it.
   */
  size_t size;
  /**
   * The name of the log. NULL or empty, the default: the log "default".
   */
  const char *log;
  /**
   * The token that is sent with every call, if the servers require one. NULL, the default: none.
   */
  const char *token;
  /**
   * TLS: the authority that signed the servers' certificates, PEM. NULL, the default: no TLS.
   */
  const void *tls_authority;
  /**
   * Its length in bytes.
   */
  size_t tls_authority_length;
  /**
   * This client's certificate, PEM, if the servers require one. NULL: none.
   */
  const void *tls_certificate;
  /**
   * Its length in bytes.
   */
  size_t tls_certificate_length;
  /**
   * The private key of the certificate, PEM.
   */
  const void *tls_key;
  /**
   * Its length in bytes.
   */
  size_t tls_key_length;
  /**
   * Time limit of a call with all its attempts, default 30 s.
   */
  uint64_t timeout_ms;
  /**
   * Time limit of one attempt, default 10 s.
   */
  uint64_t attempt_timeout_ms;
  /**
   * Time limit for opening a connection, default 2 s.
   */
  uint64_t connect_timeout_ms;
  /**
   * Time limit for one server's answer when the client asks all of them for the leader, default 1 s.
   */
  uint64_t probe_timeout_ms;
  /**
   * The wait after the first failure, default 10 ms. It doubles after each further failure.
   */
  uint64_t backoff_min_ms;
  /**
   * The longest wait after a failure, default 1 s.
   */
  uint64_t backoff_max_ms;
  /**
   * A connection is tested after this long without data from the other side. Default 5 s.
   */
  uint64_t keep_alive_ms;
  /**
   * Bytes that a server may send ahead on a stream, 64 KiB to 2 GiB - 1, default 4 MiB.
   */
  uint32_t window_bytes;
  /**
   * Whether the token may be sent to other machines without TLS: 1 or 0. Default 0: the client does not use such a
   * server.
   */
  uint8_t token_in_plain_text;
  /**
   * Not used; must be 0.
   */
  uint8_t reserved[3];
} chiplog_client_options_t;

/**
 * Limits, deadlines and guarantees of a producer. Fill it with chiplog_producer_options_init.
 */
typedef struct {
  /**
   * sizeof(chiplog_producer_options_t) as the caller was compiled with it.
   */
  size_t size;
  /**
   * How long a batch that is not full waits for more records, default 0: it is sent as soon as possible.
   */
  uint64_t linger_ms;
  /**
   * A batch of this size is sent, default 256 KiB. A larger record is sent alone.
   */
  uint64_t batch_bytes;
  /**
   * Limit of the bytes of unacknowledged records, default 32 MiB. Beyond it callers wait.
   */
  uint64_t buffer_bytes;
  /**
   * How long a caller waits for space before CHIPLOG_BUSY, default 60 s.
   */
  uint64_t block_max_ms;
  /**
   * Batches in flight are sent again after this long without an answer, default 10 s.
   */
  uint64_t request_timeout_ms;
  /**
   * A record that is not acknowledged within this time fails, default 120 s.
   */
  uint64_t delivery_timeout_ms;
  /**
   * Once the log has been full for this long, records that waited this long fail with CHIPLOG_FULL, default 5 s.
   */
  uint64_t full_max_ms;
  /**
   * Continues in this session instead of opening one: see chiplog_client_open_session. 0, the default: opens one.
   * With a given session, send records with chiplog_producer_send_batch: each batch takes one number.
   */
  uint64_t session;
  /**
   * The number of the first batch in that session, from 1. Default 0.
   */
  uint64_t session_next;
  /**
   * A batch with this number of records is sent: 1 to 2^20, which is the default.
   */
  uint32_t batch_records;
  /**
   * The compression of batches: CHIPLOG_CODEC_..., default NONE.
   */
  uint32_t codec;
  /**
   * Limit of the batches in flight, 1 to 1,024, default 32.
   */
  uint16_t inflight_max;
  /**
   * Each record is in the log once, in the order of sending, even after retries: 1 or 0. Default 1.
   */
  uint8_t exactly_once;
  /**
   * Not used; must be 0.
   */
  uint8_t reserved[5];
} chiplog_producer_options_t;

/**
 * The state of a log, from a server.
 */
typedef struct {
  /**
   * sizeof(chiplog_remote_info_t) as the caller was compiled with it. Set it first.
   */
  size_t size;
  /**
   * The first record that is not discarded. For an empty log: the first one to be appended.
   */
  uint64_t first;
  /**
   * The last committed record. For an empty log: first - 1.
   */
  uint64_t last;
  /**
   * Bytes from the first record on.
   */
  uint64_t bytes_used;
  /**
   * The configured limit of `bytes_used`. 0: none.
   */
  uint64_t bytes_capacity;
  /**
   * The replica that answered.
   */
  uint64_t node;
  /**
   * The leader. 0: unknown.
   */
  uint64_t leader;
  /**
   * The log's permanent name: 32 hexadecimal digits and a NUL. Empty: unknown.
   */
  char log_id[40];
  /**
   * Where the leader serves clients, `host:port`. Empty: unknown.
   */
  char leader_address[264];
  /**
   * The first record in the files of that replica. Those before it, from first on, are in the object store: a read fetches them
   * from there. 0: it did not say.
   */
  uint64_t first_local;
} chiplog_remote_info_t;

/**
 * A batch, and the named log of servers that it is appended to, as a client of that log.
 */
typedef struct {
  /**
   * A client of the log: see chiplog_client_of_log.
   */
  const chiplog_client_t *client;
  /**
   * The batch, of no session.
   */
  const chiplog_batch_t *batch;
} chiplog_client_append_t;

/**
 * Where and how a reader reads over the network. Fill it with chiplog_reader_options_init.
 */
typedef struct {
  /**
   * sizeof(chiplog_reader_options_t) as the caller was compiled with it.
   */
  size_t size;
  /**
   * CHIPLOG_READ_FROM_..., default ANY.
   */
  uint32_t from;
  /**
   * Whether the reader waits at the end for new records: 1 or 0. Default 1. With 0 it ends there.
   */
  uint8_t follow;
  /**
   * Not used; must be 0.
   */
  uint8_t reserved[3];
  /**
   * The zone of CHIPLOG_READ_FROM_NEAREST.
   */
  const char *zone;
  /**
   * The reader waits for a replica that does not have this record yet. Default 0.
   */
  uint64_t min_index;
  /**
   * The interval at which an idle server sends a sign of life, default 3 s.
   */
  uint64_t keep_alive_ms;
  /**
   * How long servers are tried before the reader returns an error, default 30 s.
   */
  uint64_t timeout_ms;
} chiplog_reader_options_t;

/**
 * Called with each record that was not acknowledged when its producer ended. `in_doubt` is 1 if the record was sent
 * and may be in the log, and 0 if it certainly is not. The bytes are valid only during the call. The callback must
 * not throw.
 */
typedef void (*chiplog_left_fn)(void *context,
                                const void *data,
                                size_t length,
                                uint8_t in_doubt);

/**
 * Deadlines and limits of a follower. Fill it with chiplog_follower_options_init. Times range from 1 ms to one day,
 * else opening fails with CHIPLOG_INVALID_ARGUMENT. The exception is open_timeout_ms, which has no bounds;
 * CHIPLOG_FOREVER means no limit.
 */
typedef struct {
  /**
   * sizeof(chiplog_follower_options_t) as the caller was compiled with it.
   */
  size_t size;
  /**
   * Options of the copy's own files, retention included. NULL, the default: the defaults. `segment_bytes` must be
   * at least the servers' if their blocks are that large.
   */
  const chiplog_log_options_t *files;
  /**
   * The name of the log. NULL or empty, the default: the log "default". A named log: the copy has this log alone.
   */
  const char *log;
  /**
   * The zone whose servers are preferred. NULL or empty, the default: no zone.
   */
  const char *zone;
  /**
   * The token to send to servers, if they require one. NULL, the default: none.
   */
  const char *token;
  /**
   * TLS: the authority that signed the servers' certificates, PEM. NULL, the default: no TLS.
   */
  const void *tls_authority;
  /**
   * Its length in bytes.
   */
  size_t tls_authority_length;
  /**
   * This follower's certificate, PEM, if the servers require one. NULL: none.
   */
  const void *tls_certificate;
  /**
   * Its length in bytes.
   */
  size_t tls_certificate_length;
  /**
   * The private key of the certificate, PEM.
   */
  const void *tls_key;
  /**
   * Its length in bytes.
   */
  size_t tls_key_length;
  /**
   * How long opening an empty directory waits for a server, default 30 s. A directory with a copy needs no server.
   */
  uint64_t open_timeout_ms;
  /**
   * The interval at which an idle server sends a sign of life, default 3 s.
   */
  uint64_t keep_alive_ms;
  /**
   * The interval at which the follower asks another server for its position, default 10 s.
   */
  uint64_t compare_interval_ms;
  /**
   * Time limit for opening a connection, default 2 s.
   */
  uint64_t connect_timeout_ms;
  /**
   * Time limit for a server to begin to send, default 10 s.
   */
  uint64_t attempt_timeout_ms;
  /**
   * Time limit for a server's answer about itself, default 1 s.
   */
  uint64_t probe_timeout_ms;
  /**
   * The wait after the second failure in a row, default 10 ms. It doubles after each further failure.
   */
  uint64_t backoff_min_ms;
  /**
   * The longest wait after a failure, default 2 s.
   */
  uint64_t backoff_max_ms;
  /**
   * Bytes that a server may send ahead, 64 KiB to 2 GiB - 1, default 4 MiB.
   */
  uint32_t window_bytes;
  /**
   * Whether the token may be sent to other machines without TLS: 1 or 0. Default 0.
   */
  uint8_t token_in_plain_text;
  /**
   * Whether the copy reads objects through the servers that it is given, as with an object store in `files`: for a program that
   * cannot reach the store, or has no credentials. The servers need an object store; `files` must have none. For a named log the
   * token must reach its whole group. 1 or 0. Default 0.
   */
  uint8_t served_objects;
  /**
   * Not used; must be 0.
   */
  uint8_t reserved[2];
} chiplog_follower_options_t;

/**
 * The state of a follower.
 */
typedef struct {
  /**
   * sizeof(chiplog_follower_status_t) as the caller was compiled with it. Set it first.
   */
  size_t size;
  /**
   * The first record here. For an empty copy: the first one to be received.
   */
  uint64_t first;
  /**
   * The last record here. For an empty copy: first - 1.
   */
  uint64_t last;
  /**
   * The last record that a server is known to have. source_last - last is how far the follower is behind.
   */
  uint64_t source_last;
  /**
   * How long the current server has sent to it, in milliseconds; 0 without a server.
   */
  uint64_t connected_for_ms;
  /**
   * How often a server began to send.
   */
  uint64_t connects;
  /**
   * How often it skipped records that all servers had discarded.
   */
  uint64_t jumps;
  /**
   * Bytes of blocks received from servers.
   */
  uint64_t received_bytes;
  /**
   * Records received from servers.
   */
  uint64_t received_records;
  /**
   * The server that sends to it, `host:port`. Empty: it is looking for one.
   */
  char server[264];
  /**
   * The status of the last failure, which is being retried. CHIPLOG_OK: there was none.
   */
  chiplog_status_t last_error;
  /**
   * The status of the reason why it ended by itself. CHIPLOG_OK: it has not.
   */
  chiplog_status_t stopped;
  /**
   * Whether that server is up to date itself: 1 or 0.
   */
  uint8_t fed;
  /**
   * Not used; must be 0.
   */
  uint8_t reserved[7];
} chiplog_follower_status_t;

/**
 * An event of a follower.
 */
typedef struct {
  /**
   * sizeof(chiplog_event_t) as the caller was compiled with it. Set it first.
   */
  size_t size;
  /**
   * CHIPLOG_EVENT_..., which says which other fields are set. Later versions may add kinds: ignore unknown ones.
   */
  uint32_t kind;
  /**
   * The status of `cause`, else CHIPLOG_OK.
   */
  chiplog_status_t cause;
  /**
   * See the kinds.
   */
  uint64_t from;
  /**
   * See the kinds.
   */
  uint64_t to;
  /**
   * See the kinds.
   */
  char server[264];
  /**
   * See the kinds.
   */
  char before[264];
} chiplog_event_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the library's version, such as "0.1.0". Compare it with CHIPLOG_VERSION, the version of the header.
 * Ownership: the text is valid for ever. Any thread. Never blocks.
 */
const char *chiplog_version(void);

/**
 * Returns the kind of an error, which is never CHIPLOG_OK. CHIPLOG_INVALID_ARGUMENT if `error` is NULL or closed.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
chiplog_status_t chiplog_error_status(const chiplog_error_t *error);

/**
 * Returns the message of an error, in UTF-8. It is for people: do not compare it. Never NULL; empty if `error` is
 * NULL or closed.
 * Ownership: `error` is borrowed; the text is valid until `error` is closed. Any thread. Never blocks.
 */
const char *chiplog_error_message(const chiplog_error_t *error);

/**
 * Returns the operating system's error number if a system call failed, else 0.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
int32_t chiplog_error_os_error(const chiplog_error_t *error);

/**
 * Returns whether the same call can succeed later without a repair, once there is space or less load.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
bool chiplog_error_is_retryable(const chiplog_error_t *error);

/**
 * Returns whether the handle that the call was made with can no longer append.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
bool chiplog_error_is_fatal(const chiplog_error_t *error);

/**
 * Returns whether reading again does not help, as far as the replica knows: damage that cannot be repaired, because the
 * log has no other replica, or all other voters have damage in the same entries; or a record in an object store, at a
 * log that was opened without one. false while damage is being repaired, and for all other errors.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
bool chiplog_error_is_lasting(const chiplog_error_t *error);

/**
 * Returns how long to wait before the call is made again, in milliseconds, if that is known: for a log that has used up
 * its quota, append_bytes_per_second, and for a record of which a copy has yet to learn which object has it. 0: unknown.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
uint64_t chiplog_error_retry_after_ms(const chiplog_error_t *error);

/**
 * Frees an error. Does nothing if it is NULL or already closed.
 * Ownership: takes `error`. Any thread. Never blocks.
 */
void chiplog_error_close(chiplog_error_t *error);

/**
 * Returns the name of a status, such as "ok" or "out_of_range"; "unknown" for a number that this version does not
 * know.
 * Ownership: the text is valid for ever. Any thread. Never blocks.
 */
const char *chiplog_status_name(chiplog_status_t status);

/**
 * From now on calls `callback` with each notice of at least this `severity`: damage, a lost leader, a peer that
 * refuses. The process has one callback: a new one, or another severity, replaces the last. NULL removes the
 * callback, and `severity` is ignored. Before the first call there is no callback. Notices that no callback receives
 * cost nothing.
 * After this call returns, the previous callback is not running and will not be called any more: its context may be
 * freed. Pass NULL before the library is unloaded or the program's own logging ends. Before exit() this is not
 * necessary. A forked child has no callback until it calls this function itself.
 * Ownership: `context` is borrowed until another call of this function has returned. Any thread, at any time, but
 * not in `callback`. Blocks while the previous callback runs, on any thread: do not hold a lock that it takes.
 * Errors: INVALID_ARGUMENT: an unknown severity; a call within the callback; or the program is written in Rust,
 * links this library and has set a subscriber of `tracing`, which then receives the notices. IO.
 */
chiplog_status_t chiplog_trace(chiplog_trace_fn callback,
                               void *context,
                               uint32_t severity,
                               chiplog_error_t **error);

/**
 * Returns the name of a durability, CHIPLOG_DURABILITY_...: "majority", "majority+slices" or "object"; else "unknown".
 * Ownership: the text is valid for ever. Any thread. Never blocks.
 */
const char *chiplog_durability_name(uint32_t durability);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_log_options_t).
 * Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
 */
void chiplog_log_options_init(chiplog_log_options_t *options,
                              size_t size);

/**
 * As chiplog_log_options_init, but lowers each limit that depends on the segment size until it fits. For small logs
 * and tests.
 * Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
 */
void chiplog_log_options_for_segments(chiplog_log_options_t *options,
                                      size_t size,
                                      uint32_t segment_bytes);

/**
 * Opens the log in `directory`, or creates it if the options say so. `options` may be NULL for the defaults.
 * Ownership: `directory` and `options` are borrowed for the call, the clock's context until the log is closed. The
 * caller owns `*log` and must close it. Any thread. Blocks while recovery reads the last segment.
 * Errors: LOCKED, NOT_FOUND, INVALID_ARGUMENT, CORRUPT (the message names file and offset), UNSUPPORTED, IO, FULL.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_open(const char *directory,
                                  const chiplog_log_options_t *options,
                                  chiplog_log_t **log,
                                  chiplog_error_t **error);

/**
 * Ends appending, writes what was submitted, makes it durable, unlocks the directory, and closes the handle,
 * whatever the status. Readers and the records they returned stay valid. For a follower's log (chiplog_follower_log) and
 * for a named log (chiplog_logs_create, chiplog_logs_get) this closes only the handle.
 * Ownership: takes `log`; NULL: CHIPLOG_OK. Any thread, also while other threads append: their appends are completed
 * first. Blocks for the disk, except in a callback on the thread of this or another log: there the log closes later.
 * Errors: POISONED: an earlier write or sync failed, and some appends have an unknown outcome; CLOSED: it is already
 * closed; FORKED.
 */
chiplog_status_t chiplog_log_close(chiplog_log_t *log,
                                   chiplog_error_t **error);

/**
 * Returns the log's directory, as the caller gave it; for a named log that of its group. NULL if `log` is not an open log.
 * Ownership: `log` borrowed; the text is borrowed until the log is closed. Any thread. Never blocks.
 */
const char *chiplog_log_path(const chiplog_log_t *log);

/**
 * Appends one record and blocks until it is durable. `*index` (may be NULL) is its index. To learn how durable
 * it is, wait for a ticket of chiplog_log_submit instead.
 * Ownership: all borrowed. Any thread, many at once: they share writes and syncs. Blocks.
 * Errors: TOO_LARGE, FULL, BUSY, CLOSED, FORKED: the record is not in the log; POISONED: the outcome is unknown.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_append(chiplog_log_t *log,
                                    const void *data,
                                    size_t length,
                                    uint64_t *index,
                                    chiplog_error_t **error);

/**
 * Appends a batch, all of it or nothing, and blocks until it is durable. `*placed` (may be NULL) is its position.
 * Ownership: all borrowed; a batch can be appended again. Any thread, many at once. Blocks.
 * Errors: as chiplog_log_append; for a batch with a session also SESSION_EXPIRED, SEQUENCE_GAP, SEQUENCE_FORGOTTEN.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_append_batch(chiplog_log_t *log,
                                          const chiplog_batch_t *batch,
                                          chiplog_appended_t *placed,
                                          chiplog_error_t **error);

/**
 * Appends `count` records as one batch, each directly from the caller's memory, and blocks until they are durable:
 * all or none. `*placed` (may be NULL) is their position.
 * Ownership: all borrowed. Any thread, many at once. Blocks.
 * Errors: as chiplog_log_append; INVALID_ARGUMENT: no records.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_append_records(chiplog_log_t *log,
                                            const chiplog_slice_t *records,
                                            size_t count,
                                            chiplog_appended_t *placed,
                                            chiplog_error_t **error);

/**
 * Submits one record, which is copied, and returns a ticket for the outcome. Waits only while the queue is full, for
 * up to the option queue_timeout_ms.
 * Ownership: `data` borrowed for the call. The caller owns `*ticket` and must close it. Any thread, many at once.
 * Errors: TOO_LARGE, FULL, BUSY, POISONED, CLOSED, FORKED: the record was not accepted.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit(chiplog_log_t *log,
                                    const void *data,
                                    size_t length,
                                    chiplog_ticket_t **ticket,
                                    chiplog_error_t **error);

/**
 * As chiplog_log_submit, but never waits.
 * Ownership and threads as chiplog_log_submit. Never blocks.
 * Errors: the same; BUSY if the queue is full.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_try_submit(chiplog_log_t *log,
                                        const void *data,
                                        size_t length,
                                        chiplog_ticket_t **ticket,
                                        chiplog_error_t **error);

/**
 * Submits a batch; see chiplog_log_submit.
 * Ownership: all borrowed; the caller owns `*ticket` and must close it. Any thread, many at once.
 * Errors: as chiplog_log_submit.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit_batch(chiplog_log_t *log,
                                          const chiplog_batch_t *batch,
                                          chiplog_ticket_t **ticket,
                                          chiplog_error_t **error);

/**
 * As chiplog_log_submit_batch, but never waits.
 * Ownership and threads as chiplog_log_submit_batch. Never blocks.
 * Errors: the same; BUSY if the queue is full.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_try_submit_batch(chiplog_log_t *log,
                                              const chiplog_batch_t *batch,
                                              chiplog_ticket_t **ticket,
                                              chiplog_error_t **error);

/**
 * Submits `count` records as one batch, each directly from the caller's memory; see chiplog_log_submit.
 * Ownership: all borrowed for the call; the caller owns `*ticket` and must close it. Any thread, many at once.
 * Errors: as chiplog_log_submit; INVALID_ARGUMENT: no records.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit_records(chiplog_log_t *log,
                                            const chiplog_slice_t *records,
                                            size_t count,
                                            chiplog_ticket_t **ticket,
                                            chiplog_error_t **error);

/**
 * Checks whether the capacity has space for an append of this many bytes now, in addition to all waiting appends.
 * Ownership: borrowed. Any thread. Never blocks. Errors: FULL: there is not enough space; POISONED, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_check_room(const chiplog_log_t *log,
                                        size_t bytes,
                                        chiplog_error_t **error);

/**
 * Discards all records below `first`, durably; their space is reused. Does nothing if `first` is at or below the
 * first index. If it is beyond the end, the log becomes empty and continues at `first`. Readers keep the records
 * they hold.
 * Ownership: borrowed. Any thread. Blocks. Errors: POISONED, CLOSED, FORKED, INVALID_ARGUMENT; NOT_LEADER for a
 * follower's log.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_discard(chiplog_log_t *log,
                                     uint64_t first,
                                     chiplog_error_t **error);

/**
 * As chiplog_log_discard, but returns at once with a ticket. The ticket's answer has no further meaning.
 * Ownership: borrowed; the caller owns `*ticket` and must close it. Any thread. Does not block for long. Errors: the
 * same.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit_discard(chiplog_log_t *log,
                                            uint64_t first,
                                            chiplog_ticket_t **ticket,
                                            chiplog_error_t **error);

/**
 * Opens a reader of committed records that begins at `start` (CHIPLOG_START_...; `value`: its number, else 0).
 * Ownership: `log` borrowed for the call. The caller owns `*reader` and must close it; it may outlive the log. Any
 * thread.
 * Blocks for the disk. Errors: DISCARDED, OUT_OF_RANGE, INVALID_ARGUMENT, IO, CORRUPT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_reader(const chiplog_log_t *log,
                                    uint32_t start,
                                    uint64_t value,
                                    chiplog_reader_t **reader,
                                    chiplog_error_t **error);

/**
 * Reads one committed record by its index: `*records` holds only that one.
 * Ownership: `log` borrowed. The caller owns `*records` and must close it; it may outlive the log. Any thread, many
 * at once.
 * Blocks for the disk. Errors: DISCARDED, OUT_OF_RANGE, CORRUPT, IO, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_read(const chiplog_log_t *log,
                                  uint64_t index,
                                  chiplog_records_t **records,
                                  chiplog_error_t **error);

/**
 * Sets `*index` to the first record in this replica's files; in an empty log, to the index of the next append. Those before it, from
 * first_index on, are in the object store: reads fetch them from there.
 * Ownership: borrowed. Any thread. Blocks for the disk if the log is one of several named ones. Errors: CORRUPT, IO.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_first_local_index(const chiplog_log_t *log,
                                               uint64_t *index,
                                               chiplog_error_t **error);

/**
 * Blocks until all records that were committed anywhere when the call began can be read here. `*last` (may be NULL)
 * is then the last record. On a log on its own, all durable records count as committed.
 * Ownership: borrowed. Any thread. Blocks. Errors: UNAVAILABLE, NOT_LEADER, POISONED, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_barrier(const chiplog_log_t *log,
                                     uint64_t timeout_ms,
                                     uint64_t *last,
                                     chiplog_error_t **error);

/**
 * As chiplog_log_barrier, but returns at once: the `first` of the ticket's result is the last record.
 * Ownership: borrowed; the caller owns `*ticket` and must close it. Any thread. Does not block for long. Errors: the
 * same.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit_barrier(const chiplog_log_t *log,
                                            uint64_t timeout_ms,
                                            chiplog_ticket_t **ticket,
                                            chiplog_error_t **error);

/**
 * Blocks until record `index` can be read here, or is known to be discarded.
 * Ownership: borrowed. Any thread. Blocks. Errors: TIMEOUT, CLOSED, POISONED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_wait_for(const chiplog_log_t *log,
                                      uint64_t index,
                                      uint64_t timeout_ms,
                                      chiplog_error_t **error);

/**
 * Reports that the bytes of record `index` are damaged in this directory. A replica of a cluster scrubs the segment
 * at once and repairs the damage from other replicas. A log on its own only counts and logs the damage. Reads report
 * damage by themselves. A report about a sound record costs only the scrub.
 * Ownership: borrowed. Any thread. Blocks for the disk, not for the repair. Errors: DISCARDED, OUT_OF_RANGE,
 * UNAVAILABLE, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_report_damage(const chiplog_log_t *log,
                                           uint64_t index,
                                           chiplog_error_t **error);

/**
 * Returns the options that the log was opened with, except for the clock and the object store. Set `options->size` first.
 * Ownership: `log` borrowed; the caller owns `options`. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_options(const chiplog_log_t *log,
                                     chiplog_log_options_t *options,
                                     chiplog_error_t **error);

/**
 * Returns the current state of the log. Set `status->size` first.
 * Ownership: `log` borrowed; the caller owns `status`. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_status(const chiplog_log_t *log,
                                    chiplog_log_status_t *status,
                                    chiplog_error_t **error);

/**
 * Returns the counters of the log since it was opened, and the work that waits in it now. Set `metrics->size` first.
 * Ownership: `log` borrowed; the caller owns `metrics`. Any thread. Does not block for long.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_metrics(const chiplog_log_t *log,
                                     chiplog_metrics_t *metrics,
                                     chiplog_error_t **error);

/**
 * Returns why the log accepts no more appends, if a write or a sync has failed: `*cause`, else NULL.
 * Ownership: `log` borrowed; the caller owns `*cause` and must close it. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_poison_cause(const chiplog_log_t *log,
                                          chiplog_error_t **cause,
                                          chiplog_error_t **error);

/**
 * Returns why this replica does not accept the log's records while another replica leads. The reason is a disk
 * without space (FULL, IO), segments that are too small for what the leader sends (TOO_LARGE), or options that
 * conflict with the log's (INVALID_ARGUMENT): `*cause`, else NULL.
 * Ownership: `log` borrowed; the caller owns `*cause` and must close it. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_shortage_cause(const chiplog_log_t *log,
                                            chiplog_error_t **cause,
                                            chiplog_error_t **error);

/**
 * Returns an option of the log, as far as this replica knows it committed. `*is_set` is 1 and `*value` its value; or
 * `*is_set` and `*value` are 0: the option is not set, and the leader's own applies. `name` is as in
 * chiplog_log_option_t. `value` and `is_set` may be NULL.
 * Ownership: all borrowed for the call. Any thread. Never blocks. Errors: INVALID_ARGUMENT: an unknown name; CLOSED,
 * FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_log_option(const chiplog_log_t *log,
                                        const char *name,
                                        uint64_t *value,
                                        uint8_t *is_set,
                                        chiplog_error_t **error);

/**
 * Sets or unsets options of the log, on the leader. Options that are not named do not change. Waits until the change
 * is committed: from then on each leader uses it. Waits up to `timeout_ms` for members that have not yet confirmed
 * that they support options of the log.
 * Ownership: all borrowed for the call. Any thread. Blocks. Errors: INVALID_ARGUMENT: an option, its value or its
 * bounds; UNSUPPORTED: a member runs an earlier version; NOT_LEADER, REMOVED, FULL, BUSY: nothing was changed;
 * UNAVAILABLE: the change may or may not take effect; POISONED, CLOSED, FORKED. Repeating the call does no harm.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_set_log_options(chiplog_log_t *log,
                                             const chiplog_log_option_t *changes,
                                             size_t count,
                                             uint64_t timeout_ms,
                                             chiplog_error_t **error);

/**
 * As chiplog_log_set_log_options, but returns at once with a ticket. The ticket's answer has no further meaning.
 * Ownership: borrowed; the caller owns `*ticket` and must close it. Any thread. Does not block for long. Errors: the
 * same.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit_set_log_options(chiplog_log_t *log,
                                                    const chiplog_log_option_t *changes,
                                                    size_t count,
                                                    uint64_t timeout_ms,
                                                    chiplog_ticket_t **ticket,
                                                    chiplog_error_t **error);

/**
 * Returns the largest record that the log accepts, in bytes: the log's option, or the option it was opened with if
 * that is not set. 0 if `log` is not an open log.
 * Ownership: `log` borrowed. Any thread. Never blocks.
 */
uint32_t chiplog_log_record_bytes_max(const chiplog_log_t *log);

/**
 * Returns how many of a session's latest batches the log remembers, from the same options as
 * chiplog_log_record_bytes_max. 0 if `log` is not an open log.
 * Ownership: `log` borrowed. Any thread. Never blocks.
 */
uint16_t chiplog_log_session_window(const chiplog_log_t *log);

/**
 * As chiplog_log_log_option, for a read-only log.
 * Ownership: all borrowed for the call. Any thread. Never blocks. Errors: INVALID_ARGUMENT: an unknown name; CLOSED,
 * FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_log_option(const chiplog_read_only_log_t *read_only,
                                                  const char *name,
                                                  uint64_t *value,
                                                  uint8_t *is_set,
                                                  chiplog_error_t **error);

/**
 * Opens an empty builder, without compression and without a session.
 * Ownership: the caller owns `*builder` and must close it. Any thread. Never blocks.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_builder_open(chiplog_builder_t **builder,
                                      chiplog_error_t **error);

/**
 * Sets the compression: CHIPLOG_CODEC_...
 * Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_builder_codec(chiplog_builder_t *builder,
                                       uint32_t codec,
                                       chiplog_error_t **error);

/**
 * Stamps the batch as number `sequence` (from 1) of a session. `inflight` is the number of earlier appends that the
 * client has no answer for yet. chiplog_session_append_batch does this by itself.
 * Ownership: borrowed. Any thread. Never blocks.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_builder_session(chiplog_builder_t *builder,
                                         uint64_t session,
                                         uint64_t sequence,
                                         uint16_t inflight,
                                         chiplog_error_t **error);

/**
 * Adds a record, which may be empty. The bytes are copied.
 * Ownership: borrowed. Any thread. Never blocks. Errors: TOO_LARGE: the batch is unchanged.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_builder_push(chiplog_builder_t *builder,
                                      const void *data,
                                      size_t length,
                                      chiplog_error_t **error);

/**
 * Adds one record that consists of pieces, in their order.
 * Ownership: borrowed. Any thread. Never blocks. Errors: TOO_LARGE: the batch is unchanged.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_builder_push_pieces(chiplog_builder_t *builder,
                                             const chiplog_slice_t *pieces,
                                             size_t count,
                                             chiplog_error_t **error);

/**
 * Returns the number of records so far; 0 if `builder` is not an open builder.
 * Ownership: borrowed. Any thread. Never blocks.
 */
uint32_t chiplog_builder_count(const chiplog_builder_t *builder);

/**
 * Returns the size that the batch would have if it were built now without compression; 0 if `builder` is not an open
 * builder.
 * Ownership: borrowed. Any thread. Never blocks.
 */
size_t chiplog_builder_encoded_bytes(const chiplog_builder_t *builder);

/**
 * Encodes and checksums the batch. The builder is empty afterwards and keeps its codec and session.
 * Ownership: `builder` borrowed; the caller owns `*batch` and must close it. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT: no records, or a session without a number.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_builder_build(chiplog_builder_t *builder,
                                       chiplog_batch_t **batch,
                                       chiplog_error_t **error);

/**
 * Closes a builder. Does nothing if it is NULL or already closed.
 * Ownership: takes `builder`. Any thread. Never blocks.
 */
void chiplog_builder_close(chiplog_builder_t *builder);

/**
 * Makes a batch of encoded bytes, for example from another process. Checks the checksum and every bound. The bytes
 * are copied.
 * Ownership: `data` borrowed for the call; the caller owns `*batch` and must close it. Any thread. Never blocks.
 * Errors: CORRUPT: the bytes are not exactly one batch with the right checksum; INVALID_ARGUMENT: they are, but the
 * batch cannot be decompressed.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_batch_decode(const void *data,
                                      size_t length,
                                      chiplog_batch_t **batch,
                                      chiplog_error_t **error);

/**
 * Returns the encoded bytes, as they are written to the file; `{NULL, 0}` if `batch` is not an open batch.
 * Ownership: `batch` borrowed; the bytes are valid until it is closed. Any thread. Never blocks.
 */
chiplog_slice_t chiplog_batch_bytes(const chiplog_batch_t *batch);

/**
 * Returns the number of records in the batch; 0 if `batch` is not an open batch.
 * Ownership: borrowed. Any thread. Never blocks.
 */
uint32_t chiplog_batch_count(const chiplog_batch_t *batch);

/**
 * Returns the compression of the body: CHIPLOG_CODEC_... NONE also if compression would not have made it smaller.
 * Ownership: borrowed. Any thread. Never blocks.
 */
uint32_t chiplog_batch_codec(const chiplog_batch_t *batch);

/**
 * Returns the session and the sequence number that the batch is stamped with; 0 and 0 if there is none. Either
 * pointer may be NULL.
 * Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_batch_session(const chiplog_batch_t *batch,
                                       uint64_t *session,
                                       uint64_t *sequence,
                                       chiplog_error_t **error);

/**
 * Closes a batch. Submitted appends of it continue. Does nothing if it is NULL or already closed.
 * Ownership: takes `batch`. Any thread. Never blocks.
 */
void chiplog_batch_close(chiplog_batch_t *batch);

/**
 * Blocks until the append is durable or has failed, for up to `timeout_ms`; CHIPLOG_FOREVER means no limit. The
 * result can be read again. `*placed` (may be NULL) is the position, and says how durable the records are.
 * Ownership: borrowed. Any thread, many at once. Blocks.
 * Errors: TIMEOUT: the append is still in flight and MAY STILL BECOME DURABLE: wait for this ticket again. Other
 * errors: see the function that returned the ticket, and for a producer's ticket chiplog_producer_submit.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_ticket_wait(const chiplog_ticket_t *ticket,
                                     uint64_t timeout_ms,
                                     chiplog_appended_t *placed,
                                     chiplog_error_t **error);

/**
 * Checks whether there is a result: `*done` is 1 or 0. If there is, returns its status, and `*placed` is the
 * position.
 * Ownership: borrowed. Any thread. Never blocks. Errors: as chiplog_ticket_wait, except TIMEOUT for waiting.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_ticket_poll(const chiplog_ticket_t *ticket,
                                     uint8_t *done,
                                     chiplog_appended_t *placed,
                                     chiplog_error_t **error);

/**
 * Calls `callback` once with the result: at once on this thread if it is known already, else on the log's writer
 * thread as soon as it is known. The log writes nothing else until the callback returns, so it should only pass the
 * result on. For a producer's record use chiplog_producer_send_with instead.
 * Ownership: takes `ticket` and closes it if the status is CHIPLOG_OK; `context` is borrowed until the callback was
 * called. Any thread. Blocks only while the callback runs.
 * Errors: BUSY: another thread waits for the ticket; INVALID_ARGUMENT; CLOSED, FORKED. On an error `callback` is not
 * called.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_ticket_on_complete(chiplog_ticket_t *ticket,
                                            chiplog_outcome_fn callback,
                                            void *context,
                                            chiplog_error_t **error);

/**
 * Closes a ticket; the append continues. Does nothing if it is NULL or already closed.
 * Ownership: takes `ticket`. Any thread. Never blocks.
 */
void chiplog_ticket_close(chiplog_ticket_t *ticket);

/**
 * Returns the index of the next record. 0: no server has determined it yet.
 * Ownership: borrowed. One thread at a time. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_position(const chiplog_reader_t *reader,
                                         uint64_t *index,
                                         chiplog_error_t **error);

/**
 * Moves to another position: back, forward, past damage. A reader of files accepts only CHIPLOG_START_INDEX. If it
 * fails, it keeps its position.
 * Ownership: borrowed. One thread at a time. Does not block for long.
 * Errors: DISCARDED, OUT_OF_RANGE, INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_seek(chiplog_reader_t *reader,
                                     uint32_t start,
                                     uint64_t value,
                                     chiplog_error_t **error);

/**
 * Skips a batch that the reader's last step found UNDECODABLE. `*next` (may be NULL) is the index of the record
 * after it. If the last step returned something else, nothing changes.
 * Ownership: borrowed. One thread at a time. Does not block for long.
 * Errors: as chiplog_reader_next_batch, except UNDECODABLE.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_skip_batch(chiplog_reader_t *reader,
                                           uint64_t *next,
                                           chiplog_error_t **error);

/**
 * Returns the server that it reads from now, `host:port`; empty if there is none, or for a reader of files. `length`
 * is the size of `text`, at least 1; a longer text is cut.
 * Ownership: the caller owns `text`. One thread at a time. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_server(const chiplog_reader_t *reader,
                                       char *text,
                                       size_t length,
                                       chiplog_error_t **error);

/**
 * Returns the next record. Waits up to `timeout_ms` for one: 0 does not wait; CHIPLOG_FOREVER has no limit. Over the
 * network, a reader that does not follow sets `record->data` to NULL at the end.
 * Ownership: the record's bytes are valid until the next call with this reader, or until it is closed. One thread at
 * a time.
 * Errors: TIMEOUT: nothing to read yet; CLOSED: the log was closed and all of it was read, or the reader was closed;
 * DISCARDED: the record was discarded: open a new reader at CHIPLOG_START_FIRST; CORRUPT: the reader keeps its
 * position; UNDECODABLE: the batch cannot be decompressed, chiplog_reader_skip_batch skips it; CANCELLED; IO,
 * POISONED, FORKED; over the network also UNAVAILABLE, OUT_OF_RANGE.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_next_record(chiplog_reader_t *reader,
                                            uint64_t timeout_ms,
                                            chiplog_record_t *record,
                                            chiplog_error_t **error);

/**
 * Returns the rest of the current batch, or the whole next one: records that were appended together. Waits as
 * chiplog_reader_next_record does. `*records` is NULL, with CHIPLOG_OK, at the end of a reader that does not follow.
 * Ownership: the caller owns `*records` and must close it; it may outlive reader and log. One thread at a time.
 * Errors: as chiplog_reader_next_record.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_next_batch(chiplog_reader_t *reader,
                                           uint64_t timeout_ms,
                                           chiplog_records_t **records,
                                           chiplog_error_t **error);

/**
 * As chiplog_reader_next_batch, and adds the following batches until all have `bytes_max` bytes together or there
 * are no more now. This is the fastest way to read. 1 MiB is a good size. It waits only for the first batch.
 * Ownership, threads and errors as chiplog_reader_next_batch.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_next_run(chiplog_reader_t *reader,
                                         size_t bytes_max,
                                         uint64_t timeout_ms,
                                         chiplog_records_t **records,
                                         chiplog_error_t **error);

/**
 * Blocks until there is something to read, for up to `timeout_ms`. Reads nothing.
 * Ownership: borrowed. One thread at a time. Blocks. Errors: as chiplog_reader_next_record.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_wait(chiplog_reader_t *reader,
                                     uint64_t timeout_ms,
                                     chiplog_error_t **error);

/**
 * Calls `callback` once, when there is something to read or an error to return (the log was closed). If that is so
 * already, the callback runs at once on this thread, else on a thread of the log or the client. It must not use this
 * reader. A reader has one callback: a new callback, or a descriptor, replaces the last. Over the network each call
 * that reads removes it. A descriptor that was handed out stays open, but does not change until
 * chiplog_reader_descriptor is called again.
 * Ownership: `context` is borrowed until the callback was called, was replaced, or the reader was closed. One thread
 * at a time. Does not block for long. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_on_more(chiplog_reader_t *reader,
                                        chiplog_notify_fn callback,
                                        void *context,
                                        chiplog_error_t **error);

/**
 * Returns a descriptor that is readable (poll, epoll, select) while there may be something to read. When it is
 * readable, read with a time-out of 0 until TIMEOUT, then wait for it again. It stays readable when there is an
 * error to return, such as CLOSED. It costs nothing while no thread waits for it.
 * Ownership: the reader owns `*descriptor`, which is the same each time: do not read from it or close it; it is
 * closed with the reader. One thread at a time. Does not block for long. Errors: IO, INVALID_ARGUMENT, CLOSED,
 * FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_descriptor(chiplog_reader_t *reader,
                                           int32_t *descriptor,
                                           chiplog_error_t **error);

/**
 * Cancels this reader for good, to stop a thread that follows the log. A call that reads or waits with it on another
 * thread returns CHIPLOG_CANCELLED at once, and so does each later call, and each call that waits for its turn. A
 * call that already had a result may still return it. A descriptor becomes readable, and a callback of
 * chiplog_reader_on_more is called. The reader keeps its position: chiplog_reader_position returns where another
 * reader can continue. It must still be closed. It can be closed at any time, even while the call on the other
 * thread is ending. The opposite order does not work: a closed reader cannot be cancelled.
 * Ownership: borrowed. Any thread, also while another one uses the reader; not in a signal handler. Never blocks,
 * except while that callback of a reader of files runs. A second call does nothing. Errors: INVALID_ARGUMENT,
 * CLOSED, FORKED.
 */
chiplog_status_t chiplog_reader_cancel(chiplog_reader_t *reader,
                                       chiplog_error_t **error);

/**
 * Closes a reader. A call of another thread that waits with it keeps waiting: call chiplog_reader_cancel first to
 * end it. No callback of the reader runs once this has returned. Does nothing if it is NULL or already closed.
 * Ownership: takes `reader`. Any thread. Does not block for long, except while that callback runs.
 */
void chiplog_reader_close(chiplog_reader_t *reader);

/**
 * Returns the records in order: `*count` of them, at least one, in `*array`.
 * Ownership: `records` is borrowed; the array and its bytes are valid until `records` is closed. Any thread. Never
 * blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_records_view(const chiplog_records_t *records,
                                      const chiplog_record_t **array,
                                      size_t *count,
                                      chiplog_error_t **error);

/**
 * Closes records: their views become invalid. Does nothing if it is NULL or already closed.
 * Ownership: takes `records`. Any thread. Never blocks.
 */
void chiplog_records_close(chiplog_records_t *records);

/**
 * Opens an exactly-once session, durably.
 * Ownership: `log` borrowed for the call; the caller owns `*session` and must close it. Any thread. Blocks.
 * Errors: TOO_MANY_SESSIONS, FULL, POISONED, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_open_session(chiplog_log_t *log,
                                          chiplog_session_t **session,
                                          chiplog_error_t **error);

/**
 * Resumes a session, in this process or another one. `next` is the number that the next append gets, from 1. To
 * repeat an append whose outcome is unknown, use its number again. The first append reports whether the log still
 * knows the session.
 * Ownership: `log` borrowed for the call; the caller owns `*session` and must close it. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_resume_session(chiplog_log_t *log,
                                            uint64_t id,
                                            uint64_t next,
                                            chiplog_session_t **session,
                                            chiplog_error_t **error);

/**
 * Returns the session's permanent id. Ownership: borrowed. One thread at a time. Does not block for long.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_id(const chiplog_session_t *session,
                                    uint64_t *id,
                                    chiplog_error_t **error);

/**
 * Returns the number that the next append gets. Ownership: borrowed. One thread at a time. Does not block for long.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_next_sequence(const chiplog_session_t *session,
                                               uint64_t *next,
                                               chiplog_error_t **error);

/**
 * Appends one record, once, and blocks until it is durable. `*index` (may be NULL) is its index.
 * Ownership: all borrowed. One thread at a time. Blocks.
 * Errors: SEQUENCE_FORGOTTEN: the record IS IN THE LOG already, only its index is no longer known; the session has
 * moved to the next number. SESSION_EXPIRED, SEQUENCE_GAP, INVALID_ARGUMENT (number 0), and those of
 * chiplog_log_append.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_append(chiplog_session_t *session,
                                        const void *data,
                                        size_t length,
                                        uint64_t *index,
                                        chiplog_error_t **error);

/**
 * Builds the batch with the session's next number, appends it, once, and blocks until it is durable. `*placed` (may
 * be NULL) is its position.
 * Ownership: all borrowed; the builder is empty afterwards. One thread at a time. Blocks.
 * Errors: as chiplog_session_append, and those of chiplog_builder_build.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_append_batch(chiplog_session_t *session,
                                              chiplog_builder_t *builder,
                                              chiplog_appended_t *placed,
                                              chiplog_error_t **error);

/**
 * Submits one record and returns a ticket. Waits while the number of appends in flight equals the session's window.
 * Ownership: `data` borrowed for the call; the caller owns `*ticket` and must close it. One thread at a time.
 * Errors: those of chiplog_log_submit: the record was not accepted, and the next append gets its number. The ticket
 * can hold those of chiplog_session_append.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_submit(chiplog_session_t *session,
                                        const void *data,
                                        size_t length,
                                        chiplog_ticket_t **ticket,
                                        chiplog_error_t **error);

/**
 * Builds the batch with the session's next number and submits it; see chiplog_session_submit.
 * Ownership: borrowed, the builder is empty afterwards; the caller owns `*ticket` and must close it. One thread at a time.
 * Errors: as chiplog_session_submit, and those of chiplog_builder_build.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_submit_batch(chiplog_session_t *session,
                                              chiplog_builder_t *builder,
                                              chiplog_ticket_t **ticket,
                                              chiplog_error_t **error);

/**
 * As chiplog_session_submit, but never waits.
 * Ownership: `data` borrowed for the call; the caller owns `*ticket` and must close it. One thread at a time. Never
 * blocks.
 * Errors: as chiplog_session_submit; BUSY: no space, the record was not accepted.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_try_submit(chiplog_session_t *session,
                                            const void *data,
                                            size_t length,
                                            chiplog_ticket_t **ticket,
                                            chiplog_error_t **error);

/**
 * As chiplog_session_submit_batch, but never waits.
 * Ownership: borrowed; the builder is empty afterwards, or unchanged if the call fails; the caller owns `*ticket`
 * and must close it. One thread at a time. Never blocks, except for compression.
 * Errors: as chiplog_session_submit_batch; BUSY: no space, the batch was not accepted.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_try_submit_batch(chiplog_session_t *session,
                                                  chiplog_builder_t *builder,
                                                  chiplog_ticket_t **ticket,
                                                  chiplog_error_t **error);

/**
 * As chiplog_session_submit, but waits for up to `patience_ms` for space in the session's window and in the log's
 * queue. 0: does not wait.
 * Ownership: `data` borrowed for the call; the caller owns `*ticket` and must close it. One thread at a time.
 * Errors: as chiplog_session_submit; BUSY: no space in that time, the record was not accepted.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_submit_within(chiplog_session_t *session,
                                               const void *data,
                                               size_t length,
                                               uint64_t patience_ms,
                                               chiplog_ticket_t **ticket,
                                               chiplog_error_t **error);

/**
 * As chiplog_session_submit_batch, but waits for room as chiplog_session_submit_within does.
 * Ownership: borrowed; the builder is empty afterwards, or unchanged if the call fails; the caller owns `*ticket`
 * and must close it. One thread at a time.
 * Errors: as chiplog_session_submit_batch; BUSY: no space in that time.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_submit_batch_within(chiplog_session_t *session,
                                                     chiplog_builder_t *builder,
                                                     uint64_t patience_ms,
                                                     chiplog_ticket_t **ticket,
                                                     chiplog_error_t **error);

/**
 * Ends the session in the log, durably, once all appends in flight have an outcome: the log forgets the session. The
 * handle must still be closed. If the call fails, the session may be open in the log: call it again.
 * Ownership: borrowed. One thread at a time. Blocks.
 * Errors: FULL, BUSY, POISONED, CLOSED (of the log, or the session was ended), FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_end(chiplog_session_t *session,
                                     chiplog_error_t **error);

/**
 * Closes the handle. The session stays open in the log and can be resumed. Does nothing if it is NULL or already
 * closed.
 * Ownership: takes `session`. Any thread. Does not block for long.
 */
void chiplog_session_close(chiplog_session_t *session);

/**
 * Opens the log in `directory` for reading.
 * Ownership: `directory` borrowed for the call; the caller owns `*read_only` and must close it. Any thread. Blocks for the disk.
 * Errors: NOT_FOUND, CORRUPT, UNSUPPORTED, IO, INVALID_ARGUMENT.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_open(const char *directory,
                                            chiplog_read_only_log_t **read_only,
                                            chiplog_error_t **error);

/**
 * Opens a reader of records that are proven durable; see chiplog_log_reader.
 * Ownership: `read_only` borrowed; the caller owns `*reader` and must close it. Any thread. Blocks for the disk.
 * Errors: as chiplog_log_reader.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_reader(const chiplog_read_only_log_t *read_only,
                                              uint32_t start,
                                              uint64_t value,
                                              chiplog_reader_t **reader,
                                              chiplog_error_t **error);

/**
 * Reads one record by its index.
 * Ownership: `read_only` borrowed; the caller owns `*records` and must close it. Any thread. Blocks for the disk.
 * Errors: as chiplog_log_read.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_read(const chiplog_read_only_log_t *read_only,
                                            uint64_t index,
                                            chiplog_records_t **records,
                                            chiplog_error_t **error);

/**
 * Returns the state of the log, as far as it is proven durable. Set `status->size` first.
 * Ownership: `read_only` borrowed; the caller owns `status`. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_status(const chiplog_read_only_log_t *read_only,
                                              chiplog_log_status_t *status,
                                              chiplog_error_t **error);

/**
 * Returns how many records follow the last visible one that are intact but not proven durable: `*count`.
 * Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_unproven(const chiplog_read_only_log_t *read_only,
                                                uint64_t *count,
                                                chiplog_error_t **error);

/**
 * Calls `callback` on this thread with each member of the cluster, as far as these files say. `*is_cluster` (may be
 * NULL) is 0 for a log on its own.
 * Ownership: all borrowed for the call. Any thread. Blocks while the callback runs. Errors: INVALID_ARGUMENT,
 * CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_members(const chiplog_read_only_log_t *read_only,
                                               chiplog_member_fn callback,
                                               void *context,
                                               uint8_t *is_cluster,
                                               chiplog_error_t **error);

/**
 * Returns why the view stopped, if it met damage: `*cause`, else NULL.
 * Ownership: `read_only` borrowed; the caller owns `*cause` and must close it. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_failure(const chiplog_read_only_log_t *read_only,
                                               chiplog_error_t **cause,
                                               chiplog_error_t **error);

/**
 * Closes a read-only log; its readers keep the records they hold. Does nothing if it is NULL or already closed.
 * Ownership: takes `read_only`. Any thread. Does not block for long.
 */
void chiplog_read_only_log_close(chiplog_read_only_log_t *read_only);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_logs_options_t).
 * Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
 */
void chiplog_logs_options_init(chiplog_logs_options_t *options,
                               size_t size);

/**
 * Opens the named logs in `directory`, or makes the directory if the options say so. A directory holds named logs, or
 * one log on its own. `options` may be NULL for the defaults.
 * Ownership: `directory` and `options` are borrowed for the call, the clock's context until the logs are closed. The
 * caller owns `*logs` and must close it. Any thread. Blocks while recovery reads the last segment of each group.
 * Errors: as chiplog_log_open; INVALID_ARGUMENT, too, if the directory holds one log on its own; DIVERGED: a group's
 * directory was replaced by another one, is there twice, or is in one of the options' directories that cannot be used now.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_logs_open(const char *directory,
                                   const chiplog_logs_options_t *options,
                                   chiplog_logs_t **logs,
                                   chiplog_error_t **error);

/**
 * Creates a log, durably. A name is 1 to 249 of the characters `A-Z a-z 0-9 . _ -`, does not begin with `_`, and can
 * end with `/` and a partition's number. `beside`: the name of a log in whose group it is created, so that both can be
 * appended to together; NULL or empty: the group with the fewest logs.
 * `*log` works with all functions of a log. chiplog_log_path, chiplog_log_options, chiplog_log_metrics and the fields of
 * chiplog_log_status other than log_id and the indexes are those of its group.
 * Ownership: `logs` and the texts borrowed; the caller owns `*log` and must close it. That closes only the handle; `*log`
 * can be closed before `logs` or after it. Any thread. Blocks; not in a callback on a thread of the logs.
 * Errors: ALREADY_EXISTS; INVALID_ARGUMENT (the name; in a callback); NOT_FOUND (`beside`); FULL, also if the group has no
 * room for more logs; BUSY, POISONED, CLOSED, FORKED. Repeating the call does no harm: a log that was created is then
 * reported as existing.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_logs_create(chiplog_logs_t *logs,
                                     const char *name,
                                     const char *beside,
                                     chiplog_log_t **log,
                                     chiplog_error_t **error);

/**
 * Returns the log of this name. See chiplog_logs_create.
 * Ownership: `logs` and `name` borrowed; the caller owns `*log` and must close it, which closes only the handle. Any
 * thread. Blocks only for the disk.
 * Errors: NOT_FOUND; CORRUPT, IO: the files; INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_logs_get(const chiplog_logs_t *logs,
                                  const char *name,
                                  chiplog_log_t **log,
                                  chiplog_error_t **error);

/**
 * Deletes a log with all its records, durably. Its handles return CHIPLOG_NOT_FOUND from then on, and so do
 * its readers behind the last record; records that were read stay valid. A new log can have the name.
 * Ownership: borrowed. Any thread. Blocks; not in a callback on a thread of the logs.
 * Errors: NOT_FOUND; INVALID_ARGUMENT (in a callback); UNAVAILABLE: it is deleted, and its group drops its records later;
 * FULL, BUSY, POISONED, CLOSED, FORKED. Repeating the call does no harm.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_logs_delete(chiplog_logs_t *logs,
                                     const char *name,
                                     chiplog_error_t **error);

/**
 * Seals a log, durably: it takes no more appends, which fail with CHIPLOG_SEALED; its records stay.
 * Ownership: borrowed. Any thread. Blocks; not in a callback on a thread of the logs. Errors: as chiplog_logs_delete.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_logs_seal(chiplog_logs_t *logs,
                                   const char *name,
                                   chiplog_error_t **error);

/**
 * Calls `callback` on this thread with up to `limit` logs, by name: those whose names begin with `prefix` and come after
 * the name `after`, which need not exist. Both may be NULL: all names, from the first. For the next page pass the last
 * name of this one as `after`. The callback may call functions of the logs.
 * Ownership: all borrowed for the call. Any thread. Blocks for the disk, and while the callback runs.
 * Errors: INVALID_ARGUMENT; CORRUPT, IO: the files; CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_logs_list(const chiplog_logs_t *logs,
                                   const char *prefix,
                                   const char *after,
                                   size_t limit,
                                   chiplog_log_info_fn callback,
                                   void *context,
                                   chiplog_error_t **error);

/**
 * Returns the state of one log. Set `info->size` first.
 * Ownership: `logs` and `name` borrowed; the caller owns `info`. Any thread. Blocks only for the disk.
 * Errors: NOT_FOUND; CORRUPT, IO: the files; INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_logs_info(const chiplog_logs_t *logs,
                                   const char *name,
                                   chiplog_log_info_t *info,
                                   chiplog_error_t **error);

/**
 * Closes all logs: ends appending, writes what was submitted, makes it durable, unlocks the directory, and closes the
 * handle, whatever the status. Handles of the logs stay open until they are closed; their appends return
 * CHIPLOG_CLOSED. Readers and the records they returned stay valid.
 * Ownership: takes `logs`; NULL: CHIPLOG_OK. Any thread, also while other threads append: their appends are completed
 * first. Blocks for the disk. In a callback on a thread of a group, that group closes after the callback.
 * Errors: POISONED: an earlier write or sync failed, and some appends have an unknown outcome; CLOSED: it is already
 * closed; FORKED.
 */
chiplog_status_t chiplog_logs_close(chiplog_logs_t *logs,
                                    chiplog_error_t **error);

/**
 * Appends `count` batches to named logs of one group, all of them or none, and blocks until they are durable. No crash
 * and no copy of the group separates them; readers of two of the logs can see one a moment before the other. A log may
 * occur more than once. `placed` (may be NULL) has room for `count` positions, in the same order.
 * Ownership: all borrowed; a batch can be appended again. Any thread, many at once. Blocks; not in a callback on a thread
 * of the group.
 * Errors: INVALID_ARGUMENT: the logs are not of `logs` or of different groups (see `beside` of chiplog_logs_create), a
 * batch belongs to a session, or in a callback; TOO_LARGE: together they exceed block_bytes_max; NOT_FOUND, SEALED: one
 * of the logs takes no appends; FULL, BUSY, CLOSED, FORKED: nothing was appended to any of them; POISONED: the outcome
 * is unknown.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_logs_append_together(chiplog_logs_t *logs,
                                              const chiplog_append_t *appends,
                                              size_t count,
                                              chiplog_appended_t *placed,
                                              chiplog_error_t **error);

/**
 * Submits `count` batches that are appended together, and returns a ticket for the outcome of each: see
 * chiplog_logs_append_together and chiplog_log_submit. `tickets` has room for `count` tickets, in the same order. All of
 * them have the same outcome, at the same time. Waits only while the queue of the group is full or one of the logs has
 * used up its rate, for up to the option queue_timeout_ms; not in a callback on a thread of the group.
 * Ownership: all borrowed for the call; a batch can be appended again. The caller owns the tickets and must close each; if the
 * call fails, there are none. Any thread, many at once.
 * Errors: those of chiplog_logs_append_together, except in a callback: nothing was accepted. NOT_FOUND, SEALED and POISONED
 * come from each ticket.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_logs_submit_together(chiplog_logs_t *logs,
                                              const chiplog_append_t *appends,
                                              size_t count,
                                              chiplog_ticket_t **tickets,
                                              chiplog_error_t **error);

/**
 * As chiplog_logs_submit_together, but never waits.
 * Ownership and threads as chiplog_logs_submit_together. Never blocks.
 * Errors: the same; BUSY if the queue is full or one of the logs has used up its rate.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_logs_try_submit_together(chiplog_logs_t *logs,
                                                  const chiplog_append_t *appends,
                                                  size_t count,
                                                  chiplog_ticket_t **tickets,
                                                  chiplog_error_t **error);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_client_options_t).
 * Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
 */
void chiplog_client_options_init(chiplog_client_options_t *options,
                                 size_t size);

/**
 * Connects to the cluster that these `count` servers, `host:port`, belong to. One that answers is enough: the client
 * learns the others from it. `options` may be NULL for the defaults.
 * Ownership: all borrowed for the call; the caller owns `*client` and must close it. Any thread. Blocks for up to
 * timeout_ms.
 * Errors: INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED, UNAVAILABLE, TIMEOUT, NOT_FOUND (no log of that name),
 * UNSUPPORTED, IO.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_connect(const char *const *servers,
                                        size_t count,
                                        const chiplog_client_options_t *options,
                                        chiplog_client_t **client,
                                        chiplog_error_t **error);

/**
 * Opens a producer, which collects records into batches, keeps several in flight, and sends again after a failure.
 * `options` may be NULL for the defaults.
 * Ownership: `client`, `options` borrowed for the call; the caller owns `*producer` and must close it. Any thread. Blocks.
 * Errors: INVALID_ARGUMENT, UNAVAILABLE, TIMEOUT, FORKED, and errors of the servers.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_producer(const chiplog_client_t *client,
                                         const chiplog_producer_options_t *options,
                                         chiplog_producer_t **producer,
                                         chiplog_error_t **error);

/**
 * Returns the state of the log, including everything that was acknowledged before the call. Set `info->size` first.
 * Ownership: `client` borrowed; the caller owns `info`. Any thread. Blocks for up to the client's timeout_ms.
 * Errors: TIMEOUT, UNAVAILABLE: no leader answered; errors of the leader; INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_info(const chiplog_client_t *client,
                                     chiplog_remote_info_t *info,
                                     chiplog_error_t **error);

/**
 * As chiplog_client_info, but needs no majority: returns what the replicas know. It can be out of date by one
 * election.
 * Ownership and threads as chiplog_client_info. Errors: the same; UNAVAILABLE: no server answered.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_info_stale(const chiplog_client_t *client,
                                           chiplog_remote_info_t *info,
                                           chiplog_error_t **error);

/**
 * Discards all records below `first`.
 * Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms. Errors: as chiplog_client_info.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_discard(const chiplog_client_t *client,
                                        uint64_t first,
                                        chiplog_error_t **error);

/**
 * Opens a session for a producer that continues in it after a restart of the program. Pass `*session` in the
 * producer's options.
 * Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms.
 * Errors: as chiplog_client_info; TOO_MANY_SESSIONS.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_open_session(const chiplog_client_t *client,
                                             uint64_t *session,
                                             chiplog_error_t **error);

/**
 * Returns the largest batch that the servers accept, in bytes, as last reported by them: `*bytes`.
 * Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_batch_bytes_max(const chiplog_client_t *client,
                                                size_t *bytes,
                                                chiplog_error_t **error);

/**
 * Opens a watch on the state of the log. Changes within `interval_ms` are reported together.
 * Ownership: `client` borrowed; the caller owns `*watch` and must close it. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_watch(const chiplog_client_t *client,
                                      uint64_t interval_ms,
                                      chiplog_watch_t **watch,
                                      chiplog_error_t **error);

/**
 * Closes a client. Its producers and readers continue. Does nothing if it is NULL or already closed.
 * Ownership: takes `client`. Any thread. Closing the last of the client and its producers, readers and watches ends
 * the client's thread and waits for it. Records that producers had not sent by then are dropped.
 */
void chiplog_client_close(chiplog_client_t *client);

/**
 * Returns the state of the log: at once the first time, then after each change. Waits up to `timeout_ms`. Set
 * `info->size` first.
 * Ownership: `watch` borrowed; the caller owns `info`. One thread at a time. Blocks.
 * Errors: TIMEOUT: nothing changed; UNAVAILABLE: no server answered in time; INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_watch_next(chiplog_watch_t *watch,
                                    uint64_t timeout_ms,
                                    chiplog_remote_info_t *info,
                                    chiplog_error_t **error);

/**
 * Closes a watch. Does nothing if it is NULL or already closed.
 * Ownership: takes `watch`. Any thread. Does not block for long; see chiplog_client_close.
 */
void chiplog_watch_close(chiplog_watch_t *watch);

/**
 * Appends `count` batches, up to 256, to named logs of one group of the same servers, all of them or none, and blocks
 * until they are durable. No crash and no copy of the group separates them; readers of two of the logs can see one a
 * moment before the other. A log may occur more than once. `placed` (may be NULL) has room for `count` positions, in
 * the same order. The batches are appended at most once: while it is certain that they were not appended, the call is
 * repeated; an attempt without an outcome is not. Then wait some seconds, because a server can still have the request,
 * and read the ends of the logs: all batches are there, or none.
 * Ownership: all borrowed; a batch can be appended again. Any thread, many at once. Blocks for up to timeout_ms or
 * attempt_timeout_ms of the first client, whichever is longer; not in a callback on a client's thread.
 * Errors: UNAVAILABLE, TIMEOUT: it is unknown whether the batches were appended. INVALID_ARGUMENT: the logs are of different
 * groups (see `beside` of chiplog_client_create_log), one is no named log, a batch belongs to a session, or in a callback; TOO_LARGE:
 * too many, or more than one log or a block takes; NOT_FOUND, SEALED: one of the logs takes no appends; NOT_LEADER: no leader of the
 * group answered in time; BUSY, FULL; UNSUPPORTED: the leader runs an earlier version; CLOSED, FORKED,
 * UNAUTHENTICATED, PERMISSION_DENIED: nothing was appended to any of them.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_append_together(const chiplog_client_append_t *appends,
                                                size_t count,
                                                chiplog_appended_t *placed,
                                                chiplog_error_t **error);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_reader_options_t).
 * Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
 */
void chiplog_reader_options_init(chiplog_reader_options_t *options,
                                 size_t size);

/**
 * Opens a reader that follows the log over the network from `start` on (CHIPLOG_START_...; `value`: its number, else
 * 0). It connects at the first read and switches to another server when one fails. `options` may be NULL for the
 * defaults.
 * Ownership: `client`, `options` borrowed for the call; the caller owns `*reader` and must close it; it may outlive the client.
 * Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_reader(const chiplog_client_t *client,
                                       uint32_t start,
                                       uint64_t value,
                                       const chiplog_reader_options_t *options,
                                       chiplog_reader_t **reader,
                                       chiplog_error_t **error);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_producer_options_t).
 * Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
 */
void chiplog_producer_options_init(chiplog_producer_options_t *options,
                                   size_t size);

/**
 * Buffers a record, which is copied. Waits for space for up to block_max_ms. chiplog_producer_flush reports whether
 * the record got into the log.
 * Ownership: borrowed. Any thread, many at once.
 * Errors: BUSY: no space in time; TOO_LARGE; CLOSED; the error that ended the producer; FORKED. The record was not
 * accepted.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_send(chiplog_producer_t *producer,
                                       const void *data,
                                       size_t length,
                                       chiplog_error_t **error);

/**
 * As chiplog_producer_send, but never waits: callbacks may call it.
 * Ownership and threads as chiplog_producer_send. Never blocks. Errors: the same; BUSY if there is no space.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_try_send(chiplog_producer_t *producer,
                                           const void *data,
                                           size_t length,
                                           chiplog_error_t **error);

/**
 * As chiplog_producer_send, and calls `callback` once, on the client's thread, with the record's position, or with an
 * error. SEQUENCE_FORGOTTEN means that the record IS IN THE LOG; TIMEOUT and CLOSED mean that it may be.
 * Ownership: `data` borrowed for the call, `context` until the callback was called. Any thread, many at once.
 * Errors: as chiplog_producer_send; `callback` is not called then.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_send_with(chiplog_producer_t *producer,
                                            const void *data,
                                            size_t length,
                                            chiplog_outcome_fn callback,
                                            void *context,
                                            chiplog_error_t **error);

/**
 * Appends a record and blocks until it is in the log. `*index` (may be NULL) is its index. To learn how
 * durable it is, wait for a ticket of chiplog_producer_submit instead.
 * Ownership: borrowed. Any thread, many at once. Blocks.
 * Errors: those of chiplog_producer_send, and of the delivery: SEQUENCE_FORGOTTEN: the record IS IN THE LOG;
 * TIMEOUT, CLOSED: it may be; FULL, BUSY, TOO_MANY_SESSIONS: it is not.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_append(chiplog_producer_t *producer,
                                         const void *data,
                                         size_t length,
                                         uint64_t *index,
                                         chiplog_error_t **error);

/**
 * As chiplog_producer_send, and returns a ticket for the record's outcome.
 * Ownership: `data` borrowed for the call; the caller owns `*ticket` and must close it. Any thread, many at once.
 * Errors: as chiplog_producer_send; the ticket's errors are those of chiplog_producer_append.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_submit(chiplog_producer_t *producer,
                                         const void *data,
                                         size_t length,
                                         chiplog_ticket_t **ticket,
                                         chiplog_error_t **error);

/**
 * As chiplog_producer_submit, but never waits.
 * Ownership and threads as chiplog_producer_submit. Never blocks. Errors: the same; BUSY if there is no space.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_try_submit(chiplog_producer_t *producer,
                                             const void *data,
                                             size_t length,
                                             chiplog_ticket_t **ticket,
                                             chiplog_error_t **error);

/**
 * Buffers `count` records as a batch of their own, each copied from the caller's memory. Either all of them are in
 * the log, at consecutive indexes, or none. Calls `callback` once with their position, as
 * chiplog_producer_send_with does.
 * Ownership: records borrowed for the call, `context` until the callback was called. Any thread, many at once. Waits
 * for space. Errors: as chiplog_producer_send_with; INVALID_ARGUMENT: no records.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_send_batch(chiplog_producer_t *producer,
                                             const chiplog_slice_t *records,
                                             size_t count,
                                             chiplog_outcome_fn callback,
                                             void *context,
                                             chiplog_error_t **error);

/**
 * Returns the bytes of records that were sent and have no outcome yet; 0 if `producer` is not an open producer.
 * Ownership: borrowed. Any thread. Never blocks.
 */
size_t chiplog_producer_buffered_bytes(const chiplog_producer_t *producer);

/**
 * Sends lingering batches at once, and blocks until all records sent before the call have an outcome.
 * Ownership: borrowed. Any thread. Blocks for up to `timeout_ms`.
 * Errors: TIMEOUT: the producer continues to send them; else the reason why a record failed since the last flush.
 * FORKED, CLOSED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_flush(chiplog_producer_t *producer,
                                        uint64_t timeout_ms,
                                        chiplog_error_t **error);

/**
 * Accepts no more records, waits up to `timeout_ms` until all have an outcome, and ends the session. Then calls
 * `callback` (may be NULL) on this thread with each record that was not acknowledged. `*left` (may be NULL) is their
 * number. A second call returns the same. The handle must still be closed.
 * Ownership: borrowed. Any thread. Blocks.
 * Errors: the reason why records failed since the last flush, these or earlier ones; TIMEOUT: records are left and
 * none has failed.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_end(chiplog_producer_t *producer,
                                      uint64_t timeout_ms,
                                      chiplog_left_fn callback,
                                      void *context,
                                      uint64_t *left,
                                      chiplog_error_t **error);

/**
 * Closes a producer. Returns the number of records without an outcome, plus those that failed without a report by a
 * ticket that was read, a callback, chiplog_producer_flush or chiplog_producer_end. Returns 0 if `producer` is not
 * an open producer, or is the parent's in a forked child.
 * Records without an outcome continue to be sent while the client, or one of its readers or watches, is open. If
 * they have no callback or ticket, their outcome is not reported. To wait for them, and to learn which are left,
 * call chiplog_producer_end first.
 * Closing the last handle of the client drops them. The end of the process also drops them, whether by exit(), a
 * return from main or a signal, because the library does not register with atexit(). A program that needs its
 * records in the log calls chiplog_producer_end or chiplog_producer_flush before it ends. That includes an end by a
 * signal: call it in the loop that the signal handler stops, not in the handler.
 * Ownership: takes `producer`. Any thread. Does not block for long; see chiplog_client_close.
 */
uint64_t chiplog_producer_close(chiplog_producer_t *producer);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_follower_options_t).
 * Ownership: the caller owns `options`, which has `size` bytes. Does nothing if it is NULL. Any thread. Never blocks.
 */
void chiplog_follower_options_init(chiplog_follower_options_t *options,
                                   size_t size);

/**
 * Opens the copy in `directory`, or creates one there. `servers`: `count` addresses, `host:port`; one that runs is
 * enough. A new copy begins at `start` (CHIPLOG_START_...; `value`: its number, else 0), with the block that holds
 * that record. `options` may be NULL for the defaults.
 * Ownership: all borrowed for the call; the caller owns `*follower` and must close it. Any thread. An existing copy
 * is opened without a server. A new copy needs one: the call blocks for up to open_timeout_ms.
 * Errors: INVALID_ARGUMENT, LOCKED, CORRUPT, UNSUPPORTED, IO; for a new copy also DISCARDED, OUT_OF_RANGE,
 * UNAVAILABLE, TIMEOUT, and errors of the servers.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_open(const char *directory,
                                       const char *const *servers,
                                       size_t count,
                                       uint32_t start,
                                       uint64_t value,
                                       const chiplog_follower_options_t *options,
                                       chiplog_follower_t **follower,
                                       chiplog_error_t **error);

/**
 * Returns the copy as a log, for reading and for its state. Appends and commands fail with NOT_LEADER. Closing the
 * log does not change the follower.
 * Ownership: `follower` borrowed; the caller owns `*log` and must close it. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_log(const chiplog_follower_t *follower,
                                      chiplog_log_t **log,
                                      chiplog_error_t **error);

/**
 * Opens a reader of the copy. It contacts no server. At the end of the copy it waits for new records; it returns
 * CLOSED once the follower was closed or ended by itself. At a jump it returns DISCARDED: open a new reader at
 * CHIPLOG_START_FIRST.
 * Ownership: `follower` borrowed; the caller owns `*reader` and must close it. Any thread. Blocks for the disk.
 * Errors: as chiplog_log_reader.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_reader(const chiplog_follower_t *follower,
                                         uint32_t start,
                                         uint64_t value,
                                         chiplog_reader_t **reader,
                                         chiplog_error_t **error);

/**
 * Blocks until record `index` is here, or is known to be discarded.
 * Ownership: borrowed. Any thread. Blocks for up to `timeout_ms`.
 * Errors: TIMEOUT, CLOSED, FORKED; the reason why the follower ended by itself.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_wait_for(const chiplog_follower_t *follower,
                                           uint64_t index,
                                           uint64_t timeout_ms,
                                           chiplog_error_t **error);

/**
 * Returns the state. Set `status->size` first. `*cause` (may be NULL) is the reason why the follower ended by
 * itself, or else the last failure, or NULL if there is neither.
 * Ownership: `follower` borrowed; the caller owns `status`; the caller owns `*cause` and must close it. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_status(const chiplog_follower_t *follower,
                                         chiplog_follower_status_t *status,
                                         chiplog_error_t **cause,
                                         chiplog_error_t **error);

/**
 * Returns the events since the last call, one at a time. Waits up to `timeout_ms` for one. Each event is returned to
 * one caller only. Up to 1,024 events wait to be taken; beyond that the oldest are dropped. Set `event->size` first.
 * `*cause` (may be NULL) is set as the kinds describe, else to NULL.
 * Ownership: `follower` borrowed; the caller owns `event`; the caller owns `*cause` and must close it. Any thread. Blocks.
 * Errors: TIMEOUT: there is no event; CLOSED: there will be no more; INVALID_ARGUMENT, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_next_event(chiplog_follower_t *follower,
                                             uint64_t timeout_ms,
                                             chiplog_event_t *event,
                                             chiplog_error_t **cause,
                                             chiplog_error_t **error);

/**
 * Calls `callback` once, when there is an event to take or there will be no more. If that is so already, the
 * callback runs at once on this thread, else on the follower's thread. A follower has one callback: a new callback,
 * or a descriptor, replaces the last. A descriptor that was handed out stays open, but does not change until
 * chiplog_follower_descriptor is called again.
 * Ownership: `context` is borrowed until the callback was called or replaced, or the follower has ended. Any thread.
 * Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_on_event(chiplog_follower_t *follower,
                                           chiplog_notify_fn callback,
                                           void *context,
                                           chiplog_error_t **error);

/**
 * Returns a descriptor that is readable (poll, epoll, select) while there may be an event. When it is readable, take
 * events with a time-out of 0 until TIMEOUT, then wait for it again. It stays readable when there will be no more
 * events.
 * Ownership: the follower owns `*descriptor`, which is the same each time: do not read from it or close it; it is
 * closed with the follower. Any thread. Never blocks. Errors: IO, INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_descriptor(chiplog_follower_t *follower,
                                             int32_t *descriptor,
                                             chiplog_error_t **error);

/**
 * Stops following, makes the received records durable, unlocks the directory, and closes the handle, whatever the
 * status. Does not wait for a server. Readers continue to the end of the copy.
 * Ownership: takes `follower`; NULL: CHIPLOG_OK. Any thread. Blocks for the disk.
 * Errors: POISONED: an earlier write failed; CLOSED: it is already closed; FORKED.
 */
chiplog_status_t chiplog_follower_close(chiplog_follower_t *follower,
                                        chiplog_error_t **error);

/**
 * Returns an option of the log, as its leader knows it. `*is_set` is 1 and `*value` its value; or `*is_set` and `*value`
 * are 0: the option is not set, and the leader's own applies. `name` is as in chiplog_log_option_t. `value` and `is_set`
 * may be NULL.
 * Ownership: all borrowed for the call. Any thread. Blocks for up to the client's timeout_ms.
 * Errors: as chiplog_client_info; INVALID_ARGUMENT: an unknown name; UNSUPPORTED: the log has an option that this library
 * does not know; PERMISSION_DENIED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_log_option(const chiplog_client_t *client,
                                           const char *name,
                                           uint64_t *value,
                                           uint8_t *is_set,
                                           chiplog_error_t **error);

/**
 * Sets or unsets options of the log: all changes at once, or none. Options that are not named do not change. Waits until
 * the change is committed: from then on each leader uses it. A limit of retention below what the log holds discards records
 * at once, for good. `timeout_ms`, 1 to 600,000: how long the leader waits for members that have not yet confirmed that
 * they support options of the log. A named log has some options of its own, see chiplog_log_option_t; the others are set
 * by a client of its group, whose option `log` is "_group-1" and so on.
 * Ownership: all borrowed for the call. Any thread. Blocks for up to `timeout_ms` and 5 s, or for the client's timeout_ms if
 * that is longer.
 * Errors: INVALID_ARGUMENT: an option, its value or its bounds; UNSUPPORTED: a member runs an earlier version; NOT_FOUND:
 * the log was deleted; PERMISSION_DENIED; as chiplog_client_info. After TIMEOUT and UNAVAILABLE the change may or may not
 * take effect. Repeating the call does no harm.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_set_log_options(const chiplog_client_t *client,
                                                const chiplog_log_option_t *changes,
                                                size_t count,
                                                uint64_t timeout_ms,
                                                chiplog_error_t **error);

/**
 * Connects to another log of the same servers, with the same options; "" is the log "default". Such clients share one
 * thread, one connection to each server for calls, and those for appends. A reader has one of its own. A producer that
 * shares a connection ends its stream when it was idle for a second, and opens another one for its next record, which
 * takes a round trip more.
 * Ownership: `client`, `name` borrowed for the call; the caller owns `*of_log` and must close it; the clients can be
 * closed in any order. Any thread. Blocks for up to the client's timeout_ms.
 * Errors: as chiplog_client_connect.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_of_log(const chiplog_client_t *client,
                                       const char *name,
                                       chiplog_client_t **of_log,
                                       chiplog_error_t **error);

/**
 * Creates a named log, and returns once it can be appended to. chiplog_client_of_log then connects to it. A name is 1
 * to 249 of the characters `A-Z a-z 0-9 . _ -`, does not begin with `_`, and can end with `/` and a partition's number.
 * `beside`: the name of a log in whose group it is created; NULL: the group with the fewest logs.
 * Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms.
 * Errors: as chiplog_client_info; ALREADY_EXISTS, also if the answer to a first attempt was lost; INVALID_ARGUMENT (the
 * name); NOT_FOUND (`beside`); FULL; UNSUPPORTED: the servers keep no named logs; PERMISSION_DENIED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_create_log(const chiplog_client_t *client,
                                           const char *name,
                                           const char *beside,
                                           chiplog_error_t **error);

/**
 * Deletes a named log with all its records. Its producers and readers get NOT_FOUND.
 * Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms.
 * Errors: NOT_FOUND, also if the answer to a first attempt was lost; otherwise as chiplog_client_create_log.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_delete_log(const chiplog_client_t *client,
                                           const char *name,
                                           chiplog_error_t **error);

/**
 * Seals a named log: it takes no more appends, its records stay. Repeating the call does no harm.
 * Ownership: borrowed. Any thread. Blocks for up to the client's timeout_ms.
 * Errors: NOT_FOUND; otherwise as chiplog_client_create_log.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_seal_log(const chiplog_client_t *client,
                                         const char *name,
                                         chiplog_error_t **error);

/**
 * Calls `callback` on this thread with each named log of the servers whose name begins with `prefix`, by name; NULL: all.
 * The state is as the leader of the catalogue knows it. The list is complete before the first call. The callback may call
 * any function.
 * Ownership: all borrowed for the call. Any thread. Blocks for up to the client's timeout_ms for each 1,000 logs, and
 * while the callback runs.
 * Errors: as chiplog_client_create_log; `callback` is not called then.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_list_logs(const chiplog_client_t *client,
                                          const char *prefix,
                                          chiplog_log_info_fn callback,
                                          void *context,
                                          chiplog_error_t **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CHIPLOG_H */
