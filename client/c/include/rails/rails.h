/* The C interface of railsd's client: sessions, segments, groups, asynchronous all-to-all(v) jobs. librails.so.
 *
 *   rails_client *client = NULL;
 *   rails_error *error = rails_connect(NULL, &client);
 *   if (error != NULL) { fprintf(stderr, "%s\n", error->text); rails_error_free(error); return 1; }
 *
 * Calls. A function that can fail returns an error, or NULL if it has succeeded. It changes no output argument when it
 * fails, unless its comment says otherwise. The caller frees the error with rails_error_free(). No function throws,
 * calls back, prints, sets errno on purpose, or raises or handles signals.
 *
 * Threads. Every function may be called from any thread at any time. One handle may be used by several threads at once;
 * do not free a handle while another call uses it.
 *
 * Handles. A handle is an opaque pointer that its *_free() or rails_close() ends; NULL is allowed there. Handles may be
 * freed in any order: the library keeps what unfinished jobs still use. Strings and arrays that the library returns
 * belong to the handle that they were asked of, do not change, and live as long as it.
 *
 * Structures. A structure with a `size` begins with RAILS_..._INIT, or with all bytes 0 and `size` set to its sizeof. A
 * field that is 0 has its default. Later versions add fields at the end; programs compiled before then keep working.
 * INVALID_ARGUMENT: `size` is 0, or the structure sets fields that this library does not know. The library copies what
 * it needs before a function returns.
 *
 * Times are nanoseconds. Every function that waits for the daemon or for other ranks has a time limit; RAILS_FOREVER is
 * none.
 *
 * fork. A client belongs to the process that made it. In a forked child every function of its handles fails at once
 * with FAILED_PRECONDITION, its handles may be freed, and the segments' memory is shared with the parent. The child may
 * connect anew. The parent is not affected.
 *
 * The library keeps one thread for each client, and one for each group that recovers (RAILS_RECOVERY_WAIT). They sleep
 * while nothing happens, and block all signals. Every descriptor closes on exec. */
#ifndef RAILS_RAILS_H_
#define RAILS_RAILS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RAILS_MUST_USE __attribute__((warn_unused_result))
#else
#define RAILS_MUST_USE
#endif

#define RAILS_FOREVER INT64_MAX

typedef struct rails_client rails_client;     /* a session with the daemon of this node */
typedef struct rails_segment rails_segment;   /* memory that the daemon shares */
typedef struct rails_group rails_group;       /* this rank's membership in a group */
typedef struct rails_prepared rails_prepared; /* ranges that many jobs use */
typedef struct rails_job rails_job;           /* this rank's part of an all-to-all(v) */

/* ---- Errors and version ---- */

/* The codes of gRPC and Abseil. */
enum {
  RAILS_OK = 0,
  RAILS_CANCELLED = 1,
  RAILS_UNKNOWN = 2,
  RAILS_INVALID_ARGUMENT = 3,
  RAILS_DEADLINE_EXCEEDED = 4,
  RAILS_NOT_FOUND = 5,
  RAILS_ALREADY_EXISTS = 6,
  RAILS_PERMISSION_DENIED = 7,
  RAILS_RESOURCE_EXHAUSTED = 8,
  RAILS_FAILED_PRECONDITION = 9,
  RAILS_ABORTED = 10,
  RAILS_OUT_OF_RANGE = 11,
  RAILS_UNIMPLEMENTED = 12,
  RAILS_INTERNAL = 13,
  RAILS_UNAVAILABLE = 14,
  RAILS_DATA_LOSS = 15,
  RAILS_UNAUTHENTICATED = 16
};

/* Made by the library only; later versions may add fields at the end. */
typedef struct rails_error {
  int32_t code;          /* RAILS_INVALID_ARGUMENT and so on; never RAILS_OK */
  const char *text;      /* what failed, on what, with which value, what to do; without the code. Never NULL */
  const char *node;      /* the node of all `ranks`; NULL: they are on several, or not known */
  const uint32_t *ranks; /* ranks whose failure is the cause: left, died, late, or node lost; 64 at most */
  size_t rank_count;     /* 0: none, or not known */
} rails_error;

