// A client core without kernel and Python: fake storage nodes behind socketpairs, a thread that
// does Python's part (connections, commits), and a Replier that tests wait on.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "client/core.h"

namespace braidfs::client::rig {

using Bytes = std::vector<std::byte>;

Bytes pattern(size_t length, uint32_t seed);
// Whether it comes true within two seconds.
bool eventually(const std::function<bool()>& is_true);

Bytes attributes_record(uint64_t ino, uint64_t size, uint64_t change_version);
struct LayoutFields {
  uint64_t file_id = 0;
  uint32_t targets = 0;  // numbered from 100 on
  uint32_t chunk_size = 0;
  uint32_t epoch = 0;
  uint64_t durable_stripes = 0;
  // Of a replicated file: these instead of `targets`, `places` for each stripe.
  std::vector<Replica> rows{};
  uint32_t places = 1;
};
Bytes layout_record(const LayoutFields& fields);
Bytes capability_record(uint64_t file_id);

struct Frame {
  FrameHeader header;
  Bytes body;
  Bytes payload;
};

// The objects of one target in memory, and which of their bytes would outlive a loss of power.
struct FakeStore {
  using Key = std::pair<uint64_t, uint32_t>;

  Frame answer(const Frame& request);
  // What goes over the wire as the answer to that request.
  Bytes packed(const FrameHeader& request, Frame reply) const;
  void truncate(const Key& key, size_t length, uint32_t epoch);  // durable when done
  void lose_unsynced() {
    objects = durable;
    ++incarnation;
  }

  std::map<Key, Bytes> objects;
  std::map<Key, Bytes> durable;
  std::map<Key, uint32_t> epochs;
  std::vector<FetchedObject> fetched;
  uint64_t incarnation = 1;

 private:
  void write(const Frame& request, Status& status);
  Bytes seek(const FrameHeader& header, Status& status) const;
  void copy(const Frame& request);
  void sync(const FrameHeader& header, Status& status);
  Bytes read(const FrameHeader& header, Status& status);
};

// One target, served over any number of connections.
class FakeTarget {
 public:
  using Key = FakeStore::Key;
  using Frame = rig::Frame;
  // What a test wants done with a request instead of the usual.
  enum class Fault : uint8_t {
    kNone,
    kStatus,
    kHangUpBefore,
    kHangUpAfter,
    kStall,
    kForget,
    kFlip
  };
  struct Decision {
    Fault fault = Fault::kNone;
    Status status = Status::kOk;
  };
  using Decide = std::function<Decision(const FrameHeader&)>;

  ~FakeTarget() { stop(); }
  void serve(net::UniqueFd socket);
  void decide(Decide decide);
  void release_stalled();  // and stall no more
  void lose_unsynced();    // a reboot: incarnation rises, connections end
  void hang_up();          // all connections
  void stop();

  Bytes object(uint64_t file_id, uint32_t stripe);
  Bytes durable_object(uint64_t file_id, uint32_t stripe);
  void put_object(uint64_t file_id, uint32_t stripe, Bytes bytes);
  void raise_epoch(uint64_t file_id, uint32_t stripe, uint32_t epoch);
  size_t count(Op op);
  std::vector<FrameHeader> seen(Op op);
  std::vector<FetchedObject> fetched();  // what FETCHes named

 private:
  void run(std::shared_ptr<net::UniqueFd> socket);
  bool handle(int socket, const Frame& frame);

  std::mutex mu_;
  std::condition_variable changed_;
  FakeStore store_;
  Decide decide_;
  bool stalling_ = true;
  bool stopped_ = false;
  std::vector<FrameHeader> seen_;
  std::vector<std::shared_ptr<net::UniqueFd>> sockets_;
  std::vector<std::thread> threads_;
};

struct Reply {
  int error = 0;
  uint32_t count = 0;
  Bytes bytes;
};

class FakeReplier final : public fuse::Replier {
 public:
  void reply_error(fuse::Channel, uint64_t unique, int error) noexcept override;
  void reply_data(fuse::Channel, uint64_t unique, std::span<const iovec> pieces) noexcept override;
  void reply_write(fuse::Channel, uint64_t unique, uint32_t count) noexcept override;
  void reply_open(fuse::Channel, uint64_t unique, uint64_t fh, bool keeps_pages) noexcept override;
  bool store_pages(uint64_t nodeid, std::span<const std::byte> bytes) noexcept override;
  // What store_pages() took, and what it says.
  std::vector<Bytes> stored();
  void refuse_pages(bool on) { refuses_pages_ = on; }
  Reply wait(uint64_t unique);
  std::optional<Reply> wait_for(uint64_t unique, int ms);

 private:
  void put(uint64_t unique, Reply reply);
  std::mutex mu_;
  std::condition_variable arrived_;
  std::map<uint64_t, Reply> replies_;
  std::vector<Bytes> stored_;  // guarded by mu_
  std::atomic<bool> refuses_pages_ = false;
};

struct RigSettings {
  uint32_t lanes = 2;
  uint32_t targets = 4;
  uint32_t replicas = 1;  // of each stripe, whose number is targets / replicas then
  uint32_t chunk_size = 64u << 10;
  CoreSettings core{};
  cache::StoreSettings cache{};  // without a directory there is none
};

class Rig {
 public:
  explicit Rig(RigSettings settings = {});
  ~Rig();

