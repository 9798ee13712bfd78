// Streams: which READs are one, what is fetched ahead of them, and what is never given.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "client/streams.h"
#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kIno = Rig::kIno;
constexpr uint64_t kStamp = 5;
constexpr uint32_t kPart = 1u << 20;
constexpr uint64_t kSize = 100 * uint64_t{kPart} + 4096;
using Found = Streams::Found;

// ---- the table by itself ----

class StreamTable : public ::testing::Test {
 protected:
  static constexpr uint64_t kLimit = 64u << 20;
  static constexpr uint64_t kTogether = kLimit / 2;

  StreamTable() { streams_.limit(kLimit); }

  Found read(uint64_t part, uint64_t stamp = kStamp, uint64_t ino = kIno) {
    return read_at(part * kPart, kPart, stamp, ino);
  }
  Found read_at(uint64_t offset, uint32_t length, uint64_t stamp = kStamp, uint64_t ino = kIno) {
    wanted_.clear();
    parts_.clear();
    return streams_.read({ino, stamp, kSize, offset, length}, whom_, parts_, nullptr, wanted_,
                         now_);
  }
  // For the page cache, a window of so many parts that begins there: the last one's answer.
  Found window(uint64_t offset, uint64_t count) {
    auto found = Found::kNo;
    for (uint64_t part = 0; part < count; ++part) found = read_at(offset + part * kPart, kPart);
    return found;
  }
  // Parts wanted by the last READ, from the first to the one before the last.
  void expect_wanted(uint64_t begin, uint64_t end) {
    ASSERT_EQ(wanted_.size(), end - begin);
    for (size_t index = 0; index < wanted_.size(); ++index) {
      EXPECT_EQ(wanted_[index].offset, (begin + index) * kPart);
    }
  }
  void fetch(uint64_t ino = kIno) {
    for (const auto& piece : wanted_) {
      Buffer bytes = memory_.read(kPart);
      std::memset(bytes.span().data(), static_cast<int>(piece.offset / kPart), piece.length);
      streams_.fetched({ino, kStamp, kSize, piece.offset, piece.length}, std::move(bytes), now_);
    }
  }
  void begin() {
    for (uint64_t part = 0; part < Streams::kRunMin; ++part) EXPECT_EQ(read(part), Found::kNo);
  }
  uint64_t kept() const { return memory_.account(Buffer::Account::kAnnounced); }

  Memory memory_{MemoryLimits{}, 1};
  Streams streams_;
  Streams::For whom_ = Streams::For::kProgram;
  Streams::Parts parts_;
  std::vector<Streams::Piece> wanted_;
  Streams::Clock::time_point now_ = Streams::Clock::now();
};

TEST_F(StreamTable, FetchesAsMuchAsItHasRead) {
  for (uint64_t part = 0; part + 1 < Streams::kRunMin; ++part) {
    EXPECT_EQ(read(part), Found::kNo);
    expect_wanted(0, 0);
  }
  EXPECT_EQ(read(3), Found::kNo);
  expect_wanted(4, 8);
  fetch();
  EXPECT_EQ(read(4), Found::kYes);
  ASSERT_EQ(parts_.size(), 1u);
  EXPECT_EQ(parts_[0].span()[kPart - 1], std::byte{4});
  expect_wanted(8, 10);
  fetch();
  EXPECT_EQ(read(4), Found::kNo) << "once";
  expect_wanted(0, 0);
  for (uint64_t part = 5; part < 60; ++part) {
    EXPECT_EQ(read(part), Found::kYes) << part;
    fetch();
    EXPECT_LE(streams_.bytes(), Streams::kWindowMax);
  }
}

TEST_F(StreamTable, EndsWithTheFile) {
  for (uint64_t part = 80; part < 100; ++part) {
    EXPECT_EQ(read(part), part < 80 + Streams::kRunMin ? Found::kNo : Found::kYes);
    fetch();
  }
  EXPECT_EQ(streams_.bytes(), 4096u);
  EXPECT_EQ(read_at(100 * uint64_t{kPart}, 4096), Found::kYes);
  EXPECT_EQ(streams_.bytes(), 0u);
}