void rails_error_free(rails_error *error);

/* "INVALID_ARGUMENT" and so on; "UNKNOWN" for another number. Static. */
const char *rails_code_name(int32_t code);

/* Version of the library, such as "0.1.0". Static. */
const char *rails_version(void);

/* ---- Clients ---- */

typedef struct rails_client_options {
  size_t size;
  const char *socket_dir;     /* of the daemon; default: /run/railsd */
  const char *client_name;    /* shown to operators, in the daemon's log; default: empty */
  int64_t connect_timeout_ns; /* how long to retry while the daemon does not run; default: 10 s */
  int64_t spin_ns; /* how long a waiting thread looks for an answer before it sleeps; costs a processor. Default: 0 */
} rails_client_options;
#define RAILS_CLIENT_OPTIONS_INIT \
  { sizeof(rails_client_options), NULL, NULL, 0, 0 }

/* Opens a session. `options`: NULL for the defaults. End it with rails_close(). UNAVAILABLE, PERMISSION_DENIED: names
 * the socket and says what to do. */
RAILS_MUST_USE rails_error *rails_connect(const rails_client_options *options, rails_client **client);

/* Ends the session and the handle. Unfinished jobs end with CANCELLED. Waits at most a second for the daemon. */
void rails_close(rails_client *client);

/* 1 until the daemon has exited, then 0; 0 in a forked child. Makes no call to the daemon. */
int32_t rails_connected(const rails_client *client);

/* After the daemon has exited: opens a new session and registers the living segments again. Groups can then be joined
 * again; groups with RAILS_RECOVERY_WAIT do all that by themselves. Waits at most `connect_timeout_ns`, and then at
 * most a minute for each segment. Succeeds without effect while connected. */
RAILS_MUST_USE rails_error *rails_reconnect(rails_client *client);

/* Name of this node. */
const char *rails_node(const rails_client *client);

/* A descriptor for poll, epoll or an event loop: readable after a job of the client has ended that was submitted after
 * the first call of this function. Read 8 bytes from it, which makes it unreadable again, then rails_job_test() each
 * unfinished job. The descriptor is an eventfd, does not block, and belongs to the client: do not close it. */
RAILS_MUST_USE rails_error *rails_client_fd(rails_client *client, int32_t *fd);

/* ---- Memory ---- */

/* Huge pages. RESOURCE_EXHAUSTED if the system has none free. */
#define RAILS_SEGMENT_HUGE_PAGES 1u
/* Touches no page; the process that touches a page first is charged for it. */
#define RAILS_SEGMENT_LAZY 2u

typedef struct rails_segment_options {
  size_t size;
  uint64_t flags;     /* RAILS_SEGMENT_... */
  const char *name;   /* shown in /proc/PID/maps; default: "rails-segment" */
  int64_t timeout_ns; /* for each of the daemon's two answers; default: 1 minute */
} rails_segment_options;
#define RAILS_SEGMENT_OPTIONS_INIT \
  { sizeof(rails_segment_options), 0, NULL, 0 }

/* Makes shared memory, zeroed, and registers it with the daemon. `options`: NULL for the defaults. RESOURCE_EXHAUSTED:
 * memory or a quota. UNAVAILABLE: the daemon has exited, or does not answer. */
RAILS_MUST_USE rails_error *rails_segment_alloc(rails_client *client, uint64_t length_bytes,
                                                const rails_segment_options *options, rails_segment **segment);

/* Registers a memfd of the caller, which must carry F_SEAL_SHRINK, and maps it; or a dma-buf, memory of a GPU for
 * example, without mapping it. The caller keeps `fd`. `timeout_ns`: 0 for 1 minute. UNIMPLEMENTED: a rail of the node
 * cannot reach the dma-buf. */
RAILS_MUST_USE rails_error *rails_segment_import(rails_client *client, int32_t fd, uint64_t length_bytes,
                                                 int64_t timeout_ns, rails_segment **segment);

/* The first byte of the mapping, which lives as long as the segment, or longer if an unfinished job uses it. NULL for
 * memory of a device. */
void *rails_segment_data(const rails_segment *segment);

