/* Compiled, never run: the layouts of abi.h are those of the installed header. */
#include <infiniband/verbs.h>

#include "../abi.h"

#define SIZE(ib, ab) _Static_assert(sizeof(ib) == sizeof(ab), "size of " #ib)
#define FIELD(t, f) MEMBER(t, f, f)
#define MEMBER(t, fi, fa)                                                                                             \
	_Static_assert(offsetof(struct ibv_##t, fi) == offsetof(struct ab_##t, fa), "offset of " #t "." #fi);         \
	_Static_assert(sizeof(((struct ibv_##t *)0)->fi) == sizeof(((struct ab_##t *)0)->fa), "size of " #t "." #fi)
#define STRUCT(t) SIZE(struct ibv_##t, struct ab_##t)
#define VALUE(n) _Static_assert((int)IBV_##n == (int)AB_##n, "value of " #n)

STRUCT(device);
FIELD(device, node_type);
FIELD(device, name);
FIELD(device, dev_name);
FIELD(device, dev_path);
FIELD(device, ibdev_path);

STRUCT(context_ops);
FIELD(context_ops, poll_cq);
FIELD(context_ops, req_notify_cq);
FIELD(context_ops, post_srq_recv);
FIELD(context_ops, post_send);
FIELD(context_ops, post_recv);

STRUCT(context);
FIELD(context, device);
FIELD(context, ops);
FIELD(context, cmd_fd);
FIELD(context, async_fd);
FIELD(context, num_comp_vectors);

STRUCT(device_attr);
FIELD(device_attr, fw_ver);
FIELD(device_attr, node_guid);
FIELD(device_attr, max_mr_size);
FIELD(device_attr, vendor_id);
FIELD(device_attr, max_qp);
FIELD(device_attr, max_qp_wr);
FIELD(device_attr, max_sge);
FIELD(device_attr, max_sge_rd);
FIELD(device_attr, max_cq);
FIELD(device_attr, max_cqe);
FIELD(device_attr, max_mr);
FIELD(device_attr, max_pd);
FIELD(device_attr, max_qp_rd_atom);
FIELD(device_attr, max_qp_init_rd_atom);
FIELD(device_attr, phys_port_cnt);

/* The exported function's struct is not in the header: it is this one's start. */
_Static_assert(sizeof(struct ibv_port_attr) >= sizeof(struct ab_port_attr), "size of port_attr");
FIELD(port_attr, state);
FIELD(port_attr, max_mtu);
FIELD(port_attr, active_mtu);
FIELD(port_attr, gid_tbl_len);
FIELD(port_attr, pkey_tbl_len);
FIELD(port_attr, lid);
FIELD(port_attr, sm_lid);
FIELD(port_attr, active_width);
FIELD(port_attr, active_speed);
FIELD(port_attr, link_layer);
FIELD(port_attr, flags);

SIZE(union ibv_gid, union ab_gid);
_Static_assert(_Alignof(union ibv_gid) == _Alignof(union ab_gid), "alignment of gid");
STRUCT(gid_entry);
FIELD(gid_entry, gid);
FIELD(gid_entry, gid_index);
FIELD(gid_entry, port_num);
FIELD(gid_entry, gid_type);
FIELD(gid_entry, ndev_ifindex);

STRUCT(pd);
STRUCT(mr);
FIELD(mr, addr);
FIELD(mr, lkey);
FIELD(mr, rkey);
STRUCT(comp_channel);
FIELD(comp_channel, fd);
STRUCT(cq);
FIELD(cq, context);
FIELD(cq, cq_context);
FIELD(cq, cqe);
STRUCT(qp);
FIELD(qp, context);
FIELD(qp, qp_context);
FIELD(qp, qp_num);

STRUCT(qp_cap);
FIELD(qp_cap, max_inline_data);
STRUCT(qp_init_attr);
FIELD(qp_init_attr, cap);
FIELD(qp_init_attr, qp_type);
FIELD(qp_init_attr, sq_sig_all);
STRUCT(global_route);
FIELD(global_route, dgid);
FIELD(global_route, flow_label);
FIELD(global_route, sgid_index);
FIELD(global_route, hop_limit);
FIELD(global_route, traffic_class);
STRUCT(ah_attr);
FIELD(ah_attr, dlid);
FIELD(ah_attr, sl);
FIELD(ah_attr, is_global);
FIELD(ah_attr, port_num);
STRUCT(qp_attr);
FIELD(qp_attr, qp_state);
FIELD(qp_attr, path_mtu);
FIELD(qp_attr, rq_psn);
FIELD(qp_attr, sq_psn);
FIELD(qp_attr, dest_qp_num);
FIELD(qp_attr, qp_access_flags);
FIELD(qp_attr, cap);
FIELD(qp_attr, ah_attr);
FIELD(qp_attr, pkey_index);
FIELD(qp_attr, max_rd_atomic);
FIELD(qp_attr, max_dest_rd_atomic);
FIELD(qp_attr, min_rnr_timer);
FIELD(qp_attr, port_num);
FIELD(qp_attr, timeout);
FIELD(qp_attr, retry_cnt);
FIELD(qp_attr, rnr_retry);

STRUCT(sge);
FIELD(sge, addr);
FIELD(sge, length);
FIELD(sge, lkey);
STRUCT(send_wr);
FIELD(send_wr, wr_id);
FIELD(send_wr, next);
FIELD(send_wr, sg_list);
FIELD(send_wr, num_sge);
FIELD(send_wr, opcode);
FIELD(send_wr, send_flags);
FIELD(send_wr, imm_data);
FIELD(send_wr, wr.rdma.remote_addr);
FIELD(send_wr, wr.rdma.rkey);
FIELD(send_wr, wr.atomic.remote_addr);
FIELD(send_wr, wr.atomic.compare_add);
FIELD(send_wr, wr.atomic.swap);
FIELD(send_wr, wr.atomic.rkey);
STRUCT(recv_wr);
FIELD(recv_wr, sg_list);
FIELD(recv_wr, num_sge);
STRUCT(wc);
FIELD(wc, status);
FIELD(wc, opcode);
FIELD(wc, vendor_err);
FIELD(wc, byte_len);
FIELD(wc, imm_data);
FIELD(wc, qp_num);
FIELD(wc, wc_flags);
STRUCT(async_event);
FIELD(async_event, element);
FIELD(async_event, event_type);

VALUE(QPT_RC);
VALUE(QP_STATE);
VALUE(QP_ACCESS_FLAGS);
VALUE(QP_PKEY_INDEX);
VALUE(QP_PORT);
VALUE(QP_AV);
VALUE(QP_PATH_MTU);
VALUE(QP_TIMEOUT);
VALUE(QP_RETRY_CNT);
VALUE(QP_RNR_RETRY);
VALUE(QP_RQ_PSN);
VALUE(QP_MAX_QP_RD_ATOMIC);
VALUE(QP_MIN_RNR_TIMER);
VALUE(QP_SQ_PSN);
VALUE(QP_MAX_DEST_RD_ATOMIC);
VALUE(QP_DEST_QPN);
VALUE(ACCESS_LOCAL_WRITE);
VALUE(ACCESS_REMOTE_WRITE);
VALUE(ACCESS_REMOTE_READ);
VALUE(ACCESS_REMOTE_ATOMIC);
VALUE(WR_RDMA_WRITE);
VALUE(WR_RDMA_WRITE_WITH_IMM);
VALUE(WR_SEND);
VALUE(WR_SEND_WITH_IMM);
VALUE(WR_RDMA_READ);
VALUE(WR_ATOMIC_CMP_AND_SWP);
VALUE(WR_ATOMIC_FETCH_AND_ADD);
VALUE(SEND_FENCE);
VALUE(SEND_SIGNALED);
VALUE(SEND_SOLICITED);
VALUE(SEND_INLINE);
VALUE(WC_SEND);
VALUE(WC_RDMA_WRITE);
VALUE(WC_RDMA_READ);
VALUE(WC_COMP_SWAP);
VALUE(WC_FETCH_ADD);
VALUE(WC_RECV);
VALUE(WC_RECV_RDMA_WITH_IMM);
VALUE(WC_WITH_IMM);
VALUE(EVENT_CQ_ERR);
VALUE(EVENT_QP_FATAL);
VALUE(EVENT_QP_REQ_ERR);
VALUE(EVENT_QP_ACCESS_ERR);
VALUE(EVENT_COMM_EST);
VALUE(EVENT_SQ_DRAINED);
VALUE(EVENT_PATH_MIG);
VALUE(EVENT_PATH_MIG_ERR);
VALUE(EVENT_DEVICE_FATAL);
VALUE(EVENT_PORT_ACTIVE);
VALUE(EVENT_PORT_ERR);
VALUE(EVENT_LID_CHANGE);
VALUE(EVENT_PKEY_CHANGE);
VALUE(EVENT_SM_CHANGE);
VALUE(EVENT_QP_LAST_WQE_REACHED);
VALUE(EVENT_CLIENT_REREGISTER);
VALUE(EVENT_GID_CHANGE);
VALUE(LINK_LAYER_INFINIBAND);
VALUE(LINK_LAYER_ETHERNET);
VALUE(GID_TYPE_IB);
VALUE(GID_TYPE_ROCE_V1);
VALUE(GID_TYPE_ROCE_V2);
_Static_assert((int)IBV_QPF_GRH_REQUIRED == (int)AB_PORT_GRH_REQUIRED, "value of QPF_GRH_REQUIRED");

/* package verbs numbers these as the library does; the shim relies on it. */
#define SAME(n, v) _Static_assert((int)IBV_##n == (v), "value of " #n)
SAME(QPS_RESET, 0);
SAME(QPS_INIT, 1);
SAME(QPS_RTR, 2);
SAME(QPS_RTS, 3);
SAME(QPS_SQD, 4);
SAME(QPS_SQE, 5);
SAME(QPS_ERR, 6);
SAME(WC_LOC_LEN_ERR, 1);
SAME(WC_LOC_QP_OP_ERR, 2);
SAME(WC_LOC_PROT_ERR, 4);
SAME(WC_WR_FLUSH_ERR, 5);
SAME(WC_BAD_RESP_ERR, 7);
SAME(WC_REM_INV_REQ_ERR, 9);
SAME(WC_REM_ACCESS_ERR, 10);
SAME(WC_REM_OP_ERR, 11);
SAME(WC_RETRY_EXC_ERR, 12);
SAME(WC_RNR_RETRY_EXC_ERR, 13);
SAME(WC_FATAL_ERR, 19);
SAME(WC_RESP_TIMEOUT_ERR, 20);
SAME(WC_GENERAL_ERR, 21);
SAME(PORT_NOP, 0);
SAME(PORT_DOWN, 1);
SAME(PORT_INIT, 2);
SAME(PORT_ARMED, 3);
SAME(PORT_ACTIVE, 4);
SAME(PORT_ACTIVE_DEFER, 5);
SAME(MTU_256, 1);
SAME(MTU_4096, 5);
