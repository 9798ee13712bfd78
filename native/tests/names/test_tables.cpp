#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "fuse/notifier.h"
#include "fuse/protocol.h"
#include "names/attribute_table.h"
#include "names/child_table.h"
#include "names/dentry_table.h"

namespace braidfs::names {
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

const AttributeTable::Clock::time_point kNow =
    AttributeTable::Clock::time_point{} + milliseconds(1);

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
  EXPECT_TRUE(table.has_no_xattrs(8, kNow));
}

TEST(AttributeTable, AnOlderRecordDoesNotReplaceANewer) {
  AttributeTable table;
  table.put(record_of(9, S_IFDIR | 0700, 5), milliseconds(1000), kNow);
  table.put(record_of(9, S_IFDIR | 0777, 4), milliseconds(1000), kNow);
  EXPECT_EQ(table.getattr(9, 9, kNow)->attr.mode & 0777, 0700u);
}

TEST(AttributeTable, InodesOfOneSetAreKeptApart) {
  constexpr uint64_t kDistance = 1u << 17;
  AttributeTable table;
  for (uint64_t way = 0; way < 8; ++way) {
    table.put(record_of(70 + way * kDistance, S_IFDIR | 0755, 1), milliseconds(100), kNow);
  }
  for (uint64_t way = 0; way < 8; ++way) {
    EXPECT_TRUE(table.getattr(70 + way * kDistance, 1, kNow + milliseconds(2 + way)));
  }
  table.put(record_of(70 + 8 * kDistance, S_IFDIR | 0755, 1), milliseconds(100),
            kNow + milliseconds(50));
  EXPECT_FALSE(table.getattr(70, 1, kNow + milliseconds(51)));  // told longest ago
  for (uint64_t way = 1; way < 9; ++way) {
    EXPECT_TRUE(table.getattr(70 + way * kDistance, 1, kNow + milliseconds(51)));
  }
}

TEST(AttributeTable, ExtendedAttributesAreAskedFor) {
  AttributeTable table;
  table.put(record_of(3, S_IFREG, 1, 2), milliseconds(1000), kNow);
  EXPECT_FALSE(table.has_no_xattrs(3, kNow));
  EXPECT_FALSE(table.has_no_xattrs(4, kNow));
  EXPECT_FALSE(table.put(std::span<const std::byte>(), milliseconds(1), kNow));
}

using Kind = DentryTable::Found::Kind;

// What is known of a name, answered or not.
DentryTable::Found found(DentryTable& table, uint64_t directory, std::string_view name,
                         DentryTable::Clock::time_point now = kNow, bool answer = true) {
  DentryTable::Found seen;
  table.find(directory, name, now, [&](const DentryTable::Found& entry) {
    seen = entry;
    return answer;
  });
  return seen;
}

