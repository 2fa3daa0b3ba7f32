//go:build cgo && linux

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A function of the library. Its ABI is that of the symbol version, so a library
 * that has versions must have this one; one without versions (a build of its own)
 * gives what it has. */
static void *symbol(void *handle, const char *name, const char *version, int versioned)
{
#ifdef __GLIBC__
	if (versioned)
		return dlvsym(handle, name, version);
#else
	(void)version;
	(void)versioned;
#endif
	return dlsym(handle, name);
}

char *rs_load(struct rs_lib *lib, const char *file)
{
	static const char v0[] = "IBVERBS_1.0", v1[] = "IBVERBS_1.1", v11[] = "IBVERBS_1.11";
	const struct {
		size_t at;
		const char *name, *version;
		int optional;
	} want[] = {
#define SYM(f, v) { offsetof(struct rs_lib, f), "ibv_" #f, v, 0 }
		SYM(get_device_list, v1), SYM(free_device_list, v1), SYM(get_device_guid, v1),
		SYM(open_device, v1), SYM(close_device, v1), SYM(query_device, v1), SYM(query_port, v1),
		SYM(query_gid, v1), SYM(query_pkey, v1), SYM(alloc_pd, v1), SYM(dealloc_pd, v1),
		SYM(reg_mr, v1), SYM(dereg_mr, v1), SYM(create_comp_channel, v0), SYM(destroy_comp_channel, v0),
		SYM(create_cq, v1), SYM(destroy_cq, v1), SYM(get_cq_event, v1), SYM(ack_cq_events, v1),
		SYM(create_qp, v1), SYM(modify_qp, v1), SYM(query_qp, v1), SYM(destroy_qp, v1),
		SYM(get_async_event, v1), SYM(ack_async_event, v1),
#undef SYM
		{ offsetof(struct rs_lib, query_gid_table), "_ibv_query_gid_table", v11, 1 },
	};
	void *h = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	char *msg = NULL;
	int versioned = 0;

	if (!h)
		return strdup(dlerror());
#ifdef __GLIBC__
	versioned = dlvsym(h, "ibv_get_device_list", v1) || dlvsym(h, "ibv_get_device_list", v0);
#endif
	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		void *p = symbol(h, want[i].name, want[i].version, versioned);

		if (!p && !want[i].optional) {
			if (asprintf(&msg, "%s: no function %s%s%s", file, want[i].name, versioned ? " of version " : "", versioned ? want[i].version : "") < 0)
				msg = NULL;
			dlclose(h);
			return msg ? msg : strdup("out of memory");
		}
		memcpy((char *)lib + want[i].at, &p, sizeof p);
	}
	/* Providers register themselves for good: the library stays loaded. */
	return NULL;
}

/* Providers answer with an errno, with minus an errno, or with -1 and errno. */
static int code(int r)
{
	if (r == -1 && errno)
		return errno;
	return r < 0 ? -r : r;
}

struct ab_device **rs_get_device_list(struct rs_lib *lib, int *n)
{
	return lib->get_device_list(n);
}

void rs_free_device_list(struct rs_lib *lib, struct ab_device **list)
{
	lib->free_device_list(list);
}

struct ab_device *rs_device_at(struct ab_device **list, int i)
{
	return list[i];
}

uint64_t rs_get_device_guid(struct rs_lib *lib, struct ab_device *dev)
{
	return be64toh(lib->get_device_guid(dev));
}

struct ab_context *rs_open_device(struct rs_lib *lib, struct ab_device *dev)
{
	return lib->open_device(dev);
}

int rs_close_device(struct rs_lib *lib, struct ab_context *ctx)
{
	return code(lib->close_device(ctx));
}

int rs_query_device(struct rs_lib *lib, struct ab_context *ctx, struct ab_device_attr *attr)
{
	int r = lib->query_device(ctx, attr);

	attr->node_guid = be64toh(attr->node_guid);
	attr->fw_ver[sizeof attr->fw_ver - 1] = 0;
	return code(r);
}

int rs_query_port(struct rs_lib *lib, struct ab_context *ctx, uint8_t port, struct ab_port_attr *attr)
{
	/* Room for a library that knows more fields than this one does. */
	union {
		struct ab_port_attr attr;
		char room[256];
	} u;
	int r;

	memset(&u, 0, sizeof u);
	r = lib->query_port(ctx, port, &u.attr);
	*attr = u.attr;
	return code(r);
}

