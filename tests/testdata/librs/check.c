// Uses the library as a program would. Every check that passes is a line "ok NAME"; the
// first that does not ends the program. Arguments: the recipe.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "railstore.h"

#define BIG (8u << 20)

static rs_session session;

#define FAIL(...)                                                                                                      \
	do {                                                                                                               \
		printf("%s:%d: ", __FILE__, __LINE__);                                                                         \
		printf(__VA_ARGS__);                                                                                           \
		printf("\n");                                                                                                  \
		exit(1);                                                                                                       \
	} while (0)

#define OK(name) printf("ok %s\n", name)

// want ends the program unless a call ended as it should.
static void want(int line, int got, int status, const char *kind, rs_error *err) {
	const char *k = err->kind ? err->kind : "";
	if (got != status || err->status != status || strcmp(k, kind) != 0)
		printf("line %d: status %d, kind %s: %s; want %d, %s\n", line, got, k, err->json ? err->json : "", status, kind), exit(1);
	if (status != RS_OK && (!err->layer || !err->op || !err->rail || !err->device || !err->message || !err->message[0] || !err->hint || !err->json))
		printf("line %d: an error without its texts\n", line), exit(1);
	if (status == RS_OK && (err->message || err->json))
		printf("line %d: no error, with texts\n", line), exit(1);
}

#define WANT(status, kind, call)                                                                                       \
	do {                                                                                                               \
		int got_ = (call);                                                                                             \
		want(__LINE__, got_, status, kind, &err);                                                                      \
	} while (0)

// Content that depends on its place and its object.
static unsigned char at(size_t i, unsigned seed) { return (unsigned char)((i * 2654435761u + seed * 97u) >> 13); }

static void fill(unsigned char *p, size_t n, unsigned seed) {
	for (size_t i = 0; i < n; i++)
		p[i] = at(i, seed);
}

static int is(const unsigned char *p, size_t n, size_t from, unsigned seed) {
	for (size_t i = 0; i < n; i++)
		if (p[i] != at(from + i, seed))
			return 0;
	return 1;
}

static int all(const unsigned char *p, size_t n, unsigned char v) {
	for (size_t i = 0; i < n; i++)
		if (p[i] != v)
			return 0;
	return 1;
}

static void *reader(void *arg) {
	unsigned seed = *(unsigned *)arg;
	char name[32];
	snprintf(name, sizeof name, "kv/c%u", seed);
	unsigned char *buf = malloc(1u << 20);
	rs_error err = RS_ERROR_INIT;
	for (int i = 0; i < 20; i++) {
		size_t n = 0;
		memset(buf, 0, 1u << 20);
		WANT(RS_OK, "", rs_read_into(session, name, buf, 1u << 20, &n, NULL, &err));
		if (n != 1000000 + seed || !is(buf, n, 0, seed))
			FAIL("%s: wrong bytes", name);
	}
	free(buf);
	return NULL;
}

struct waiting {
	rs_cancel cancel;
	const char *kind;
	unsigned char *buf;
};

// waiter reads what there is no memory for, until somebody ends it.
static void *waiter(void *arg) {
	struct waiting *w = arg;
	rs_error err = RS_ERROR_INIT;
	rs_read_options o = RS_READ_OPTIONS_INIT;
	o.cancel = w->cancel;
	memset(w->buf, 0xa5, BIG);
	int status = rs_read_into(session, "kv/big2", w->buf, BIG, NULL, &o, &err);
	// Whoever comes just after the close finds it closed.
	WANT(status == RS_USAGE && strcmp(w->kind, "closed") == 0 ? RS_USAGE : RS_INTERRUPTED, w->kind, status);
	if (!all(w->buf, BIG, 0xa5))
		FAIL("the buffer of a read that was ended was touched");
	rs_error_clear(&err);
	return NULL;
}

