// What ends a request whose caller got a signal: parse_signals() of what /proc says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>

#include "fuse/signals.h"

namespace braidfs::fuse {
namespace {

constexpr uint64_t bit(int signal) { return 1ULL << (signal - 1); }

struct Masks {
  uint64_t own = 0;
  uint64_t shared = 0;
  uint64_t blocked = 0;
  uint64_t ignored = 0;
  uint64_t handled = 0;
};

Signals signals(const Masks& masks) {
  std::string text = "Name:\tSigPnd:\tff\nGroups:\t1 2 3";
  const auto line = [&](const char* name, uint64_t mask) {
    std::array<char, 40> digits;
    std::snprintf(digits.data(), digits.size(), "\n%s:\t%016llx", name,
                  static_cast<unsigned long long>(mask));
    text += digits.data();
  };
  line("SigPnd", masks.own);
  line("ShdPnd", masks.shared);
  line("SigBlk", masks.blocked);
  line("SigIgn", masks.ignored);
  line("SigCgt", masks.handled);
  return parse_signals(text + "\n").value();
}

TEST(Signals, OneThatEndsTheProcessIsFatal) {
  EXPECT_FALSE(signals({}).fatal);
  EXPECT_TRUE(signals({.own = bit(SIGKILL)}).fatal);
  EXPECT_TRUE(signals({.shared = bit(SIGINT)}).fatal);
  EXPECT_TRUE(signals({.shared = bit(SIGQUIT)}).fatal);
  EXPECT_TRUE(signals({.own = bit(SIGALRM)}).fatal);
  EXPECT_TRUE(signals({.shared = bit(64)}).fatal);
}

TEST(Signals, OneThatIsHandledIgnoredOrBlockedIsNot) {
  for (const int signal : {SIGALRM, SIGINT, SIGPROF, SIGUSR1, SIGTERM}) {
    EXPECT_FALSE(signals({.shared = bit(signal), .handled = bit(signal)}).fatal);
    EXPECT_FALSE(signals({.shared = bit(signal), .ignored = bit(signal)}).fatal);
    EXPECT_FALSE(signals({.own = bit(signal), .blocked = bit(signal)}).fatal);
  }
  EXPECT_TRUE(signals({.shared = bit(SIGALRM) | bit(SIGTERM), .handled = bit(SIGALRM)}).fatal);
}

TEST(Signals, WhatIsIgnoredOrStopsByDefaultIsNot) {
  for (const int signal :
       {SIGCHLD, SIGURG, SIGWINCH, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU}) {
    EXPECT_FALSE(signals({.shared = bit(signal)}).fatal) << signal;
  }
}

TEST(Signals, SomeAskThoughTheyAreHandled) {
  EXPECT_TRUE(signals({.shared = bit(SIGINT), .handled = bit(SIGINT)}).asks);
  EXPECT_TRUE(signals({.own = bit(SIGTERM), .handled = bit(SIGTERM)}).asks);
  EXPECT_FALSE(signals({.shared = bit(SIGALRM), .handled = bit(SIGALRM)}).asks);
  EXPECT_FALSE(
      signals({.shared = bit(SIGINT), .blocked = bit(SIGINT), .handled = bit(SIGINT)}).asks);
}

TEST(Signals, NonsenseIsNoAnswer) {
  EXPECT_FALSE(parse_signals(""));
  EXPECT_FALSE(parse_signals("\nSigPnd:\tzz\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n"));
  EXPECT_FALSE(parse_signals("\nSigPnd:\t0\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t"));
}

TEST(Signals, OfOwnThreadAndOfNone) {
  EXPECT_TRUE(signals_of(static_cast<uint32_t>(::gettid())).has_value());
  EXPECT_FALSE(signals_of(0).has_value());
  EXPECT_FALSE(signals_of(1u << 30).has_value());
}

}  // namespace
}  // namespace braidfs::fuse