int rs_query_gid(struct rs_lib *lib, struct ab_context *ctx, uint8_t port, int index, union ab_gid *gid)
{
	return code(lib->query_gid(ctx, port, index, gid));
}

int rs_query_pkey(struct rs_lib *lib, struct ab_context *ctx, uint8_t port, int index, uint16_t *pkey)
{
	int r = lib->query_pkey(ctx, port, index, pkey);

	*pkey = be16toh(*pkey);
	return code(r);
}

long rs_query_gid_table(struct rs_lib *lib, struct ab_context *ctx, struct ab_gid_entry *e, size_t n)
{
	if (!lib->query_gid_table)
		return -ENOSYS;
	return lib->query_gid_table(ctx, e, n, 0, sizeof *e);
}

struct ab_pd *rs_alloc_pd(struct rs_lib *lib, struct ab_context *ctx)
{
	return lib->alloc_pd(ctx);
}

int rs_dealloc_pd(struct rs_lib *lib, struct ab_pd *pd)
{
	return code(lib->dealloc_pd(pd));
}

struct ab_mr *rs_reg_mr(struct rs_lib *lib, struct ab_pd *pd, uintptr_t addr, size_t length, int access)
{
	return lib->reg_mr(pd, (void *)addr, length, access);
}

int rs_dereg_mr(struct rs_lib *lib, struct ab_mr *mr)
{
	return code(lib->dereg_mr(mr));
}

struct ab_comp_channel *rs_create_comp_channel(struct rs_lib *lib, struct ab_context *ctx)
{
	return lib->create_comp_channel(ctx);
}

int rs_destroy_comp_channel(struct rs_lib *lib, struct ab_comp_channel *ch)
{
	return code(lib->destroy_comp_channel(ch));
}

struct ab_cq *rs_create_cq(struct rs_lib *lib, struct ab_context *ctx, int cqe, uintptr_t id, struct ab_comp_channel *ch)
{
	return lib->create_cq(ctx, cqe, (void *)id, ch, 0);
}

int rs_destroy_cq(struct rs_lib *lib, struct ab_cq *cq)
{
	return code(lib->destroy_cq(cq));
}

int rs_req_notify(struct ab_cq *cq, int solicited_only)
{
	return code(cq->context->ops.req_notify_cq(cq, solicited_only));
}

int64_t rs_next_cq_event(struct rs_lib *lib, struct ab_comp_channel *ch)
{
	struct ab_cq *cq;
	void *id;

	errno = 0;
	if (lib->get_cq_event(ch, &cq, &id))
		return errno ? -errno : -EIO;
	lib->ack_cq_events(cq, 1);
	return (int64_t)(uintptr_t)id;
}

int rs_next_async_event(struct rs_lib *lib, struct ab_context *ctx, struct rs_event *out)
{
	struct ab_async_event ev;

	memset(&ev, 0, sizeof ev);
	errno = 0;
	if (lib->get_async_event(ctx, &ev))
		return errno ? errno : EIO;
	memset(out, 0, sizeof *out);
	out->type = ev.event_type;
	switch (ev.event_type) {
	case AB_EVENT_CQ_ERR:
		out->cq = (uintptr_t)ev.element.cq->cq_context;
		break;
	case AB_EVENT_QP_FATAL:
	case AB_EVENT_QP_REQ_ERR:
	case AB_EVENT_QP_ACCESS_ERR:
	case AB_EVENT_COMM_EST:
		out->qpn = ev.element.qp->qp_num;
		break;
	case AB_EVENT_PORT_ACTIVE:
	case AB_EVENT_PORT_ERR:
	case AB_EVENT_LID_CHANGE:
	case AB_EVENT_PKEY_CHANGE:
	case AB_EVENT_GID_CHANGE:
	case AB_EVENT_SM_CHANGE:
	case AB_EVENT_CLIENT_REREGISTER:
		out->port = ev.element.port_num;
		break;
	}
	lib->ack_async_event(&ev);
	return 0;
}

struct rs_qp *rs_create_qp(struct rs_lib *lib, struct ab_pd *pd, struct ab_qp_init_attr *attr, struct ab_cq *send, struct ab_cq *recv)
{
	uint32_t inline_asked = attr->cap.max_inline_data;
	struct rs_qp *q = calloc(1, sizeof *q);

