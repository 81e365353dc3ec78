// Shows ThreadSanitizer what gRPC promises, which is not instrumented and passes operations from thread to thread by
// queues without locks: whatever was done before a batch of operations began, its end comes after. As in
// tsan_abseil.cc, these functions come before those of libgrpc.so.
#include <grpc/grpc.h>
#include <grpcpp/support/server_callback.h>
#include <link.h>
#include <sanitizer/tsan_interface.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/sanitizers/tsan_real.h"

namespace railsd {
namespace {

// Takes the place of a callback for one batch.
struct Callback : grpc_completion_queue_functor {
  grpc_completion_queue_functor* real;
};

void RunCallback(grpc_completion_queue_functor* functor, int ok) {
  __tsan_acquire(functor);
  auto* const callback = static_cast<Callback*>(functor);
  grpc_completion_queue_functor* const real = callback->real;
  delete callback;
  real->functor_run(real, ok);
}

using Ranges = std::vector<std::pair<uintptr_t, uintptr_t>>;

int AddCode(dl_phdr_info* module, size_t, void* ranges) {
  for (int i = 0; i < module->dlpi_phnum; ++i) {
    const auto& part = module->dlpi_phdr[i];
    const uintptr_t begin = module->dlpi_addr + part.p_vaddr;
    if ((part.p_flags & PF_X) != 0) static_cast<Ranges*>(ranges)->emplace_back(begin, begin + part.p_memsz);
  }
  return 0;
}

// Whether `address` is code of the program, or of a library that was there when it began.
bool IsCode(uintptr_t address) {
  static const Ranges code = [] {
    Ranges ranges;
    dl_iterate_phdr(AddCode, &ranges);
    return ranges;
  }();
  for (const auto& [begin, end] : code) {
    if (begin <= address && address < end) return true;
  }
  return false;
}

// Null unless `tag` is a callback. The tag of a batch whose end comes through a completion queue is an object of C++,
// which begins with its table of virtual functions; a callback begins with a function.
Callback* CallbackOf(void* tag) {
  auto* const real = static_cast<grpc_completion_queue_functor*>(tag);
  if (!IsCode(reinterpret_cast<uintptr_t>(real->functor_run))) return nullptr;
  auto* const callback = new Callback{*real, real};
  callback->functor_run = &RunCallback;
  return callback;
}

}  // namespace
}  // namespace railsd

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag, void* reserved) {
  static const auto real = railsd::Real<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
  if (tag == nullptr) return real(call, ops, count, tag, reserved);
  railsd::Callback* const callback = railsd::CallbackOf(tag);
  void* const mark = callback != nullptr ? callback : tag;
  __tsan_release(mark);
  const grpc_call_error error = real(call, ops, count, mark, reserved);
  if (error != GRPC_CALL_OK) delete callback;
  return error;
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static const auto real = railsd::Real<decltype(grpc_completion_queue_next)>("grpc_completion_queue_next");
  const grpc_event event = real(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag, gpr_timespec deadline, void* reserved) {
  static const auto real = railsd::Real<decltype(grpc_completion_queue_pluck)>("grpc_completion_queue_pluck");
  const grpc_event event = real(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);

// In the place of ~ClientContext(), which is in libgrpc++.so and so counts a channel's users unseen, while others count
// them inline: when this is the last one it deletes what they were counted in.
void DestroyClientContext(void* context) __asm__("_ZN4grpc13ClientContextD1Ev");
void DestroyClientContext(void* context) {
  static const auto real = railsd::Real<void(void*)>("_ZN4grpc13ClientContextD1Ev");
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  real(context);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}

}  // extern "C"

// libgrpc++.so counts a call's users down too, unseen. Whoever is the last comes to one of these functions.
namespace grpc::internal {
namespace {

// In the place of a reactor for its OnCancel(), after which its user is counted down.
class Cancelled : public ServerReactor {
 public:
  Cancelled(ServerReactor* real, bool inlineable, void* users) : real_(real), inlineable_(inlineable), users_(users) {}
  void OnDone() override {}
  void OnCancel() override {
    real_->OnCancel();
    __tsan_release(users_);
    delete this;
  }

 private:
  bool InternalInlineable() override { return inlineable_; }
  ServerReactor* real_;
  bool inlineable_;
  void* users_;
};

}  // namespace

void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  static const auto real =
      railsd::Real<void(ServerCallbackCall*, bool)>("_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb");
  __tsan_acquire(&callbacks_outstanding_);
  real(this, inline_ondone);
}

void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  static const auto real = railsd::Real<void(ServerCallbackCall*, ServerReactor*)>(
      "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE");
  __tsan_acquire(&on_cancel_conditions_remaining_);
  real(this, new Cancelled(reactor, reactor->InternalInlineable(), &callbacks_outstanding_));
}

}  // namespace grpc::internal