TEST_F(StreamTable, ReadsMayOvertakeEachOther) {
  for (const uint64_t part : {1, 0, 3, 2}) EXPECT_EQ(read(part), Found::kNo);
  for (const uint64_t part : {5, 4, 7, 6}) {
    (void)read(part);
    fetch();
  }
  uint32_t hits = 0;
  for (const uint64_t part : {9, 8, 11, 10, 14, 13, 12}) {
    hits += read(part) == Found::kYes ? 1 : 0;
    fetch();
  }
  EXPECT_EQ(hits, 7u);
}

TEST_F(StreamTable, RandomAndStridedReadsAreNone) {
  constexpr uint64_t kParts = 1'000'003;
  for (uint64_t part = 1, count = 0; count < 1000; part = part * 65'537 % kParts, ++count) {
    const CachedExtent extent{kIno, kStamp, kParts * kPart, part * kPart, kPart};
    EXPECT_EQ(streams_.read(extent, whom_, parts_, nullptr, wanted_, now_), Found::kNo);
  }
  expect_wanted(0, 0);
  for (uint64_t part = 0; part < 100; part += 4) {
    EXPECT_EQ(read(part, kStamp, kIno + 1), Found::kNo);
    expect_wanted(0, 0);
  }
  EXPECT_EQ(streams_.bytes(), 0u);
}

TEST_F(StreamTable, AFileHasSome) {
  for (uint64_t part = 0; part < 10; ++part) {
    for (const uint64_t from : {0, 30, 60}) {
      EXPECT_EQ(read(from + part), part < Streams::kRunMin ? Found::kNo : Found::kYes)
          << from + part;
      fetch();
    }
  }
}

TEST_F(StreamTable, WhatIsUnderWayIsWaitedFor) {
  begin();
  const auto under_way = wanted_;
  EXPECT_EQ(read(4), Found::kWait);
  EXPECT_EQ(streams_.under_way(), 6u);
  wanted_ = under_way;
  fetch();
  EXPECT_EQ(read(4), Found::kYes);
  EXPECT_EQ(streams_.missed(kIno, 8 * uint64_t{kPart}).size(), 0u);
  EXPECT_EQ(read(8), Found::kNo) << "it could not be fetched";
}

TEST_F(StreamTable, AnotherVersionIsNotGiven) {
  begin();
  fetch();
  EXPECT_EQ(read(4, kStamp + 1), Found::kNo);
  EXPECT_EQ(read(4), Found::kNo) << "it went with that";
  EXPECT_EQ(read(5), Found::kYes);
}

TEST_F(StreamTable, AReadIsPutTogetherFromPieces) {
  begin();
  fetch();
  EXPECT_EQ(read_at(4 * uint64_t{kPart} + 8192, kPart), Found::kYes);
  ASSERT_EQ(parts_.size(), 2u);
  EXPECT_EQ(parts_[0].length, kPart - 8192);
  EXPECT_EQ(parts_[0].span().front(), std::byte{4});
  EXPECT_EQ(parts_[1].length, 8192u);
  EXPECT_EQ(parts_[1].span().back(), std::byte{5});
  EXPECT_EQ(read_at(4 * uint64_t{kPart}, 8192), Found::kYes) << "what was left";
  EXPECT_EQ(read(4), Found::kNo) << "each byte once";
}

// ---- for the page cache ----

class PagesTable : public StreamTable {
 protected:
  PagesTable() { whom_ = Streams::For::kPages; }
};

TEST_F(PagesTable, FromTheBeginningItIsAStreamAtOnce) {
  (void)window(0, 3);
  expect_wanted(0, 0);
  (void)read(3);
  expect_wanted(4, 8);
}

