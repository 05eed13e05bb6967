/*
 * chiplog.h: a durable log in a directory, the same log over the network, and a copy of it in the program.
 *
 * Made from the sources by cbindgen: not to be changed by hand.
 *
 * THREADS
 *   Every function may be called from any thread. A log, a client, a producer, a follower, a read_only, a batch, records, a
 *   ticket and an error may be used by many threads at once. A reader, a session, a builder and a watch are used by one
 *   thread at a time: a second one waits until the first call is over. What a function says of threads comes on top.
 *   A call that waits with a reader on one thread is ended from another one by chiplog_reader_cancel.
 *   Callbacks run where the function says that takes them: on a thread of the log's, or the client's. There they must not
 *   block, wait for the same log or client, or throw; a callback that does blocks everybody, or itself for ever; what can be
 *   recognised is refused as CHIPLOG_INVALID_ARGUMENT.
 *   The callback of chiplog_trace, to which chiplog tells what it notices on its own, can run on any thread.
 *   chiplog's own threads have all signals blocked. It sets no signal handler, reads no environment variable (except for
 *   one that tokio, on which clients and followers run, looks for: TOKIO_UNSTABLE_SHARDED_BLOCKING_QUEUE), writes to no
 *   standard stream, and ends no process. SIGPIPE does not come of it.
 *
 * LIFETIMES
 *   A handle (chiplog_..._t *) is a name, not an address: one that was closed, is NULL or of another type is told from an
 *   open one, and is CHIPLOG_CLOSED or CHIPLOG_INVALID_ARGUMENT. Closing a handle in one thread while another one uses it is
 *   allowed: what stands behind it goes away when the last call is over. Closing NULL, or again, does nothing.
 *   "Borrowed" means: the caller keeps it, and chiplog is done with it when the call returns, or when the text says.
 *   "The caller's, to be closed": the function with _close in its name gives it back.
 *   Bytes that were read (chiplog_record_t) lie in mapped files or buffers that the records hold: they are valid until
 *   chiplog_records_close, whatever else is closed, and not a moment longer.
 *   Handles that are left open at the end of a program do no harm, but what was not durable yet is lost. Nothing is sent or
 *   written at exit: the library registers nothing with atexit(). Close logs and followers, and end producers with
 *   chiplog_producer_end, before the program ends.
 *
 * ERRORS
 *   Functions that can fail return chiplog_status_t: CHIPLOG_OK, which is 0, or the number of a kind. Where `error` is not
 *   NULL, `*error` is set: to NULL, or to an error, which is the caller's, to be closed. A place that a result goes to is
 *   written only on success, except for handles, which are set to NULL first.
 *   CHIPLOG_POISONED, CHIPLOG_UNAVAILABLE and CHIPLOG_TIMEOUT of an append leave it open whether it is in the log, or will
 *   be; over the network CHIPLOG_CLOSED does too. In a session it can be sent again under its number.
 *
 * FORK
 *   A handle belongs to the process that made it. In a forked child every call with it is CHIPLOG_FORKED, and closing it
 *   there touches nothing of the parent's; records that were read stay readable. The child may open what it likes again.
 *
 * STRUCTS THAT GROW
 *   A struct that begins with `size` may be longer in a later version. Options are filled by their init function; of what is
 *   handed out, set `size` to the size of the struct before the call. Both ways round, old programs and new libraries fit.
 *
 * TIMES are in milliseconds; CHIPLOG_FOREVER as a time-out is as long as it takes. Texts are UTF-8; paths are any bytes.
 */

#ifndef CHIPLOG_H
#define CHIPLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** The version of this header: to be held against chiplog_version(), the library's. */
#define CHIPLOG_VERSION "0.1.0"
#define CHIPLOG_VERSION_MAJOR 0
#define CHIPLOG_VERSION_MINOR 1
#define CHIPLOG_VERSION_PATCH 0

/** As a time-out: as long as it takes. */
#define CHIPLOG_FOREVER UINT64_MAX

/** Before a function whose status has to be looked at: gcc and clang warn where it is not. A program that defines it
 * before it includes this header, as nothing, hears no such warning. */
#ifndef CHIPLOG_MUST_USE
#if defined(__GNUC__) || defined(__clang__)
#define CHIPLOG_MUST_USE __attribute__((warn_unused_result))
#else
#define CHIPLOG_MUST_USE
#endif
#endif

/**
 * It worked.
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
 * A write or a sync failed earlier: the log takes nothing more until it is opened again. Appends that were under way have
 * an unknown outcome. Also, with a message that says so, a bug of chiplog itself.
 */
#define CHIPLOG_POISONED 3

/**
 * The configured capacity is used up, or the disk is. Nothing was written.
 */
#define CHIPLOG_FULL 4

/**
 * The queue of waiting appends stayed at its limit for as long as the caller would wait.
 */
#define CHIPLOG_BUSY 5

/**
 * The time-out passed. A submitted append may still become durable. Of a reader: nothing to read yet.
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
 * There is no log at this place.
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
 * The record IS IN THE LOG, once, and durable; only where it stands is forgotten. Go on with the next number.
 */
#define CHIPLOG_SEQUENCE_FORGOTTEN 18

/**
 * As many sessions are open as the log allows.
 */
#define CHIPLOG_TOO_MANY_SESSIONS 19

/**
 * This replica is not the leader, or this log follows another one.
 */
#define CHIPLOG_NOT_LEADER 20

/**
 * No answer could be had from a majority, or from a server, in time.
 */
#define CHIPLOG_UNAVAILABLE 21

/**
 * This replica was removed from the cluster.
 */
#define CHIPLOG_REMOVED 22

/**
 * A change of membership that cannot be made.
 */
#define CHIPLOG_MEMBERSHIP 23

/**
 * Two logs are not the same: of what was sent nothing was taken.
 */
#define CHIPLOG_DIVERGED 24

/**
 * The server wants a token and got none, or one that it does not know.
 */
#define CHIPLOG_UNAUTHENTICATED 25

/**
 * The token's role does not allow this call.
 */
#define CHIPLOG_PERMISSION_DENIED 26

/**
 * A batch in the log is as it was appended, and does not unpack: no damage. chiplog_reader_skip_batch goes on behind it.
 */
#define CHIPLOG_UNDECODABLE 27

/**
 * chiplog_reader_cancel ended the call. Nothing was read, and nothing is lost.
 */
#define CHIPLOG_CANCELLED 28

/**
 * Something failed, and somebody has to look.
 */
#define CHIPLOG_SEVERITY_ERROR 1

/**
 * Something is not as it should be, and chiplog goes on.
 */
#define CHIPLOG_SEVERITY_WARN 2

/**
 * Something changed, such as the leader.
 */
#define CHIPLOG_SEVERITY_INFO 3

/**
 * What helps to find out why.
 */
#define CHIPLOG_SEVERITY_DEBUG 4

/**
 * Every step.
 */
#define CHIPLOG_SEVERITY_TRACE 5

/**
 * Where a reader begins: at the first record that is not discarded. The value has to be 0.
 */
#define CHIPLOG_START_FIRST 0

/**
 * At the next record to come. The value has to be 0.
 */
#define CHIPLOG_START_NEXT 1

/**
 * At the record whose index is the value; it may be the next one to come.
 */
#define CHIPLOG_START_INDEX 2

/**
 * So many records before the end as the value says; at the first one, if there are not so many.
 */
#define CHIPLOG_START_LAST 3

/**
 * At the first record that was written at this time or later: milliseconds since 1970.
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
 * Read from any replica: what was acknowledged is there a moment later.
 */
#define CHIPLOG_READ_FROM_ANY 0

/**
 * Read from the leader: what was acknowledged is there at once.
 */
#define CHIPLOG_READ_FROM_LEADER 1

/**
 * Read from a replica of the zone, if one answers; else from any.
 */
#define CHIPLOG_READ_FROM_NEAREST 2

/**
 * A server sends what it has; the first one since the follower was opened: `server`.
 */
#define CHIPLOG_EVENT_CONNECTED 1

/**
 * Another server than before sends what it has: `before`, `server`.
 */
#define CHIPLOG_EVENT_SWITCHED 2

/**
 * Records are missing here: all servers had discarded what came next. Start over: record `from` was due, `to` comes instead.
 */
#define CHIPLOG_EVENT_JUMPED 3

/**
 * Records below `to` were discarded.
 */
#define CHIPLOG_EVENT_DISCARDED 4

/**
 * What came from `server` was cut off, or, where that is empty, no server could be had: `cause`. It goes on trying.
 */
#define CHIPLOG_EVENT_FAILED 5

/**
 * It has ended by itself, and this is the last event: `cause`.
 */
#define CHIPLOG_EVENT_STOPPED 6

/**
 * `to` events were not taken in time, and are gone.
 */
#define CHIPLOG_EVENT_MISSED 7

/**
 * One or more records, encoded and checksummed: the unit of appending. Immutable: any thread may use it, many at once,
 * and it can be appended any number of times.
 */
typedef struct chiplog_batch_t chiplog_batch_t;

/**
 * A batch that is being built. Any thread may use it, one call at a time: others wait.
 */
typedef struct chiplog_builder_t chiplog_builder_t;

/**
 * A log over the network. Any thread may use it, many at once. It has a thread of its own, on which callbacks run: in
 * them only what never waits is allowed. In a forked child every call is CHIPLOG_FORKED.
 */
typedef struct chiplog_client_t chiplog_client_t;

/**
 * An error: what went wrong, where, and what to do. Owned by the caller it was given to; immutable; any thread may use
 * it, several at once.
 */
typedef struct chiplog_error_t chiplog_error_t;

/**
 * A copy of a log in this process, kept up to date from any server of its cluster. It does not vote and nobody has to
 * know it. Any thread may use it, many at once. It has threads of its own. In a forked child every call is
 * CHIPLOG_FORKED.
 */
typedef struct chiplog_follower_t chiplog_follower_t;

/**
 * A durable log in a directory. Any thread may use it, many at once. Closed by chiplog_log_close. In a forked child
 * every call is CHIPLOG_FORKED.
 */
typedef struct chiplog_log_t chiplog_log_t;

/**
 * Appends records over the network: gathers them into batches, keeps several under way, sends again what a failure left
 * open. Records given one after the other are in the log in that order. Any thread may use it, many at once. In a
 * forked child every call is CHIPLOG_FORKED.
 */
typedef struct chiplog_producer_t chiplog_producer_t;

/**
 * A log read-only, also while another process writes it. Takes no lock and changes nothing. Any thread may use it, many
 * at once.
 */
typedef struct chiplog_read_only_log_t chiplog_read_only_log_t;

