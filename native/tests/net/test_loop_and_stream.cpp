// What the event loop promises, and two streams that communicate over a socket pair.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include "net/frame_stream.h"

namespace braidfs::net {
namespace {

using std::chrono::milliseconds;

std::pair<UniqueFd, UniqueFd> socket_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

TEST(EventLoop, PostedTasksRunOnTheLoop) {
  EventLoop loop;
  ASSERT_EQ(loop.fault(), 0);
  std::thread::id ran;
  std::thread runner([&] { loop.run(); });
  const auto expected = runner.get_id();
  EXPECT_TRUE(loop.post([&] {
    ran = std::this_thread::get_id();
    loop.stop();
  }));
  runner.join();
  EXPECT_EQ(ran, expected);
}

// docs/decisions/0044: a loop that was woken to answer yields the core to the thread that asked.
TEST(EventLoop, GivesWay) {
  EventLoop loop;
  int policy = -1;
  std::thread runner([&] { loop.run(); });
  EXPECT_TRUE(loop.post([&] {
    policy = sched_getscheduler(0);
    loop.stop();
  }));
  runner.join();
  EXPECT_EQ(policy, SCHED_BATCH);
}

TEST(EventLoop, TellsWhoTurnsItWhenThereIsSomethingToDo) {
  EventLoop loop;
  const auto has_events = [&] {
    pollfd asked{loop.fd(), POLLIN, 0};
    return poll(&asked, 1, 0) == 1;
  };
  EXPECT_FALSE(has_events());
  EXPECT_EQ(loop.due(), std::nullopt);
  const auto later = loop.now() + milliseconds(50);
  loop.call_at(later + milliseconds(1), [] {});
  loop.call_at(later, [] {});
  EXPECT_EQ(loop.due(), later);
  EXPECT_TRUE(loop.post([&] { loop.defer([&loop] { loop.defer([] {}); }); }));
  EXPECT_TRUE(has_events());
  loop.turn(0);
  EXPECT_FALSE(has_events());
  loop.defer([] {});
  EXPECT_EQ(loop.due(), loop.now());
}

TEST(EventLoop, PostIsBounded) {
  EventLoop loop;
  for (size_t index = 0; index < EventLoop::kPostedMax; ++index) ASSERT_TRUE(loop.post([] {}));
  EXPECT_FALSE(loop.post([] {}));
  loop.turn(0);
  EXPECT_TRUE(loop.post([] {}));
}

TEST(EventLoop, TimersRunInOrderAndCanBeCancelled) {
  EventLoop loop;
  std::string order;
  const auto now = Clock::now();
  loop.call_at(now + milliseconds(2), [&] { order += 'b'; });
  loop.call_at(now + milliseconds(1), [&] { order += 'a'; });
  loop.cancel(loop.call_at(now + milliseconds(1), [&] { order += 'x'; }));
  while (order.size() < 2) loop.turn(100);
  EXPECT_EQ(order, "ab");
}

// A queue whose fd is an event that is raised only when this was requested.
class Memory final : public Queue {
 public:
  bool take() override {
    ++takes;
    return std::exchange(items, 0) > 0;
  }
  bool arm() override {
    ++arms;
    return take();
  }
  int items = 0, takes = 0, arms = 0;
};

TEST(EventLoop, AQueueIsAskedToTellOnlyBeforeASleep) {
  EventLoop loop;
  auto queue = std::make_shared<Memory>();
  loop.watch(queue);
  loop.turn(0);
  EXPECT_EQ(queue->takes, 1);
  EXPECT_EQ(queue->arms, 0) << "this turn does not sleep";
  queue->items = 1;
  const auto began = Clock::now();
  loop.turn(10'000);
  EXPECT_LT(Clock::now() - began, milliseconds(5'000)) << "there was something: no sleep";
  EXPECT_EQ(queue->arms, 1);
  loop.turn(1);
  EXPECT_EQ(queue->arms, 2);
  const std::weak_ptr<Memory> gone = queue;
  queue.reset();
  EXPECT_TRUE(gone.expired());
  loop.turn(1);
}

TEST(EventLoop, AQueueIsLookedAtWhileTheLoopPolls) {
  EventLoop loop;
  // It is filled by each tenth poll, and always before a sleep.
  class Filling final : public Queue {
   public:
    bool take() override { return ++looks % 10 == 0; }
    bool arm() override { return true; }
    int looks = 0;
  };
  auto queue = std::make_shared<Filling>();
  loop.watch(queue);
  loop.busy_poll(std::chrono::microseconds(EventLoop::kBusyPollUsMax), [] { return true; });
  const auto until = Clock::now() + std::chrono::seconds(60);
  while (loop.polls_paid() < 10 && Clock::now() < until) loop.turn(1);
  EXPECT_GE(loop.polls_paid(), 10u);
}

TEST(EventLoop, ACallbackMayRemoveAnotherThatIsReadyToo) {
  EventLoop loop;
  auto [a, b] = socket_pair();
  auto [c, d] = socket_pair();
  int calls = 0;
  const auto only_one = [&](int other) {
    return [&, other](uint32_t) {
      ++calls;
      loop.remove(other);
    };
  };
  ASSERT_EQ(loop.add(b.get(), EPOLLIN, only_one(d.get())), 0);
  ASSERT_EQ(loop.add(d.get(), EPOLLIN, only_one(b.get())), 0);
  ASSERT_EQ(::write(a.get(), "x", 1), 1);
  ASSERT_EQ(::write(c.get(), "x", 1), 1);
  loop.turn(0);
  EXPECT_EQ(calls, 1);
}

TEST(BufferPool, GivesBackWhatNobodyNeeded) {
  BufferPool pool(4096, 8, 8);
  {
    std::vector<BufferPool::Lease> out;
    for (int count = 0; count < 5; ++count) out.push_back(pool.lease());
  }
  EXPECT_EQ(pool.idle(), 5u);
  pool.rest();
  EXPECT_EQ(pool.idle(), 5u) << "they were needed since the last call";
  {
    const auto one = pool.lease();
    const auto two = pool.lease();
  }
  pool.rest();
  EXPECT_EQ(pool.idle(), 2u);
  EXPECT_EQ(pool.shrink(1), 1u);
  pool.rest();
  EXPECT_EQ(pool.idle(), 0u);
  EXPECT_EQ(pool.shrink(1), 0u);
}

TEST(BufferPool, IsBoundedAndAligned) {
  BufferPool pool(5000, 2, 1);
  auto first = pool.lease();
  auto second = pool.lease();
  EXPECT_EQ(first.span().size(), 8192u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.begin()) % BufferPool::kAlignment, 0u);
  EXPECT_FALSE(pool.lease());
  second.reset();
  EXPECT_TRUE(pool.lease());
  EXPECT_EQ(pool.lent(), 1u);
}

// Every buffer has its own memory, also after it was returned and its pages were released.
TEST(BufferPool, BuffersDoNotOverlap) {
  constexpr size_t kCount = 2500;  // more than two slabs of them
  BufferPool pool(4096, kCount, kCount);
  for (int round = 0; round < 3; ++round) {
    std::vector<BufferPool::Lease> out;
    for (size_t index = 0; index < kCount; ++index) {
      out.push_back(pool.lease());
      ASSERT_TRUE(out.back());
      std::memset(out.back().begin(), static_cast<int>(index % 251), 4096);
    }
    for (size_t index = 0; index < kCount; ++index) {
      ASSERT_EQ(out[index].span().front(), static_cast<std::byte>(index % 251));
      ASSERT_EQ(out[index].span().back(), static_cast<std::byte>(index % 251));
    }
    for (size_t index = 0; index < kCount; index += 3) out[index].reset();
    EXPECT_EQ(pool.shrink(kCount), (kCount + 2) / 3);
  }
  pool.rest();
  pool.rest();
  EXPECT_EQ(pool.idle(), 0u);
}

TEST(BufferPool, PagesGoBackToTheSystem) {
  constexpr size_t kSize = 64u << 10;
  BufferPool pool(kSize, 1, 1);
  const std::byte* begin = nullptr;
  {
    auto lease = pool.lease();
    begin = lease.begin();
    std::memset(lease.begin(), 7, kSize);
  }
  pool.rest();
  pool.rest();
  auto again = pool.lease();
  EXPECT_EQ(again.begin(), begin);
  EXPECT_EQ(again.span()[kSize / 2], std::byte{0}) << "fresh pages";
}

TEST(Slabs, OnHugePagesBuffersLieSideBySideFromABoundaryOn) {
  constexpr size_t kSize = (1u << 20) + 8192;
  Slabs slabs(kSize, Slabs::Pages::kHuge);
  std::vector<std::byte*> buffers;
  for (size_t index = 0; index < Slabs::kHugeSlabBytes / kSize + 1; ++index) {
    buffers.push_back(slabs.take());
    ASSERT_NE(buffers.back(), nullptr);
    std::memset(buffers.back(), static_cast<int>(index), kSize);
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.front()) % Slabs::kHugePage, 0u);
  for (size_t index = 0; index < buffers.size(); ++index) {
    EXPECT_EQ(buffers[index][0], static_cast<std::byte>(index));
    EXPECT_EQ(buffers[index][kSize - 1], static_cast<std::byte>(index));
    if (index > 0 && index + 1 < buffers.size()) {
      EXPECT_EQ(buffers[index], buffers[index - 1] + kSize);
    }
  }
  for (std::byte* buffer : buffers) slabs.give_back(buffer);
  slabs.cool();
  EXPECT_EQ(slabs.take()[kSize / 2], std::byte{0}) << "fresh pages";
}

TEST(Slabs, BuffersOfAHugePageGoBackTogether) {
  constexpr size_t kSize = Slabs::kHugePage / 4;
  Slabs slabs(kSize, Slabs::Pages::kHuge);
  std::vector<std::byte*> buffers;
  for (int index = 0; index < 9;
       ++index) {  // the pages are those of two whole huge pages and the first quarter of the next
    buffers.push_back(slabs.take());
    ASSERT_NE(buffers.back(), nullptr);
    std::memset(buffers.back(), 7, kSize);
  }
  for (int index = 1; index < 9; ++index) slabs.give_back(buffers[static_cast<size_t>(index)]);
  slabs.cool();
  EXPECT_EQ(buffers[4][0], std::byte{0}) << "the second page was free";
  EXPECT_EQ(buffers[7][kSize - 1], std::byte{0});
  EXPECT_EQ(buffers[1][0], std::byte{7}) << "of the first page one is out";
  EXPECT_EQ(buffers[8][0], std::byte{7}) << "of the third page others were never taken";
  std::vector<std::byte*> again;
  for (int index = 0; index < 12; ++index) again.push_back(slabs.take());
  again.push_back(buffers[0]);
  std::ranges::sort(again);
  EXPECT_EQ(std::ranges::adjacent_find(again), again.end()) << "each is its own memory";
}

class Peer : public StreamSink {
 public:
  PayloadPlace payload_buffer(const FrameHeader& header, std::span<const std::byte>) override {
    if (pausing) return {Verdict::kPause, {}};
    place.resize(header.payload_length);
    return {Verdict::kTake, place};
  }
  bool frame(const FrameHeader& header, std::span<const std::byte>,
             std::span<std::byte> payload) override {
    ++frames;
    bytes += payload.size();
    in_order = in_order && header.request_id == frames;
    intact = intact && std::all_of(payload.begin(), payload.end(), [&](std::byte byte) {
               return byte == static_cast<std::byte>(header.request_id);
             });
    return true;
  }
  void closed(int error, const std::string&) override {
    is_closed = true;
    closed_error = error;
  }
  void sendable() override { ++sendables; }

  std::vector<std::byte> place;
  uint64_t frames = 0, bytes = 0;
  int sendables = 0, closed_error = 0;
  bool in_order = true, intact = true, is_closed = false, pausing = false;
};

struct Pair {
  explicit Pair(StreamLimits limits = {}) {
    auto [one, two] = socket_pair();
    left = std::make_unique<FrameStream>(loop, std::move(one), left_sink, limits);
    right = std::make_unique<FrameStream>(loop, std::move(two), right_sink, limits);
    EXPECT_EQ(left->start(), 0);
    EXPECT_EQ(right->start(), 0);
  }
  bool send(uint64_t id, std::span<const std::byte> payload) {
    OutFrame frame;
    frame.header.request_id = id;
    frame.payload = payload;
    return left->send(std::move(frame));
  }
  // So many frames and bytes arrive as they were sent, and nothing is left.
  void expect_arrival(uint64_t frames, uint64_t bytes) {
    for (int turn = 0; turn < 10'000 && right_sink.frames < frames; ++turn) loop.turn(10);
    EXPECT_EQ(right_sink.frames, frames);
    EXPECT_EQ(right_sink.bytes, bytes);
    EXPECT_TRUE(right_sink.in_order && right_sink.intact);
    EXPECT_EQ(left->frames_queued(), 0u);
    EXPECT_EQ(left->bytes_queued(), 0u);
  }
  EventLoop loop;
  Peer left_sink, right_sink;
  std::unique_ptr<FrameStream> left, right;
};

TEST(FrameStream, FramesOfAllSizesArriveInOrder) {
  Pair pair;
  std::vector<std::vector<std::byte>> payloads;
  uint64_t total = 0;
  for (uint64_t id = 1; id <= 200; ++id) {
    payloads.emplace_back(id % 7 == 0 ? 300'000 : id * 3, static_cast<std::byte>(id));
    total += payloads.back().size();
    ASSERT_TRUE(pair.send(id, payloads.back()));
  }
  pair.expect_arrival(200, total);
}

// An unnamed file with such bytes.
UniqueFd file_of(size_t length, std::byte content) {
  char name[] = "/tmp/braidfs-test-XXXXXX";
  UniqueFd file(mkstemp(name));
  EXPECT_GE(file.get(), 0);
  EXPECT_EQ(unlink(name), 0);
  const std::vector<std::byte> bytes(length, content);
  EXPECT_EQ(::write(file.get(), bytes.data(), length), static_cast<ssize_t>(length));
  return file;
}

TEST(FrameStream, BytesOfFilesArriveAmongOthers) {
  constexpr uint32_t kLength = 300'000;
  Pair pair;
  ASSERT_TRUE(pair.left->takes_pages());
  std::vector<UniqueFd> files;
  std::vector<std::array<FilePart, 2>> parts(60);
  std::vector<std::vector<std::byte>> tails;
  uint64_t total = 0;
  for (uint64_t id = 1; id <= 60; ++id) {
    const auto content = static_cast<std::byte>(id);
    files.push_back(file_of(kLength, content));
    tails.emplace_back(id % 4 == 0 ? 0 : id * 100, content);
    const int file = files.back().get();
    parts[id - 1] = {FilePart{file, 1000, kLength - 1000},
                     FilePart{file, 0, static_cast<uint32_t>(id)}};
    OutFrame frame{.payload = tails.back()};
    frame.header.request_id = id;
    const size_t used = id % 3;
    frame.files = std::span(parts[id - 1]).first(used);
    total += (used > 0 ? kLength - 1000 : 0) + (used > 1 ? id : 0) + tails.back().size();
    ASSERT_TRUE(pair.left->send(std::move(frame)));
  }
  EXPECT_EQ(pair.left->bytes_queued(), total);
  pair.expect_arrival(60, total);
}

TEST(FrameStream, MemoryThatIsLentArrivesAmongOthers) {
  Pair pair({.local_send_buffer = 1 << 20});
  std::vector<std::vector<std::byte>> payloads;
  uint64_t total = 0;
  for (uint64_t id = 1; id <= 60; ++id) {
    payloads.emplace_back(id % 5 == 0   ? 3'000'000
                          : id % 3 == 0 ? 0
                                        : id * 2'000,
                          static_cast<std::byte>(id));
    total += payloads.back().size();
    OutFrame frame{.payload = payloads.back(), .lends = id % 4 != 1};
    frame.header.request_id = id;
    ASSERT_TRUE(pair.left->send(std::move(frame)));
  }
  pair.expect_arrival(60, total);
}

TEST(FrameStream, WhatIsLentIsNotCopied) {
  if (PagePipe pipe; !pipe.open()) GTEST_SKIP() << "no pipe of 256 KiB for this user now";
  for (const bool lends : {true, false}) {
    Pair pair;
    pair.right_sink.pausing = true;
    std::vector<std::byte> payload(100'000, std::byte{1});
    OutFrame frame{.payload = payload, .lends = lends};
    frame.header.request_id = 1;
    ASSERT_TRUE(pair.left->send(std::move(frame)));
    for (int turn = 0; turn < 100 && pair.left->frames_queued() > 0; ++turn) pair.loop.turn(1);
    ASSERT_EQ(pair.left->frames_queued(), 0u) << "the socket has it";
    payload[50'000] = std::byte{2};
    pair.right_sink.pausing = false;
    pair.right->resume();
    for (int turn = 0; turn < 1000 && pair.right_sink.frames == 0; ++turn) pair.loop.turn(10);
    EXPECT_EQ(pair.right_sink.bytes, payload.size());
    EXPECT_EQ(pair.right_sink.intact, !lends);
  }
}

// The receiver notices by the checksums; the connection goes on.
TEST(FrameStream, WhatAFileLacksComesAsZeros) {
  Pair pair;
  const UniqueFd file = file_of(10'000, std::byte{1});
  const std::array<FilePart, 1> part{FilePart{file.get(), 0, 100'000}};
  OutFrame frame{.files = part};
  frame.header.request_id = 1;
  ASSERT_TRUE(pair.left->send(std::move(frame)));
  ASSERT_TRUE(pair.send(2, {}));
  for (int turn = 0; turn < 1000 && pair.right_sink.frames < 2; ++turn) pair.loop.turn(10);
  EXPECT_EQ(pair.right_sink.frames, 2u);
  EXPECT_EQ(pair.right_sink.bytes, 100'000u);
  EXPECT_FALSE(pair.right_sink.intact);
  EXPECT_EQ(pair.right_sink.closed_error, 0);
}

TEST(FrameStream, APeerThatIsGoneEndsAFileToo) {
  EventLoop loop;
  auto [one, two] = socket_pair();
  Peer sink;
  FrameStream stream(loop, std::move(one), sink);
  ASSERT_EQ(stream.start(), 0);
  const UniqueFd file = file_of(4u << 20, std::byte{1});
  const std::array<FilePart, 1> part{FilePart{file.get(), 0, 4u << 20}};
  std::thread runner([&] { loop.run(); });
  std::atomic<bool> sent = false;
  EXPECT_TRUE(loop.post([&] {
    sent = stream.send({.files = part});
    stream.flush();  // this sends as much as the socket takes
    two.reset();
    stream.flush();
    loop.defer([&] { loop.stop(); });
  }));
  runner.join();
  EXPECT_TRUE(sent);
  loop.turn(10);
  EXPECT_TRUE(sink.is_closed);
}

// The name of the socket's congestion control.
std::string congestion(int socket) {
  std::array<char, 16> name{};
  auto length = static_cast<socklen_t>(name.size());
  EXPECT_EQ(getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length), 0);
  return name.data();
}

TEST(FrameStream, TcpIsNotLeftToBbr) {
  EventLoop loop;
  Peer sink;
  for (const std::string before : {"bbr", "reno"}) {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int number = socket.get();
    if (setsockopt(number, IPPROTO_TCP, TCP_CONGESTION, before.data(),
                   static_cast<socklen_t>(before.size())) != 0) {
      GTEST_SKIP() << "this machine does not let us have " << before;
    }
    FrameStream stream(loop, std::move(socket), sink, {});
    ASSERT_EQ(stream.start(), 0);
    if (before == "bbr") {
      EXPECT_NE(congestion(number), "bbr");
    } else {
      EXPECT_EQ(congestion(number), before);
    }
  }
}

TEST(FrameStream, ABoundedQueueTellsWhenItHasRoom) {
  Pair pair({.frames_queued_max = 4});
  uint64_t id = 1;
  while (pair.send(id, {})) ++id;
  EXPECT_EQ(id, 5u);
  for (int turn = 0; turn < 100 && pair.left_sink.sendables == 0; ++turn) pair.loop.turn(10);
  EXPECT_EQ(pair.left_sink.sendables, 1);
}

TEST(FrameStream, APausedReceiverHoldsTheSenderBack) {
  Pair pair;
  pair.right_sink.pausing = true;
  const std::vector<std::byte> payload(1u << 20, std::byte{1});
  ASSERT_TRUE(pair.send(1, payload));
  for (int turn = 0; turn < 50; ++turn) pair.loop.turn(1);
  EXPECT_EQ(pair.right_sink.frames, 0u);
  pair.right_sink.pausing = false;
  pair.right->resume();
  for (int turn = 0; turn < 1000 && pair.right_sink.frames == 0; ++turn) pair.loop.turn(10);
  EXPECT_EQ(pair.right_sink.bytes, payload.size());
}

TEST(FrameStream, ThePeersEndIsToldOnce) {
  Pair pair;
  pair.right.reset();
  for (int turn = 0; turn < 100 && !pair.left_sink.is_closed; ++turn) pair.loop.turn(10);
  EXPECT_TRUE(pair.left_sink.is_closed);
  EXPECT_FALSE(pair.left->is_open());
  EXPECT_FALSE(pair.send(1, {}));
}

TEST(FrameStream, GarbageCutsTheConnection) {
  EventLoop loop;
  auto [one, two] = socket_pair();
  Peer sink;
  FrameStream stream(loop, std::move(one), sink);
  ASSERT_EQ(stream.start(), 0);
  const std::vector<char> garbage(200, 'x');
  ASSERT_EQ(::write(two.get(), garbage.data(), garbage.size()), 200);
  for (int turn = 0; turn < 100 && !sink.is_closed; ++turn) loop.turn(10);
  EXPECT_EQ(sink.closed_error, EPROTO);
}

TEST(FrameStream, AnEndInTheMiddleOfAFrameIsAnError) {
  EventLoop loop;
  auto [one, two] = socket_pair();
  Peer sink;
  FrameStream stream(loop, std::move(one), sink);
  ASSERT_EQ(stream.start(), 0);
  FrameHeader header;
  seal(header);
  ASSERT_EQ(::write(two.get(), &header, 40), 40);
  two.reset();
  for (int turn = 0; turn < 100 && !sink.is_closed; ++turn) loop.turn(10);
  EXPECT_EQ(sink.closed_error, ECONNRESET);
}

}  // namespace
}  // namespace braidfs::net
