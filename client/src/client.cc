#include "rails/client.h"

#include <utility>

#include "client/src/connection.h"
#include "client/src/group.h"
#include "client/src/membership.h"
#include "client/src/memory.h"
#include "client/src/segment.h"

namespace rails {
namespace internal {
namespace {

class ClientImpl final : public Client {
 public:
  ClientImpl(absl::Duration connect_timeout, std::shared_ptr<Connection> connection)
      : connect_timeout_(connect_timeout),
        node_(connection->session()->hello().node),
        connection_(std::move(connection)) {}

  ~ClientImpl() override { connection_->Close(); }

  absl::StatusOr<std::shared_ptr<Segment>> CreateSegment(uint64_t length_bytes, SegmentOptions options) override {
    if (absl::Status status = Usable(options.timeout); !status.ok()) return status;
    return Share(SharedMemory::Create(length_bytes, options), options.prefault, options.timeout);
  }

  absl::StatusOr<std::shared_ptr<Segment>> ImportSegment(int fd, uint64_t length_bytes,
                                                         absl::Duration timeout) override {
    if (absl::Status status = Usable(timeout); !status.ok()) return status;
    return Share(SharedMemory::Import(fd, length_bytes), /*prefault=*/false, timeout);
  }

  absl::StatusOr<std::unique_ptr<Group>> JoinGroup(GroupOptions options) override {
    if (absl::Status status = connection_->owner().Check(); !status.ok()) return status;
    if (absl::Status status = CheckGroupOptions(options); !status.ok()) return status;
    return GroupHandle::Join(options, connection_);
  }

  bool Connected() const override { return connection_->owner().IsThis() && connection_->session()->connected(); }
  absl::Status Reconnect() override { return connection_->Reconnect(connect_timeout_); }
  const std::string& node() const override { return node_; }

 private:
  absl::Status Usable(absl::Duration timeout) const {
    if (absl::Status status = connection_->owner().Check(); !status.ok()) return status;
    if (absl::Status status = CheckTimeout(timeout); !status.ok()) return status;
    return connection_->session()->Usable();
  }

  absl::StatusOr<std::shared_ptr<Segment>> Share(absl::StatusOr<SharedMemory> memory, bool prefault,
                                                 absl::Duration timeout) {
    if (!memory.ok()) return memory.status();
    absl::StatusOr<std::shared_ptr<SegmentCore>> core =
        connection_->segments()->Add(*std::move(memory), prefault, timeout);
    if (!core.ok()) return core.status();
    return std::make_shared<SegmentHandle>(*std::move(core));
  }

  const absl::Duration connect_timeout_;
  const std::string node_;
  const std::shared_ptr<Connection> connection_;
};

}  // namespace
}  // namespace internal

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  const absl::Duration connect_timeout = options.connect_timeout;
  absl::StatusOr<std::shared_ptr<internal::Connection>> connection = internal::Connection::Open(std::move(options));
  if (!connection.ok()) return connection.status();
  return std::make_unique<internal::ClientImpl>(connect_timeout, *std::move(connection));
}

}  // namespace rails
