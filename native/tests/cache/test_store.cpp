// A cache directory on a real disk: records are found after it was opened again, and damage to its
// files only costs records.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cache/cache.h"
#include "cache_files.h"

namespace braidfs::cache {
namespace {

namespace fs = std::filesystem;

struct Memory {
  explicit Memory(size_t wanted) : length(padded(static_cast<uint32_t>(wanted))) {
    bytes = static_cast<std::byte*>(std::aligned_alloc(kBlock, length));
  }
  ~Memory() { std::free(bytes); }
  size_t length;
  std::byte* bytes;
};

Part part_of(uint64_t seed, uint32_t begin, uint32_t length) {
  const auto memory = std::make_shared<Memory>(length);
  for (uint32_t at = 0; at < length; ++at) memory->bytes[at] = byte_at(seed, begin + at);
  return {begin, length, {memory->bytes, memory->length}, memory};
}

Slice slice_of(uint64_t ino, uint32_t length, uint64_t stamp = 5) {
  return {{ino, 0}, stamp, length, {part_of(ino, 0, length)}};
}

class CacheStore : public ::testing::Test {
 protected:
  CacheStore() {
    std::string pattern = (fs::temp_directory_path() / "braid-cache-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    settings_.directory = directory_;
    settings_.bytes_max = StoreSettings::kBytesMin;  // 8 segments of 8 MiB
  }
  ~CacheStore() override { fs::remove_all(directory_); }

  std::unique_ptr<Store> open() {
    auto store = Store::open(settings_, reason_);
    EXPECT_TRUE(store) << reason_;
    return store;
  }
  static bool put(Store& store, const Slice& slice) { return store.put({&slice, 1}) == 1; }
  // Whether the record's bytes are those that were put.
  static bool reads(Store& store, uint64_t ino, uint32_t length, uint64_t stamp = 5) {
    const auto found = store.find({ino, 0}, stamp);
    if (!found || found->length != length) return false;
    Memory memory(record_bytes(length));
    const ssize_t count = ::pread(found->segment->bytes.get(), memory.bytes, memory.length,
                                  static_cast<off_t>(found->offset));
    const auto& head = *reinterpret_cast<const RecordHead*>(memory.bytes);
    const std::span<const std::byte> bytes(memory.bytes + kHeadBytes, length);
    if (count != static_cast<ssize_t>(memory.length) ||
        !is_head_of(head, {ino, 0}, stamp, length) || !are_bytes_of(head, 0, bytes)) {
      return false;
    }
    for (uint32_t at = 0; at < length; ++at) {
      if (bytes[at] != byte_at(ino, at)) return false;
    }
    return true;
  }
  std::vector<fs::path> files(const std::string& suffix) const {
    return files_of(directory_, suffix);
  }

  fs::path directory_;
  StoreSettings settings_;
  std::string reason_;
};

TEST_F(CacheStore, FindsWhatWasPutAlsoWhenOpenedAnew) {
  const std::vector<uint32_t> lengths{1, 4096, 4097, 100'000, kSliceBytes};
  {
    const auto store = open();
    for (size_t at = 0; at < lengths.size(); ++at)
      EXPECT_TRUE(put(*store, slice_of(at + 1, lengths[at])));
    for (size_t at = 0; at < lengths.size(); ++at) EXPECT_TRUE(reads(*store, at + 1, lengths[at]));
  }
  const auto store = open();
  EXPECT_EQ(store->counts().records, lengths.size());
  for (size_t at = 0; at < lengths.size(); ++at) EXPECT_TRUE(reads(*store, at + 1, lengths[at]));
  EXPECT_TRUE(put(*store, slice_of(77, 5000)));  // it continues in the same segment
  EXPECT_TRUE(reads(*store, 77, 5000));
  EXPECT_EQ(files(".seg").size(), 1u);
}

TEST_F(CacheStore, PutsManyAsOneWriteAndMore) {
  constexpr uint64_t kMany = 3 * Store::kRunSlicesMax;
  std::vector<Slice> slices;
  for (uint64_t ino = 1; ino <= kMany; ++ino) {
    const uint32_t length = ino % 5 == 0 ? kSliceBytes : static_cast<uint32_t>(ino) * 100;
    slices.push_back(slice_of(ino, length));
  }
  const auto length_of = [&](uint64_t ino) { return slices[ino - 1].length; };
  {
    const auto store = open();
    EXPECT_TRUE(put(*store, slice_of(7, length_of(7))));  // it is there already, between others
    EXPECT_EQ(store->put(slices), kMany - 1);
    EXPECT_GT(files(".seg").size(), 1u);
    for (uint64_t ino = 1; ino <= kMany; ++ino) EXPECT_TRUE(reads(*store, ino, length_of(ino)));
    EXPECT_EQ(store->put(slices), 0u);
  }
  const auto store = open();
  EXPECT_EQ(store->counts().records, kMany);
  for (uint64_t ino = 1; ino <= kMany; ++ino) EXPECT_TRUE(reads(*store, ino, length_of(ino)));
}

TEST_F(CacheStore, PutsSlicesOfManyPartsTogether) {
  std::vector<Slice> slices;
  for (uint64_t ino = 1; ino <= 7; ++ino) {  // these are more parts than one write takes
    Slice slice{{ino, 0}, 5, kSliceBytes, {}};
    for (uint32_t at = 0; at < kSliceBytes; at += kBlock)
      slice.parts.push_back(part_of(ino, at, kBlock));
    slices.push_back(std::move(slice));
  }
  const auto store = open();
  EXPECT_EQ(store->put(slices), 7u);
  for (uint64_t ino = 1; ino <= 7; ++ino) EXPECT_TRUE(reads(*store, ino, kSliceBytes));
}

TEST_F(CacheStore, PutsNoMoreOfManyThanFit) {
  std::vector<Slice> slices;
  for (uint64_t ino = 1; ino <= 80; ++ino) slices.push_back(slice_of(ino, kSliceBytes));
  const auto store = open();
  const size_t written = store->put(slices);
  EXPECT_EQ(written, 56u);  // there are seven in each of eight segments
  EXPECT_EQ(store->counts().records, written);
  EXPECT_TRUE(reads(*store, 56, kSliceBytes));
  EXPECT_FALSE(store->find({57, 0}, 5));
}

TEST_F(CacheStore, IsOneOwnersAndForNobodyElsesEyes) {
  const auto store = open();
  EXPECT_TRUE(put(*store, slice_of(1, 5000)));
  EXPECT_FALSE(Store::open(settings_, reason_));
  EXPECT_NE(reason_.find("in use by another mount"), std::string::npos) << reason_;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    EXPECT_EQ(entry.status().permissions() & fs::perms::mask,
              fs::perms::owner_read | fs::perms::owner_write)
        << entry.path();
  }
}

TEST_F(CacheStore, ADirectoryThatOthersMayWriteToIsRefused) {
  put(*open(), slice_of(1, 5000));
  for (const auto also : {fs::perms::others_write, fs::perms::group_write}) {
    fs::permissions(directory_, also, fs::perm_options::add);
    EXPECT_FALSE(Store::open(settings_, reason_));
    EXPECT_NE(reason_.find("others may write to it"), std::string::npos) << reason_;
    fs::permissions(directory_, also, fs::perm_options::remove);
  }
  EXPECT_TRUE(reads(*open(), 1, 5000));
}

TEST_F(CacheStore, ADirectoryOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives a directory away";
  ASSERT_EQ(::chown(directory_.c_str(), 65534, 65534), 0);
  EXPECT_FALSE(Store::open(settings_, reason_));
  EXPECT_NE(reason_.find("belongs to another user"), std::string::npos) << reason_;
}

TEST_F(CacheStore, ALinkToADirectoryIsRefused) {
  const fs::path link = directory_.string() + "-link";
  fs::create_directory_symlink(directory_, link);
  settings_.directory = link;
  EXPECT_FALSE(Store::open(settings_, reason_));
  fs::remove(link);
  EXPECT_NE(reason_.find("it is no directory"), std::string::npos) << reason_;
}

TEST_F(CacheStore, AFileThatOthersMayWriteToIsNotBelieved) {
  put(*open(), slice_of(1, 5000));
  for (const auto& entry : fs::directory_iterator(directory_)) {
    const bool is_lock =
        entry.path().filename() == "lock" || entry.path().filename() == "braidfs-cache";
    if (!is_lock) fs::permissions(entry.path(), fs::perms::others_write, fs::perm_options::add);
  }
  EXPECT_FALSE(reads(*open(), 1, 5000));
  fs::permissions(directory_ / "braidfs-cache", fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(Store::open(settings_, reason_));
}

TEST_F(CacheStore, HoldsOneFileSystem) {
  put(*open(), slice_of(1, 5000));
  settings_.cluster[0] = std::byte{1};
  EXPECT_FALSE(Store::open(settings_, reason_));
  EXPECT_NE(reason_.find("another file system"), std::string::npos) << reason_;
  settings_.cluster[0] = std::byte{0};
  EXPECT_TRUE(reads(*open(), 1, 5000));
}

TEST_F(CacheStore, ARecordOfAnotherStampIsForgotten) {
  const auto store = open();
  EXPECT_TRUE(put(*store, slice_of(1, 5000, 5)));
  EXPECT_FALSE(store->find({1, 0}, 6));
  EXPECT_FALSE(store->find({1, 0}, 5));
  EXPECT_TRUE(put(*store, slice_of(1, 6000, 6)));
  EXPECT_TRUE(reads(*store, 1, 6000, 6));
  EXPECT_EQ(store->counts().records, 1u);
}

TEST_F(CacheStore, ChangedBytesAreNoticedAndForgotten) {
  {
    const auto store = open();
    for (uint64_t ino = 1; ino <= 3; ++ino) EXPECT_TRUE(put(*store, slice_of(ino, 5000)));
  }
  overwrite(files(".seg").at(0), record_bytes(5000) + kHeadBytes + 4321, "x");
  const auto store = open();
  EXPECT_TRUE(reads(*store, 1, 5000));
  EXPECT_FALSE(reads(*store, 2, 5000));
  EXPECT_TRUE(reads(*store, 3, 5000));
  store->corrupt({2, 0}, *store->find({2, 0}, 5));
  EXPECT_FALSE(store->find({2, 0}, 5));
  EXPECT_EQ(store->counts().corrupt, 1u);
}

TEST_F(CacheStore, FilesThatAreTornOrGoneCostTheirRecords) {
  {
    const auto store = open();
    for (uint64_t ino = 1; ino <= 30; ++ino) EXPECT_TRUE(put(*store, slice_of(ino, kSliceBytes)));
  }
  auto segments = files(".seg");
  ASSERT_EQ(segments.size(), 5u);  // seven records each
  std::ranges::sort(segments);
  fs::resize_file(segments[0], 100);
  fs::remove(segments[1]);
  overwrite(fs::path(segments[2]).replace_extension(".idx"), 3 * sizeof(IndexEntry), "nonsense");
  fs::remove(fs::path(segments[3]).replace_extension(".idx"));
  overwrite(directory_ / "99999999.seg", 0, "");
  std::ofstream(directory_ / "00000009.seg") << "not one of ours";
  const auto store = open();
  EXPECT_EQ(store->counts().records, 3u + 2u);
  for (uint64_t ino = 15; ino <= 17; ++ino) EXPECT_TRUE(reads(*store, ino, kSliceBytes)) << ino;
  EXPECT_TRUE(reads(*store, 30, kSliceBytes));
  EXPECT_TRUE(put(*store, slice_of(50, 5000)));
}

TEST_F(CacheStore, ATornSuperblockCostsAll) {
  put(*open(), slice_of(1, 5000));
  overwrite(directory_ / "braidfs-cache", 5, "??");
  const auto store = open();
  EXPECT_EQ(store->counts().records, 0u);
  EXPECT_TRUE(put(*store, slice_of(2, 5000)));
}

TEST_F(CacheStore, ASmallerSizeKeepsTheYoungest) {
  settings_.bytes_max = 128u << 20;
  {
    const auto store = open();
    for (uint64_t ino = 1; ino <= 80; ++ino) EXPECT_TRUE(put(*store, slice_of(ino, kSliceBytes)));
  }
  settings_.bytes_max = 64u << 20;
  const auto store = open();
  EXPECT_LE(store->counts().bytes, 64u << 20);
  EXPECT_FALSE(store->find({1, 0}, 5));
  EXPECT_TRUE(reads(*store, 80, kSliceBytes));
}

TEST_F(CacheStore, WhenItIsFullNothingGoesThatIsRead) {
  const auto store = open();
  constexpr uint64_t kHeld = 56;  // it is 8 segments of 7
  const auto epoch = [&](uint64_t begin, uint64_t count) {
    uint64_t hits = 0;
    for (uint64_t ino = begin; ino < begin + count; ++ino) {
      if (store->find({ino, 0}, 5)) {
        ++hits;
      } else if (store->wants({ino, 0}, 5, kSliceBytes)) {
        put(*store, slice_of(ino, kSliceBytes));
      }
    }
    return hits;
  };
  EXPECT_EQ(epoch(1, 200), 0u);
  for (int again = 0; again < 5; ++again) EXPECT_EQ(epoch(1, 200), kHeld);
  EXPECT_EQ(files(".seg").size(), 8u);
  uint64_t hits = 0;
  for (int again = 0; again < 16; ++again) hits = epoch(1000, 40);  // this is another data set
  EXPECT_EQ(hits, 40u);
  EXPECT_GT(store->counts().evicted, 0u);
  EXPECT_EQ(files(".seg").size(), 8u);
}

TEST_F(CacheStore, AReadUnderWayOutlivesTheEvictionOfItsSegment) {
  const auto store = open();
  for (uint64_t ino = 1; ino <= 8; ++ino) EXPECT_TRUE(put(*store, slice_of(ino, kSliceBytes)));
  const auto found = store->find({1, 0}, 5);
  ASSERT_TRUE(found);
  for (const auto& path : files(".seg")) fs::remove(path);
  Memory memory(kHeadBytes);
  const int file = found->segment->bytes.get();
  ASSERT_EQ(::pread(file, memory.bytes, kHeadBytes, static_cast<off_t>(found->offset)), kHeadBytes);
  EXPECT_TRUE(
      is_head_of(*reinterpret_cast<const RecordHead*>(memory.bytes), {1, 0}, 5, kSliceBytes));
}

TEST_F(CacheStore, GathersPartsOfSeveralReads) {
  const auto cache = Cache::open(settings_, reason_);
  ASSERT_TRUE(cache) << reason_;
  const uint32_t length = 300'000;
  cache->offer({1, 0}, 5, length, part_of(1, 131072, 131072));
  cache->offer({1, 0}, 5, length, part_of(1, 131072, 131072));  // the same part comes twice
  cache->offer({1, 0}, 5, length, part_of(1, 262144, length - 262144));
  cache->wait_idle();
  EXPECT_FALSE(cache->find({1, 0}, 5));
  cache->offer({1, 0}, 5, length, part_of(1, 0, 131072));
  cache->wait_idle();
  EXPECT_TRUE(cache->find({1, 0}, 5));
  cache->offer({2, 0}, 5, length, part_of(2, 4096, 4096));  // a random read begins nothing
  cache->offer({2, 0}, 5, length, part_of(2, 0, 4096));
  cache->offer({2, 0}, 5, length, part_of(2, 8192, 262144));
  cache->offer({2, 0}, 6, length, part_of(2, 270336, length - 270336));  // the bytes are other ones
  cache->wait_idle();
  EXPECT_FALSE(cache->find({2, 0}, 5));
  EXPECT_FALSE(cache->find({2, 0}, 6));
}

TEST_F(CacheStore, GatheringIsBounded) {
  SliceAssembly assembly;
  for (uint64_t ino = 1; ino <= 500; ++ino) {
    EXPECT_FALSE(assembly.add({ino, 0}, 5, kSliceBytes, part_of(ino, 0, 512u << 10)));
    EXPECT_LE(assembly.bytes(), SliceAssembly::kBytesMax);
  }
  EXPECT_TRUE(assembly.add({500, 0}, 5, kSliceBytes, part_of(500, 512u << 10, 512u << 10)));
  EXPECT_FALSE(
      // This assembly was given up.
      assembly.add({1, 0}, 5, kSliceBytes, part_of(1, 512u << 10, 512u << 10)));
}

TEST_F(CacheStore, ManyThreadsAtOnce) {
  const auto cache = Cache::open(settings_, reason_);
  ASSERT_TRUE(cache) << reason_;
  std::vector<std::thread> lanes;
  for (uint64_t lane = 0; lane < 4; ++lane) {
    lanes.emplace_back([&, lane] {
      for (uint64_t ino = 1; ino <= 400; ++ino) {
        if (const auto found = cache->find({ino, 0}, 5)) {
          if (ino % 50 == lane) cache->corrupt({ino, 0}, *found);
        } else {
          cache->offer({ino, 0}, 5, 200'000, part_of(ino, 0, 200'000));
        }
      }
    });
  }
  for (auto& lane : lanes) lane.join();
  cache->wait_idle();
  cache->stop();
  for (const auto& [name, count] : cache->counters()) {
    if (name == "cache_bytes") {
      EXPECT_LE(count, settings_.bytes_max);
    }
    if (name == "cache_faults") {
      EXPECT_EQ(count, 0u);
    }
    if (name == "cache_stores") {
      EXPECT_GT(count, 0u);
    }
  }
}

}  // namespace
}  // namespace braidfs::cache
