// Clients, segments and groups.
#include <memory>
#include <string>
#include <utility>

#include "client/c/src/error.h"
#include "client/c/src/handles.h"
#include "client/c/src/options.h"

namespace rails::c {
namespace {

absl::Status Connect(const rails_client_options* given, rails_client** client) {
  if (absl::Status status = Require(client, "client"); !status.ok()) return status;
  const absl::StatusOr<rails_client_options> read = Read(given, "options");
  if (!read.ok()) return read.status();
  ClientOptions options;
  options.socket_dir = Text(read->socket_dir, options.socket_dir.c_str());
  options.client_name = Text(read->client_name, "");
  options.connect_timeout = Time(read->connect_timeout_ns, options.connect_timeout);
  options.spin = Time(read->spin_ns, options.spin);
  absl::StatusOr<std::unique_ptr<Client>> connected = Client::Connect(std::move(options));
  if (!connected.ok()) return connected.status();
  *client = new rails_client{*std::move(connected)};
  return absl::OkStatus();
}

absl::Status Give(absl::StatusOr<std::shared_ptr<Segment>> made, rails_segment** segment) {
  if (!made.ok()) return made.status();
  *segment = new rails_segment{*std::move(made)};
  return absl::OkStatus();
}

absl::Status Alloc(rails_client* client, uint64_t length_bytes, const rails_segment_options* given,
                   rails_segment** segment) {
  if (absl::Status status = Require(client, "client"); !status.ok()) return status;
  if (absl::Status status = Require(segment, "segment"); !status.ok()) return status;
  const absl::StatusOr<rails_segment_options> read = Read(given, "options");
  if (!read.ok()) return read.status();
  if ((read->flags & ~uint64_t{RAILS_SEGMENT_HUGE_PAGES | RAILS_SEGMENT_LAZY}) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("options->flags ", read->flags, " has an unknown bit"));
  }
  SegmentOptions options;
  options.huge_pages = (read->flags & RAILS_SEGMENT_HUGE_PAGES) != 0;
  options.prefault = (read->flags & RAILS_SEGMENT_LAZY) == 0;
  options.name = Text(read->name, options.name.c_str());
  options.timeout = Time(read->timeout_ns, options.timeout);
  return Give(client->client->CreateSegment(length_bytes, std::move(options)), segment);
}

absl::StatusOr<std::unique_ptr<Group>> JoinWith(rails_client& client, const rails_group_options& read,
                                                GroupOptions options) {
  if (read.device == nullptr) {
    if (read.slice_bytes != 0 || read.slices != 0 || read.device_flags != 0) {
      return absl::InvalidArgumentError(
          "options->slice_bytes, slices or device_flags is set, and options->device is NULL");
    }
    return client.client->JoinGroup(std::move(options));
  }
  if (read.device->client.owner_before(client.ends) || client.ends.owner_before(read.device->client)) {
    return absl::InvalidArgumentError("options->device was opened with another client: open it with this one");
  }
  cuda::Staging staging;
  if (read.slice_bytes != 0) staging.slice_bytes = read.slice_bytes;
  if (read.slices != 0) staging.slices = read.slices;
  if ((read.device_flags & ~RAILS_GROUP_NO_LOCAL_COPIES) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("options->device_flags ", read.device_flags, " has an unknown bit"));
  }
  staging.local_copies = (read.device_flags & RAILS_GROUP_NO_LOCAL_COPIES) == 0;
  return read.device->device->JoinGroup(std::move(options), staging);
}