/* Length in bytes. */
uint64_t rails_segment_length(const rails_segment *segment);

/* Ends the handle. The memory is given back once no unfinished job and no prepared exchange uses it. */
void rails_segment_free(rails_segment *segment);

/* ---- Devices ---- */

/* An NVIDIA GPU of this process: its memory can be sent and received by groups that are joined with it. The library
 * loads the driver when the first device is opened. Calls work with the device's primary context, which the CUDA
 * runtime uses too, and leave the thread's current context as it was. */
typedef struct rails_device rails_device;

/* Stages memory of the device also where RDMA devices could reach it. */
#define RAILS_DEVICE_STAGED 1u
/* rails_job_wait_on() waits on the calling thread also where streams could wait. */
#define RAILS_DEVICE_BLOCKING 2u

typedef struct rails_device_options {
  size_t size;
  int32_t ordinal;    /* as for cudaSetDevice() */
  uint32_t flags;     /* RAILS_DEVICE_... */
  const char *driver; /* default: "libcuda.so.1" */
} rails_device_options;
#define RAILS_DEVICE_OPTIONS_INIT \
  { sizeof(rails_device_options), 0, 0, NULL }

/* `options`: NULL for the defaults. Only groups of `client` can be joined with the device, which must not be used, only
 * freed, after rails_close(). NOT_FOUND: there is no
 * driver, or no such device. UNAVAILABLE: the driver does not start. UNIMPLEMENTED: it is older than CUDA 11. */
RAILS_MUST_USE rails_error *rails_device_open(rails_client *client, const rails_device_options *options,
                                              rails_device **device);

/* Such as "NVIDIA H100". */
const char *rails_device_name(const rails_device *device);

/* NULL if a stream can wait for a job without a thread that waits: rails_job_wait_on(). Else the reason. */
const char *rails_device_blocks(const rails_device *device);

/* NULL if RDMA devices reach memory of the device, so that bytes to and from other nodes are not copied. Else they are
 * staged in pinned memory, and this is the reason. */
const char *rails_device_staged(const rails_device *device);

/* Allocates memory of the device, or names memory of the caller at `address`, who frees it after the last job that uses
 * it. INVALID_ARGUMENT: the bytes are not all in one allocation of this device. */
RAILS_MUST_USE rails_error *rails_device_alloc(rails_device *device, uint64_t length_bytes, rails_segment **segment);
RAILS_MUST_USE rails_error *rails_device_import(rails_device *device, uint64_t address, uint64_t length_bytes,
                                                rails_segment **segment);

/* The address on the device (CUdeviceptr) of such memory; 0 for other segments. */
uint64_t rails_device_address(const rails_segment *segment);

/* Ends the handle. Its memory and groups stay. */
void rails_device_free(rails_device *device);

/* ---- Groups ---- */

/* What becomes of a group when one of its nodes is lost. Equal on all ranks. */
enum {
  RAILS_RECOVERY_FAIL = 1,   /* jobs fail with UNAVAILABLE and the node's name, and the group is over */
  RAILS_RECOVERY_WAIT = 2,   /* jobs wait `wait_limit_ns` for a silent daemon, and `restart_limit_ns` for a new one */
  RAILS_RECOVERY_DEGRADE = 3 /* the other nodes go on; rails_report names the lost ranks */
};

/* With a device: the daemon copies between ranks of this node, and not their GPUs by CUDA IPC. Need not be equal. */
#define RAILS_GROUP_NO_LOCAL_COPIES 1u

typedef struct rails_group_options {
  size_t size;
  const char *name;     /* required */
  const char *join_key; /* secret shared by the ranks; default: empty */
  uint32_t world_size;  /* required */
  uint32_t rank;
  int64_t timeout_ns;       /* for all ranks to join; default: 2 minutes */
  int32_t recovery;         /* default: RAILS_RECOVERY_FAIL */
  int32_t reserved;         /* 0 */
  int64_t wait_limit_ns;    /* required for RAILS_RECOVERY_WAIT, 0 otherwise */
  int64_t restart_limit_ns; /* for RAILS_RECOVERY_WAIT; default: 2 minutes; -1: no restarts */
  rails_device *device;     /* jobs may use its memory; default: NULL, none. On all ranks or on none */
  uint64_t slice_bytes;     /* with a device: bytes that a rank copies at once; equal on every rank; default: 16 MiB */
  uint32_t slices;          /* with a device: slices under way; default: 4 */
  uint32_t device_flags;    /* RAILS_GROUP_... */
} rails_group_options;
#define RAILS_GROUP_OPTIONS_INIT \
  { sizeof(rails_group_options), NULL, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0 }

