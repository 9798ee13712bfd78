// One property of the chunk store per test, on the simulated device.
#include <array>
#include <atomic>
#include <thread>

#include "fixture.h"
#include "store/fault.h"

namespace braidfs::store::test {
namespace {

constexpr uint32_t kMiB = 1u << 20;

class Store : public ::testing::Test {
 protected:
  void open(StoreConfig config = small_config()) { store = open_store(host.boot(), config); }
  void restart(bool new_boot = false) {
    store.reset();
    if (new_boot)
      host.cut();
    else
      host.kill();
    store = open_store(host.boot(new_boot));
    ASSERT_TRUE(store);
  }

  Host host{1};
  std::unique_ptr<ChunkStore> store;
  const ObjectId id{7, 0};
};

TEST_F(Store, ReadsBackWhatWasWritten) {
  open();
  const Bytes8 bytes = pattern(1, 3 * kMiB + 777);
  ASSERT_EQ(put(*store, id, 5000, bytes), Status::kOk);
  EXPECT_EQ(get(*store, id, 5000, static_cast<uint32_t>(bytes.size())).bytes, bytes);
  EXPECT_EQ(get(*store, id, 0, 5000).bytes, Bytes8(5000));
}

TEST_F(Store, ReadEndsWithTheObject) {
  open();
  ASSERT_EQ(put(*store, id, 0, pattern(1, 100)), Status::kOk);
  EXPECT_EQ(get(*store, id, 50, 4096).bytes.size(), 50u);
  EXPECT_EQ(get(*store, id, 100, 10).bytes.size(), 0u);
  EXPECT_EQ(get(*store, id, 1u << 30, 10).bytes.size(), 0u);
}

TEST_F(Store, MissingObject) {
  open();
  ObjectFigures figures;
  EXPECT_EQ(get(*store, id, 0, 10).status, Status::kNoObject);
  EXPECT_EQ(store->stat(id, figures), Status::kNoObject);
  EXPECT_EQ(store->sync(id), Status::kOk);
  EXPECT_EQ(store->remove(id), Status::kOk);
  EXPECT_EQ(store->punch(id, 0, 100, 0), Status::kNoObject);
}

TEST_F(Store, HolesAreZerosWithTheirSum) {
  open();
  ASSERT_EQ(put(*store, id, 10 * kMiB, pattern(1, 4096)), Status::kOk);
  EXPECT_EQ(get(*store, id, 4 * kMiB, 2 * kMiB).bytes, Bytes8(2 * kMiB));
}

TEST_F(Store, PartialWritesMerge) {
  open();
  Bytes8 expected = pattern(1, 8192);
  ASSERT_EQ(put(*store, id, 0, expected), Status::kOk);
  ASSERT_EQ(store->sync(id), Status::kOk);
  const Bytes8 middle = pattern(2, 3000);
  ASSERT_EQ(put(*store, id, 3000, middle), Status::kOk);
  std::copy(middle.begin(), middle.end(), expected.begin() + 3000);
  EXPECT_EQ(get(*store, id, 0, 8192).bytes, expected);
  restart();
  EXPECT_EQ(get(*store, id, 0, 8192).bytes, expected);
}

TEST_F(Store, WholeGroupOverwriteUsesTheOtherSlot) {
  open();
  ASSERT_EQ(put(*store, id, 0, pattern(1, kMiB)), Status::kOk);
  ASSERT_EQ(store->sync(id), Status::kOk);
  ASSERT_EQ(put(*store, id, 0, pattern(2, kMiB)), Status::kOk);
  EXPECT_EQ(store->figures().redo_bytes, 0u);
  EXPECT_EQ(get(*store, id, 0, kMiB).bytes, pattern(2, kMiB));
  restart(true);  // it was never synced: the old bytes are there
  EXPECT_EQ(get(*store, id, 0, kMiB).bytes, pattern(1, kMiB));
}

TEST_F(Store, WholeGroupOverwrittenAgainIsSyncedFirst) {
  open();
  ASSERT_EQ(put(*store, id, 0, pattern(1, kMiB)), Status::kOk);
  ASSERT_EQ(store->sync(id), Status::kOk);
  ASSERT_EQ(put(*store, id, 0, pattern(2, kMiB)), Status::kOk);
  const Bytes8 third = pattern(3, kMiB);
  WriteOp op;
  const WriteRequest request{.object = id, .epoch = 0, .offset = 0, .payload = third, .sums = {}};
  EXPECT_EQ(store->begin_write(op, request, Wait::kNo), Status::kEagain)
      << "a lane does not wait for it";
  ASSERT_EQ(store->write(request), Status::kOk);
  EXPECT_EQ(store->figures().redo_bytes, 0u);
  EXPECT_EQ(get(*store, id, 0, kMiB).bytes, third);
  restart(true);
  EXPECT_EQ(get(*store, id, 0, kMiB).bytes, pattern(2, kMiB)) << "what was synced for it";
}

TEST_F(Store, SmallOverwriteOfDurableBlocksIsRedone) {
  open();
  ASSERT_EQ(put(*store, id, 0, pattern(1, kMiB)), Status::kOk);
  ASSERT_EQ(store->sync(id), Status::kOk);
  ASSERT_EQ(put(*store, id, 8192, pattern(2, 8192)), Status::kOk);
  EXPECT_EQ(store->figures().redo_bytes, 8192u);
  ASSERT_EQ(store->checkpoint(), Status::kOk);
  EXPECT_EQ(store->figures().redo_bytes, 0u);
  EXPECT_EQ(store->figures().log_bytes, 0u);
  EXPECT_EQ(get(*store, id, 8192, 8192).bytes, pattern(2, 8192));
}

TEST_F(Store, RestartInTheSameBootKeepsEverythingAnswered) {
  open();
  const uint64_t incarnation = store->incarnation();
  ASSERT_EQ(put(*store, id, 0, pattern(1, kMiB)), Status::kOk);
  ASSERT_EQ(store->sync(id), Status::kOk);
  ASSERT_EQ(put(*store, id, 4096, pattern(2, 4096)), Status::kOk);      // redo
  ASSERT_EQ(put(*store, id, 2 * kMiB, pattern(3, 4096)), Status::kOk);  // in place
  ASSERT_EQ(store->punch(id, 0, 4096, 0), Status::kOk);
  restart();
  EXPECT_EQ(store->incarnation(), incarnation);
  EXPECT_EQ(get(*store, id, 0, 4096).bytes, Bytes8(4096));
  EXPECT_EQ(get(*store, id, 4096, 4096).bytes, pattern(2, 4096));
  EXPECT_EQ(get(*store, id, 2 * kMiB, 4096).bytes, pattern(3, 4096));
}

TEST_F(Store, LostHostRaisesTheIncarnation) {
  open();
  const uint64_t incarnation = store->incarnation();
  ASSERT_EQ(put(*store, id, 0, pattern(1, 4096)), Status::kOk);
  restart(true);
  EXPECT_EQ(store->incarnation(), incarnation + 1);
}

TEST_F(Store, CleanStopKeepsTheIncarnationOverAReboot) {
  open();
  ASSERT_EQ(put(*store, id, 0, pattern(1, 5000)), Status::kOk);
  ASSERT_EQ(store->stop(), Status::kOk);
  const uint64_t incarnation = store->incarnation();
  restart(true);
  EXPECT_EQ(store->incarnation(), incarnation);
  EXPECT_EQ(get(*store, id, 0, 5000).bytes, pattern(1, 5000));
  EXPECT_EQ(store->figures().objects, 1u);
}

TEST_F(Store, TruncateRefusesOlderWritesAndZerosTheTail) {
  open();
  ASSERT_EQ(put(*store, id, 0, pattern(1, 3 * kMiB)), Status::kOk);
  ASSERT_EQ(store->truncate(id, kMiB + 100, 4), Status::kOk);
  EXPECT_EQ(put(*store, id, 0, pattern(2, 10), 3), Status::kStaleTruncateEpoch);
  EXPECT_EQ(put(*store, id, 2 * kMiB, pattern(2, 10), 4), Status::kOk);
  Bytes8 expected = pattern(1, kMiB + 100);
  expected.resize(2 * kMiB);
  EXPECT_EQ(get(*store, id, 0, 2 * kMiB).bytes, expected);
  restart(true);
  EXPECT_EQ(put(*store, id, 0, pattern(2, 10), 3), Status::kStaleTruncateEpoch);
  expected.resize(kMiB + 100);
  EXPECT_EQ(get(*store, id, 0, kMiB).bytes, Bytes8(expected.begin(), expected.begin() + kMiB));
}

TEST_F(Store, TruncateOfAMissingObjectRemembersTheEpoch) {
  open();
  ASSERT_EQ(store->truncate(id, 0, 9), Status::kOk);
  restart(true);
  EXPECT_EQ(put(*store, id, 0, pattern(2, 10), 8), Status::kStaleTruncateEpoch);
  EXPECT_EQ(put(*store, id, 0, pattern(2, 10), 9), Status::kOk);
}

TEST_F(Store, TruncateGivesSpaceBack) {
  open();
  ObjectFigures figures;
  ASSERT_EQ(put(*store, id, 0, pattern(1, 4 * kMiB)), Status::kOk);
  ASSERT_EQ(store->truncate(id, 4096, 1), Status::kOk);
  ASSERT_EQ(store->stat(id, figures), Status::kOk);
  EXPECT_EQ(figures.length, 4096u);
  EXPECT_EQ(figures.epoch, 1u);
  EXPECT_LE(figures.allocated, 3 * 4096u);
}

TEST_F(Store, PunchGivesSpaceBackAfterSync) {
  open();
  ObjectFigures figures;
  ASSERT_EQ(put(*store, id, 0, pattern(1, 4 * kMiB)), Status::kOk);
  ASSERT_EQ(store->punch(id, 4096, 3 * kMiB, 0), Status::kOk);
  EXPECT_EQ(get(*store, id, 4096, 3 * kMiB).bytes, Bytes8(3 * kMiB));
  ASSERT_EQ(store->sync(id), Status::kOk);
  ASSERT_EQ(store->stat(id, figures), Status::kOk);
  EXPECT_LE(figures.allocated, kMiB + 8192u);
  EXPECT_EQ(get(*store, id, 0, 4096).bytes, pattern(1, 4096));
}

TEST_F(Store, PunchWithoutSyncIsUndoneByACut) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Host other(seed);
    auto one = open_store(other.boot());
    ASSERT_EQ(put(*one, id, 0, pattern(1, 16384)), Status::kOk);
    ASSERT_EQ(one->sync(id), Status::kOk);
    ASSERT_EQ(one->punch(id, 4096, 8192, 0), Status::kOk);
    ASSERT_EQ(put(*one, id, 4096, pattern(2, 4096)), Status::kOk);
    one.reset();
    other.cut();
    one = open_store(other.boot(true));
    EXPECT_EQ(get(*one, id, 0, 16384).bytes, pattern(1, 16384));
  }
}