/**
 * Reads records in order, each checked. One thread at a time: others wait meanwhile. It may outlive its log.
 */
typedef struct chiplog_reader_t chiplog_reader_t;

/**
 * Records that were read: views into the log's files, without a copy where a batch is not compressed. They hold the
 * files that they are in, also when those are discarded or the log is closed. Immutable: any thread may use them, many
 * at once.
 */
typedef struct chiplog_records_t chiplog_records_t;

/**
 * Appends that happen once each, in order, however often they are tried. Its id and the number of the next append are
 * all that has to be remembered over a crash: see chiplog_log_resume_session. One thread at a time, which is what keeps
 * the order: others wait meanwhile.
 */
typedef struct chiplog_session_t chiplog_session_t;

/**
 * An append or a command that is under way. Any thread may use it, many at once. Closing it does not take the append
 * back: nothing does.
 */
typedef struct chiplog_ticket_t chiplog_ticket_t;

/**
 * Tells how a log stands, whenever that changes. One thread at a time: others wait meanwhile.
 */
typedef struct chiplog_watch_t chiplog_watch_t;

/**
 * What a call came to: 0 (CHIPLOG_OK), or the number of an error's kind. The numbers are the same in Rust and Python and
 * never change; later versions may have more of them.
 */
typedef int32_t chiplog_status_t;

/**
 * Called with each notice. `severity`: CHIPLOG_SEVERITY_...; `target`: the part of chiplog that noticed it; `text`: what,
 * on the whole one line, UTF-8. Both texts are for people and end with the call. It runs on any thread, several at once,
 * also on the program's own in the middle of a call, and with locks held that other calls need: it must not block, throw,
 * or call a function that can fail, each of which is CHIPLOG_INVALID_ARGUMENT there. It should write a line to a file or a
 * queue, and no more.
 */
typedef void (*chiplog_trace_fn)(void *context,
                                 uint32_t severity,
                                 const char *target,
                                 const char *text);

/**
 * Gives the time in milliseconds since 1970. Called on chiplog's threads, and several may call at once; it must not throw
 * nor block.
 */
typedef uint64_t (*chiplog_clock_fn)(void *context);

/**
 * How a log is opened. Fill it with chiplog_log_options_init, then change what is to be different. Limits are checked when
 * the log is opened; the error names the one that is out of bounds. Options are not stored in the log.
 */
typedef struct {
  /**
   * sizeof(chiplog_log_options_t), as the caller knows it.
   */
  size_t size;
  /**
   * Make a new log when the directory holds none: 1 or 0. Default 1. The directory is made if it is missing, and so are
   * those above it.
   */
  uint8_t create;
  /**
   * Read by pread into buffers instead of through mappings: 1 or 0. Default 0. With mappings the process gets SIGBUS when
   * the device cannot read a page, or another program shortens a file.
   */
  uint8_t read_by_copy;
  /**
   * How many of a session's latest batches the log remembers the indexes of: 1 to 1,024, default 128.
   */
  uint16_t session_window;
  /**
   * Size of a segment file: 64 KiB to 1 GiB, default 64 MiB. A log takes at least three of them on disk. Below 40 MiB
   * other limits have to go down with it: chiplog_log_options_for_segments fills options that fit.
   */
  uint32_t segment_bytes;
  /**
   * The largest record, default 16 MiB.
   */
  uint32_t record_bytes_max;
  /**
   * The largest encoded batch, default 32 MiB. Must fit a segment, of which an eighth goes to other things.
   */
  uint32_t batch_bytes_max;
  /**
   * How much one block gathers, default 4 MiB.
   */
  uint32_t block_bytes_max;
  /**
   * How far a sequential reader reads ahead, default 8 MiB; 0 leaves it to the kernel.
   */
  uint32_t prefetch_bytes;
  /**
   * The most exactly-once sessions open at a time, default 4,096.
   */
  uint32_t sessions_max;
  /**
   * Not used; 0.
   */
  uint32_t reserved;
  /**
   * The most bytes of retained blocks: beyond it appends are CHIPLOG_FULL. 0, the default: until the disk is full.
   */
  uint64_t capacity_bytes;
  /**
   * Keep at most about this many bytes: whole segments are discarded from the front. 0, the default: keep all.
   */
  uint64_t retention_bytes;
  /**
   * Discard segments whose newest record is older than this. 0, the default: keep all.
   */
  uint64_t retention_age_ms;
  /**
   * Bytes that may wait for the writer, default 64 MiB; beyond it appends wait.
   */
  uint64_t queue_bytes_max;
  /**
   * Appends that may wait for the writer, default 65,536; beyond it appends wait.
   */
  uint64_t queue_appends_max;
  /**
   * How long an append waits for room in the queue before it fails as CHIPLOG_BUSY. Default 60 s.
   */
  uint64_t queue_timeout_ms;
  /**
   * A session that sends nothing for so long expires. Default 24 h.
   */
  uint64_t session_idle_max_ms;
  /**
   * Where timestamps come from; NULL, the default: the machine's clock.
   */
  chiplog_clock_fn clock;
  /**
   * Handed to `clock`. Borrowed until the log is closed.
   */
  void *clock_context;
} chiplog_log_options_t;

/**
 * Where records stand in the log.
 */
typedef struct {
  /**
   * Index of the first record. Of a command's answer: the answer.
   */
  uint64_t first;
  /**
   * How many records: at least 1. They follow each other without a gap.
   */
  uint64_t count;
} chiplog_appended_t;

/**
 * Bytes of the caller's, as a struct iovec: one record, or a piece of one. `data` may be NULL if `length` is 0.
 */
typedef struct {
  /**
   * Where they begin.
   */
  const void *data;
  /**
   * How many.
   */
  size_t length;
} chiplog_slice_t;

/**
 * How a log stands.
 */
typedef struct {
  /**
   * sizeof(chiplog_info_t), as the caller knows it: set it first.
   */
  size_t size;
  /**
   * The first record that is not discarded; of an empty log, the first one to come.
   */
  uint64_t first;
  /**
   * The last committed record; of an empty log first - 1.
   */
  uint64_t last;
  /**
   * The last record durable here. Over the network: as `last`.
   */
  uint64_t durable;
  /**
   * Bytes from the first record on.
   */
  uint64_t bytes_used;
  /**
   * The configured limit of them; 0: none, or not known.
   */
  uint64_t bytes_capacity;
  /**
   * Segments that hold them. Over the network: 0.
   */
  uint64_t segments;
  /**
   * Exactly-once sessions that are open. Over the network: 0.
   */
  uint64_t sessions;
  /**
   * When the newest block was written: milliseconds since 1970. Over the network: 0.
   */
  uint64_t last_timestamp_ms;
  /**
   * Over the network: the replica that tells, else 0.
   */
  uint64_t node;
  /**
   * Over the network: who leads; 0: not known.
   */
  uint64_t leader;
  /**
   * The log's name for ever: 32 hexadecimal digits and a NUL; empty: not told.
   */
  char log_id[40];
  /**
   * This copy's name, likewise. Over the network: empty.
   */
  char directory_id[40];
  /**
   * Over the network: where the leader serves clients, `host:port`; empty: not known.
   */
  char leader_address[264];
  /**
   * Whether this copy follows the log from outside: 1 or 0.
   */
  uint8_t follows;
  /**
   * Not used; 0.
   */
  uint8_t reserved[7];
} chiplog_info_t;

/**
 * What a log did since it was opened, and what waits in it.
 */
typedef struct {
  /**
   * sizeof(chiplog_stats_t), as the caller knows it: set it first.
   */
  size_t size;
  /**
   * Batches taken, duplicates of sessions included.
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
   * Bytes of blocks written, headers and padding included.
   */
  uint64_t bytes;
  /**
   * Syncs that succeeded.
   */
  uint64_t syncs;
  /**
   * Time spent in them, in microseconds.
   */
  uint64_t sync_micros_total;
  /**
   * The longest of them, in microseconds.
   */
  uint64_t sync_micros_max;
  /**
   * Half of them took less, in microseconds, to the next power of two.
   */
  uint64_t sync_micros_p50;
  /**
   * 99 of 100 of them took less, likewise.
   */
  uint64_t sync_micros_p99;
  /**
   * Segments begun.
   */
  uint64_t rolls;
  /**
   * Bytes that the scrub has read and checked.
   */
  uint64_t scrubbed_bytes;
  /**
   * Places found where blocks are damaged.
   */
  uint64_t damaged;
  /**
   * Such places that were repaired.
   */
  uint64_t repaired;
  /**
   * How long the sync has run that is running now, in microseconds; none: 0.
   */
  uint64_t syncing_micros;
  /**
   * Records cut off because another leader has others in their place; none was known to be committed.
   */
  uint64_t truncated_records;
  /**
   * Records that a discard or retention has taken from the log.
   */
  uint64_t discarded_records;
} chiplog_stats_t;

/**
 * What waits in a log now.
 */
typedef struct {
  /**
   * sizeof(chiplog_backlog_t), as the caller knows it: set it first.
   */
  size_t size;
  /**
   * Appends that wait for the writer.
   */
  uint64_t queue_appends;
  /**
   * Their bytes.
   */
  uint64_t queue_bytes;
  /**
   * Bytes of appends that the writer has taken and not written yet.
   */
  uint64_t taken_bytes;
  /**
   * Bytes that were written and are not committed yet.
   */
  uint64_t uncommitted_bytes;
} chiplog_backlog_t;

/**
 * An option of the log that is to be set, or to be set no more.
 */
typedef struct {
  /**
   * Which: "retention_bytes", "retention_age" (ms), "capacity_bytes", "record_bytes_max", "sessions_max", "session_window"
   * or "session_idle_max" (ms).
   */
  const char *name;
  /**
   * Its value, in bytes, milliseconds or a count. UINT64_MAX: no limit, of the first three.
   */
  uint64_t value;
  /**
   * Whether it is to be set: 1, or 0: the log has it no more, and the leader's own holds.
   */
  uint8_t is_set;
  /**
   * Not used; 0.
   */
  uint8_t reserved[7];
} chiplog_log_option_t;

/**
 * Called once with what became of an append or a command: `status` is CHIPLOG_OK and `appended` is where it stands, or
 * `appended` is NULL and `error` says why not. Both are borrowed and end with the call. It must not throw, nor block, nor
 * wait for anything of the same log or client; see the function that takes it for the thread it runs on.
 */
typedef void (*chiplog_outcome_fn)(void *context,
                                   chiplog_status_t status,
                                   const chiplog_appended_t *appended,
                                   const chiplog_error_t *error);

/**
 * A record that was read. Its bytes are borrowed: see the function that gave it.
 */