	if (!q) {
		errno = ENOMEM;
		return NULL;
	}
	attr->send_cq = send;
	attr->recv_cq = recv;
	q->qp = lib->create_qp(pd, attr);
	if (!q->qp) {
		int e = errno;

		free(q);
		errno = e;
		return NULL;
	}
	q->post_send = q->qp->context->ops.post_send;
	q->post_recv = q->qp->context->ops.post_recv;
	/* What a device grants beyond what was asked for is not used: a request
	 * that goes inline is not checked against its key. */
	q->inline_max = attr->cap.max_inline_data < inline_asked ? attr->cap.max_inline_data : inline_asked;
	for (int i = 0; i + 1 < RS_BATCH; i++) {
		q->send[i].next = &q->send[i + 1];
		q->recv[i].next = &q->recv[i + 1];
	}
	return q;
}

uint32_t rs_qp_num(struct rs_qp *q)
{
	return q->qp->qp_num;
}

int rs_modify_qp(struct rs_lib *lib, struct rs_qp *q, struct ab_qp_attr *attr, int mask)
{
	return code(lib->modify_qp(q->qp, attr, mask));
}

int rs_query_qp(struct rs_lib *lib, struct rs_qp *q, struct ab_qp_attr *attr, struct ab_qp_init_attr *init)
{
	int all = AB_QP_STATE | AB_QP_ACCESS_FLAGS | AB_QP_PKEY_INDEX | AB_QP_PORT | AB_QP_AV | AB_QP_PATH_MTU | AB_QP_TIMEOUT |
		  AB_QP_RETRY_CNT | AB_QP_RNR_RETRY | AB_QP_RQ_PSN | AB_QP_MAX_QP_RD_ATOMIC | AB_QP_MIN_RNR_TIMER | AB_QP_SQ_PSN |
		  AB_QP_MAX_DEST_RD_ATOMIC | AB_QP_DEST_QPN;

	return code(lib->query_qp(q->qp, attr, all, init));
}

int rs_destroy_qp(struct rs_lib *lib, struct rs_qp *q)
{
	int r = code(lib->destroy_qp(q->qp));

	/* When the device could not destroy it, it may still be posted to: keep. */
	if (!r)
		free(q);
	return r;
}

static const int opcodes[] = {
	AB_WR_SEND, AB_WR_SEND_WITH_IMM, AB_WR_RDMA_WRITE, AB_WR_RDMA_WRITE_WITH_IMM,
	AB_WR_RDMA_READ, AB_WR_ATOMIC_CMP_AND_SWP, AB_WR_ATOMIC_FETCH_AND_ADD,
};

/* verbs.SendFlags: signaled, solicited, fence. */
static const uint8_t send_flags[8] = {
	0,
	AB_SEND_SIGNALED,
	AB_SEND_SOLICITED,
	AB_SEND_SIGNALED | AB_SEND_SOLICITED,
	AB_SEND_FENCE,
	AB_SEND_FENCE | AB_SEND_SIGNALED,
	AB_SEND_FENCE | AB_SEND_SOLICITED,
	AB_SEND_FENCE | AB_SEND_SIGNALED | AB_SEND_SOLICITED,
};

/* Writes one request and returns how many bytes it moves. */
static uint64_t translate(const struct rs_qp *q, struct ab_send_wr *to, const struct rs_send_wr *w, struct ab_sge *sge)
{
	uint64_t bytes = 0;

	for (int i = 0; i < w->num_sge; i++)
		bytes += sge[i].length;
	to->wr_id = w->id;
	to->sg_list = sge;
	to->num_sge = w->num_sge;
	to->opcode = opcodes[w->op];
	to->send_flags = send_flags[w->flags & 7];
	to->imm_data = htobe32(w->imm);
	if (to->opcode >= AB_WR_ATOMIC_CMP_AND_SWP) {
		to->wr.atomic.remote_addr = w->remote_addr;
		to->wr.atomic.compare_add = w->compare_add;
		to->wr.atomic.swap = w->swap;
		to->wr.atomic.rkey = w->rkey;
		return bytes;
	}
	to->wr.rdma.remote_addr = w->remote_addr;
	to->wr.rdma.rkey = w->rkey;
	if (bytes <= q->inline_max && q->inline_max && to->opcode != AB_WR_RDMA_READ)
		to->send_flags |= AB_SEND_INLINE;
	return bytes;
}

