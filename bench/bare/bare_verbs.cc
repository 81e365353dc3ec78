// The baseline of `./dev bench verbs`: bare RDMA writes. One process has a queue pair at each of the two devices of a
// rail, and a thread for each. A thread keeps a few 1 MiB writes in flight and sleeps until completions come. The
// program has no planning, control or safety.
//
//   bench_bare_verbs --rail rxe_n0r0:rxe_n1r0 --rail rxe_n0r1:rxe_n1r1 --megabytes 64
//
// Each end sends --megabytes MiB, divided over the rails. Prints one JSON object.
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kWriteBytes = 1 << 20;
constexpr uint32_t kUnderWay = 4;  // writes of one end that are in flight
constexpr uint8_t kPort = 1;

[[noreturn]] void Die(const std::string& what, int error) {
  std::fprintf(stderr, "bench_bare_verbs: %s: %s\n", what.c_str(), std::strerror(error));
  std::_Exit(1);
}
void Check(int error, const std::string& what) {
  if (error != 0) Die(what, error);
}
template <typename T>
T* Check(T* object, const std::string& what) {
  if (object == nullptr) Die(what, errno);
  return object;
}

template <auto Destroy>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Destroy(object);
  }
};
template <typename T, auto Destroy>
using Owned = std::unique_ptr<T, Deleter<Destroy>>;

// One end of one rail. Members are destroyed from the last to the first.
class End {
 public:
  explicit End(const std::string& device, int gid_index) : name_(device), gid_index_(gid_index) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    for (int i = 0; i < count; ++i) {
      if (device == ibv_get_device_name(list[i])) context_.reset(ibv_open_device(list[i]));
    }
    ibv_free_device_list(list);
    Check(context_.get(), "open " + device);
    domain_.reset(Check(ibv_alloc_pd(context_.get()), "domain"));
    channel_.reset(Check(ibv_create_comp_channel(context_.get()), "channel"));
    completions_.reset(Check(ibv_create_cq(context_.get(), 64, nullptr, channel_.get(), 0), "completion queue"));
    memory_.resize(size_t{kUnderWay} * kWriteBytes * 2);  // first half: to send; second half: the other end writes
    region_.reset(Check(
        ibv_reg_mr(domain_.get(), memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
        "register"));
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = attributes.recv_cq = completions_.get();
    attributes.cap = {kUnderWay, 1, 1, 1, 0};
    attributes.qp_type = IBV_QPT_RC;
    pair_.reset(Check(ibv_create_qp(domain_.get(), &attributes), "queue pair"));
  }

  void Connect(const End& other) {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = kPort;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    Check(ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
          name_ + " INIT");
    ibv_port_attr port = {};
    Check(ibv_query_port(context_.get(), kPort, &port), "port");
    attributes = {};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = port.active_mtu;
    attributes.dest_qp_num = other.pair_->qp_num;
    attributes.max_dest_rd_atomic = 1;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = kPort;
    attributes.ah_attr.grh.hop_limit = 64;
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index_);
    Check(ibv_query_gid(other.context_.get(), kPort, gid_index_, &attributes.ah_attr.grh.dgid), "GID");
    Check(ibv_modify_qp(pair_.get(), &attributes,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
          name_ + " RTR");
    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 16;
    attributes.retry_cnt = 6;
    Check(ibv_modify_qp(pair_.get(), &attributes,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC),
          name_ + " RTS");
    remote_address_ = reinterpret_cast<uint64_t>(other.memory_.data()) + size_t{kUnderWay} * kWriteBytes;
    remote_key_ = other.region_->rkey;
  }

  // Posts `writes` writes and returns when the last one is acknowledged.
  void Send(uint64_t writes) {
    uint64_t posted = 0, done = 0;
    while (done < writes) {
      while (posted < writes && posted - done < kUnderWay) Post(posted++);
      done += Wait();
    }
  }

