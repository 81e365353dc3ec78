// Calls to the daemon through the ring (common/ring/ring.h), and the reports of jobs that come through it.
//
// The first thread that waits is the leader: it reads the ring for all and sleeps on the doorbell, so the daemon wakes
// it without another thread in between. The others sleep until the leader wakes them, or leaves and passes the role on.
// While callbacks or dropped jobs are outstanding and no thread waits, the watcher reads the ring.
#ifndef RAILS_CLIENT_SRC_RING_CALLS_H_
#define RAILS_CLIENT_SRC_RING_CALLS_H_

#include <google/protobuf/message_lite.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/deadline.h"
#include "client/src/descriptor_channel.h"
#include "client/src/owner_process.h"
#include "client/src/unique_fd.h"
#include "client/src/waiter.h"
#include "client/src/watcher.h"
#include "common/ring/ring.h"
#include "rails/v1/job.pb.h"
#include "rails/v1/ring.pb.h"

namespace rails::internal {

// One mapping of a ring's memory. It does not exist in a forked child.
class RingMemory {
 public:
  // Fails unless the memory is as long as a ring's and sealed against shrinking.
  static absl::StatusOr<RingMemory> Map(int fd, int protection);
  RingMemory(RingMemory&& other) noexcept : base_(std::exchange(other.base_, nullptr)) {}
  RingMemory& operator=(RingMemory&&) = delete;
  ~RingMemory();

  template <typename Control>
  Control* control() const {
    return static_cast<Control*>(base_);
  }
  std::byte* data() const { return static_cast<std::byte*>(base_) + ring::kDataOffset; }

 private:
  explicit RingMemory(void* base) : base_(base) {}

  const OwnerProcess owner_{};
  void* base_;
};

// RingCalls calls it on the thread that reads the ring.
class RingListener {
 public:
  virtual ~RingListener() = default;
  virtual void OnReport(const v1::JobReport& report) = 0;
  // Reports found no room in the ring.
  virtual void OnMissed() = 0;
  // The daemon has closed its end, or has broken the ring's rules (`why`). The ring is not read again.
  virtual void OnHangUp(const absl::Status& why) = 0;
};

// Thread-safe. A caller must not hold a lock that a RingListener or a `done` takes.
class RingCalls : public std::enable_shared_from_this<RingCalls> {
 public:
  // `spin`: how long a leader looks at the ring before it sleeps. `listener` outlives the use of the object.
  static absl::StatusOr<std::shared_ptr<RingCalls>> Create(RingDescriptors descriptors, absl::Duration spin,
                                                           std::shared_ptr<Watcher> watcher, RingListener* listener);
  RingCalls(RingMemory requests, RingMemory answers, UniqueFd doorbell, UniqueFd interrupt, absl::Duration spin,
            std::shared_ptr<Watcher> watcher, RingListener* listener);

  using Done = std::function<void(const v1::RingAnswer& answer)>;
  struct CallOptions {
    const void* caller = nullptr;  // for GiveUp()
    // Called with an answer that comes after Call() has returned without it. If set, Call() then tells the daemon that
    // the call is given up.
    Done on_late = nullptr;
  };
  // Makes a call and waits for its answer. DEADLINE_EXCEEDED: no answer in time. CANCELLED: GiveUp() was called. Other
  // errors are those of End(). If a submission finds no room in time, the answer is UNAVAILABLE.
  absl::StatusOr<v1::RingAnswer> Call(ring::Kind kind, const google::protobuf::MessageLite& request, Deadline deadline,
                                      CallOptions options) ABSL_LOCKS_EXCLUDED(writing_, reading_, mutex_);
  // Makes a call without waiting. `done` gets the answer when some thread reads the ring; after End() it is dropped.
  void Post(ring::Kind kind, const google::protobuf::MessageLite& request, Done done)
      ABSL_LOCKS_EXCLUDED(writing_, mutex_);
  // Ends the waiting calls of `caller` with CANCELLED.
  void GiveUp(const void* caller) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until `waiter` is done. Reads the ring meanwhile, at least once. False: `deadline` has passed.
  bool Wait(Waiter& waiter, Deadline deadline) ABSL_LOCKS_EXCLUDED(reading_, mutex_);
  // Keeps the ring read even if no thread waits, until Unfollow() is called as often.
  void Follow() ABSL_LOCKS_EXCLUDED(mutex_);
  void Unfollow() ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the leader's wait. From then on only Drain() reads the ring.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads all records in the ring.
  void Drain() ABSL_LOCKS_EXCLUDED(reading_, mutex_);
  // Ends the calls under way and later ones with `why`.
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A call whose answer has not come, or has not been taken.
  struct Pending {
    Waiter* waiter = nullptr;  // null: nobody waits, and `done` gets the answer
    Done done;
    const void* caller = nullptr;
    bool given_up = false, answered = false, followed = false;
    v1::RingAnswer answer;
    std::string payload;  // of the request; used by the caller's thread until it is written
  };
  // An empty Pending. Uses one of an earlier call again, with its allocated memory.
  std::unique_ptr<Pending> NewCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Writes a request, in parts if it is long. Error: nothing of it was written, because there was no room in time, or
  // the ring has ended. If there is room in time for the first part only, the next writer writes the rest. Moves a long
  // payload out of `payload`.
  absl::Status Write(ring::Kind kind, uint64_t id, std::string&& payload, Deadline deadline)
      ABSL_LOCKS_EXCLUDED(writing_, reading_, mutex_);
  absl::Status WriteRest(Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_)
      ABSL_LOCKS_EXCLUDED(reading_, mutex_);
  // False: there is no room now, or another thread writes.
  bool TryWrite(ring::Kind kind, uint64_t id, absl::string_view payload) ABSL_LOCKS_EXCLUDED(writing_);
  // As Write(). Leaves the work to the watcher if there is no room now.
  void WriteOrPost(ring::Kind kind, uint64_t id, std::string payload) ABSL_LOCKS_EXCLUDED(writing_);
  absl::Status AwaitRoom(size_t bytes, Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_)
      ABSL_LOCKS_EXCLUDED(reading_, mutex_);
  void WriteRecord(ring::Kind kind, uint16_t flags, uint64_t id, absl::string_view payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);

