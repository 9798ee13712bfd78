// One client's lanes and the targets of one file in one thread: who goes on, and what arrives when,
// is the test's to say. The core is the real one, its lanes are fibers (schedule.h): they interrupt
// one another where one is about to take a lock. Targets keep what is durable apart from what a
// loss of power takes.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "rig.h"
#include "schedule.h"

namespace braidfs::client::rig {

class Stage : public fuse::Replier {
 public:
  static constexpr uint64_t kIno = 7;
  static constexpr uint64_t kFh = 1;
  static constexpr uint32_t kChunkSize = 64u << 10;
  struct Settings {
    uint32_t lanes = 2;
    uint32_t targets = 1;
    uint32_t sync_after_ms = 3;
    uint64_t seed = 1;
    uint32_t interrupted_one_in = 1;
  };

  explicit Stage(const Settings& settings);
  ~Stage() override;

  void reply_error(fuse::Channel, uint64_t unique, int error) noexcept override {
    replied(unique, error, {});
  }
  void reply_write(fuse::Channel, uint64_t unique, uint32_t) noexcept override {
    replied(unique, 0, {});
  }
  void reply_data(fuse::Channel, uint64_t unique, std::span<const iovec> pieces) noexcept override;
  void reply_open(fuse::Channel, uint64_t, uint64_t, bool) noexcept override {}
  bool store_pages(uint64_t, std::span<const std::byte>) noexcept override { return true; }

 protected:
  struct Connection {
    net::UniqueFd socket;
    uint32_t lane = 0;
    Bytes received{};
    std::deque<Bytes> replies{};
  };
  struct Target {
    FakeStore store;
    std::vector<std::unique_ptr<Connection>> connections{};
  };

  virtual void replied(uint64_t, int, Bytes) noexcept {}
  virtual void told(Event) {}  // neither CONNECT nor COMMIT

  void write(uint32_t lane, uint64_t unique, uint64_t offset, Bytes bytes, uint32_t flags = 0);
  void read(uint32_t lane, uint64_t unique, uint64_t offset, uint32_t size);
  void fsync(uint32_t lane, uint64_t unique);
  // Of the file, as the metaserver has it now.
  void resize(uint64_t size, uint32_t epoch);
  // The answer to a CUT event: that, or (not well) an error.
  void cut_done(const Event& event, uint64_t size, uint32_t epoch, bool well);

  void run(uint32_t lane) { schedule_.run(fibers_[lane]); }        // as far as the seed lets it
  bool is_in_turn(uint32_t lane) const { return in_turn_[lane]; }  // it was interrupted
  // The rest of its turn, and another one. False: another lane, in the middle of its own, is in the
  // way.
  bool run_turn(uint32_t lane);
  Schedule& schedule() { return schedule_; }
  Core& core() { return *core_; }
  Target& target(uint32_t index) { return targets_[index]; }
  Connection* connection(uint32_t target, uint32_t lane);
  const Settings& settings() const { return settings_; }

  // Takes in what came; answers the first request, if there is one, but keeps the answer.
  bool serve(Target& target, Connection& connection);
  bool deliver(Connection& connection);  // the first answer
  void hang_up(Target& target) { target.connections.clear(); }
  void python();
  bool answer_commit();
  size_t commits_waiting() const { return commits_.size(); }
  uint64_t size() const { return size_; }
  void grow_to(uint64_t size) { size_ = std::max(size_, size); }
  // What locks an inode, which a lane that was interrupted may have locked: lanes go on until it is
  // done.
  void by_python(const std::function<void()>& call);
  uint64_t file_id_ = kIno;  // of the file's objects

 private:
  Bytes layout(uint32_t epoch) const;
  void connect(uint32_t lane, uint32_t node);

  const Settings settings_;
  Schedule schedule_;
  std::vector<Target> targets_;
  std::unique_ptr<Core> core_;
  std::vector<size_t> fibers_;
  size_t python_ = 0;  // a fiber of its own
  std::function<void()> call_;
  std::vector<uint64_t> turns_;
  std::vector<bool> in_turn_;
  bool ending_ = false;
  uint64_t change_version_ = 1;
  uint64_t size_ = 0;  // as the metaserver knows it
  std::deque<Event> commits_;
};

}  // namespace braidfs::client::rig