typedef struct {
  /**
   * Its place in the log.
   */
  uint64_t index;
  /**
   * When the log took it: milliseconds since 1970.
   */
  uint64_t timestamp_ms;
  /**
   * Its bytes; never NULL.
   */
  const void *data;
  /**
   * How many.
   */
  size_t length;
} chiplog_record_t;

/**
 * Called once when there is something to be taken. It must not throw nor block: it passes the word on.
 */
typedef void (*chiplog_notify_fn)(void *context);

/**
 * A replica that belongs to a cluster.
 */
typedef struct {
  /**
   * Its number.
   */
  uint64_t node;
  /**
   * Where it is reached, NUL behind it.
   */
  char address[520];
  /**
   * Whether it votes: 1 or 0.
   */
  uint8_t is_voter;
  /**
   * Whether it is about to leave: 1 or 0.
   */
  uint8_t is_leaving;
  /**
   * Not used; 0.
   */
  uint8_t reserved[6];
  /**
   * The directory it has to come with: 32 hexadecimal digits and a NUL; all 0: not known.
   */
  char directory_id[40];
} chiplog_member_t;

/**
 * Called with each member; what it points to ends with the call. It must not throw.
 */
typedef void (*chiplog_member_fn)(void *context,
                                  const chiplog_member_t *member);

/**
 * Deadlines and limits of a client. Fill it with chiplog_client_options_init, then change what is to be different.
 */
typedef struct {
  /**
   * sizeof(chiplog_client_options_t), as the caller knows it.
   */
  size_t size;
  /**
   * Which log; NULL or empty, the default: the server's only one.
   */
  const char *log;
  /**
   * The token that is shown with every call, where servers want one; NULL, the default: none.
   */
  const char *token;
  /**
   * TLS: who has to have signed the servers' certificates, PEM. NULL, the default: no TLS.
   */
  const void *tls_authority;
  /**
   * Bytes of it.
   */
  size_t tls_authority_length;
  /**
   * This client's certificate, PEM, where servers want one; NULL: none.
   */
  const void *tls_certificate;
  /**
   * Bytes of it.
   */
  size_t tls_certificate_length;
  /**
   * Its private key, PEM.
   */
  const void *tls_key;
  /**
   * Bytes of it.
   */
  size_t tls_key_length;
  /**
   * How long a call may take with all its attempts, default 30 s.
   */
  uint64_t timeout_ms;
  /**
   * How long one attempt may take, default 10 s.
   */
  uint64_t attempt_timeout_ms;
  /**
   * How long a connection may take to come about, default 2 s.
   */
  uint64_t connect_timeout_ms;
  /**
   * How long a server is waited for when all are asked who leads, default 1 s.
   */
  uint64_t probe_timeout_ms;
  /**
   * The wait after a first failure, default 10 ms; twice as long after each further one.
   */
  uint64_t backoff_min_ms;
  /**
   * The longest such wait, default 1 s.
   */
  uint64_t backoff_max_ms;
  /**
   * After so long without a sign of the other side a connection is tested. Default 5 s.
   */
  uint64_t keep_alive_ms;
  /**
   * Bytes that a server may send ahead on a stream, default 4 MiB.
   */
  uint32_t window_bytes;
  /**
   * Whether the token may go to other machines without TLS: 1 or 0. Default 0: such a server is not asked.
   */
  uint8_t token_in_plain_text;
  /**
   * Not used; 0.
   */
  uint8_t reserved[3];
} chiplog_client_options_t;

/**
 * Where and how a reader reads over the network. Fill it with chiplog_reader_options_init.
 */
typedef struct {
  /**
   * sizeof(chiplog_reader_options_t), as the caller knows it.
   */
  size_t size;
  /**
   * CHIPLOG_READ_FROM_..., default ANY.
   */
  uint32_t from;
  /**
   * Waits at the end for what comes: 1 or 0. Default 1; 0: ends there.
   */
  uint8_t follow;
  /**
   * Not used; 0.
   */
  uint8_t reserved[3];
  /**
   * Of CHIPLOG_READ_FROM_NEAREST: which zone.
   */
  const char *zone;
  /**
   * A replica that does not have this record yet is waited for. Default 0.
   */
  uint64_t min_index;
  /**
   * How often an idle server says that it is there, default 3 s.
   */
  uint64_t keep_alive_ms;
  /**
   * How long servers are tried before an error is given, default 30 s.
   */
  uint64_t timeout_ms;
} chiplog_reader_options_t;

/**
 * Limits, deadlines and promises of a producer. Fill it with chiplog_producer_options_init.
 */
typedef struct {
  /**
   * sizeof(chiplog_producer_options_t), as the caller knows it.
   */
  size_t size;
  /**
   * How long a batch that is not full waits for more records, default 0: it goes as soon as it may.
   */
  uint64_t linger_ms;
  /**
   * A batch goes when it is so large, default 256 KiB. A larger record goes alone.
   */
  uint64_t batch_bytes;
  /**
   * Bytes of records that are not acknowledged yet, default 32 MiB; beyond it callers wait.
   */
  uint64_t buffer_bytes;
  /**
   * How long a caller waits for room before CHIPLOG_BUSY, default 60 s.
   */
  uint64_t block_max_ms;
  /**
   * With batches under way and no answer for so long, they are sent again, default 10 s.
   */
  uint64_t request_timeout_ms;
  /**
   * A record that is not acknowledged for so long fails, default 120 s.
   */
  uint64_t delivery_timeout_ms;
  /**
   * How long the log may be full before records that wait for so long fail as CHIPLOG_FULL, default 5 s.
   */
  uint64_t full_max_ms;
  /**
   * Goes on in this session instead of opening one: see chiplog_client_open_session. 0, the default: opens one. Records
   * are to be given by chiplog_producer_send_batch then; each batch takes one number.
   */
  uint64_t session;
  /**
   * The number of the first batch in that session, from 1. Default 0.
   */
  uint64_t session_next;
  /**
   * A batch goes when it has so many records, 1 to 2^20 and the default.
   */
  uint32_t batch_records;
  /**
   * How batches are compressed: CHIPLOG_CODEC_..., default NONE.
   */
  uint32_t codec;
  /**
   * Batches under way at a time, 1 to 1,024, default 32.
   */
  uint16_t inflight_max;
  /**
   * Each record is in the log once, in the order in which it was given, whatever is sent again: 1 or 0. Default 1.
   */
  uint8_t exactly_once;
  /**
   * Not used; 0.
   */
  uint8_t reserved[5];
} chiplog_producer_options_t;

/**
 * What a producer leaves behind when it ends: called with each record that was not acknowledged. `in_doubt` 1: it was sent
 * and can be in the log; 0: it surely is not. The bytes end with the call. It must not throw.
 */
typedef void (*chiplog_left_fn)(void *context,
                                const void *data,
                                size_t length,
                                uint8_t in_doubt);

/**
 * Deadlines and limits of a follower. Fill it with chiplog_follower_options_init. A time is from 1 ms to a day, else opening
 * is CHIPLOG_INVALID_ARGUMENT; but open_timeout_ms is any, and CHIPLOG_FOREVER as long as it takes.
 */
typedef struct {
  /**
   * sizeof(chiplog_follower_options_t), as the caller knows it.
   */
  size_t size;
  /**
   * Those of the copy's own files, retention included; NULL, the default: the defaults. `segment_bytes` has to be at least
   * the servers' if their blocks are that large.
   */
  const chiplog_log_options_t *files;
  /**
   * Which log; NULL or empty, the default: the servers' only one.
   */
  const char *log;
  /**
   * A server of this zone is preferred; NULL or empty, the default: no zone.
   */
  const char *zone;
  /**
   * The token that is shown to servers, where they want one; NULL, the default: none.
   */
  const char *token;
  /**
   * TLS: who has to have signed the servers' certificates, PEM. NULL, the default: no TLS.
   */
  const void *tls_authority;
  /**
   * Bytes of it.
   */
  size_t tls_authority_length;
  /**
   * This follower's certificate, PEM, where servers want one; NULL: none.
   */
  const void *tls_certificate;
  /**
   * Bytes of it.
   */
  size_t tls_certificate_length;
  /**
   * Its private key, PEM.
   */
  const void *tls_key;
  /**
   * Bytes of it.
   */
  size_t tls_key_length;
  /**
   * How long opening an empty directory waits for a server, default 30 s. One that holds a copy needs none.
   */
  uint64_t open_timeout_ms;
  /**
   * How often an idle server says that it is there, default 3 s.
   */
  uint64_t keep_alive_ms;
  /**
   * How often another server is asked how far it is, default 10 s.
   */
  uint64_t compare_interval_ms;
  /**
   * How long a connection may take to come about, default 2 s.
   */
  uint64_t connect_timeout_ms;
  /**
   * How long a server may take to begin to send, default 10 s.
   */
  uint64_t attempt_timeout_ms;
  /**
   * How long a server is waited for when it is asked about itself, default 1 s.
   */
  uint64_t probe_timeout_ms;
  /**
   * The wait after a second failure in a row, default 10 ms; twice as long after each further one.
   */
  uint64_t backoff_min_ms;
  /**
   * The longest such wait, default 2 s.
   */
  uint64_t backoff_max_ms;
  /**
   * Bytes that a server may send ahead, default 4 MiB.
   */
  uint32_t window_bytes;
  /**
   * Whether the token may go to other machines without TLS: 1 or 0. Default 0.
   */
  uint8_t token_in_plain_text;
  /**
   * Not used; 0.
   */
  uint8_t reserved[3];
} chiplog_follower_options_t;

/**
 * How a follower stands.
 */
typedef struct {
  /**
   * sizeof(chiplog_follower_status_t), as the caller knows it: set it first.
   */
  size_t size;
  /**
   * The first record here; of an empty copy, the first one to come.
   */
  uint64_t first;
  /**
   * The last record here; of an empty copy first - 1.
   */
  uint64_t last;
  /**
   * The last record that a server was known to have: source_last - last is how far it is behind.
   */
  uint64_t source_last;
  /**
   * How long the server has fed it, in milliseconds; 0 without one.
   */
  uint64_t connected_for_ms;
  /**
   * Times that a server began to send.
   */
  uint64_t connects;
  /**
   * Times that it jumped over what all servers had discarded.
   */
  uint64_t jumps;
  /**
   * Bytes of blocks that came from servers.
   */
  uint64_t received_bytes;
  /**
   * Records that came from servers.
   */
  uint64_t received_records;
  /**
   * The server that feeds it, `host:port`; empty: it looks for one.
   */
  char server[264];
  /**
   * The status of what went wrong last, and is tried again; CHIPLOG_OK: nothing did.
   */
  chiplog_status_t last_error;
  /**
   * The status of why it has ended by itself; CHIPLOG_OK: it has not.
   */
  chiplog_status_t stopped;
  /**
   * Whether that server is kept up to date itself: 1 or 0.
   */
  uint8_t fed;
  /**
   * Not used; 0.
   */
  uint8_t reserved[7];
} chiplog_follower_status_t;

