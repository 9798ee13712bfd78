// One client: the real core, with the kernel above it and the Python around it played.
//
// The kernel's requests go to a lane, and their answers come back by `Done`. Python's part answers
// the core's events a little later: it makes connections, commits, reports cuts, gets and gives
// back leases, has replicas dropped, closes files, as fsclient does. It ends when it is killed, or
// learns that its session was evicted; then nothing of it happens any more, and another one comes.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
  bool is_alive() const noexcept { return core_ != nullptr; }
  uint64_t session() const noexcept { return session_; }
  uint32_t lane_count() const noexcept { return settings_.core.lane_count; }
  // Its process ends; `loses_power`: its host, too, so nobody hears of it.
  void kill(bool loses_power);
  std::function<void()> lost;  // called when it learns that its session was evicted
  // All of it does not run for a while.
  void stand_still(Duration time);
  Time standing_until() const noexcept { return standing_until_; }
  bool is_standing() const noexcept { return VirtualTime::now() < standing_until_; }
  // What it asks the metaserver arrives later.
  void cut_off(Duration time) { cut_off_until_ = VirtualTime::now() + time; }
  // It may believe what it reads: its leases count.
  bool has_leases() const noexcept { return is_alive() && VirtualTime::now() < leased_until_; }

  // Of the grant of its lease on the file's bytes; 0: it has none.
  uint64_t lease_number(uint64_t ino) const;
  bool gives_back(uint64_t ino) const;  // such a lease, or a part of it

  // Its first handle of the file registers it at the metaserver.
  void open(uint64_t ino, uint64_t fh, int flags, std::function<void()> done);
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
  using Sought = std::function<void(int64_t error, int64_t at)>;
  void seek(uint64_t ino, uint64_t from, bool hole, Sought done);
  void renew_view(uint64_t ino, Duration late);
  void later(Duration rest, std::function<void()> then);  // unless it has ended by then

  void take_events();
  void slow_metaserver(Duration time) { slow_until_ = VirtualTime::now() + time; }
  size_t unanswered() const noexcept { return waiting_.size() + drains_.size(); }
  bool is_closed(uint64_t ino) const;
  // The metaserver recalls these bits of a lease.
  void recalled(uint64_t ino, Metaserver::Held what);

  void reply_error(fuse::Channel, uint64_t unique, int error) noexcept override;
  void reply_data(fuse::Channel, uint64_t unique, std::span<const iovec> pieces) noexcept override;
  void reply_write(fuse::Channel, uint64_t unique, uint32_t count) noexcept override;
  void reply_open(fuse::Channel, uint64_t, uint64_t, bool) noexcept override {}
  bool store_pages(uint64_t, std::span<const std::byte>) noexcept override { return false; }

 private:
  using Task = std::function<void(fuse::LaneContext&, const fuse::RequestHead&)>;
  // As Python knows a file: who holds it, and its lease.
  struct OpenFile {
    uint32_t holds = 0;
    bool is_writable = false;
    bool is_closing = false;                       // its CLOSE is not sent yet
    uint32_t held = 0;                             // kLeaseData*
    uint64_t number = 0;                           // of the last grant that it has seen
    uint32_t recalling = 0;                        // recalled and not returned
    uint32_t using_it = 0;                         // a lease that was just granted is used first
    bool is_leaving = false;                       // a lease is being given back
    bool is_dropping = false;                      // replicas are
    std::optional<Metaserver::Held> recall{};      // that waits
    std::vector<std::function<void()>> waiting{};  // until nothing is leaving
    std::optional<uint64_t> closed{};  // the serial number of a CLOSE that was not synced
  };
  template <typename T>
  using Took = std::function<void(const T&)>;

  uint64_t on_lane(Done done, Task task);
  void replied(uint64_t unique, int error, Bytes bytes);
  void act(const client::Event& event);
  void connect(uint32_t lane, uint32_t node);
  void handshake(uint32_t lane, uint32_t node);
  void connected(uint32_t lane, uint32_t node, const std::shared_ptr<Wire>& wire,
                 uint64_t connection);
  void commit(const client::Event& event);
  void report_cut(const client::Event& event);
  void drain(uint64_t ino, bool sync, bool commit, Drained done);
  void set_own_size(uint64_t ino, uint64_t size, const Drained& done);
  void set_size_drained(uint64_t ino, uint64_t size, const Drained& done);
  void punch_owned(uint64_t ino, uint64_t begin, uint64_t end, const Drained& done);
  Duration python_time();
  Duration metaserver_time();
  // To the metaserver, and back: in order.
  void tell(std::function<void()> at_metaserver);
  void reply(std::function<void()> here);
  template <typename T>
  Metaserver::Done<T> back(Took<T> take) {
    return [this, take](std::optional<T> answer) {
      reply([this, take, answer] { answer ? take(*answer) : lost(); });
    };
  }
  void renew();
  void see(uint64_t ino, const Records& records);
  void see_view(uint64_t ino, const Records& records);

  // ---- mount_files.cpp ----
  void hold(uint64_t ino, int flags, std::function<void()> done);
  void unhold(uint64_t ino);
  void close(uint64_t ino);
  void reopen(uint64_t ino, bool writable);
  void drop_replicas(const client::Event& event);
  void tell_synced(uint64_t ino);
  void ask(uint64_t ino);
  void own(uint64_t ino, bool exclusive, std::function<void()> then);
  void disown(uint64_t ino);
  void acquire(uint64_t ino, bool exclusive, std::function<void()> then);
  bool tell_lanes(uint64_t ino);
  void look_at_recall(uint64_t ino);
  void give_back(uint64_t ino, Metaserver::Held what);
  void returned(uint64_t ino, Metaserver::Held what);
  bool end_recalling(uint64_t ino, uint32_t flags);
  void when_stays(uint64_t ino, std::function<void()> then);

  Clockwork& clockwork_;
  Network& network_;
  Metaserver& metaserver_;
  std::vector<std::unique_ptr<StorageHost>>& hosts_;
  const MountSettings settings_;
  const uint64_t session_;
  std::unique_ptr<client::Core> core_;
  std::map<uint64_t, OpenFile> files_;
  std::map<uint64_t, uint64_t> handles_;  // their inodes
  uint64_t unique_ = 0;
  uint64_t token_ = 0;
  std::map<uint64_t, Done> waiting_;                          // by unique
  std::map<uint64_t, Sought> drains_;                         // by token
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> former_;  // connections, by lane and node
  std::set<std::pair<uint32_t, uint32_t>> wanted_;
  uint64_t connections_ = 0;
  uint64_t serial_ = 0;
  Time slow_until_{};
  Time cut_off_until_{};
  Time standing_until_{};
  Time leased_until_{};
  Time told_at_{};
  Time replied_at_{};
};

}  // namespace braidfs::world
