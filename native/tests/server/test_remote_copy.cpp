// RemoteCopy: what it makes of an object of another server, and of a server that lies.
#include "server/remote_copy.h"

#include <thread>

#include "peer.h"

namespace braidfs::server {
namespace {

constexpr uint32_t kSourceNumber = 3;
constexpr uint32_t kNewNumber = 3 | 1u << limits::kGenerationShift;
constexpr uint32_t kEpoch = 5;
constexpr std::chrono::milliseconds kWaits{10'000};
constexpr uint64_t kMiB = 1u << 20;

CopyOrder order(uint32_t number = kNewNumber, uint32_t epoch = kEpoch) {
  return {.source = {kTarget, kFile, kSourceNumber},
          .target = kTarget,
          .object = {kFile, number},
          .epoch = epoch};
}

// Two ends of a connection.
std::array<net::UniqueFd, 2> ends() {
  int both[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
  return {net::UniqueFd(both[0]), net::UniqueFd(both[1])};
}

// The server under test is both the source's and that of the copy.
class RemoteCopyTest : public ServerTest {
 protected:
  std::unique_ptr<RemoteCopy> connected() {
    auto [ours, theirs] = ends();
    EXPECT_TRUE(server_->adopt({.socket = std::move(theirs),
                                .purpose = Purpose::kServer,
                                .session = 0,
                                .connection = ++connection_,
                                .previous = 0}));
    return std::make_unique<RemoteCopy>(net::Socket(std::move(ours)), kWaits);
  }

  CopyProgress run(RemoteCopy& copy, const CopyOrder& what, uint64_t step = 8 * kMiB) {
    copy.begin(what);
    CopyProgress done;
    do {
      done = server_->copy_step(copy, step);
    } while (done.status == Status::kOk && !done.is_done);
    return done;
  }

  void write(Peer& metaserver, uint64_t offset, const Bytes& bytes,
             uint32_t number = kSourceNumber) {
    for (size_t at = 0; at < bytes.size(); at += kMiB) {
      const size_t end = std::min<size_t>(bytes.size(), at + kMiB);
      Frame frame = bare_write(offset + at, Bytes(bytes.begin() + static_cast<ptrdiff_t>(at),
                                                  bytes.begin() + static_cast<ptrdiff_t>(end)));
      frame.header.stripe_index = number;
      ASSERT_EQ(metaserver.status_of(frame.seal()), Status::kOk);
    }
  }

  Bytes content(Peer& metaserver, uint32_t number, uint32_t length) {
    Bytes all;
    for (uint32_t at = 0; at < length; at += kMiB) {
      Frame frame = request(Op::kRead);
      frame.header.stripe_index = number;
      frame.header.offset = at;
      frame.header.length = std::min<uint32_t>(kMiB, length - at);
      const Reply reply = metaserver.ask(frame.seal());
      EXPECT_EQ(reply.status(), Status::kOk);
      all.insert(all.end(), reply.payload.begin(), reply.payload.end());
    }
    return all;
  }

  // Length and epoch.
  std::pair<uint64_t, uint64_t> figures(Peer& metaserver, uint32_t number) {
    Frame frame = request(Op::kStat);
    frame.header.stripe_index = number;
    const Reply reply = metaserver.ask(frame.seal());
    EXPECT_EQ(reply.status(), Status::kOk);
    uint64_t words[3] = {};
    std::memcpy(words, reply.body.data(), std::min(sizeof words, reply.body.size()));
    return {words[0], words[2]};
  }
};

TEST_F(RemoteCopyTest, CopiesBytesAndHolesInStepsOfAnyLength) {
  Peer metaserver = connect_metaserver();
  const Bytes head = pattern(100'000, 1), tail = pattern(9 * kMiB + 1234, 2);
  write(metaserver, 0, head);
  write(metaserver, 3 * kMiB, tail);
  Bytes image = head;
  image.resize(3 * kMiB);
  image.insert(image.end(), tail.begin(), tail.end());
  const auto copy = connected();
  uint32_t number = kNewNumber;
  for (const uint64_t step : {uint64_t{1}, kMiB, 64 * kMiB}) {
    const CopyProgress done = run(*copy, order(number), step);
    ASSERT_EQ(done.status, Status::kOk) << done.message;
    EXPECT_GE(done.bytes, head.size() + tail.size());
    EXPECT_LT(done.bytes, head.size() + tail.size() + 2 * limits::kBlockSize) << "no holes";
    EXPECT_NE(done.incarnation, 0u);
    EXPECT_EQ(done.incarnation, done.source_incarnation);
    EXPECT_EQ(content(metaserver, number, static_cast<uint32_t>(image.size())), image);
    EXPECT_EQ(figures(metaserver, number), std::pair(image.size(), uint64_t{kEpoch}));
    EXPECT_TRUE(copy->is_usable());
    number += 1u << limits::kGenerationShift;
  }
}

TEST_F(RemoteCopyTest, EmptiesWhatAFormerAttemptLeft) {
  Peer metaserver = connect_metaserver();
  const Bytes bytes = pattern(50'000, 3);
  write(metaserver, 8192, bytes);
  write(metaserver, 0, pattern(5 * kMiB, 4), kNewNumber);
  const auto copy = connected();
  for (int again = 0; again < 2; ++again) {
    const CopyProgress done = run(*copy, order());
    ASSERT_EQ(done.status, Status::kOk) << done.message;
    Bytes image(8192);
    image.insert(image.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(content(metaserver, kNewNumber, 5 * kMiB), image);
  }
}

TEST_F(RemoteCopyTest, AMissingSourceIsAHoleUnlessItMustExist) {
  Peer metaserver = connect_metaserver();
  const auto copy = connected();
  CopyOrder what = order();
  what.must_exist = true;
  EXPECT_EQ(run(*copy, what).status, Status::kNoObject);
  const CopyProgress done = run(*copy, order());
  EXPECT_EQ(done.status, Status::kOk) << done.message;
  EXPECT_NE(done.source_incarnation, 0u);
  EXPECT_EQ(figures(metaserver, kNewNumber), std::pair(uint64_t{0}, uint64_t{kEpoch}));
}

TEST_F(RemoteCopyTest, RefusesEpochsThatArePassedTargetsAndNamesThatAreGone) {
  Peer metaserver = connect_metaserver();
  write(metaserver, 0, pattern(5000));
  const auto copy = connected();
  ASSERT_EQ(run(*copy, order()).status, Status::kOk);
  EXPECT_EQ(run(*copy, order(kNewNumber, kEpoch - 1)).status, Status::kStaleTruncateEpoch);
  CopyOrder nowhere = order();
  nowhere.target = kTarget + 1;
  EXPECT_EQ(run(*copy, nowhere).status, Status::kNoTarget);
  ASSERT_EQ(metaserver.status_of(drop_names({{kFile, kNewNumber, 0}})), Status::kOk);
  EXPECT_EQ(run(*copy, order()).status, Status::kDropped);
  EXPECT_TRUE(copy->is_usable());
}

TEST_F(RemoteCopyTest, CutFromOutsideItEndsAtOnce) {
  auto [ours, theirs] = ends();
  RemoteCopy copy{net::Socket(std::move(ours)), kWaits};
  copy.begin(order());
  std::thread cutter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    copy.cut();
  });
  const auto began = std::chrono::steady_clock::now();
  const CopyProgress done = server_->copy_step(copy, kMiB);
  cutter.join();
  EXPECT_EQ(done.status, Status::kEio);
  EXPECT_FALSE(copy.is_usable());
  EXPECT_LT(std::chrono::steady_clock::now() - began, kWaits / 2);
}

// ---- a source that lies ---------------------------------------------------------------

Bytes words(std::initializer_list<uint64_t> values) {
  Bytes bytes(values.size() * 8);
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

// Answers as a server whose object has two blocks would, and then as the test changes it.
using Lie = std::function<void(const FrameHeader& asked, Frame& answer)>;

Frame honest(const FrameHeader& asked) {
  const Bytes object = pattern(8192, 7);
  Frame answer;
  answer.header.op = asked.op;
  answer.header.flags = kFlagReply;
  answer.header.request_id = asked.request_id;
  answer.header.offset = 77;  // the incarnation
  switch (static_cast<Op>(asked.op)) {
    case Op::kStat:
      answer.body = words({8192, 8192, 0});
      break;
    case Op::kSeek:
      answer.body = words({asked.length != 0 ? 8192 : asked.offset, 1});
      break;
    case Op::kRead: {
      answer.payload.assign(object.begin() + static_cast<ptrdiff_t>(asked.offset),
                            object.begin() + static_cast<ptrdiff_t>(asked.offset + asked.length));
      std::vector<uint64_t> sums(blocks_touched(asked.offset, asked.length));
      hash_blocks(asked.offset, answer.payload, sums);
      const auto raw = std::as_bytes(std::span(sums));
      answer.body.assign(raw.begin(), raw.end());
      break;
    }
    default:
      break;
  }
  return answer;
}

struct Lying {
  const char* name;
  Status status;
  bool is_usable;
  Lie lie;
};

bool is(const FrameHeader& asked, Op op) { return asked.op == static_cast<uint8_t>(op); }

const Lying kLies[] = {
Lying{"None", Status::kOk, true, [](const auto&, auto&) {}},
                             Lying{"Silence", Status::kEio, false,
                                   [](const auto&, Frame& answer) { answer = {}; }},
                             Lying{"SilenceAboutBytes", Status::kEio, false,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kRead)) answer = {};
                                   }},
                             Lying{"AnAnswerToNothing", Status::kEio, false,
                                   [](const auto&, Frame& answer) {
                                     answer.header.request_id += 1000;
                                   }},
                             Lying{"ARequest", Status::kEio, false,
                                   [](const auto&, Frame& answer) { answer.header.flags = 0; }},
                             Lying{"ARefusal", Status::kDropped, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (!is(asked, Op::kRead)) return;
                                     answer.payload.clear();
                                     answer.body.clear();
                                     answer.header.status = static_cast<uint16_t>(Status::kDropped);
                                   }},
                             Lying{"MoreThanWasAskedFor", Status::kEio, false,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kRead)) answer.payload.resize(3 * 4096);
                                   }},
                             Lying{"Less", Status::kStaleTruncateEpoch, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kRead)) answer.payload.resize(100);
                                   }},
                             Lying{"BytesOfAStat", Status::kEio, false,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kStat)) answer.payload.resize(4096);
                                   }},
                             Lying{"OtherBytes", Status::kChecksum, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kRead))
                                       answer.payload[5000] ^= std::byte{1};
                                   }},
                             Lying{"OtherBytesOnlyWhenRaw", Status::kOk, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (asked.flags & kFlagRaw)
                                       answer.payload[5000] ^= std::byte{1};
                                   }},
                             Lying{"NoSums", Status::kChecksum, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kRead)) answer.body.clear();
                                   }},
                             Lying{"AnotherIncarnation", Status::kStaleIncarnation, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kRead)) answer.header.offset = 78;
                                   }},
                             Lying{"FiguresOfNoKind", Status::kEio, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kStat)) answer.body.resize(7);
                                   }},
                             Lying{"AnObjectLongerThanAny", Status::kEio, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kStat))
                                       answer.body = words({~uint64_t{0}, 0, 0});
                                   }},
                             Lying{"ANewerEpoch", Status::kStaleTruncateEpoch, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kStat))
                                       answer.body = words({8192, 8192, kEpoch + 1});
                                   }},
                             Lying{"ASeekThatDoesNotGoOn", Status::kEio, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kSeek))
                                       answer.body = words({asked.offset, 0});
                                   }},
                             Lying{"ASeekBack", Status::kEio, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kSeek) && asked.length)
                                       answer.body = words({0, 1});
                                   }},
                             Lying{"ASeekOfNoKind", Status::kEio, true,
                                   [](const auto& asked, Frame& answer) {
                                     if (is(asked, Op::kSeek)) answer.body.resize(3);
                                   }}};

