// Files that lanes make, and names that they take away or change, in a delegated directory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <future>

#include "names_fixture.h"

namespace braidfs::names {
namespace {

using testing::at;
using testing::Bytes;
using testing::lookup;
using testing::NamesTest;
using testing::out_header;
using testing::receive;
using testing::request;

// A directory under an exclusive lease, empty, and slots for two files.
class BirthTest : public NamesTest {
 protected:
  static constexpr uint64_t kFolder = 70;

  void SetUp() override {
    start();
    const auto now = DentryTable::Clock::now();
    names_.dentries().believe(now + std::chrono::hours(1));
    names_.attributes().believe(now + std::chrono::hours(1));
    put_folder(S_IFDIR | 0755);
    names_.dentries().lease(kFolder, now);
    names_.dentries().complete(kFolder, now);
    EXPECT_TRUE(names_.dentries().delegate(kFolder));
    EXPECT_TRUE(names_.journal().slots_put(0, {{501, "layout", "key"}, {502, "layout", "key"}}));
  }

  void put_folder(uint32_t mode, uint32_t flags = 0, uint32_t xattr_count = 0) {
    record::Record folder{};
    record::set_field(folder, record::kIno, kFolder);
    record::set_field(folder, record::kMode, mode);
    record::set_field(folder, record::kFlags, flags);
    record::set_field(folder, record::kXattrCount, xattr_count);
    names_.attributes().put(folder, std::chrono::milliseconds(0), DentryTable::Clock::now(), true);
  }

  static Bytes create(uint64_t unique, std::string name, uint32_t mode = S_IFREG | 0666,
                      uint32_t flags = O_WRONLY | O_CREAT) {
    fuse_create_in in{};
    in.flags = flags;
    in.mode = mode;
    in.umask = 022;
    name.push_back('\0');
    return request(FUSE_CREATE, {unique, kFolder}, in, name);
  }

  size_t lease_drop(uint64_t ino, uint32_t facets) {
    return names_.drop_leases(0, std::array{LostLease{ino}}, facets);
  }