static void arguments(const char *recipe) {
	rs_error err = RS_ERROR_INIT;
	rs_session none = 7;
	unsigned char b[16];
	char *json = NULL;
	WANT(RS_USAGE, "usage", rs_session_open(NULL, NULL, &err));
	WANT(RS_USAGE, "usage", rs_read_into(session, NULL, b, sizeof b, NULL, NULL, &err));
	WANT(RS_USAGE, "usage", rs_read_into(session, "kv/big", NULL, 1, NULL, NULL, &err));
	WANT(RS_USAGE, "usage", rs_plan(session, "kv/big", NULL, NULL, &err));
	WANT(RS_USAGE, "usage", rs_stat(0, "kv/big", NULL, &json, &err));
	WANT(RS_USAGE, "usage", rs_stat(1u << 30, "kv/big", NULL, &json, &err));
	WANT(RS_USAGE, "name", rs_stat(session, "kv/", NULL, &json, &err));
	struct {
		rs_read_options o;
		uint64_t later;
	} grown = {RS_READ_OPTIONS_INIT, 0};
	grown.o.size = sizeof grown;
	WANT(RS_OK, "", rs_plan(session, "kv/big", &grown.o, &json, &err));
	rs_free(json);
	grown.later = 1;
	WANT(RS_USAGE, "usage", rs_plan(session, "kv/big", &grown.o, &json, &err));
	grown.o.size = 8;
	WANT(RS_USAGE, "usage", rs_plan(session, "kv/big", &grown.o, &json, &err));
	rs_read_options o = RS_READ_OPTIONS_INIT;
	o.flags = 0x100;
	WANT(RS_USAGE, "usage", rs_plan(session, "kv/big", &o, &json, &err));
	o.flags = 0;
	o.deadline_ms = -1;
	WANT(RS_USAGE, "usage", rs_plan(session, "kv/big", &o, &json, &err));
	o.deadline_ms = 0;
	o.cancel = session;
	WANT(RS_USAGE, "usage", rs_plan(session, "kv/big", &o, &json, &err));
	o.cancel = 0;
	o.rails = "rail0,,rail1";
	WANT(RS_USAGE, "usage", rs_plan(session, "kv/big", &o, &json, &err));
	rs_error small = RS_ERROR_INIT;
	small.size = 8;
	if (rs_stat(session, "kv/none", NULL, &json, &small) != RS_USAGE)
		FAIL("an error struct that is too small was taken");
	if (rs_stat(session, "kv/none", NULL, &json, NULL) != RS_FAILED)
		FAIL("without an error struct the status is another");
	// Not an address of anything: an error, and no crash.
	WANT(RS_FAILED, "internal", rs_read_into(session, "kv/big", (void *)(uintptr_t)4096, BIG, NULL, NULL, &err));

	const char *bad[] = {"RS_MR_RAILZ=x", NULL};
	rs_session_options so = RS_SESSION_OPTIONS_INIT;
	so.environment = bad;
	WANT(RS_USAGE, "usage", rs_session_open(&so, &none, &err));
	if (none != 0)
		FAIL("a session that was not opened has a handle");
	so.recipe = recipe;
	WANT(RS_USAGE, "usage", rs_session_open(&so, &none, &err));
	if (!strstr(err.message, "RS_MR_RAILZ"))
		FAIL("%s", err.message);
	so.recipe = "/nonexistent.cue";
	WANT(RS_USAGE, "config", rs_session_open(&so, &none, &err));
	rs_error_clear(&err);
	rs_error_clear(&err);
	OK("arguments");
}

