// Announced files: what is fetched in which order, which READs are given it, and what is never
// given.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <numeric>

#include "client/announced.h"
#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kIno = Rig::kIno;
constexpr uint64_t kStamp = 5;
constexpr uint32_t kSize = 200'000;
using Found = Announced::Found;

// ---- the table by itself ----

class AnnouncedTable : public ::testing::Test {
 protected:
  AnnouncedTable() { files_.limit(64u << 20); }

  std::vector<uint64_t> numbers(uint64_t first, size_t count) {
    std::vector<uint64_t> inos(count);
    std::iota(inos.begin(), inos.end(), first);
    return inos;
  }
  void want(uint64_t first, size_t count, bool replaces = false) {
    EXPECT_EQ(files_.want(numbers(first, count), replaces), count);
  }
  void fetch_all() {
    for (auto taken = take(); !taken.empty(); taken = take()) {
      for (const uint64_t ino : taken) fetched(ino);
    }
  }
  std::vector<uint64_t> take() { return files_.take(now_); }
  void fetched(uint64_t ino, uint32_t size = 4096) {
    Buffer bytes = memory_.read(Memory::size_for(size));
    std::memset(bytes.span().data(), static_cast<int>(ino & 0xff), size);
    files_.fetched(ino, kStamp, size, std::move(bytes));
  }
  Found read(uint64_t ino, uint64_t offset = 0, uint32_t length = 4096, uint64_t stamp = kStamp,
             uint64_t size = 4096) {
    place_ = memory_.read(Memory::size_for(length));
    return files_.read({ino, stamp, size, offset, length}, place_, nullptr);
  }
  uint64_t kept() const { return memory_.account(Buffer::Account::kAnnounced); }

  Memory memory_{MemoryLimits{}, 1};
  Buffer place_;
  Announced files_;
  Clock::time_point now_ = Clock::now();
};

TEST_F(AnnouncedTable, GoesInOrderABatchAtATime) {
  want(1, 100);
  EXPECT_EQ(take(), numbers(1, Announced::kBatch));
  EXPECT_EQ(take(), numbers(1 + Announced::kBatch, Announced::kBatch));
  while (!take().empty()) {
  }
  for (uint64_t ino = 1; ino < Announced::kBatch; ++ino) {
    fetched(ino);
    EXPECT_TRUE(take().empty()) << "not one by one";
  }
  fetched(Announced::kBatch);
  EXPECT_EQ(take(), numbers(1 + Announced::kUnderWayMax, Announced::kBatch));
}

TEST_F(AnnouncedTable, GivesEachFileOnce) {
  want(1, 2);
  fetch_all();
  EXPECT_EQ(read(2), Found::kYes);
  EXPECT_EQ(place_.span()[100], std::byte{2});
  EXPECT_EQ(read(2), Found::kNo);
  EXPECT_EQ(read(1), Found::kYes);
  EXPECT_EQ(read(3), Found::kNo);
  place_.reset();
  EXPECT_EQ(kept(), 0u);
  EXPECT_FALSE(files_.any());
}

