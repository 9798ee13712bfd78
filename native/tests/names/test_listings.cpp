// Listings: what a directory's table gives by cookies, and READDIRPLUS that lanes answer by it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <string>
#include <vector>

#include "fuse/protocol.h"
#include "names_fixture.h"

namespace braidfs::names {
namespace {

using std::chrono::milliseconds;
using namespace testing;
using Names = std::vector<std::string>;
using Row = DentryTable::Row;

constexpr uint64_t kDirectory = 7;
const DentryTable::Clock::time_point kStart = DentryTable::Clock::time_point{} + milliseconds(1);
const std::vector<Row> kRows = {{"a", 101, 10}, {"b", 102, 20}, {"c", 103, 30}, {"d", 104, 40}};

std::span<const Row> rows(size_t from, size_t to) {
  return std::span(kRows).subspan(from, to - from);
}

class Listing : public ::testing::Test {
 protected:
  Listing() {
    table_.believe(kStart + milliseconds(100));
    table_.lease(kDirectory, kStart);
  }
  bool put(size_t from, size_t to, bool end, uint64_t asked) {
    const uint64_t behind = from == 0 ? 0 : kRows[from - 1].cookie;
    return table_.list(kDirectory, {behind, rows(from, to), end, asked}, kStart);
  }
  bool put_all() { return put(0, 4, true, table_.changes()); }
  // Those behind the cookie, "?" when that is not known; at most so many.
  Names give(uint64_t behind = 0, size_t room = 9, DentryTable::Clock::time_point now = kStart) {
    Names given;
    bool done = false;
    const bool is_known = table_.give(
        kDirectory, behind, now,
        [&](const Row& row, std::chrono::nanoseconds) {
          if (row.ino == unknown_) return DentryTable::Given::kUnknown;
          if (given.size() == room) return DentryTable::Given::kFull;
          given.emplace_back(row.name);
          return DentryTable::Given::kTaken;
        },
        [&] { done = true; });
    EXPECT_EQ(is_known, done);
    return is_known ? given : Names{"?"};
  }
  // A change by lanes, which only a delegated directory lets them make.
  bool create(std::string_view name) {
    table_.delegate(kDirectory);
    return table_.create(kDirectory, name, kStart, [](auto) { return uint64_t{200}; });
  }
  bool remove(std::string_view name) {
    table_.delegate(kDirectory);
    return table_.remove(kDirectory, name, kStart, [](uint64_t) { return true; });
  }

