#include "daemon/lifecycle/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/session/packet_socket.h"
#include "tests/support/temporary_folder.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

class SocketDirectoryTest : public ::testing::Test {
 protected:
  const testing::TemporaryFolder folder_;
  const std::string base_ = folder_.path(), path_ = base_ + "/run";
};

TEST_F(SocketDirectoryTest, IsCreatedAndHeld) {
  auto first = SocketDirectory::Prepare(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0755u);
  const auto second = SocketDirectory::Prepare(path_);
  EXPECT_EQ(second.status().message(),
            absl::StrCat("socket_dir: '", path_, "': another railsd uses this folder, process ", getpid()));
}

TEST_F(SocketDirectoryTest, StaleSocketsAreReplacedAndLivingOnesAreNot) {
  ASSERT_EQ(mkdir(path_.c_str(), 0755), 0);
  std::optional<UniqueFd> listener;
  {
    auto made = ListenAt(path_ + "/descriptors.sock", 0666);
    ASSERT_TRUE(made.ok());
    listener = *std::move(made);
  }
  EXPECT_EQ(SocketDirectory::Prepare(path_).status().message(),
            absl::StrCat(path_, "/descriptors.sock: process ", getpid(), " listens there already"));
  listener.reset();
  EXPECT_TRUE(SocketDirectory::Prepare(path_).ok());
  EXPECT_NE(access((path_ + "/descriptors.sock").c_str(), F_OK), 0);
}

// An attacker who may write to a folder of sockets replaces a socket by a link to another file.
TEST_F(SocketDirectoryTest, AccessIsNotChangedThroughALink) {
  ASSERT_EQ(mkdir(path_.c_str(), 0755), 0);
  const std::string secret = base_ + "/secret", link = path_ + "/client.sock";
  std::ofstream(secret) << "key";
  ASSERT_EQ(chmod(secret.c_str(), 0600), 0);
  ASSERT_EQ(symlink(secret.c_str(), link.c_str()), 0);
  EXPECT_EQ(SetSocketAccess(link, 0666, "", "socket_group").code(), absl::StatusCode::kFailedPrecondition);
  struct stat info;
  ASSERT_EQ(stat(secret.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(unlink(link.c_str()), 0);
  const auto listener = ListenAt(link, 0600);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(SetSocketAccess(link, 0660, absl::StrCat(getegid()), "socket_group").ok());
  ASSERT_EQ(stat(link.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
}

TEST_F(SocketDirectoryTest, WhatIsNoSocketIsNeverRemoved) {
  ASSERT_EQ(mkdir(path_.c_str(), 0755), 0);
  std::ofstream(path_ + "/client.sock") << "precious";
  EXPECT_THAT(std::string(SocketDirectory::Prepare(path_).status().message()), HasSubstr("exists and is not a socket"));
  EXPECT_EQ(access((path_ + "/client.sock").c_str(), F_OK), 0);
}

TEST_F(SocketDirectoryTest, ADirectoryThatEverybodyWritesIsRefused) {
  ASSERT_EQ(mkdir(path_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(path_.c_str(), 0777), 0);
  EXPECT_THAT(std::string(SocketDirectory::Prepare(path_).status().message()), HasSubstr("every user may replace"));
  EXPECT_EQ(SocketDirectory::Prepare("/nonexistent/a/b").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SocketDirectoryTest, FoldersAreMadeKeptAndCleaned) {
  const auto directory = SocketDirectory::Prepare(path_);
  ASSERT_TRUE(directory.ok()) << directory.status();
  const std::string folder = path_ + "/tenants/a";
  ASSERT_TRUE(directory->PrepareFolder("tenants/a").ok());
  struct stat info;
  ASSERT_EQ(stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  const ino_t inode = info.st_ino;
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  ASSERT_TRUE(ListenAt(folder + "/descriptors.sock", 0666).ok());
  ASSERT_TRUE(directory->PrepareFolder("tenants/a").ok());
  ASSERT_EQ(stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_ino, inode) << "a container may have it mounted";
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_NE(access((folder + "/descriptors.sock").c_str(), F_OK), 0);
}

TEST_F(SocketDirectoryTest, FoldersThatOthersCouldReplaceAreRefused) {
  const auto directory = SocketDirectory::Prepare(path_);
  ASSERT_TRUE(directory.ok()) << directory.status();
  ASSERT_EQ(symlink("/tmp", (path_ + "/tenants").c_str()), 0);
  EXPECT_THAT(std::string(directory->PrepareFolder("tenants/a").message()), HasSubstr("exists and is not a folder"));
  ASSERT_EQ(unlink((path_ + "/tenants").c_str()), 0);
  ASSERT_EQ(mkdir((path_ + "/tenants").c_str(), 0755), 0);
  ASSERT_EQ(chmod((path_ + "/tenants").c_str(), 01777), 0);
  EXPECT_THAT(std::string(directory->PrepareFolder("tenants/a").message()), HasSubstr("could replace the sockets"));
}

TEST(ProcessTest, BootIdsDiffer) { EXPECT_NE(DrawBootId(), DrawBootId()); }

}  // namespace
}  // namespace railsd
