//! `chiplog tier`: the objects that logs keep in an object store.

mod backup;
mod branch;
mod cluster_branch;
mod fetch;
mod gc;
mod half_written;
mod list;
mod named;
mod objects;
mod payloads;
mod pins;
mod status;
mod verify;

use crate::commands::files::object_store::{StoreAccess, is_server};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format::parse_seconds;
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::connect::cluster::Connect;
use crate::connect::open_log;
use crate::connect::target::{self, Servers};
use chiplog::vault::Vault;
use chiplog::{LogId, Timestamp};
use clap::{Args, Subcommand};
pub(crate) use fetch::{ended, show_notes};
use half_written::HalfWritten;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  chiplog tier list s3://bucket/chiplog
      The logs that have objects there.
  chiplog tier verify s3://bucket/chiplog
      Download every object of every log and check every byte.
  chiplog tier verify /mnt/objects --log-id 5f0c39a1f3b54e0d8c1b5a7f2e9d4c36 --json | jq .ok
  chiplog tier fetch s3://bucket/chiplog ./backup && chiplog restore ./backup /var/lib/chiplog/1
      All replicas are lost: make a log of what is there.
  chiplog tier backup log1:7411 s3://bucket/chiplog 2026-11-26
      A backup in the object store: all that the servers have confirmed, until `unpin`.
  chiplog tier pin s3://bucket/chiplog before-upgrade
      Keep what is there now, whatever the log discards later.
  chiplog tier branch s3://bucket/chiplog ./try --to-time 2h
      A new log in seconds that has what the log had two hours ago.
  chiplog tier list s3://bucket/chiplog --endpoint https://minio:9000 --credentials ./keys.toml
      A store of another provider, with keys from a file.

Locations:
  s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, file:///DIRECTORY or an absolute
  path: what object_store is in a server's file.
  https://HOST:PORT or http://HOST:PORT: a server's port for clients. `list`, `verify` and `fetch`
  get the objects through it, without credentials of the store; with tokens, one of the role
  `read` without a scope. Slices and pins are in the store alone. Of a log without an object store
  `fetch` gets the segments that are no longer written.

Credentials:
  Without --credentials the keys are those of the environment, as for the store's own programs:
    S3            AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION,
                  AWS_ENDPOINT_URL; without keys, the role of the machine or container
    Google Cloud  GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT
    Azure         AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY
  The right to list and to read objects is enough; backup, branch, pin, unpin and gc --delete also
  create or delete them.";

const LIST_EXAMPLES: &str = "\
Examples:
  chiplog tier list s3://bucket/chiplog
  chiplog tier list s3://bucket/chiplog --json | jq -r .log_id

Columns:
  LOG          the log's id, as `chiplog status` shows it
  ROLE         of a log of a cluster with named logs: default, system (the catalogue), group-1 and
               so on; - else, through a server, and if the cluster's list of logs is not there or
               cannot be read
  OBJECTS      how many objects it has there
  FIRST, LAST  the numbers of its oldest and of its newest object; - if there is none
  BYTES        the size of all of them: in B, KiB (1,024 B), MiB and so on
  SLICES, BYTES  how many slices it has, with the newest records, and their size

