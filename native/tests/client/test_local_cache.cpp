// READs and the local cache: what is answered without a target, and when that must not be.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFh = Rig::kFh;
constexpr uint64_t kIno = Rig::kIno;
constexpr uint32_t kBoth = kLeaseData | kLeaseDataExclusive;
constexpr uint32_t kSize = 200'000;

class LocalCacheTest : public ::testing::Test {
 protected:
  LocalCacheTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "braid-cache-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    again();
    rig_->write(kFh, 0, content_);
    EXPECT_EQ(rig_->fsync(kFh), 0);  // commits version 2
  }
  ~LocalCacheTest() override {
    rig_.reset();
    std::filesystem::remove_all(directory_);
  }

  // Another client, of the same cache and other targets: they hold nothing.
  void again() {
    rig_.reset();
    rig_ = std::make_unique<Rig>(RigSettings{.cache = {directory_.string(), 64u << 20, {}}});
    rig_->open(kFh, O_RDWR, kSize);
    rig_->core->lease_until(Clock::now() + std::chrono::hours(1));
    rig_->core->inode_lease(kIno, kBoth, 0);
  }
  void put(uint64_t size, uint64_t version) {
    ASSERT_TRUE(
        rig_->core->inode_put(rig_->attributes(size, version), rig_->layout(), rig_->capability()));
  }
  cache::Cache& cache() { return rig_->core->local_cache()->cache(); }
  size_t asked() {
    size_t count = 0;
    for (const auto& target : rig_->targets) count += target->count(Op::kRead);
    return count;
  }
  Bytes read(uint64_t offset = 0, uint32_t size = 208'896) {
    return rig_->read(kFh, offset, size).bytes;
  }
  // Read from the targets, and kept.
  void fill() {
    EXPECT_EQ(read(), content_);
    EXPECT_TRUE(eventually([&] {  // the lane lends its buffer behind the answer
      cache().wait_idle();
      const size_t before = asked();
      return read() == content_ && asked() == before;
    }));
  }

  std::filesystem::path directory_;
  const Bytes content_ = pattern(kSize, 3);
  std::unique_ptr<Rig> rig_;
};

TEST_F(LocalCacheTest, AnswersWithoutATarget) {
  fill();
  const size_t before = asked();
  for (const uint64_t offset : {0, 4096, 65536, 196'608}) {
    const Bytes expected(content_.begin() + static_cast<ptrdiff_t>(offset), content_.end());
    EXPECT_EQ(read(offset), expected) << offset;
  }
  EXPECT_EQ(read(4096, 100), Bytes(content_.begin() + 4096, content_.begin() + 4196));
  EXPECT_EQ(asked(), before);
}

TEST_F(LocalCacheTest, AnswersAnotherClientOfTheSameVersion) {
  fill();
  again();
  put(kSize, 2);
  EXPECT_EQ(read(), content_);
  EXPECT_EQ(asked(), 0u);
}

TEST_F(LocalCacheTest, BytesOfAnotherVersionAreAskedFor) {
  fill();
  again();
  put(kSize, 3);
  EXPECT_EQ(read(), Bytes(kSize));  // of the new targets
  EXPECT_GT(asked(), 0u);
}

// A layout says where the bytes are, not which: one that changed (a target, a truncate epoch) voids
// nothing.
TEST_F(LocalCacheTest, BytesThatMovedAreTheSame) {
  fill();
  again();
  ASSERT_TRUE(
      rig_->core->inode_put(rig_->attributes(kSize, 2), rig_->layout(5), rig_->capability()));
  EXPECT_EQ(read(), content_);
  EXPECT_EQ(asked(), 0u);
}

TEST_F(LocalCacheTest, WithoutALeaseNothingIsAnswered) {
  fill();
  const size_t before = asked();
  rig_->core->inode_lease(kIno, 0, kBoth);  // recalled: requests pass
  EXPECT_EQ(read(), content_);
  EXPECT_GT(asked(), before);
}

TEST_F(LocalCacheTest, OwnWritesAreSeenUntilTheirVersionIsKnown) {
  fill();
  const Bytes change = pattern(5000, 77);
  Bytes changed = content_;
  std::copy(change.begin(), change.end(), changed.begin() + 100);
  rig_->write(kFh, 100, change);
  EXPECT_EQ(read(), changed);
  EXPECT_EQ(rig_->drain(false), 0);
  EXPECT_EQ(read(), changed);
  put(kSize, 2);  // an answer from before
  EXPECT_EQ(read(), changed);
  put(kSize, 3);
  EXPECT_EQ(read(), changed);
}

TEST_F(LocalCacheTest, CachedReadsGoOnWhileOthersWrite) {
  fill();
  std::vector<uint64_t> reads;
  for (int number = 0; number < 200; ++number) reads.push_back(rig_->start_read(kFh, 0, 208'896));
  rig_->write(kFh, 0, pattern(4096, 9));
  for (const uint64_t unique : reads) {
    const Bytes bytes = rig_->replier.wait(unique).bytes;
    ASSERT_EQ(bytes.size(), kSize);
    EXPECT_EQ(Bytes(bytes.begin() + 4096, bytes.end()),
              Bytes(content_.begin() + 4096, content_.end()));
  }
}

TEST_F(LocalCacheTest, BrokenRecordsAreAskedForAndKeptAnew) {
  fill();
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (entry.path().extension() != ".seg") continue;
    const net::UniqueFd file(::open(entry.path().c_str(), O_WRONLY));
    const auto size = static_cast<off_t>(entry.file_size());
    for (off_t at = 4096 + 50'000; at < size; at += 50'000)  // fill() may have kept it twice
      ASSERT_EQ(::pwrite(file.get(), "x", 1, at), 1);
    ASSERT_EQ(::fsync(file.get()), 0);
  }
  const size_t before = asked();
  EXPECT_EQ(read(), content_);
  EXPECT_GT(asked(), before);
  fill();
}

}  // namespace
}  // namespace braidfs::client::rig