/**
 * Something that happened to a follower.
 */
typedef struct {
  /**
   * sizeof(chiplog_event_t), as the caller knows it: set it first.
   */
  size_t size;
  /**
   * CHIPLOG_EVENT_..., which says what else is set. Later versions may have more: ignore what is not known.
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
 * The library's version, such as "0.1.0": to be held against CHIPLOG_VERSION, the header's.
 * Ownership: the text lives for ever. Any thread. Never blocks.
 */
const char *chiplog_version(void);

/**
 * The kind of an error: never CHIPLOG_OK. CHIPLOG_INVALID_ARGUMENT if `error` is NULL or was closed.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
chiplog_status_t chiplog_error_status(const chiplog_error_t *error);

/**
 * What went wrong, in words, UTF-8: for people, not to be compared. Never NULL; empty if `error` is NULL or was closed.
 * Ownership: `error` is borrowed; the text is borrowed from it, until it is closed. Any thread. Never blocks.
 */
const char *chiplog_error_message(const chiplog_error_t *error);

/**
 * The operating system's error number, if it was a call of its that failed; else 0.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
int32_t chiplog_error_os_error(const chiplog_error_t *error);

/**
 * Whether the same call can succeed later without anybody mending anything but room or load.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
bool chiplog_error_is_retryable(const chiplog_error_t *error);

/**
 * Whether the handle that the call was made with is of no more use for appending.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
bool chiplog_error_is_fatal(const chiplog_error_t *error);

/**
 * Of corruption: whether nobody can repair it, as far as the replica knows: the log has no other replica, or all other voters
 * have the same entries damaged. Reading again does not help. false where it is being repaired, and of every other error.
 * Ownership: `error` is borrowed. Any thread. Never blocks.
 */
bool chiplog_error_is_lasting(const chiplog_error_t *error);

/**
 * Frees an error. NULL, or one that was closed: nothing happens.
 * Ownership: takes `error`. Any thread. Never blocks.
 */
void chiplog_error_close(chiplog_error_t *error);

/**
 * A status as a word, such as "ok" or "out_of_range"; "unknown" for a number of a later version.
 * Ownership: the text lives for ever. Any thread. Never blocks.
 */
const char *chiplog_status_name(chiplog_status_t status);

/**
 * Calls `callback` from now on with what chiplog notices on its own that is as serious as `severity` or more: damage, a
 * leader that is gone, a peer that refuses. One callback for the whole process: a new one, or another severity, takes the
 * place of the last. NULL: nobody is told any more; `severity` means nothing then. Before the first call nobody is told,
 * and what is not wanted costs nothing.
 * Once this has returned, the callback before is not running and is not called any more: its context may be freed. Give
 * NULL before the library is unloaded, or the program's own log ends; before exit() it is not needed. A forked child tells
 * nobody until it calls this itself.
 * Ownership: `context` is borrowed until another call of this has returned. Any thread, at any time, but not in
 * `callback`. Blocks as long as the callback before runs, on whatever thread: hold no lock that it takes.
 * Errors: INVALID_ARGUMENT: no such severity; called in the callback; or the program, which is in Rust and has this
 * library linked in, has a subscriber of `tracing` already: it is told instead. IO.
 */
chiplog_status_t chiplog_trace(chiplog_trace_fn callback,
                               void *context,
                               uint32_t severity,
                               chiplog_error_t **error);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_log_options_t).
 * Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
 */
void chiplog_log_options_init(chiplog_log_options_t *options,
                              size_t size);

/**
 * As chiplog_log_options_init, with every limit that depends on the segments' size brought down to fit it. For small logs
 * and tests.
 * Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
 */
void chiplog_log_options_for_segments(chiplog_log_options_t *options,
                                      size_t size,
                                      uint32_t segment_bytes);

/**
 * Opens the log in `directory`, or makes one there if the options say so. `options`: NULL for the defaults.
 * Ownership: `directory`, `options`: borrowed for the call, except for the clock's context. `*log`: the caller's, to be closed.
 * Any thread. Blocks while recovery reads the last segment.
 * Errors: LOCKED, NOT_FOUND, INVALID_ARGUMENT, CORRUPT (the message names file and offset), UNSUPPORTED, IO, FULL.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_open(const char *directory,
                                  const chiplog_log_options_t *options,
                                  chiplog_log_t **log,
                                  chiplog_error_t **error);

/**
 * Ends appending, writes what was submitted, makes it durable, lets the directory go, and closes the handle, whatever the
 * status. Readers, and what they gave, live on. Of a follower's log (chiplog_follower_log) only the handle is closed.
 * Ownership: takes `log`; NULL: CHIPLOG_OK. Any thread, also while others append: theirs is settled first. Blocks for the
 * disk, except in a callback on the log's own thread: there it happens after the callback.
 * Errors: POISONED: a write or sync had failed, some appends have an unknown outcome; CLOSED: it was closed before; FORKED.
 */
chiplog_status_t chiplog_log_close(chiplog_log_t *log,
                                   chiplog_error_t **error);

/**
 * Appends one record and waits until it is durable. `*index`: where it stands; NULL: not wanted.
 * Ownership: all borrowed. Any thread, many at once: they share writes and syncs. Blocks.
 * Errors: TOO_LARGE, FULL, BUSY, CLOSED, FORKED: the record is not in the log; POISONED: unknown.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_append(chiplog_log_t *log,
                                    const void *data,
                                    size_t length,
                                    uint64_t *index,
                                    chiplog_error_t **error);

/**
 * Appends a batch and waits until it is durable: all of it or nothing. `*placed`: NULL: not wanted.
 * Ownership: all borrowed; a batch can be appended again. Any thread, many at once. Blocks.
 * Errors: as chiplog_log_append; of a batch with a session also SESSION_EXPIRED, SEQUENCE_GAP, SEQUENCE_FORGOTTEN.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_append_batch(chiplog_log_t *log,
                                          const chiplog_batch_t *batch,
                                          chiplog_appended_t *placed,
                                          chiplog_error_t **error);

/**
 * Appends `count` records, each from where it lies, as one batch, and waits until they are durable: all of them or none.
 * `*placed`: NULL: not wanted.
 * Ownership: all borrowed. Any thread, many at once. Blocks.
 * Errors: as chiplog_log_append; INVALID_ARGUMENT: no records.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_append_records(chiplog_log_t *log,
                                            const chiplog_slice_t *records,
                                            size_t count,
                                            chiplog_appended_t *placed,
                                            chiplog_error_t **error);

/**
 * Submits one record, of which a copy is made, and returns with a ticket for the outcome. Waits only while the queue is
 * full, for at most the option queue_timeout_ms.
 * Ownership: `data` borrowed for the call. `*ticket`: the caller's, to be closed. Any thread, many at once.
 * Errors: TOO_LARGE, FULL, BUSY, POISONED, CLOSED, FORKED: the record was not taken.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit(chiplog_log_t *log,
                                    const void *data,
                                    size_t length,
                                    chiplog_ticket_t **ticket,
                                    chiplog_error_t **error);

/**
 * As chiplog_log_submit, but never waits.
 * Ownership, threads: as there. Never blocks.
 * Errors: as there; BUSY when the queue is full.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_try_submit(chiplog_log_t *log,
                                        const void *data,
                                        size_t length,
                                        chiplog_ticket_t **ticket,
                                        chiplog_error_t **error);

/**
 * Submits a batch; see chiplog_log_submit.
 * Ownership: all borrowed; `*ticket`: the caller's, to be closed. Any thread, many at once.
 * Errors: as chiplog_log_submit.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit_batch(chiplog_log_t *log,
                                          const chiplog_batch_t *batch,
                                          chiplog_ticket_t **ticket,
                                          chiplog_error_t **error);

/**
 * As chiplog_log_submit_batch, but never waits.
 * Ownership, threads: as there. Never blocks.
 * Errors: as there; BUSY when the queue is full.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_try_submit_batch(chiplog_log_t *log,
                                              const chiplog_batch_t *batch,
                                              chiplog_ticket_t **ticket,
                                              chiplog_error_t **error);

/**
 * Submits `count` records, each from where it lies, as one batch; see chiplog_log_submit.
 * Ownership: all borrowed for the call; `*ticket`: the caller's, to be closed. Any thread, many at once.
 * Errors: as chiplog_log_submit; INVALID_ARGUMENT: no records.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit_records(chiplog_log_t *log,
                                            const chiplog_slice_t *records,
                                            size_t count,
                                            chiplog_ticket_t **ticket,
                                            chiplog_error_t **error);

/**
 * Whether the capacity has room for an append of so many bytes now, besides all that waits.
 * Ownership: borrowed. Any thread. Never blocks. Errors: FULL: it has not; POISONED, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_check_room(const chiplog_log_t *log,
                                        size_t bytes,
                                        chiplog_error_t **error);

/**
 * A reader of committed records that begins at `start` (CHIPLOG_START_...; `value`: its number, else 0).
 * Ownership: `log` borrowed for the call. `*reader`: the caller's, to be closed; it may outlive the log. Any thread.
 * Blocks for the disk. Errors: DISCARDED, OUT_OF_RANGE, INVALID_ARGUMENT, IO, CORRUPT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_reader(const chiplog_log_t *log,
                                    uint32_t start,
                                    uint64_t value,
                                    chiplog_reader_t **reader,
                                    chiplog_error_t **error);

/**
 * One committed record, by its index: `*records` holds just that one.
 * Ownership: `log` borrowed. `*records`: the caller's, to be closed; it may outlive the log. Any thread, many at once.
 * Blocks for the disk. Errors: DISCARDED, OUT_OF_RANGE, CORRUPT, IO, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_read(const chiplog_log_t *log,
                                  uint64_t index,
                                  chiplog_records_t **records,
                                  chiplog_error_t **error);

/**
 * Somebody has found the bytes of record `index` to be damaged in this directory. A replica of a cluster looks at its segment
 * at once, and repairs what it finds with what other replicas have; where there is none, it is counted and logged. Reads
 * report what they meet by themselves. A report of what is sound only costs a look.
 * Ownership: borrowed. Any thread. Blocks for the disk, not for the repair. Errors: DISCARDED, OUT_OF_RANGE, UNAVAILABLE,
 * CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_report_damage(const chiplog_log_t *log,
                                           uint64_t index,
                                           chiplog_error_t **error);

/**
 * Discards all records below `first`, durably; their space is used again. At or below the first index nothing happens;
 * beyond the end the log is empty afterwards and goes on at `first`. Readers keep what they hold.
 * Ownership: borrowed. Any thread. Blocks. Errors: POISONED, CLOSED, FORKED, INVALID_ARGUMENT; NOT_LEADER of a follower's.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_discard(chiplog_log_t *log,
                                     uint64_t first,
                                     chiplog_error_t **error);

/**
 * As chiplog_log_discard, and returns at once with a ticket; its answer means nothing more.
 * Ownership: borrowed; `*ticket`: the caller's, to be closed. Any thread. Never blocks for long. Errors: as there.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit_discard(chiplog_log_t *log,
                                            uint64_t first,
                                            chiplog_ticket_t **ticket,
                                            chiplog_error_t **error);

/**
 * The options that the log was opened with, except for the clock. `options->size` has to be set.
 * Ownership: `log` borrowed; `options` the caller's. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_options(const chiplog_log_t *log,
                                     chiplog_log_options_t *options,
                                     chiplog_error_t **error);

/**
 * How the log stands now. `info->size` has to be set.
 * Ownership: `log` borrowed; `info` the caller's. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_info(const chiplog_log_t *log,
                                  chiplog_info_t *info,
                                  chiplog_error_t **error);

/**
 * Waits until all that was committed anywhere when the call began can be read here, and tells the last record then:
 * `*last`; NULL: not wanted. Of a log on its own that is what is durable.
 * Ownership: borrowed. Any thread. Blocks. Errors: UNAVAILABLE, NOT_LEADER, POISONED, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_barrier(const chiplog_log_t *log,
                                     uint64_t timeout_ms,
                                     uint64_t *last,
                                     chiplog_error_t **error);

/**
 * As chiplog_log_barrier, and returns at once: the ticket's `first` is the last record.
 * Ownership: borrowed; `*ticket`: the caller's, to be closed. Any thread. Never blocks for long. Errors: as there.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit_barrier(const chiplog_log_t *log,
                                            uint64_t timeout_ms,
                                            chiplog_ticket_t **ticket,
                                            chiplog_error_t **error);

/**
 * Waits until record `index` can be read here, or is known to be discarded.
 * Ownership: borrowed. Any thread. Blocks. Errors: TIMEOUT, CLOSED, POISONED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_wait_for(const chiplog_log_t *log,
                                      uint64_t index,
                                      uint64_t timeout_ms,
                                      chiplog_error_t **error);

/**
 * What the log did since it was opened. `stats->size` has to be set.
 * Ownership: `log` borrowed; `stats` the caller's. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_stats(const chiplog_log_t *log,
                                   chiplog_stats_t *stats,
                                   chiplog_error_t **error);

/**
 * What waits in the log now. `backlog->size` has to be set.
 * Ownership: `log` borrowed; `backlog` the caller's. Any thread. Never blocks for long.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_backlog(const chiplog_log_t *log,
                                     chiplog_backlog_t *backlog,
                                     chiplog_error_t **error);

/**
 * Why the log takes no more appends, if a write or a sync has failed: `*cause`, else NULL.
 * Ownership: `log` borrowed; `*cause`: the caller's, to be closed. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_poison_cause(const chiplog_log_t *log,
                                          chiplog_error_t **cause,
                                          chiplog_error_t **error);

/**
 * Why this replica does not take what the log holds, or may hold, while another one leads: no room on its disk (FULL, IO), segments
 * that are too small for what the leader sends (TOO_LARGE), options that do not go with the log's (INVALID_ARGUMENT): `*cause`,
 * else NULL.
 * Ownership: `log` borrowed; `*cause`: the caller's, to be closed. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_shortage_cause(const chiplog_log_t *log,
                                            chiplog_error_t **cause,
                                            chiplog_error_t **error);

/**
 * The log's directory, as it was given. NULL: `log` is no open log.
 * Ownership: `log` borrowed; the text is borrowed until the log is closed. Any thread. Never blocks.
 */