JSON fields, one object per line:
  log_id, role (as above; null: -), cluster (the id of its cluster's default log; null without
  role), objects, first, last (numbers of objects; null: there is none), bytes, missing (how many
  objects are not there that have to be: those whose records are discarded can be deleted), slices,
  slice_bytes
  branch_of  of a branch, which objects it reads from other logs: each {\"log_id\",
             \"first_object\", \"last_object\"}
  not_served  of a branch that a server does not serve, why: then objects is 0; else null";

const VERIFY_EXAMPLES: &str = "\
Examples:
  chiplog tier verify s3://bucket/chiplog && echo sound
  chiplog tier verify s3://bucket/chiplog --log-id 5f0c39a1f3b54e0d8c1b5a7f2e9d4c36
  chiplog tier verify /mnt/objects --json | jq '.logs[].faults[] | {object, what}'

Faults:
  corrupt      an object is missing, damaged, or does not continue the one before; a slice is
               damaged, or one is missing before others; payload is missing or damaged; of the
               default log of a cluster, the list of its logs, or a backup that `tier backup` or
               `tier pin` has made of all of them, is damaged, or one of its logs or pins is missing
               (status 3)
  harmless     only a shortcut or bytes between blocks are damaged: every record can be read
               (status 0)
  undecodable  a batch is stored as it was appended, but cannot be unpacked (status 0)

To save the records of missing and damaged objects:
  A server that has all records of such an object in its files stores it again, once it knows of the
  damage; from then on these files stay. Before that they go as the log grows, by local_bytes and
  local_age_seconds. So, at once:
  1. restart the servers, one after the other, without local_bytes and local_age_seconds: then no
     file goes. Objects that are missing, or of another size, are found within a minute, and stored
     again by a server that has the records;
  2. for objects with damaged bytes start them with a short object_scrub_seconds as well, as 600:
     within that time the servers read all objects that they could store again;
  3. `chiplog tier verify` again. Records of objects that it still reports are on no disk: only a
     copy or a backup has them;
  4. set the limits as they were.

Through a server, a branch that reads objects of another log is not checked, which the command says
(status 7).

JSON fields:
  ok (all was checked, and is sound), seconds
  not_checked  each {\"log_id\", \"why\"}
  logs  each {\"log_id\", \"objects\", \"first_object\", \"last_object\", \"records\", \"bytes\", \"first\",
        \"last\" (indexes of records), \"slices\", \"slice_bytes\", \"slices_used\" (those that `fetch`
        would take),
        \"sliced_last\" (the last record in these; null: there are none), \"tail_records\",
        \"tail_bytes\" (of records behind the newest object), \"corrupt\", \"harmless\", \"undecodable\",
        \"faults\", \"faults_left_out\", \"branch_of\" (as in `chiplog tier list`)}
        faults  each {\"object\" (null: none), \"offset\", \"bytes\", \"severity\", \"what\"}";

/// List, check, fetch, pin and clean up the objects that logs keep in an object store.
///
/// A server with `object_store` in its configuration keeps copies of the log's older records there, as
/// numbered objects. These commands use the store itself: except for `backup`, no server has to run.
/// `list`, `verify` and `fetch` can read it through a server instead.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TierCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the logs that have objects in an object store.
    ///
    /// Lists the names below the location once; no object is downloaded.
    #[command(after_long_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        store: Store,
        #[command(flatten)]
        connect: Box<Connect>,
    },
    /// Show what logs have in an object store, what keeps it there, and what servers have not stored yet.
    ///
    /// Lists the names below the location, and reads a few small parts of objects. `chiplog tier verify` reads all.
    #[command(after_long_help = STATUS_EXAMPLES)]
    Status {
        #[command(flatten)]
        store: Store,
        /// Only the log with this id: all 32 digits.
        #[arg(long, value_name = "LOG-ID", value_parser = log_id)]
        log_id: Option<LogId>,
        /// Also ask these servers of a log, by their address for clients. One that runs is enough; A,B,C are tried in turn.
        #[arg(long, value_name = "HOST:PORT", env = "CHIPLOG_SERVERS")]
        cluster: Option<Servers>,
        #[command(flatten)]
        connect: Box<Connect>,
    },
    /// List what nothing needs in an object store; with --delete, remove it.
    ///
    /// Of each log these are: objects whose records are all discarded, that no pin keeps, once the store was told so
    /// for as long as --after; notes that newer ones have replaced; payload slices of terms before the newest object
    /// began; in a directory, half-written files of servers that were killed. Servers delete the first three by
    /// themselves: the command is for what they leave after `chiplog tier unpin`, and for logs without servers.
    /// Everything else stays, above all what the command does not know.
    ///
    /// Parts of incomplete uploads are in no list of a bucket: give it a rule that aborts them.
    ///
    /// --all is everything of one log, for a cluster that is gone. It is refused while the log has pins, or is the default
    /// log of a backup of a cluster, or of a cluster whose other logs are there: remove those first. The list of the cluster's logs
    /// (named) goes with the default log. Records that no
    /// server has on its disk are lost with it: with payload_slices that are all.
    #[command(after_long_help = GC_EXAMPLES)]
    Gc {
        #[command(flatten)]
        store: Store,
        /// Only the log with this id: all 32 digits.
        #[arg(long, value_name = "LOG-ID", value_parser = log_id)]
        log_id: Option<LogId>,
        /// Delete what is listed.
        #[arg(long)]
        delete: bool,
        /// Keep objects for this long after the store was told that their records are discarded. Give at least the
        /// object_delete_delay_seconds of the servers.
        #[arg(long, value_name = "TIME", default_value = "1d", value_parser = parse_seconds)]
        after: u64,
        /// Everything of the log that --log-id names.
        #[arg(long, requires = "log_id", conflicts_with = "after")]
        all: bool,
    },
    /// Download and check every object and slice; continue after damage and report all of it.
    ///
    /// Checks that the objects of a log are numbered without a gap, that each continues the one before, and of
    /// each all that `chiplog verify` checks of a file: headers, the checksums of all blocks and batches, that
    /// compressed batches can be unpacked, index and footer. Of slices it checks every byte, that those behind the
    /// newest object continue each other, and that the payload is there to which these refer. Of the default log of a
    /// cluster it checks the list of the cluster's logs, and the sets of pins that are backups of all of them.
    ///
    /// One object at a time is downloaded to the directory for temporary files (TMPDIR), up to 1 GiB. A store
    /// charges for requests and for traffic to other networks: run it near the store. Servers can go on storing
    /// meanwhile: objects that are new after the start are not checked.
    #[command(after_long_help = VERIFY_EXAMPLES)]
    Verify {
        #[command(flatten)]
        store: Store,
        /// Check only the log with this id: all 32 digits, as `chiplog status` shows them.
        #[arg(long, value_name = "LOG-ID", value_parser = log_id)]
        log_id: Option<LogId>,
        #[command(flatten)]
        connect: Box<Connect>,
    },
    /// Make a backup of a log's objects, without any replica.
    ///
    /// Downloads all objects and slices of the log to DIR, up to eight at a time, checks every byte, and seals them as a
    /// backup. Objects take up to 2 GiB of memory, or three times the largest one if that is more.
    /// `chiplog restore` makes a log of it, also up to a record or a time. This is how a log comes back whose
    /// replicas are all lost. Records that were in no object and no slice are not in it: those since about the last
    /// slice_interval_millis; without slices, since the last object_bytes or object_age_seconds. Slices, or payload,
    /// that are damaged or missing end it earlier: the command then says so and makes the backup, and its status is 8
    /// unless --allow-early-end is given. So it is if nothing is left of a log of a cluster that the store had.
    ///
    /// Through a server it takes the default log, by its name there, or the one that --log-id names.
    ///
    /// Of the default log of servers with named logs it is a backup of the whole cluster: the default log in
    /// DIR/default, the catalogue and the groups in DIR/named. `chiplog restore` makes a server's data directory of
    /// it. Each of these logs ends with what is stored of it. If one of them is damaged, nothing is made: --without
    /// leaves it out, and --only-log takes the default log alone.
    ///
    /// With --pin it is a backup of exactly the objects under that pin, also if the log has discarded them since. Pins
    /// of named logs are a backup of the cluster only if `tier pin` or `tier backup` has made all of them; --without also
    /// leaves out a log whose pin is missing or damaged.
    ///
    /// DIR must not exist, or be empty. After an error it is as it was.
    #[command(after_long_help = FETCH_EXAMPLES)]
    Fetch {
        #[command(flatten)]
        store: Store,
        /// Where the backup is made.
        #[arg(value_name = "DIR", help_heading = None)]
        dir: PathBuf,
        /// The log with this id: all 32 digits. Needed if several have objects there, apart from named
        /// logs and branches.
        #[arg(long, value_name = "LOG-ID", value_parser = log_id)]
        log_id: Option<LogId>,
        /// The catalogue of the named logs, if the list of the cluster's logs is lost: all 32 digits. The catalogue
        /// names the groups.
        #[arg(long, value_name = "LOG-ID", requires = "log_id", conflicts_with = "pin", value_parser = log_id)]
        catalogue: Option<LogId>,
        /// The log alone, without the named logs of its cluster.
        #[arg(long, conflicts_with_all = ["catalogue", "without"])]
        only_log: bool,
        /// Leave this log of the cluster out: group-1 and so on, system (the catalogue) or default. Can be repeated.
        #[arg(long, value_name = "NAME")]
        without: Vec<String>,
        /// Only the objects under the pin of this name.
        #[arg(long, value_name = "NAME")]
        pin: Option<String>,
        /// Status 0 also if a log ends early, because slices or payload are missing or damaged.
        #[arg(long)]
        allow_early_end: bool,
        #[command(flatten)]
        connect: Box<Connect>,
    },
    /// Make a new log in seconds that reads the older records of another one from its objects.
    ///
    /// The branch has the records, sessions and options that the log has in its objects, all or up to a record or a
    /// time, and then goes on by itself, with a new id. Nothing is downloaded but the object with its last record: older
    /// ones are read from the log's objects when they are needed. So it has to be opened with the same object store:
    /// `chiplog serve` of node 1 with the same object_store makes a new cluster of it.
    ///
    /// The log keeps these objects, whatever it discards, by a pin named branch-<id of the branch>. The pin goes once the
    /// branch has discarded all of their records. When a branch and its servers are gone, `chiplog tier gc --log-id
    /// <id of the branch> --all --delete` removes it with all that the branch has.
    ///
    /// Of the default log of servers with named logs it is a branch of the whole cluster: the default log and all named
    /// logs, each with a new id, up to its end or a time. Of each group of named logs the object with its last record is
    /// downloaded, and of the others what says which entries they have; the catalogue of the names is copied. Each of
    /// these logs ends with what is in its objects, or with what its own leaders had written by the time. --without
    /// leaves one out, which comes back empty, and --only-log takes the default log alone.
    ///
    /// Records that are in no object yet are not in it: `chiplog tier backup` puts what servers have confirmed there.
    ///
    /// DIR must not exist, or be empty. After an error it is as it was. After a crash remove what the branch has in
    /// the store: `chiplog info DIR.restoring` shows its id, and `chiplog info DIR.restoring/named/group-N` that of
    /// each group of a cluster. Of each id: `chiplog tier gc --log-id ID --all --delete`. A directory in which `info`
    /// finds no log, or one of whose id `gc` finds nothing, has at most a pin in the parent, branch-<id>: `chiplog tier
    /// pins` shows it, and `chiplog tier unpin` removes it. Then remove DIR.restoring.
    #[command(after_long_help = BRANCH_EXAMPLES)]
    Branch {
        #[command(flatten)]
        store: Store,
        /// The directory for the branch: missing or empty.
        #[arg(value_name = "DIR", help_heading = None, value_parser = target::directory)]
        dir: PathBuf,
        /// The log with this id: all 32 digits. Needed if several have objects there, apart from named
        /// logs and branches.
        #[arg(long, value_name = "LOG-ID", value_parser = log_id)]
        log_id: Option<LogId>,
        /// The catalogue of the named logs, if the list of the cluster's logs is lost: all 32 digits. The catalogue
        /// names the groups.
        #[arg(long, value_name = "LOG-ID", requires = "log_id", conflicts_with = "pin", value_parser = log_id)]
        catalogue: Option<LogId>,
        /// The log alone, without the named logs of its cluster.
        #[arg(long, conflicts_with_all = ["catalogue", "without"])]
        only_log: bool,
        /// Leave this log of the cluster out: group-1 and so on, system (the catalogue) or default. Can be repeated.
        #[arg(long, value_name = "NAME")]
        without: Vec<String>,
        /// End the branch with this record. An append that continues after it is left out. Not of a cluster: each log of
        /// it counts its records by itself.
        #[arg(long, value_name = "INDEX", conflicts_with = "to_time", value_parser = whole_number::<u64>("the index of a record", 1..=u64::MAX))]
        to_index: Option<u64>,
        /// End the branch with what was written by this time: RFC 3339, a date, milliseconds since 1970, or a span
        /// ago (90s, 15m, 2h, 7d).
        #[arg(long, value_name = "TIME", value_parser = open_log::since)]
        to_time: Option<Timestamp>,
        /// Make it of the objects under the pin of this name, also if their records were discarded since.
        #[arg(long, value_name = "NAME")]
        pin: Option<String>,
        /// Status 0 also if a log of a cluster ends early, because slices or payload are missing or damaged. Without effect
        /// on a branch of one log.
        #[arg(long)]
        allow_early_end: bool,
    },
    /// Back up the log of running servers in the object store itself, under a pin.
    ///
    /// Has the servers put every record that is confirmed now into objects, however few they are, waits until these
    /// are stored, and pins all objects of the log. Nothing is copied. Records on no server's disk are in it, too.
    /// `chiplog tier fetch --pin` makes a directory of it, and `chiplog restore --to-index` a log without the
    /// records that were appended meanwhile. `chiplog tier unpin` removes the backup.
    ///
    /// Of the default log it covers the named logs of the cluster, too: the groups first, then their catalogue. It is refused
    /// if the object store does not have the list of all of these logs. If it is interrupted, there is no backup.
    ///
    /// It protects from what happens to the log and its servers, not from the loss of the bucket. Needs the role
    /// `admin` at the servers.
    #[command(after_long_help = BACKUP_EXAMPLES)]
    Backup {
        /// Servers of the cluster, by their address for clients. One that runs is enough; A,B,C are tried in turn.
        #[arg(value_name = "HOST:PORT")]
        servers: Servers,
        #[command(flatten)]
        store: Store,
        /// The name of the backup, which is that of the pin.
        #[arg(value_name = "NAME")]
        name: String,
        /// How long to wait until all is stored, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = whole_number::<u32>("a number of seconds", 1..=86_400))]
        timeout: u32,
        #[command(flatten)]
        connect: Box<Connect>,
    },
    /// Keep the objects of a log from deletion.
    ///
    /// The pin covers what is in objects now: all records that the log has, up to the end of its newest object, or
    /// of the object with record --upto. Discards and retention of the log go on, and its readers get `Discarded`
    /// as before. `chiplog tier fetch --pin` makes a backup of what the pin covers, at any time.
    ///
    /// Of the default log of a cluster with named logs it makes a pin of the catalogue and of each group as well,
    /// unless --upto is given.
    ///
    /// No server has to run. The command succeeds only if all of these objects are there and no deletion of them
    /// has begun. If it is interrupted, the pin may be there and lack objects: remove it and make it again.
    #[command(after_long_help = PIN_EXAMPLES)]
    Pin {
        #[command(flatten)]
        store: Store,
        /// The name of the pin: 1 to 64 of the characters a-z 0-9 . _ -, the first one a letter or a digit.
        #[arg(value_name = "NAME")]
        name: String,
        /// The log with this id: all 32 digits. Needed if several have objects there, branches too, apart from
        /// named logs.
        #[arg(long, value_name = "LOG-ID", value_parser = log_id)]
        log_id: Option<LogId>,
        /// Cover only the objects up to the one with this record.
        #[arg(long, value_name = "INDEX", value_parser = whole_number::<u64>("the index of a record", 1..=u64::MAX))]
        upto: Option<u64>,
    },
    /// Remove a pin.
    ///
    /// Its objects that are discarded, and under no other pin, are deleted when servers delete the next ones.
    /// Objects that the log is made of stay. The pin of a branch is not removed while there is a branch. Of the default log
    /// of a cluster with named logs it removes those of the catalogue and the groups that were made with it, too. If it is
    /// interrupted, what is left is no backup any more: repeat it.
    #[command(after_long_help = UNPIN_EXAMPLES)]
    Unpin {
        #[command(flatten)]
        store: Store,
        /// The name of the pin.
        #[arg(value_name = "NAME")]
        name: String,
        /// The log with this id: all 32 digits. Needed if several have objects there, branches too, apart from
        /// named logs.
        #[arg(long, value_name = "LOG-ID", value_parser = log_id)]
        log_id: Option<LogId>,
        /// Also if it is the pin of a branch, which loses these records then.
        #[arg(long)]
        force: bool,
    },
    /// List the pins of the logs in an object store.
    #[command(after_long_help = PINS_EXAMPLES)]
    Pins {
        #[command(flatten)]
        store: Store,
        /// Only those of the log with this id: all 32 digits.
        #[arg(long, value_name = "LOG-ID", value_parser = log_id)]
        log_id: Option<LogId>,
    },
}

const STATUS_EXAMPLES: &str = "\
Examples:
  chiplog tier status s3://bucket/chiplog
  chiplog tier status s3://bucket/chiplog --cluster log1:7411 --json | jq .server.unstored_records

Exit status:
  3  an object, a slice or payload that has to be there is missing or damaged, as far as this
     command reads them: it is shown as MISSING or DAMAGED. `chiplog tier verify` reads all,
     and says what to do

JSON fields, one object per line:
  log_id, role, cluster (both as in `chiplog tier list`), objects, bytes, first_object, last_object
  (numbers; null: there is none), root (whether the object `root` is there)
  first, last       the indexes of the records that these objects make a log of; null: none, or not
                    known, because something is missing or damaged (status 3)
  missing           how many objects are not there that have to be
  begin             all records of objects below this number are discarded
  branch_of         of a branch, which objects it reads from other logs, as in `chiplog tier list`;
                    the other figures are of its own objects alone, except for first and last
  pins              the names of the pins
  pinned_objects, pinned_bytes      of discarded records, under pins
  unneeded_objects, unneeded_bytes  of discarded records, under no pin
  payloads, payload_bytes           payload slices that may be needed, of a log with payload_slices
  unneeded_payloads, unneeded_payload_bytes  those that nothing needs
  payloads_unclear  why it cannot be seen which are needed: then all count as needed; else null
  unknown           objects that this version does not know
  sliced_last, tail_records, tail_bytes  the last record in slices and payload behind the newest
                    object (null: there are none), and how much is behind that object
  faults            what is wrong with these; `chiplog tier verify` says more
  server            null without --cluster; else {\"leader\", \"last\", \"stored_index\",
                    \"unstored_records\", \"unstored_bytes\", \"object_failures\"}, as the leader says";

const GC_EXAMPLES: &str = "\
Examples:
  chiplog tier gc s3://bucket/chiplog
  chiplog tier gc s3://bucket/chiplog --delete --json | jq .deleted
  chiplog tier gc s3://bucket/chiplog --log-id 5f0c39a1f3b54e0d8c1b5a7f2e9d4c36 --all --delete
      A cluster is gone for good: remove all that it had.

JSON fields, one object per line:
  log_id, role, cluster (both as in `chiplog tier list`)
  begin              all records of objects below this number are discarded
  begin_age_seconds  how long ago the store was told so; null: never, or it does not say
  needed_objects, needed_bytes      the log is made of them
  pins, pinned_objects, pinned_bytes      of discarded records, under pins of these names
  unneeded_objects, unneeded_bytes  of discarded records, under no pin
  due_objects, due_bytes            those of them of which --after has passed
  payloads, payload_bytes           payload slices that may be needed, of a log with payload_slices
  unneeded_payloads, unneeded_payload_bytes  those that nothing needs
  payloads_unclear  why it cannot be seen which are needed: then all count as needed; else null
  slices, slice_bytes               slices with its newest records
  old_begins, half_written          small files that nothing needs
  unknown            objects that this version does not know; they stay
  due                whether --after has passed since the store was told of any discard
  deleted            how many objects were deleted; of --all also everything else
  deleted_payloads   how many payload slices were deleted";

const BRANCH_EXAMPLES: &str = "\
Examples:
  chiplog tier branch s3://bucket/chiplog ./try
  chiplog tier branch s3://bucket/chiplog ./before --to-index 41200
  chiplog tier branch s3://bucket/chiplog ./before --to-time 2026-11-23T11:59:00Z
  chiplog tier branch s3://bucket/chiplog ./before --pin before-upgrade
  chiplog serve --node 1 --data ./try --object-store s3://bucket/chiplog
      A new cluster of it, with the same object store.

JSON fields:
  log_id, first, last, records, last_timestamp (ms since 1970), last_time, seconds
  left_out   {\"first\", \"last\"}, only if --to-index is inside an append, which is left out then
  branch_of  which objects it reads from other logs, as in `chiplog tier list`; none: it has
             all records itself; null: this could not be read
  Of a cluster these are of the default log, and there are also
  named_logs how many
  logs       the default log and the groups, each {\"name\", \"log_id\", \"branch_of\"}
  ends_early whether the catalogue, or a log that was copied from slices, ends before entries that
             the store has, or had (then the status is 8, without --allow-early-end)
  notes      for people: what is not as it was
  later      with --to-time: logs whose state at that time is not stored, and which are as of a
             later one (each with name, timestamp in ms since 1970, time)";

const BACKUP_EXAMPLES: &str = "\
Examples:
  chiplog tier backup log1:7411,log2:7411 s3://bucket/chiplog 2026-11-26
  chiplog tier fetch s3://bucket/chiplog ./backup --pin 2026-11-26
  chiplog restore ./backup /var/lib/chiplog/1
  chiplog tier unpin s3://bucket/chiplog 2026-11-26

JSON fields:
  those of `chiplog tier pins`, one object per line for each log";

const PIN_EXAMPLES: &str = "\
Examples:
  chiplog tier pin s3://bucket/chiplog before-upgrade
  chiplog tier pin s3://bucket/chiplog year-2026 --upto 8100200
  chiplog tier fetch s3://bucket/chiplog ./backup --pin before-upgrade

JSON fields:
  those of `chiplog tier pins`, one object per line for each log";

const UNPIN_EXAMPLES: &str = "\
Examples:
  chiplog tier unpin s3://bucket/chiplog before-upgrade
  chiplog tier unpin s3://bucket/chiplog branch-5f0c39a1f3b54e0d8c1b5a7f2e9d4c36
      The pin of a branch that was interrupted while it was made.

JSON fields, one object per line for each log:
  log_id, name";

const PINS_EXAMPLES: &str = "\
Examples:
  chiplog tier pins s3://bucket/chiplog
  chiplog tier pins s3://bucket/chiplog --json | jq -r 'select(.missing > 0).name'

Columns:
  LOG      the log's id
  ROLE     its place in a cluster, as in `chiplog tier list`
  NAME     the pin's name
  OBJECTS  the numbers of the first and the last object that it keeps
  RECORDS  the indexes of the first and the last record in these objects
  MADE     when it was made, by the clock of the machine that made it
  BACKUP   cluster: it is a part of a backup of all logs of a cluster, which `tier backup` or
           `tier pin` has made, and `tier unpin` removes as a whole; broken: the same, and a pin of
           another log is missing; branch: a branch reads these objects; log: of this log alone

JSON fields, one object per line:
  log_id, role, cluster (both as in `chiplog tier list`), name, first_object, last_object, first,
  last (indexes of records), made_time
  made_timestamp  ms since 1970
  missing         how many of these objects are not there: they are lost, or the command that made
                  the pin was interrupted
  branch          the id of the branch that reads these objects; null: it is no branch's pin
  set             of a part of a backup of a cluster, the id of the cluster's default log; else null
  set_empty       of such a part, the names of the logs of which the backup has nothing, because
                  nothing was stored
  broken          of a part of a backup that is none any more, why; else null";

const FETCH_EXAMPLES: &str = "\
Examples:
  chiplog tier fetch s3://bucket/chiplog /backup/lost
  chiplog restore /backup/lost /var/lib/chiplog/1
      A log that begins with these records, and all named logs. `chiplog serve` of node 1 makes a
      new cluster of it.
  chiplog tier fetch s3://bucket/chiplog /backup/most --without group-2
      An object of group-2 is damaged: all but the records of its logs.
  chiplog restore /backup/lost/default ./before --to-index 41200
  chiplog tier fetch s3://bucket/chiplog ./backup --pin before-upgrade
  chiplog tier fetch https://log1:7411 ./backup --tls-authority clients.pem --token-file ./token
      Through a server, without credentials of the bucket. Its newest records may be in no object
      yet: `chiplog backup` makes a copy with all of them. If the log has no object store, of its
      segments: without the records in the one that is still written.
  chiplog tier fetch /objects ./backup --log-id 5f0c39a1f3b54e0d8c1b5a7f2e9d4c36 --json | jq .last

JSON fields:
  those of `chiplog backup`; of a cluster without last_timestamp, last_time and unproven, with files
  and bytes of all logs, and
  logs        each {\"name\" (default, system for the catalogue, group-1 …), \"log_id\", \"first\",
              \"last\", \"bytes\", \"ends_early\"}
  ends_early  whether a log ends before entries that the store has, or had: slices or payload before
              them are missing or damaged, or nothing is left of a log of a cluster (then the status
              is 8, without --allow-early-end)
  notes       what the backup does not have, and why: one text each; `chiplog restore` repeats them
  branches    without --log-id: the branches that are there and were not fetched, one text each";

fn log_id(text: &str) -> Result<LogId, String> {
    chiplog_net::wire::ids::from_hex(text).map(LogId).map_err(|e| e.to_string())
}

/// An object store on the command line.
#[derive(Args, Debug)]
struct Store {
    /// Where the objects are, such as s3://BUCKET/PREFIX or an absolute path. For list, verify and fetch also a
    /// server: https://HOST:PORT.
    #[arg(value_name = "LOCATION", env = "CHIPLOG_OBJECT_STORE")]
    location: String,

    #[command(flatten)]
    access: StoreAccess,
}

impl Store {
    fn open(&self) -> Result<Arc<dyn Vault>> {
        self.access.open(&self.location)
    }

    /// For a command that only reads: the location can be a server, too.
    fn open_or_server(&self, connect: &Connect) -> Result<Arc<dyn Vault>> {
        self.access.open_or_server(&self.location, connect)
    }
}

pub(crate) fn run(args: &TierCommand, ui: &Ui) -> Result<Exit> {
    match &args.action {
        Action::List { store, connect } => list::run(&*store.open_or_server(connect)?, ui),
        Action::Fetch { store, dir, log_id, only_log, catalogue, without, pin, allow_early_end, connect } => {
            if pin.is_some() && is_server(&store.location) {
                let what = "pins are in the object store, and servers do not serve them: give the location of the store";
                return Err(Failure::usage(what));
            }
            if catalogue.is_some() && is_server(&store.location) {
                let what =
                    "a server may not run all groups of a catalogue: give the location of the object store";
                return Err(Failure::usage(what));
            }
            let server = store.access.open_server(&store.location, connect)?;
            let vault = match &server {
                Some(server) => server.clone(),
                None => store.open()?,
            };
            let segments =
                server.as_ref().map(|_| StoreAccess::open_segments(&store.location, connect)).transpose()?;
            let wanted = fetch::Wanted {
                log: *log_id,
                only_log: *only_log,
                catalogue: *catalogue,
                without,
                pin: pin.as_deref(),
                allow_early_end: *allow_early_end,
                server: server.as_deref(),
                segments: segments.as_ref(),
            };
            fetch::run(&*vault, dir, &wanted, ui)
        }
        Action::Pin { store, name, log_id, upto } => pins::pin(&*store.open()?, name, *log_id, *upto, ui),
        Action::Status { store, log_id, cluster, connect } => {
            status::run(&*store.open()?, *log_id, cluster.as_ref(), connect, ui)
        }
        Action::Gc { store, log_id, delete, after, all } => {
            let wanted = gc::Wanted { log: *log_id, delete: *delete, all: *all, after: *after };
            gc::run(&*store.open()?, &HalfWritten::at(&store.location), &wanted, ui)
        }
        Action::Backup { servers, store, name, timeout, connect } => {
            let timeout = Duration::from_secs(u64::from(*timeout));
            backup::run(servers, &*store.open()?, name, timeout, connect, ui)
        }
        Action::Branch {
            store,
            dir,
            log_id,
            only_log,
            catalogue,
            without,
            to_index,
            to_time,
            pin,
            allow_early_end,
        } => {
            let wanted = cluster_branch::Wanted {
                log: *log_id,
                only_log: *only_log,
                catalogue: *catalogue,
                without,
                to_index: *to_index,
                to_time: *to_time,
                pin: pin.as_deref(),
                allow_early_end: *allow_early_end,
            };
            branch::run(&*store.open()?, dir, &wanted, ui)
        }
        Action::Unpin { store, name, log_id, force } => {
            pins::unpin(&*store.open()?, name, *log_id, *force, ui)
        }
        Action::Pins { store, log_id } => pins::list(&*store.open()?, *log_id, ui),
        Action::Verify { store, log_id, connect } => {
            verify::run(&*store.open_or_server(connect)?, *log_id, ui)
        }
    }
}
