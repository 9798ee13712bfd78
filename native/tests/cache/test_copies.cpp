// Whole copies on a real disk: they are made of cached slices and found again after a check, and
// damage to their files only costs the copy.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache_files.h"

namespace braidfs::cache {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLast = 5000;  // bytes of the last slice
constexpr uint64_t kSize = (uint64_t{4} << 20) + kLast;

class CacheCopies : public ::testing::Test {
 protected:
  CacheCopies() {
    std::string pattern = (fs::temp_directory_path() / "braid-copies-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    settings_ = {.directory = directory_,
                 .bytes_max = StoreSettings::kBytesMin,
                 .copies_bytes_max = 2 * CopyFiles::place_bytes(kSize)};
  }
  ~CacheCopies() override {
    cache_.reset();
    fs::remove_all(directory_);
  }

  Copies& open() {
    cache_.reset();
    cache_ = Cache::open(settings_, reason_);
    EXPECT_TRUE(cache_) << reason_;
    cache_->copies()->start();
    cache_->copies()->wait_idle();
    return *cache_->copies();
  }
  void put_slice(uint64_t ino, uint32_t slice, uint64_t stamp) {
    const uint32_t length = slice_length(kSize, slice);
    const std::shared_ptr<std::byte> bytes(
        static_cast<std::byte*>(std::aligned_alloc(kBlock, padded(length))),
        [](std::byte* memory) { std::free(memory); });
    for (uint32_t at = 0; at < length; ++at)
      bytes.get()[at] = byte_at(ino, uint64_t{slice} * kSliceBytes + at);
    cache_->offer({ino, slice}, stamp, length, {0, length, {bytes.get(), padded(length)}, bytes});
  }
  void put(uint64_t ino, uint64_t stamp = 5) {
    for (uint32_t slice = 0; slice < slice_count(kSize); ++slice) put_slice(ino, slice, stamp);
    cache_->wait_idle();
  }
  static WholeFile file(uint64_t ino, uint64_t stamp = 5) { return {ino, stamp, kSize}; }
  // Requests the copy, and waits until it is made or refused.
  bool ask(uint64_t ino, uint64_t stamp = 5) {
    const bool there = static_cast<bool>(cache_->copies()->open(file(ino, stamp)));
    if (there) cache_->copies()->closed(file(ino, stamp));
    cache_->copies()->wait_idle();
    return there;
  }
  bool reads(uint64_t ino) {
    const net::UniqueFd bytes = cache_->copies()->open(file(ino));
    std::vector<std::byte> all(kSize + 1);
    if (!bytes || ::pread(bytes.get(), all.data(), all.size(), 0) != static_cast<ssize_t>(kSize))
      return false;
    cache_->copies()->closed(file(ino));
    for (uint64_t at = 0; at < kSize; ++at) {
      if (all[at] != byte_at(ino, at)) return false;
    }
    return true;
  }
  uint64_t count(const std::string& name) {
    for (const auto& [counter, value] : cache_->counters()) {
      if (counter == "cache_" + name) return value;
    }
    return ~uint64_t{0};
  }
  std::vector<fs::path> files(const std::string& suffix) const {
    return files_of(directory_ / "whole", suffix);
  }