static int64_t outcome(int taken, int err)
{
	return (int64_t)taken << 32 | (uint32_t)err;
}

/* A chain of requests is handed over once it moves this much. A device may as
 * well begin with what is there, and rxe, which sends in the caller's time, loses
 * order between two CPUs when it is given more at once. */
enum { chain_bytes = 64 << 10 };

int64_t rs_post_send(uintptr_t qp, const struct rs_send_wr *w, int n, struct ab_sge *sge)
{
	struct rs_qp *q = (struct rs_qp *)qp;

	for (int done = 0; done < n;) {
		struct ab_send_wr *bad = NULL;
		uint64_t bytes = 0;
		int k = 0, r;

		while (k < RS_BATCH && done + k < n && bytes < chain_bytes) {
			bytes += translate(q, &q->send[k], &w[done + k], sge);
			sge += w[done + k].num_sge;
			k++;
		}
		q->send[k - 1].next = NULL;
		errno = 0;
		r = q->post_send(q->qp, q->send, &bad);
		if (k < RS_BATCH)
			q->send[k - 1].next = &q->send[k];
		if (r) {
			if (bad >= q->send && bad < q->send + k)
				done += (int)(bad - q->send);
			return outcome(done, code(r));
		}
		done += k;
	}
	return outcome(n, 0);
}

int64_t rs_post_recv(uintptr_t qp, const struct rs_recv_wr *w, int n, struct ab_sge *sge)
{
	struct rs_qp *q = (struct rs_qp *)qp;

	for (int done = 0; done < n;) {
		int k = n - done < RS_BATCH ? n - done : RS_BATCH, r;
		struct ab_recv_wr *bad = NULL;

		for (int i = 0; i < k; i++) {
			q->recv[i].wr_id = w[done + i].id;
			q->recv[i].sg_list = sge;
			q->recv[i].num_sge = w[done + i].num_sge;
			sge += w[done + i].num_sge;
		}
		q->recv[k - 1].next = NULL;
		errno = 0;
		r = q->post_recv(q->qp, q->recv, &bad);
		if (k < RS_BATCH)
			q->recv[k - 1].next = &q->recv[k];
		if (r) {
			if (bad >= q->recv && bad < q->recv + k)
				done += (int)(bad - q->recv);
			return outcome(done, code(r));
		}
		done += k;
	}
	return outcome(n, 0);
}

/* verbs.WCOpcode: send, write, read, compare and swap, fetch and add. */
static const uint8_t wc_opcodes[] = {
	[AB_WC_SEND] = 0, [AB_WC_RDMA_WRITE] = 1, [AB_WC_RDMA_READ] = 2, [AB_WC_COMP_SWAP] = 3, [AB_WC_FETCH_ADD] = 4,
};

int rs_poll(uintptr_t handle, struct rs_wc *out, int n)
{
	enum { chunk = 32 };
	struct ab_cq *cq = (struct ab_cq *)handle;
	struct ab_wc wc[chunk];
	int got = 0;

	while (got < n) {
		int want = n - got < chunk ? n - got : chunk, k;

		errno = 0;
		k = cq->context->ops.poll_cq(cq, want, wc);
		if (k < 0)
			return got ? got : -code(k);
		for (int i = 0; i < k; i++) {
			struct rs_wc *o = &out[got + i];
			const struct ab_wc *w = &wc[i];

			o->id = w->wr_id;
			o->qpn = w->qp_num;
			o->vendor_err = w->vendor_err;
			o->byte_len = 0;
			o->imm = 0;
			o->status = w->status >= 0 && w->status < 255 ? (uint8_t)w->status : 255;
			o->op = 255;
			o->flags = 0;
			if (w->status)
				continue; /* nothing else is defined */
			if (w->opcode & AB_WC_RECV) {
				o->op = w->opcode == AB_WC_RECV ? 5 : w->opcode == AB_WC_RECV_RDMA_WITH_IMM ? 6 : 255;
				o->byte_len = w->byte_len;
				if (w->wc_flags & AB_WC_WITH_IMM) {
					o->imm = be32toh(w->imm_data);
					o->flags = 1;
				}
			} else if ((unsigned int)w->opcode < sizeof wc_opcodes) {
				o->op = wc_opcodes[w->opcode];
				if (w->opcode == AB_WC_RDMA_READ)
					o->byte_len = w->byte_len;
			}
		}
		got += k;
		if (k < want)
			break;
	}
	return got;
}
