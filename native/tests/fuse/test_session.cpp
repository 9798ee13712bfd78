// The whole kernel side of a mount over sockets that stand for /dev/fuse and its clones.
#include "fuse/session.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "kernel_side.h"

namespace braidfs::fuse {
namespace {

using namespace std::string_view_literals;
using testing::answer;
using testing::at;
using testing::Bytes;
using testing::lookup;
using testing::out_header;
using testing::receive;
using testing::request;
using testing::SocketPair;

class Observer final : public SessionObserver {
 public:
  void upcall_interrupted(uint32_t slot) override { push("interrupt " + std::to_string(slot)); }
  void called(uint32_t slot, const RequestHead& head, uint32_t opcode,
              std::span<const std::byte> body, int outcome) override {
    slot_ = slot;
    push("call " + std::to_string(opcode) + " " + std::to_string(head.uid) + " " +
         std::to_string(body.size()) + " " + std::to_string(outcome));
  }
  uint32_t slot() const { return slot_; }
  void unmounted() override { push("unmounted"); }
  void births_wait() override { push("births"); }
  void log(int level, std::string_view) override { push("log " + std::to_string(level)); }
  std::string next() {
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, std::chrono::seconds(5), [this] { return !told_.empty(); });
    if (told_.empty()) return "nothing";
    std::string first = told_.front();
    told_.pop_front();
    return first;
  }

 private:
  void push(std::string text) {
    const std::scoped_lock lock(mu_);
    told_.push_back(std::move(text));
    changed_.notify_all();
  }
  std::atomic<uint32_t> slot_{0};
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::string> told_;
};

// Answers a READ with its offset and size as text, keeps a READ at offset 1 << 40 waiting.
class Echo final : public DataHandler {
 public:
  explicit Echo(Replier& replier) : replier_(replier) {}
  void read(LaneContext& lane, const ReadRequest& r) override {
    EXPECT_EQ(lane.index, r.head.channel);
    if (r.offset == 1ULL << 40) {
      waiting_ = r.head.unique;
      return;
    }
    std::string text = std::to_string(r.offset) + "+" + std::to_string(r.size);
    const iovec piece{text.data(), text.size()};
    replier_.reply_data(r.head.channel, r.head.unique, {&piece, 1});
  }
  void write(LaneContext&, const WriteRequest& r) override {
    replier_.reply_write(r.head.channel, r.head.unique, static_cast<uint32_t>(r.payload.size()));
  }
  void flush(LaneContext&, const FlushRequest& r) override { done(r.head); }
  void release(LaneContext&, const ReleaseRequest& r) override { done(r.head); }
  void fsync(LaneContext&, const FsyncRequest& r) override { done(r.head); }
  bool interrupt(LaneContext& lane, uint64_t unique) override {
    if (waiting_ != unique) return false;
    replier_.reply_error(lane.index, unique, EINTR);
    return true;
  }
  Room room() const noexcept override { return room_; }
  std::atomic<Room> room_{Room::kPlenty};
  bool born(std::span<const std::byte>, std::span<const std::byte>, std::span<const std::byte>, uint64_t,
            uint32_t) override {
    return has_room_;
  }
  std::atomic<bool> has_room_{true};

 private:
  void done(const RequestHead& head) { replier_.reply_error(head.channel, head.unique, 0); }
  Replier& replier_;
  std::atomic<uint64_t> waiting_{0};
};

class SessionTest : public ::testing::Test {
 protected:
  static constexpr size_t kLanes = 2;

  SessionTest() {
    for (size_t index = 0; index < kLanes; ++index) pointers_.push_back(&loops_[index]);
  }

