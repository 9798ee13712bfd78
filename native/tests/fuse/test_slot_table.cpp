#include "fuse/slot_table.h"

#include <gtest/gtest.h>

#include <set>

namespace braidfs::fuse {
namespace {

TEST(SlotTable, FindsBySlotAndByUnique) {
  SlotTable table;
  const auto slot = table.put({1, 100, 4711, 3, 1});
  ASSERT_TRUE(slot);
  EXPECT_EQ(table.find(*slot)->pid, 4711u);
  EXPECT_EQ(table.slot_of(100), slot);
  EXPECT_EQ(table.count(), 1u);
  EXPECT_EQ(table.take(100)->channel, 1u);
  EXPECT_FALSE(table.find(*slot));
  EXPECT_FALSE(table.take(100));
  EXPECT_EQ(table.count(), 0u);
}

TEST(SlotTable, ASlotIsNotReusedSoon) {
  SlotTable table;
  std::set<uint32_t> seen;
  for (uint64_t unique = 2; unique < 2 + 32768; ++unique) {
    const auto slot = table.put({0, unique, 0, 1, 0});
    ASSERT_TRUE(slot);
    EXPECT_LT(*slot, 1u << 31);  // a pid_t is signed
    EXPECT_TRUE(seen.insert(*slot).second);
    table.take(unique);
  }
}

TEST(SlotTable, FullAndRepeatedAreRefused) {
  SlotTable table;
  for (uint64_t unique = 0; unique < SlotTable::kSlotsMax; ++unique) {
    ASSERT_TRUE(table.put({0, unique, 0, 1, 0}));
  }
  EXPECT_FALSE(table.put({0, 1u << 20, 0, 1, 0}));
  table.take(5);
  EXPECT_FALSE(table.put({0, 6, 0, 1, 0}));
  EXPECT_TRUE(table.put({0, 5, 0, 1, 0}));
  EXPECT_EQ(table.take_all().size(), SlotTable::kSlotsMax);
  EXPECT_EQ(table.count(), 0u);
}

TEST(SlotTable, NonsenseIsNotFound) {
  SlotTable table;
  EXPECT_FALSE(table.find(0));
  EXPECT_FALSE(table.find(~0u));
  const auto slot = table.put({0, 1, 0, 1, 0});
  EXPECT_FALSE(table.find(*slot + (1u << 16)));  // another generation
}

}  // namespace
}  // namespace braidfs::fuse