// Answers until the connection ends.
std::thread answering(net::UniqueFd fd, const Lie& lie) {
  return std::thread([lie, fd = std::move(fd)]() mutable {
    Peer peer(fd.release());
    std::array<std::byte, kHeaderSize> raw;
    while (::recv(peer.fd(), raw.data(), raw.size(), MSG_WAITALL) == ssize_t{kHeaderSize}) {
      const FrameHeader asked = decode_header(raw).header;
      Frame answer = honest(asked);
      lie(asked, answer);
      if (answer.header.op == 0) continue;  // it says nothing
      if (!peer.send(answer.seal())) return;
    }
  });
}

TEST_F(RemoteCopyTest, ALyingSourceEndsTheCopyAndNothingElse) {
  uint32_t number = kNewNumber;
  for (const Lying& lying : kLies) {
    SCOPED_TRACE(lying.name);
    auto [ours, theirs] = ends();
    RemoteCopy copy{net::Socket(std::move(ours)), std::chrono::milliseconds(300)};
    std::thread source = answering(std::move(theirs), lying.lie);
    const CopyProgress done = run(copy, order(number));
    EXPECT_EQ(done.status, lying.status) << done.message;
    EXPECT_EQ(done.is_done, lying.status == Status::kOk);
    EXPECT_EQ(copy.is_usable(), lying.is_usable);
    copy.cut();
    source.join();
    number += 1u << limits::kGenerationShift;
  }
  Peer metaserver = connect_metaserver();
  write(metaserver, 0, pattern(4096));
  EXPECT_EQ(run(*connected(), order(number)).status, Status::kOk) << "of an honest one";
}

TEST_F(RemoteCopyTest, SeesThatTheSourceHasChanged) {
  auto [ours, theirs] = ends();
  RemoteCopy copy{net::Socket(std::move(ours)), kWaits};
  int stats = 0;
  std::thread source =
      answering(std::move(theirs), [&stats](const FrameHeader& asked, Frame& answer) {
        if (is(asked, Op::kStat) && ++stats > 1) answer.body = words({4096, 0, 0});
      });
  EXPECT_EQ(run(copy, order()).status, Status::kStaleTruncateEpoch);
  copy.cut();
  source.join();
}

}  // namespace
}  // namespace braidfs::server
