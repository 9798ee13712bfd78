// The slots of new files: pools of them, their bounds, and shares of limits.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "names/change_journal.h"

namespace braidfs::names {
namespace {

TEST(ChangeJournal, SlotsAreBounded) {
  ChangeJournal births;
  EXPECT_TRUE(births.slots_put(0, std::vector<BirthSlot>(ChangeJournal::kSlotsMax)));
  EXPECT_FALSE(births.slots_put(0, std::vector<BirthSlot>(1)));
  births.slots_clear();
  EXPECT_EQ(births.slots(0), 0u);
  EXPECT_FALSE(births.take_slot(1, 0));
}

TEST(ChangeJournal, PoolsAreBoundedAndDropped) {
  ChangeJournal births;
  for (uint64_t pool = 0; pool < ChangeJournal::kPoolsMax; ++pool) {
    EXPECT_TRUE(
        births.slots_put(pool, {{10 + pool, "layout", "key"}, {40 + pool, "layout", "key"}}));
  }
  EXPECT_TRUE(births.slots_put(100, {}));
  EXPECT_FALSE(births.slots_put(100, std::vector<BirthSlot>(1)));
  EXPECT_TRUE(births.slots_drop(5, 2).empty());
  EXPECT_EQ(births.slots_drop(5, 1), std::vector<uint64_t>{45});
  EXPECT_EQ(births.slots_drop(5, 0), std::vector<uint64_t>{15});
  EXPECT_TRUE(births.slots_drop(5, 0).empty());
  EXPECT_TRUE(births.slots_put(100, std::vector<BirthSlot>(ChangeJournal::kSlotsMax - 30)));
  EXPECT_FALSE(births.slots_put(100, std::vector<BirthSlot>(1)));
  births.pool_put(1, 3);
  EXPECT_EQ(births.take_slot(1, 1)->ino, 13u);
  EXPECT_TRUE(births.slots_put(100, std::vector<BirthSlot>(1)));
  EXPECT_EQ(births.take_slot(1, 1)->ino, 43u);
  EXPECT_FALSE(births.take_slot(1, 1));
  births.slots_clear();
  EXPECT_EQ(births.slots(100), 0u);
}

TEST(ChangeJournal, AShareOfALimitIsUsedUp) {
  ChangeJournal births;
  EXPECT_TRUE(births.slots_put(0, std::vector<BirthSlot>(4)));
  births.share(7, 1, 4096);
  EXPECT_EQ(births.take_slot(7, 0)->size_limit, 4096u);
  EXPECT_FALSE(births.take_slot(7, 0));
  EXPECT_EQ(births.slots(0), 3u);
  EXPECT_EQ(births.take_slot(8, 0)->size_limit, kNoSizeLimit);
  births.share(7, 1, 512);
  EXPECT_EQ(births.take_slot(7, 0)->size_limit, 512u);
  births.unshare(7);
  EXPECT_EQ(births.take_slot(7, 0)->size_limit, kNoSizeLimit);
}

}  // namespace
}  // namespace braidfs::names
