// The whole kernel side of a mount over sockets that stand for /dev/fuse and its clones.
#include "fuse/session.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "session_fixture.h"

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
using testing::SessionTest;
using testing::text_of;

TEST_F(SessionTest, FileBytesAreAnsweredNatively) {
  start();
  fuse_read_in read{};
  read.offset = 8192;
  read.size = 512;
  const Bytes got = ask(1, request(FUSE_READ, {4, 9, 1}, read));
  EXPECT_EQ(out_header(got).unique, 4u);
  EXPECT_EQ(text_of(got), "8192+512");
  fuse_write_in write{};
  write.size = 3;
  const Bytes wrote = ask(0, request(FUSE_WRITE, {6, 9, 1}, write, "abc"));
  EXPECT_EQ(at<fuse_write_out>(wrote, 16).size, 3u);
}

TEST_F(SessionTest, OnlyPayloadsStayWhereTheyLanded) {
  start();
  fuse_write_in write{};
  write.size = 3;
  EXPECT_EQ(at<fuse_write_out>(ask(0, request(FUSE_WRITE, {6, 9, 1}, write, "abc")), 16).size, 3u);
  EXPECT_TRUE(echo_.landed_);
  const std::string name(255, 'n');  // longer than the head of a WRITE
  for (const size_t lane : {0u, 1u}) {
    const Bytes seen = upcall(lane, lookup({8 + 2 * lane, 1, 1}, name));
    ASSERT_EQ(seen.size(), sizeof(fuse_in_header) + name.size() + 1);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(seen.data()) + sizeof(fuse_in_header)),
              name);
    ASSERT_TRUE(testing::send(python_.get(), answer(8 + 2 * lane, -ENOENT)));
    EXPECT_EQ(out_header(receive(lanes_[lane].ours.get())).error, -ENOENT);
  }
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
  ASSERT_TRUE(
      testing::send(lanes_[1].ours.get(), request(FUSE_LSEEK, {10, 9, 4711}, fuse_lseek_in{})));
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
  ASSERT_TRUE(testing::send(lanes_[1].ours.get(),
                            request(FUSE_INTERRUPT, {13, 0, 0}, fuse_interrupt_in{12})));
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

TEST_F(SessionTest, OnASealedTreeAReadThatCannotBeOpenedFails) {
  session_.seal();
  start();
  const auto read = [&](uint64_t unique, int error, std::string_view opened) {
    EXPECT_TRUE(
        testing::send(lanes_[0].ours.get(), request(FUSE_READ, {unique, 8, 1}, fuse_read_in{})));
    EXPECT_EQ(observer_.next(), "call 15 1000 40 0");
    EXPECT_TRUE(session_.answer(observer_.slot(), error, std::as_bytes(std::span(opened))));
    return out_header(receive(lanes_[0].ours.get())).error;
  };
  EXPECT_EQ(read(40, ESTALE, ""), -ESTALE);
  EXPECT_EQ(read(42, 0, "short"), -EIO);
  EXPECT_EQ(read(44, 0, "just a handle and a few bytes"), -EIO);
}

constexpr uint32_t kNoThread = 1u << 30;  // beyond every pid

// What no process of this machine waits for may be ended; what one does is answered.
TEST_F(SessionTest, InterruptsFindTheirRequestWhereverItIs) {
  start();
  const Bytes seen = upcall(0, lookup({12, 1, kNoThread}, "slow"));
  const auto slot = at<fuse_in_header>(seen, 0).pid;
  ASSERT_TRUE(testing::send(lanes_[1].ours.get(),
                            request(FUSE_INTERRUPT, {13, 0, 0}, fuse_interrupt_in{12})));
  EXPECT_EQ(observer_.next(), "interrupt " + std::to_string(slot));

  fuse_read_in read{};
  read.offset = 1ULL << 40;
  ASSERT_TRUE(testing::send(lanes_[0].ours.get(), request(FUSE_READ, {14, 9, kNoThread}, read)));
  const Bytes stopped = ask(0, request(FUSE_INTERRUPT, {15, 0, 0}, fuse_interrupt_in{14}));
  EXPECT_EQ(out_header(stopped).unique, 14u);
  EXPECT_EQ(out_header(stopped).error, -EINTR);

  const Bytes again = ask(0, request(FUSE_INTERRUPT, {99, 0, 0}, fuse_interrupt_in{98}));
  EXPECT_EQ(out_header(again).unique, 99u);
  EXPECT_EQ(out_header(again).error, -EAGAIN);
}

TEST_F(SessionTest, ARequestWhoseCallerGoesOnIsAnsweredWhenItIsDone) {
  start();
  const auto own = static_cast<uint32_t>(::getpid());
  upcall(0, lookup({12, 1, own}, "slow"));
  ASSERT_TRUE(testing::send(lanes_[1].ours.get(),
                            request(FUSE_INTERRUPT, {15, 0, 0}, fuse_interrupt_in{12})));
  // By the time that an INTERRUPT of a thread which nobody sees has ended its request, this one was
  // looked at.
  const auto slot = at<fuse_in_header>(upcall(1, lookup({16, 1, kNoThread}, "unseen")), 0).pid;
  ASSERT_TRUE(testing::send(lanes_[1].ours.get(),
                            request(FUSE_INTERRUPT, {17, 0, 0}, fuse_interrupt_in{16})));
  EXPECT_EQ(observer_.next(), "interrupt " + std::to_string(slot));
  ASSERT_TRUE(testing::send(python_.get(), answer(12, -ENOENT)));
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).error, -ENOENT) << "and not EINTR";
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
    ASSERT_TRUE(
        testing::send(lanes_[0].ours.get(), request(FUSE_WRITE, {unique, 9, 1}, write, "abc")));
  }
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get(), 2000)).unique, 6u);
  EXPECT_TRUE(receive(lanes_[0].ours.get(), 300).empty());
  echo_.room_ = Room::kPlenty;
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).unique, 8u);
}