const char *chiplog_log_path(const chiplog_log_t *log);

/**
 * Opens an exactly-once session, durably.
 * Ownership: `log` borrowed for the call; `*session`: the caller's, to be closed. Any thread. Blocks.
 * Errors: TOO_MANY_SESSIONS, FULL, POISONED, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_open_session(chiplog_log_t *log,
                                          chiplog_session_t **session,
                                          chiplog_error_t **error);

/**
 * Takes a session up again, in this process or another one: `next` is the number that will be used next, from 1. To repeat
 * an append whose outcome is not known, use its number again. Whether the session is known is told by the first append.
 * Ownership: `log` borrowed for the call; `*session`: the caller's, to be closed. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_resume_session(chiplog_log_t *log,
                                            uint64_t id,
                                            uint64_t next,
                                            chiplog_session_t **session,
                                            chiplog_error_t **error);

/**
 * An option that is set for the log, as far as this replica knows it committed: `*value`, and `*is_set`: 1, or 0: it is not
 * set, and the leader's own holds; the value is 0 then. `name`: as in chiplog_log_option_t. Either place may be NULL.
 * Ownership: all borrowed for the call. Any thread. Never blocks. Errors: INVALID_ARGUMENT: the name; CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_log_option(const chiplog_log_t *log,
                                        const char *name,
                                        uint64_t *value,
                                        uint8_t *is_set,
                                        chiplog_error_t **error);

/**
 * Sets options of the log, or has them set no more, on the leader; those that are not named stay as they are. Waits until
 * that is committed: whichever replica leads then goes by them. Members are waited for as long as `timeout_ms` that have to
 * say that they know options of the log.
 * Ownership: all borrowed for the call. Any thread. Blocks. Errors: INVALID_ARGUMENT: an option, its value or its bounds;
 * UNSUPPORTED: a member of an earlier version; NOT_LEADER, REMOVED, FULL, BUSY: nothing was changed; UNAVAILABLE: it may or may
 * not come about; POISONED, CLOSED, FORKED. To ask again does no harm.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_set_log_options(chiplog_log_t *log,
                                             const chiplog_log_option_t *changes,
                                             size_t count,
                                             uint64_t timeout_ms,
                                             chiplog_error_t **error);

/**
 * As chiplog_log_set_log_options, and returns at once with a ticket; its answer means nothing more.
 * Ownership: borrowed; `*ticket`: the caller's, to be closed. Any thread. Never blocks for long. Errors: as there.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_log_submit_set_log_options(chiplog_log_t *log,
                                                    const chiplog_log_option_t *changes,
                                                    size_t count,
                                                    uint64_t timeout_ms,
                                                    chiplog_ticket_t **ticket,
                                                    chiplog_error_t **error);

/**
 * The largest record that the log takes, in bytes: the log's option, or where that is not set what it was opened with. 0: `log`
 * is no open log.
 * Ownership: `log` borrowed. Any thread. Never blocks.
 */
uint32_t chiplog_log_record_bytes_max(const chiplog_log_t *log);

/**
 * How many of a session's latest batches are remembered: as chiplog_log_record_bytes_max. 0: `log` is no open log.
 * Ownership: `log` borrowed. Any thread. Never blocks.
 */
uint16_t chiplog_log_session_window(const chiplog_log_t *log);

/**
 * As chiplog_log_log_option, of a log that is looked at from outside.
 * Ownership: all borrowed for the call. Any thread. Never blocks. Errors: INVALID_ARGUMENT: the name; CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_log_option(const chiplog_read_only_log_t *read_only,
                                                  const char *name,
                                                  uint64_t *value,
                                                  uint8_t *is_set,
                                                  chiplog_error_t **error);

/**
 * Makes an empty batch to add records to, not compressed and without a session.
 * Ownership: `*builder`: the caller's, to be closed. Any thread. Never blocks.
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
 * Stamps the batch as number `sequence` (from 1) of a session. `inflight`: how many earlier numbers the client still has no
 * answer for. chiplog_session_append_batch does this by itself.
 * Ownership: borrowed. Any thread. Never blocks.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_builder_session(chiplog_builder_t *builder,
                                         uint64_t session,
                                         uint64_t sequence,
                                         uint16_t inflight,
                                         chiplog_error_t **error);

/**
 * Adds a record; it may be empty. It is copied.
 * Ownership: borrowed. Any thread. Never blocks. Errors: TOO_LARGE: the batch is as it was.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_builder_push(chiplog_builder_t *builder,
                                      const void *data,
                                      size_t length,
                                      chiplog_error_t **error);

/**
 * Adds one record that lies in pieces, in their order.
 * Ownership: borrowed. Any thread. Never blocks. Errors: TOO_LARGE: the batch is as it was.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_builder_push_pieces(chiplog_builder_t *builder,
                                             const chiplog_slice_t *pieces,
                                             size_t count,
                                             chiplog_error_t **error);

/**
 * Records so far; 0 if `builder` is no open builder.
 * Ownership: borrowed. Any thread. Never blocks.
 */
uint32_t chiplog_builder_count(const chiplog_builder_t *builder);

/**
 * What the batch would measure if it were built now without compression; 0 if `builder` is no open builder.
 * Ownership: borrowed. Any thread. Never blocks.
 */
size_t chiplog_builder_encoded_bytes(const chiplog_builder_t *builder);

/**
 * Encodes and checksums the batch. The builder is empty afterwards, with codec and session as they were.
 * Ownership: `builder` borrowed; `*batch`: the caller's, to be closed. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT: no records, or a session without a number.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_builder_build(chiplog_builder_t *builder,
                                       chiplog_batch_t **batch,
                                       chiplog_error_t **error);

/**
 * Closes a builder. NULL, or one that was closed: nothing happens.
 * Ownership: takes `builder`. Any thread. Never blocks.
 */
void chiplog_builder_close(chiplog_builder_t *builder);

/**
 * Takes an encoded batch, such as another process sent: checks the checksum and every bound. The bytes are copied.
 * Ownership: `data` borrowed for the call; `*batch`: the caller's, to be closed. Any thread. Never blocks.
 * Errors: CORRUPT: it is not exactly one batch with the right checksum; INVALID_ARGUMENT: it is, and does not unpack.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_batch_decode(const void *data,
                                      size_t length,
                                      chiplog_batch_t **batch,
                                      chiplog_error_t **error);

/**
 * The encoded bytes, as they will stand in the file. `{NULL, 0}` if `batch` is no open batch.
 * Ownership: `batch` borrowed; the bytes are borrowed until it is closed. Any thread. Never blocks.
 */
chiplog_slice_t chiplog_batch_bytes(const chiplog_batch_t *batch);

/**
 * How many records it holds; 0 if `batch` is no open batch.
 * Ownership: borrowed. Any thread. Never blocks.
 */