TEST_F(PagesTable, ElsewhereAWindowMayBeAllOfIt) {
  for (const uint64_t from : {20, 60, 85}) {
    (void)window(from * kPart, 8);
    expect_wanted(0, 0);
  }
  (void)read(28);
  expect_wanted(29, 38);
}

TEST_F(PagesTable, ReadsOfSomeThreadsAreOneRun) {
  for (const uint64_t part : {40, 48, 41, 49, 50, 42, 43, 51, 44, 45}) (void)read(part);
  expect_wanted(0, 0);
  for (const uint64_t part : {46, 47}) (void)read(part);
  expect_wanted(0, 0);
  (void)read(52);
  expect_wanted(53, 66);
}

TEST_F(PagesTable, WhatWasAskedForIsNotFetched) {
  (void)window(14 * kPart, 1);
  (void)window(0, 9);
  ASSERT_FALSE(wanted_.empty());
  for (uint64_t part = 9; part < 12; ++part) {
    fetch();
    (void)read(part);
    for (const auto& piece : wanted_) EXPECT_NE(piece.offset, 14 * uint64_t{kPart});
  }
}

// The next READ begins in what is left of a piece, and what lies before a window that was asked for
// earlier is fetched, too.
TEST_F(PagesTable, WindowsNeedNotEndWherePiecesDo) {
  const uint64_t head = 16 * uint64_t{kPart} + 12288;
  (void)read_at(head, kPart);
  (void)window(0, 4);
  for (uint64_t at = 4 * uint64_t{kPart}; at < head; at += kPart - 4096) {
    fetch();
    EXPECT_EQ(read_at(at, static_cast<uint32_t>(std::min<uint64_t>(kPart - 4096, head - at))),
              Found::kYes)
        << at;
  }
}

TEST_F(PagesTable, ReadersShareWhatIsAhead) {
  for (uint64_t part = 0; part < 33; ++part) {
    (void)read(part);
    fetch();
  }
  EXPECT_EQ(streams_.bytes(), kTogether);
  for (const uint64_t ino : {kIno + 1, kIno + 2}) {
    const uint64_t before = streams_.bytes();
    for (uint64_t part = 0; part < 16; ++part) {
      (void)read(part, kStamp, ino);
      fetch(ino);
    }
    EXPECT_EQ(streams_.bytes() - before, Streams::kAheadLeast);
  }
}

TEST_F(PagesTable, RestsAreBounded) {
  constexpr uint64_t kLast = 50;
  (void)window(0, 4);
  for (uint64_t part = 4; part <= kLast; ++part) {
    fetch();
    ASSERT_EQ(read_at(part * kPart, kPart - 4096), Found::kYes) << part;
  }
  EXPECT_EQ(streams_.bytes(), kTogether);
  EXPECT_EQ(read_at((kLast + 1) * kPart - 4096, 4096), Found::kYes);
  EXPECT_EQ(read_at(5 * uint64_t{kPart} - 4096, 4096), Found::kNo);
}

TEST_F(PagesTable, WindowsAtOneDistanceAreFetchedAhead) {
  constexpr uint64_t kStride = 16 * uint64_t{kPart} + 4096;
  constexpr uint64_t kFrom = 8192;
  for (uint64_t number = 0; number < 2; ++number) {
    EXPECT_EQ(window(kFrom + number * kStride, 4), Found::kNo);
    whom_ = Streams::For::kPages;
  }
  wanted_.clear();
  (void)read_at(kFrom + 2 * kStride, kPart);
  ASSERT_EQ(wanted_.size(), 16u);
  EXPECT_EQ(wanted_[0].offset, kFrom + 3 * kStride);
  EXPECT_EQ(wanted_[4].offset, kFrom + 4 * kStride);
  fetch();
  for (uint64_t part = 1; part < 4; ++part)
    (void)read_at(kFrom + 2 * kStride + part * kPart, kPart);
  EXPECT_EQ(window(kFrom + 3 * kStride, 4), Found::kYes);
  EXPECT_EQ(parts_.size(), 1u) << "just the kernel's READs";
}