/* Joins a group. Blocks until every rank has joined. Nodes of a group may have several ranks, in one process or in
 * several.
 *
 * With a device, an error of one job ends the group at every rank, RAILS_RECOVERY_DEGRADE and rails_prepare() are
 * refused, `vote` must be 0, and errors of the daemon are the job's. rails_job_cancel() ends the group: other ranks
 * learn that this one has left. At most 64 jobs are unfinished. Its jobs have slices of pinned memory: twice `slices`
 * times `slice_bytes`. */
RAILS_MUST_USE rails_error *rails_join(rails_client *client, const rails_group_options *options, rails_group **group);

/* Node of a rank; NULL if `rank` is outside the group. */
const char *rails_group_node(const rails_group *group, uint32_t rank);

/* Leaves the group: it takes no more jobs, and its unfinished jobs fail at every rank. Waits at most 10 s for the
 * daemon. Succeeds without effect if the rank has left. The handle stays. */
RAILS_MUST_USE rails_error *rails_leave(rails_group *group);

/* Leaves as rails_leave() does, and ends the handle. */
void rails_group_free(rails_group *group);

/* ---- Jobs ---- */

typedef struct rails_job_options {
  size_t size;
  uint64_t tag;              /* the caller's own mark (layer, iteration); equal on every rank; default: 0 */
  int64_t timeout_ns;        /* for the job, from its acceptance; default: the daemon's limit */
  int64_t submit_timeout_ns; /* for the daemon to accept the job; default: 30 s */
  uint64_t flags;            /* RAILS_JOB_...; default: 0 */
  uint64_t vote;             /* any number; rails_report.highest_vote is the highest of all ranks; default: 0 */
  void *stream;              /* RAILS_JOB_ON_STREAM: a CUstream or cudaStream_t; NULL is the legacy default stream */
} rails_job_options;
#define RAILS_JOB_OPTIONS_INIT \
  { sizeof(rails_job_options), 0, 0, 0, 0, 0, NULL }

/* Lengths to receive are capacities: a source may send less. Its bytes land at the beginning of its range or ranges,
 * and rails_report.received_by_rank counts them. The job fails if a source sends more. It may have at most 16,384
 * ranges to receive. Equal on every rank. */
#define RAILS_JOB_CAPACITIES 1u
/* In a group with a device: the job begins when `stream` has come to the point of this call. Without the flag its bytes
 * must be ready. Need not be equal on every rank. */
#define RAILS_JOB_ON_STREAM 2u
/* This node sends the job's bytes before those of other jobs of its tenant to the same nodes, and copies them first.
 * Other tenants keep their shares. It is enough that one of the node's ranks says so. Need not be equal on every rank.
 * In a group with a device jobs are cut into slices in their order: an urgent one does not overtake before that. */
#define RAILS_JOB_URGENT 4u

/* Contiguous buffers: the bytes for rank 0, then the bytes for rank 1, and so on. The same for received bytes. */
typedef struct rails_buffers {
  size_t size;
  rails_segment *send;           /* may be NULL if all of `send_bytes` is 0 */
  uint64_t send_offset;          /* of the bytes for rank 0, in the segment */
  const uint64_t *send_bytes;    /* for each rank: bytes that go there */
  rails_segment *receive;        /* may be NULL if all of `receive_bytes` is 0 */
  uint64_t receive_offset;       /* of the bytes from rank 0, in the segment */
  const uint64_t *receive_bytes; /* for each rank: bytes that come from there */
} rails_buffers;
#define RAILS_BUFFERS_INIT \
  { sizeof(rails_buffers), NULL, 0, NULL, NULL, 0, NULL }