TEST(AttributeTable, WhatWasWrittenIsInTheNextAnswer) {
  AttributeTable table;
  table.put(record_of(8, S_IFREG | 0644, 1), milliseconds(0), kNow, true);
  table.believe(kNow + milliseconds(10));
  table.wrote(8, {.size = 5000, .mtime_ns = 9'000'000'000}, kNow);
  table.wrote(8, {.size = 600, .mtime_ns = 3'000'000'001}, kNow);  // the clock was put back
  const auto known = table.getattr(8, 8, kNow);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->attr.size, 5000u);
  EXPECT_EQ(known->attr.blocks, 10u);
  EXPECT_EQ(known->attr.mtime, 3u);
  EXPECT_EQ(known->attr.mtimensec, 1u);
  EXPECT_EQ(known->attr.ctime, 9u);
  table.put(record_of(8, S_IFREG | 0600, 2), milliseconds(0), kNow,
            true);  // of before the second one
  EXPECT_EQ(table.getattr(8, 8, kNow)->attr.size, 5000u);
  table.put(record_of(8, S_IFREG | 0600, 4), milliseconds(0), kNow, true);
  EXPECT_EQ(table.getattr(8, 8, kNow)->attr.size, 0u);
}

TEST(AttributeTable, WrittenWhatIsNotKnownForCertainIsForgotten) {
  AttributeTable table;
  table.put(record_of(8, S_IFREG | 0644, 1, 2), milliseconds(0), kNow,
            true);  // extended attributes
  table.believe(kNow + milliseconds(10));
  EXPECT_TRUE(table.getattr(8, 8, kNow));
  table.wrote(8, {.size = 5000}, kNow);
  EXPECT_FALSE(table.getattr(8, 8, kNow));
  table.wrote(9, {.size = 5000}, kNow);
  EXPECT_FALSE(table.getattr(9, 9, kNow));
}

TEST(AttributeTable, UnderALeaseFilesAreAnsweredUntilLeasesEnd) {
  AttributeTable table;
  table.put(record_of(8, S_IFREG | 0644, 1), milliseconds(0), kNow, true);
  EXPECT_FALSE(table.getattr(8, 8, kNow));
  table.believe(kNow + milliseconds(10));
  EXPECT_TRUE(table.getattr(8, 8, kNow));
  EXPECT_FALSE(table.getattr(8, 8, kNow + milliseconds(10)));
  table.believe(kNow + milliseconds(20));
  EXPECT_TRUE(table.getattr(8, 8, kNow + milliseconds(10)));
  table.drop(8);
  EXPECT_FALSE(table.getattr(8, 8, kNow));
}

TEST(AttributeTable, WhatIsImmutableStaysOnASealedTree) {
  constexpr uint32_t kImmutable = 0x10;
  AttributeTable table;
  Record immutable = record_of(8, S_IFREG | 0444, 1);
  std::memcpy(immutable.data() + 76, &kImmutable, 4);
  table.put(immutable, {}, kNow, true);
  table.put(record_of(9, S_IFREG | 0444, 1), {}, kNow, true);
  table.believe(kNow + milliseconds(1000));
  EXPECT_EQ(table.getattr(8, 8, kNow)->attr_valid, 1u);
  table.seal();
  EXPECT_EQ(table.getattr(8, 8, kNow)->attr_valid, 24u * 3600);
  EXPECT_EQ(table.getattr(9, 9, kNow)->attr_valid, 1u);
  EXPECT_FALSE(table.getattr(8, 8, kNow + milliseconds(1000)));  // it may be another one by now
  fuse_entry_out entry{};
  entry.nodeid = 8;
  entry.entry_valid = 1;
  entry.attr_valid = 24 * 3600;
  table.keep_name(entry);
  EXPECT_EQ(entry.entry_valid, entry.attr_valid);
}

TEST(DentryTable, InACompleteDirectoryOnlyNamesNeverPutAreAbsent) {
  DentryTable table;
  EXPECT_EQ(found(table, 5, "a").kind, Kind::kUnknown);
  table.complete(5, kNow + milliseconds(10));
  EXPECT_EQ(found(table, 5, "a").kind, Kind::kAbsent);
  table.unsure(5, "a");
  EXPECT_EQ(found(table, 5, "a").kind, Kind::kUnknown);
  EXPECT_EQ(found(table, 5, "b").kind, Kind::kAbsent);
  EXPECT_EQ(found(table, 5, "b", kNow + milliseconds(10)).kind, Kind::kUnknown);
}

TEST(DentryTable, ADroppedDirectoryIsNotCompleteAgain) {
  DentryTable table;
  table.complete(5, kNow + milliseconds(10));
  table.drop(5, kNow);
  table.extend(5, kNow + milliseconds(20));
  EXPECT_EQ(found(table, 5, "a").kind, Kind::kUnknown);
}

TEST(DentryTable, TooManyNamesEndCompleteness) {
  DentryTable table;
  table.complete(5, kNow + milliseconds(10));
  for (size_t name = 0; name <= DentryTable::kNamesMax; ++name)
    table.unsure(5, std::to_string(name));
  EXPECT_EQ(found(table, 5, "absent").kind, Kind::kUnknown);
}

TEST(DentryTable, UnderALeaseNamesAreKnownUntilLeasesEnd) {
  DentryTable table;
  table.lease(5, kNow);
  EXPECT_TRUE(table.put(5, "there", 77, kNow));
  EXPECT_TRUE(table.put(5, "absent", 0, kNow));
  EXPECT_EQ(found(table, 5, "there").kind, Kind::kUnknown);
  table.believe(kNow + milliseconds(10));
  EXPECT_EQ(found(table, 5, "there").kind, Kind::kPresent);
  EXPECT_EQ(found(table, 5, "there").ino, 77u);
  EXPECT_EQ(found(table, 5, "there").valid, milliseconds(10));
  EXPECT_EQ(found(table, 5, "absent").kind, Kind::kAbsent);
  EXPECT_EQ(found(table, 5, "never told").kind, Kind::kUnknown);
  EXPECT_EQ(found(table, 5, "there", kNow + milliseconds(10)).kind, Kind::kUnknown);
}

TEST(DentryTable, ARecallNamesWhatTheKernelWasTold) {
  DentryTable table;
  table.believe(kNow + milliseconds(1000));
  table.lease(5, kNow);
  table.put(5, "told", 77, kNow);
  table.unsure(5, "only asked");
  EXPECT_EQ(table.drop(5, kNow).cached, std::vector<std::string>{"told"});
  EXPECT_EQ(found(table, 5, "told").kind, Kind::kUnknown);
  EXPECT_EQ(table.names(), 0u);
  EXPECT_FALSE(table.put(5, "without a lease", 78, kNow));
}

TEST(DentryTable, AnEntryThatWasOnlyLearntNeedsNoRecall) {
  DentryTable table;
  table.believe(kNow + milliseconds(10));
  table.learn(5, "a", 7);
  EXPECT_EQ(found(table, 5, "a").kind, Kind::kUnknown);  // not leased
  table.lease(5, kNow);
  table.put(5, "b", 8, kNow);
  table.unsure(5, "c");
  for (const auto name : {"a", "b", "c"}) table.learn(5, name, 7);
  EXPECT_EQ(found(table, 5, "b").ino, 8u);               // what is known stays
  EXPECT_EQ(found(table, 5, "c").kind, Kind::kUnknown);  // a request on its way changes it
  EXPECT_EQ(found(table, 5, "a", kNow, false).ino, 7u);
  EXPECT_EQ(table.drop(5, kNow).cached, std::vector<std::string>{"b"});
}

TEST(DentryTable, AContendedDirectoryTellsTheKernelNothing) {
  DentryTable table;
  table.believe(kNow + std::chrono::hours(1));
  table.lease(5, kNow);
  table.drop(5, kNow);
  table.lease(5, kNow + milliseconds(1));
  EXPECT_FALSE(table.put(5, "name", 77, kNow));
  EXPECT_EQ(found(table, 5, "name").kind, Kind::kPresent);
  EXPECT_EQ(found(table, 5, "name").valid, milliseconds(0));
  EXPECT_TRUE(table.drop(5, kNow + milliseconds(2)).cached.empty());
  table.lease(5, kNow + DentryTable::kContended + milliseconds(3));
  EXPECT_TRUE(table.put(5, "name", 77, kNow));
}

TEST(DentryTable, ARenameTakesAlongWhatTheKernelBelieves) {
  DentryTable table;
  table.believe(kNow + milliseconds(1000));
  table.lease(5, kNow);
  table.put(5, "old", 77, kNow);
  EXPECT_TRUE(table.moves(5, "never told", 6, "new")) << "there is nothing to take along";
  EXPECT_FALSE(table.moves(5, "old", 6, "new")) << "nothing is known of the new directory";
  table.lease(6, kNow);
  EXPECT_TRUE(table.moves(5, "old", 6, "new"));
  EXPECT_TRUE(table.moves(5, "old", 5, "beside"));
  EXPECT_EQ(table.drop(6, kNow).cached, std::vector<std::string>{"new"});
  EXPECT_EQ(table.drop(5, kNow).cached.size(), 2u);
}

TEST(DentryTable, WhatWasToldAMomentAgoMayNotHaveBeenNoted) {
  DentryTable table;
  table.believe(kNow + std::chrono::hours(1));
  for (const uint64_t directory : {5, 6, 7}) table.lease(directory, kNow);
  table.put(5, "name", 77, kNow);
  table.put(5, "other", 80, kNow + milliseconds(30));
  table.put(5, "old", 81, kNow - DentryTable::kSettling);
  auto dropped = table.drop(5, kNow + milliseconds(50));
  std::ranges::sort(dropped.settling);
  EXPECT_EQ(dropped.settling, (std::vector<std::string>{"name", "other"}));
  EXPECT_EQ(dropped.looked_at, kNow + milliseconds(30));
  EXPECT_EQ(dropped.cached.size(), 3u);
  table.put(6, "name", 78, kNow);
  EXPECT_TRUE(table.drop(6, kNow + DentryTable::kSettling).settling.empty());
  table.put(7, "name", 79, kNow);
  EXPECT_EQ(found(table, 7, "name", kNow + DentryTable::kSettling).kind, Kind::kPresent);
  EXPECT_EQ(table.drop(7, kNow + DentryTable::kSettling).settling.size(), 1u);
}

TEST(DentryTable, WhatIsMovedSettlesUnderItsNewName) {
  DentryTable table;
  table.believe(kNow + std::chrono::hours(1));
  table.lease(5, kNow);
  table.lease(6, kNow);
  table.put(5, "name", 77, kNow);
  EXPECT_TRUE(table.moves(5, "name", 6, "moved"));
  table.put(6, "older", 78, kNow - DentryTable::kSettling);
  EXPECT_EQ(table.drop(6, kNow + milliseconds(1)).settling, std::vector<std::string>{"moved"});
}

TEST(DentryTable, AnAbsentNameIsToldForAMoment) {
  DentryTable table;
  table.believe(kNow + std::chrono::hours(1));
  table.lease(5, kNow);
  table.put(5, "absent", 0, kNow);
  table.put(5, "there", 77, kNow);
  EXPECT_EQ(found(table, 5, "absent").valid, DentryTable::kAbsentLife);
  EXPECT_EQ(found(table, 5, "there").valid, std::chrono::hours(1));
  table.believe(kNow + milliseconds(10));
  EXPECT_EQ(found(table, 5, "absent").valid, milliseconds(10));
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

bool put_child(ChildTable& table, uint64_t directory, uint64_t ino, uint64_t version) {
  return table.put(directory, record_of(ino, S_IFREG | 0644, version), bytes_of("layout"),
                   bytes_of("capability"));
}

bool is_there(ChildTable& table, uint64_t ino, ChildTable::Clock::time_point now) {
  return table.find(ino, now, [](const ChildTable::Child&) { return true; });
}

TEST(ChildTable, BelievesAsLongAsLeasesLast) {
  ChildTable table;
  ASSERT_TRUE(put_child(table, 3, 100, 1));
  EXPECT_FALSE(is_there(table, 100, kNow));
  table.believe(kNow + milliseconds(10));
  EXPECT_TRUE(is_there(table, 100, kNow));
  EXPECT_FALSE(is_there(table, 101, kNow));
  EXPECT_FALSE(is_there(table, 100, kNow + milliseconds(10)));
  EXPECT_FALSE(table.put(3, bytes_of("short"), bytes_of(""), bytes_of("")));
}

TEST(ChildTable, GivesBackWhatWasPut) {
  ChildTable table;
  table.believe(kNow + milliseconds(10));
  put_child(table, 3, 100, 7);
  EXPECT_TRUE(table.find(100, kNow, [](const ChildTable::Child& child) {
    return child.layout == "layout" && child.capability == "capability" &&
           record::field<uint64_t>(child.attributes, record::kChangeVersion) == 7;
  }));
  EXPECT_FALSE(table.find(100, kNow, [](const ChildTable::Child&) { return false; }));
}

TEST(ChildTable, CountsWhatIsOpenedAndWhatGoesUnopened) {
  ChildTable table;
  table.believe(kNow + milliseconds(10));
  for (const uint64_t ino : {100, 101, 102}) put_child(table, 3, ino, 1);
  const auto open = [&](uint64_t ino) {
    bool before = false;
    table.find(ino, kNow,
               [&](ChildTable::Child& child) { return before = table.mark_opened(child); });
    return before;
  };
  EXPECT_FALSE(open(100));
  EXPECT_TRUE(open(100));
  put_child(table, 3, 100, 1);  // told again: the same version
  EXPECT_TRUE(open(100));
  put_child(table, 3, 100, 2);
  EXPECT_FALSE(open(100));
  EXPECT_TRUE(table.drop(100));
  EXPECT_TRUE(table.drop(101));
  EXPECT_FALSE(table.drop(101));
  EXPECT_EQ(table.count(), 1u);
  EXPECT_EQ(table.used(), 2u);
  EXPECT_EQ(table.unused(), 1u);
}

TEST(ChildTable, FindsThoseOfADirectoryAndThoseThatAreOlder) {
  ChildTable table;
  for (const uint64_t ino : {100, 101}) put_child(table, 3, ino, 5);
  put_child(table, 4, 102, 5);
  auto found = table.of(3);
  std::ranges::sort(found);
  EXPECT_EQ(found, (std::vector<uint64_t>{100, 101}));
  EXPECT_EQ(table.of(0).size(), 3u);
  EXPECT_TRUE(table.of(5).empty());
  EXPECT_FALSE(table.is_older(100, 5));
  EXPECT_TRUE(table.is_older(100, 6));
  EXPECT_FALSE(table.is_older(103, 6));
}

TEST(ChildTable, KeepsWhatIsInUse) {
  ChildTable table;
  put_child(table, 3, 100, 1);
  EXPECT_FALSE(table.drop_unless(100, [](bool) { return true; }));
  EXPECT_EQ(table.count(), 1u);
  EXPECT_TRUE(table.drop_unless(100, [](bool) { return false; }));
  EXPECT_EQ(table.count(), 0u);
  EXPECT_TRUE(table.drop_unless(100, [](bool) { return false; }));  // it is not here
}

}  // namespace
}  // namespace braidfs::names
