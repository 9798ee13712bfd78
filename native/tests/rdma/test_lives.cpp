// Streams with random histories: requests of all shapes while work is held back and released in any
// order, work fails, peers vanish, receivers pause, ends are closed and connections are made again.
// Whatever happens, every request is answered in order with its own bytes or its stream ends, once;
// nothing hangs; and in the end all lent memory is returned. Other tests have many peers at once,
// whose share of memory is bounded.
#include <sys/resource.h>

#include <algorithm>
#include <map>

#include "ends.h"

namespace braidfs::rdma {
namespace {

constexpr std::array<uint32_t, 8> kLengths = {0, 1, 4096, 4097, 8192, 131072, 131073, 400001};

// How many bytes a request sends, derived from its id.
uint32_t sent_length(uint64_t id) { return kLengths[id * 2654435761u % kLengths.size()]; }
// A request has a long payload or a long answer, not both.
uint32_t reply_length(uint64_t id) {
  const uint32_t length = kLengths[id * 40503u / 3 % kLengths.size()];
  return sent_length(id) > kShortPayloadMax ? std::min(length, kShortPayloadMax) : length;
}

// They are made once, because they take most of the time under a sanitizer.
const Bytes& bytes_of(uint32_t length, uint64_t id) {
  static std::map<std::pair<uint32_t, uint64_t>, Bytes> made;
  Bytes& bytes = made[{length, id % 5}];
  if (bytes.size() != length) bytes = pattern(length, id % 5);
  return bytes;
}

struct Life {
  End asks, answers;
  uint64_t sent = 0;
  bool paused = false;
  std::pair<uint32_t, uint32_t> pairs;  // numbers

  bool is_open() const { return asks.stream && answers.stream; }
  bool is_served() const { return !asks.stream || asks.got.size() == sent; }
};

class Lives : public testing::Test {
 protected:
  void open(Ports& ports, Life& life) {
    answered += life.asks.got.size();
    opened += 1;
    life.asks.stream.reset();
    life.answers.stream.reset();
    life.asks = End();
    life.answers = End();
    life.sent = 0;
    life.paused = false;
    auto [left, right] = socket_pair();
    auto [one, two] = ports.channels();
    life.pairs = {one->number(), two->number()};
    life.asks.stream = open_stream(loop, std::move(left), std::move(one), life.asks);
    life.answers.stream = open_stream(loop, std::move(right), std::move(two), life.answers);
    ASSERT_EQ(life.asks.stream->start(), 0);
    ASSERT_EQ(life.answers.stream->start(), 0);
    life.answers.verdict = [&life](const FrameHeader&) {
      return life.paused ? net::Verdict::kPause : net::Verdict::kTake;
    };
    life.answers.on_frame = [&life](const Got& got) {
      const uint64_t id = got.header.request_id;
      EXPECT_EQ(got.payload, bytes_of(sent_length(id), id));
      (void)life.answers.send(reply_to(got.header), bytes_of(reply_length(id), id + 1));
    };
    life.asks.on_frame = [&life](const Got& got) {
      const uint64_t id = got.header.request_id;
      EXPECT_EQ(id, life.asks.got.size()) << "answered out of order, or twice";
      EXPECT_EQ(got.payload, bytes_of(reply_length(id), id + 1));
    };
  }
  static void send(Life& life) {
    const uint64_t id = life.sent + 1;
    if (!life.asks.stream || life.sent - life.asks.got.size() > 60) return;
    if (life.asks.send(request(id), bytes_of(sent_length(id), id), reply_length(id)))
      life.sent = id;
  }
  static void resume(Life& life) {
    life.paused = false;
    if (life.answers.stream) life.answers.stream->resume();
    if (life.answers.stream) life.answers.stream->receive(true);
    if (life.asks.stream) life.asks.stream->receive(true);
  }
  void harm(Ports& ports, Life& life) {
    switch (random() % 6) {
      case 0:
        return ports.fabric.fail_after(random() % 40 + 1,
                                       random() % 2 ? fake::kAccess : fake::kRetries);
      case 1:
        return ports.fabric.lose(random() % 2 ? life.pairs.first : life.pairs.second);
      case 2:
        return life.asks.stream ? life.asks.stream->cut(ETIMEDOUT, "a test") : void();
      case 3:
        return life.answers.stream ? life.answers.stream->cut(EIO, "a test") : void();
      case 4:
        return life.asks.stream.reset();
      default:
        return life.answers.stream.reset();
    }
  }
  void act(Ports& ports, Life& life) {
    const uint32_t what = random() % 100;
    if (what < 50) return send(life);
    if (what < 62) return step(ports);
    if (what < 80) return loop.turn(0);
    if (what < 84) return ports.fabric.hold(random() % 3 == 0);
    if (what < 85) return void(life.paused = true);
    if (what < 96) return resume(life);
    if (what < 97 && life.answers.stream) return life.answers.stream->receive(false);
    if (what < 98 && life.asks.stream) return life.asks.stream->receive(false);
    if (!life.is_open()) return open(ports, life);
    if (what == 99 && random() % 2 == 0) return harm(ports, life);
  }
  void step(Ports& ports) {
    for (uint32_t steps = random() % 20; steps > 0 && ports.fabric.step(random); --steps) {
    }
  }
  void expect_all_served(Ports& ports, std::span<Life> lives) {
    ports.fabric.fail_after(0, 0);
    ports.fabric.hold(false);
    for (Life& life : lives) resume(life);
    EXPECT_TRUE(turn_until(
        loop,
        [&] {
          return std::ranges::all_of(lives, [](const Life& life) { return life.is_served(); });
        },
        20000));
    for (Life& life : lives) {
      EXPECT_LE(life.asks.closed_count, 1);
      EXPECT_LE(life.answers.closed_count, 1);
      life.asks.stream.reset();
      life.answers.stream.reset();
    }
    ports.expect_whole();
  }