TEST_F(Store, DeletedObjectsStayAway) {
  open();
  ASSERT_EQ(put(*store, id, 0, pattern(1, 4096)), Status::kOk);
  ASSERT_EQ(store->remove(id), Status::kOk);
  EXPECT_EQ(put(*store, id, 0, pattern(1, 4096)), Status::kNoObject);  // this write comes late
  EXPECT_EQ(get(*store, id, 0, 10).status, Status::kNoObject);
  restart(true);
  EXPECT_EQ(get(*store, id, 0, 10).status, Status::kNoObject);
  EXPECT_EQ(store->figures().objects, 0u);
}

TEST_F(Store, ManyAreRemovedTogether) {
  open();
  std::vector<ObjectId> ids;
  for (uint64_t file = 1; file <= 40; ++file) {
    ids.push_back({file, 0});
    if (file % 4 == 0) continue;  // it has no object
    ASSERT_EQ(put(*store, ids.back(), 0, pattern(file, 4096)), Status::kOk);
  }
  restart();  // they are not in memory
  ASSERT_EQ(put(*store, ids[0], 4096, pattern(1, 4096)), Status::kOk);
  ids.push_back(ids[1]);
  std::vector<Status> statuses(ids.size(), Status::kEio);
  store->remove_all(ids, statuses);
  EXPECT_EQ(statuses, std::vector<Status>(ids.size(), Status::kOk));
  EXPECT_EQ(store->figures().objects, 0u);
  restart(true);
  EXPECT_EQ(store->figures().objects, 0u);
  for (const ObjectId& gone : ids) EXPECT_EQ(get(*store, gone, 0, 10).status, Status::kNoObject);
}