/* Bytes [offset, offset + length) of a segment. */
typedef struct rails_range {
  rails_segment *segment;
  uint64_t offset;
  uint64_t length;
} rails_range;

/* The bytes exchanged with one rank, in the order of the ranges. */
typedef struct rails_flow {
  uint32_t rank;
  uint32_t range_count;
  const rails_range *ranges;
} rails_flow;

/* Any ranges. The rank exchanges nothing with ranks that are left out. */
typedef struct rails_layout {
  size_t size;
  const rails_flow *sends; /* by destination rank */
  size_t send_count;
  const rails_flow *receives; /* by source rank */
  size_t receive_count;
} rails_layout;
#define RAILS_LAYOUT_INIT \
  { sizeof(rails_layout), NULL, 0, NULL, 0 }

/* Submits this rank's part of the group's next job. Every rank submits its jobs in the same order: the n-th of each is
 * the same job. Jobs of a group run at the same time and may end in any order. From here to the job's end its buffers
 * belong to the daemon: write neither what it sends nor what it receives, and read nothing that it receives.
 *
 * The two ends of a flow may cut it into ranges differently; their totals must agree. A receive range must not overlap
 * another range of this job, or of another unfinished job of the client. Exception: bytes that the rank sends to itself
 * may stay in place. The ranges that it receives from itself must then be the ranges that it sends to itself, or begin
 * with them.
 *
 * `options`: NULL for the defaults. A refused job takes no number and changes nothing. INVALID_ARGUMENT: names the
 * field and the value. FAILED_PRECONDITION: another unfinished job uses bytes of this one, the group is over, or a
 * segment was in use by a job whose end this client has not seen. UNAVAILABLE: the daemon drains, has exited, or does
 * not answer in time. */
RAILS_MUST_USE rails_error *rails_all_to_all_v(rails_group *group, const rails_buffers *buffers,
                                               const rails_job_options *options, rails_job **job);
RAILS_MUST_USE rails_error *rails_all_to_all_ranges(rails_group *group, const rails_layout *layout,
                                                    const rails_job_options *options, rails_job **job);

/* Makes the daemon check and keep ranges, so that jobs that use them have no cost per range. The lengths of the ranges
 * are the most that a job can move. Other ranks need not prepare. `timeout_ns`: 0 for 30 s. Errors as above;
 * RESOURCE_EXHAUSTED: the daemon's limits.max_prepared_per_session or limits.max_prepared_ranges_per_session. */
RAILS_MUST_USE rails_error *rails_prepare(rails_group *group, const rails_layout *layout, int64_t timeout_ns,
                                          rails_prepared **prepared);

/* Submits a job as above that uses prepared ranges. `send_bytes`, `receive_bytes`: bytes of each flow, in the order of
 * the layout; a flow uses that many bytes from the beginning of its ranges. NULL: all bytes. With RAILS_JOB_CAPACITIES
 * `receive_bytes` are capacities, or all bytes if it is NULL. The rule on unfinished jobs counts all ranges of the
 * layout. INVALID_ARGUMENT: a length exceeds the bytes of the flow's ranges. */
RAILS_MUST_USE rails_error *rails_submit_prepared(rails_prepared *prepared, const uint64_t *send_bytes,
                                                  const uint64_t *receive_bytes, const rails_job_options *options,
                                                  rails_job **job);

/* Releases the ranges in the daemon once the jobs that use them have ended. */
void rails_prepared_free(rails_prepared *prepared);

/* Blocks until the job has ended or `timeout_ns` has passed; 0 looks once. Sets `*done` to 1 if the job has ended, else
 * to 0, also when it returns an error. NULL with `*done` 1: the job has succeeded, and its buffers are the caller's
 * again.
 *
 * An error with `*done` 1 says why the job failed; each later call returns the same. UNAVAILABLE, and others from the
 * daemon: names the node or rank. CANCELLED: rails_job_cancel() of some rank, or rails_close(). DEADLINE_EXCEEDED: the
 * job's own time limit. ABORTED: a daemon has exited; segments of the job are refused for other jobs until that
 * daemon's process has ended. Errors with `*done` 0: UNAVAILABLE, the daemon runs but does not answer, wait again;
 * FAILED_PRECONDITION, this is a forked child. */