  bool goes_to_python(const Bytes& bytes) {
    return at<fuse_in_header>(upcall(0, bytes), 0).opcode == static_cast<uint32_t>(FUSE_CREATE);
  }
};

// FS_IOC_SETFLAGS is answered when the kernel no longer believes its attributes: a notification
// that comes later would void the answer to the next GETATTR.
TEST_F(BirthTest, AMarkOfNoFacetWaitsForAttributes) {
  std::promise<void> taken;
  std::vector<fuse::Notification> attributes{fuse::Notification::of_inode(kFolder, -1, 0)};
  attributes.back().then = [&taken] { taken.get_future().wait_for(std::chrono::seconds(20)); };
  session_.notify(std::move(attributes));
  names_.drop_leases(7, std::array{LostLease{kFolder}}, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(observer_.last_notified(), 0u);
  taken.set_value();
  for (int wait = 0; wait < 5000 && observer_.last_notified() == 0; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(observer_.last_notified(), 7u);
}

TEST_F(BirthTest, ANewFileIsMadeHereAndToldOfOnce) {
  const Bytes reply = ask(0, create(6, "new"));
  const auto entry = at<fuse_entry_out>(reply, sizeof(fuse_out_header));
  EXPECT_EQ(entry.nodeid, 501u);
  EXPECT_EQ(entry.attr.mode, static_cast<uint32_t>(S_IFREG | 0644));
  EXPECT_EQ(entry.attr.uid, 1000u);
  EXPECT_EQ(entry.attr.gid, 100u);
  EXPECT_GT(entry.entry_valid, 3000u);
  EXPECT_EQ(entry.attr_valid, entry.entry_valid);
  const auto open = at<fuse_open_out>(reply, sizeof(fuse_out_header) + sizeof(fuse_entry_out));
  EXPECT_EQ(open.fh, ChangeJournal::kFirstHandle);
  EXPECT_EQ(observer_.next(), "births");
  const auto changes = names_.journal().take();
  ASSERT_EQ(changes.size(), 1u);
  const Birth birth = std::get<Birth>(changes[0]);
  EXPECT_EQ(birth.name, "new");
  EXPECT_EQ(birth.parent, kFolder);
  EXPECT_EQ(birth.mode, 0644u);
  EXPECT_TRUE(names_.journal().take().empty());
  EXPECT_EQ(at<fuse_entry_out>(ask(1, lookup({8, kFolder}, "new")), sizeof(fuse_out_header)).nodeid,
            501u);
}

TEST_F(BirthTest, FilesOfThoseWhoHaveQuotasAreForPython) {
  names_.journal().refuse({7, 1000}, {});
  EXPECT_TRUE(goes_to_python(create(6, "new")));
  names_.journal().refuse({}, {500, 100});
  EXPECT_TRUE(goes_to_python(create(8, "new")));
  EXPECT_EQ(names_.journal().slots(0), 2u);
  names_.journal().refuse({7}, {500});
  EXPECT_EQ(at<fuse_entry_out>(ask(0, create(10, "new")), sizeof(fuse_out_header)).nodeid, 501u);
}

TEST_F(BirthTest, FilesBeyondAShareAreForPython) {
  names_.journal().share(kFolder, 1, 1 << 20);
  EXPECT_EQ(at<fuse_entry_out>(ask(0, create(6, "new")), sizeof(fuse_out_header)).nodeid, 501u);
  EXPECT_TRUE(goes_to_python(create(8, "newer")));
  EXPECT_EQ(names_.journal().slots(0), 1u);
}

TEST_F(BirthTest, TheDirectorysTimesFollow) {
  ask(0, create(6, "new"));
  const int64_t time_ns = std::get<Birth>(names_.journal().take().at(0)).time_ns;
  const Bytes reply = ask(0, request(FUSE_GETATTR, {8, kFolder}, fuse_getattr_in{}));
  const auto attr = at<fuse_attr_out>(reply, sizeof(fuse_out_header)).attr;
  EXPECT_EQ(static_cast<int64_t>(attr.mtime) * 1'000'000'000 + attr.mtimensec, time_ns);
  EXPECT_EQ(attr.ctime, attr.mtime);
}

TEST_F(BirthTest, WithoutSlotsItIsPythons) {
  ask(0, create(6, "one"));
  ask(1, create(8, "two"));
  EXPECT_TRUE(goes_to_python(create(10, "three")));
}

TEST_F(BirthTest, WhatIsThereOrNotKnownIsPythons) {
  names_.dentries().unsure(kFolder, "there");
  names_.dentries().put(kFolder, "there", 9, DentryTable::Clock::now());
  names_.dentries().unsure(kFolder, "unsure");
  EXPECT_TRUE(goes_to_python(create(6, "there")));
  EXPECT_TRUE(goes_to_python(create(8, "unsure")));
}

TEST_F(BirthTest, WhatTakesMoreThanIdsAndUmaskIsPythons) {
  put_folder(S_IFDIR | S_ISGID | 0755);
  EXPECT_TRUE(goes_to_python(create(6, "a")));
  put_folder(S_IFDIR | 0755, 0, 1);
  EXPECT_TRUE(goes_to_python(create(8, "b")));
  put_folder(S_IFDIR | 0755, 16);
  EXPECT_TRUE(goes_to_python(create(10, "c")));
  put_folder(S_IFDIR | 0755);
  EXPECT_TRUE(goes_to_python(create(12, "d", S_IFREG | 0644, O_WRONLY | O_DIRECT)));
  EXPECT_TRUE(goes_to_python(create(14, std::string(256, 'n'))));
  EXPECT_TRUE(goes_to_python(create(16, "..")));
}

TEST_F(BirthTest, ADirectoryWithALayoutHasSlotsOfItsPool) {
  put_folder(S_IFDIR | 0755, 0, 1);
  EXPECT_TRUE(names_.journal().slots_put(9, {{601, "other", "key"}, {602, "other", "key"}}));
  EXPECT_TRUE(goes_to_python(create(6, "before")));
  names_.journal().pool_put(kFolder, 9);
  EXPECT_EQ(at<fuse_entry_out>(ask(0, create(8, "new")), sizeof(fuse_out_header)).nodeid, 601u);
  EXPECT_EQ(std::get<Birth>(names_.journal().take().at(0)).layout, "other");
  names_.journal().pool_put(kFolder, 0);
  EXPECT_TRUE(goes_to_python(create(10, "after")));
  names_.journal().pool_put(kFolder, 8);
  EXPECT_TRUE(goes_to_python(create(12, "without slots")));
  EXPECT_EQ(names_.journal().slots(9), 1u);
  EXPECT_EQ(names_.journal().slots(0), 2u);
}

TEST_F(BirthTest, APoolIsOfADirectoryWithExactlyOneExtendedAttribute) {
  EXPECT_TRUE(names_.journal().slots_put(9, {{601, "other", "key"}}));
  names_.journal().pool_put(kFolder, 9);
  EXPECT_TRUE(goes_to_python(create(6, "none")));
  put_folder(S_IFDIR | 0755, 0, 2);
  EXPECT_TRUE(goes_to_python(create(8, "two")));
  put_folder(S_IFDIR | S_ISGID | 0755, 0, 1);
  EXPECT_TRUE(goes_to_python(create(10, "group")));
  EXPECT_EQ(names_.journal().slots(9), 1u) << "no slot is lost";
  EXPECT_EQ(names_.journal().slots(0), 2u);
}

TEST_F(BirthTest, WithoutRoomItIsPythonsAndTheNameStaysFree) {
  echo_.has_room_ = false;
  EXPECT_TRUE(goes_to_python(create(6, "new")));
  echo_.has_room_ = true;
  const auto entry = at<fuse_entry_out>(ask(0, create(8, "new")), sizeof(fuse_out_header));
  EXPECT_EQ(entry.nodeid, 502u);
}

TEST_F(BirthTest, ADirectoryThatIsGivenBackIsPythons) {
  names_.dentries().undelegate(kFolder);
  EXPECT_TRUE(goes_to_python(create(6, "new")));
  EXPECT_TRUE(names_.dentries().delegate(kFolder));
  lease_drop(kFolder, kLeaseEntries);
  EXPECT_TRUE(goes_to_python(create(8, "new")));
  EXPECT_FALSE(names_.dentries().delegate(kFolder));
}

// The same directory, with a file that is known and not open.
class RemovalTest : public BirthTest {
 protected:
  static constexpr uint64_t kFile = 80;

  void SetUp() override {
    BirthTest::SetUp();
    put_file(S_IFREG | 0644);
    names_.dentries().unsure(kFolder, "file");
    names_.dentries().put(kFolder, "file", kFile, DentryTable::Clock::now());
  }

  void put_file(uint32_t mode, uint32_t nlink = 1, uint32_t flags = 0, uint32_t lease = 1,
                uint64_t ino = kFile) {
    record::Record file{};
    record::set_field(file, record::kIno, ino);
    record::set_field(file, record::kMode, mode);
    record::set_field(file, record::kNlink, nlink);
    record::set_field(file, record::kFlags, flags);
    record::set_field(file, record::kLeaseFlags, lease);
    names_.attributes().put(file, std::chrono::milliseconds(0), DentryTable::Clock::now(), true);
  }

  static Bytes unlink(uint64_t unique, std::string name) {
    name.push_back('\0');
    return request(FUSE_UNLINK, {unique, kFolder}, name);
  }

  bool goes_to_python(const Bytes& bytes) {
    return at<fuse_in_header>(upcall(0, bytes), 0).opcode == at<fuse_in_header>(bytes, 0).opcode;
  }
  std::vector<Removal> removals() {
    std::vector<Removal> taken;
    for (const Change& change : names_.journal().take()) taken.push_back(std::get<Removal>(change));
    return taken;
  }
};

TEST_F(RemovalTest, ANameGoesHereAndIsToldOfOnce) {
  EXPECT_EQ(out_header(ask(0, unlink(6, "file"))).error, 0);
  EXPECT_EQ(observer_.next(), "births");
  const auto told = removals();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].name, "file");
  EXPECT_EQ(told[0].parent, kFolder);
  EXPECT_EQ(told[0].ino, kFile);
  EXPECT_EQ(record::field<uint32_t>(told[0].record, record::kNlink), 0u);
  EXPECT_EQ(record::field<int64_t>(told[0].record, record::kCtime), told[0].time_ns);
  EXPECT_TRUE(removals().empty());
  EXPECT_EQ(out_header(ask(1, lookup({8, kFolder}, "file"))).error, -ENOENT);
  const auto folder =
      at<fuse_attr_out>(ask(0, request(FUSE_GETATTR, {10, kFolder}, fuse_getattr_in{})),
                        sizeof(fuse_out_header))
          .attr;
  EXPECT_EQ(static_cast<int64_t>(folder.mtime) * 1'000'000'000 + folder.mtimensec, told[0].time_ns);
  const auto file = at<fuse_attr_out>(ask(0, request(FUSE_GETATTR, {12, kFile}, fuse_getattr_in{})),
                                      sizeof(fuse_out_header))
                        .attr;
  EXPECT_EQ(file.nlink, 0u);
}

TEST_F(RemovalTest, ABirthThatIsRemovedIsToldOfInOrder) {
  ask(0, create(6, "new"));
  EXPECT_EQ(out_header(ask(1, unlink(8, "new"))).error, 0);
  ask(0, create(10, "new"));
  const auto changes = names_.journal().take();
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(std::get<Birth>(changes[0]).ino, 501u);
  EXPECT_EQ(std::get<Removal>(changes[1]).ino, 501u);
  EXPECT_EQ(std::get<Birth>(changes[2]).ino, 502u);
}

TEST_F(RemovalTest, WhatIsNotCertainOrNotPlainIsPythons) {
  EXPECT_TRUE(goes_to_python(unlink(6, "unknown")));
  names_.dentries().unsure(kFolder, "file");
  EXPECT_TRUE(goes_to_python(unlink(8, "file")));
  names_.dentries().put(kFolder, "file", kFile, DentryTable::Clock::now());
  put_file(S_IFREG | 0644, 2);
  EXPECT_TRUE(goes_to_python(unlink(10, "file")));
  put_file(S_IFREG | 0644, 1, 16);
  EXPECT_TRUE(goes_to_python(unlink(12, "file")));
  put_file(S_IFDIR | 0755);
  EXPECT_TRUE(goes_to_python(unlink(14, "file")));
  put_file(S_IFREG | 0644, 1, 0, 1 | kOpenElsewhere);
  EXPECT_TRUE(goes_to_python(unlink(16, "file")));
  put_file(S_IFREG | 0644);
  put_folder(S_IFDIR | 0755, 32);
  EXPECT_TRUE(goes_to_python(unlink(18, "file")));
  put_folder(S_IFDIR | S_ISGID | 0755, 0, 3);
  EXPECT_EQ(out_header(ask(0, unlink(20, "file"))).error, 0);
}

TEST_F(RemovalTest, WhatIsOpenHereIsPythons) {
  echo_.busy_ = kFile;
  EXPECT_TRUE(goes_to_python(unlink(6, "file")));
  EXPECT_TRUE(removals().empty());
}

TEST_F(RemovalTest, AnInodeWithoutALeaseIsPythons) {
  lease_drop(kFile, kLeaseMeta);
  EXPECT_TRUE(goes_to_python(unlink(6, "file")));
}

TEST_F(RemovalTest, ADirectoryThatIsGivenBackIsPythons) {
  names_.dentries().undelegate(kFolder);
  EXPECT_TRUE(goes_to_python(unlink(6, "file")));
}

TEST_F(RemovalTest, WhatWasAskedBeforeDoesNotBringANameBack) {
  ask(0, unlink(6, "file"));
  EXPECT_FALSE(names_.dentries().put(kFolder, "file", kFile, DentryTable::Clock::now()));
  EXPECT_EQ(out_header(ask(0, lookup({8, kFolder}, "file"))).error, -ENOENT);
  ask(0, create(10, "file"));
  EXPECT_FALSE(names_.dentries().put(kFolder, "file", 0, DentryTable::Clock::now()));
  EXPECT_EQ(
      at<fuse_entry_out>(ask(0, lookup({12, kFolder}, "file")), sizeof(fuse_out_header)).nodeid,
      501u);
  names_.dentries().unsure(kFolder, "file");
  EXPECT_TRUE(names_.dentries().put(kFolder, "file", 0, DentryTable::Clock::now()));
}

TEST_F(RemovalTest, TooManyThatAreNotAnsweredArePythons) {
  for (size_t count = 0; count < ChangeJournal::kUnreportedMax; ++count) {
    EXPECT_TRUE(names_.journal().take_room());
  }
  EXPECT_TRUE(goes_to_python(unlink(6, "file")));
  names_.journal().changes_reported(1);
  EXPECT_EQ(out_header(ask(0, unlink(8, "file"))).error, 0);
}

TEST_F(RemovalTest, ANameThatWentIsNotRecalledByName) {
  ask(0, create(6, "new"));
  EXPECT_EQ(lease_drop(kFolder, kLeaseEntries), 2u);
  EXPECT_EQ(names_.dentries().names(), 0u);
}

// The same directory, with two files that are known and not open; whatever else is asked for in it
// is known not to be there.
class MoveTest : public RemovalTest {
 protected:
  static constexpr uint64_t kOther = 81;

  void SetUp() override {
    RemovalTest::SetUp();
    put_file(S_IFREG | 0644, 1, 0, 1, kOther);
    names_.dentries().unsure(kFolder, "other");
    names_.dentries().put(kFolder, "other", kOther, DentryTable::Clock::now());
  }

  static Bytes rename(uint64_t unique, std::string name, const std::string& new_name,
                      uint64_t new_folder = kFolder) {
    name.push_back('\0');
    return request(FUSE_RENAME, {unique, kFolder}, fuse_rename_in{new_folder},
                   name + new_name + '\0');
  }
  static Bytes rename2(uint64_t unique, std::string name, const std::string& new_name,
                       uint32_t flags) {
    name.push_back('\0');
    return request(FUSE_RENAME2, {unique, kFolder}, fuse_rename2_in{kFolder, flags, 0},
                   name + new_name + '\0');
  }
  uint64_t found(uint64_t unique, const std::string& name) {
    const Bytes answer = ask(0, lookup({unique, kFolder}, name));
    if (out_header(answer).error != 0) return 0;
    return at<fuse_entry_out>(answer, sizeof(fuse_out_header)).nodeid;
  }
  std::vector<Move> moves() {
    std::vector<Move> taken;
    for (const Change& change : names_.journal().take()) taken.push_back(std::get<Move>(change));
    return taken;
  }
};

TEST_F(MoveTest, ANameIsAnotherOneAndIsToldOfOnce) {
  EXPECT_EQ(out_header(ask(0, rename(6, "file", "new"))).error, 0);
  EXPECT_EQ(observer_.next(), "births");
  const auto told = moves();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].name, "file");
  EXPECT_EQ(told[0].new_name, "new");
  EXPECT_EQ(told[0].parent, kFolder);
  EXPECT_EQ(told[0].ino, kFile);
  EXPECT_EQ(told[0].replaced, 0u);
  EXPECT_EQ(record::field<uint32_t>(told[0].record, record::kNlink), 1u);
  EXPECT_EQ(record::field<int64_t>(told[0].record, record::kCtime), told[0].time_ns);
  EXPECT_EQ(record::field<uint64_t>(told[0].record, record::kChangeVersion), 1u);
  EXPECT_TRUE(moves().empty());
  EXPECT_EQ(found(8, "file"), 0u);
  EXPECT_EQ(found(10, "new"), kFile);
  const auto folder =
      at<fuse_attr_out>(ask(0, request(FUSE_GETATTR, {12, kFolder}, fuse_getattr_in{})),
                        sizeof(fuse_out_header))
          .attr;
  EXPECT_EQ(static_cast<int64_t>(folder.mtime) * 1'000'000'000 + folder.mtimensec, told[0].time_ns);
}

TEST_F(MoveTest, WhatHadTheNewNameIsGone) {
  EXPECT_EQ(out_header(ask(0, rename(6, "file", "other"))).error, 0);
  const auto told = moves();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].replaced, kOther);
  EXPECT_EQ(record::field<uint32_t>(told[0].replaced_record, record::kNlink), 0u);
  EXPECT_EQ(found(8, "other"), kFile);
  EXPECT_EQ(found(10, "file"), 0u);
  const auto other =
      at<fuse_attr_out>(ask(0, request(FUSE_GETATTR, {12, kOther}, fuse_getattr_in{})),
                        sizeof(fuse_out_header))
          .attr;
  EXPECT_EQ(other.nlink, 0u);
}

TEST_F(MoveTest, NoreplaceReplacesNothing) {
  EXPECT_TRUE(goes_to_python(rename2(6, "file", "other", 1)));
  EXPECT_EQ(out_header(ask(0, rename2(8, "file", "new", 1))).error, 0);
  EXPECT_TRUE(goes_to_python(rename2(10, "new", "other", 2)));  // RENAME_EXCHANGE
  EXPECT_EQ(out_header(ask(0, rename2(12, "new", "other", 0))).error, 0);
}

TEST_F(MoveTest, OneAfterTheOther) {
  ask(0, create(6, "new"));
  EXPECT_EQ(out_header(ask(0, rename(8, "new", "file"))).error, 0);
  EXPECT_EQ(out_header(ask(0, rename(10, "file", "new"))).error, 0);
  ask(0, create(12, "file"));
  const auto changes = names_.journal().take();
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(std::get<Move>(changes[1]).replaced, kFile);
  EXPECT_EQ(std::get<Move>(changes[2]).ino, 501u);
  EXPECT_EQ(std::get<Birth>(changes[3]).ino, 502u);
  EXPECT_EQ(found(14, "new"), 501u);
  EXPECT_EQ(found(16, "file"), 502u);
}

TEST_F(MoveTest, WhatIsNotCertainOrNotPlainIsPythons) {
  EXPECT_TRUE(goes_to_python(rename(6, "unknown", "new")));
  EXPECT_TRUE(goes_to_python(rename(8, "file", "new", 99)));
  names_.dentries().unsure(kFolder, "other");
  EXPECT_TRUE(goes_to_python(rename(10, "file", "other")));
  EXPECT_TRUE(goes_to_python(rename(12, "other", "file")));
  names_.dentries().put(kFolder, "other", kOther, DentryTable::Clock::now());
  put_file(S_IFREG | 0644, 1, 16);
  EXPECT_TRUE(goes_to_python(rename(14, "file", "new")));
  EXPECT_TRUE(goes_to_python(rename(16, "other", "file")));
  put_file(S_IFDIR | 0755, 2);
  EXPECT_TRUE(goes_to_python(rename(18, "file", "new")));
  EXPECT_TRUE(goes_to_python(rename(20, "other", "file")));
  put_file(S_IFREG | 0644, 2, 0, 1 | kOpenElsewhere);
  EXPECT_TRUE(goes_to_python(rename(22, "other", "file")));
  EXPECT_EQ(found(24, "file"), kFile);
  EXPECT_EQ(out_header(ask(0, rename(26, "file", "new"))).error, 0);  // it stays
}

TEST_F(MoveTest, TwoNamesOfOneFileArePythons) {
  names_.dentries().unsure(kFolder, "link");
  names_.dentries().put(kFolder, "link", kFile, DentryTable::Clock::now());
  put_file(S_IFREG | 0644, 2);
  EXPECT_TRUE(goes_to_python(rename(6, "file", "link")));
  EXPECT_TRUE(moves().empty());
}

TEST_F(MoveTest, OnlyWhatIsReplacedMustNotBeOpen) {
  echo_.busy_ = kFile;
  EXPECT_TRUE(goes_to_python(rename(6, "other", "file")));
  EXPECT_EQ(out_header(ask(0, rename(8, "file", "new"))).error, 0);
}

TEST_F(MoveTest, WhatWasRefusedChangesNothing) {
  for (size_t count = 0; count < ChangeJournal::kUnreportedMax; ++count) {
    EXPECT_TRUE(names_.journal().take_room());
  }
  EXPECT_TRUE(goes_to_python(rename(6, "file", "new")));
  EXPECT_EQ(found(8, "file"), kFile);
  EXPECT_EQ(found(10, "new"), 0u);
  names_.journal().changes_reported(1);
  EXPECT_EQ(out_header(ask(0, rename(12, "file", "new"))).error, 0);
}

TEST_F(MoveTest, TheKernelsDentryGoesAlong) {
  EXPECT_EQ(found(6, "file"), kFile);  // told
  EXPECT_EQ(out_header(ask(0, rename(8, "file", "new"))).error, 0);
  const auto dropped = names_.dentries().drop(kFolder, DentryTable::Clock::now());
  EXPECT_NE(std::find(dropped.cached.begin(), dropped.cached.end(), "new"), dropped.cached.end());
  EXPECT_EQ(std::find(dropped.cached.begin(), dropped.cached.end(), "file"), dropped.cached.end());
}

// Attributes of a file that nobody has open.
class SettingTest : public MoveTest {
 protected:
  static Bytes chmod(uint64_t unique, uint32_t mode, uint64_t ino = kFile) {
    fuse_setattr_in in{};
    in.valid = FATTR_MODE;
    in.mode = mode;
    return request(FUSE_SETATTR, {unique, ino}, in);
  }
  uint32_t mode_after(const Bytes& asked) {
    return at<fuse_attr_out>(ask(0, asked), sizeof(fuse_out_header)).attr.mode & 07777;
  }
  size_t settings() {
    size_t count = 0;
    for (const Change& change : names_.journal().take())
      count += std::holds_alternative<Setting>(change);
    return count;
  }
};

TEST_F(SettingTest, OfAFileWithANameInADelegatedDirectoryAreSetHere) {
  EXPECT_EQ(mode_after(chmod(6, 0600)), 0600u);
  const auto changes = names_.journal().take();
  ASSERT_EQ(changes.size(), 1u);
  const auto& told = std::get<Setting>(changes[0]);
  EXPECT_EQ(told.ino, kFile);
  EXPECT_EQ(told.mode, 0600u);
  EXPECT_EQ(told.written_ns, 0);
  EXPECT_EQ(record::field<uint32_t>(told.record, record::kMode), uint32_t{S_IFREG | 0600});
  EXPECT_EQ(mode_after(request(FUSE_GETATTR, {8, kFile}, fuse_getattr_in{})), 0600u);
}

TEST_F(SettingTest, WhatIsOpenOrNotPlainIsPythons) {
  echo_.busy_ = kFile;
  EXPECT_TRUE(goes_to_python(chmod(6, 0600)));
  EXPECT_EQ(mode_after(chmod(8, 0600, kOther)), 0600u);
  echo_.busy_ = 0;
  put_file(S_IFREG | 0644, 1, 0, 1 | kOpenElsewhere);
  EXPECT_TRUE(goes_to_python(chmod(10, 0600)));
  put_file(S_IFREG | 0644, 2);
  EXPECT_TRUE(goes_to_python(chmod(12, 0600)));
  put_file(S_IFREG | 0644, 1, 16);
  EXPECT_TRUE(goes_to_python(chmod(14, 0600)));
  EXPECT_EQ(settings(), 1u);
}

TEST_F(SettingTest, OnlyWhileItsNameIsCertainInADelegatedDirectory) {
  names_.dentries().unsure(kFolder, "file");
  EXPECT_TRUE(goes_to_python(chmod(6, 0600)));
  names_.dentries().put(kFolder, "file", kFile, DentryTable::Clock::now());
  EXPECT_EQ(mode_after(chmod(8, 0600)), 0600u);
  EXPECT_EQ(out_header(ask(0, rename(10, "file", "new"))).error, 0);
  EXPECT_EQ(mode_after(chmod(12, 0640)), 0640u);
  ask(0, create(14, "file"));
  EXPECT_EQ(mode_after(chmod(16, 0600, 501)), 0600u);
  names_.dentries().undelegate(kFolder);
  EXPECT_EQ(names_.dentries().homes(), 0u);
  // Another directory is: Python looks for changes still.
  names_.dentries().lease(99, DentryTable::Clock::now());
  EXPECT_TRUE(names_.dentries().delegate(99));
  EXPECT_TRUE(goes_to_python(chmod(18, 0600)));
}

TEST_F(SettingTest, OwnersUntilADirectoryIsTakenBack) {
  const auto now = DentryTable::Clock::now();
  names_.dentries().owners_told();
  names_.dentries().lease(99, now);
  EXPECT_TRUE(names_.dentries().delegate(99));
  names_.dentries().drop(99, now);
  EXPECT_TRUE(names_.dentries().owners_known());
  names_.dentries().undelegate(98);  // whichever it is
  EXPECT_FALSE(names_.dentries().owners_known());
  names_.dentries().owners_told();
  EXPECT_TRUE(names_.dentries().owners_known());
}

TEST_F(SettingTest, HomesComeAndGoWithNames) {
  EXPECT_EQ(names_.dentries().homes(), 2u);
  EXPECT_EQ(out_header(ask(0, rename(6, "file", "other"))).error, 0);
  EXPECT_EQ(found(8, "other"), kFile);  // behind the change, which comes behind its answer
  EXPECT_EQ(names_.dentries().homes(), 1u);
  EXPECT_EQ(out_header(ask(0, unlink(10, "other"))).error, 0);
  EXPECT_EQ(found(12, "other"), 0u);
  EXPECT_EQ(names_.dentries().homes(), 0u);
  names_.dentries().undelegate(kFolder);
  names_.dentries().unsure(kFolder, "third");
  names_.dentries().put(kFolder, "third", 82, DentryTable::Clock::now());
  EXPECT_EQ(names_.dentries().homes(), 0u);
  EXPECT_TRUE(names_.dentries().delegate(kFolder));
  EXPECT_EQ(names_.dentries().homes(), 1u);
  names_.dentries().drop(kFolder, DentryTable::Clock::now());
  EXPECT_EQ(names_.dentries().homes(), 0u);
}

}  // namespace
}  // namespace braidfs::names
