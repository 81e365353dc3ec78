#include "agent/sessions/sessions.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace railsd {

absl::StatusOr<SessionId> SessionTable::Open(SessionInfo info) {
  if (sessions_.size() >= limits_.max_sessions) {
    return refused_.Refuse(Limit::kSessions,
                           absl::StrCat(limits_.max_sessions, " sessions are open; pid ", info.pid, " must wait"));
  }
  Tenant& tenant = tenants_.Of(info.tenant);
  if (absl::Status s = tenant.TakeSession(); !s.ok()) return s;
  auto session = std::make_unique<Session>();
  session->tenant = &tenant;
  session->id = SessionId(next_id_++);
  session->info = std::move(info);
  const SessionId id = session->id;
  {
    std::lock_guard lock(mutex_);
    memories_.emplace(id, session->memory);
  }
  sessions_.emplace(id, std::move(session));
  return id;
}

std::shared_ptr<SessionMemory> SessionTable::MemoryOf(SessionId id) const {
  std::lock_guard lock(mutex_);
  const auto it = memories_.find(id);
  return it == memories_.end() ? nullptr : it->second;
}

Session* SessionTable::FindAny(SessionId id) {
  auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second.get();
}

Session* SessionTable::Find(SessionId id) {
  Session* session = FindAny(id);
  return session != nullptr && !session->closing ? session : nullptr;
}

absl::Status SessionTable::TakeRoom(Session& session, SegmentId id, uint64_t length_bytes) {
  if (session.memory->Find(id) != nullptr || session.reserved.contains(id) || session.mapping.contains(id)) {
    return absl::AlreadyExistsError(absl::StrCat("segment_id: ", id.value(), " is taken in this session"));
  }
  const size_t segments = session.memory->count() + session.reserved.size() + session.mapping.size();
  if (segments >= limits_.max_segments_per_session) {
    return refused_.Refuse(Limit::kSegmentsPerSession,
                           absl::StrCat("the session has ", segments, " segments; remove one first"));
  }
  const uint64_t limit_bytes = limits_.max_segment_bytes_per_session;
  // The limit may have been lowered below what the session has.
  if (session.segment_bytes > limit_bytes || length_bytes > limit_bytes - session.segment_bytes) {
    return refused_.Refuse(
        Limit::kSegmentBytesPerSession,
        absl::StrCat("the session has ", session.segment_bytes, " bytes, length_bytes ", length_bytes,
                     " would pass the limit of ", limits_.max_segment_bytes_per_session));
  }
  if (absl::Status s = session.tenant->TakeSegment(length_bytes); !s.ok()) return s;
  session.segment_bytes += length_bytes;
  return absl::OkStatus();
}

void SessionTable::ReturnRoom(Session& session, uint64_t length_bytes) {
  session.segment_bytes -= length_bytes;
  session.tenant->ReturnSegment(length_bytes);
}

absl::Status SessionTable::ReserveSegment(SessionId session_id, SegmentId id, uint64_t length_bytes) {
  Session* session = Find(session_id);
  if (session == nullptr) return absl::NotFoundError(absl::StrCat("session ", session_id.value(), " is not open"));
  if (absl::Status s = TakeRoom(*session, id, length_bytes); !s.ok()) return s;
  session->reserved.emplace(id, length_bytes);
  return absl::OkStatus();
}

absl::Status SessionTable::BeginMapping(SessionId session_id, SegmentId id, uint64_t length_bytes) {
  Session* session = Find(session_id);
  if (session == nullptr) return absl::NotFoundError(absl::StrCat("session ", session_id.value(), " is not open"));
  if (const auto it = session->reserved.find(id); it != session->reserved.end()) {
    if (it->second != length_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("length_bytes: ", length_bytes, ", but segment ", id.value(),
                                                     " was reserved with ", it->second, " bytes"));
    }
    session->reserved.erase(it);
  } else if (absl::Status s = TakeRoom(*session, id, length_bytes); !s.ok()) {
    return s;
  }
  session->mapping.emplace(id, length_bytes);
  return absl::OkStatus();
}

absl::Status SessionTable::AddSegment(SessionId session_id, SegmentId id,
                                      absl::StatusOr<std::shared_ptr<const Segment>> segment) {
  Session* session = FindAny(session_id);
  const auto mapping = session == nullptr ? decltype(session->mapping.end()){} : session->mapping.find(id);
  if (session == nullptr || mapping == session->mapping.end()) {
    return absl::NotFoundError(
        absl::StrCat("segment_id: ", id.value(), " is not expected in session ", session_id.value()));
  }
  const uint64_t length_bytes = mapping->second;
  session->mapping.erase(mapping);
  if (segment.ok() && !session->closing) {
    session->memory->Add(id, *std::move(segment));
    return absl::OkStatus();
  }
  ReturnRoom(*session, length_bytes);
  if (!segment.ok()) return segment.status();
  return absl::NotFoundError(absl::StrCat("session ", session_id.value(), " ended meanwhile"));
}

absl::Status SessionTable::RemoveSegment(SessionId session_id, SegmentId id) {
  Session* session = Find(session_id);
  if (session == nullptr) return absl::NotFoundError(absl::StrCat("session ", session_id.value(), " is not open"));
  if (const auto reserved = session->reserved.find(id); reserved != session->reserved.end()) {
    ReturnRoom(*session, reserved->second);
    session->reserved.erase(reserved);
    return absl::OkStatus();
  }
  const absl::StatusOr<uint64_t> length_bytes = session->memory->Remove(id);
  if (length_bytes.ok()) ReturnRoom(*session, *length_bytes);
  return length_bytes.status();
}

void SessionTable::Erase(SessionId id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  Session& session = *it->second;
  for (const auto* lengths : {&session.reserved, &session.mapping}) {
    for (const auto& [segment, length_bytes] : *lengths) ReturnRoom(session, length_bytes);
  }
  session.memory->prepared().Clear();
  for (const uint64_t length_bytes : session.memory->RemoveAll()) ReturnRoom(session, length_bytes);
  session.tenant->ReturnSession();
  {
    std::lock_guard lock(mutex_);
    memories_.erase(id);
  }
  sessions_.erase(it);
}

}  // namespace railsd