  void start() {
    ASSERT_EQ(session_.attach(std::move(device_.theirs)), 0);
    fuse_init_in in{};
    in.major = 7;
    in.minor = 45;
    in.flags = ~0u;
    in.flags2 = ~0u;
    ASSERT_TRUE(testing::send(device_.ours.get(), request(FUSE_INIT, {2, 0, 0}, in)));
    ASSERT_EQ(session_.start(echo_, pointers_, kRootIno, python_), 0);
    const Bytes reply = receive(device_.ours.get());
    ASSERT_EQ(reply.size(), sizeof(fuse_out_header) + sizeof(fuse_init_out));
    EXPECT_EQ(at<fuse_init_out>(reply, sizeof(fuse_out_header)).max_pages, 256);
    for (auto& loop : loops_) threads_.emplace_back([&loop] { loop.run(); });
    const Bytes init = receive(python_.get());
    ASSERT_EQ(at<fuse_in_header>(init, 0).opcode, static_cast<uint32_t>(FUSE_INIT));
    ASSERT_TRUE(testing::send(python_.get(), answer(at<fuse_in_header>(init, 0).unique, 0)));
  }

  void TearDown() override {
    for (auto& loop : loops_) loop.stop();
    for (auto& thread : threads_) thread.join();
    session_.stop();
  }

  Bytes ask(size_t lane, const Bytes& bytes) {
    EXPECT_TRUE(testing::send(lanes_[lane].ours.get(), bytes));
    return receive(lanes_[lane].ours.get());
  }

  // Sends a request that goes to Python, and gives what Python sees.
  Bytes upcall(size_t lane, const Bytes& bytes) {
    EXPECT_TRUE(testing::send(lanes_[lane].ours.get(), bytes));
    return receive(python_.get());
  }

  static constexpr uint64_t kRootIno = 500;
  Observer observer_;
  SocketPair device_;
  std::array<SocketPair, kLanes> lanes_;
  size_t cloned_ = 0;
  FuseSession session_{{}, observer_, [this](int, net::UniqueFd& clone) {
                         clone = std::move(lanes_[cloned_++].theirs);
                         return 0;
                       }};
  Echo echo_{session_};
  std::array<net::EventLoop, kLanes> loops_;
  std::vector<net::EventLoop*> pointers_;
  std::vector<std::thread> threads_;
  net::UniqueFd python_;
};

TEST_F(SessionTest, FileBytesAreAnsweredNatively) {
  start();
  fuse_read_in read{};
  read.offset = 8192;
  read.size = 512;
  const Bytes got = ask(1, request(FUSE_READ, {4, 9, 1}, read));
  EXPECT_EQ(out_header(got).unique, 4u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(got.data()) + 16, got.size() - 16), "8192+512");
  fuse_write_in write{};
  write.size = 3;
  const Bytes wrote = ask(0, request(FUSE_WRITE, {6, 9, 1}, write, "abc"));
  EXPECT_EQ(at<fuse_write_out>(wrote, 16).size, 3u);
}

TEST_F(SessionTest, UpcallCarriesItsSlotAndIsAnsweredOnItsOwnChannel) {
  start();
  const Bytes seen = upcall(1, lookup({8, 1, 4711}, "name"));
  const auto slot = at<fuse_in_header>(seen, 0).pid;
  const auto known = session_.upcall(slot);
  ASSERT_TRUE(known);
  EXPECT_EQ(known->pid, 4711u);
  EXPECT_EQ(known->unique, 8u);
  EXPECT_EQ(known->opcode, static_cast<uint32_t>(FUSE_LOOKUP));
  ASSERT_TRUE(testing::send(python_.get(), answer(8, -ENOENT)));
  const Bytes reply = receive(lanes_[1].ours.get());
  EXPECT_EQ(out_header(reply).error, -ENOENT);
  EXPECT_TRUE(receive(lanes_[0].ours.get(), 0).empty());
  EXPECT_FALSE(session_.upcall(slot));
}

TEST_F(SessionTest, WhatNobodyKnowsIsEnosys) {
  start();
  EXPECT_EQ(out_header(ask(0, request(FUSE_BMAP, {10, 9, 1}, fuse_bmap_in{}))).error, -ENOSYS);
}