static void objects(void) {
	rs_error err = RS_ERROR_INIT;
	unsigned char *buf = malloc(BIG + 64), *src = malloc(BIG);
	size_t n = 0;
	char *json = NULL;

	// Written by this program, and by rs (kv/big, kv/big2, with seeds 1 and 2).
	rs_put_options po = RS_PUT_OPTIONS_INIT;
	po.flags = RS_PUT_IF_ABSENT;
	po.report = &json;
	fill(src, 3 << 20, 9);
	WANT(RS_OK, "", rs_put(session, "kv/mine", src, 3 << 20, &po, &err));
	if (!json || !strstr(json, "\"generation\":1"))
		FAIL("report of put: %s", json ? json : "none");
	rs_free(json);
	WANT(RS_FAILED, "exists", rs_put(session, "kv/mine", src, 3 << 20, &po, &err));
	if (json)
		FAIL("a put that failed has a report");
	WANT(RS_OK, "", rs_put(session, "kv/empty", NULL, 0, NULL, &err));
	OK("put");

	memset(buf, 0xa5, BIG + 64);
	rs_read_options o = RS_READ_OPTIONS_INIT;
	o.report = &json;
	WANT(RS_OK, "", rs_read_into(session, "kv/big", buf, BIG + 64, &n, &o, &err));
	if (n != BIG || !is(buf, n, 0, 1) || !all(buf + n, 64, 0xa5))
		FAIL("wrong bytes");
	if (!json || !strstr(json, "\"exact\":true") || !strstr(json, "\"rail1\""))
		FAIL("report: %s", json ? json : "none");
	rs_free(json);
	o.report = NULL;
	WANT(RS_OK, "", rs_read_into(session, "kv/mine", buf, BIG, &n, NULL, &err));
	if (n != 3 << 20 || memcmp(buf, src, n) != 0)
		FAIL("what was put is not what is read");
	WANT(RS_OK, "", rs_read_into(session, "kv/empty", NULL, 0, &n, NULL, &err));
	if (n != 0)
		FAIL("an empty object has %zu bytes", n);
	OK("read_into");

	memset(buf, 0xa5, BIG);
	WANT(RS_USAGE, "too_small", rs_read_into(session, "kv/big", buf, BIG - 1, &n, NULL, &err));
	if (n != 0 || !all(buf, BIG, 0xa5))
		FAIL("a buffer that is too small was touched");
	OK("too_small");

	WANT(RS_FAILED, "not_found", rs_read_into(session, "kv/none", buf, BIG, &n, NULL, &err));
	if (!all(buf, BIG, 0xa5) || strcmp(err.op, "read") != 0)
		FAIL("op %s", err.op);
	OK("absent");

	o.offset = 1234567;
	o.length = 7654;
	WANT(RS_OK, "", rs_read_into(session, "kv/big", buf, BIG, &n, &o, &err));
	if (n != 7654 || !is(buf, n, 1234567, 1) || !all(buf + n, BIG - n, 0xa5))
		FAIL("wrong bytes of a range");
	o.offset = BIG;
	o.length = 1;
	WANT(RS_USAGE, "range", rs_read_into(session, "kv/big", buf, BIG, &n, &o, &err));
	OK("range");

	memset(buf, 0xa5, BIG);
	WANT(RS_INTEGRITY, "corrupt", rs_read_into(session, "kv/bad", buf, BIG, &n, NULL, &err));
	if (n != 0 || !all(buf, BIG, 0xa5))
		FAIL("a damaged stripe reached the buffer");
	if (err.shard < 0)
		FAIL("the error names no shard: %s", err.json);
	OK("corrupt");

	rs_leased l = RS_LEASED_INIT;
	WANT(RS_OK, "", rs_read(session, "kv/mine", NULL, &l, &err));
	if (l.lease == 0 || l.length != 3 << 20 || l.generation != 1 || memcmp(l.data, src, l.length) != 0)
		FAIL("wrong lease");
	WANT(RS_OK, "", rs_lease_release(l.lease, &err));
	WANT(RS_OK, "", rs_lease_release(l.lease, &err));
	WANT(RS_USAGE, "usage", rs_lease_release(session, &err));
	WANT(RS_FAILED, "not_found", rs_read(session, "kv/none", NULL, &l, &err));
	if (l.lease != 0 || l.data != NULL)
		FAIL("a read that failed has a lease");
	WANT(RS_OK, "", rs_read(session, "kv/empty", NULL, &l, &err));
	if (l.lease == 0 || l.length != 0)
		FAIL("an empty object has no lease");
	WANT(RS_OK, "", rs_lease_release(l.lease, &err));
	OK("lease");

	rs_read_item items[3] = {RS_READ_ITEM_INIT, RS_READ_ITEM_INIT, RS_READ_ITEM_INIT};
	rs_leased leases[3] = {RS_LEASED_INIT, RS_LEASED_INIT, RS_LEASED_INIT};
	rs_error errs[3] = {RS_ERROR_INIT, RS_ERROR_INIT, RS_ERROR_INIT};
	items[0].name = "kv/mine";
	items[1].name = "kv/none";
	items[2].name = "kv/big";
	items[2].offset = 100;
	items[2].length = 50;
	o = (rs_read_options)RS_READ_OPTIONS_INIT;
	o.report = &json;
	WANT(RS_FAILED, "not_found", rs_read_batch(session, items, 3, 2, &o, leases, errs, &err));
	if (errs[0].status != 0 || errs[1].status != RS_FAILED || strcmp(errs[1].kind, "not_found") != 0 || errs[2].status != 0)
		FAIL("errors of a batch");
	if (leases[0].length != 3 << 20 || leases[1].lease != 0 || leases[2].length != 50 || !is(leases[2].data, 50, 100, 1))
		FAIL("leases of a batch");
	if (!json || json[0] != '[')
		FAIL("reports of a batch");
	rs_free(json);
	rs_error_clear(&errs[1]);
	rs_lease_release(leases[0].lease, NULL);
	rs_lease_release(leases[2].lease, NULL);
	OK("batch");

	WANT(RS_OK, "", rs_stat(session, "kv/mine", NULL, &json, &err));
	if (!strstr(json, "\"size\":3145728"))
		FAIL("stat: %s", json);
	rs_free(json);
	WANT(RS_OK, "", rs_list(session, "kv/b", NULL, 2, NULL, &json, &err));
	if (!strstr(json, "\"bad\"") || !strstr(json, "\"big\"") || strstr(json, "\"big2\"") || !strstr(json, "\"more\":true") || !strstr(json, "\"after\":\"kv/big\""))
		FAIL("list: %s", json);
	rs_free(json);
	WANT(RS_OK, "", rs_list(session, "kv/b", "kv/big", 0, NULL, &json, &err));
	if (strstr(json, "\"big\"") || !strstr(json, "\"big2\"") || !strstr(json, "\"more\":false"))
		FAIL("list: %s", json);
	rs_free(json);
	WANT(RS_FAILED, "conflict", rs_remove(session, "kv/mine", 5, NULL, NULL, &err));
	WANT(RS_OK, "", rs_remove(session, "kv/mine", 1, NULL, &json, &err));
	rs_free(json);
	WANT(RS_FAILED, "not_found", rs_remove(session, "kv/mine", 0, NULL, NULL, &err));
	OK("catalog");

	WANT(RS_OK, "", rs_plan(session, "kv/big", NULL, &json, &err));
	if (!strstr(json, "\"planned_bytes\":4194304"))
		FAIL("plan: %s", json);
	rs_free(json);
	WANT(RS_OK, "", rs_rails(session, &json, &err));
	if (!strstr(json, "\"rail0\"") || !strstr(json, "\"provider\":\"soft\""))
		FAIL("rails: %s", json);
	rs_free(json);
	WANT(RS_OK, "", rs_last_report(session, &json, &err));
	if (!strstr(json, "\"xxh3\""))
		FAIL("report: %s", json);
	rs_free(json);
	WANT(RS_OK, "", rs_session_describe(session, &json, &err));
	if (!strstr(json, "\"shards\":[0,1]") || !strstr(json, "\"host\":\"c0\""))
		FAIL("description: %s", json);
	rs_free(json);
	OK("json");
	rs_error_clear(&err);
	free(buf);
	free(src);
}

