// A way between two hubs that knows lanes from streams.
#ifndef RAILSD_TESTS_UNIT_DAEMON_PEER_LANE_PROXY_H_
#define RAILSD_TESTS_UNIT_DAEMON_PEER_LANE_PROXY_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "agent/base/unique_fd.h"
#include "daemon/service/beginning.h"

namespace railsd {

// Between a and b: passes streams on, and does with lanes what it is told.
class LaneProxy {
 public:
  enum class Lanes { kPass, kRefuse, kSwallow };  // kSwallow: the greeting and the answer pass, and then nothing

  LaneProxy(int listen_port, int target_port) : target_(target_port) {
    listener_ = UniqueFd(socket(AF_INET, SOCK_STREAM, 0));
    const int on = 1;
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const sockaddr_in address = Loopback(listen_port);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~LaneProxy() {
    stop_ = true;
    thread_.join();
  }
  std::atomic<Lanes> lanes{Lanes::kPass};
  // What has come from dialled lanes so far.
  std::string lane_bytes() const {
    absl::MutexLock lock(&mutex_);
    return lane_bytes_;
  }

 private:
  struct Pair {
    UniqueFd from, to;
    bool known = false, lane = false;
    size_t passed = 0;
    bool over = false;
  };

  static sockaddr_in Loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }

  void Run() {
    std::vector<std::unique_ptr<Pair>> pairs;
    while (!stop_) {
      std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
      for (const auto& pair : pairs) {
        polled.push_back({pair->from.get(), POLLIN, 0});
        polled.push_back({pair->to.get(), POLLIN, 0});
      }
      if (poll(polled.data(), polled.size(), 20) <= 0) continue;
      const size_t before = pairs.size();
      if ((polled[0].revents & POLLIN) != 0) Accept(&pairs);
      for (size_t i = 0; i < before; ++i) {
        if (polled[1 + 2 * i].revents != 0) Forward(*pairs[i], true);
        if (polled[2 + 2 * i].revents != 0) Forward(*pairs[i], false);
      }
      std::erase_if(pairs, [](const auto& pair) { return pair->over; });
    }
  }
  void Accept(std::vector<std::unique_ptr<Pair>>* pairs) {
    auto pair = std::make_unique<Pair>();
    pair->from = UniqueFd(accept(listener_.get(), nullptr, nullptr));
    pair->to = UniqueFd(socket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in address = Loopback(target_);
    if (connect(pair->to.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return;
    pairs->push_back(std::move(pair));
  }
  void Forward(Pair& pair, bool out) {
    char bytes[65536];
    const ssize_t got = recv((out ? pair.from : pair.to).get(), bytes, sizeof(bytes), 0);
    if (got <= 0) {
      pair.over = true;
      return;
    }
    if (out && !std::exchange(pair.known, true)) pair.lane = bytes[0] == kLaneMagic[0];
    if (pair.lane && lanes == Lanes::kRefuse) {
      pair.over = true;
      return;
    }
    const auto size = static_cast<size_t>(got);
    if (out && pair.lane) {
      absl::MutexLock lock(&mutex_);
      lane_bytes_.append(bytes, size);
    }
    const bool swallow = out && pair.lane && lanes == Lanes::kSwallow && pair.passed >= kLaneGreetingBytes;
    if (out) pair.passed += size;
    if (swallow) return;
    if (send((out ? pair.to : pair.from).get(), bytes, size, MSG_NOSIGNAL) != got) pair.over = true;
  }

  const int target_;
  UniqueFd listener_;
  std::atomic<bool> stop_{false};
  mutable absl::Mutex mutex_;
  std::string lane_bytes_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_PEER_LANE_PROXY_H_