 private:
  void Post(uint64_t number) {
    const uint64_t offset = number % kUnderWay * kWriteBytes;
    ibv_sge piece = {reinterpret_cast<uint64_t>(memory_.data()) + offset, kWriteBytes, region_->lkey};
    ibv_send_wr request = {};
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = remote_address_ + offset;
    request.wr.rdma.rkey = remote_key_;
    ibv_send_wr* bad = nullptr;
    Check(ibv_post_send(pair_.get(), &request, &bad), name_ + " post");
  }

  uint64_t Poll() {
    ibv_wc done[kUnderWay];
    const int count = ibv_poll_cq(completions_.get(), kUnderWay, done);
    if (count < 0) Die(name_ + " poll", EIO);
    for (int i = 0; i < count; ++i) {
      if (done[i].status != IBV_WC_SUCCESS) Die(name_ + ": " + ibv_wc_status_str(done[i].status), EIO);
    }
    return static_cast<uint64_t>(count);
  }

  uint64_t Wait() {
    if (const uint64_t count = Poll(); count != 0) return count;
    Check(ibv_req_notify_cq(completions_.get(), 0), "arm");
    if (const uint64_t count = Poll(); count != 0) return count;
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(channel_.get(), &queue, &context) != 0) Die("event", errno);
    ibv_ack_cq_events(queue, 1);
    return Poll();
  }

  const std::string name_;
  const int gid_index_;
  std::vector<char> memory_;
  Owned<ibv_context, &ibv_close_device> context_;
  Owned<ibv_pd, &ibv_dealloc_pd> domain_;
  Owned<ibv_comp_channel, &ibv_destroy_comp_channel> channel_;
  Owned<ibv_cq, &ibv_destroy_cq> completions_;
  Owned<ibv_mr, &ibv_dereg_mr> region_;
  Owned<ibv_qp, &ibv_destroy_qp> pair_;
  uint64_t remote_address_ = 0;
  uint32_t remote_key_ = 0;
};

// Pins the two ends of a rail to two processors. Soft-RoCE works on the caller's processor. Without pinning, the
// scheduler would put both ends on one processor half of the time, and the speed would vary.
void PinTo(size_t end) {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  CPU_SET(end % std::thread::hardware_concurrency(), &processors);
  Check(pthread_setaffinity_np(pthread_self(), sizeof processors, &processors), "affinity");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("RDMA writes in both directions over some rails at once, as fast as they go.");
  std::vector<std::string> rails;
  uint64_t megabytes = 64;
  int gid_index = 1;
  app.add_option("--rail", rails, "Two devices that reach each other, as A:B; once for each rail.")->required();
  app.add_option("--megabytes", megabytes, "MiB that each end sends, over all rails.");
  app.add_option("--gid-index", gid_index, "GID of the devices.");
  bool pin = true;
  app.add_flag("--pin,!--no-pin", pin, "Keeps each end on one processor.");
  CLI11_PARSE(app, argc, argv);
  std::vector<std::unique_ptr<End>> ends;
  for (const std::string& rail : rails) {
    const size_t colon = rail.find(':');
    if (colon == std::string::npos) Die("--rail " + rail + " is not A:B", EINVAL);
    ends.push_back(std::make_unique<End>(rail.substr(0, colon), gid_index));
    ends.push_back(std::make_unique<End>(rail.substr(colon + 1), gid_index));
    ends[ends.size() - 2]->Connect(*ends.back());
    ends.back()->Connect(*ends[ends.size() - 2]);
  }
  const uint64_t writes = megabytes / rails.size();
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < ends.size(); ++i) {
      threads.emplace_back([&, i] {
        if (pin) PinTo(i);
        ends[i]->Send(writes);
      });
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("{\"rails\": %zu, \"bytes\": %llu, \"seconds\": %.6f}\n", rails.size(),
              static_cast<unsigned long long>(writes * kWriteBytes * ends.size()), seconds);
  return 0;
}