  static constexpr uint64_t kIno = 7;
  static constexpr uint64_t kFh = 1;

  void open(uint64_t fh, uint32_t flags, uint64_t size = 0, uint64_t durable_stripes = 0);
  uint64_t start_write(uint64_t fh, uint64_t offset, const Bytes& bytes, uint32_t flags = 0);
  uint64_t start_read(uint64_t fh, uint64_t offset, uint32_t size);
  // Stored by its only writer, durable, and forgotten here: leases last.
  void store_and_forget(const Bytes& content);
  // OPEN of what open_granted() has opened; 0: it is not answered by bytes.
  uint64_t start_fetch(uint64_t fh);
  uint64_t start_flush(uint64_t fh);
  uint64_t start_fsync(uint64_t fh);
  uint64_t start_release(uint64_t fh);
  Reply write(uint64_t fh, uint64_t offset, const Bytes& bytes, uint32_t flags = 0);
  Reply read(uint64_t fh, uint64_t offset, uint32_t size);
  int flush(uint64_t fh);
  int fsync(uint64_t fh);
  int release(uint64_t fh);
  bool interrupt(uint64_t unique);
  // Runs on lane 0 and waits for it.
  void on_lane(uint32_t lane, std::function<void(fuse::LaneContext&)> task);
  // Python's drain(): the status of DONE.
  int64_t drain(bool sync);

  // What the targets hold, put together by the layout.
  Bytes file(uint64_t size, bool durable = false);

  Bytes attributes(uint64_t size, uint64_t change_version = 1) const;
  Bytes layout(uint32_t epoch = 0, uint64_t durable_stripes = 0);
  Bytes capability() const;
  std::vector<Event> events(EventKind kind);
  Event wait_event(EventKind kind);
  uint64_t account(Buffer::Account which) { return core->memory().account(which); }
  // The last reference to a buffer goes on a lane, shortly after the answer that it was part of.
  bool empties(Buffer::Account which) {
    return eventually([&] { return account(which) == 0; });
  }
  uint64_t counter(std::string_view name) {
    for (const auto& [known, count] : core->counters()) {
      if (known == name) return count;
    }
    throw std::invalid_argument(std::string(name));
  }
  bool forgets_inodes() {
    for (int tries = 0; tries < 2000 && counter("inodes") > 0; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return counter("inodes") == 0;
  }
  void set_connecting(bool on) { connecting_ = on; }
  void refuse_connections(uint32_t target, bool on) {
    if (on) targets[target]->hang_up();
    refused_ = on ? static_cast<int64_t>(target) : -1;
  }
  // The metaserver drops a replica when it is asked to, and a file that is opened again has the
  // present layout; or neither.
  void answer_drops(bool on) { answers_drops_ = on; }
  void put_rows(std::vector<Replica> rows, uint32_t epoch);
  void take_row(uint32_t target);  // out of the layout
  void commit_status(Status status) { commit_status_ = status; }
  void refuse_commit_once(Status status) { refusal_once_ = status; }
  void hold_commits(bool on) { holding_commits_ = on; }
  // The last commit's fields.
  struct Committed {
    uint64_t size;
    uint32_t flags;
    uint32_t durable;
    uint64_t stripes;
    // Of replicated files: targets and the incarnations in which they acknowledged.
    std::vector<std::pair<uint32_t, uint64_t>> acknowledged;
  };
  std::vector<Committed> commits();

  uint64_t file_id = Rig::kIno;
  std::atomic<uint64_t> recorded_size = 0;  // of the file, as the metaserver has it
  FakeReplier replier;
  std::vector<std::unique_ptr<FakeTarget>> targets;
  std::unique_ptr<Core> core;

 private:
  void python();
  void act(Event event);
  void note(Event event);
  void drop(const Event& event);
  void commit(const Event& event);

  RigSettings settings_;
  std::atomic<uint64_t> unique_ = 2;
  std::atomic<uint32_t> next_lane_ = 0;
  std::atomic<bool> ending_ = false;
  std::atomic<bool> connecting_ = true;
  std::atomic<bool> holding_commits_ = false;
  std::atomic<Status> commit_status_ = Status::kOk;
  std::atomic<Status> refusal_once_ = Status::kOk;
  std::atomic<int64_t> refused_ = -1;  // a target
  std::atomic<bool> answers_drops_ = true;
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<Event> events_;
  std::vector<Replica> rows_;     // guarded by mu_
  uint32_t epoch_ = 0;            // guarded by mu_
  uint64_t durable_stripes_ = 0;  // of a replicated file
  std::vector<Committed> commits_;
  std::vector<Event> held_commits_;
  std::thread python_;
};

}  // namespace braidfs::client::rig
