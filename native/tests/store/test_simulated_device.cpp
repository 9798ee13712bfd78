#include "simulated_device.h"

#include <gtest/gtest.h>

namespace braidfs::store::test {
namespace {

std::string text_of(Host& host, const std::string& path) {
  const auto inode = host.find(path);
  if (!inode) return "none";
  std::string text(inode->now.size(), '\0');
  inode->now.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void put(File& file, std::string_view text, uint64_t offset) {
  const iovec part{const_cast<char*>(text.data()), text.size()};
  ASSERT_EQ(file.writev({&part, 1}, offset), static_cast<int64_t>(text.size()));
}

TEST(SimulatedDevice, CutKeepsWhatWasSyncedAndOnlyThat) {
  bool lost_something = false;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Host host(seed);
    const auto device = host.boot();
    std::shared_ptr<File> file;
    ASSERT_EQ(device->open("a", OpenMode::kCreate, file), 0);
    put(*file, "synced", 0);
    ASSERT_EQ(file->sync(), 0);
    ASSERT_EQ(device->sync_directory(""), 0);
    put(*file, "later", 6);
    host.cut();
    host.boot(true);
    EXPECT_EQ(text_of(host, "a").substr(0, 6), "synced");
    lost_something |= text_of(host, "a").find("later") == std::string::npos;
  }
  EXPECT_TRUE(lost_something);
}

TEST(SimulatedDevice, KillKeepsThePageCacheAndEndsTheDevice) {
  Host host(1);
  const auto device = host.boot();
  std::shared_ptr<File> file;
  ASSERT_EQ(device->open("a", OpenMode::kCreate, file), 0);
  put(*file, "kept", 0);
  host.kill();
  host.boot();
  EXPECT_EQ(text_of(host, "a"), "kept");
  EXPECT_EQ(file->sync(), -EIO);
}

TEST(SimulatedDevice, NameWithoutDirectorySyncMayVanish) {
  int vanished = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Host host(seed);
    const auto device = host.boot();
    std::shared_ptr<File> file;
    ASSERT_EQ(device->open("a", OpenMode::kCreate, file), 0);
    put(*file, "x", 0);
    ASSERT_EQ(file->sync(), 0);
    host.cut();
    host.boot(true);
    vanished += text_of(host, "a") == "none" ? 1 : 0;
  }
  EXPECT_GT(vanished, 5);
  EXPECT_LT(vanished, 45);
}

}  // namespace
}  // namespace braidfs::store::test