absl::Status Join(rails_client* client, const rails_group_options* given, rails_group** group) {
  if (absl::Status status = Require(client, "client"); !status.ok()) return status;
  if (absl::Status status = Require(given, "options"); !status.ok()) return status;
  if (absl::Status status = Require(group, "group"); !status.ok()) return status;
  const absl::StatusOr<rails_group_options> read = Read(given, "options");
  if (!read.ok()) return read.status();
  if (read->recovery < 0 || read->recovery > RAILS_RECOVERY_DEGRADE) {
    return absl::InvalidArgumentError(
        absl::StrCat("options->recovery ", read->recovery, " is none of RAILS_RECOVERY_"));
  }
  GroupOptions options;
  options.name = Text(read->name, "");
  options.join_key = Text(read->join_key, "");
  options.world_size = read->world_size;
  options.rank = read->rank;
  options.timeout = Time(read->timeout_ns, options.timeout);
  if (read->recovery != 0) options.recovery = static_cast<Recovery>(read->recovery);
  options.wait_limit = Time(read->wait_limit_ns, options.wait_limit);
  options.restart_limit =
      read->restart_limit_ns == -1 ? absl::ZeroDuration() : Time(read->restart_limit_ns, options.restart_limit);
  absl::StatusOr<std::unique_ptr<Group>> joined = JoinWith(*client, *read, std::move(options));
  if (!joined.ok()) return joined.status();
  auto facts = std::make_shared<const GroupFacts>(GroupFacts{(*joined)->members(), client->ends});
  *group = new rails_group{*std::move(joined), std::move(facts)};
  return absl::OkStatus();
}

}  // namespace
}  // namespace rails::c

using rails::c::Guard;
using rails::c::Require;

rails_error* rails_connect(const rails_client_options* options, rails_client** client) {
  return Guard([&] { return rails::c::Connect(options, client); });
}

void rails_close(rails_client* client) { delete client; }

int32_t rails_connected(const rails_client* client) { return client->client->Connected() ? 1 : 0; }

rails_error* rails_reconnect(rails_client* client) {
  return Guard([&] {
    absl::Status status = Require(client, "client");
    return status.ok() ? client->client->Reconnect() : status;
  });
}

const char* rails_node(const rails_client* client) { return client->client->node().c_str(); }

rails_error* rails_client_fd(rails_client* client, int32_t* fd) {
  return Guard([&] {
    if (absl::Status status = Require(client, "client"); !status.ok()) return status;
    if (absl::Status status = Require(fd, "fd"); !status.ok()) return status;
    if (absl::Status status = client->owner.Check(); !status.ok()) return status;
    const absl::StatusOr<int> opened = client->ends->Open();
    if (opened.ok()) *fd = *opened;
    return opened.status();
  });
}

rails_error* rails_segment_alloc(rails_client* client, uint64_t length_bytes, const rails_segment_options* options,
                                 rails_segment** segment) {
  return Guard([&] { return rails::c::Alloc(client, length_bytes, options, segment); });
}

rails_error* rails_segment_import(rails_client* client, int32_t fd, uint64_t length_bytes, int64_t timeout_ns,
                                  rails_segment** segment) {
  return Guard([&] {
    if (absl::Status status = Require(client, "client"); !status.ok()) return status;
    if (absl::Status status = Require(segment, "segment"); !status.ok()) return status;
    const absl::Duration timeout = rails::c::Time(timeout_ns, absl::Minutes(1));
    return rails::c::Give(client->client->ImportSegment(fd, length_bytes, timeout), segment);
  });
}

void* rails_segment_data(const rails_segment* segment) { return segment->segment->bytes().data(); }

uint64_t rails_segment_length(const rails_segment* segment) {
  const auto* const memory = dynamic_cast<const rails::cuda::Memory*>(segment->segment.get());
  return memory != nullptr ? memory->length_bytes() : segment->segment->bytes().size();
}

void rails_segment_free(rails_segment* segment) { delete segment; }

rails_error* rails_join(rails_client* client, const rails_group_options* options, rails_group** group) {
  return Guard([&] { return rails::c::Join(client, options, group); });
}

const char* rails_group_node(const rails_group* group, uint32_t rank) {
  return rank < group->facts->members.size() ? group->facts->members[rank].c_str() : nullptr;
}

rails_error* rails_leave(rails_group* group) {
  return Guard([&] {
    absl::Status status = Require(group, "group");
    return status.ok() ? group->group->Leave() : status;
  });
}

void rails_group_free(rails_group* group) { delete group; }
