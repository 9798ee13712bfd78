// A FuseSession over sockets that stand for /dev/fuse and its clones, with a data half that only
// echoes.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fuse/session.h"
#include "kernel_side.h"

namespace braidfs::fuse::testing {

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
  void notified(uint64_t token) override { notified_ = token; }
  uint64_t last_notified() const { return notified_; }
  void changes_wait() { push("births"); }
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
  std::atomic<uint64_t> notified_{0};
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
      waiting_pid_ = r.head.pid;
      waiting_ = r.head.unique;
      return;
    }
    read_ = r;
    std::string text = std::to_string(r.offset) + "+" + std::to_string(r.size);
    const iovec piece{text.data(), text.size()};
    replier_.reply_data(r.head.channel, r.head.unique, {&piece, 1});
  }
  void write(LaneContext&, const WriteRequest& r) override {
    if (!receive_buffer_.empty())
      landed_ = r.payload.data() == receive_buffer_.data() && r.payload.size() == 3;
    replier_.reply_write(r.head.channel, r.head.unique, static_cast<uint32_t>(r.payload.size()));
  }
  void flush(LaneContext&, const FlushRequest& r) override { done(r.head); }
  void release(LaneContext&, const ReleaseRequest& r) override { done(r.head); }
  void fsync(LaneContext&, const FsyncRequest& r) override { done(r.head); }
  std::optional<Waiting> waiting(uint64_t unique) override {
    if (waiting_ != unique) return std::nullopt;
    return Waiting{waiting_pid_, Waiting::Ends::kWhenAsked};
  }
  bool interrupt(uint64_t unique) override {
    if (waiting_ != unique) return false;
    waiting_ = 0;
    replier_.reply_error(0, unique, EINTR);
    return true;
  }
  Room room() const noexcept override { return room_; }
  std::span<std::byte> receive_buffer(LaneContext& lane, size_t size) override {
    if (lane.index == 0) receive_buffer_.resize(size);  // lane 1 has none
    return lane.index == 0 ? std::span<std::byte>(receive_buffer_) : std::span<std::byte>();
  }
  ReadRequest read_;  // the last one; look at it when it was answered
  std::vector<std::byte> receive_buffer_;
  std::atomic<bool> landed_{false};
  std::atomic<Room> room_{Room::kPlenty};
  bool born(std::span<const std::byte>, std::span<const std::byte>, std::span<const std::byte>,
            const NewHandle&) override {
    return has_room_;
  }
  std::atomic<bool> has_room_{true};
  Opening open(uint64_t ino, uint64_t, uint32_t) override {
    return ino == kept_ ? Opening::kKeepsPages : Opening::kRefused;
  }
  std::atomic<uint64_t> kept_{0};
  bool is_busy(uint64_t ino) override { return ino == busy_; }
  std::atomic<uint64_t> busy_{0};

 private:
  void done(const RequestHead& head) { replier_.reply_error(head.channel, head.unique, 0); }
  Replier& replier_;
  std::atomic<uint64_t> waiting_{0};
  std::atomic<uint32_t> waiting_pid_{0};
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
    ASSERT_EQ(session_.start(echo_, names(), pointers_, kRootIno, python_), 0);
    const Bytes reply = receive(device_.ours.get());
    ASSERT_EQ(reply.size(), sizeof(fuse_out_header) + sizeof(fuse_init_out));
    EXPECT_EQ(at<fuse_init_out>(reply, sizeof(fuse_out_header)).max_pages, 256);
    for (auto& loop : loops_) threads_.emplace_back([&loop] { loop.run(); });
    const Bytes init = receive(python_.get());
    ASSERT_EQ(at<fuse_in_header>(init, 0).opcode, static_cast<uint32_t>(FUSE_INIT));
    ASSERT_TRUE(testing::send(python_.get(), answer(at<fuse_in_header>(init, 0).unique, 0)));
  }

  // What answers requests about names: nobody, unless a test has something.
  virtual NameHandler& names() { return no_names_; }

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
  NameHandler no_names_;
  std::array<net::EventLoop, kLanes> loops_;
  std::vector<net::EventLoop*> pointers_;
  std::vector<std::thread> threads_;
  net::UniqueFd python_;
};

}  // namespace braidfs::fuse::testing
