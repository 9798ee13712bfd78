#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cstring>

#include "fuse/attribute_table.h"
#include "fuse/complete_table.h"

namespace braidfs::fuse {
namespace {

using std::chrono::milliseconds;
using Record = std::array<std::byte, AttributeTable::kRecordSize>;

Record record_of(uint64_t ino, uint32_t mode, uint64_t change_version, uint32_t xattrs = 0) {
  Record record{};
  std::memcpy(record.data(), &ino, 8);
  std::memcpy(record.data() + 56, &mode, 4);
  std::memcpy(record.data() + 88, &change_version, 8);
  std::memcpy(record.data() + 116, &xattrs, 4);
  return record;
}

const AttributeTable::Clock::time_point kNow = AttributeTable::Clock::time_point{} + milliseconds(1);

TEST(AttributeTable, AnswersDirectoriesUntilTheDeadline) {
  AttributeTable table;
  ASSERT_TRUE(table.put(record_of(7, S_IFDIR | 0755, 1), milliseconds(1500), kNow));
  const auto known = table.getattr(7, 1, kNow + milliseconds(200));
  ASSERT_TRUE(known);
  EXPECT_EQ(known->attr.ino, 1u);
  EXPECT_EQ(known->attr.mode, S_IFDIR | 0755u);
  EXPECT_EQ(known->attr_valid, 1u);
  EXPECT_EQ(known->attr_valid_nsec, 300'000'000u);
  EXPECT_FALSE(table.getattr(7, 1, kNow + milliseconds(1500)));
}

TEST(AttributeTable, NeverAnswersForFilesWhoseSizeTheLanesOwn) {
  AttributeTable table;
  table.put(record_of(8, S_IFREG | 0644, 1), milliseconds(1000), kNow);
  EXPECT_FALSE(table.getattr(8, 8, kNow));
  EXPECT_TRUE(table.is_bare(8, kNow));
}

TEST(AttributeTable, AnOlderRecordDoesNotReplaceANewer) {
  AttributeTable table;
  table.put(record_of(9, S_IFDIR | 0700, 5), milliseconds(1000), kNow);
  table.put(record_of(9, S_IFDIR | 0777, 4), milliseconds(1000), kNow);
  EXPECT_EQ(table.getattr(9, 9, kNow)->attr.mode & 0777, 0700u);
}

TEST(AttributeTable, ExtendedAttributesAreAskedFor) {
  AttributeTable table;
  table.put(record_of(3, S_IFREG, 1, 2), milliseconds(1000), kNow);
  EXPECT_FALSE(table.is_bare(3, kNow));
  EXPECT_FALSE(table.is_bare(4, kNow));
  EXPECT_FALSE(table.put(std::span<const std::byte>(), milliseconds(1), kNow));
}

TEST(CompleteTable, OnlyNamesNeverAddedAreAbsent) {
  CompleteTable table;
  EXPECT_FALSE(table.is_absent(5, "a", kNow));
  table.put(5, kNow + milliseconds(10));
  EXPECT_TRUE(table.is_absent(5, "a", kNow));
  table.add(5, "a");
  EXPECT_FALSE(table.is_absent(5, "a", kNow));
  EXPECT_TRUE(table.is_absent(5, "b", kNow));
  EXPECT_FALSE(table.is_absent(5, "b", kNow + milliseconds(10)));
}

TEST(CompleteTable, AForgottenDirectoryIsNotCompleteAgain) {
  CompleteTable table;
  table.put(5, kNow + milliseconds(10));
  table.drop(5);
  table.extend(5, kNow + milliseconds(20));
  EXPECT_FALSE(table.is_absent(5, "a", kNow));
}

TEST(CompleteTable, TooManyNamesForgetTheDirectory) {
  CompleteTable table;
  table.put(5, kNow + milliseconds(10));
  for (size_t name = 0; name <= CompleteTable::kNamesMax; ++name) table.add(5, std::to_string(name));
  EXPECT_FALSE(table.is_absent(5, "absent", kNow));
}

}  // namespace
}  // namespace braidfs::fuse
