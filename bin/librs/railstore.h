/*
 * railstore.h: reading and writing RailStore objects and tables from C and C++.
 *
 * One process opens a session from a recipe, and reads objects over several RDMA
 * rails at once. docs/c-abi.md has the rules; in short:
 *
 *   - Every call but the few that return no int returns a status (RS_OK, ...) and,
 *     if err is not NULL, says in it what failed where.
 *   - Handles are numbers. None is used twice, so that an old one is an error and
 *     never somebody else's.
 *   - Structs begin with their size, which the caller sets: RS_..._INIT do. They may
 *     grow at their end. Fields that are zero are defaults, so NULL options are, too.
 *   - What comes through a char ** is the caller's: rs_free. What is in an rs_error is
 *     freed by rs_error_clear, and by the next call that gets the same rs_error.
 *   - All calls may come from any thread at any time, also with one session.
 *   - Names of objects are NAMESPACE/NAME. All text is UTF-8 and ends with a NUL.
 *   - After a fork without exec the library is of no use in the child: each call says so.
 */
#ifndef RAILSTORE_H
#define RAILSTORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when something is added. What is incompatible gets another library name. */
#define RS_ABI_VERSION 1u

/* Statuses are the exit codes of the command rs. */
#define RS_OK 0
#define RS_FAILED 1        /* the operation failed */
#define RS_USAGE 2         /* an argument, the recipe or the environment */
#define RS_NOT_READY 3     /* not running, not ready, or the time is over */
#define RS_INTEGRITY 4     /* what was read is not what was stored: nothing is handed over */
#define RS_DEGRADED 5      /* there is a result, but not as planned; only with RS_READ_FAIL_ON_DEGRADED */
#define RS_INTERRUPTED 130 /* cancelled, or the session was closed meanwhile */

typedef uint64_t rs_session; /* 0 is none; so with the others */
typedef uint64_t rs_lease;
typedef uint64_t rs_cancel;

/* What failed. Texts are never NULL after a failure, and NULL otherwise. */
typedef struct rs_error {
	uint32_t size;
	int32_t status;
	int32_t shard; /* -1: none in particular */
	int32_t lane;  /* -1 */
	char *kind;    /* one stable word: not_found, too_small, cancelled, ...; see docs/c-abi.md */
	char *layer;   /* where it was found: usage, config, control, wait, integrity, ... */
	char *op;      /* what was being done: read, put, connect, ... */
	char *rail;    /* empty: none in particular */
	char *device;  /* empty */
	char *message;
	char *hint;    /* what to do about it; may be empty */
	char *json;    /* all of it, as rs --format json has it */
} rs_error;

#ifdef __cplusplus
#define RS_INIT_(T, ...) T{(uint32_t)sizeof(T), __VA_ARGS__}
#else
#define RS_INIT_(T, ...) {(uint32_t)sizeof(T), __VA_ARGS__}
#endif

#define RS_ERROR_INIT RS_INIT_(rs_error, 0, -1, -1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)

/* How to open a session. */
typedef struct rs_session_options {
	uint32_t size;
	uint32_t flags;                 /* 0 */
	const char *recipe;             /* FILE.cue, or FILE.json as rs up keeps it; NULL: RS_CONFIG of the environment */
	const char *host;               /* of the recipe, whose rails are used; NULL: the first one without a shard */
	const char *rails;              /* names with commas between them; NULL: all of the host */
	const char *const *environment; /* NAME=VALUE, NULL after the last; NULL: the process's as it is now */
	int64_t timeout_ms;             /* for reaching the shards; 0: 30 s */
	rs_cancel cancel;
} rs_session_options;
#define RS_SESSION_OPTIONS_INIT RS_INIT_(rs_session_options, 0, NULL, NULL, NULL, NULL, 0, 0)

/* How to do a call that has no options of its own. */
typedef struct rs_call_options {
	uint32_t size;
	uint32_t flags;      /* 0 */
	int64_t deadline_ms; /* from now on; 0: none */
	rs_cancel cancel;
} rs_call_options;
#define RS_CALL_OPTIONS_INIT RS_INIT_(rs_call_options, 0, 0, 0)

#define RS_READ_FAIL_ON_DEGRADED 1u

typedef struct rs_read_options {
	uint32_t size;
	uint32_t flags;
	const char *rails;   /* only these; NULL: all of the session */
	uint64_t offset;     /* of the part that is wanted */
	uint64_t length;     /* 0: to the end */
	int64_t deadline_ms; /* from now on; 0: the recipe's */
	rs_cancel cancel;
	char **report;       /* not NULL: gets what the read did, as JSON */
} rs_read_options;
#define RS_READ_OPTIONS_INIT RS_INIT_(rs_read_options, 0, NULL, 0, 0, 0, 0, NULL)

#define RS_PUT_IF_ABSENT 1u

typedef struct rs_put_options {
	uint32_t size;
	uint32_t flags;
	const char *rails;      /* only these; NULL: all of the session */
	uint64_t if_generation; /* not 0: fail unless the object is this generation */
	uint64_t stripe_bytes;  /* 0: the recipe's */
	int64_t ttl_ms;         /* for which the object is there; 0: for ever */
	int64_t deadline_ms;    /* from now on; 0: none */
	rs_cancel cancel;
	char **report;          /* not NULL: gets what the put did, as JSON */
} rs_put_options;
#define RS_PUT_OPTIONS_INIT RS_INIT_(rs_put_options, 0, NULL, 0, 0, 0, 0, 0, NULL)

