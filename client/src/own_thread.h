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

// Takes no signals: the program's own threads handle them. Does not exist in a forked child.
class OwnThread {
 public:
  OwnThread() = default;
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;
  // A thread that runs has been joined, or this is a forked child.
  ~OwnThread() {
    if (!owner_.IsThis()) Forget();
  }

  // Once. `name`: at most 15 characters.
  template <typename Run>
  void Start(const char* name, Run run) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread(std::move(run));
    pthread_setname_np(thread_.native_handle(), name);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  // False in a forked child, and when it has been joined.
  bool running() const { return owner_.IsThis() && thread_.joinable(); }
  void Join() { thread_.join(); }

 private:
  // Its handle may be that of a thread of the child by now, which must neither be joined nor detached: the object is
  // left without its destructor.
  void Forget() { new (&thread_) std::thread; }

  const OwnerProcess owner_{};
  std::thread thread_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_OWN_THREAD_H_
