// How long a loop polls before it sleeps, and that a polling loop still does all its other work.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "net/event_loop.h"

namespace braidfs::net {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

const BusyPoll::Clock::time_point kNow{std::chrono::hours(1)};

BusyPoll grown(microseconds max) {
  BusyPoll poll;
  poll.window_max(max);
  while (poll.window(kNow) < max) poll.slept(poll.window(kNow) + microseconds(1));
  return poll;
}

TEST(BusyPoll, GrowsWhileWaitsEndSoonAfterTheWindow) {
  BusyPoll poll;
  poll.window_max(microseconds(200));
  EXPECT_EQ(poll.window(kNow), nanoseconds{});
  poll.slept(microseconds(60));
  EXPECT_EQ(poll.window(kNow), BusyPoll::kWindowMin);
  poll.slept(microseconds(60));
  poll.slept(microseconds(60));  // it is 50 us now, which is not enough either
  EXPECT_EQ(poll.window(kNow), microseconds(100));
  poll.slept(microseconds(60));  // this would have been enough
  EXPECT_EQ(poll.window(kNow), microseconds(100));
  poll.slept(microseconds(199));
  poll.slept(microseconds(199));
  EXPECT_EQ(poll.window(kNow), microseconds(200));
}

TEST(BusyPoll, ShrinksToNothingWhileWaitsAreLong) {
  BusyPoll poll = grown(microseconds(200));
  poll.slept(milliseconds(1));
  EXPECT_EQ(poll.window(kNow), microseconds(100));
  for (int wait = 0; wait < 3; ++wait) poll.slept(milliseconds(1));
  EXPECT_EQ(poll.window(kNow), nanoseconds{});
}

TEST(BusyPoll, RestsWhenTheCoreIsSomebodyElses) {
  BusyPoll poll = grown(microseconds(200));
  for (int look = 0; look < BusyPoll::kStrikesMax / BusyPoll::kStrike; ++look) {
    EXPECT_EQ(poll.window(kNow), microseconds(200));
    poll.looked(true, kNow);
  }
  EXPECT_EQ(poll.window(kNow), nanoseconds{});
  EXPECT_EQ(poll.window(kNow + BusyPoll::kRestMin), microseconds(200));
}

TEST(BusyPoll, RestsShortlyWhenNoCoreIdles) {
  BusyPoll poll = grown(microseconds(200));
  poll.machine_is_busy(kNow);
  EXPECT_EQ(poll.window(kNow), nanoseconds{});
  EXPECT_EQ(poll.window(kNow + BusyPoll::kBusyFor), microseconds(200));
}

TEST(BusyPoll, ALoneLongYieldIsForgiven) {
  BusyPoll poll = grown(microseconds(200));
  for (int look = 0; look < 1000; ++look) poll.looked(look % 5 == 0, kNow);
  EXPECT_EQ(poll.window(kNow), microseconds(200));
}

TEST(BusyPoll, RestsTwiceAsLongWhenItIsSoAgain) {
  BusyPoll poll = grown(microseconds(200));
  auto now = kNow;
  nanoseconds last{};
  for (int round = 0; round < 12; ++round) {
    while (poll.window(now) > nanoseconds{}) poll.looked(true, now);
    nanoseconds rest{};
    while (poll.window(now + rest) == nanoseconds{}) rest += milliseconds(20);
    EXPECT_EQ(rest, round == 0 ? BusyPoll::kRestMin
                               : std::min<nanoseconds>(last * 2, BusyPoll::kRestMax));
    last = rest;
    now += rest;
  }
  now += BusyPoll::kRestMax * 2;  // everything was well for long, so it starts again
  while (poll.window(now) > nanoseconds{}) poll.looked(true, now);
  EXPECT_EQ(poll.window(now + BusyPoll::kRestMin), microseconds(200));
}

// Two loops wake each other in turns. Whether polling pays depends on the machine, so this goes on
// until it did.
TEST(EventLoop, FindsEventsBeforeItSleeps) {
  EventLoop loop;
  UniqueFd there(eventfd(0, EFD_CLOEXEC));
  UniqueFd back(eventfd(0, EFD_CLOEXEC));
  const auto raise = [](int fd) { EXPECT_EQ(eventfd_write(fd, 1), 0); };
  const auto lower = [](int fd) {
    eventfd_t count = 0;
    EXPECT_EQ(eventfd_read(fd, &count), 0);
  };
  std::thread echo([&] {
    eventfd_t count = 0;
    while (eventfd_read(there.get(), &count) == 0 && count == 1) raise(back.get());
  });
  loop.busy_poll(
      microseconds(EventLoop::kBusyPollUsMax), [] { return true; }, [] { return true; });
  const auto until = Clock::now() + std::chrono::seconds(60);
  int64_t rounds = 0;
  ASSERT_EQ(loop.add(back.get(), EPOLLIN,
                     [&](uint32_t) {
                       lower(back.get());
                       ++rounds;
                       if (loop.polls_paid() < 10 && Clock::now() < until)
                         return raise(there.get());
                       loop.stop();
                     }),
            0);
  raise(there.get());
  loop.run();
  EXPECT_GE(loop.polls_paid(), 10u);
  EXPECT_GE(rounds, 10);
  EXPECT_EQ(eventfd_write(there.get(), 2), 0);
  echo.join();
}

TEST(EventLoop, TimersAndPostedTasksRunWhileItLooks) {
  EventLoop loop;
  loop.busy_poll(
      microseconds(EventLoop::kBusyPollUsMax), [] { return true; }, [] { return true; });
  int ran = 0;
  for (int timer = 0; timer < 20; ++timer) {
    loop.call_at(Clock::now() + microseconds(300 * timer), [&] { ++ran; });
  }
  std::thread poster([&] {
    for (int task = 0; task < 20; ++task) EXPECT_TRUE(loop.post([&] { ++ran; }));
  });
  const auto until = Clock::now() + std::chrono::seconds(60);
  while (ran < 40 && Clock::now() < until) loop.turn(100);
  poster.join();
  EXPECT_EQ(ran, 40);
}

}  // namespace
}  // namespace braidfs::net