TEST_F(Store, OneThatIsBusyIsRemovedAfterTheOthers) {
  open();
  const Bytes8 bytes = pattern(1, 4096);
  const WriteRequest request{.object = id, .epoch = 0, .offset = 0, .payload = bytes, .sums = {}};
  ASSERT_EQ(store->write(request), Status::kOk);
  ASSERT_EQ(put(*store, {8, 0}, 0, bytes), Status::kOk);
  WriteOp holder;
  ASSERT_EQ(store->begin_write(holder, request, Wait::kNo), Status::kOk);
  std::array<Status, 2> statuses{Status::kEio, Status::kEio};
  std::thread remover([&] {
    const std::array<ObjectId, 2> ids{id, ObjectId{8, 0}};
    store->remove_all(ids, statuses);
  });
  ObjectFigures figures;  // not by a READ, which would make that one busy, too
  while (store->stat({8, 0}, figures) != Status::kNoObject) std::this_thread::yield();
  holder = WriteOp();
  remover.join();
  EXPECT_EQ(statuses, (std::array<Status, 2>{Status::kOk, Status::kOk}));
  EXPECT_EQ(get(*store, id, 0, 10).status, Status::kNoObject);
}

TEST_F(Store, FullTargetRefusesTheWriterAndKeepsTheRest) {
  StoreConfig config = small_config();
  config.capacity_bytes = 2 * kMiB;
  open(config);
  ASSERT_EQ(put(*store, id, 0, pattern(1, kMiB)), Status::kOk);
  EXPECT_EQ(put(*store, id, kMiB, pattern(2, 2 * kMiB)), Status::kEnospc);
  EXPECT_EQ(put(*store, id, 0, pattern(3, 4096)), Status::kOk);  // it needs no more space
  EXPECT_EQ(get(*store, id, 4096, 4096).status, Status::kOk);
  ASSERT_EQ(store->remove(id), Status::kOk);
  EXPECT_EQ(put(*store, {8, 0}, 0, pattern(2, kMiB)), Status::kOk);
}