  fs::path directory_;
  StoreSettings settings_;
  std::string reason_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(CacheCopies, AreMadeOfWhatIsThereWholeAndFoundAfterRestart) {
  open();
  put_slice(1, 0, 5);
  cache_->wait_idle();
  EXPECT_FALSE(ask(1));
  EXPECT_FALSE(ask(1));  // most of it is missing
  put(1);
  EXPECT_FALSE(ask(1));
  EXPECT_TRUE(reads(1));
  EXPECT_FALSE(ask(1, 6));  // the bytes changed, so the copy is dropped
  EXPECT_TRUE(files("").empty());
  EXPECT_FALSE(ask(1));
  EXPECT_TRUE(reads(1));
  for (const auto& entry : fs::directory_iterator(directory_ / "whole")) {
    EXPECT_EQ(entry.status().permissions() & fs::perms::mask,
              fs::perms::owner_read | fs::perms::owner_write);
  }
  open();
  EXPECT_EQ(count("copies"), 1u);
  EXPECT_EQ(count("copies_bytes"), CopyFiles::place_bytes(kSize));
  EXPECT_TRUE(reads(1));
  EXPECT_EQ(count("copies_made"), 0u);
}

TEST_F(CacheCopies, ChangedBytesAreFoundBeforeTheyAreUsed) {
  open();
  for (uint64_t ino = 1; ino <= 2; ++ino) {
    put(ino);
    EXPECT_FALSE(ask(ino));
    EXPECT_TRUE(reads(ino));
  }
  overwrite(files("").at(0), (3 << 20) + 12345, "x");
  const uint64_t broken =
      std::stoull(files("").at(0).filename().string().substr(0, 16), nullptr, 16);
  open();
  EXPECT_EQ(count("copies"), 1u);
  EXPECT_EQ(count("copies_corrupt"), 1u);
  EXPECT_TRUE(reads(3 - broken));
  EXPECT_FALSE(reads(broken));
  cache_->copies()->wait_idle();
  EXPECT_TRUE(reads(broken));  // it was made again
}

TEST_F(CacheCopies, TornAndForeignFilesGo) {
  const auto remake = [&] {
    open();
    put(1);
    ask(1);
    EXPECT_TRUE(reads(1));
    cache_.reset();
  };
  remake();
  overwrite(files(".sum").at(0), 50, "x");
  open();
  EXPECT_EQ(count("copies"), 0u);
  remake();
  fs::resize_file(files(".sum").at(0), 30);
  open();
  EXPECT_EQ(count("copies"), 0u);
  remake();
  fs::resize_file(files("").at(0), kSize - 1);
  open();
  EXPECT_EQ(count("copies"), 0u);
  remake();
  fs::remove(files("").at(0));
  std::ofstream(directory_ / "whole" / "half.part") << "x";
  std::ofstream(directory_ / "whole" / "orphan") << "x";
  open();
  EXPECT_EQ(count("copies"), 0u);
  EXPECT_TRUE(fs::is_empty(directory_ / "whole"));
  remake();
  // It belongs to another cluster, as if another program had put it there.
  const Cluster other{std::byte{9}};
  const auto bytes = encode(file(1), other, SliceSums(slice_count(kSize)));
  std::ofstream(files(".sum").at(0), std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  open();
  EXPECT_EQ(count("copies"), 0u);
  EXPECT_TRUE(fs::is_empty(directory_ / "whole"));
}

TEST_F(CacheCopies, ABrokenSliceMakesNone) {
  open();
  put(1);
  cache_.reset();
  const auto segment = directory_ / "00000001.seg";
  overwrite(segment, record_bytes(kSliceBytes) + kHeadBytes + 777, "x");
  open();
  EXPECT_FALSE(ask(1));
  EXPECT_EQ(count("copies"), 0u);
  EXPECT_EQ(count("corrupt"), 1u);
  EXPECT_TRUE(files(".part").empty());
  EXPECT_TRUE(files("").empty());
}

// There is room for two.
TEST_F(CacheCopies, OneGoesForWhatWasAskedForTwiceSince) {
  open();
  for (uint64_t ino = 1; ino <= 3; ++ino) put(ino);
  EXPECT_FALSE(ask(1));
  EXPECT_FALSE(ask(2));
  EXPECT_EQ(count("copies"), 2u);
  // There is no room for all of it, so what is there stays.
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_TRUE(ask(1));
    EXPECT_TRUE(ask(2));
    EXPECT_FALSE(ask(3));
  }
  EXPECT_EQ(count("copies_evicted"), 0u);
  EXPECT_EQ(count("copies_refused"), 3u);
  EXPECT_TRUE(ask(2));
  EXPECT_FALSE(ask(3));
  EXPECT_EQ(count("copies_evicted"), 1u);
  EXPECT_TRUE(reads(3));
  EXPECT_TRUE(reads(2));
  EXPECT_FALSE(reads(1));
}

TEST_F(CacheCopies, WhatIsOpenStays) {
  open();
  for (uint64_t ino = 1; ino <= 3; ++ino) put(ino);
  EXPECT_FALSE(ask(1));
  EXPECT_FALSE(ask(2));
  const net::UniqueFd first = cache_->copies()->open(file(1));
  const net::UniqueFd second = cache_->copies()->open(file(2));
  for (int times = 0; times < 4; ++times) EXPECT_FALSE(ask(3));
  EXPECT_EQ(count("copies_evicted"), 0u);
  cache_->copies()->closed(file(1));
  EXPECT_FALSE(ask(3));
  EXPECT_EQ(count("copies_evicted"), 1u);
  EXPECT_TRUE(reads(3));
}

TEST_F(CacheCopies, AFullDiskCostsOnlyTheCopy) {
  const std::string place = directory_ / "whole";
  fs::create_directory(place);
  if (::mount("none", place.c_str(), "tmpfs", 0, "size=3m") != 0) GTEST_SKIP() << "not root";
  open();
  put(1);
  EXPECT_FALSE(ask(1));
  EXPECT_EQ(count("copies_faults"), 1u);
  EXPECT_EQ(count("copies"), 0u);
  EXPECT_EQ(count("copies_bytes"), 0u);
  EXPECT_FALSE(ask(1));  // the writing pauses
  EXPECT_EQ(count("copies_faults"), 1u);
  EXPECT_TRUE(fs::is_empty(place));
  cache_.reset();
  EXPECT_EQ(::umount(place.c_str()), 0);
}

TEST_F(CacheCopies, AreNoneWhereNoneAreToBe) {
  open();
  put(1);
  ask(1);
  EXPECT_TRUE(reads(1));
  cache_.reset();
  settings_.copies_bytes_max = 0;
  cache_ = Cache::open(settings_, reason_);
  EXPECT_EQ(cache_->copies(), nullptr);
  EXPECT_FALSE(fs::exists(directory_ / "whole"));
}

}  // namespace
}  // namespace braidfs::cache