  net::EventLoop loop;
  std::mt19937 random;
  uint64_t answered = 0, opened = 0;
};

TEST_F(Lives, EndAsTheyShouldWhateverHappens) {
  NEEDS_FAKE_FABRIC();
  // BRAIDFS_RDMA_SEEDS=500 runs more of them by hand.
  const char* wanted = std::getenv("BRAIDFS_RDMA_SEEDS");
  const int seeds = wanted == nullptr ? 10 : std::atoi(wanted);
  constexpr int kActs = 1000;
  constexpr size_t kLives = 4;
  for (int seed = 1; seed <= seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    random.seed(static_cast<uint32_t>(seed));
    Ports ports(loop, {.out_blocks = 24, .in_blocks = 12, .slots = 24});
    std::array<Life, kLives> lives;
    for (Life& life : lives) open(ports, life);
    for (int number = 0; number < kActs; ++number) act(ports, lives[random() % lives.size()]);
    expect_all_served(ports, lives);
    for (const Life& life : lives) answered += life.asks.got.size();
  }
  RecordProperty("answered", std::to_string(answered));
  RecordProperty("opened", std::to_string(opened));
  EXPECT_GT(answered, 200u * static_cast<size_t>(seeds)) << "or little was tried";
  EXPECT_GT(opened, kLives * static_cast<size_t>(seeds)) << "connections were made anew";
}

// A thousand clients all send what they may to a server that reads nothing: its registered memory
// does not grow, credits bound the unread messages (each client has fewer credits the more clients
// there are), and then all are served.
TEST_F(Lives, AThousandClientsCostBoundedMemory) {
  const bool is_real = real_device_name() != nullptr;
  const size_t count = is_real ? 100 : 1000;
  constexpr uint64_t kRequests = 24;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  Ports ports(loop);
  const size_t registered = ports.fabric.bytes_registered();
  std::vector<std::unique_ptr<Life>> lives;
  uint64_t unread_max = 0;
  for (size_t index = 0; index < count; ++index) {
    Life& life = *lives.emplace_back(std::make_unique<Life>());
    open(ports, life);
    unread_max += ports.acceptor->find(life.pairs.second)->credits_given();
    life.paused = true;
    for (uint64_t id = 1; id <= kRequests; ++id) {
      ASSERT_TRUE(life.asks.send(request(id), pattern(4000, id)));
    }
  }
  EXPECT_LE(unread_max, Port::kUnreadMax * 3 + count * kCreditsMin);
  const auto& counters = ports.acceptor->counters();
  uint64_t before = 1;
  for (int quiet = 0; quiet < 50; quiet = counters.messages_received == before ? quiet + 1 : 0) {
    before = counters.messages_received;
    loop.turn(1);
  }
  EXPECT_GT(counters.messages_received, count);
  EXPECT_LE(counters.messages_received, unread_max);
  if (!is_real) {
    EXPECT_LT(counters.messages_received, count * kRequests) << "credits hold them back";
  }
  EXPECT_EQ(ports.fabric.bytes_registered(), registered);
  for (auto& life : lives) {
    life->answers.on_frame = [&end = life->answers](const Got& got) {
      end.send(reply_to(got.header));
    };
    life->asks.on_frame = nullptr;
    life->sent = kRequests;
    resume(*life);
  }
  ASSERT_TRUE(turn_until(
      loop,
      [&] {
        return std::ranges::all_of(lives, [](const auto& life) { return life->is_served(); });
      },
      20000));
  for (const auto& life : lives) ASSERT_TRUE(life->asks.stream) << "one was cut";
  EXPECT_EQ(ports.fabric.bytes_registered(), registered);
  for (auto& life : lives) life->asks.stream.reset(), life->answers.stream.reset();
  ports.expect_whole();
}

}  // namespace
}  // namespace braidfs::rdma
