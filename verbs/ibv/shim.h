/* What Go calls. A function that returns int gives 0 or an errno; one that
 * returns a pointer leaves errno. */
#ifndef RAILSTORE_IBV_SHIM_H
#define RAILSTORE_IBV_SHIM_H

#include "abi.h"

/* The functions of a loaded library. */
struct rs_lib {
	struct ab_device **(*get_device_list)(int *n);
	void (*free_device_list)(struct ab_device **list);
	uint64_t (*get_device_guid)(struct ab_device *dev);
	struct ab_context *(*open_device)(struct ab_device *dev);
	int (*close_device)(struct ab_context *ctx);
	int (*query_device)(struct ab_context *ctx, struct ab_device_attr *attr);
	int (*query_port)(struct ab_context *ctx, uint8_t port, struct ab_port_attr *attr);
	int (*query_gid)(struct ab_context *ctx, uint8_t port, int index, union ab_gid *gid);
	int (*query_pkey)(struct ab_context *ctx, uint8_t port, int index, uint16_t *pkey);
	struct ab_pd *(*alloc_pd)(struct ab_context *ctx);
	int (*dealloc_pd)(struct ab_pd *pd);
	struct ab_mr *(*reg_mr)(struct ab_pd *pd, void *addr, size_t length, int access);
	int (*dereg_mr)(struct ab_mr *mr);
	struct ab_comp_channel *(*create_comp_channel)(struct ab_context *ctx);
	int (*destroy_comp_channel)(struct ab_comp_channel *ch);
	struct ab_cq *(*create_cq)(struct ab_context *ctx, int cqe, void *cq_context, struct ab_comp_channel *ch, int vector);
	int (*destroy_cq)(struct ab_cq *cq);
	int (*get_cq_event)(struct ab_comp_channel *ch, struct ab_cq **cq, void **cq_context);
	void (*ack_cq_events)(struct ab_cq *cq, unsigned int n);
	struct ab_qp *(*create_qp)(struct ab_pd *pd, struct ab_qp_init_attr *attr);
	int (*modify_qp)(struct ab_qp *qp, struct ab_qp_attr *attr, int mask);
	int (*query_qp)(struct ab_qp *qp, struct ab_qp_attr *attr, int mask, struct ab_qp_init_attr *init);
	int (*destroy_qp)(struct ab_qp *qp);
	int (*get_async_event)(struct ab_context *ctx, struct ab_async_event *ev);
	void (*ack_async_event)(struct ab_async_event *ev);
	/* Newer ones; NULL where the library has not got them. */
	long (*query_gid_table)(struct ab_context *ctx, struct ab_gid_entry *e, size_t n, uint32_t flags, size_t size);
};

/* Loads file. NULL, or what went wrong, to be freed. */
char *rs_load(struct rs_lib *lib, const char *file);

struct ab_device **rs_get_device_list(struct rs_lib *lib, int *n);
void rs_free_device_list(struct rs_lib *lib, struct ab_device **list);
struct ab_device *rs_device_at(struct ab_device **list, int i);
uint64_t rs_get_device_guid(struct rs_lib *lib, struct ab_device *dev);
struct ab_context *rs_open_device(struct rs_lib *lib, struct ab_device *dev);
int rs_close_device(struct rs_lib *lib, struct ab_context *ctx);
int rs_query_device(struct rs_lib *lib, struct ab_context *ctx, struct ab_device_attr *attr);
int rs_query_port(struct rs_lib *lib, struct ab_context *ctx, uint8_t port, struct ab_port_attr *attr);
int rs_query_gid(struct rs_lib *lib, struct ab_context *ctx, uint8_t port, int index, union ab_gid *gid);
int rs_query_pkey(struct rs_lib *lib, struct ab_context *ctx, uint8_t port, int index, uint16_t *pkey);
/* The number of entries, or minus an errno; -ENOSYS where the library is older. */
long rs_query_gid_table(struct rs_lib *lib, struct ab_context *ctx, struct ab_gid_entry *e, size_t n);
struct ab_pd *rs_alloc_pd(struct rs_lib *lib, struct ab_context *ctx);
int rs_dealloc_pd(struct rs_lib *lib, struct ab_pd *pd);
struct ab_mr *rs_reg_mr(struct rs_lib *lib, struct ab_pd *pd, uintptr_t addr, size_t length, int access);
int rs_dereg_mr(struct rs_lib *lib, struct ab_mr *mr);
struct ab_comp_channel *rs_create_comp_channel(struct rs_lib *lib, struct ab_context *ctx);
int rs_destroy_comp_channel(struct rs_lib *lib, struct ab_comp_channel *ch);
struct ab_cq *rs_create_cq(struct rs_lib *lib, struct ab_context *ctx, int cqe, uintptr_t id, struct ab_comp_channel *ch);
int rs_destroy_cq(struct rs_lib *lib, struct ab_cq *cq);
int rs_req_notify(struct ab_cq *cq, int solicited_only);

/* Takes one completion event, acknowledges it and returns the id of its CQ, or
 * minus an errno. */
int64_t rs_next_cq_event(struct rs_lib *lib, struct ab_comp_channel *ch);

struct rs_event {
	int type;
	int port;
	uint32_t qpn;
	uintptr_t cq; /* id */
};

/* Takes one asynchronous event and acknowledges it. */
int rs_next_async_event(struct rs_lib *lib, struct ab_context *ctx, struct rs_event *out);

/* The three that follow are package verbs' own structs; layout.go compares them. */
struct rs_send_wr {
	uint64_t id;
	uint64_t remote_addr;
	uint64_t compare_add;
	uint64_t swap;
	uint32_t rkey;
	uint32_t imm;
	uint16_t num_sge;
	uint8_t op;
	uint8_t flags;
};

struct rs_recv_wr {
	uint64_t id;
	uint16_t num_sge;
};

struct rs_wc {
	uint64_t id;
	uint32_t qpn;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm;
	uint8_t status;
	uint8_t op;
	uint8_t flags;
};

/* A QP with the work requests that batches are written into. */
enum { RS_BATCH = 64 };
struct rs_qp {
	struct ab_qp *qp;
	int (*post_send)(struct ab_qp *qp, struct ab_send_wr *wr, struct ab_send_wr **bad);
	int (*post_recv)(struct ab_qp *qp, struct ab_recv_wr *wr, struct ab_recv_wr **bad);
	uint32_t inline_max;
	struct ab_send_wr send[RS_BATCH];
	struct ab_recv_wr recv[RS_BATCH];
};

struct rs_qp *rs_create_qp(struct rs_lib *lib, struct ab_pd *pd, struct ab_qp_init_attr *attr, struct ab_cq *send, struct ab_cq *recv);
uint32_t rs_qp_num(struct rs_qp *q);
int rs_modify_qp(struct rs_lib *lib, struct rs_qp *q, struct ab_qp_attr *attr, int mask);
int rs_query_qp(struct rs_lib *lib, struct rs_qp *q, struct ab_qp_attr *attr, struct ab_qp_init_attr *init);
int rs_destroy_qp(struct rs_lib *lib, struct rs_qp *q);

/* The three of the hot path take their handle as a number: Go looks every pointer
 * to a struct with pointers over before a call. */

/* Both return how many were taken in the upper half and an errno in the lower. */
int64_t rs_post_send(uintptr_t qp, const struct rs_send_wr *wr, int n, struct ab_sge *sge);
int64_t rs_post_recv(uintptr_t qp, const struct rs_recv_wr *wr, int n, struct ab_sge *sge);

/* The number of completions, or minus an errno. */
int rs_poll(uintptr_t cq, struct rs_wc *out, int n);

#endif
