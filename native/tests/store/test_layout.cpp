// Maps of pages at the bounds of their levels; and targets of older programs, which knew neither
// maps nor promises.
#include "fixture.h"

namespace braidfs::store::test {
namespace {

const ObjectId kId{7, 0};

void add(std::map<uint32_t, ChildMap>& maps, uint32_t group) {
  const ChildPlace place = child_place(group);
  maps[place.parent].written[place.level][place.index / 64] |= uint64_t{1} << (place.index % 64);
}

TEST(ChildMap, EachGroupStandsInOneMapOfItsAncestors) {
  for (const uint32_t group :
       {1u, 255u, 256u, 257u, 511u, 65535u, 65536u, 65537u, 70000u, kGroupCountMax - 1}) {
    const ChildPlace place = child_place(group);
    ASSERT_LT(place.parent, group);
    const auto ancestors = ancestors_of(group);
    EXPECT_NE(std::find(ancestors.begin(), ancestors.end(), place.parent), ancestors.end())
        << group;
    std::map<uint32_t, ChildMap> maps;
    add(maps, group);
    EXPECT_TRUE(in_map(maps[place.parent].written, place));
    EXPECT_EQ(next_in_map(maps[place.parent], place.parent, group), group);
    EXPECT_EQ(next_in_map(maps[place.parent], place.parent, group + 1), kGroupCountMax);
    cut_map(maps[place.parent], place.parent, group + 1);
    EXPECT_TRUE(in_map(maps[place.parent].written, place));
    cut_map(maps[place.parent], place.parent, group);
    EXPECT_FALSE(in_map(maps[place.parent].written, place));
  }
}

template <typename T>
T read_at(const Bytes& bytes, uint64_t offset) {
  T value;
  bytes.read(offset, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// The log as older programs wrote it: entries have no key and distance, and there is nothing beside
// it.
void make_old_log(Host& host) {
  std::vector<std::string> promises;
  host.for_each_file("wal", [&](const std::string& path, Inode& inode) {
    if (path.ends_with(".synced")) return promises.push_back(path);
    auto header = read_at<SegmentHeader>(inode.now, 0);
    const uint64_t key = segment_key(header.uuid, header.number);
    header.magic = 0x31474f4c44415242;
    header.checksum = 0;
    header.checksum = xxh3(std::as_bytes(std::span(&header, 1)));
    inode.now.write(0, std::as_bytes(std::span(&header, 1)));
    Bytes8 raw(inode.now.size());
    inode.now.read(0, raw);
    EntryView view;
    std::vector<std::byte> encoded;
    for (size_t at = kSegmentHeaderSize; decode_entry(std::span(raw).subspan(at), key, view);
         at += view.length) {
      view.header.distance = 0;
      encode_entry(view.header, view.runs, view.sums, 0, encoded);
      inode.now.write(at, encoded);
    }
  });
  for (const std::string& path : promises) host.forget(path);
}

// Pages without maps, files without marks.
void make_old_objects(Host& host) {
  host.for_each_file("objects", [&](const std::string&, Inode& inode) {
    inode.now.mark = 0;
    for (const uint64_t offset : inode.now.page_offsets()) {
      if (offset % kSlotDistance % kGroupStride != 0) continue;
      auto page = read_at<RecordPage>(inode.now, offset);
      page.flags = 0;
      page.children = {};
      page.log_start = 0;
      seal(page);
      inode.now.write(offset, std::as_bytes(std::span(&page, 1)));
    }
  });
}

TEST(OldTarget, ComesUpWithLogAndPagesOfBefore) {
  for (const bool rebooted : {false, true}) {
    Host host(1);
    auto device = host.boot();
    auto store = open_store(device);
    const Bytes8 first = pattern(1, 3 << 20), second = pattern(2, 8192), third = pattern(3, 100);
    ASSERT_EQ(put(*store, kId, 0, first), Status::kOk);
    ASSERT_EQ(store->sync(kId), Status::kOk);
    ASSERT_EQ(store->checkpoint(), Status::kOk);
    ASSERT_EQ(put(*store, kId, 4096, second), Status::kOk);
    ASSERT_EQ(put(*store, kId, (2 << 20) + 5, third), Status::kOk);
    ASSERT_EQ(store->sync(kId), Status::kOk);
    ASSERT_EQ(put(*store, {8, 0}, 0, third), Status::kOk);
    ASSERT_EQ(store->sync({8, 0}), Status::kOk);
    ASSERT_EQ(device->sync_all(), 0);
    store.reset();
    host.kill();
    make_old_log(host);
    make_old_objects(host);
    Bytes8 wanted = first;
    std::copy(second.begin(), second.end(), wanted.begin() + 4096);
    std::copy(third.begin(), third.end(), wanted.begin() + (2 << 20) + 5);
    for (int run = 0; run < 3; ++run) {
      store = open_store(host.boot(rebooted && run == 0));
      EXPECT_EQ(get(*store, kId, 0, 3 << 20).bytes, wanted);
      EXPECT_EQ(get(*store, {8, 0}, 0, 4096).bytes, third);
      EXPECT_EQ(put(*store, kId, 1 << 20, second), Status::kOk);
      EXPECT_EQ(store->sync(kId), Status::kOk);
      std::copy(second.begin(), second.end(), wanted.begin() + (1 << 20));
      EXPECT_EQ(store->stop(), Status::kOk);
      store.reset();
      host.kill();
    }
  }
}

}  // namespace
}  // namespace braidfs::store::test
