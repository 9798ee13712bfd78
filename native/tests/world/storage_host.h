// A host with one storage server: the real server and chunk stores, on simulated disks. It may lose
// its power, and its program may be killed and started again.
//
// Nothing of the server runs by itself. The world turns its lanes' loops; what the server gives to
// its workers waits here, some of it for long, and then runs at once. What a store does in the
// background is done here, too.
#pragma once
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clockwork.h"
#include "layouts.h"
#include "network.h"
#include "server/chunk_server.h"
#include "store/simulated_device.h"

namespace braidfs::world {

struct StorageSettings {
  uint32_t number = 0;  // of the host, and of its node
  std::vector<uint32_t> targets{};
  uint32_t lanes = 1;
  uint32_t misses_one_in = 8;  // reads that find nothing in memory
  KeyBytes key{};
};

class StorageHost {
 public:
  StorageHost(Clockwork& clockwork, Network& network, const StorageSettings& settings,
              uint64_t seed);
  ~StorageHost();
  StorageHost(const StorageHost&) = delete;
  StorageHost& operator=(const StorageHost&) = delete;

  uint32_t number() const noexcept { return settings_.number; }
  const std::vector<uint32_t>& targets() const noexcept { return settings_.targets; }
  bool is_up() const noexcept { return server_ != nullptr; }
  server::ChunkServer* server() noexcept { return server_.get(); }  // nullptr: it is down

  void start();
  void kill();  // the program ends, the page cache stays
  void lose_power();
  void restart();  // the program is stopped in good order, and started again
  // The same in the middle of something: before the n-th change of a disk from now.
  void die_in(uint32_t changes, bool loses_power);
  void look_after();  // takes workers' tasks; sees whether a disk has died
  // The metaserver is out of reach: the server serves no client when its lease has run out.
  enum class Ways : uint8_t { kBoth, kTo, kFrom };
  void cut_off(Duration time, Ways ways = Ways::kBoth);

  bool is_cut_off() const noexcept {
    return VirtualTime::now() < cut_off_until_ && !clockwork_.calm;
  }
  // All of it does not run for a while: it is stopped, or its host is.
  void stand_still(Duration time) {
    standing_until_ = std::max(standing_until_, VirtualTime::now() + time);
  }
  Time standing_until() const noexcept { return standing_until_; }
  bool is_standing() const noexcept { return VirtualTime::now() < standing_until_; }

  // What the metaserver says to it.
  struct Registered {
    std::vector<uint64_t> sessions{};
    std::vector<std::pair<uint32_t, store::ObjectId>> dropped{};
  };
  using Incarnations = std::map<uint32_t, uint64_t>;
  std::function<Registered(uint32_t host, uint64_t life, const Incarnations&)> registers;
  // The sessions that live; nothing: it has to register again.
  std::function<std::optional<std::vector<uint64_t>>(uint32_t host, uint64_t life)> beats;
  uint64_t life() const noexcept { return life_; }
  // It is registered, and its disks work.
  bool serves() const { return server_ != nullptr && is_registered_ && !has_dead_disk(); }

  bool adopt(server::Adoption adoption) {
    return server_ != nullptr && !is_standing() && server_->adopt(std::move(adoption));
  }
  // Called when its stores are recovered, before any client is served.
  std::function<void(StorageHost&)> recovered;
  // Called when it loses its power.
  std::function<void(StorageHost&)> powerless;
  store::ChunkStore& store_of(uint32_t target);

  // A mutant: a loss of power does not raise the incarnation.
  bool keeps_boot_id = false;
  // A mutant: disks say that they have synced, and have not.
  bool syncs_nothing = false;

 private:
  bool open_targets();
  void stop();
  void note_logs();
  bool has_dead_disk() const;
  void end(bool loses_power);
  void run_tasks();
  void restart_later();
  void beat(uint64_t life);
  void beat_arrived(uint64_t life, uint64_t number, int64_t sent_ns);
  void answered(int64_t sent_ns, const std::vector<uint64_t>& sessions);
  void answer_later(uint64_t life, uint64_t number, std::function<void()> take);
  Duration message_time();
  bool has_lease() const;
  void background(uint64_t life);
  void run_later(std::function<void()> task);
  void run_task(uint64_t number);
  Duration work_time();

  Clockwork& clockwork_;
  Network& network_;
  const StorageSettings settings_;
  std::vector<std::unique_ptr<store::test::Host>> disks_;  // of each target
  std::unique_ptr<server::ChunkServer> server_;
  bool is_created_ = false;
  uint64_t life_ = 0;  // rises with every start
  uint64_t task_number_ = 0;
  std::map<uint64_t, std::function<void()>> tasks_;  // of workers
  bool is_registered_ = false;
  uint64_t beat_number_ = 0;  // of the last one
  int64_t leased_until_ns_ = 0;
  Time cut_off_until_{};
  Ways cut_off_ways_ = Ways::kBoth;
  Time standing_until_{};
  bool dies_by_power_ = false;
  bool lost_power_ = false;  // since the last start
};

}  // namespace braidfs::world
