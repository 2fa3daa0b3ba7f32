/* A libibverbs of a few devices that exist nowhere, for tests of what no real
 * device does on demand. Environment variables say what fails; every handle made
 * and freed is a line in the file that FAKE_LOG names. A posted WRITE completes at
 * once, with the status that FAKE_STATUS says. As in libibverbs, destroying a QP or
 * CQ waits until every asynchronous event about it is acknowledged, which takes
 * FAKE_SLOW_ACK milliseconds. */
#define _GNU_SOURCE
#include "../abi.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int number(const char *name, int otherwise)
{
	const char *s = getenv(name);

	return s && *s ? atoi(s) : otherwise;
}

/* The errno that a call is to fail with, or 0. */
static int fails(const char *call)
{
	char name[64];

	snprintf(name, sizeof name, "FAKE_FAIL_%s", call);
	return number(name, 0);
}

static void logged(const char *what, const char *kind)
{
	const char *file = getenv("FAKE_LOG");
	FILE *f = file && *file ? fopen(file, "a") : NULL;

	if (!f)
		return;
	fprintf(f, "%s %s\n", what, kind);
	fclose(f);
}

static void *made(size_t size, const char *kind)
{
	logged("+", kind);
	return calloc(1, size);
}

static int freed(void *p, const char *kind)
{
	logged("-", kind);
	free(p);
	return 0;
}

struct fake_context {
	struct ab_context c;
	int async_in;
};

struct fake_channel {
	struct ab_comp_channel c;
	int in;
};

struct fake_cq {
	struct ab_cq c;
	struct ab_wc ring[1024];
	unsigned int head, tail;
	int armed;
	int unacked;
};

struct fake_qp {
	struct ab_qp q;
	int room;
	int unacked;
};

static int events_of(int *unacked, int add)
{
	return __atomic_add_fetch(unacked, add, __ATOMIC_SEQ_CST);
}

static void quiet(int *unacked)
{
	while (events_of(unacked, 0))
		usleep(100);
}

/* The count of unacknowledged events of what an event is about, or NULL. */
static int *about(struct ab_async_event *ev)
{
	switch (ev->event_type) {
	case AB_EVENT_CQ_ERR:
		return &((struct fake_cq *)ev->element.cq)->unacked;
	case AB_EVENT_QP_FATAL:
	case AB_EVENT_QP_REQ_ERR:
	case AB_EVENT_QP_ACCESS_ERR:
	case AB_EVENT_COMM_EST:
		return &((struct fake_qp *)ev->element.qp)->unacked;
	}
	return NULL;
}

static void pipe_of(int *out, int *in)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC))
		abort();
	*out = p[0];
	*in = p[1];
}

struct ab_device **ibv_get_device_list(int *n)
{
	int e = fails("list"), have = number("FAKE_DEVICES", 2);
	struct ab_device **list;
	const char *sys = getenv("FAKE_SYS");

	if (e) {
		errno = e;
		return NULL;
	}
	list = calloc(have + 1, sizeof *list);
	for (int i = 0; i < have; i++) {
		list[i] = made(sizeof **list, "device-entry");
		snprintf(list[i]->name, sizeof list[i]->name, "fake%d", i);
		snprintf(list[i]->dev_name, sizeof list[i]->dev_name, "uverbs%d", i);
		snprintf(list[i]->ibdev_path, sizeof list[i]->ibdev_path, "%s/fake%d", sys ? sys : "/nowhere", i);
	}
	*n = have;
	return list;
}

void ibv_free_device_list(struct ab_device **list)
{
	for (int i = 0; list[i]; i++)
		freed(list[i], "device-entry");
	free(list);
}

uint64_t ibv_get_device_guid(struct ab_device *dev)
{
	return htobe64(0x0002c90300000000ull + dev->name[4]);
}

static int poll_cq(struct ab_cq *cq, int n, struct ab_wc *wc)
{
	struct fake_cq *q = (struct fake_cq *)cq;
	int got = 0;

	if (fails("poll"))
		return -fails("poll");
	while (got < n && q->tail != q->head)
		wc[got++] = q->ring[q->tail++ % 1024];
	return got;
}

static int req_notify_cq(struct ab_cq *cq, int solicited_only)
{
	((struct fake_cq *)cq)->armed = 1 + solicited_only;
	return fails("notify");
}

static void complete(struct fake_cq *q, const struct ab_wc *wc)
{
	q->ring[q->head++ % 1024] = *wc;
	if (q->armed) {
		void *p = q;

		q->armed = 0;
		if (write(((struct fake_channel *)q->c.channel)->in, &p, sizeof p) != sizeof p)
			abort();
	}
}