TEST_F(SessionTest, ForgetsReachPythonAddedUp) {
  start();
  ASSERT_TRUE(
      testing::send(lanes_[0].ours.get(), request(FUSE_FORGET, {0, 77, 0}, fuse_forget_in{3})));
  const Bytes seen = receive(python_.get());
  EXPECT_EQ(at<fuse_in_header>(seen, 0).opcode, static_cast<uint32_t>(FUSE_BATCH_FORGET));
  EXPECT_EQ(at<fuse_batch_forget_in>(seen, 40).count, 1u);
  EXPECT_EQ(at<fuse_forget_one>(seen, 48).nodeid, 77u);
  EXPECT_EQ(at<fuse_forget_one>(seen, 48).nlookup, 3u);
}

TEST_F(SessionTest, ForgetsGatherUntilOneMessageTellsThemAll) {
  start();
  for (const uint64_t nodeid : {77u, 78u, 77u}) {
    ASSERT_TRUE(testing::send(lanes_[0].ours.get(),
                              request(FUSE_FORGET, {0, nodeid, 0}, fuse_forget_in{3})));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const Bytes seen = receive(python_.get());
  EXPECT_EQ(at<fuse_batch_forget_in>(seen, 40).count, 2u);
  const auto first = at<fuse_forget_one>(seen, 48);
  const auto second = at<fuse_forget_one>(seen, 64);
  EXPECT_EQ(first.nodeid + second.nodeid, 77u + 78u);
  EXPECT_EQ(first.nlookup + second.nlookup, 9u);
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

TEST_F(SessionTest, ASleepingPythonStopsNoLane) {
  start();
  constexpr uint64_t kUpcalls = 20'000;
  const std::string name(200, 'n');
  // The lane's socket holds a few hundred of them: each waits until there is room.
  const auto send_when_room = [this](const Bytes& bytes) {
    while (!testing::send(lanes_[0].ours.get(), bytes)) std::this_thread::yield();
  };
  for (uint64_t index = 0; index < kUpcalls; ++index)
    send_when_room(lookup({100 + 2 * index, 1, 1}, name));
  fuse_read_in read{};
  read.size = 1;
  send_when_room(request(FUSE_READ, {4, 9, 1}, read));
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).unique, 4u);
  for (uint64_t index = 0; index < kUpcalls; ++index) {
    const Bytes seen = receive(python_.get());
    ASSERT_EQ(at<fuse_in_header>(seen, 0).unique, 100 + 2 * index);
  }
}

// A LOOKUP, too; but by any other error than ENOMEM the kernel would give up the name.
TEST_F(SessionTest, WhenPythonGoesEverybodyGetsAnError) {
  start();
  upcall(0, lookup({20, 1, 1}, "a"));
  python_.reset();
  EXPECT_EQ(out_header(receive(lanes_[0].ours.get())).error, -ENOMEM);
  EXPECT_EQ(observer_.next(), "log 40");
  EXPECT_EQ(out_header(ask(1, lookup({22, 1, 1}, "b"))).error, -ENOMEM);
  EXPECT_EQ(out_header(ask(1, request(FUSE_STATFS, {24, 1, 1}))).error, -EIO);
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
  const std::vector<std::string_view> names{"gone"};
  ASSERT_EQ(session_.expire_names(kRootIno, names), 0);
  const Bytes entry = receive(device_.ours.get());
  EXPECT_EQ(out_header(entry).error, FUSE_NOTIFY_INVAL_ENTRY);
  EXPECT_EQ(at<fuse_notify_inval_entry_out>(entry, 16).parent, 1u);
  EXPECT_EQ(at<fuse_notify_inval_entry_out>(entry, 16).flags, kEntryExpireOnly)
      << "what is mounted there stays";
  EXPECT_EQ(entry.size(), 16 + sizeof(fuse_notify_inval_entry_out) + 5);
  ASSERT_EQ(session_.invalidate_inode(77, 0, -1), 0);
  EXPECT_EQ(at<fuse_notify_inval_inode_out>(receive(device_.ours.get()), 16).ino, 77u);
  const std::string long_name(256, 'x');
  for (const std::string_view name : {std::string_view(), std::string_view(long_name)}) {
    EXPECT_EQ(session_.expire_names(1, std::span(&name, 1)), -EINVAL);
  }
}

TEST_F(SessionTest, UnmountIsToldOnce) {
  start();
  for (auto& lane : lanes_) lane.ours.reset();
  EXPECT_EQ(observer_.next(), "unmounted");
}

TEST_F(SessionTest, StartNeedsADeviceAndAGoodInit) {
  net::UniqueFd python;
  EXPECT_EQ(session_.start(echo_, names(), pointers_, 1, python), -ENOTCONN);
  ASSERT_EQ(session_.attach(std::move(device_.theirs)), 0);
  EXPECT_EQ(session_.attach({}), -EALREADY);
  ASSERT_TRUE(testing::send(device_.ours.get(), lookup({2, 1, 1}, "early")));
  EXPECT_EQ(session_.start(echo_, names(), pointers_, 1, python), -EPROTO);
}

}  // namespace
}  // namespace braidfs::fuse