TEST_F(SessionTest, CallsAreEventsAndAnsweredOnTheirOwnChannel) {
  start();
  ASSERT_TRUE(testing::send(lanes_[1].ours.get(), request(FUSE_LSEEK, {10, 9, 4711}, fuse_lseek_in{})));
  EXPECT_EQ(observer_.next(), "call 46 1000 24 0");
  const uint32_t slot = observer_.slot();
  EXPECT_EQ(session_.upcall(slot)->pid, 4711u);
  const fuse_lseek_out out{77};
  ASSERT_TRUE(session_.answer(slot, 0, std::as_bytes(std::span(&out, 1))));
  const Bytes reply = receive(lanes_[1].ours.get());
  EXPECT_EQ(out_header(reply).unique, 10u);
  EXPECT_EQ(at<fuse_lseek_out>(reply, 16).offset, 77u);
  EXPECT_FALSE(session_.answer(slot, 0, {}));  // once
}

TEST_F(SessionTest, AnInterruptFindsItsCallAndAnErrorHasNoBody) {
  start();
  ASSERT_TRUE(testing::send(lanes_[0].ours.get(), request(FUSE_SETLKW, {12, 9, 1}, fuse_lk_in{})));
  EXPECT_EQ(observer_.next(), "call 33 1000 48 0");
  const uint32_t slot = observer_.slot();
  ASSERT_TRUE(testing::send(lanes_[1].ours.get(), request(FUSE_INTERRUPT, {13, 0, 0}, fuse_interrupt_in{12})));
  EXPECT_EQ(observer_.next(), "interrupt " + std::to_string(slot));
  ASSERT_TRUE(session_.answer(slot, EINTR, std::as_bytes(std::span("body"))));
  const Bytes reply = receive(lanes_[0].ours.get());
  EXPECT_EQ(out_header(reply).error, -EINTR);
  EXPECT_EQ(reply.size(), sizeof(fuse_out_header));
}

TEST_F(SessionTest, AnAnswerOfPyfuse3sOwnSlotIsRefused) {
  start();
  const Bytes seen = upcall(0, lookup({8, 1, 1}, "name"));
  EXPECT_FALSE(session_.answer(at<fuse_in_header>(seen, 0).pid, 0, {}));
  EXPECT_FALSE(session_.answer(12345, 0, {}));
  ASSERT_TRUE(testing::send(python_.get(), answer(8, -ENOENT)));
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).error, -ENOENT);
}

TEST_F(SessionTest, CallsBeyondTheBoundAreRefused) {
  start();
  for (uint64_t index = 0; index < Bridge::kCallsMax; ++index) {
    const Bytes bytes = request(FUSE_SETLKW, {100 + 2 * index, 9, 1}, fuse_lk_in{});
    while (!testing::send(lanes_[0].ours.get(), bytes)) std::this_thread::yield();
  }
  const Bytes refused = request(FUSE_SETLKW, {98, 9, 1}, fuse_lk_in{});
  while (!testing::send(lanes_[0].ours.get(), refused)) std::this_thread::yield();
  const Bytes reply = receive(lanes_[0].ours.get());
  EXPECT_EQ(out_header(reply).unique, 98u);
  EXPECT_EQ(out_header(reply).error, -ENOMEM);
}

TEST_F(SessionTest, FlushOfALockedInodeIsAnsweredByPython) {
  start();
  fuse_flush_in in{};
  in.fh = 3;
  in.lock_owner = 0xabc;
  EXPECT_EQ(out_header(ask(0, request(FUSE_FLUSH, {30, 9, 1}, in))).error, 0);
  session_.locked(9, true);
  ASSERT_TRUE(testing::send(lanes_[0].ours.get(), request(FUSE_FLUSH, {32, 9, 1}, in)));
  EXPECT_EQ(observer_.next(), "call 25 1000 24 0");
  EXPECT_TRUE(receive(lanes_[0].ours.get(), 0).empty());
  ASSERT_TRUE(session_.answer(observer_.slot(), ENOSPC, {}));
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).error, -ENOSPC);

  upcall(0, request(FUSE_OPEN, {34, 9, 1}, fuse_open_in{0, 0}));  // read-only, and yet no NOFLUSH
  const fuse_open_out out{1, 0, 0};
  const std::string_view body(reinterpret_cast<const char*>(&out), sizeof(out));
  ASSERT_TRUE(testing::send(python_.get(), answer(34, 0, body)));
  EXPECT_EQ(at<fuse_open_out>(receive(lanes_[0].ours.get()), 16).open_flags, 0u);
  session_.locked(9, false);
  EXPECT_EQ(out_header(ask(0, request(FUSE_FLUSH, {36, 9, 1}, in))).error, 0);
}