uint32_t chiplog_batch_count(const chiplog_batch_t *batch);

/**
 * How its body is compressed: CHIPLOG_CODEC_... It is NONE also if compression would not have made it smaller.
 * Ownership: borrowed. Any thread. Never blocks.
 */
uint32_t chiplog_batch_codec(const chiplog_batch_t *batch);

/**
 * The session and the number that it is stamped with; 0 and 0: none. Either may be NULL: not wanted.
 * Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_batch_session(const chiplog_batch_t *batch,
                                       uint64_t *session,
                                       uint64_t *sequence,
                                       chiplog_error_t **error);

/**
 * Closes a batch. What was submitted of it goes on. NULL, or one that was closed: nothing happens.
 * Ownership: takes `batch`. Any thread. Never blocks.
 */
void chiplog_batch_close(chiplog_batch_t *batch);

/**
 * Waits until the append is durable or has failed, for at most `timeout_ms`; CHIPLOG_FOREVER: as long as it takes. The
 * answer stays, and can be asked for again. `*placed`: where it stands; NULL: not wanted.
 * Ownership: borrowed. Any thread, many at once. Blocks.
 * Errors: TIMEOUT: still under way, and it MAY STILL BECOME DURABLE: ask this ticket again. Why the append failed: see the
 * function that gave the ticket. Of a producer's: see chiplog_producer_submit.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_ticket_wait(const chiplog_ticket_t *ticket,
                                     uint64_t timeout_ms,
                                     chiplog_appended_t *placed,
                                     chiplog_error_t **error);

/**
 * Looks whether there is an answer: `*done`, 1 or 0. If so, the status is the append's and `*placed` where it stands.
 * Ownership: borrowed. Any thread. Never blocks. Errors: as chiplog_ticket_wait, but never TIMEOUT for waiting.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_ticket_poll(const chiplog_ticket_t *ticket,
                                     uint8_t *done,
                                     chiplog_appended_t *placed,
                                     chiplog_error_t **error);

/**
 * Calls `callback` once with what becomes of it: at once on this thread if that is known already, else on the log's writer
 * thread as soon as it is. Until it returns nothing else is written: it should only pass the result on. Of a producer's
 * record use chiplog_producer_send_with.
 * Ownership: takes `ticket` and closes it, if the status is CHIPLOG_OK; `context` is borrowed until the callback was called.
 * Any thread. Blocks only as long as the callback does.
 * Errors: BUSY: another thread waits for the ticket; INVALID_ARGUMENT; CLOSED, FORKED. `callback` is not called then.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_ticket_on_complete(chiplog_ticket_t *ticket,
                                            chiplog_outcome_fn callback,
                                            void *context,
                                            chiplog_error_t **error);

/**
 * Closes a ticket; the append goes on. NULL, or one that was closed: nothing happens.
 * Ownership: takes `ticket`. Any thread. Never blocks.
 */
void chiplog_ticket_close(chiplog_ticket_t *ticket);

/**
 * Index of the record that comes next. 0: no server has settled it yet.
 * Ownership: borrowed. One thread at a time. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_position(const chiplog_reader_t *reader,
                                         uint64_t *index,
                                         chiplog_error_t **error);

/**
 * Goes on elsewhere: back, forward, past damage. A reader of files takes CHIPLOG_START_INDEX only; where it fails, it stays
 * where it was.
 * Ownership: borrowed. One thread at a time. Never blocks for long.
 * Errors: DISCARDED, OUT_OF_RANGE, INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_seek(chiplog_reader_t *reader,
                                     uint32_t start,
                                     uint64_t value,
                                     chiplog_error_t **error);

/**
 * Goes on behind a batch that the last step of the reader found UNDECODABLE. `*next`, unless it is NULL: the record that
 * comes next then. Where the last step found something else, nothing changes.
 * Ownership: borrowed. One thread at a time. Never blocks for long.
 * Errors: as chiplog_reader_next_batch, except UNDECODABLE.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_skip_batch(chiplog_reader_t *reader,
                                           uint64_t *next,
                                           chiplog_error_t **error);

/**
 * Which server it reads from now, `host:port`; empty: none, or a reader of files. `length`: how long `text` is, at least 1;
 * what does not fit is cut off.
 * Ownership: `text` is the caller's. One thread at a time. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_server(const chiplog_reader_t *reader,
                                       char *text,
                                       size_t length,
                                       chiplog_error_t **error);

/**
 * The next record. Waits for one for at most `timeout_ms`: 0: not at all; CHIPLOG_FOREVER. Over the network, of a reader
 * that does not follow, `record->data` is NULL at the end.
 * Ownership: the record's bytes are borrowed until the next call with this reader, or its end. One thread at a time.
 * Errors: TIMEOUT: nothing to read yet; CLOSED: the log was closed and all of it read, or the reader was; DISCARDED: the
 * record is gone: make a new reader at CHIPLOG_START_FIRST; CORRUPT: the reader stays where it is; UNDECODABLE: the batch
 * does not unpack, chiplog_reader_skip_batch goes on behind it; CANCELLED; IO, POISONED, FORKED;
 * over the network also UNAVAILABLE, OUT_OF_RANGE.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_next_record(chiplog_reader_t *reader,
                                            uint64_t timeout_ms,
                                            chiplog_record_t *record,
                                            chiplog_error_t **error);

/**
 * The rest of the current batch, or the next one whole: the records that were appended together. Waits as
 * chiplog_reader_next_record. `*records` is NULL, with CHIPLOG_OK, at the end of a reader that does not follow.
 * Ownership: `*records`: the caller's, to be closed; it may outlive reader and log. One thread at a time.
 * Errors: as chiplog_reader_next_record.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_next_batch(chiplog_reader_t *reader,
                                           uint64_t timeout_ms,
                                           chiplog_records_t **records,
                                           chiplog_error_t **error);

/**
 * As chiplog_reader_next_batch, and adds the batches that follow until all have `bytes_max` bytes together or there are no
 * more now: the fastest way to read. 1 MiB is a good size. It waits only for the first.
 * Ownership, threads, errors: as there.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_next_run(chiplog_reader_t *reader,
                                         size_t bytes_max,
                                         uint64_t timeout_ms,
                                         chiplog_records_t **records,
                                         chiplog_error_t **error);

/**
 * Waits until there is something to read, for at most `timeout_ms`. Takes nothing.
 * Ownership: borrowed. One thread at a time. Blocks. Errors: as chiplog_reader_next_record.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_wait(chiplog_reader_t *reader,
                                     uint64_t timeout_ms,
                                     chiplog_error_t **error);

/**
 * Calls `callback` once, when there is something to read or to be told (the log was closed): at once on this thread if so
 * already, else on a thread of the log's, or the client's. It must not use this reader. A reader has one: a new one, or a
 * descriptor, takes the place of the last; over the network each call that reads takes it away. A descriptor that was handed
 * out stays open, and shows nothing until it is asked for again.
 * Ownership: `context` is borrowed until the callback was called, was replaced, or the reader was closed. One thread at a
 * time. Never blocks for long. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_on_more(chiplog_reader_t *reader,
                                        chiplog_notify_fn callback,
                                        void *context,
                                        chiplog_error_t **error);

/**
 * A descriptor that is readable (poll, epoll, select) while there may be something to read: then read with a time-out of 0
 * until TIMEOUT, and wait for it again. It stays readable when there is something to be told, such as CLOSED. Costs nothing
 * while nobody waits.
 * Ownership: `*descriptor` is the reader's, the same each time: neither to be read from nor closed; it ends with the
 * reader. One thread at a time. Never blocks for long. Errors: IO, INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_reader_descriptor(chiplog_reader_t *reader,
                                           int32_t *descriptor,
                                           chiplog_error_t **error);

/**
 * Ends reading with this reader for good, to stop a thread that follows the log: the call that reads or waits with it on
 * another thread is CHIPLOG_CANCELLED at once, and so is every later one; those that wait for their turn, too. A call that
 * had something to hand out already may still do so. A descriptor becomes readable, a callback of chiplog_reader_on_more
 * is called. The reader stays where it is: chiplog_reader_position tells where another one goes on. It is still to be
 * closed: at any time, also at once, while the call on the other thread is just ending. The other way round is of no use:
 * a reader that was closed cannot be cancelled.
 * Ownership: borrowed. Any thread, also while another one uses the reader; not in a signal handler. Never blocks, except for
 * that callback of a reader of files. Again: nothing happens. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
chiplog_status_t chiplog_reader_cancel(chiplog_reader_t *reader,
                                       chiplog_error_t **error);

/**
 * Closes a reader. A call of another thread that waits with it goes on waiting: chiplog_reader_cancel ends that, and is to
 * be called before. NULL, or one that was closed: nothing happens.
 * Ownership: takes `reader`. Any thread. Never blocks for long.
 */
void chiplog_reader_close(chiplog_reader_t *reader);

/**
 * The records, in order: `*count` of them, at least one, from `*array` on.
 * Ownership: `records` borrowed; the array and the bytes it points to are borrowed until `records` is closed. Any thread.
 * Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_records_view(const chiplog_records_t *records,
                                      const chiplog_record_t **array,
                                      size_t *count,
                                      chiplog_error_t **error);

/**
 * Releases records: their views end. NULL, or records that were closed: nothing happens.
 * Ownership: takes `records`. Any thread. Never blocks.
 */
void chiplog_records_close(chiplog_records_t *records);

