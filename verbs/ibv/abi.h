/* The part of libibverbs' stable ABI that this package uses, written down anew.
 * Names are the library's with "ab_" for "ibv_". Enumerations are plain ints, so
 * that a value which is new to us is no undefined behaviour. testdata/abi.c
 * compares every size and offset with the installed header. */
#ifndef RAILSTORE_IBV_ABI_H
#define RAILSTORE_IBV_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct ab_cq;
struct ab_qp;
struct ab_wc;
struct ab_send_wr;
struct ab_recv_wr;

struct ab_device {
	void *ops[2];
	int node_type;
	int transport_type;
	char name[64];       /* mlx5_0 */
	char dev_name[64];   /* uverbs0 */
	char dev_path[256];  /* sysfs, infiniband_verbs/uverbs0 */
	char ibdev_path[256];/* sysfs, infiniband/mlx5_0 */
};

struct ab_context_ops {
	void *compat_query[7];
	void *memory_windows[3];
	void *compat_create_cq;
	int (*poll_cq)(struct ab_cq *cq, int n, struct ab_wc *wc);
	int (*req_notify_cq)(struct ab_cq *cq, int solicited_only);
	void *compat_cq_srq[7];
	void *post_srq_recv;
	void *compat_qp[4];
	int (*post_send)(struct ab_qp *qp, struct ab_send_wr *wr, struct ab_send_wr **bad);
	int (*post_recv)(struct ab_qp *qp, struct ab_recv_wr *wr, struct ab_recv_wr **bad);
	void *compat_rest[5];
};

struct ab_context {
	struct ab_device *device;
	struct ab_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

struct ab_device_attr {
	char fw_ver[64];
	uint64_t node_guid;      /* big-endian */
	uint64_t sys_image_guid; /* big-endian */
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int max_ee_init_rd_atom;
	int atomic_cap;
	int max_ee;
	int max_rdd;
	int max_mw;
	int max_raw_ipv6_qp;
	int max_raw_ethy_qp;
	int max_mcast_grp;
	int max_mcast_qp_attach;
	int max_total_mcast_qp_attach;
	int max_ah;
	int max_fmr;
	int max_map_per_fmr;
	int max_srq;
	int max_srq_wr;
	int max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

/* As the exported ibv_query_port fills it; the header's own is longer. */
struct ab_port_attr {
	int state;
	int max_mtu;
	int active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
};

union ab_gid {
	uint8_t raw[16];
	uint64_t align[2];
};

struct ab_gid_entry {
	union ab_gid gid;
	uint32_t gid_index;
	uint32_t port_num;
	uint32_t gid_type;
	uint32_t ndev_ifindex;
};

struct ab_pd {
	struct ab_context *context;
	uint32_t handle;
};

struct ab_mr {
	struct ab_context *context;
	struct ab_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct ab_comp_channel {
	struct ab_context *context;
	int fd;
	int refcnt;
};

struct ab_cq {
	struct ab_context *context;
	struct ab_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed;
	uint32_t async_events_completed;
};

struct ab_qp {
	struct ab_context *context;
	void *qp_context;
	struct ab_pd *pd;
	struct ab_cq *send_cq;
	struct ab_cq *recv_cq;
	void *srq;
	uint32_t handle;
	uint32_t qp_num;
	int state;
	int qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct ab_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct ab_qp_init_attr {
	void *qp_context;
	struct ab_cq *send_cq;
	struct ab_cq *recv_cq;
	void *srq;
	struct ab_qp_cap cap;
	int qp_type;
	int sq_sig_all;
};

struct ab_global_route {
	union ab_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

struct ab_ah_attr {
	struct ab_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct ab_qp_attr {
	int qp_state;
	int cur_qp_state;
	int path_mtu;
	int path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct ab_qp_cap cap;
	struct ab_ah_attr ah_attr;
	struct ab_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

struct ab_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct ab_send_wr {
	uint64_t wr_id;
	struct ab_send_wr *next;
	struct ab_sge *sg_list;
	int num_sge;
	int opcode;
	unsigned int send_flags;
	uint32_t imm_data; /* big-endian */
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
		struct {
			void *ah;
			uint32_t remote_qpn;
			uint32_t remote_qkey;
		} ud;
	} wr;
	uint32_t xrc_remote_srqn;
	union {
		struct {
			void *mw;
			uint32_t rkey;
			struct {
				void *mr;
				uint64_t addr;
				uint64_t length;
				unsigned int access;
			} bind_info;
		} bind_mw;
		struct {
			void *hdr;
			uint16_t hdr_sz;
			uint16_t mss;
		} tso;
	} rest;
};

struct ab_recv_wr {
	uint64_t wr_id;
	struct ab_recv_wr *next;
	struct ab_sge *sg_list;
	int num_sge;
};

struct ab_wc {
	uint64_t wr_id;
	int status;
	int opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data; /* big-endian */
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

struct ab_async_event {
	union {
		struct ab_cq *cq;
		struct ab_qp *qp;
		void *srq;
		void *wq;
		int port_num;
	} element;
	int event_type;
};

/* Values that go to the library or come from it. */
enum {
	AB_QPT_RC = 2,