TEST_F(SessionTest, InterruptsFindTheirRequestWhereverItIs) {
  start();
  const Bytes seen = upcall(0, lookup({12, 1, 1}, "slow"));
  const auto slot = at<fuse_in_header>(seen, 0).pid;
  ASSERT_TRUE(testing::send(lanes_[1].ours.get(), request(FUSE_INTERRUPT, {13, 0, 0}, fuse_interrupt_in{12})));
  EXPECT_EQ(observer_.next(), "interrupt " + std::to_string(slot));

  fuse_read_in read{};
  read.offset = 1ULL << 40;
  ASSERT_TRUE(testing::send(lanes_[0].ours.get(), request(FUSE_READ, {14, 9, 1}, read)));
  const Bytes stopped = ask(0, request(FUSE_INTERRUPT, {15, 0, 0}, fuse_interrupt_in{14}));
  EXPECT_EQ(out_header(stopped).unique, 14u);
  EXPECT_EQ(out_header(stopped).error, -EINTR);

  const Bytes again = ask(0, request(FUSE_INTERRUPT, {99, 0, 0}, fuse_interrupt_in{98}));
  EXPECT_EQ(out_header(again).unique, 99u);
  EXPECT_EQ(out_header(again).error, -EAGAIN);
}

TEST_F(SessionTest, WithoutRoomRequestsStayInTheKernel) {
  start();
  fuse_write_in write{};
  write.size = 3;
  echo_.room_ = Room::kNone;
  ASSERT_TRUE(testing::send(lanes_[0].ours.get(), request(FUSE_WRITE, {6, 9, 1}, write, "abc")));
  EXPECT_TRUE(receive(lanes_[0].ours.get(), 100).empty());
  echo_.room_ = Room::kPlenty;
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).unique, 6u);
  EXPECT_EQ(out_header(ask(0, request(FUSE_WRITE, {8, 9, 1}, write, "abc"))).unique, 8u);
}

TEST_F(SessionTest, WithLittleRoomOneRequestNowAndThenIsRead) {
  start();
  echo_.room_ = Room::kLittle;
  fuse_write_in write{};
  write.size = 3;
  for (const uint64_t unique : {6u, 8u}) {
    ASSERT_TRUE(testing::send(lanes_[0].ours.get(), request(FUSE_WRITE, {unique, 9, 1}, write, "abc")));
  }
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get(), 2000)).unique, 6u);
  EXPECT_TRUE(receive(lanes_[0].ours.get(), 300).empty());
  echo_.room_ = Room::kPlenty;
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).unique, 8u);
}

// A directory under an exclusive lease, empty, and slots for two files.
class BirthTest : public SessionTest {
 protected:
  static constexpr uint64_t kFolder = 70;

  void SetUp() override {
    start();
    const auto now = DentryTable::Clock::now();
    session_.dentries().believe(now + std::chrono::hours(1));
    session_.attributes().believe(now + std::chrono::hours(1));
    put_folder(S_IFDIR | 0755);
    session_.dentries().lease(kFolder, now);
    session_.dentries().complete(kFolder, now);
    EXPECT_TRUE(session_.dentries().delegate(kFolder));
    EXPECT_TRUE(session_.births().slots_put({{501, "layout", "key"}, {502, "layout", "key"}}));
  }

  void put_folder(uint32_t mode, uint32_t flags = 0, uint32_t xattr_count = 0) {
    record::Record folder{};
    record::set_field(folder, record::kIno, kFolder);
    record::set_field(folder, record::kMode, mode);
    record::set_field(folder, record::kFlags, flags);
    record::set_field(folder, record::kXattrCount, xattr_count);
    session_.attributes().put(folder, std::chrono::milliseconds(0), DentryTable::Clock::now(), true);
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

  bool goes_to_python(const Bytes& bytes) {
    return at<fuse_in_header>(upcall(0, bytes), 0).opcode == static_cast<uint32_t>(FUSE_CREATE);
  }
};

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
  EXPECT_EQ(open.fh, Births::kFirstHandle);
  EXPECT_EQ(observer_.next(), "births");
  const auto births = session_.births().take();
  ASSERT_EQ(births.size(), 1u);
  EXPECT_EQ(births[0].name, "new");
  EXPECT_EQ(births[0].parent, kFolder);
  EXPECT_EQ(births[0].mode, 0644u);
  EXPECT_TRUE(session_.births().take().empty());
  EXPECT_EQ(at<fuse_entry_out>(ask(1, lookup({8, kFolder}, "new")), sizeof(fuse_out_header)).nodeid, 501u);
}