TEST_F(AnnouncedTable, GivesAFileInPieces) {
  want(1, 1);
  for (const uint64_t ino : take()) fetched(ino, 10'000);
  EXPECT_EQ(read(1, 0, 4096, kStamp, 10'000), Found::kYes);
  EXPECT_EQ(read(1, 4096, 4096, kStamp, 10'000), Found::kYes);
  EXPECT_EQ(place_.span()[4095], std::byte{1});
  EXPECT_EQ(read(1, 8192, 1808, kStamp, 10'000), Found::kYes);
  EXPECT_EQ(read(1, 0, 4096, kStamp, 10'000), Found::kNo);
}

TEST_F(AnnouncedTable, GivesNothingOfAnotherVersion) {
  want(1, 3);
  fetch_all();
  EXPECT_EQ(read(1, 0, 4096, kStamp + 1), Found::kNo);
  EXPECT_EQ(read(1), Found::kNo) << "it is of no use any more";
  EXPECT_EQ(read(2, 0, 4096, kStamp, 4097), Found::kNo);
  EXPECT_EQ(read(3, 4096, 4096), Found::kNo) << "beyond its end";
}

TEST_F(AnnouncedTable, KeepsNoMoreThanItMay) {
  files_.limit(4u << 20);
  want(1, 1000);
  fetch_all();
  const uint64_t full = kept();
  EXPECT_LE(full, 4u << 20);
  EXPECT_GT(full, 0u);
  EXPECT_TRUE(take().empty());
  EXPECT_EQ(read(1), Found::kYes);
  place_.reset();
  fetch_all();
  EXPECT_EQ(kept(), full);
}

TEST_F(AnnouncedTable, WhatIsNotReadMakesRoomInTime) {
  files_.limit(4u << 20);
  want(1, 1000);
  fetch_all();
  EXPECT_TRUE(files_.expire(now_));
  now_ = Clock::now() + Announced::kKeptFor;
  EXPECT_FALSE(take().empty());
  while (!take().empty()) {
  }
  EXPECT_EQ(read(1), Found::kNo);
}

TEST_F(AnnouncedTable, WhatWasPassedOverGoes) {
  want(1, Announced::kBehindMax + 3);
  fetch_all();
  EXPECT_EQ(read(Announced::kBehindMax + 1), Found::kYes);
  EXPECT_EQ(read(1), Found::kYes) << "not that far behind";
  EXPECT_EQ(read(Announced::kBehindMax + 3), Found::kYes);
  EXPECT_EQ(read(2), Found::kNo);
  EXPECT_EQ(read(3), Found::kYes);
}

TEST_F(AnnouncedTable, AClosedFileIsNotWantedAnyMore) {
  want(1, 2);
  for (const uint64_t ino : take()) {
    files_.closed(ino);  // under way: somebody else's close
    fetched(ino);
  }
  files_.closed(1);
  EXPECT_EQ(read(1), Found::kNo);
  EXPECT_EQ(read(2), Found::kYes);
}

TEST_F(AnnouncedTable, ANewOrderTakesThePlaceOfTheOld) {
  want(1, 100);
  want(200, 3, true);
  EXPECT_EQ(take(), numbers(200, 3));
}

TEST_F(AnnouncedTable, BeginsNothingWhilePaused) {
  want(1, 100);
  const auto begun = take();
  files_.pause(true);
  EXPECT_TRUE(take().empty());
  EXPECT_EQ(files_.under_way(), begun.size());
  for (const uint64_t ino : begun) fetched(ino);
  EXPECT_EQ(files_.under_way(), 0u);
  EXPECT_EQ(read(begun.front()), Found::kYes);
  files_.pause(false);
  EXPECT_FALSE(take().empty());
}

TEST_F(AnnouncedTable, LetsGoOfAllThatIsHere) {
  want(1, 100);
  const auto first = take();
  for (const uint64_t ino : first) fetched(ino);
  const auto second = take();
  files_.let_go();
  EXPECT_EQ(kept(), 0u);
  EXPECT_TRUE(take().empty());
  EXPECT_EQ(read(first.front()), Found::kNo);
  fetched(second.front());
  EXPECT_EQ(read(second.front()), Found::kYes);
}

TEST_F(AnnouncedTable, IsBounded) {
  const auto many = numbers(1, Announced::kWantedMax);
  EXPECT_EQ(files_.want(many, false), Announced::kWantedMax);
  EXPECT_EQ(files_.want(many, false), 0u);
  EXPECT_EQ(files_.want(many, true), Announced::kWantedMax);
  files_.limit(0);
  EXPECT_EQ(files_.want(many, true), 0u);
  EXPECT_TRUE(take().empty());
}

// ---- with lanes ----

class AnnouncedFile : public ::testing::Test {
 protected:
  AnnouncedFile() {
    rig_.core->announced_limit(64u << 20);
    rig_.store_and_forget(content_);
    EXPECT_TRUE(eventually([&] { return rig_.events(EventKind::kRelease).size() == 1; }));
    rig_.core->child_finder([this](uint64_t ino, const Core::UseChild& use) {
      if (ino == kIno && is_granted_)
        use(rig_.attributes(kSize, 2), rig_.layout(), rig_.capability());
    });
  }
  ~AnnouncedFile() override { rig_.core->stop(0); }

  void announce(uint64_t ino = kIno) {
    EXPECT_EQ(rig_.core->announce(std::span(&ino, 1), false), 1u);
  }
  void announce_and_wait() {
    announce();
    EXPECT_TRUE(eventually([&] { return rig_.account(Buffer::Account::kAnnounced) > 0; }));
  }
  void open(uint64_t fh = kOwn) {
    EXPECT_TRUE(rig_.core->open_granted(rig_.attributes(kSize, 2), rig_.layout(), rig_.capability(),
                                        fh, O_RDONLY));
  }
  size_t asked() {
    size_t count = 0;
    for (const auto& target : rig_.targets) count += target->count(Op::kRead);
    return count;
  }
  void stall() {
    for (const auto& target : rig_.targets) {
      target->decide(
          [](const FrameHeader&) { return FakeTarget::Decision{FakeTarget::Fault::kStall}; });
    }
  }
  void go_on() {
    for (const auto& target : rig_.targets) target->release_stalled();
  }

  static constexpr uint64_t kOwn = uint64_t{1} << 62;
  static constexpr size_t kParts = 4;  // chunks of it
  const Bytes content_ = pattern(kSize, 3);
  std::atomic<bool> is_granted_ = true;
  Rig rig_;
};

TEST_F(AnnouncedFile, IsReadWithoutATarget) {
  announce_and_wait();
  EXPECT_EQ(rig_.counter("handles"), 0u);
  EXPECT_TRUE(rig_.forgets_inodes());
  const size_t before = asked();
  open();
  EXPECT_EQ(rig_.read(kOwn, 0, kSize + 4096).bytes, content_);
  EXPECT_EQ(asked(), before);
  EXPECT_EQ(rig_.counter("announced_reads"), 1u);
  EXPECT_TRUE(rig_.empties(Buffer::Account::kAnnounced));
  EXPECT_EQ(rig_.events(EventKind::kRelease).size(), 1u) << "Python was not told of it";
}

TEST_F(AnnouncedFile, IsWaitedForWhenItIsUnderWay) {
  stall();
  announce();
  EXPECT_TRUE(eventually([&] { return asked() == kParts; }));
  open();
  const uint64_t unique = rig_.start_read(kOwn, 0, kSize);
  EXPECT_FALSE(rig_.replier.wait_for(unique, 100));
  go_on();
  EXPECT_EQ(rig_.replier.wait(unique).bytes, content_);
  EXPECT_EQ(asked(), kParts);
}

TEST_F(AnnouncedFile, IsReadByItselfWhenItCouldNotBeFetched) {
  std::atomic<bool> fails = true;
  for (const auto& target : rig_.targets) {
    target->decide([&](const FrameHeader&) {
      return fails ? FakeTarget::Decision{FakeTarget::Fault::kStatus, Status::kEio}
                   : FakeTarget::Decision{};
    });
  }
  announce();
  EXPECT_TRUE(eventually([&] { return rig_.counter("announced_missed") == 1; }));
  fails = false;
  open();
  EXPECT_EQ(rig_.read(kOwn, 0, kSize).bytes, content_);
}

TEST_F(AnnouncedFile, OfAnEarlierVersionIsNotGiven) {
  announce_and_wait();
  EXPECT_TRUE(rig_.core->open_granted(rig_.attributes(kSize, 3), rig_.layout(), rig_.capability(),
                                      kOwn, O_RDONLY));
  const Bytes other = pattern(kSize, 4);
  for (const auto& target : rig_.targets) target->decide({});
  const size_t before = asked();
  EXPECT_EQ(rig_.read(kOwn, 0, kSize).bytes.size(), kSize);
  EXPECT_GT(asked(), before);
}

TEST_F(AnnouncedFile, IsNotGivenWithoutALease) {
  announce_and_wait();
  open();
  rig_.core->inode_lease(kIno, 0, 0);
  const size_t before = asked();
  const uint64_t unique = rig_.start_read(kOwn, 0, kSize);
  EXPECT_TRUE(eventually([&] { return !rig_.events(EventKind::kAsk).empty(); }));
  rig_.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig_.replier.wait(unique).bytes, content_);
  EXPECT_GT(asked(), before);
}

// A recall takes the file from its directory's grant while it is fetched: the handle that nobody
// has is told of like one of a lane.
TEST_F(AnnouncedFile, TakenFromItsGrantMeanwhileIsTold) {
  stall();
  announce();
  EXPECT_TRUE(eventually([&] { return asked() > 0; }));
  is_granted_ = false;
  EXPECT_EQ(rig_.core->take_granted(kIno), 1u);
  rig_.core->inode_lease(kIno, 0, 0);
  go_on();
  EXPECT_TRUE(eventually([&] { return rig_.events(EventKind::kRelease).size() == 2; }));
  EXPECT_EQ(rig_.account(Buffer::Account::kAnnounced), 0u);
}

TEST_F(AnnouncedFile, UnknownOnesArePassedOver) {
  std::vector<uint64_t> inos(5000, 0);
  std::iota(inos.begin(), inos.end(), 1000);
  inos.push_back(kIno);
  EXPECT_EQ(rig_.core->announce(inos, false), inos.size());
  EXPECT_TRUE(eventually([&] { return rig_.account(Buffer::Account::kAnnounced) > 0; }));
  EXPECT_EQ(rig_.counter("announced_missed"), 5000u);
}

}  // namespace
}  // namespace braidfs::client::rig
