// The parts of the server that need no socket: buffers, sessions, capabilities, events, workers.
#include <poll.h>

#include "peer.h"
#include "server/fetcher.h"

namespace braidfs::server {
namespace {

TEST(BufferPool, SomeBuffersAreReadyBeforeTheyAreNeeded) {
  constexpr size_t kMiB = 1u << 20;
  Counters counters;
  BufferPool pool(40 * kMiB, counters);
  pool.warm(32 * kMiB);
  const uint64_t ready = counters.buffer_bytes.load();
  EXPECT_GT(ready, 8 * kMiB);
  EXPECT_LE(ready, 10 * kMiB) << "a quarter of the bound";
  EXPECT_FALSE(pool.lacking());
  EXPECT_EQ(pool.bytes_in_use(), 0u);
  std::vector<Buffer> taken;
  for (int number = 0; number < 8; ++number) taken.push_back(pool.take(kMiB));
  EXPECT_EQ(counters.buffer_bytes.load(), ready) << "they were there";
  EXPECT_TRUE(pool.take(BufferPool::kSizeMax)) << "and make room for others";
}

TEST(BufferPool, BuffersAreAlignedAndBoundedAndReused) {
  Counters counters;
  BufferPool pool(40u << 20, counters);
  std::vector<Buffer> taken;
  for (const size_t size : {1u, 4096u, 12289u, 1u << 20, 16u << 20}) {
    taken.push_back(pool.take(size));
    ASSERT_TRUE(taken.back());
    EXPECT_GE(taken.back().size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(taken.back().data()) % 4096, 0u);
  }
  taken.push_back(pool.take(BufferPool::kSizeMax));
  EXPECT_TRUE(taken.back());
  EXPECT_FALSE(pool.take(BufferPool::kSizeMax)) << "over the bound";
  EXPECT_FALSE(pool.take(BufferPool::kSizeMax + 1));
  taken.clear();
  EXPECT_EQ(pool.bytes_in_use(), 0u);
  const Buffer one = pool.take(BufferPool::kSizeMax);
  const Buffer two = pool.take(BufferPool::kSizeMax);
  EXPECT_TRUE(one && two) << "kept buffers of other sizes make room";
  EXPECT_LE(counters.buffer_bytes.load(), 40u << 20);
}

TEST(Fetcher, WhatNobodyReadsMakesRoomInTheEnd) {
  const TargetTable targets;
  Fetcher fetcher(targets, 1000);
  const auto now = Fetcher::Clock::now();
  const auto wants = [&](uint64_t file_id, uint32_t length, Fetcher::Clock::time_point at) {
    return fetcher.want(std::array{Fetcher::Wanted{{file_id, 0}, kTarget, length}}, at);
  };
  EXPECT_TRUE(wants(1, 600, now));
  EXPECT_TRUE(wants(1, 600, now)) << "known already";
  EXPECT_FALSE(wants(2, 600, now));
  EXPECT_FALSE(wants(2, 600, now + Fetcher::kUnreadFor - std::chrono::seconds(1)));
  EXPECT_TRUE(wants(2, 600, now + Fetcher::kUnreadFor));
  EXPECT_EQ(fetcher.counts().unused, 1u);
  EXPECT_EQ(fetcher.counts().refused, 2u);
  fetcher.was_read(kTarget + 1, {2, 0});
  EXPECT_FALSE(wants(3, 600, now + Fetcher::kUnreadFor)) << "that was another target's";
  fetcher.was_read(kTarget, {2, 0});
  EXPECT_TRUE(wants(3, 600, now + Fetcher::kUnreadFor));
  fetcher.stop();
  EXPECT_FALSE(wants(4, 1, now));
}

TEST(SessionTable, FencedStaysFenced) {
  SessionTable table;
  EXPECT_FALSE(table.ready());
  const auto state = table.connection_added(1);
  EXPECT_EQ(state->life(), SessionState::Life::kUnknown);
  table.replace(std::array<uint64_t, 2>{1, 2});
  EXPECT_TRUE(table.ready());
  EXPECT_EQ(state->life(), SessionState::Life::kLive);
  table.fence(1);
  table.replace(std::array<uint64_t, 2>{1, 2});
  EXPECT_EQ(state->life(), SessionState::Life::kFenced);
}

TEST(SessionTable, WaitersRunWhenTheLastConnectionEnds) {
  SessionTable table;
  int ended = 0;
  EXPECT_TRUE(table.when_ended(1, [&] { ++ended; }));
  EXPECT_EQ(ended, 1) << "there was none";
  table.connection_added(1);
  table.connection_added(1);
  EXPECT_TRUE(table.when_ended(1, [&] { ++ended; }));
  table.connection_ended(1);
  EXPECT_EQ(ended, 1);
  table.connection_ended(1);
  EXPECT_EQ(ended, 2);
}

TEST(CapabilityCache, IsBounded) {
  CapabilityKey key;
  CapabilityCache cache(key);
  EXPECT_EQ(cache.check(capability_for(1), {.file_id = 1}, kSession, kRightRead),
            Status::kBadCapability)
      << "no key yet";
  key.set(key_bytes());
  for (uint64_t file = 1; file <= CapabilityCache::kEntriesMax + 100; ++file) {
    ASSERT_EQ(cache.check(capability_for(file), {.file_id = file}, kSession, kRightRead),
              Status::kOk);
  }
  EXPECT_EQ(cache.size(), CapabilityCache::kEntriesMax);
  EXPECT_EQ(cache.check(capability_for(1), {.file_id = 1}, kSession, kRightRead), Status::kOk);
}

TEST(EventQueue, FdIsReadableWhileThereAreEventsAndLogsAreBounded) {
  EventQueue queue;
  const auto readable = [&] {
    pollfd poll_fd{.fd = queue.fd(), .events = POLLIN, .revents = 0};
    return ::poll(&poll_fd, 1, 0) == 1;
  };
  EXPECT_FALSE(readable());
  for (size_t index = 0; index < EventQueue::kLogsMax + 5; ++index) {
    queue.log(LogLevel::kNotice, "line");
  }
  queue.closed(1, 2);
  EXPECT_EQ(queue.dropped(), 5u);
  EXPECT_EQ(queue.reap(10).size(), 10u);
  EXPECT_TRUE(readable());
  const auto rest = queue.reap(100000);
  EXPECT_EQ(rest.back().kind, EventKind::kClosed) << "a full log keeps no CLOSED out";
  EXPECT_FALSE(readable());
}

TEST(WorkerPool, WithoutThreadsGivesItsTasksAwayInOrder) {
  std::string ran;
  WorkerPool pool("test", 0, 3);
  for (const char name : {'a', 'b', 'c'}) ASSERT_TRUE(pool.submit([&, name] { ran += name; }));
  EXPECT_FALSE(pool.submit([] {}));
  const auto first = pool.take();
  EXPECT_EQ(ran, "");
  first();
  EXPECT_EQ(ran, "a");
  pool.stop();  // what it took runs before it stops
  EXPECT_EQ(ran, "abc");
  EXPECT_EQ(pool.take(), nullptr);
}

TEST(WorkerPool, RefusesWhenFullAndRunsWhatItTookBeforeItStops) {
  std::atomic<int> ran{0};
  std::mutex gate;
  std::atomic<bool> holding{false};
  WorkerPool pool("test", 1, 2);
  std::unique_lock hold(gate);
  ASSERT_TRUE(pool.submit([&] {
    holding = true;
    const std::scoped_lock wait(gate);
    ++ran;
  }));
  while (!holding) std::this_thread::yield();
  EXPECT_TRUE(pool.submit([&] { ++ran; }));
  EXPECT_TRUE(pool.submit([&] { ++ran; }));
  EXPECT_FALSE(pool.submit([&] { ++ran; }));
  hold.unlock();
  pool.stop();
  EXPECT_EQ(ran, 3);
  EXPECT_FALSE(pool.submit([] {}));
}

}  // namespace
}  // namespace braidfs::server