TEST_F(BirthTest, FilesOfThoseWhoHaveQuotasAreForPython) {
  session_.births().refuse({7, 1000}, {});
  EXPECT_TRUE(goes_to_python(create(6, "new")));
  session_.births().refuse({}, {500, 100});
  EXPECT_TRUE(goes_to_python(create(8, "new")));
  EXPECT_EQ(session_.births().slots(), 2u);
  session_.births().refuse({7}, {500});
  EXPECT_EQ(at<fuse_entry_out>(ask(0, create(10, "new")), sizeof(fuse_out_header)).nodeid, 501u);
}

TEST_F(BirthTest, TheDirectorysTimesFollow) {
  ask(0, create(6, "new"));
  const int64_t time_ns = session_.births().take().at(0).time_ns;
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
  session_.dentries().put(kFolder, "there", 9, DentryTable::Clock::now());
  session_.dentries().unsure(kFolder, "unsure");
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

TEST_F(BirthTest, WithoutRoomItIsPythonsAndTheNameStaysFree) {
  echo_.has_room_ = false;
  EXPECT_TRUE(goes_to_python(create(6, "new")));
  echo_.has_room_ = true;
  const auto entry = at<fuse_entry_out>(ask(0, create(8, "new")), sizeof(fuse_out_header));
  EXPECT_EQ(entry.nodeid, 502u);
}

TEST_F(BirthTest, ADirectoryThatIsGivenBackIsPythons) {
  session_.dentries().undelegate(kFolder);
  EXPECT_TRUE(goes_to_python(create(6, "new")));
  EXPECT_TRUE(session_.dentries().delegate(kFolder));
  session_.lease_drop(0, kFolder, kFacetEntries);
  EXPECT_TRUE(goes_to_python(create(8, "new")));
  EXPECT_FALSE(session_.dentries().delegate(kFolder));
}

TEST(Births, SlotsAreBounded) {
  Births births;
  EXPECT_TRUE(births.slots_put(std::vector<BirthSlot>(Births::kSlotsMax)));
  EXPECT_FALSE(births.slots_put(std::vector<BirthSlot>(1)));
  births.slots_clear();
  EXPECT_EQ(births.slots(), 0u);
  EXPECT_FALSE(births.take_slot());
}

TEST_F(SessionTest, ForgetsReachPythonAddedUp) {
  start();
  ASSERT_TRUE(testing::send(lanes_[0].ours.get(), request(FUSE_FORGET, {0, 77, 0}, fuse_forget_in{3})));
  const Bytes seen = receive(python_.get());
  EXPECT_EQ(at<fuse_in_header>(seen, 0).opcode, static_cast<uint32_t>(FUSE_BATCH_FORGET));
  EXPECT_EQ(at<fuse_batch_forget_in>(seen, 40).count, 1u);
  EXPECT_EQ(at<fuse_forget_one>(seen, 48).nodeid, 77u);
  EXPECT_EQ(at<fuse_forget_one>(seen, 48).nlookup, 3u);
}

TEST_F(SessionTest, ReadOnlyOpensNeedNoFlush) {
  start();
  upcall(0, request(FUSE_OPEN, {16, 9, 1}, fuse_open_in{0, 0}));
  const fuse_open_out out{1, kFopenDirectIo, 0};
  const std::string_view body(reinterpret_cast<const char*>(&out), sizeof(out));
  ASSERT_TRUE(testing::send(python_.get(), answer(16, 0, body)));
  const auto sent = at<fuse_open_out>(receive(lanes_[0].ours.get()), 16);
  EXPECT_EQ(sent.open_flags, kFopenDirectIo | kFopenNoflush | kFopenParallelDirectWrites);
}

TEST_F(SessionTest, ReaddirIsBounded) {
  start();
  fuse_read_in in{};
  in.size = 1u << 20;
  const Bytes seen = upcall(0, request(FUSE_READDIRPLUS, {18, 1, 1}, in));
  EXPECT_EQ(at<fuse_read_in>(seen, 40).size, kReaddirBytesMax);
}

TEST_F(SessionTest, ASleepingPythonStopsNoLane) {
  start();
  constexpr uint64_t kUpcalls = 20'000;
  const std::string name(200, 'n');
  for (uint64_t index = 0; index < kUpcalls; ++index) {
    const Bytes bytes = lookup({100 + 2 * index, 1, 1}, name);
    while (!testing::send(lanes_[0].ours.get(), bytes)) std::this_thread::yield();
  }
  fuse_read_in read{};
  read.size = 1;
  EXPECT_EQ(out_header(ask(0, request(FUSE_READ, {4, 9, 1}, read))).unique, 4u);
  for (uint64_t index = 0; index < kUpcalls; ++index) {
    const Bytes seen = receive(python_.get());
    ASSERT_EQ(at<fuse_in_header>(seen, 0).unique, 100 + 2 * index);
  }
}

TEST_F(SessionTest, WhenPythonGoesEverybodyGetsEio) {
  start();
  upcall(0, lookup({20, 1, 1}, "a"));
  python_.reset();
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).error, -EIO);
  EXPECT_EQ(observer_.next(), "log 40");
  EXPECT_EQ(out_header(ask(1, lookup({22, 1, 1}, "b"))).error, -EIO);
}