  // Reads the ring until `waiter` is done, `deadline` has passed, or the daemon has hung up.
  void Lead(Waiter& waiter, Deadline deadline) ABSL_LOCKS_EXCLUDED(reading_, mutex_);
  // Looks at the ring for `spin_`. True if there is something to read, or `waiter` is done.
  bool Spin(const Waiter& waiter, Deadline deadline) const;
  bool Unread() const;
  // Asks the daemon to ring the doorbell. True if there is something to read already.
  bool AskForBell();
  // Called when no thread leads. Wakes another waiting thread to lead, or lets the watcher read if it is needed.
  void PassOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads the ring on the watcher's thread. False: the watcher is no longer needed.
  bool OnBell() ABSL_LOCKS_EXCLUDED(reading_, mutex_);
  void EmptyBell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_);
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_) ABSL_LOCKS_EXCLUDED(mutex_);
  // Moves the contents out of `answer`.
  void OnAnswer(uint64_t id, v1::RingAnswer* answer) ABSL_LOCKS_EXCLUDED(mutex_);
  void HangUp(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const RingMemory requests_, answers_;
  const UniqueFd doorbell_, interrupt_;
  ring::RequestControl* const own_;
  const ring::AnswerControl* const daemons_;
  const absl::Duration spin_;
  const std::shared_ptr<Watcher> watcher_;
  RingListener* const listener_;

  absl::Mutex writing_;  // taken first
  ring::Writer writer_ ABSL_GUARDED_BY(writing_);
  // A request whose first parts are written, and the rest is not.
  struct {
    ring::Kind kind{};
    uint64_t id = 0;
    std::string payload;
    size_t written_bytes = 0;
  } rest_ ABSL_GUARDED_BY(writing_);

  absl::Mutex reading_;  // taken second; held while answers and reports are handed out
  ring::Reader reader_ ABSL_GUARDED_BY(reading_);
  std::string payload_ ABSL_GUARDED_BY(reading_);
  v1::JobReport report_ ABSL_GUARDED_BY(reading_);
  v1::RingAnswer answer_ ABSL_GUARDED_BY(reading_);
  bool bell_closed_ ABSL_GUARDED_BY(reading_) = false;

  std::atomic<uint64_t> missed_{0};  // as last seen
  std::atomic<uint32_t> posted_{0};  // requests that wait for the watcher to write them

  mutable absl::Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Pending>> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Pending>> idle_ ABSL_GUARDED_BY(mutex_);  // a few calls that have ended
  Waiter* room_waiter_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the thread that holds writing_, if it waits for room
  size_t room_bytes_ ABSL_GUARDED_BY(mutex_) = 0;          // room that it waits for
  bool leading_ ABSL_GUARDED_BY(mutex_) = false;           // a thread is in Lead()
  std::vector<Waiter*> others_ ABSL_GUARDED_BY(mutex_);    // threads that wait while another leads
  uint32_t followed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;  // the watcher polls the doorbell
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;   // Shutdown() was called: no thread leads
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_RING_CALLS_H_
