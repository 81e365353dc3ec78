#include "agent/transport/verbs/queue_pair.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/signal.h"

namespace railsd::verbs {
namespace {

constexpr uint8_t kHopLimit = 64;
// Credit covers fences, so a receiver without receives is in trouble: retry for a short time, not for ever.
constexpr uint8_t kReceiverNotReadyTimer = 14;  // 1.28 ms
constexpr uint8_t kReceiverNotReadyRetries = 6;
constexpr int kMaxReads = 16;

}  // namespace

uint8_t MaxReads(const RdmaDevice& device) {
  const ibv_device_attr& attributes = device.attributes();
  return static_cast<uint8_t>(
      std::clamp(std::min(attributes.max_qp_rd_atom, attributes.max_qp_init_rd_atom), 0, kMaxReads));
}

absl::Status MoveToInit(const RdmaDevice& device, ibv_qp* queue_pair, unsigned access) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device.port();
  attributes.qp_access_flags = access;
  const int error =
      ibv_modify_qp(queue_pair, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0 ? absl::OkStatus() : CallFailed(device.who(), "ibv_modify_qp to INIT", error);
}

absl::Status MoveToSending(const RdmaDevice& device, const VerbsTuning& tuning, ibv_qp* queue_pair,
                           const QueuePairPath& path) {
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = MtuOf(path.mtu_bytes);
  receive.dest_qp_num = path.peer_number;
  receive.rq_psn = path.peer_psn;
  receive.max_dest_rd_atomic = path.reads_in;
  receive.min_rnr_timer = kReceiverNotReadyTimer;
  receive.ah_attr.port_num = device.port();
  receive.ah_attr.sl = tuning.service_level;
  receive.ah_attr.dlid = path.peer_lid;
  // InfiniBand needs a GRH only between subnets; RoCE always.
  const auto& own_gid = path.own.gid.bytes;
  const bool other_subnet = !std::equal(own_gid.begin(), own_gid.begin() + 8, path.peer_gid.begin());
  if (path.own.link_layer == LinkLayer::kEthernet || other_subnet) {
    receive.ah_attr.is_global = 1;
    std::copy(path.peer_gid.begin(), path.peer_gid.end(), receive.ah_attr.grh.dgid.raw);
    receive.ah_attr.grh.sgid_index = static_cast<uint8_t>(path.own.gid.index);
    receive.ah_attr.grh.hop_limit = kHopLimit;
    receive.ah_attr.grh.traffic_class = tuning.traffic_class;
  }
  int error = ibv_modify_qp(queue_pair, &receive,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) {
    return CallFailed(device.who(), absl::StrCat("ibv_modify_qp to RTR, towards ", GidText(path.peer_gid)), error);
  }
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = tuning.timeout;
  send.retry_cnt = tuning.retry_count;
  send.rnr_retry = kReceiverNotReadyRetries;
  send.sq_psn = path.own_psn;
  send.max_rd_atomic = path.reads_out;
  error = ibv_modify_qp(
      queue_pair, &send,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? absl::OkStatus() : CallFailed(device.who(), "ibv_modify_qp to RTS", error);
}

}  // namespace railsd::verbs