/**
 * The session's name for ever. Ownership: borrowed. One thread at a time. Never blocks for long.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_id(const chiplog_session_t *session,
                                    uint64_t *id,
                                    chiplog_error_t **error);

/**
 * The number that the next append gets. Ownership: borrowed. One thread at a time. Never blocks for long.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_next_sequence(const chiplog_session_t *session,
                                               uint64_t *next,
                                               chiplog_error_t **error);

/**
 * Appends one record, once, and waits until it is durable. `*index`: where it stands; NULL: not wanted.
 * Ownership: all borrowed. One thread at a time. Blocks.
 * Errors: SEQUENCE_FORGOTTEN: the record IS IN THE LOG already, only where is forgotten; the session has gone on.
 * SESSION_EXPIRED, SEQUENCE_GAP, INVALID_ARGUMENT (number 0), and those of chiplog_log_append.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_append(chiplog_session_t *session,
                                        const void *data,
                                        size_t length,
                                        uint64_t *index,
                                        chiplog_error_t **error);

/**
 * Builds the batch, stamped as the session's next, appends it, once, and waits until it is durable. `*placed`: NULL: not
 * wanted.
 * Ownership: all borrowed; the builder is empty afterwards. One thread at a time. Blocks.
 * Errors: as chiplog_session_append, and those of chiplog_builder_build.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_append_batch(chiplog_session_t *session,
                                              chiplog_builder_t *builder,
                                              chiplog_appended_t *placed,
                                              chiplog_error_t **error);

/**
 * Submits one record and returns with a ticket. Waits while as many appends as the session's window allows are in flight.
 * Ownership: `data` borrowed for the call; `*ticket`: the caller's, to be closed. One thread at a time.
 * Errors: those of chiplog_log_submit: the record was not taken, and its number goes to the next append; the ticket can hold
 * those of chiplog_session_append.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_submit(chiplog_session_t *session,
                                        const void *data,
                                        size_t length,
                                        chiplog_ticket_t **ticket,
                                        chiplog_error_t **error);

/**
 * Builds the batch, stamped as the session's next, and submits it; see chiplog_session_submit.
 * Ownership: borrowed, the builder is empty afterwards; `*ticket`: the caller's, to be closed. One thread at a time.
 * Errors: as chiplog_session_submit, and those of chiplog_builder_build.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_submit_batch(chiplog_session_t *session,
                                              chiplog_builder_t *builder,
                                              chiplog_ticket_t **ticket,
                                              chiplog_error_t **error);

/**
 * As chiplog_session_submit, but waits for room, in the session's window and in the log's queue, for at most `patience_ms`; 0:
 * not at all.
 * Ownership: `data` borrowed for the call; `*ticket`: the caller's, to be closed. One thread at a time.
 * Errors: as chiplog_session_submit; BUSY: no room in that time, the record was not taken.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_submit_within(chiplog_session_t *session,
                                               const void *data,
                                               size_t length,
                                               uint64_t patience_ms,
                                               chiplog_ticket_t **ticket,
                                               chiplog_error_t **error);

/**
 * As chiplog_session_submit_batch, but waits for room as chiplog_session_submit_within does.
 * Ownership: borrowed, the builder is empty afterwards, or where this fails as it was; `*ticket`: the caller's, to be closed.
 * One thread at a time.
 * Errors: as chiplog_session_submit_batch; BUSY: no room in that time.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_submit_batch_within(chiplog_session_t *session,
                                                     chiplog_builder_t *builder,
                                                     uint64_t patience_ms,
                                                     chiplog_ticket_t **ticket,
                                                     chiplog_error_t **error);

/**
 * Ends the session in the log, durably, once all in flight is answered: the log forgets it. The handle is still to be
 * closed.
 * Ownership: borrowed. One thread at a time. Blocks. Errors: FULL, POISONED, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_session_end(chiplog_session_t *session,
                                     chiplog_error_t **error);

/**
 * Closes the handle. The session goes on in the log, and can be taken up again. NULL, or one that was closed: nothing
 * happens.
 * Ownership: takes `session`. Any thread. Never blocks for long.
 */
void chiplog_session_close(chiplog_session_t *session);

/**
 * Opens the log in `directory` for reading.
 * Ownership: `directory` borrowed for the call; `*read_only`: the caller's, to be closed. Any thread. Blocks for the disk.
 * Errors: NOT_FOUND, CORRUPT, UNSUPPORTED, IO, INVALID_ARGUMENT.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_open(const char *directory,
                                            chiplog_read_only_log_t **read_only,
                                            chiplog_error_t **error);

/**
 * A reader of records that are proven durable: chiplog_log_reader tells the rest.
 * Ownership: `read_only` borrowed; `*reader`: the caller's, to be closed. Any thread. Blocks for the disk.
 * Errors: as chiplog_log_reader.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_reader(const chiplog_read_only_log_t *read_only,
                                              uint32_t start,
                                              uint64_t value,
                                              chiplog_reader_t **reader,
                                              chiplog_error_t **error);

/**
 * One record, by its index.
 * Ownership: `read_only` borrowed; `*records`: the caller's, to be closed. Any thread. Blocks for the disk.
 * Errors: as chiplog_log_read.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_read(const chiplog_read_only_log_t *read_only,
                                            uint64_t index,
                                            chiplog_records_t **records,
                                            chiplog_error_t **error);

/**
 * How the log stands, as far as it is proven durable. `info->size` has to be set.
 * Ownership: `read_only` borrowed; `info` the caller's. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_info(const chiplog_read_only_log_t *read_only,
                                            chiplog_info_t *info,
                                            chiplog_error_t **error);

/**
 * How many records stand behind the last one shown, sound and not proven durable: `*count`.
 * Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_unproven(const chiplog_read_only_log_t *read_only,
                                                uint64_t *count,
                                                chiplog_error_t **error);

/**
 * Who belongs to the cluster, as far as the files here say: calls `callback` on this thread with each. `*is_cluster`: 0: it
 * is a log on its own; NULL: not wanted.
 * Ownership: all borrowed for the call. Any thread. Blocks as long as the callback. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_members(const chiplog_read_only_log_t *read_only,
                                               chiplog_member_fn callback,
                                               void *context,
                                               uint8_t *is_cluster,
                                               chiplog_error_t **error);

/**
 * Why the view does not go on, if it met damage: `*cause`, else NULL.
 * Ownership: `read_only` borrowed; `*cause`: the caller's, to be closed. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_read_only_log_failure(const chiplog_read_only_log_t *read_only,
                                               chiplog_error_t **cause,
                                               chiplog_error_t **error);

/**
 * Closes a read-only log; its readers keep what they have. NULL, or one that was closed: nothing happens.
 * Ownership: takes `read_only`. Any thread. Never blocks for long.
 */
void chiplog_read_only_log_close(chiplog_read_only_log_t *read_only);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_client_options_t).
 * Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
 */
void chiplog_client_options_init(chiplog_client_options_t *options,
                                 size_t size);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_reader_options_t).
 * Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
 */
void chiplog_reader_options_init(chiplog_reader_options_t *options,
                                 size_t size);

/**
 * Finds the cluster that these `count` servers, `host:port`, are part of. One that answers is enough; the others are learnt
 * from it. `options`: NULL for the defaults.
 * Ownership: all borrowed for the call; `*client`: the caller's, to be closed. Any thread. Blocks, for at most timeout_ms.
 * Errors: INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED, UNAVAILABLE, TIMEOUT, NOT_FOUND (no log of that name),
 * UNSUPPORTED, IO.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_connect(const char *const *servers,
                                        size_t count,
                                        const chiplog_client_options_t *options,
                                        chiplog_client_t **client,
                                        chiplog_error_t **error);

/**
 * A producer: gathers records into batches, keeps several under way, sends again what a failure left open. `options`: NULL
 * for the defaults.
 * Ownership: `client`, `options` borrowed for the call; `*producer`: the caller's, to be closed. Any thread. Blocks.
 * Errors: INVALID_ARGUMENT, UNAVAILABLE, TIMEOUT, FORKED, and what the servers refuse with.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_producer(const chiplog_client_t *client,
                                         const chiplog_producer_options_t *options,
                                         chiplog_producer_t **producer,
                                         chiplog_error_t **error);

/**
 * A reader that follows the log over the network from `start` on (CHIPLOG_START_...; `value`: its number, else 0). It
 * connects when it is first asked, and goes on elsewhere when a server fails. `options`: NULL for the defaults.
 * Ownership: `client`, `options` borrowed for the call; `*reader`: the caller's, to be closed; it may outlive the client.
 * Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_reader(const chiplog_client_t *client,
                                       uint32_t start,
                                       uint64_t value,
                                       const chiplog_reader_options_t *options,
                                       chiplog_reader_t **reader,
                                       chiplog_error_t **error);

/**
 * How the log stands, with everything that was acknowledged before the call. `info->size` has to be set.
 * Ownership: `client` borrowed; `info` the caller's. Any thread. Blocks, for at most the client's timeout_ms.
 * Errors: TIMEOUT, UNAVAILABLE: no leader answered; what it refuses with; INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_info(const chiplog_client_t *client,
                                     chiplog_info_t *info,
                                     chiplog_error_t **error);

/**
 * As chiplog_client_info, without a majority: what the replicas know. It can be late by an election.
 * Ownership, threads: as there. Errors: as there; UNAVAILABLE: no server answered.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_info_stale(const chiplog_client_t *client,
                                           chiplog_info_t *info,
                                           chiplog_error_t **error);

/**
 * Discards all records below `first`.
 * Ownership: borrowed. Any thread. Blocks, for at most the client's timeout_ms. Errors: as chiplog_client_info.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_discard(const chiplog_client_t *client,
                                        uint64_t first,
                                        chiplog_error_t **error);

/**
 * Opens a session for a producer that is to go on in it after a restart of the program: `*session`, for the producer's
 * options.
 * Ownership: borrowed. Any thread. Blocks, for at most the client's timeout_ms.
 * Errors: as chiplog_client_info; TOO_MANY_SESSIONS.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_open_session(const chiplog_client_t *client,
                                             uint64_t *session,
                                             chiplog_error_t **error);

/**
 * The largest batch that the servers take, in bytes, as they told last: `*bytes`.
 * Ownership: borrowed. Any thread. Never blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_batch_bytes_max(const chiplog_client_t *client,
                                                size_t *bytes,
                                                chiplog_error_t **error);

/**
 * Watches how the log stands. `interval_ms`: changes that come faster are told together.
 * Ownership: `client` borrowed; `*watch`: the caller's, to be closed. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_client_watch(const chiplog_client_t *client,
                                      uint64_t interval_ms,
                                      chiplog_watch_t **watch,
                                      chiplog_error_t **error);

/**
 * Closes a client. Its producers and readers go on. NULL, or one that was closed: nothing happens.
 * Ownership: takes `client`. Any thread. With the last of client, producers, readers and watches the client's thread ends,
 * which is waited for, and what producers had not sent is given up.
 */
void chiplog_client_close(chiplog_client_t *client);

/**
 * How the log stands: at once the first time, then when it has changed; waits for that for at most `timeout_ms`.
 * `info->size` has to be set.
 * Ownership: `watch` borrowed; `info` the caller's. One thread at a time. Blocks.
 * Errors: TIMEOUT: nothing changed; UNAVAILABLE: no server answered in time; INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_watch_next(chiplog_watch_t *watch,
                                    uint64_t timeout_ms,
                                    chiplog_info_t *info,
                                    chiplog_error_t **error);

/**
 * Closes a watch. NULL, or one that was closed: nothing happens.
 * Ownership: takes `watch`. Any thread. Never blocks for long; see chiplog_client_close.
 */
void chiplog_watch_close(chiplog_watch_t *watch);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_producer_options_t).
 * Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
 */
void chiplog_producer_options_init(chiplog_producer_options_t *options,
                                   size_t size);

