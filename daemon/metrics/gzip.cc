#include "daemon/metrics/gzip.h"

#include <zlib.h>

namespace railsd {
namespace {

constexpr int kGzipFormat = 15 + 16;  // 15: the largest window; 16: gzip's header
constexpr int kMemory = 8;            // zlib's default

}  // namespace

absl::StatusOr<std::string> Gzip(const std::string& text) {
  z_stream stream = {};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipFormat, kMemory, Z_DEFAULT_STRATEGY) != Z_OK) {
    return absl::ResourceExhaustedError("zlib has no memory to compress with");
  }
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) return absl::ResourceExhaustedError("zlib could not compress at once");
  return out;
}

}  // namespace railsd
