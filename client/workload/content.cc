#include "client/workload/content.h"

#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace rails::workload {
namespace {

absl::Status FileError(const std::string& path, const char* what, int error) {
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    default:
      return absl::InvalidArgumentError(text);
  }
}

}  // namespace

std::string Quoted(absl::string_view value) {
  constexpr size_t kMost = 60;
  std::string text = "\"";
  for (const char c : value.substr(0, kMost)) text += absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
  return text + (value.size() > kMost ? "...\"" : "\"");
}

absl::StatusOr<std::string> ReadContent(const std::string& path, const ReadLimits& limits) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) return FileError(path, "open", errno);
  std::string stored;
  std::string buffer(1 << 16, '\0');
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    if (stored.size() + got > limits.file_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": larger than the limit of ", limits.file_bytes, " bytes"));
    }
    stored.append(buffer, 0, got);
  }
  if (std::ferror(file.get())) return FileError(path, "read", errno);
  return Decompress(std::move(stored), path, limits);
}

absl::StatusOr<std::string> Decompress(std::string stored, std::string_view name, const ReadLimits& limits) {
  const auto error = [name](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(Abs(name), ": ", what...));
  };
  if (stored.size() < 2 || stored[0] != '\x1f' || stored[1] != '\x8b') {
    if (stored.size() > limits.content_bytes) return error("larger than the limit of ", limits.content_bytes, " bytes");
    return stored;
  }
  z_stream stream = {};
  constexpr int kGzip = 15 + 16;  // zlib's code for the largest window and a gzip header
  if (inflateInit2(&stream, kGzip) != Z_OK) return absl::InternalError("zlib cannot start");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> owner(&stream, &inflateEnd);
  std::string content;
  std::string buffer(1 << 16, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(stored.data());
  stream.avail_in = static_cast<uInt>(stored.size());
  for (;;) {
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = static_cast<uInt>(buffer.size());
    const int result = inflate(&stream, Z_NO_FLUSH);
    const size_t got = buffer.size() - stream.avail_out;
    if (content.size() + got > limits.content_bytes) {
      return error("decompresses to more than the limit of ", limits.content_bytes, " bytes");
    }
    content.append(buffer, 0, got);
    if (result == Z_STREAM_END) {
      if (stream.avail_in == 0) return content;
      // A gzip file may have further members, which continue the text.
      if (inflateReset(&stream) != Z_OK) return absl::InternalError("zlib cannot start again");
    } else if (result != Z_OK || (got == 0 && stream.avail_in == 0)) {
      return error("damaged or cut off gzip data near byte ", stored.size() - stream.avail_in,
                   stream.msg == nullptr ? "" : ": ", stream.msg == nullptr ? "" : stream.msg);
    }
  }
}

bool NextLine(absl::string_view* rest, absl::string_view* line) {
  if (rest->empty()) return false;
  const size_t end = rest->find('\n');
  *line = rest->substr(0, end);
  rest->remove_prefix(end == absl::string_view::npos ? rest->size() : end + 1);
  if (!line->empty() && line->back() == '\r') line->remove_suffix(1);
  return true;
}

bool LooksLikeTrace(std::string_view content) {
  absl::string_view rest = Abs(content).substr(0, 4096);
  absl::ConsumePrefix(&rest, kByteOrderMark);
  absl::string_view line;
  while (NextLine(&rest, &line)) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    for (const absl::string_view field : absl::StrSplit(line, ',')) {
      if (absl::StripAsciiWhitespace(field) == "rank") return true;
    }
    return false;
  }
  return false;
}

absl::StatusOr<Trace> ReadTrace(const std::string& path, const TraceOptions& options) {
  const absl::StatusOr<std::string> content = ReadContent(path, options.limits);
  if (!content.ok()) return content.status();
  return ParseTrace(*content, path, options);
}

absl::StatusOr<Trace> ReadTraceOrMatrix(const std::string& path, const TraceOptions& options) {
  const absl::StatusOr<std::string> content = ReadContent(path, options.limits);
  if (!content.ok()) return content.status();
  if (LooksLikeTrace(*content)) return ParseTrace(*content, path, options);
  absl::StatusOr<TrafficMatrix> matrix = ParseMatrix(*content, path, options.limits);
  if (!matrix.ok()) return matrix.status();
  Trace trace;
  trace.nodes = matrix->size();
  trace.rows = matrix->size();
  trace.steps.push_back({.model = "matrix", .dispatch = *std::move(matrix)});
  return trace;
}

}  // namespace rails::workload
