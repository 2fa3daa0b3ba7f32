// The library's functions: what is wrong with the arguments is told here, before Go is
// entered, and structs of older and newer callers become those of this release.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"
#include "shim.h"

#define API __attribute__((visibility("default")))

// Sizes of the first release. Structs may grow, but whoever was compiled with these is served.
enum { ERROR_1 = 80, SESSION_1 = 56, CALL_1 = 24, READ_1 = 56, PUT_1 = 64, LEASED_1 = 40, ITEM_1 = 32 };
#if defined(__LP64__)
_Static_assert(sizeof(rs_error) == ERROR_1, "rs_error has grown: that is fine, but say so here");
_Static_assert(sizeof(rs_session_options) == SESSION_1, "rs_session_options has grown");
_Static_assert(sizeof(rs_call_options) == CALL_1, "rs_call_options has grown");
_Static_assert(sizeof(rs_read_options) == READ_1, "rs_read_options has grown");
_Static_assert(sizeof(rs_put_options) == PUT_1, "rs_put_options has grown");
_Static_assert(sizeof(rs_leased) == LEASED_1, "rs_leased has grown");
_Static_assert(sizeof(rs_read_item) == ITEM_1, "rs_read_item has grown");
#else
#error "the library is for 64-bit platforms: its structs have 64-bit pointers"
#endif

extern char **environ;

char **rsi_environment(void) { return environ; }

// Go's threads do not survive a fork: in the child a call would wait for them for ever.
static volatile int forked;
static void child(void) { forked = 1; }
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, child); }

void rsi_adopt(rs_error *err, int status, int shard, int lane, char *block) {
	if (err == NULL) {
		free(block);
		return;
	}
	rs_error e;
	memset(&e, 0, sizeof e);
	e.size = err->size;
	e.status = status;
	e.shard = shard;
	e.lane = lane;
	char **texts[] = {&e.kind, &e.layer, &e.op, &e.rail, &e.device, &e.message, &e.hint, &e.json};
	for (size_t i = 0; i < sizeof texts / sizeof texts[0] && block != NULL; i++) {
		*texts[i] = block;
		block += strlen(block) + 1;
	}
	memcpy(err, &e, err->size < sizeof e ? err->size : sizeof e);
}

API void rs_error_clear(rs_error *err) {
	if (err == NULL || err->size < ERROR_1)
		return;
	free(err->kind); // the block begins with it
	rsi_adopt(err, RS_OK, -1, -1, NULL);
}

// refuse is a failure that needs no Go.
static int refuse(rs_error *err, const char *kind, const char *op, const char *message, const char *hint) {
	if (err == NULL)
		return RS_USAGE;
	char block[1024];
	int n = snprintf(block, sizeof block, "%s%cusage%c%s%c%c%c%s%c%s%c{\"error\":{\"layer\":\"usage\",\"op\":\"%s\",\"kind\":\"%s\",\"message\":\"%s\",\"hint\":\"%s\"}}",
		kind, 0, 0, op, 0, 0, 0, message, 0, hint, 0, op, kind, message, hint);
	if (n >= (int)sizeof block)
		n = (int)sizeof block - 1;
	char *own = malloc((size_t)n + 1);
	if (own != NULL)
		memcpy(own, block, (size_t)n + 1);
	rsi_adopt(err, RS_USAGE, -1, -1, own);
	return RS_USAGE;
}

static int null(rs_error *err, const char *op, const char *what) {
	char text[128];
	snprintf(text, sizeof text, "%s is NULL", what);
	return refuse(err, "usage", op, text, "");
}

// ENTER is the begin of every call.
#define ENTER(op)                                                                                                      \
	do {                                                                                                               \
		if (err != NULL && err->size < ERROR_1)                                                                        \
			return RS_USAGE; /* there is nowhere to say it */                                                          \
		rs_error_clear(err);                                                                                           \
		if (forked)                                                                                                    \
			return refuse(err, "forked", op, "the library was loaded before a fork, and this is the child",            \
				"load it after the fork, or start the child with exec (in Python: multiprocessing's spawn)");         \
	} while (0)