TEST_F(SessionTest, NonsenseFromPythonHurtsNobody) {
  start();
  ASSERT_TRUE(testing::send(python_.get(), answer(12345, 0, "unknown")));
  ASSERT_TRUE(testing::send(python_.get(), Bytes(3)));
  ASSERT_TRUE(testing::send(python_.get(), answer(0, 5, "retrieve")));
  EXPECT_EQ(observer_.next(), "log 30");
  upcall(0, lookup({24, 1, 1}, "a"));
  ASSERT_TRUE(testing::send(python_.get(), answer(24, -ENOENT)));
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).error, -ENOENT);
}

TEST_F(SessionTest, NotificationsNameTheRootByItsNodeid) {
  start();
  ASSERT_EQ(session_.invalidate_entry(kRootIno, "gone"), 0);
  const Bytes entry = receive(device_.ours.get());
  EXPECT_EQ(out_header(entry).error, FUSE_NOTIFY_INVAL_ENTRY);
  EXPECT_EQ(at<fuse_notify_inval_entry_out>(entry, 16).parent, 1u);
  EXPECT_EQ(entry.size(), 16 + sizeof(fuse_notify_inval_entry_out) + 5);
  ASSERT_EQ(session_.invalidate_inode(77, 0, -1), 0);
  EXPECT_EQ(at<fuse_notify_inval_inode_out>(receive(device_.ours.get()), 16).ino, 77u);
  EXPECT_EQ(session_.invalidate_entry(1, ""), -EINVAL);
  EXPECT_EQ(session_.invalidate_entry(1, std::string(256, 'x')), -EINVAL);
}

TEST_F(SessionTest, UnmountIsToldOnce) {
  start();
  for (auto& lane : lanes_) lane.ours.reset();
  EXPECT_EQ(observer_.next(), "unmounted");
}

TEST_F(SessionTest, StartNeedsADeviceAndAGoodInit) {
  net::UniqueFd python;
  EXPECT_EQ(session_.start(echo_, pointers_, 1, python), -ENOTCONN);
  ASSERT_EQ(session_.attach(std::move(device_.theirs)), 0);
  EXPECT_EQ(session_.attach({}), -EALREADY);
  ASSERT_TRUE(testing::send(device_.ours.get(), lookup({2, 1, 1}, "early")));
  EXPECT_EQ(session_.start(echo_, pointers_, 1, python), -EPROTO);
}

}  // namespace
}  // namespace braidfs::fuse