/**
 * Buffers a record, of which a copy is made; waits for room for at most block_max_ms. Whether it got into the log is told by
 * chiplog_producer_flush.
 * Ownership: borrowed. Any thread, many at once.
 * Errors: BUSY: no room in time; TOO_LARGE; CLOSED; what ended the producer; FORKED. The record was not taken.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_send(chiplog_producer_t *producer,
                                       const void *data,
                                       size_t length,
                                       chiplog_error_t **error);

/**
 * As chiplog_producer_send, but never waits: it may be called in callbacks.
 * Ownership, threads: as there. Never blocks. Errors: as there; BUSY when there is no room.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_try_send(chiplog_producer_t *producer,
                                           const void *data,
                                           size_t length,
                                           chiplog_error_t **error);

/**
 * As chiplog_producer_send, and calls `callback` once, on the client's thread, with the record's index, or with why it has
 * none. SEQUENCE_FORGOTTEN means that it IS IN THE LOG; TIMEOUT and CLOSED that it may be.
 * Ownership: `data` borrowed for the call, `context` until the callback was called. Any thread, many at once.
 * Errors: as there; `callback` is not called then.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_send_with(chiplog_producer_t *producer,
                                            const void *data,
                                            size_t length,
                                            chiplog_outcome_fn callback,
                                            void *context,
                                            chiplog_error_t **error);

/**
 * Appends a record and waits until it is in the log: `*index`; NULL: not wanted.
 * Ownership: borrowed. Any thread, many at once. Blocks.
 * Errors: those of chiplog_producer_send, and of its delivery: SEQUENCE_FORGOTTEN: it IS IN THE LOG; TIMEOUT, CLOSED: it may
 * be; FULL, BUSY, TOO_MANY_SESSIONS: it is not.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_append(chiplog_producer_t *producer,
                                         const void *data,
                                         size_t length,
                                         uint64_t *index,
                                         chiplog_error_t **error);

/**
 * As chiplog_producer_send, with a ticket for the record's outcome.
 * Ownership: `data` borrowed for the call; `*ticket`: the caller's, to be closed. Any thread, many at once.
 * Errors: as there; the ticket's are those of chiplog_producer_append.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_submit(chiplog_producer_t *producer,
                                         const void *data,
                                         size_t length,
                                         chiplog_ticket_t **ticket,
                                         chiplog_error_t **error);

/**
 * As chiplog_producer_submit, but never waits.
 * Ownership, threads: as there. Never blocks. Errors: as there; BUSY when there is no room.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_try_submit(chiplog_producer_t *producer,
                                             const void *data,
                                             size_t length,
                                             chiplog_ticket_t **ticket,
                                             chiplog_error_t **error);

/**
 * Buffers `count` records, each from where it lies, that go as a batch of their own: all of them are in the log, at indexes
 * that follow each other, or none is. `callback` is called once with the index of the first, as with
 * chiplog_producer_send_with.
 * Ownership: records borrowed for the call, `context` until the callback was called. Any thread, many at once. Waits for
 * room. Errors: as chiplog_producer_send_with; INVALID_ARGUMENT: no records.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_send_batch(chiplog_producer_t *producer,
                                             const chiplog_slice_t *records,
                                             size_t count,
                                             chiplog_outcome_fn callback,
                                             void *context,
                                             chiplog_error_t **error);

/**
 * Bytes of records that were given and are not settled; 0 if `producer` is no open producer.
 * Ownership: borrowed. Any thread. Never blocks.
 */
size_t chiplog_producer_buffered_bytes(const chiplog_producer_t *producer);

/**
 * Sends at once what lingers, and waits until all records given before the call are settled.
 * Ownership: borrowed. Any thread. Blocks, for at most `timeout_ms`.
 * Errors: TIMEOUT: they go on being sent; else why a record failed since the last flush. FORKED, CLOSED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_flush(chiplog_producer_t *producer,
                                        uint64_t timeout_ms,
                                        chiplog_error_t **error);

/**
 * Takes no more records, waits until all are settled, for at most `timeout_ms`, and ends the session. Calls `callback`
 * (NULL: not wanted) on this thread with each record that was not acknowledged by then; `*left`: how many (NULL: not
 * wanted). It can be asked again, and tells the same. The handle is still to be closed.
 * Ownership: borrowed. Any thread. Blocks.
 * Errors: why records failed, these or earlier ones, since the last flush; TIMEOUT: some are left and none had failed.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_producer_end(chiplog_producer_t *producer,
                                      uint64_t timeout_ms,
                                      chiplog_left_fn callback,
                                      void *context,
                                      uint64_t *left,
                                      chiplog_error_t **error);

/**
 * Closes a producer, and returns how many records were given to it and are not settled by then, or failed and nobody was
 * told: by a ticket that was asked, a callback, chiplog_producer_flush or chiplog_producer_end. 0 if it is no open
 * producer, or its parent's in a forked child. Those that are not settled go on being sent as long as its client, or a
 * reader or watch of that, is open, and nobody is told what becomes of those without a callback or a ticket: chiplog_producer_end before it
 * waits for them, and says which are left.
 * With the last handle of the client they are given up, and so they are when the process ends, by exit(), a return from
 * main or a signal: the library registers nothing with atexit(), and a record that is in memory then is lost. A program
 * that wants its records in the log calls chiplog_producer_end, or chiplog_producer_flush, before it ends, also when a
 * signal ends it: not in the signal's handler, but in the loop that the handler stops.
 * Ownership: takes `producer`. Any thread. Never blocks for long; see chiplog_client_close.
 */
uint64_t chiplog_producer_close(chiplog_producer_t *producer);

/**
 * Fills options with their defaults. `size`: sizeof(chiplog_follower_options_t).
 * Ownership: `options` is the caller's, `size` bytes; NULL: nothing happens. Any thread. Never blocks.
 */
void chiplog_follower_options_init(chiplog_follower_options_t *options,
                                   size_t size);

/**
 * Goes on with the copy in `directory`, or begins one there. `servers`: `count` addresses, `host:port`; one that runs is
 * enough. A new copy begins at `start` (CHIPLOG_START_...; `value`: its number, else 0), with the block that holds that record.
 * `options`: NULL for the defaults.
 * Ownership: all borrowed for the call; `*follower`: the caller's, to be closed. Any thread. A copy that is there is opened
 * without a server; for a new one this waits for one, for at most open_timeout_ms.
 * Errors: INVALID_ARGUMENT, LOCKED, CORRUPT, UNSUPPORTED, IO; of a new copy also DISCARDED, OUT_OF_RANGE, UNAVAILABLE,
 * TIMEOUT, and whatever a server refused with.
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
 * The copy as a log: to read from, and to look at. Appends and commands are NOT_LEADER. Closing it leaves the follower as it
 * is.
 * Ownership: `follower` borrowed; `*log`: the caller's, to be closed. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_log(const chiplog_follower_t *follower,
                                      chiplog_log_t **log,
                                      chiplog_error_t **error);

/**
 * A reader of the copy: no server is asked. At the tail it waits for what comes; once the follower was closed or has ended by
 * itself that is CLOSED. When it meets a jump its next record is DISCARDED: go on with a new one at CHIPLOG_START_FIRST.
 * Ownership: `follower` borrowed; `*reader`: the caller's, to be closed. Any thread. Blocks for the disk.
 * Errors: as chiplog_log_reader.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_reader(const chiplog_follower_t *follower,
                                         uint32_t start,
                                         uint64_t value,
                                         chiplog_reader_t **reader,
                                         chiplog_error_t **error);

/**
 * Waits until record `index` is here, or is known to be discarded.
 * Ownership: borrowed. Any thread. Blocks, for at most `timeout_ms`.
 * Errors: TIMEOUT, CLOSED, FORKED; why the follower has ended by itself.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_wait_for(const chiplog_follower_t *follower,
                                           uint64_t index,
                                           uint64_t timeout_ms,
                                           chiplog_error_t **error);

/**
 * How it stands. `status->size` has to be set. `*cause` (NULL: not wanted): why it has ended by itself, or else what went
 * wrong last; NULL: neither.
 * Ownership: `follower` borrowed; `status` the caller's; `*cause`: the caller's, to be closed. Any thread. Never blocks.
 * Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_status(const chiplog_follower_t *follower,
                                         chiplog_follower_status_t *status,
                                         chiplog_error_t **cause,
                                         chiplog_error_t **error);

/**
 * What has happened since this was last asked, one event after the other; waits for one for at most `timeout_ms`. Each is
 * given once, whoever asks; of those that nobody takes the newest 1,024 are kept. `event->size` has to be set. `*cause`
 * (NULL: not wanted): see the kinds; else NULL.
 * Ownership: `follower` borrowed; `event` the caller's; `*cause`: the caller's, to be closed. Any thread. Blocks.
 * Errors: TIMEOUT: nothing happened; CLOSED: nothing will any more; INVALID_ARGUMENT, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_next_event(chiplog_follower_t *follower,
                                             uint64_t timeout_ms,
                                             chiplog_event_t *event,
                                             chiplog_error_t **cause,
                                             chiplog_error_t **error);

/**
 * Calls `callback` once, when there is an event to be taken, or will be none any more: at once on this thread if so already,
 * else on the follower's thread. A follower has one: a new one, or a descriptor, takes the place of the last. A descriptor that
 * was handed out stays open, and shows nothing until it is asked for again.
 * Ownership: `context` is borrowed until the callback was called or replaced, or the follower has ended. Any thread. Never
 * blocks. Errors: INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_on_event(chiplog_follower_t *follower,
                                           chiplog_notify_fn callback,
                                           void *context,
                                           chiplog_error_t **error);

/**
 * A descriptor that is readable (poll, epoll, select) while there may be an event: then take events with a time-out of 0
 * until TIMEOUT, and wait for it again. It stays readable once no more will come.
 * Ownership: `*descriptor` is the follower's, the same each time: neither to be read from nor closed; it ends with the
 * follower. Any thread. Never blocks. Errors: IO, INVALID_ARGUMENT, CLOSED, FORKED.
 */
CHIPLOG_MUST_USE chiplog_status_t chiplog_follower_descriptor(chiplog_follower_t *follower,
                                             int32_t *descriptor,
                                             chiplog_error_t **error);

/**
 * Ends following, makes durable what was taken, lets the directory go, and closes the handle, whatever the status. No server
 * is waited for. Readers go on to the end of what is here.
 * Ownership: takes `follower`; NULL: CHIPLOG_OK. Any thread. Blocks for the disk.
 * Errors: POISONED: a write had failed; CLOSED: it was closed before; FORKED.
 */
chiplog_status_t chiplog_follower_close(chiplog_follower_t *follower,
                                        chiplog_error_t **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CHIPLOG_H */
