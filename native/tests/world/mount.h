// One client: the real core, with the kernel above it and the Python around it played.
//
// The kernel's requests go to a lane, and their answers come back by `Done`. Python's part answers
// the core's events a little later: it makes connections, commits, reports cuts, gets leases and
// newer views, as fsclient does.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "client/core.h"
#include "clockwork.h"
#include "metaserver.h"
#include "network.h"
#include "storage_host.h"

namespace braidfs::world {

struct MountSettings {
  uint64_t session = 1;
  client::CoreSettings core{};
  bool names_former = true;  // of connections, in HELLO; a mutant does not
  Tampering* tampering = nullptr;
};

class Mount final : public fuse::Replier {
 public:
  using Done = std::function<void(int error, const Bytes& bytes)>;
  using Drained = std::function<void(int64_t error)>;

  Mount(Clockwork& clockwork, Network& network, Metaserver& metaserver,
        std::vector<std::unique_ptr<StorageHost>>& hosts, const MountSettings& settings);
  ~Mount() override;

  client::Core& core() noexcept { return *core_; }
  uint32_t lane_count() const noexcept { return settings_.core.lane_count; }

  void open(uint64_t ino, uint64_t fh);
  // What the kernel asks, on a lane.
  struct Place {
    uint64_t ino = 0;
    uint64_t fh = 0;
    uint64_t offset = 0;
  };
  void write(const Place& place, Bytes bytes, uint32_t open_flags, Done done);
  // The number of the request, for interrupt().
  uint64_t read(const Place& place, uint32_t size, Done done);
  uint64_t fsync(const Place& place, Done done);
  void interrupt(uint64_t unique) { core_->interrupt(unique); }  // a signal came
  void flush(const Place& place, Done done);
  void release(const Place& place, Done done);
  // A lane gives the file another size. 0: it was done; else Python has to do it.
  void cut(const Place& place, uint64_t size, Done done);
  // What Python does for the kernel.
  void set_size(uint64_t ino, uint64_t size, Drained done);
  void punch(uint64_t ino, uint64_t begin, uint64_t end, Drained done);
  void renew_view(uint64_t ino);

  void take_events();
  void slow_metaserver(Duration time) { slow_until_ = VirtualTime::now() + time; }
  size_t unanswered() const noexcept { return waiting_.size() + drains_.size(); }

  void reply_error(fuse::Channel, uint64_t unique, int error) noexcept override;
  void reply_data(fuse::Channel, uint64_t unique, std::span<const iovec> pieces) noexcept override;
  void reply_write(fuse::Channel, uint64_t unique, uint32_t count) noexcept override;
  void reply_open(fuse::Channel, uint64_t, uint64_t, bool) noexcept override {}
  bool store_pages(uint64_t, std::span<const std::byte>) noexcept override { return false; }

 private:
  using Task = std::function<void(fuse::LaneContext&, const fuse::RequestHead&)>;
  uint64_t on_lane(Done done, Task task);
  void replied(uint64_t unique, int error, Bytes bytes);
  void act(const client::Event& event);
  void connect(uint32_t lane, uint32_t node);
  void connected(uint32_t lane, uint32_t node, const std::shared_ptr<Wire>& wire,
                 uint64_t connection);
  void commit(const client::Event& event);
  void report_cut(const client::Event& event);
  void drain(uint64_t ino, bool sync, bool commit, Drained done);
  void set_size_drained(uint64_t ino, uint64_t size, const Drained& done);
  Duration python_time();
  Duration metaserver_time();

  Clockwork& clockwork_;
  Network& network_;
  Metaserver& metaserver_;
  std::vector<std::unique_ptr<StorageHost>>& hosts_;
  const MountSettings settings_;
  std::unique_ptr<client::Core> core_;
  uint64_t unique_ = 0;
  uint64_t token_ = 0;
  std::map<uint64_t, Done> waiting_;                          // by unique
  std::map<uint64_t, Drained> drains_;                        // by token
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> former_;  // connections, by lane and node
  std::set<std::pair<uint32_t, uint32_t>> wanted_;
  uint64_t connections_ = 0;
  Time slow_until_{};
};

}  // namespace braidfs::world