/* An object, or a part of one, in registered memory: complete, verified, and nobody
 * writes to it any more. It stays until rs_lease_release. */
typedef struct rs_leased {
	uint32_t size;
	uint32_t reserved;
	rs_lease lease; /* 0: none */
	const void *data;
	uint64_t length;
	uint64_t generation;
} rs_leased;
#define RS_LEASED_INIT RS_INIT_(rs_leased, 0, 0, NULL, 0, 0)

/* One read of a batch. */
typedef struct rs_read_item {
	uint32_t size;
	uint32_t flags; /* 0 */
	const char *name;
	uint64_t offset;
	uint64_t length; /* 0: to the end */
} rs_read_item;
#define RS_READ_ITEM_INIT RS_INIT_(rs_read_item, 0, NULL, 0, 0)

/* The library's RS_ABI_VERSION, and its version as text, which is not freed. */
uint32_t rs_abi_version(void);
const char *rs_version(void);

void rs_free(void *p);             /* NULL is fine */
void rs_error_clear(rs_error *err); /* NULL is fine; the struct may be used again */

/* A cancel ends the calls that name it: those under way and those that come. */
int rs_cancel_new(rs_cancel *out, rs_error *err);
int rs_cancel_fire(rs_cancel cancel, rs_error *err);
int rs_cancel_free(rs_cancel cancel, rs_error *err);

/* Connects to the shards of a deployment that is up. */
int rs_session_open(const rs_session_options *options, rs_session *out, rs_error *err);
/* Ends the calls under way, waits for them, and closes. When leases are held it says so
 * (RS_FAILED, kind leased): they stay readable, and it is closed all the same. A second
 * call does nothing. */
int rs_session_close(rs_session session, rs_error *err);
/* The deployment, its digest, the host, the client's name, its rails and shards. */
int rs_session_describe(rs_session session, char **json, rs_error *err);

/* Which bytes a read would take over which rail; nothing is read. */
int rs_plan(rs_session session, const char *name, const rs_read_options *options, char **json, rs_error *err);
/* Reads into buffer, which is untouched unless all of it arrived and was verified.
 * got, if not NULL, gets the number of bytes. */
int rs_read_into(rs_session session, const char *name, void *buffer, size_t length, size_t *got,
	const rs_read_options *options, rs_error *err);
/* Reads into memory of the session, without a copy. */
int rs_read(rs_session session, const char *name, const rs_read_options *options, rs_leased *out, rs_error *err);
/* A second call does nothing. */
int rs_lease_release(rs_lease lease, rs_error *err);
/* Reads count items, together at once (0: all), each into a lease of its own. Each stands
 * for itself: a lease is 0 where errors has a failure. errors may be NULL; err has the
 * first failure, and its status is returned. Offset and length of options are not used;
 * report gets a list. */
int rs_read_batch(rs_session session, const rs_read_item *items, size_t count, size_t together,
	const rs_read_options *options, rs_leased *out, rs_error *errors, rs_error *err);

/* Stores memory as an object: all of it, durable, or what was there stays. */
int rs_put(rs_session session, const char *name, const void *data, size_t length,
	const rs_put_options *options, rs_error *err);
/* Removes an object; generation 0 is any. report may be NULL. */
int rs_remove(rs_session session, const char *name, uint64_t generation, const rs_call_options *options,
	char **report, rs_error *err);
/* An object's descriptor and placement. */
int rs_stat(rs_session session, const char *name, const rs_call_options *options, char **json, rs_error *err);
/* At most limit (0: 500) objects whose names begin with prefix (NAMESPACE[/PREFIX], NULL:
 * all) and sort after the name after (NULL: from the first). */
int rs_list(rs_session session, const char *prefix, const char *after, uint32_t limit,
	const rs_call_options *options, char **json, rs_error *err);

/* Every rail with what it did since the session was opened, and its state. */
int rs_rails(rs_session session, char **json, rs_error *err);
/* What the session's last read that succeeded did, of any thread; null before the first.
 * The report of a read of one's own is in its options. */
int rs_last_report(rs_session session, char **json, rs_error *err);

/* Tables: count keys, and floats = count x the table's dim float32 in the order of the
 * keys. A key without a row gets zeros, and found[i], of an array that may be NULL, is 0.
 * After a failure rows and found may hold anything. */
int rs_table_describe(rs_session session, const char *table, const rs_call_options *options, char **json, rs_error *err);
int rs_table_get(rs_session session, const char *table, const uint64_t *keys, size_t count, float *rows, size_t floats,
	uint8_t *found, const rs_call_options *options, rs_error *err);
int rs_table_put(rs_session session, const char *table, const uint64_t *keys, size_t count, const float *rows,
	size_t floats, const rs_call_options *options, rs_error *err);
/* Rows are gradients, which the table's optimizer applies, each once. */
int rs_table_update(rs_session session, const char *table, const uint64_t *keys, size_t count, const float *rows,
	size_t floats, const rs_call_options *options, rs_error *err);

#ifdef __cplusplus
}
#endif

#endif /* RAILSTORE_H */