TEST_F(Store, FullDeviceDamagesNothing) {
  open();
  ASSERT_EQ(put(*store, id, 0, pattern(1, kMiB)), Status::kOk);
  ASSERT_EQ(store->sync(id), Status::kOk);
  host.bytes_max = 1;
  EXPECT_EQ(put(*store, id, kMiB, pattern(2, kMiB)), Status::kEnospc);
  EXPECT_EQ(put(*store, id, 0, pattern(2, 4096)), Status::kEnospc);  // the log has no room
  EXPECT_EQ(get(*store, id, 0, kMiB).bytes, pattern(1, kMiB));
  host.bytes_max = UINT64_MAX;
  EXPECT_EQ(put(*store, id, 0, pattern(2, 4096)), Status::kOk);
  restart();
  EXPECT_EQ(get(*store, id, 0, 4096).bytes, pattern(2, 4096));
}

TEST_F(Store, WithoutInodesOnlyNewObjectsAreRefused) {
  host.files_max = 100;
  open();
  const uint64_t room = store->figures().files_free;
  EXPECT_EQ(store->figures().files_total, 100u);
  for (uint64_t n = 0; n < room; ++n)
    ASSERT_EQ(put(*store, {100 + n, 0}, 0, pattern(1, 4096)), Status::kOk) << n << " of " << room;
  EXPECT_EQ(put(*store, {99, 0}, 0, pattern(1, 4096)), Status::kEnospc);
  EXPECT_EQ(store->truncate({99, 0}, 4096, 1), Status::kEnospc);
  EXPECT_EQ(put(*store, {100, 0}, 4096, pattern(2, kMiB)), Status::kOk) << "what is there grows";
  for (int n = 0; n < 4; ++n) {  // each creates files for the log and the superblock
    ASSERT_EQ(put(*store, {100, 0}, 0, pattern(3, 4096)), Status::kOk);
    ASSERT_EQ(store->checkpoint(), Status::kOk);
    restart();
  }
  EXPECT_EQ(store->figures().files_free, 0u);
  EXPECT_EQ(store->figures().errors, 0u);
  host.files_max = host.file_count();  // other programs took the reserve
  EXPECT_EQ(put(*store, {99, 0}, 0, pattern(1, 4096)), Status::kEnospc);
  host.files_max = 100;
  ASSERT_EQ(store->remove({101, 0}), Status::kOk);
  EXPECT_EQ(put(*store, {99, 0}, 0, pattern(1, 4096)), Status::kOk);
  EXPECT_EQ(get(*store, {100, 0}, 0, 4096).bytes, pattern(3, 4096));
}

