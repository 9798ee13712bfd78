// Near the largest offsets, and where the objects of a file become others while they are synced.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "client/ranges.h"
#include "client/records.h"
#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kChunk = 64u << 10;
constexpr uint64_t kEnd = 4 * limits::kObjectBytesMax;  // of the rig's layout
constexpr uint64_t kSizeMax = (uint64_t{1} << 63) - 1;

FileView shaped(uint32_t width, uint32_t chunk_size) {
  FileView view;
  view.stripe_width = width;
  view.chunk_size = chunk_size;
  view.rows.resize(width);
  return view;
}

TEST(FarExtents, WhatCanBeStoredEndsWhereTheFirstObjectDoes) {
  for (const uint32_t width : {1u, 2u, 5u, 64u}) {
    for (const uint32_t chunk : {1u, 3u, 16u, 1023u, 1024u}) {
      const FileView view = shaped(width, chunk << 16);
      const uint64_t end = storable_end(view);
      EXPECT_EQ(first_span(view, end, end + 1).object_offset, limits::kObjectBytesMax);
      EXPECT_LT(first_span(view, end - 1, end).object_offset, limits::kObjectBytesMax);
      std::mt19937_64 random(width * chunk);
      for (int i = 0; i < 1000; ++i) {
        const uint64_t at = random() % end;
        EXPECT_LT(first_span(view, at, at + 1).object_offset, limits::kObjectBytesMax);
      }
    }
  }
}

// Chunks of every kind, offsets of 63 bits: nothing wraps, and the mapping is its own inverse.
TEST(FarExtents, HoldAtAnyOffset) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    const FileView view =
        shaped(1 + random() % 64, static_cast<uint32_t>((1 + random() % 1024) << 16));
    const uint64_t at =
        i % 3 == 0 ? kSizeMax - random() % (uint64_t{1} << 30) : random() % kSizeMax;
    uint64_t nearest = ~uint64_t{0};
    for (uint32_t stripe = 0; stripe < view.stripe_width; ++stripe) {
      const uint64_t found = file_offset_of(view, stripe, object_offset_from(view, stripe, at));
      ASSERT_GE(found, at);
      nearest = std::min(nearest, found);
    }
    ASSERT_EQ(nearest, at);
    const Span span = first_span(view, at, std::min(kSizeMax, at + (1u << 20)));
    ASSERT_LE(span.object_offset, at);
    ASSERT_EQ(file_offset_of(view, span.stripe_index, span.object_offset), at);
  }
}

class FarOffsets : public ::testing::Test {
 protected:
  size_t count(Op op) {
    size_t sum = 0;
    for (const auto& target : rig_.targets) sum += target->count(op);
    return sum;
  }
  Event done(uint64_t token) {
    Event found;
    EXPECT_TRUE(eventually([&] {
      for (const Event& event : rig_.events(EventKind::kDone)) {
        if (event.token == token) found = event;
      }
      return found.token == token;
    }));
    return found;
  }

  Rig rig_;
};

TEST_F(FarOffsets, WhatIsBehindIsAHoleThatNobodyIsAskedFor) {
  rig_.open(Rig::kFh, O_RDWR, kSizeMax);
  for (const uint64_t at : {kEnd, kEnd + 5, uint64_t{1} << 50, kSizeMax - 4096}) {
    EXPECT_EQ(rig_.read(Rig::kFh, at, 4096).bytes, Bytes(4096)) << at;
  }
  EXPECT_EQ(count(Op::kRead), 0u);
  EXPECT_EQ(rig_.read(Rig::kFh, kEnd - 100, 4096).bytes, Bytes(4096));
  EXPECT_EQ(count(Op::kRead), 1u);
  for (const bool hole : {false, true}) {
    ASSERT_TRUE(rig_.core->seek(3 + hole, Rig::kIno, kSizeMax - 1, hole));
    EXPECT_EQ(done(3 + hole).b, hole ? static_cast<int64_t>(kSizeMax - 1) : -1);
  }
  EXPECT_EQ(count(Op::kSeek), 0u);
}

TEST_F(FarOffsets, NothingIsWrittenBehind) {
  rig_.open(Rig::kFh, O_RDWR);
  const Bytes bytes(4096, std::byte{1});
  for (const uint32_t flags : {0u, uint32_t{O_DIRECT}, uint32_t{O_DSYNC}}) {
    EXPECT_EQ(rig_.write(Rig::kFh, kEnd, bytes, flags).error, EFBIG);
    EXPECT_EQ(rig_.write(Rig::kFh, kSizeMax - 4096, bytes, flags).error, EFBIG);
  }
  EXPECT_EQ(rig_.fsync(Rig::kFh), 0) << "none was taken";
  EXPECT_EQ(count(Op::kWrite), 0u);
}

TEST_F(FarOffsets, HolesAreMadeOfWhatThereCanBe) {
  rig_.open(Rig::kFh, O_RDWR, kSizeMax);
  for (const auto& target : rig_.targets) {
    target->decide([](const FrameHeader& header) -> FakeTarget::Decision {
      if (header.op != static_cast<uint8_t>(Op::kPunch)) return {};
      return {FakeTarget::Fault::kStatus, Status::kOk};
    });
  }
  ASSERT_TRUE(rig_.core->punch(5, Rig::kIno, kEnd - kChunk, kSizeMax));
  EXPECT_EQ(done(5).a, 0);
  EXPECT_EQ(count(Op::kPunch), 1u);
  for (const auto& target : rig_.targets) {
    for (const FrameHeader& header : target->seen(Op::kPunch)) {
      EXPECT_EQ(header.offset + header.length, limits::kObjectBytesMax);
    }
  }
}

// A SYNC that is answered after the file was truncated to nothing: its object is not the one that
// the file has now, of which a missing one is a hole.
TEST_F(FarOffsets, WhatWasSyncedOfFormerObjectsIsNotTold) {
  rig_.open(Rig::kFh, O_RDWR);
  rig_.write(Rig::kFh, 0, pattern(1000, 3));
  for (const auto& target : rig_.targets) {
    target->decide([](const FrameHeader& header) -> FakeTarget::Decision {
      if (header.op != static_cast<uint8_t>(Op::kSync)) return {};
      return {FakeTarget::Fault::kStall, Status::kOk};
    });
  }
  const uint64_t syncing = rig_.start_fsync(Rig::kFh);
  ASSERT_TRUE(eventually([&] { return count(Op::kSync) == 1; }));
  rig_.file_id = 99;
  rig_.core->inode_resize(rig_.attributes(0, 9), rig_.layout(), rig_.capability());
  for (const auto& target : rig_.targets) target->release_stalled();
  EXPECT_EQ(rig_.replier.wait(syncing).error, 0);
  for (const auto& commit : rig_.commits()) EXPECT_EQ(commit.stripes, 0u);
}

}  // namespace
}  // namespace braidfs::client::rig
