// A program with signal handlers of its own, set up before it loads the library and
// without a thought of it. They must stay and work. Arguments: the library, the recipe.

#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "railstore.h"

static volatile sig_atomic_t seen[65];
static sigjmp_buf back;

static void note(int sig) { seen[sig]++; }

static void fault(int sig) {
	seen[sig]++;
	siglongjmp(back, 1);
}

#define FAIL(...) (printf(__VA_ARGS__), printf("\n"), exit(1))

int main(int argc, char **argv) {
	if (argc != 3)
		FAIL("usage: signals LIBRARY RECIPE");
	const int mine[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD, SIGPROF, SIGWINCH};
	struct sigaction sa;
	memset(&sa, 0, sizeof sa);
	sa.sa_handler = note;
	for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
		sigaction(mine[i], &sa, NULL);
	sa.sa_handler = fault;
	sigaction(SIGSEGV, &sa, NULL);
	signal(SIGPIPE, SIG_IGN);

	void *lib = dlopen(argv[1], RTLD_NOW);
	if (lib == NULL)
		FAIL("%s", dlerror());
	int (*session_open)(const rs_session_options *, rs_session *, rs_error *);
	int (*session_close)(rs_session, rs_error *);
	int (*read_into)(rs_session, const char *, void *, size_t, size_t *, const rs_read_options *, rs_error *);
	*(void **)&session_open = dlsym(lib, "rs_session_open");
	*(void **)&session_close = dlsym(lib, "rs_session_close");
	*(void **)&read_into = dlsym(lib, "rs_read_into");
	if (!session_open || !session_close || !read_into)
		FAIL("%s", dlerror());
	rs_session_options o = RS_SESSION_OPTIONS_INIT;
	o.recipe = argv[2];
	rs_session s;
	rs_error err = RS_ERROR_INIT;
	if (session_open(&o, &s, &err) != RS_OK)
		FAIL("open: %s", err.json);

	// A profiler's timer, while the library works.
	struct itimerval every = {{0, 1000}, {0, 1000}};
	setitimer(ITIMER_PROF, &every, NULL);
	size_t n, size = 8u << 20;
	void *buf = malloc(size);
	for (int i = 0; i < 1000 && (i < 5 || seen[SIGPROF] == 0); i++)
		if (read_into(s, "kv/big", buf, size, &n, NULL, &err) != RS_OK)
			FAIL("read: %s", err.json);
	struct itimerval never = {{0, 0}, {0, 0}};
	setitimer(ITIMER_PROF, &never, NULL);

	for (size_t i = 0; i < sizeof mine / sizeof *mine; i++) {
		struct sigaction now;
		sigaction(mine[i], NULL, &now);
		if (now.sa_handler != note)
			FAIL("signal %d has another handler now", mine[i]);
		int before = seen[mine[i]];
		raise(mine[i]);
		if (seen[mine[i]] <= before)
			FAIL("signal %d did not reach its handler", mine[i]);
	}
	if (seen[SIGPROF] < 2)
		FAIL("the profiler saw nothing");

	if (sigsetjmp(back, 1) == 0) {
		*(volatile int *)(uintptr_t)64 = 1;
		FAIL("a write to nowhere went well");
	}
	if (seen[SIGSEGV] != 1)
		FAIL("a fault of the program's own did not reach its handler");

	int p[2];
	if (pipe(p) != 0 || close(p[0]) != 0)
		FAIL("pipe");
	if (write(p[1], "x", 1) != -1 || errno != EPIPE)
		FAIL("SIGPIPE is not ignored any more");

	if (read_into(s, "kv/big", buf, size, &n, NULL, &err) != RS_OK || n != size)
		FAIL("read after the signals: %s", err.json);
	if (session_close(s, &err) != RS_OK)
		FAIL("close: %s", err.json);
	printf("ok signals\n");
	return 0;
}