TEST_F(Store, FullLogWaitsForACheckpoint) {
  StoreConfig config = small_config();
  config.log_bytes_max = 64 << 10;
  config.redo_bytes_max = 32 << 10;
  open(config);
  ASSERT_EQ(put(*store, id, 0, pattern(1, kMiB)), Status::kOk);
  ASSERT_EQ(store->sync(id), Status::kOk);
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_EQ(put(*store, id, i * 4096, pattern(i, 4096)), Status::kOk);
    ASSERT_LE(store->figures().redo_bytes, config.redo_bytes_max + 4096);
  }
  EXPECT_GT(store->figures().checkpoints, 0u);
}

TEST_F(Store, LaneNeverWaits) {
  open();
  const Bytes8 bytes = pattern(1, 8192);
  const WriteRequest request{.object = id, .epoch = 0, .offset = 0, .payload = bytes, .sums = {}};
  WriteOp creating;
  // The write would create the object.
  EXPECT_EQ(store->begin_write(creating, request, Wait::kNo), Status::kEagain);
  ASSERT_EQ(store->write(request), Status::kOk);
  WriteOp holder;
  WriteOp other;
  ASSERT_EQ(store->begin_write(holder, request, Wait::kNo), Status::kOk);
  EXPECT_EQ(store->begin_write(other, request, Wait::kNo), Status::kEagain);
  Bytes8 buffer(8192);
  ReadOp reader;
  const ReadRequest read{.object = id, .offset = 4096, .length = 4096, .buffer = buffer};
  EXPECT_EQ(store->begin_read(reader, read, Wait::kNo), Status::kEagain);
  holder = WriteOp();  // it was cancelled
  EXPECT_EQ(store->begin_read(reader, read, Wait::kNo), Status::kOk);
  EXPECT_TRUE(reader.plan().run_nowait());
  uint64_t sum = 0;
  EXPECT_EQ(store->finish_read(reader, {&sum, 1}).status, Status::kOk);
}

