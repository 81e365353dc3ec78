// Segments and ranges for tests.
#ifndef RAILSD_TESTS_SUPPORT_TEST_MEMORY_H_
#define RAILSD_TESTS_SUPPORT_TEST_MEMORY_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agent/memory/memory_ranges.h"
#include "agent/memory/segment.h"

namespace railsd::testing {

// A memfd as a trainer makes it.
inline UniqueFd MakeMemfd(uint64_t bytes, unsigned flags = MFD_ALLOW_SEALING, int seals = F_SEAL_SHRINK) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | flags));
  if (fd.valid() && bytes > 0 && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fd.Reset();
  if (fd.valid() && seals != 0) ::fcntl(fd.get(), F_ADD_SEALS, seals);
  return fd;
}

inline std::shared_ptr<const Segment> MakeSegment(uint64_t bytes, uint32_t id = 1) {
  return Segment::Map(SegmentId(id), MakeMemfd(bytes), bytes).value();
}

// Appends [offset, offset + length) of `segment`. Zero lengths are dropped. For a few ranges: it copies the table.
inline void Append(MemoryRanges* ranges, const std::shared_ptr<const Segment>& segment, uint64_t offset,
                   uint64_t length) {
  auto table = std::make_shared<MemoryTable>();
  table->Reserve(ranges->range_count() + 1);
  table->Hold(segment);
  MemoryTable::Writer writer(table.get());
  writer.Append(ranges->pieces().data(), ranges->total_bytes());
  writer.Append(segment.get(), segment->base() + offset, length);
  const MemoryTable::Stream all = writer.End();
  // The former table keeps the segments of the ranges before.
  *ranges = MemoryRanges({table.get(), [table, before = *ranges](const MemoryTable*) {}}, all);
}

// [begin, begin + length) of `segment` cut at random into `pieces` ranges, in a shuffled order.
inline MemoryRanges Scatter(const std::shared_ptr<const Segment>& segment, uint64_t begin, uint64_t length,
                            size_t pieces, std::mt19937_64& random) {
  std::vector<uint64_t> cuts{0, length};
  for (size_t i = 1; i < pieces; ++i) cuts.push_back(random() % (length + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<size_t> order(pieces);
  for (size_t i = 0; i < pieces; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  auto table = std::make_shared<MemoryTable>();
  table->Reserve(pieces);
  table->Hold(segment);
  MemoryTable::Writer writer(table.get());
  for (size_t i : order) writer.Append(segment.get(), segment->base() + begin + cuts[i], cuts[i + 1] - cuts[i]);
  return {table, writer.End()};
}

// The flow's bytes. Test memory is never shrunk under us, so plain loads and stores will do.
inline std::string ReadAll(const MemoryRanges& ranges) {
  std::string bytes;
  std::vector<iovec> pieces(ranges.range_count());
  uint64_t covered = 0;
  pieces.resize(ranges.FillIovecs(0, ranges.total_bytes(), absl::MakeSpan(pieces), &covered));
  for (const iovec& piece : pieces) bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  return bytes;
}
inline void WriteAll(const MemoryRanges& ranges, const std::string& bytes) {
  std::vector<iovec> pieces(ranges.range_count());
  uint64_t covered = 0;
  pieces.resize(ranges.FillIovecs(0, ranges.total_bytes(), absl::MakeSpan(pieces), &covered));
  size_t at = 0;
  for (const iovec& piece : pieces) {
    std::memcpy(piece.iov_base, bytes.data() + at, piece.iov_len);
    at += piece.iov_len;
  }
}
inline std::string RandomBytes(size_t length, std::mt19937_64& random) {
  std::string bytes(length, '\0');
  size_t i = 0;
  for (; i + 8 <= length; i += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  for (; i < length; ++i) bytes[i] = static_cast<char>(random());
  return bytes;
}

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_SUPPORT_TEST_MEMORY_H_
