// A thread of the library inside the program's process.
#ifndef RAILS_CLIENT_SRC_OWN_THREAD_H_
#define RAILS_CLIENT_SRC_OWN_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <new>
#include <thread>
#include <utility>

#include "client/src/owner_process.h"

namespace rails::internal {

// Blocks all signals, so that the program's own threads handle them. Does not exist in a forked child.
class OwnThread {
 public:
  OwnThread() = default;
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;
  // A started thread must have been joined, unless this is a forked child.
  ~OwnThread() {
    if (!owner_.IsThis()) Forget();
  }

  // Call it once. `name`: at most 15 characters.
  template <typename Run>
  void Start(const char* name, Run run) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread(std::move(run));
    pthread_setname_np(thread_.native_handle(), name);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  // True from Start() to Join(); false in a forked child.
  bool running() const { return owner_.IsThis() && thread_.joinable(); }
  void Join() { thread_.join(); }

 private:
  // Drops the std::thread without its destructor. In a forked child its handle may belong to a thread of the child,
  // which must be neither joined nor detached.
  void Forget() { new (&thread_) std::thread; }

  const OwnerProcess owner_{};
  std::thread thread_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_OWN_THREAD_H_