	AB_QP_STATE = 1 << 0,
	AB_QP_ACCESS_FLAGS = 1 << 3,
	AB_QP_PKEY_INDEX = 1 << 4,
	AB_QP_PORT = 1 << 5,
	AB_QP_AV = 1 << 7,
	AB_QP_PATH_MTU = 1 << 8,
	AB_QP_TIMEOUT = 1 << 9,
	AB_QP_RETRY_CNT = 1 << 10,
	AB_QP_RNR_RETRY = 1 << 11,
	AB_QP_RQ_PSN = 1 << 12,
	AB_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	AB_QP_MIN_RNR_TIMER = 1 << 15,
	AB_QP_SQ_PSN = 1 << 16,
	AB_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	AB_QP_DEST_QPN = 1 << 20,

	AB_ACCESS_LOCAL_WRITE = 1 << 0,
	AB_ACCESS_REMOTE_WRITE = 1 << 1,
	AB_ACCESS_REMOTE_READ = 1 << 2,
	AB_ACCESS_REMOTE_ATOMIC = 1 << 3,

	AB_WR_RDMA_WRITE = 0,
	AB_WR_RDMA_WRITE_WITH_IMM = 1,
	AB_WR_SEND = 2,
	AB_WR_SEND_WITH_IMM = 3,
	AB_WR_RDMA_READ = 4,
	AB_WR_ATOMIC_CMP_AND_SWP = 5,
	AB_WR_ATOMIC_FETCH_AND_ADD = 6,

	AB_SEND_FENCE = 1 << 0,
	AB_SEND_SIGNALED = 1 << 1,
	AB_SEND_SOLICITED = 1 << 2,
	AB_SEND_INLINE = 1 << 3,

	AB_WC_SEND = 0,
	AB_WC_RDMA_WRITE = 1,
	AB_WC_RDMA_READ = 2,
	AB_WC_COMP_SWAP = 3,
	AB_WC_FETCH_ADD = 4,
	AB_WC_RECV = 1 << 7,
	AB_WC_RECV_RDMA_WITH_IMM = (1 << 7) + 1,

	AB_WC_WITH_IMM = 1 << 1,

	AB_EVENT_CQ_ERR = 0,
	AB_EVENT_QP_FATAL = 1,
	AB_EVENT_QP_REQ_ERR = 2,
	AB_EVENT_QP_ACCESS_ERR = 3,
	AB_EVENT_COMM_EST = 4,
	AB_EVENT_SQ_DRAINED = 5,
	AB_EVENT_PATH_MIG = 6,
	AB_EVENT_PATH_MIG_ERR = 7,
	AB_EVENT_DEVICE_FATAL = 8,
	AB_EVENT_PORT_ACTIVE = 9,
	AB_EVENT_PORT_ERR = 10,
	AB_EVENT_LID_CHANGE = 11,
	AB_EVENT_PKEY_CHANGE = 12,
	AB_EVENT_SM_CHANGE = 13,
	AB_EVENT_QP_LAST_WQE_REACHED = 16,
	AB_EVENT_CLIENT_REREGISTER = 17,
	AB_EVENT_GID_CHANGE = 18,

	AB_LINK_LAYER_INFINIBAND = 1,
	AB_LINK_LAYER_ETHERNET = 2,

	AB_PORT_GRH_REQUIRED = 1 << 0,

	AB_GID_TYPE_IB = 0,
	AB_GID_TYPE_ROCE_V1 = 1,
	AB_GID_TYPE_ROCE_V2 = 2,
};

#endif