static int post_send(struct ab_qp *qp, struct ab_send_wr *wr, struct ab_send_wr **bad)
{
	struct fake_qp *q = (struct fake_qp *)qp;

	for (; wr; wr = wr->next) {
		struct ab_wc wc = { .wr_id = wr->wr_id, .status = number("FAKE_STATUS", 0), .opcode = number("FAKE_OPCODE", AB_WC_RDMA_WRITE),
				    .qp_num = qp->qp_num, .vendor_err = 0x77, .wc_flags = AB_WC_WITH_IMM, .imm_data = wr->send_flags };

		if (fails("post")) {
			*bad = wr;
			return fails("post");
		}
		if (q->room == 0) {
			*bad = wr;
			return ENOMEM;
		}
		q->room--;
		if (wr->send_flags & AB_SEND_SIGNALED)
			complete((struct fake_cq *)qp->send_cq, &wc);
	}
	return 0;
}

static int post_recv(struct ab_qp *qp, struct ab_recv_wr *wr, struct ab_recv_wr **bad)
{
	(void)qp;
	for (; wr; wr = wr->next)
		if (fails("post")) {
			*bad = wr;
			errno = fails("post");
			return -1;
		}
	return 0;
}

struct ab_context *ibv_open_device(struct ab_device *dev)
{
	struct fake_context *c;

	if (fails("open")) {
		errno = fails("open");
		return NULL;
	}
	c = made(sizeof *c, "context");
	c->c.device = dev;
	c->c.ops.poll_cq = poll_cq;
	c->c.ops.req_notify_cq = req_notify_cq;
	c->c.ops.post_send = post_send;
	c->c.ops.post_recv = post_recv;
	pipe_of(&c->c.async_fd, &c->async_in);
	return &c->c;
}

int ibv_close_device(struct ab_context *ctx)
{
	struct fake_context *c = (struct fake_context *)ctx;

	close(c->c.async_fd);
	close(c->async_in);
	return freed(c, "context");
}

int ibv_query_device(struct ab_context *ctx, struct ab_device_attr *a)
{
	(void)ctx;
	memset(a, 0, sizeof *a);
	memset(a->fw_ver, 'x', sizeof a->fw_ver); /* not terminated */
	a->node_guid = htobe64(0x0002c90300000030ull);
	a->phys_port_cnt = 2;
	a->max_qp = 100;
	a->max_qp_wr = 1000;
	a->max_sge = 32;
	a->max_sge_rd = 30;
	a->max_cq = 10;
	a->max_cqe = 4096;
	a->max_mr = 8;
	a->max_mr_size = 1 << 30;
	a->max_pd = 5;
	a->max_qp_rd_atom = 16;
	a->max_qp_init_rd_atom = 12;
	return fails("query_device");
}

int ibv_query_port(struct ab_context *ctx, uint8_t port, struct ab_port_attr *a)
{
	(void)ctx;
	(void)port;
	a->state = number("FAKE_STATE", 4);
	a->max_mtu = 5;
	a->active_mtu = number("FAKE_MTU", 3);
	a->gid_tbl_len = 4;
	a->pkey_tbl_len = 2;
	a->lid = 0x12;
	a->active_speed = 32;
	a->active_width = 2;
	a->link_layer = number("FAKE_LINK", AB_LINK_LAYER_ETHERNET);
	a->flags = number("FAKE_PORT_FLAGS", 0);
	return fails("query_port");
}

int ibv_query_gid(struct ab_context *ctx, uint8_t port, int index, union ab_gid *gid)
{
	(void)ctx;
	(void)port;
	memset(gid, 0, sizeof *gid);
	gid->raw[0] = 0xfe;
	gid->raw[1] = 0x80;
	gid->raw[15] = index + 1;
	return 0;
}

int ibv_query_pkey(struct ab_context *ctx, uint8_t port, int index, uint16_t *pkey)
{
	(void)ctx;
	(void)port;
	*pkey = htobe16(index ? 0x8001 : 0xffff);
	return 0;
}

struct ab_pd *ibv_alloc_pd(struct ab_context *ctx)
{
	struct ab_pd *p;

	if (fails("alloc_pd")) {
		errno = fails("alloc_pd");
		return NULL;
	}
	p = made(sizeof *p, "pd");
	p->context = ctx;
	return p;
}

int ibv_dealloc_pd(struct ab_pd *pd) { return freed(pd, "pd"); }

struct ab_mr *ibv_reg_mr(struct ab_pd *pd, void *addr, size_t length, int access)
{
	struct ab_mr *m;

	if (fails("reg_mr")) {
		errno = fails("reg_mr");
		return NULL;
	}
	m = made(sizeof *m, "mr");
	*m = (struct ab_mr){ pd->context, pd, addr, length, 1, 0x100 + access, 0x200 + access };
	return m;
}

int ibv_dereg_mr(struct ab_mr *mr)
{
	if (fails("dereg_mr"))
		return fails("dereg_mr");
	return freed(mr, "mr");
}

struct ab_comp_channel *ibv_create_comp_channel(struct ab_context *ctx)
{
	struct fake_channel *c;

