// A new folder of a test, removed with everything in it when the object goes.
#ifndef RAILSD_TESTS_SUPPORT_TEMPORARY_FOLDER_H_
#define RAILSD_TESTS_SUPPORT_TEMPORARY_FOLDER_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace railsd::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() { EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_; }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

  // Writes a file, and the folders that it lies in; returns its path.
  std::string Write(const std::string& name, const std::string& content) const {
    const std::filesystem::path path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }

 private:
  std::string path_ = "/tmp/railsd-test-XXXXXX";  // short: the names of sockets have 107 characters at most
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_SUPPORT_TEMPORARY_FOLDER_H_
