// One mode for each inode (rule 9): what the kernel is told of handles, and which ids it is to
// forget.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "client/passthrough.h"

namespace braidfs::client {
namespace {

namespace fs = std::filesystem;
using Way = fuse::PassthroughChoice::Way;

constexpr uint64_t kSize = 5 << 20;
constexpr uint64_t kIno = 7;

class PassthroughTable : public ::testing::Test {
 protected:
  PassthroughTable() {
    std::string pattern = (fs::temp_directory_path() / "braid-pass-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    std::string reason;
    cache_ = cache::Cache::open({.directory = directory_,
                                 .bytes_max = cache::StoreSettings::kBytesMin,
                                 .copies_bytes_max = 64 << 20},
                                reason);
    EXPECT_TRUE(cache_) << reason;
    cache_->copies()->start();
    memory_ = net::UniqueFd(record_.make());
    table_ = make();
  }
  ~PassthroughTable() override {
    table_.reset();
    cache_.reset();
    fs::remove_all(directory_);
  }

  std::unique_ptr<Passthrough> make() {
    return std::make_unique<Passthrough>(
        cache_->copies(), record_,
        BackingCalls{.open =
                         [this](int) {
                           if (refused_ != 0) return -refused_;
                           ids_.insert(++last_id_);
                           return static_cast<int>(last_id_);
                         },
                     .close = [this](uint32_t id) { EXPECT_EQ(ids_.erase(id), 1u); }});
  }
  // A file whose copy is there and checked.
  void copied(uint64_t ino, uint64_t stamp) {
    for (uint32_t slice = 0; slice < kSize >> 20; ++slice) {
      const std::shared_ptr<std::byte> bytes(
          static_cast<std::byte*>(std::aligned_alloc(cache::kBlock, cache::kSliceBytes)),
          [](std::byte* memory) { std::free(memory); });
      std::memset(bytes.get(), static_cast<int>(ino), cache::kSliceBytes);
      cache_->offer({ino, slice}, stamp, cache::kSliceBytes,
                    {0, cache::kSliceBytes, {bytes.get(), cache::kSliceBytes}, bytes});
    }
    cache_->wait_idle();
    cache_->copies()->wait_idle();
    EXPECT_FALSE(cache_->copies()->open({ino, stamp, kSize}));
    cache_->copies()->wait_idle();
  }
  static Passthrough::Opened file(uint64_t fh, uint64_t stamp = 5, uint64_t ino = kIno) {
    return {.file = {ino, stamp, kSize}, .fh = fh, .is_immutable = true, .is_leased = true};
  }
  uint64_t count(const std::string& name) {
    for (const auto& [counter, value] : table_->counters()) {
      if (counter == name) return value;
    }
    return ~uint64_t{0};
  }
  size_t rows() const {
    OpenRecord::Row all[16];
    EXPECT_EQ(::pread(memory_.get(), all, sizeof all, 0), static_cast<ssize_t>(sizeof all));
    size_t found = 0;
    for (size_t at = 1; at < 16; ++at) found += all[at].kind == OpenRecord::Kind::kBacking;
    return found;
  }

  fs::path directory_;
  std::unique_ptr<cache::Cache> cache_;
  OpenRecord record_;
  net::UniqueFd memory_;
  std::set<uint32_t> ids_;  // that the kernel has
  uint32_t last_id_ = 0;
  int refused_ = 0;
  std::unique_ptr<Passthrough> table_;
};

TEST_F(PassthroughTable, HandlesOfAFileShareWhatIsBehind) {
  copied(kIno, 5);
  const auto first = table_->opened(file(1));
  EXPECT_EQ(first.way, Way::kPassthrough);
  const auto second = table_->opened(file(2));
  EXPECT_EQ(second.way, Way::kPassthrough);
  EXPECT_EQ(first.backing, second.backing);
  EXPECT_EQ(rows(), 1u);
  table_->closed(1);
  EXPECT_EQ(ids_.size(), 1u);
  table_->closed(2);
  EXPECT_TRUE(ids_.empty());
  EXPECT_EQ(rows(), 0u);
  table_->closed(2);  // nobody's
  EXPECT_NE(table_->opened(file(3)).backing, first.backing);
  EXPECT_EQ(count("passthrough_opens"), 3u);
  EXPECT_EQ(count("passthrough_handles"), 1u);
}

TEST_F(PassthroughTable, WhatIsReadByRequestsStaysSo) {
  EXPECT_EQ(table_->opened(file(1)).way, Way::kByRequests);  // there is no copy yet
  cache_->copies()->wait_idle();
  copied(kIno, 5);
  EXPECT_EQ(table_->opened(file(2)).way, Way::kByRequests);
  table_->closed(1);
  EXPECT_EQ(table_->opened(file(3)).way, Way::kByRequests);
  table_->closed(2);
  table_->closed(3);
  EXPECT_EQ(table_->opened(file(4)).way, Way::kPassthrough);
}

TEST_F(PassthroughTable, OnlyWhatIsSurePassesThrough) {
  copied(kIno, 5);
  auto is_mutable = file(1);
  is_mutable.is_immutable = false;
  auto unsure = file(2);
  unsure.is_certain = false;
  auto unleased = file(3);
  unleased.is_leased = false;
  auto direct = file(4);
  direct.is_direct = true;
  for (const auto& opened : {is_mutable, unsure, unleased, direct, file(5, 0)}) {
    EXPECT_EQ(table_->opened(opened).way, Way::kByRequests);
    table_->closed(opened.fh);
  }
  EXPECT_EQ(table_->opened(file(6)).way, Way::kPassthrough);
}

TEST_F(PassthroughTable, OtherBytesAreStaleUntilTheOldOnesAreClosed) {
  copied(kIno, 5);
  EXPECT_EQ(table_->opened(file(1)).way, Way::kPassthrough);
  auto is_mutable = file(2);
  is_mutable.is_immutable = false;
  EXPECT_EQ(table_->opened(is_mutable).way, Way::kStale);
  EXPECT_EQ(table_->opened(file(3, 6)).way, Way::kStale);
  auto unsure = file(4);
  unsure.is_certain = false;
  EXPECT_EQ(table_->opened(unsure).way, Way::kUpcall);
  auto direct = file(5);
  direct.is_direct = true;  // must pass through like the others
  EXPECT_EQ(table_->opened(direct).way, Way::kPassthrough);
  table_->closed(5);
  for (const uint64_t fh : {2, 3, 4}) table_->closed(fh);  // were never entered
  EXPECT_EQ(ids_.size(), 1u);
  table_->closed(1);
  EXPECT_EQ(table_->opened(file(6, 6)).way, Way::kByRequests);
  EXPECT_EQ(count("passthrough_stale"), 2u);
}

TEST_F(PassthroughTable, WhatTheKernelRefusesIsReadByRequests) {
  copied(kIno, 5);
  refused_ = ELOOP;
  EXPECT_EQ(table_->opened(file(1)).way, Way::kByRequests);
  EXPECT_EQ(count("passthrough_failures"), 1u);
  EXPECT_EQ(rows(), 0u);
}

TEST_F(PassthroughTable, TheNextProcessGoesOnWithThem) {
  copied(kIno, 5);
  copied(8, 5);
  const auto choice = table_->opened(file(1));
  EXPECT_EQ(table_->opened(file(2, 5, 9)).way, Way::kByRequests);
  const auto handed = table_->backings();
  ASSERT_EQ(handed.size(), 1u);
  EXPECT_EQ(handed[0].id, choice.backing);
  table_ = make();
  ids_.insert(77);
  table_->adopt({handed[0], {.ino = 8, .id = 77, .stamp = 5}}, {{1, kIno}, {2, 9}});
  EXPECT_FALSE(ids_.contains(77));  // nobody has it open any more
  EXPECT_EQ(table_->opened(file(3)).backing, choice.backing);
  EXPECT_EQ(table_->opened(file(4, 6)).way, Way::kStale);
  EXPECT_EQ(table_->opened(file(5, 5, 9)).way, Way::kByRequests);
  EXPECT_EQ(rows(), 2u);  // one of them of the process before
  table_->closed(1);
  EXPECT_EQ(ids_.size(), 1u);
  table_->closed(3);
  EXPECT_TRUE(ids_.empty());
}

}  // namespace
}  // namespace braidfs::client