#define NEED(op, arg)                                                                                                  \
	do {                                                                                                               \
		if ((arg) == NULL)                                                                                             \
			return null(err, op, #arg);                                                                                \
	} while (0)

// take makes one of our structs of a caller's. Fields that we do not know must be zero:
// what they ask for would be left out without a word.
static const char *take(void *own, size_t size, size_t least, const void *from) {
	memset(own, 0, size);
	uint32_t n = (uint32_t)size;
	if (from != NULL) {
		memcpy(&n, from, sizeof n);
		if (n < least)
			return "its size is less than the struct has: set it with the INIT macro";
		memcpy(own, from, n < size ? n : size);
		for (size_t i = size; i < n; i++)
			if (((const char *)from)[i] != 0)
				return "it uses fields that this release of the library does not know";
	}
	n = (uint32_t)size;
	memcpy(own, &n, sizeof n);
	return NULL;
}

#define TAKE(op, T, least, known)                                                                                      \
	T o;                                                                                                               \
	do {                                                                                                               \
		const char *why = take(&o, sizeof o, least, options);                                                          \
		if (why != NULL)                                                                                               \
			return refuse(err, "usage", op, why, #T);                                                                  \
		if ((o.flags & ~(uint32_t)(known)) != 0)                                                                       \
			return refuse(err, "usage", op, "its flags have bits that this release does not know", #T);                \
	} while (0)

static uint32_t size_of(const void *s) {
	uint32_t n;
	memcpy(&n, s, sizeof n);
	return n;
}

const rs_read_item *rsi_item(const rs_read_item *items, size_t i, rs_read_item *own) {
	take(own, sizeof *own, ITEM_1, (const char *)items + i * size_of(items));
	return own;
}

void rsi_lease_out(rs_leased *leases, size_t i, const rs_leased *from) {
	uint32_t n = size_of(leases);
	char *to = (char *)leases + i * n;
	rs_leased l = *from;
	l.size = n;
	memcpy(to, &l, n < sizeof l ? n : sizeof l);
}

rs_error *rsi_error_at(rs_error *errors, size_t i) {
	return errors == NULL ? NULL : (rs_error *)((char *)errors + i * size_of(errors));
}

API uint32_t rs_abi_version(void) { return RS_ABI_VERSION; }
API const char *rs_version(void) { return forked ? "" : rsgoVersion(); }
API void rs_free(void *p) { free(p); }

API int rs_cancel_new(rs_cancel *out, rs_error *err) {
	ENTER("cancel");
	NEED("cancel", out);
	return rsgoCancelNew(out, err);
}

API int rs_cancel_fire(rs_cancel cancel, rs_error *err) {
	ENTER("cancel");
	return rsgoCancelFire(cancel, err);
}

API int rs_cancel_free(rs_cancel cancel, rs_error *err) {
	ENTER("cancel");
	return rsgoCancelFree(cancel, err);
}

API int rs_session_open(const rs_session_options *options, rs_session *out, rs_error *err) {
	ENTER("open");
	NEED("open", out);
	*out = 0;
	TAKE("open", rs_session_options, SESSION_1, 0);
	return rsgoSessionOpen(&o, out, err);
}

API int rs_session_close(rs_session session, rs_error *err) {
	ENTER("close");
	return rsgoSessionClose(session, err);
}

API int rs_session_describe(rs_session session, char **json, rs_error *err) {
	ENTER("describe");
	NEED("describe", json);
	*json = NULL;
	return rsgoSessionDescribe(session, json, err);
}

// Results are none until there are some.
#define NO_REPORT                                                                                                      \
	do {                                                                                                               \
		if (o.report != NULL)                                                                                          \
			*o.report = NULL;                                                                                          \
	} while (0)

API int rs_plan(rs_session session, const char *name, const rs_read_options *options, char **json, rs_error *err) {
	ENTER("plan");
	NEED("plan", name);
	NEED("plan", json);
	*json = NULL;
	TAKE("plan", rs_read_options, READ_1, RS_READ_FAIL_ON_DEGRADED);
	NO_REPORT;
	return rsgoPlan(session, (char *)name, &o, json, err);
}

API int rs_read_into(rs_session session, const char *name, void *buffer, size_t length, size_t *got, const rs_read_options *options,
	rs_error *err) {
	ENTER("read");
	if (got != NULL)
		*got = 0;
	NEED("read", name);
	if (length > 0)
		NEED("read", buffer);
	TAKE("read", rs_read_options, READ_1, RS_READ_FAIL_ON_DEGRADED);
	NO_REPORT;
	size_t n = 0;
	int status = rsgoReadInto(session, (char *)name, buffer, length, &n, &o, err);
	if (got != NULL)
		*got = n;
	return status;
}

API int rs_read(rs_session session, const char *name, const rs_read_options *options, rs_leased *out, rs_error *err) {
	ENTER("read");
	NEED("read", name);
	NEED("read", out);
	if (out->size < LEASED_1)
		return refuse(err, "usage", "read", "the size of out is less than the struct has: set it with RS_LEASED_INIT", "");
	rs_leased l = RS_LEASED_INIT;
	rsi_lease_out(out, 0, &l);
	TAKE("read", rs_read_options, READ_1, RS_READ_FAIL_ON_DEGRADED);
	NO_REPORT;
	int status = rsgoRead(session, (char *)name, &o, &l, err);
	rsi_lease_out(out, 0, &l);
	return status;
}

API int rs_lease_release(rs_lease lease, rs_error *err) {
	ENTER("release");
	return rsgoLeaseRelease(lease, err);
}

API int rs_read_batch(rs_session session, const rs_read_item *items, size_t count, size_t together, const rs_read_options *options,
	rs_leased *out, rs_error *errors, rs_error *err) {
	ENTER("read");
	TAKE("read", rs_read_options, READ_1, RS_READ_FAIL_ON_DEGRADED);
	NO_REPORT;
	if (count > 0) {
		NEED("read", items);
		NEED("read", out);
	}
	for (size_t i = 0; i < count; i++) {
		const char *item = (const char *)items + i * size_of(items), *lease = (const char *)out + i * size_of(out);
		const char *error = errors == NULL ? NULL : (const char *)errors + i * size_of(errors);
		rs_read_item own;
		if (size_of(items) < ITEM_1 || size_of(out) < LEASED_1 || size_of(item) != size_of(items) || size_of(lease) != size_of(out) ||
			(errors != NULL && (size_of(errors) < ERROR_1 || size_of(error) != size_of(errors))))
			return refuse(err, "usage", "read", "every item, lease and error of a batch has its size set", "set it with the INIT macros");
		if (take(&own, sizeof own, ITEM_1, item) != NULL || own.flags != 0)
			return refuse(err, "usage", "read", "an item uses fields or flags that this release of the library does not know", "");
		if (own.name == NULL)
			return null(err, "read", "the name of an item");
	}
	rs_leased none = RS_LEASED_INIT;
	for (size_t i = 0; i < count; i++) {
		rsi_lease_out(out, i, &none);
		rs_error_clear(rsi_error_at(errors, i));
	}
	return rsgoReadBatch(session, (rs_read_item *)items, count, together, &o, out, errors, err);
}

API int rs_put(rs_session session, const char *name, const void *data, size_t length, const rs_put_options *options, rs_error *err) {
	ENTER("put");
	NEED("put", name);
	if (length > 0)
		NEED("put", data);
	TAKE("put", rs_put_options, PUT_1, RS_PUT_IF_ABSENT);
	NO_REPORT;
	return rsgoPut(session, (char *)name, (void *)data, length, &o, err);
}

API int rs_remove(rs_session session, const char *name, uint64_t generation, const rs_call_options *options, char **report, rs_error *err) {
	ENTER("remove");
	NEED("remove", name);
	if (report != NULL)
		*report = NULL;
	TAKE("remove", rs_call_options, CALL_1, 0);
	return rsgoRemove(session, (char *)name, generation, &o, report, err);
}

API int rs_stat(rs_session session, const char *name, const rs_call_options *options, char **json, rs_error *err) {
	ENTER("stat");
	NEED("stat", name);
	NEED("stat", json);
	*json = NULL;
	TAKE("stat", rs_call_options, CALL_1, 0);
	return rsgoStat(session, (char *)name, &o, json, err);
}

API int rs_list(rs_session session, const char *prefix, const char *after, uint32_t limit, const rs_call_options *options, char **json,
	rs_error *err) {
	ENTER("list");
	NEED("list", json);
	*json = NULL;
	TAKE("list", rs_call_options, CALL_1, 0);
	return rsgoList(session, (char *)prefix, (char *)after, limit, &o, json, err);
}

API int rs_rails(rs_session session, char **json, rs_error *err) {
	ENTER("rails");
	NEED("rails", json);
	*json = NULL;
	return rsgoRails(session, json, err);
}

API int rs_last_report(rs_session session, char **json, rs_error *err) {
	ENTER("report");
	NEED("report", json);
	*json = NULL;
	return rsgoLastReport(session, json, err);
}

API int rs_table_describe(rs_session session, const char *table, const rs_call_options *options, char **json, rs_error *err) {
	ENTER("table");
	NEED("table", table);
	NEED("table", json);
	*json = NULL;
	TAKE("table", rs_call_options, CALL_1, 0);
	return rsgoTableDescribe(session, (char *)table, &o, json, err);
}

#define ROWS(op)                                                                                                       \
	do {                                                                                                               \
		NEED(op, table);                                                                                               \
		if (count > 0)                                                                                                 \
			NEED(op, keys);                                                                                            \
		if (floats > 0)                                                                                                \
			NEED(op, rows);                                                                                            \
		if ((uintptr_t)keys % 8 != 0 || (uintptr_t)rows % 4 != 0)                                                      \
			return refuse(err, "usage", op, "keys are aligned to 8 bytes, rows to 4", "");                             \
	} while (0)

API int rs_table_get(rs_session session, const char *table, const uint64_t *keys, size_t count, float *rows, size_t floats, uint8_t *found,
	const rs_call_options *options, rs_error *err) {
	ENTER("get");
	ROWS("get");
	TAKE("get", rs_call_options, CALL_1, 0);
	return rsgoTableGet(session, (char *)table, (uint64_t *)keys, count, rows, floats, found, &o, err);
}

API int rs_table_put(rs_session session, const char *table, const uint64_t *keys, size_t count, const float *rows, size_t floats,
	const rs_call_options *options, rs_error *err) {
	ENTER("put");
	ROWS("put");
	TAKE("put", rs_call_options, CALL_1, 0);
	return rsgoTablePut(session, (char *)table, (uint64_t *)keys, count, (float *)rows, floats, &o, err);
}

API int rs_table_update(rs_session session, const char *table, const uint64_t *keys, size_t count, const float *rows, size_t floats,
	const rs_call_options *options, rs_error *err) {
	ENTER("update");
	ROWS("update");
	TAKE("update", rs_call_options, CALL_1, 0);
	return rsgoTableUpdate(session, (char *)table, (uint64_t *)keys, count, (float *)rows, floats, &o, err);
}