	if (fails("channel")) {
		errno = fails("channel");
		return NULL;
	}
	c = made(sizeof *c, "channel");
	c->c.context = ctx;
	pipe_of(&c->c.fd, &c->in);
	return &c->c;
}

int ibv_destroy_comp_channel(struct ab_comp_channel *ch)
{
	close(ch->fd);
	close(((struct fake_channel *)ch)->in);
	return freed(ch, "channel");
}

struct ab_cq *ibv_create_cq(struct ab_context *ctx, int cqe, void *id, struct ab_comp_channel *ch, int vector)
{
	struct fake_cq *q;

	(void)vector;
	if (fails("create_cq")) {
		errno = fails("create_cq");
		return NULL;
	}
	q = made(sizeof *q, "cq");
	q->c.context = ctx;
	q->c.channel = ch;
	q->c.cq_context = id;
	q->c.cqe = cqe;
	return &q->c;
}

int ibv_destroy_cq(struct ab_cq *cq)
{
	quiet(&((struct fake_cq *)cq)->unacked);
	return freed(cq, "cq");
}

int ibv_get_cq_event(struct ab_comp_channel *ch, struct ab_cq **cq, void **id)
{
	if (fails("cq_event")) {
		errno = fails("cq_event");
		return -1;
	}
	if (read(ch->fd, cq, sizeof *cq) != sizeof *cq)
		return -1;
	*id = (*cq)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ab_cq *cq, unsigned int n)
{
	cq->comp_events_completed += n;
	logged("-", "cq-event");
}

struct ab_qp *ibv_create_qp(struct ab_pd *pd, struct ab_qp_init_attr *a)
{
	static uint32_t last = 0x100;
	struct fake_qp *q;

	if (fails("create_qp")) {
		errno = fails("create_qp");
		return NULL;
	}
	q = made(sizeof *q, "qp");
	q->q.context = pd->context;
	q->q.pd = pd;
	q->q.send_cq = a->send_cq;
	q->q.recv_cq = a->recv_cq;
	q->q.qp_num = ++last;
	a->cap.max_send_wr += 3;
	a->cap.max_inline_data = number("FAKE_INLINE", 400);
	q->room = a->cap.max_send_wr;
	return &q->q;
}

/* A change to ERR also sends the event that FAKE_EVENT says. */
int ibv_modify_qp(struct ab_qp *qp, struct ab_qp_attr *a, int mask)
{
	struct ab_async_event ev = { .event_type = number("FAKE_EVENT", -1) };
	struct fake_context *c = (struct fake_context *)qp->context;

	if ((mask & AB_QP_STATE) && a->qp_state == number("FAKE_FAIL_STATE", -1))
		return number("FAKE_FAIL_modify", EINVAL);
	if ((mask & AB_QP_AV) && getenv("FAKE_LOG"))
		logged("av", a->ah_attr.is_global ? "global" : "local");
	if ((mask & AB_QP_ACCESS_FLAGS) && getenv("FAKE_LOG")) {
		char rights[16];

		snprintf(rights, sizeof rights, "%x", a->qp_access_flags);
		logged("rights", rights);
	}
	if (!(mask & AB_QP_STATE) || a->qp_state != 6 || ev.event_type < 0)
		return 0;
	switch (ev.event_type) {
	case AB_EVENT_CQ_ERR:
		ev.element.cq = qp->send_cq;
		break;
	case AB_EVENT_QP_FATAL:
	case AB_EVENT_QP_REQ_ERR:
	case AB_EVENT_QP_ACCESS_ERR:
	case AB_EVENT_COMM_EST:
		ev.element.qp = qp;
		break;
	default:
		ev.element.port_num = 2;
	}
	if (about(&ev))
		events_of(about(&ev), 1);
	return write(c->async_in, &ev, sizeof ev) == sizeof ev ? 0 : EIO;
}

int ibv_query_qp(struct ab_qp *qp, struct ab_qp_attr *a, int mask, struct ab_qp_init_attr *init)
{
	(void)qp;
	(void)mask;
	(void)init;
	memset(a, 0, sizeof *a);
	a->qp_state = 42;
	a->path_mtu = 99;
	a->qp_access_flags = ~0u;
	return 0;
}

int ibv_destroy_qp(struct ab_qp *qp)
{
	if (fails("destroy_qp"))
		return fails("destroy_qp");
	quiet(&((struct fake_qp *)qp)->unacked);
	return freed(qp, "qp");
}

int ibv_get_async_event(struct ab_context *ctx, struct ab_async_event *ev)
{
	return read(ctx->async_fd, ev, sizeof *ev) == sizeof *ev ? 0 : -1;
}

void ibv_ack_async_event(struct ab_async_event *ev)
{
	int *unacked = about(ev);

	usleep(1000 * number("FAKE_SLOW_ACK", 0));
	logged("-", "async-event");
	if (unacked)
		events_of(unacked, -1);
}