TEST_F(Store, LargeReadsPassThePageCacheUnlessItHasThemOrTheyRepeat) {
  open();
  const ObjectId other{.file_id = id.file_id + 1, .stripe_index = 0};
  ASSERT_EQ(put(*store, id, 0, pattern(1, 3 * kMiB)), Status::kOk);
  ASSERT_EQ(put(*store, other, 0, pattern(2, 3 * kMiB)), Status::kOk);
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(4096, kMiB + 4096)), &std::free);
  const auto passes = [&](ObjectId object, uint64_t offset, uint32_t length,
                          size_t misaligned = 0) {
    ReadOp op;
    const std::span buffer(memory.get() + misaligned, length);
    EXPECT_EQ(store->begin_read(op, {object, offset, length, buffer}, Wait::kYes), Status::kOk);
    const bool direct = op.plan().direct();
    EXPECT_TRUE(!direct || !op.plan().run_nowait());
    op.plan().run();
    std::vector<uint64_t> sums(length / 4096);
    EXPECT_EQ(store->finish_read(op, sums).length, length);
    const Bytes8 whole = pattern(object == id ? 1 : 2, 3 * kMiB);
    EXPECT_EQ(std::memcmp(buffer.data(), whole.data() + offset, length), 0);
    return direct;
  };
  const auto is_begun_past_it = [&](ObjectId object) {
    ReadOp op;
    EXPECT_EQ(store->begin_read(op, {object, 0, kMiB, {memory.get(), kMiB}}, Wait::kNo),
              Status::kOk);
    return op.plan().direct();
  };
  EXPECT_FALSE(passes(id, 0, 128u << 10)) << "small";
  EXPECT_FALSE(passes(id, 0, kMiB, 8)) << "not in whole pages of memory";
  EXPECT_TRUE(passes(id, 0, kMiB));
  EXPECT_TRUE(passes(id, kMiB, kMiB));
  EXPECT_TRUE(passes(id, 2 * kMiB, kMiB));
  EXPECT_TRUE(is_begun_past_it(other)) << "given up, which is no reading";
  EXPECT_FALSE(passes(id, 0, kMiB)) << "read together with others";
  EXPECT_TRUE(passes(other, 0, kMiB));
  host.pages_cached = true;
  EXPECT_FALSE(passes(other, kMiB, kMiB));
}

TEST_F(Store, UnfinishedPlanIsRefused) {
  open();
  const Bytes8 bytes = pattern(1, 8192);
  WriteOp op;
  const WriteRequest request{.object = id, .epoch = 0, .offset = 0, .payload = bytes, .sums = {}};
  ASSERT_EQ(store->begin_write(op, request, Wait::kYes), Status::kOk);
  EXPECT_EQ(store->finish_write(op), Status::kAborted);
  EXPECT_EQ(get(*store, id, 0, 8192).bytes.size(), 0u);
}

TEST_F(Store, RefusesWhatIsOutOfBounds) {
  open();
  const Bytes8 bytes = pattern(1, 8192);
  EXPECT_EQ(put(*store, id, kObjectBytesMax, bytes), Status::kEfbig);
  EXPECT_EQ(put(*store, id, UINT64_MAX - 100, bytes), Status::kEfbig);
  EXPECT_EQ(put(*store, id, 0, {}), Status::kBadRequest);
  EXPECT_EQ(store->truncate(id, UINT64_MAX, 1), Status::kEfbig);
  Bytes8 small(100);
  std::vector<uint64_t> sums(1);
  EXPECT_EQ(store->read({.object = id, .offset = 0, .length = 4096, .buffer = small}, sums).status,
            Status::kBadRequest);
}

TEST_F(Store, TargetIdIsKept) {
  open();
  ASSERT_EQ(store->set_target(42), Status::kOk);
  restart(true);
  EXPECT_EQ(store->figures().target, 42u);
  EXPECT_EQ(store->figures().uuid, uuid_of(2));
}

