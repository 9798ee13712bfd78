// A prefetcher without lanes: READs go in, what is wanted comes out, and is fetched at once where a
// test says so. Each byte of a file is the number of its MiB.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "client/operation.h"
#include "client/prefetch/prefetcher.h"

namespace braidfs::client::prefetch {

constexpr uint64_t kIno = 9;
constexpr uint64_t kStamp = 5;
constexpr uint32_t kMiB = 1u << 20;
constexpr uint64_t kFileSize = 100 * uint64_t{kMiB} + 4096;

class PrefetcherTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kLimit = 256u << 20;
  static constexpr uint64_t kTogether = 32u << 20;  // what is far ahead of all readers

  PrefetcherTest() { prefetcher_.limit(kLimit, true); }

  Found read_extent(const CachedExtent& extent, bool only_looks = false) {
    wanted_.clear();
    parts_.clear();
    if (!prefetcher_.watches(extent, whom_)) return Found::kNo;
    return prefetcher_.read({extent, whom_, only_looks, now_}, parts_, nullptr, wanted_);
  }
  Found read_at(uint64_t offset, uint32_t length, uint64_t stamp = kStamp, uint64_t ino = kIno) {
    return read_extent({ino, stamp, kFileSize, offset, length});
  }
  Found read(uint64_t part, uint64_t stamp = kStamp, uint64_t ino = kIno) {
    return read_at(part * kMiB, kMiB, stamp, ino);
  }
  // So many READs one behind the other: the last one's answer.
  Found window(uint64_t offset, uint64_t count) {
    auto found = Found::kNo;
    for (uint64_t part = 0; part < count; ++part) found = read_at(offset + part * kMiB, kMiB);
    return found;
  }
  // The MiBs that the last READ made wanted, from the first to the one before the last.
  void expect_wanted(uint64_t begin, uint64_t end) {
    ASSERT_EQ(wanted_.size(), end - begin);
    for (size_t index = 0; index < wanted_.size(); ++index)
      EXPECT_EQ(wanted_[index].offset, (begin + index) * kMiB);
  }
  Buffer bytes(uint32_t length, uint64_t content) {
    Buffer buffer = memory_.read(Memory::size_for(length));
    std::memset(buffer.span().data(), static_cast<int>(content & 0xff), length);
    return buffer;
  }
  void fetch(uint64_t ino = kIno) {
    for (const Extent& extent : wanted_) {
      prefetcher_.fetched({ino, kStamp, kFileSize, extent.offset, extent.length},
                          bytes(extent.length, extent.offset / kMiB), now_);
    }
  }
  uint64_t kept() const { return memory_.account(Buffer::Account::kAnnounced); }
  uint64_t counter(std::string_view name) const {
    std::vector<std::pair<std::string, uint64_t>> all;
    prefetcher_.add_counters(all);
    const auto found = std::ranges::find(all, name, [](const auto& one) { return one.first; });
    return found == all.end() ? ~uint64_t{0} : found->second;
  }

  Memory memory_{MemoryLimits{}, 1};
  For whom_ = For::kProgram;
  Parts parts_;
  Extents wanted_;
  Clock::time_point now_ = Clock::now();
  Prefetcher prefetcher_;
};

// A policy alone, over a table of its own.
template <typename Policy>
class PolicyTest : public ::testing::Test {
 protected:
  PolicyTest() { table_.limit(1u << 30); }

  struct Case {
    const char* what;
    std::vector<Extent> reads;
    Extents wanted;  // by the last READ
  };
  // What the last of these READs makes wanted; what the others did stays under way.
  Extents after(const std::vector<Extent>& reads, For whom, uint64_t file_size = kFileSize) {
    Policy policy(share_);
    Extents wanted;
    for (const Extent& read : reads) {
      wanted.clear();
      const CachedExtent extent{kIno, kStamp, file_size, read.offset, read.length};
      Plan plan(table_, extent, &wanted, now_);
      if (policy.watches(extent, whom)) policy.read(plan, whom);
      now_ += std::chrono::milliseconds(1);
    }
    return wanted;
  }
  // Afresh for each case.
  void expect(const std::vector<Case>& cases, For whom) {
    for (const Case& one : cases) {
      EXPECT_EQ(after(one.reads, whom), one.wanted) << one.what;
      for (uint64_t offset = 0; const auto cover = table_.next(kIno, offset);)
        table_.missed(kIno, cover->begin);
    }
  }

  Clock::time_point now_ = Clock::now();
  Table table_;
  Share& share_ = table_.share({.name = "test", .lifetime = std::chrono::seconds(1)});
};

}  // namespace braidfs::client::prefetch