  DentryTable table_;
  uint64_t unknown_ = 0;
};

TEST_F(Listing, IsGivenByCookies) {
  EXPECT_EQ(give(), Names{"?"});
  ASSERT_TRUE(put_all());
  EXPECT_EQ(give(), (Names{"a", "b", "c", "d"}));
  EXPECT_EQ(give(20), (Names{"c", "d"}));
  EXPECT_EQ(give(25), (Names{"c", "d"}));
  EXPECT_EQ(give(0, 2), (Names{"a", "b"}));
  EXPECT_EQ(give(40), Names{}) << "there are no more, which is known";
}

TEST_F(Listing, OfAnEmptyDirectoryIsEmpty) {
  ASSERT_TRUE(put(0, 0, true, 0));
  EXPECT_EQ(give(), Names{});
}

TEST_F(Listing, GrowsPageByPage) {
  ASSERT_TRUE(put(0, 2, false, 0));
  EXPECT_EQ(give(), (Names{"a", "b"}));
  EXPECT_EQ(give(20), Names{"?"}) << "more may follow";
  ASSERT_TRUE(put(2, 4, true, 0));
  EXPECT_EQ(give(10), (Names{"b", "c", "d"}));
}

TEST_F(Listing, MayBeginAnywhere) {
  ASSERT_TRUE(put(2, 4, true, 0));
  EXPECT_EQ(give(), Names{"?"});
  EXPECT_EQ(give(10), Names{"?"});
  EXPECT_EQ(give(20), (Names{"c", "d"}));
}

TEST_F(Listing, EndsBeforeWhatMayNotBeTold) {
  ASSERT_TRUE(put_all());
  unknown_ = 103;
  EXPECT_EQ(give(), (Names{"a", "b"}));
  EXPECT_EQ(give(20), Names{"?"});
  EXPECT_EQ(give(30), Names{"d"});
  table_.unsure(kDirectory, "e");
  EXPECT_EQ(give(30), Names{"?"}) << "a name may have come";
}

TEST_F(Listing, PassesOverWhatLanesTookAway) {
  ASSERT_TRUE(put_all());
  ASSERT_TRUE(remove("b"));
  EXPECT_EQ(give(), (Names{"a", "c", "d"}));
  ASSERT_TRUE(remove("d"));
  EXPECT_EQ(give(30), Names{});
}

TEST_F(Listing, PassesOverWhatLanesTookAwayOfADirectoryWhoseNamesAreAllKnown) {
  table_.complete(kDirectory, {});
  ASSERT_TRUE(create("a"));
  ASSERT_TRUE(table_.list(kDirectory, {0, std::vector<Row>{{"a", 200, 10}}, true, table_.changes()},
                          kStart));
  ASSERT_TRUE(remove("a"));
  EXPECT_EQ(give(), Names{});
}

TEST_F(Listing, EndsWithANameThatComes) {
  ASSERT_TRUE(put_all());
  table_.put(kDirectory, "new", 0, kStart);
  EXPECT_EQ(give().size(), 4u);
  ASSERT_TRUE(create("new"));
  EXPECT_EQ(give(), Names{"?"});
  ASSERT_TRUE(put_all());
  ASSERT_TRUE(
      table_.rename(kDirectory, "a", "new", kStart, [](uint64_t, uint64_t) { return true; }));
  EXPECT_EQ(give(), Names{"?"});
  ASSERT_FALSE(put_all()) << "it says otherwise than what lanes did";
}

TEST_F(Listing, WhatWasAskedBeforeAChangeIsNotTaken) {
  const uint64_t asked = table_.changes();
  table_.unsure(kDirectory, "new");
  EXPECT_FALSE(put(0, 4, true, asked));
  ASSERT_TRUE(put_all());
  EXPECT_EQ(give().size(), 4u);
  table_.put(kDirectory, "new", 200, kStart);
  EXPECT_EQ(give(), Names{"?"}) << "the change came to something that the page does not have";
}

TEST_F(Listing, ARecallEndsItAndNamesWhatWasGiven) {
  ASSERT_TRUE(put_all());
  EXPECT_EQ(give(0, 2).size(), 2u);
  auto cached = table_.drop(kDirectory, kStart).cached;
  std::ranges::sort(cached);
  EXPECT_EQ(cached, (Names{"a", "b"}));
  EXPECT_EQ(give(), Names{"?"});
  table_.lease(kDirectory, kStart);
  EXPECT_FALSE(put_all()) << "others change it: the kernel is to believe nothing";
}

TEST_F(Listing, LeasesThatEndEndIt) {
  ASSERT_TRUE(put_all());
  EXPECT_EQ(give(0, 9, kStart + milliseconds(100)), Names{"?"});
  table_.believe(kStart + milliseconds(200));
  EXPECT_EQ(give(0, 9, kStart + milliseconds(100)).size(), 4u);
}

// ---- READDIRPLUS

std::array<std::byte, AttributeTable::kRecordSize> record_of(uint64_t ino, uint32_t mode,
                                                             uint64_t parent = 0) {
  std::array<std::byte, AttributeTable::kRecordSize> made{};
  record::set_field(std::span<std::byte>(made), record::kIno, ino);
  record::set_field(std::span<std::byte>(made), record::kMode, mode);
  record::set_field(std::span<std::byte>(made), record::kParent, parent);
  return made;
}

struct Seen {
  std::string name;
  uint64_t ino, cookie, nodeid, entry_valid;
};

std::vector<Seen> parse(const Bytes& reply) {
  std::vector<Seen> seen;
  const auto bytes = std::span(reply).subspan(sizeof(fuse_out_header));
  for (size_t at = 0; at < bytes.size();) {
    fuse_direntplus head{};
    std::memcpy(&head, bytes.subspan(at, FUSE_NAME_OFFSET_DIRENTPLUS).data(),
                FUSE_NAME_OFFSET_DIRENTPLUS);
    const auto* name =
        reinterpret_cast<const char*>(bytes.data()) + at + FUSE_NAME_OFFSET_DIRENTPLUS;
    seen.push_back({{name, head.dirent.namelen},
                    head.dirent.ino,
                    head.dirent.off,
                    head.entry_out.nodeid,
                    head.entry_out.entry_valid});
    at += FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET_DIRENTPLUS + size_t{head.dirent.namelen});
  }
  return seen;
}

class ReaddirTest : public NamesTest {
 protected:
  void know() {
    const auto now = DentryTable::Clock::now();
    names_.attributes().believe(now + std::chrono::seconds(30));
    names_.dentries().believe(now + std::chrono::seconds(30));
    names_.dentries().lease(kRootIno, now);
    names_.attributes().put(record_of(kRootIno, S_IFDIR | 0755, 0), milliseconds(0), now, true);
    for (const Row& row : kRows) {
      names_.attributes().put(record_of(row.ino, S_IFREG | 0644), milliseconds(0), now, true);
    }
    ASSERT_TRUE(names_.dentries().list(kRootIno, {0, kRows, true, 0}, now));
  }
  std::vector<Seen> read(uint64_t offset, uint32_t size = 4096) {
    fuse_read_in in{};
    in.offset = offset;
    in.size = size;
    return parse(ask(0, request(FUSE_READDIRPLUS, {18, FUSE_ROOT_ID, 1}, in)));
  }
};

TEST_F(ReaddirTest, LanesAnswerWhatIsKnown) {
  start();
  know();
  const auto seen = read(0);
  ASSERT_EQ(seen.size(), 6u);
  EXPECT_EQ(seen[0].name, ".");
  EXPECT_EQ(seen[0].ino, uint64_t{FUSE_ROOT_ID});
  EXPECT_EQ(seen[0].nodeid, 0u);
  EXPECT_EQ(seen[1].name, "..");
  EXPECT_EQ(seen[2].name, "a");
  EXPECT_EQ(seen[2].ino, 101u);
  EXPECT_EQ(seen[2].nodeid, 101u);
  EXPECT_GE(seen[2].entry_valid, 29u);
  EXPECT_EQ(seen[5].cookie, 40u);
  EXPECT_EQ(read(Lister::kSelfCookie).size(), 5u);
  EXPECT_EQ(read(Lister::kParentCookie).size(), 4u);
  EXPECT_EQ(read(30).size(), 1u);
  EXPECT_EQ(read(40).size(), 0u);
  EXPECT_EQ(read(0, 1024).size(), 6u);
}

TEST_F(ReaddirTest, ASmallBufferIsFilledAndTheRestComesNext) {
  start();
  const auto now = DentryTable::Clock::now();
  know();
  std::vector<std::string> names;
  for (int number = 0; number < 100; ++number) names.push_back("name" + std::to_string(number));
  std::vector<Row> many;
  for (const auto& name : names) {
    many.push_back({name, 1000 + many.size(), 10 * (many.size() + 1)});
    names_.attributes().put(record_of(many.back().ino, S_IFREG | 0644), milliseconds(0), now, true);
  }
  ASSERT_TRUE(names_.dentries().list(kRootIno, {0, many, true, 0}, now));
  size_t count = 0;
  uint64_t offset = Lister::kParentCookie;
  for (auto seen = read(offset); !seen.empty(); seen = read(offset)) {
    for (const Seen& one : seen) EXPECT_EQ(one.name, names[count++]);
    offset = seen.back().cookie;
  }
  EXPECT_EQ(count, names.size());
}

TEST_F(ReaddirTest, PythonIsAskedForWhatMayNotBeTold) {
  start();
  know();
  names_.attributes().drop(103);
  EXPECT_EQ(read(0).size(), 4u) << "what comes before it";
  fuse_read_in in{};
  in.offset = 20;
  in.size = 4096;
  ASSERT_TRUE(
      testing::send(lanes_[0].ours.get(), request(FUSE_READDIRPLUS, {22, FUSE_ROOT_ID, 1}, in)));
  EXPECT_EQ(observer_.next(), "call 44 1000 40 0");
  EXPECT_FALSE(names_.list(kRootIno, 20, 4096, [](auto) {}));
  EXPECT_TRUE(session_.answer(observer_.slot(), 0, {}));
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).unique, 22u);
}

}  // namespace
}  // namespace braidfs::names
