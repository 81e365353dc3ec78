#include "client/railsctl/read_input.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/railsctl/format.h"

namespace rails::ctl {

absl::StatusOr<std::string> ReadInput(const std::string& path, size_t max_bytes) {
  const std::unique_ptr<std::FILE, void (*)(std::FILE*)> file(
      path == "-" ? stdin : std::fopen(path.c_str(), "re"), +[](std::FILE* f) {
        if (f != stdin) std::fclose(f);  // a command line may name "-" twice
      });
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::string text, block(1 << 16, '\0');
  while (const size_t got = std::fread(block.data(), 1, block.size(), file.get())) {
    text.append(block, 0, got);
    if (text.size() > max_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": longer than ", FormatBytes(max_bytes)));
    }
  }
  if (std::ferror(file.get()) != 0) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  return text;
}

}  // namespace rails::ctl