RAILS_MUST_USE rails_error *rails_job_wait(rails_job *job, int64_t timeout_ns, int32_t *done);

/* As rails_job_wait() with a timeout of 0. Looks into shared memory only, and makes no call to the daemon. */
RAILS_MUST_USE rails_error *rails_job_test(rails_job *job, int32_t *done);

/* In a group with a device: makes later work on `stream` wait until the job has ended, well or not: received bytes are
 * then in place, and sent ones may be overwritten. Returns at once, or blocks until the end if rails_device_blocks().
 * Returns the job's error if it has failed already; rails_job_wait() tells a later one. Meanwhile the stream stands
 * still, so a call that waits for the whole device, such as cudaFree(), waits for the job. */
RAILS_MUST_USE rails_error *rails_job_wait_on(rails_job *job, void *stream);

/* Asks every rank to end the job, which then fails with CANCELLED unless it has already ended. If the job was running,
 * the group is over, as it is after a job's time limit. Waits at most 10 s for the daemon. UNAVAILABLE: the group waits
 * for a daemon. */
RAILS_MUST_USE rails_error *rails_job_cancel(rails_job *job);

/* The outcome of this rank's part of a job. Times are nanoseconds. */
typedef struct rails_report {
  size_t size;
  uint64_t seq; /* number of the job in its group, from 1 */
  uint64_t bytes_sent;
  uint64_t bytes_received;
  int64_t elapsed_ns;
  int64_t waiting_for_ranks_ns;
  int64_t waiting_for_peers_ns;
  int64_t to_first_chunk_ns; /* from acceptance until a rail got the job's first chunk */
  int64_t node_bound_ns;     /* max(out, in) / sum of rail speeds, of the whole job on this node */
  double ratio_to_bound;
  const uint64_t *rail_tx_bytes; /* by rail, of the whole job on this node */
  const uint64_t *rail_rx_bytes;
  size_t rail_count;
  uint64_t eager_sent_bytes; /* of the whole job on this node: short exchanges, which no rail carried */
  uint64_t eager_received_bytes;
  const uint32_t *lost_ranks; /* RAILS_RECOVERY_DEGRADE: ranks that were lost before all their bytes were exchanged */
  size_t lost_rank_count;
  uint32_t replays; /* RAILS_RECOVERY_WAIT: how often the job was submitted again */
  uint32_t reserved;
  const uint64_t *received_by_rank; /* RAILS_JOB_CAPACITIES: bytes that each source sends; NULL otherwise */
  size_t received_count;            /* ranks of the group, or 0 */
  /* If the job has succeeded: the highest `vote` of all ranks, the same at every rank. Otherwise the highest that is
   * known. RAILS_RECOVERY_DEGRADE: the vote of a lost rank counts only where its node had told it, so ranks may see
   * different numbers after a loss. */
  uint64_t highest_vote;
  /* Groups with a device, else 0: bytes that the GPU has copied to pinned memory, from it, and from other ranks'
   * devices of this node; jobs of the daemon. The figures above are the sums of these jobs. */
  uint64_t copied_out_bytes, copied_in_bytes, copied_local_bytes;
  uint64_t slices;
} rails_report;
#define RAILS_REPORT_INIT \
  { sizeof(rails_report), 0, 0, 0, 0, 0, 0, 0, 0, 0.0, NULL, NULL, 0, 0, 0, NULL, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0 }

/* Fills `report`; if the job has failed, with what is known. Makes no call to the daemon. The arrays belong to the job.
 * Fields that this library does not know become 0. FAILED_PRECONDITION: the job has not ended, or this is a forked
 * child. */
RAILS_MUST_USE rails_error *rails_job_report(rails_job *job, rails_report *report);

/* Ends the handle; neither cancels nor waits. The library follows the job to its end and keeps its segments until
 * then. */
void rails_job_free(rails_job *job);

#ifdef __cplusplus
}
#endif

#endif /* RAILS_RAILS_H_ */