static void threads(void) {
	rs_error err = RS_ERROR_INIT;
	unsigned char *src = malloc(1u << 20);
	pthread_t t[2];
	unsigned seed[2] = {11, 12};
	for (int i = 0; i < 2; i++) {
		char name[32];
		snprintf(name, sizeof name, "kv/c%u", seed[i]);
		fill(src, 1000000 + seed[i], seed[i]);
		WANT(RS_OK, "", rs_put(session, name, src, 1000000 + seed[i], NULL, &err));
	}
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, reader, &seed[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	free(src);
	OK("threads");
}

// The session's memory has room for one big object. While a lease has it, a second read
// waits for at most a minute: it is under way for as long as the test needs.
static void ends(void) {
	rs_error err = RS_ERROR_INIT;
	rs_leased l = RS_LEASED_INIT;
	WANT(RS_OK, "", rs_read(session, "kv/big", NULL, &l, &err));
	unsigned char *buf = malloc(BIG);

	struct waiting w = {0, "cancelled", buf};
	WANT(RS_OK, "", rs_cancel_new(&w.cancel, &err));
	pthread_t t;
	pthread_create(&t, NULL, waiter, &w);
	WANT(RS_OK, "", rs_cancel_fire(w.cancel, &err));
	pthread_join(t, NULL);
	waiter(&w); // it stays fired
	WANT(RS_OK, "", rs_cancel_free(w.cancel, &err));
	OK("cancel");

	rs_read_options o = RS_READ_OPTIONS_INIT;
	o.deadline_ms = 50;
	memset(buf, 0xa5, BIG);
	WANT(RS_NOT_READY, "deadline", rs_read_into(session, "kv/big2", buf, BIG, NULL, &o, &err));
	if (!all(buf, BIG, 0xa5))
		FAIL("the buffer of a read that came too late was touched");
	OK("deadline");

	pid_t pid = fork();
	if (pid == 0) {
		char *json;
		rs_error e = RS_ERROR_INIT;
		int status = rs_rails(session, &json, &e);
		_exit(status == RS_USAGE && e.kind && strcmp(e.kind, "forked") == 0 ? 0 : 1);
	}
	int status = 1;
	waitpid(pid, &status, 0);
	if (status != 0)
		FAIL("in a forked child: %x", status);
	OK("fork");

	// What is under way when the session is closed ends, and what is leased stays.
	w.cancel = 0;
	w.kind = "closed";
	pthread_create(&t, NULL, waiter, &w);
	char *json = NULL;
	WANT(RS_FAILED, "leased", rs_session_close(session, &err));
	pthread_join(t, NULL);
	if (!is(l.data, l.length, 0, 1))
		FAIL("a lease lost its content when the session was closed");
	WANT(RS_OK, "", rs_lease_release(l.lease, &err));
	WANT(RS_OK, "", rs_session_close(session, &err));
	WANT(RS_USAGE, "closed", rs_rails(session, &json, &err));
	rs_error_clear(&err);
	free(buf);
	OK("close");
}

static void tables(void) {
	rs_error err = RS_ERROR_INIT;
	char *json = NULL;
	WANT(RS_FAILED, "no_table", rs_table_describe(session, "none", NULL, &json, &err));
	WANT(RS_OK, "", rs_table_describe(session, "vec", NULL, &json, &err));
	if (!strstr(json, "\"dim\":4"))
		FAIL("table: %s", json);
	rs_free(json);
	uint64_t keys[3] = {7, 8, 1ull << 63};
	float rows[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, got[16];
	uint8_t found[4] = {9, 9, 9, 9};
	WANT(RS_OK, "", rs_table_put(session, "vec", keys, 3, rows, 12, NULL, &err));
	uint64_t ask[4] = {8, 99, 1ull << 63, 7};
	WANT(RS_OK, "", rs_table_get(session, "vec", ask, 4, got, 16, found, NULL, &err));
	if (found[0] != 1 || found[1] != 0 || found[2] != 1 || found[3] != 1)
		FAIL("found %d %d %d %d", found[0], found[1], found[2], found[3]);
	if (memcmp(got, rows + 4, 16) != 0 || got[4] != 0 || got[7] != 0 || memcmp(got + 8, rows + 8, 16) != 0 || memcmp(got + 12, rows, 16) != 0)
		FAIL("wrong rows");
	float g[4] = {1, 1, 1, 1};
	WANT(RS_OK, "", rs_table_update(session, "vec", keys, 1, g, 4, NULL, &err));
	WANT(RS_OK, "", rs_table_get(session, "vec", keys, 1, got, 4, NULL, NULL, &err));
	if (!(got[0] < rows[0]))
		FAIL("an update moved nothing: %f", got[0]);
	WANT(RS_USAGE, "shape", rs_table_get(session, "vec", ask, 4, got, 15, NULL, NULL, &err));
	WANT(RS_USAGE, "usage", rs_table_get(session, "vec", (uint64_t *)((char *)ask + 1), 1, got, 4, NULL, NULL, &err));
	rs_error_clear(&err);
	OK("tables");
}

int main(int argc, char **argv) {
	if (argc != 2)
		FAIL("usage: check RECIPE");
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (rs_abi_version() < RS_ABI_VERSION || !rs_version()[0])
		FAIL("ABI version %u", rs_abi_version());
	printf("sizes rs_error=%zu rs_session_options=%zu rs_call_options=%zu rs_read_options=%zu rs_put_options=%zu rs_leased=%zu rs_read_item=%zu\n",
		sizeof(rs_error), sizeof(rs_session_options), sizeof(rs_call_options), sizeof(rs_read_options), sizeof(rs_put_options), sizeof(rs_leased),
		sizeof(rs_read_item));
	rs_error err = RS_ERROR_INIT;
	rs_session_options so = RS_SESSION_OPTIONS_INIT;
	setenv("RS_CONFIG", argv[1], 1); // the library sees what the program has set
	setenv("RS_MR_MAX_STAGING", "12MiB", 1);
	WANT(RS_OK, "", rs_session_open(&so, &session, &err));
	OK("open");
	arguments(argv[1]);
	objects();
	threads();
	tables();
	ends();
	return 0;
}