TEST_F(PagesTable, SmallReadsAreOfAFileThatIsReadAlready) {
  constexpr CachedExtent kSmall{kIno, kStamp, kSize, 4 * uint64_t{kPart}, 4096};
  EXPECT_FALSE(streams_.may_be_of(kSmall, whom_));
  (void)window(0, 4);
  EXPECT_TRUE(streams_.may_be_of(kSmall, whom_));
  EXPECT_FALSE(streams_.may_be_of(kSmall, Streams::For::kProgram));
  fetch();
  for (uint64_t at = 0; at < kPart - Streams::kRestMax; at += 4096) {
    EXPECT_EQ(read_at(4 * uint64_t{kPart} + at, 4096), Found::kYes) << at;
  }
  EXPECT_EQ(read_at(4 * uint64_t{kPart}, 4096, kStamp, kIno + 1), Found::kNo);
  expect_wanted(0, 0);
}

TEST_F(StreamTable, IsBounded) {
  streams_.limit(3u << 20);
  begin();
  expect_wanted(4, 7);
  fetch();
  for (uint64_t file = 1; file < 100; ++file) {
    for (uint64_t part = 0; part < 6; ++part) (void)read(part, kStamp, kIno + file);
    expect_wanted(0, 0);
  }
  EXPECT_EQ(streams_.bytes(), 3u << 20);
  now_ += Streams::kKeptFor;
  for (uint64_t part = 0; part < Streams::kRunMin; ++part) (void)read(part, kStamp, kIno + 1000);
  expect_wanted(4, 7);  // what nobody reads makes room
  for (uint64_t file = 0; file < 2 * Streams::kFilesMax; ++file)
    (void)read(0, kStamp, 10'000 + file);
  streams_.limit(0);
  for (uint64_t part = 50; part < 60; ++part) EXPECT_EQ(read(part), Found::kNo);
}

TEST_F(StreamTable, WhatNobodyReadsGoes) {
  begin();
  fetch();
  EXPECT_GT(kept(), 0u);
  EXPECT_TRUE(streams_.expire(now_));
  now_ += Streams::kKeptFor;
  EXPECT_FALSE(streams_.expire(now_));
  EXPECT_EQ(kept(), 0u);
  begin();
  fetch();
  streams_.let_go();
  EXPECT_EQ(kept(), 0u);
  begin();
  const auto under_way = wanted_;
  streams_.closed(kIno);
  wanted_ = under_way;
  fetch();
  EXPECT_EQ(streams_.under_way(), 0u);
  now_ += Streams::kKeptFor;
  EXPECT_FALSE(streams_.expire(now_));
  EXPECT_EQ(kept(), 0u);
  EXPECT_EQ(streams_.bytes(), 0u);
}

TEST_F(StreamTable, BeginsNothingWhilePaused) {
  streams_.pause(true);
  begin();
  expect_wanted(0, 0);
  streams_.pause(false);
  EXPECT_EQ(read(4), Found::kNo);
  expect_wanted(5, 10);
}

// ---- with lanes ----

class StreamedFile : public ::testing::Test {
 protected:
  static constexpr uint32_t kRead = 256u << 10;
  static constexpr uint64_t kLength = 12u << 20;
  static constexpr uint64_t kBegun = 5u << 20;  // more is fetched when so much was read
  static constexpr uint64_t kOwn = uint64_t{1} << 62;

  StreamedFile() {
    rig_.open(Rig::kFh, O_RDWR, 0);
    rig_.core->stream_limit(64u << 20);
    rig_.core->lease_until(Clock::now() + std::chrono::hours(1));
    rig_.core->inode_lease(kIno, kLeaseData | kLeaseDataExclusive, 0);
    for (uint64_t at = 0; at < kLength; at += 1u << 20) {
      rig_.write(Rig::kFh, at,
                 Bytes(content_.begin() + static_cast<ptrdiff_t>(at),
                       content_.begin() + static_cast<ptrdiff_t>(at + (1u << 20))));
    }
    EXPECT_EQ(rig_.fsync(Rig::kFh), 0);
    rig_.release(Rig::kFh);
    rig_.core->inode_drop(kIno);
    EXPECT_TRUE(rig_.forgets_inodes());
    EXPECT_TRUE(rig_.core->open_granted(rig_.attributes(kLength, 2), rig_.layout(),
                                        rig_.capability(), kOwn, O_RDONLY));
  }
  ~StreamedFile() override { rig_.core->stop(0); }

  Bytes part(uint64_t offset, size_t length = kRead) const {
    const auto from = content_.begin() + static_cast<ptrdiff_t>(offset);
    return {from, from + static_cast<ptrdiff_t>(length)};
  }
  void read(uint64_t begin, uint64_t end) {
    for (uint64_t at = begin; at < end; at += kRead) {
      ASSERT_EQ(rig_.read(kOwn, at, kRead).bytes, part(at)) << at;
    }
  }
  size_t asked() {
    size_t count = 0;
    for (const auto& target : rig_.targets) count += target->count(Op::kRead);
    return count;
  }

  const Bytes content_ = pattern(kLength, 3);
  Rig rig_;
};

TEST_F(StreamedFile, EachByteIsAskedForOnce) {
  read(0, kLength);
  EXPECT_EQ(asked(), kLength / (64u << 10)) << "a chunk a time";
  EXPECT_GE(rig_.counter("stream_reads"), (kLength - Streams::kFirstMin) / kRead);
  EXPECT_EQ(rig_.counter("stream_unused"), 0u);
  EXPECT_TRUE(rig_.empties(Buffer::Account::kAnnounced));
}

TEST_F(StreamedFile, WhatCouldNotBeFetchedIsReadByItself) {
  std::atomic<int> failures = 0;
  for (const auto& target : rig_.targets) {
    target->decide([&](const FrameHeader& header) {
      const bool fails = header.offset >= kBegun / 4 && failures++ < 20;
      return fails ? FakeTarget::Decision{FakeTarget::Fault::kStatus, Status::kEio}
                   : FakeTarget::Decision{};
    });
  }
  read(0, kBegun);  // what is fetched ahead of these fails
  EXPECT_TRUE(eventually([&] { return rig_.counter("stream_missed") > 0; }));
  EXPECT_TRUE(eventually([&] { return rig_.core->fetching() == 0; }));
  failures = 20;
  read(kBegun, kLength);
}

TEST_F(StreamedFile, OfALeaseThatWasLostNothingIsGiven) {
  read(0, kBegun);
  EXPECT_TRUE(eventually([&] { return rig_.account(Buffer::Account::kAnnounced) > 0; }));
  EXPECT_TRUE(eventually([&] { return rig_.core->fetching() == 0; }));
  const uint64_t given = rig_.counter("stream_reads");
  rig_.core->inode_lease(kIno, 0, 0);
  const uint64_t unique = rig_.start_read(kOwn, kBegun, kRead);
  EXPECT_TRUE(eventually([&] { return !rig_.events(EventKind::kAsk).empty(); }));
  rig_.core->inode_asked(kIno, 0);
  EXPECT_EQ(rig_.replier.wait(unique).bytes, part(kBegun));
  EXPECT_EQ(rig_.counter("stream_reads"), given);
}

TEST_F(StreamedFile, ClosingLetsGo) {
  read(0, kBegun);
  EXPECT_TRUE(eventually([&] { return rig_.core->fetching() == 0; }));
  EXPECT_GT(rig_.account(Buffer::Account::kAnnounced), 0u);
  EXPECT_EQ(rig_.release(kOwn), 0);
  EXPECT_EQ(rig_.account(Buffer::Account::kAnnounced), 0u);
}

}  // namespace
}  // namespace braidfs::client::rig
