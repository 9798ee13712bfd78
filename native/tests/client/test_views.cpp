// Views, layouts and sizes: a view never changes the size, and nothing goes back to an older view.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFh = Rig::kFh;

uint32_t epoch_of_next_write(Rig& rig, uint32_t seed) {
  EXPECT_EQ(rig.write(kFh, 0, pattern(100, seed), O_DIRECT).count, 100u);
  EXPECT_EQ(rig.drain(false), 0);
  return rig.targets[0]->seen(Op::kWrite).back().epoch;
}

TEST(Views, AViewIsTakenWithoutASize) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(200'000, 1);
  rig.write(kFh, 0, bytes);
  ASSERT_TRUE(rig.core->view_put(Rig::kIno, rig.layout(5), rig.capability()));
  EXPECT_EQ(rig.read(kFh, 0, 200'000).bytes, bytes) << "what was written and is not sent stays";
  EXPECT_EQ(epoch_of_next_write(rig, 2), 5u);
  const auto written = rig.core->inode_written(Rig::kIno);
  ASSERT_TRUE(written);
  EXPECT_EQ(written->size, 200'000u);
}

TEST(Views, AnOlderViewIsRefusedWhoeverBringsIt) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  ASSERT_TRUE(rig.core->view_put(Rig::kIno, rig.layout(5), rig.capability()));
  EXPECT_FALSE(rig.core->view_put(Rig::kIno, rig.layout(4), rig.capability()));
  EXPECT_EQ(epoch_of_next_write(rig, 1), 5u);
  EXPECT_TRUE(rig.core->inode_put(rig.attributes(0, 9), rig.layout(4), rig.capability()));
  EXPECT_EQ(epoch_of_next_write(rig, 2), 5u);
  const Bytes bytes = pattern(50'000, 3);
  rig.write(kFh, 0, bytes);
  EXPECT_TRUE(rig.core->inode_resize(rig.attributes(10, 3), rig.layout(4), rig.capability()));
  EXPECT_EQ(rig.read(kFh, 0, 1u << 20).bytes, bytes) << "a size of before, too";
  EXPECT_EQ(epoch_of_next_write(rig, 4), 5u);
}

TEST(Views, WhatIsNoViewOfTheseObjectsIsRefused) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes layout = rig.layout(5);
  EXPECT_FALSE(rig.core->view_put(Rig::kIno + 1, layout, rig.capability())) << "unknown";
  EXPECT_FALSE(rig.core->view_put(Rig::kIno, Bytes(7), rig.capability())) << "malformed";
  const auto other = [&](LayoutFields fields) {
    return rig.core->view_put(Rig::kIno, layout_record(fields), capability_record(fields.file_id));
  };
  EXPECT_FALSE(other({.file_id = 99, .targets = 4, .chunk_size = 64u << 10, .epoch = 5}))
      << "another file id";
  EXPECT_FALSE(other({.file_id = Rig::kIno, .targets = 3, .chunk_size = 64u << 10, .epoch = 5}))
      << "cut otherwise";
  EXPECT_FALSE(other({.file_id = Rig::kIno, .targets = 4, .chunk_size = 128u << 10, .epoch = 5}));
  EXPECT_EQ(epoch_of_next_write(rig, 1), 0u);
}

}  // namespace
}  // namespace braidfs::client::rig