TEST_F(Store, RefusesForeignAndDamagedSuperblocks) {
  open();
  ASSERT_EQ(store->stop(), Status::kOk);
  store.reset();
  StoreConfig config = small_config();
  config.cluster = uuid_of(9);
  EXPECT_EQ(ChunkStore::open(host.boot(), config).message, "it belongs to another cluster");
  config = small_config();
  config.target = uuid_of(9);
  EXPECT_EQ(ChunkStore::open(host.boot(), config).status, Status::kEinval);
  for (const uint64_t offset : {0, 8, 40, 60, 100, 4000, 4090}) {
    host.find("superblock")->now.flip(offset, 1);
    EXPECT_EQ(ChunkStore::open(host.boot(), small_config()).status, Status::kEinval) << offset;
    host.find("superblock")->now.flip(offset, 1);
  }
  EXPECT_EQ(ChunkStore::open(host.boot(), small_config()).status, Status::kOk);
}

TEST_F(Store, CreatesOnlyInAnEmptyDirectory) {
  const auto device = host.boot();
  std::shared_ptr<File> file;
  ASSERT_EQ(device->open("thesis.tex", OpenMode::kCreate, file), 0);
  EXPECT_EQ(ChunkStore::open(device, small_config()).status, Status::kEinval);
  StoreConfig config = small_config();
  config.create = false;
  Host empty(2);
  EXPECT_EQ(ChunkStore::open(empty.boot(), config).status, Status::kEinval);
}

TEST_F(Store, ConcurrentWritersOfOneBlockLeaveOneOfThem) {
  open();
  ASSERT_EQ(put(*store, id, 0, pattern(0, 64 << 10)), Status::kOk);
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(put(*store, id, 0, pattern(t, 64 << 10)), Status::kOk);
        EXPECT_EQ(get(*store, id, 0, 64 << 10).bytes.size(), 64u << 10);
        const Status synced = i % 10 == 0 ? store->sync(id) : Status::kOk;
        EXPECT_EQ(synced, Status::kOk);
        const Status checkpointed = i % 25 == 0 ? store->checkpoint() : Status::kOk;
        EXPECT_EQ(checkpointed, Status::kOk);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Bytes8 bytes = get(*store, id, 0, 64 << 10).bytes;
  bool whole = false;
  for (uint64_t t = 1; t <= 4; ++t) whole |= bytes == pattern(t, 64 << 10);
  EXPECT_TRUE(whole);
}

std::atomic<ChunkStore*> written_during_checkpoint = nullptr;

void write_before_drop(FaultPoint point) {
  if (point != FaultPoint::kCheckpointBeforeDrop) return;
  ChunkStore* store = written_during_checkpoint.exchange(nullptr);
  if (store == nullptr) return;
  EXPECT_EQ(put(*store, {7, 1}, 0, pattern(3, 4096)), Status::kOk);
}

// A writer that asked for a checkpoint while one ran once made the thread use a whole core without
// end.
TEST_F(Store, BackgroundThreadRestsAfterACheckpoint) {
  StoreConfig config = small_config();
  config.background = true;
  config.log_bytes_max = kMiB;
  open(config);
  ASSERT_EQ(put(*store, id, 0, pattern(1, kMiB / 2)), Status::kOk);
  const uint64_t at_open = store->figures().checkpoints;
  written_during_checkpoint = store.get();
  fault_hook = write_before_drop;
  const Bytes8 small = pattern(2, 64 << 10);  // REDO: its bytes go to the log
  for (int i = 0; i < 9; ++i) {
    ASSERT_EQ(put(*store, id, static_cast<uint64_t>(i % 8) * (64 << 10), small), Status::kOk);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (store->figures().checkpoints == at_open && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  fault_hook = nullptr;
  ASSERT_EQ(written_during_checkpoint, nullptr) << "nothing was written during the checkpoint";
  const uint64_t before = host.space_asked;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // its period is 500 ms
  EXPECT_LE(host.space_asked - before, 4u);
  store.reset();
}

}  // namespace
}  // namespace braidfs::store::test
