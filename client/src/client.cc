#include "rails/client.h"

#include <utility>

#include "absl/synchronization/mutex.h"
#include "client/src/group.h"
#include "client/src/memory.h"
#include "client/src/segment.h"
#include "client/src/session.h"
#include "client/src/watcher.h"

namespace rails {
namespace internal {
namespace {

class ClientImpl final : public Client {
 public:
  ClientImpl(ClientOptions options, std::shared_ptr<Watcher> watcher, std::shared_ptr<Session> session)
      : options_(std::move(options)),
        node_(session->hello().node),
        watcher_(std::move(watcher)),
        segments_(std::make_shared<SegmentTable>()),
        session_(std::move(session)) {}

  ~ClientImpl() override {
    segments_->Clear();
    const std::shared_ptr<Session> session = this->session();
    if (session->Usable().code() != absl::StatusCode::kFailedPrecondition) {  // else a forked child's copy
      watcher_->Unwatch();
      session->Close();
    }
    watcher_->Stop();
  }

  // Only for Connect(): nobody else has seen the client yet.
  absl::Status Start() {
    const std::shared_ptr<Session> session = this->session();
    session->Watch();
    return segments_->Use(session);
  }

  absl::StatusOr<std::shared_ptr<Segment>> CreateSegment(uint64_t length_bytes, SegmentOptions options) override {
    if (absl::Status status = session()->Usable(); !status.ok()) return status;
    return Share(SharedMemory::Create(length_bytes, options));
  }

  absl::StatusOr<std::shared_ptr<Segment>> ImportSegment(int fd, uint64_t length_bytes) override {
    if (absl::Status status = session()->Usable(); !status.ok()) return status;
    return Share(SharedMemory::Import(fd, length_bytes));
  }

  absl::StatusOr<std::unique_ptr<Group>> JoinGroup(GroupOptions options) override {
    return GroupImpl::Join(options, session(), segments_);
  }

  bool Connected() const override { return session()->connected(); }

  absl::Status Reconnect() override {
    absl::MutexLock reconnecting(&reconnecting_);
    if (Connected()) return absl::OkStatus();
    session()->Close();
    absl::StatusOr<std::shared_ptr<Session>> next = Session::Open(options_, watcher_);
    if (!next.ok()) return next.status();
    absl::Status status = segments_->Use(*next);
    if (!status.ok()) {
      (*next)->Close();
      return status;
    }
    {
      absl::MutexLock lock(&mutex_);
      session_ = *next;
    }
    (*next)->Watch();
    return absl::OkStatus();
  }

  const std::string& node() const override { return node_; }

 private:
  std::shared_ptr<Session> session() const {
    absl::MutexLock lock(&mutex_);
    return session_;
  }

  absl::StatusOr<std::shared_ptr<Segment>> Share(absl::StatusOr<SharedMemory> memory) {
    if (!memory.ok()) return memory.status();
    absl::StatusOr<std::shared_ptr<SegmentCore>> core = segments_->Add(*std::move(memory));
    if (!core.ok()) return core.status();
    return std::make_shared<SegmentHandle>(*std::move(core));
  }

  const ClientOptions options_;
  const std::string node_;
  const std::shared_ptr<Watcher> watcher_;
  const std::shared_ptr<SegmentTable> segments_;
  absl::Mutex reconnecting_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace
}  // namespace internal

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  auto watcher = std::make_shared<internal::Watcher>();
  absl::StatusOr<std::shared_ptr<internal::Session>> session = internal::Session::Open(options, watcher);
  if (!session.ok()) return session.status();
  auto client = std::make_unique<internal::ClientImpl>(std::move(options), std::move(watcher), *std::move(session));
  if (absl::Status status = client->Start(); !status.ok()) return status;
  return client;
}

}  // namespace rails
