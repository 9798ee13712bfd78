// Datapath composes the native half of a mounted client: the kernel's protocol (src/fuse), the
// names that lanes answer (src/names) and the data path (core.h), all on the same lanes. Its
// methods are those of docs/INTERFACES.md 3.1; bindings/client.cpp gives them to Python.
//
// Errors: methods that touch the system return 0 (or an fd) or -errno; table methods return false
// for malformed or unknown arguments. Threads: ANY THREAD after start(); mount(), attach(), start()
// and stop() one after another. Blocking: mount() and start() for a short time, stop() up to its
// deadline. Not here: any decision about requests, which is in those three parts.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "braidfs/attributes.h"
#include "client/core.h"
#include "fuse/session.h"
#include "names/names.h"

namespace braidfs::client {

struct DatapathSettings {
  uint32_t lane_count = 1;
  uint32_t max_write = 1u << 20;
  uint64_t dirty_bytes_max = 256u << 20;
  uint64_t dirty_bytes_per_inode_max = 64u << 20;
  uint64_t held_bytes_max = 256u << 20;
  uint32_t timeout_ms = 60'000;
  uint32_t busy_poll_us = 0;
  uint64_t session = 0;

  static constexpr uint32_t kLaneCountMax = 64;
  bool is_valid() const noexcept {
    return lane_count >= 1 && lane_count <= kLaneCountMax && max_write >= 4096 &&
           max_write <= 16u << 20 && max_write % 4096 == 0 &&
           busy_poll_us <= net::EventLoop::kBusyPollUsMax;
  }
};

// One page of a directory whose grant includes its files (docs/decisions/0022-directory-grants.md).
// Each field is a column with one place for each file.
struct AheadPage {
  uint64_t parent = 0;
  bool has_names = false;  // the names are certain
  std::vector<std::string_view> names;
  std::span<const std::byte> attributes;  // records, one after another
  std::vector<std::span<const std::byte>> layouts;
  std::span<const std::byte> capabilities;
  std::span<const std::byte> wanted;  // one byte for each file; 0: it is not wanted

  bool is_valid() const noexcept {
    const size_t count = names.size();
    return layouts.size() == count && wanted.size() == count &&
           attributes.size() == count * record::kBytes &&
           capabilities.size() == count * sizeof(Capability);
  }
};

class Datapath final : private fuse::SessionObserver {
 public:
  // settings.is_valid() must hold.
  explicit Datapath(const DatapathSettings& settings);
  ~Datapath() override;

  int mount(const fuse::MountRequest& request) { return session_.mount(request); }
  int attach(net::UniqueFd device) { return session_.attach(std::move(device)); }
  // Takes over the mount of another process. Lanes number their own handles from first_handle on.
  int take_over(fuse::FuseSession::Handed handed, uint64_t first_handle) {
    journal().first_handle(first_handle);
    return session_.take_over(std::move(handed));
  }
  bool pause(bool paused) {
    core_.pause_fetching(paused);
    return session_.pause(paused);
  }
  // The number of requests of the kernel that are not answered, and of prefetches under way.
  uint64_t unanswered() { return session_.unanswered() + core_.fetching(); }
  int hand_over(fuse::FuseSession::Handed& handed) { return session_.hand_over(handed); }
  // Lets the kernel read whole copies of the local cache by itself, if the kernel offers that. It
  // is called before start() and after the cache was set up.
  void use_passthrough();
  void seal() noexcept {  // before start()
    session_.seal();
    names_.seal();
  }
  void leave_permissions() noexcept { session_.leave_permissions(); }  // before mount()
  void allow_idmap() noexcept { session_.allow_idmap(); }              // before start()
  int share(fuse::FuseSession::Handed& handed) const { return session_.share(handed); }
  // Returns the fd that pyfuse3 mounts as /dev/fd/N, which the caller owns, or -errno.
  int start(uint64_t root_ino);
  void stop(uint32_t deadline_ms);

  int events_fd() const noexcept { return core_.events_fd(); }
  std::vector<Event> reap(size_t count_max) { return core_.events().reap(count_max); }

  // The methods of Core for the cluster, tables and commits, under the names of INTERFACES.md.
  Core& core() noexcept { return core_; }
  rdma::Rails& rails() noexcept { return core_.rails(); }

  std::optional<fuse::Upcall> upcall(uint32_t slot) const { return session_.upcall(slot); }
  // Both return 0, -EINVAL or -EAGAIN.
  int invalidate_inode(uint64_t ino, int64_t offset, int64_t length) {
    return session_.invalidate_inode(ino, offset, length);
  }
  int expire_names(uint64_t parent, std::span<const std::string_view> names) {
    return session_.expire_names(parent, names);
  }
  names::AttributeTable& attributes() noexcept { return names_.attributes(); }
  names::DentryTable& dentries() noexcept { return names_.dentries(); }
  names::ChangeJournal& journal() noexcept { return names_.journal(); }
  // Takes the delegated changes that lanes have made, oldest first; a created file comes with what
  // was written to it since. spare_open: it takes only changes from before the first file that was
  // created a moment ago and is still open.
  std::vector<names::Change> changes_take(bool spare_open);
  names::ChildTable& children() noexcept { return names_.children(); }
  // META and DATA of the wanted files are leased: from now on lanes answer LOOKUP, GETATTR and OPEN
  // for reading of these files. Returns one byte for each file, which says whether it was taken.
  // page.is_valid() must hold.
  std::string open_ahead(const AheadPage& page);
  // Ends that for this file. Returns how many handles lanes have of it, whose RELEASEs are reported
  // from now on; -1: it was not such a file.
  int64_t child_drop(uint64_t ino);
  // Leases that are held are valid for so long from now on. From the first call on lanes require
  // leases.
  void lease_until(std::chrono::milliseconds left);
  // The session was lost: everything that was known under a lease is forgotten.
  void leases_clear();
  // Puts DONE(token) when these facets of the inodes are forgotten here and in the kernel. With no
  // facet: when the kernel has the notifications of attributes and pages that were sent before.
  size_t lease_drop(uint64_t token, std::span<const uint64_t> inos, uint32_t facets);
  // The answer that lanes would give to READDIRPLUS; nothing if they do not know it.
  std::optional<std::string> listing_read(uint64_t directory, uint64_t offset, uint32_t size);
  // Python's answer to a CALL event. False: no call has that slot.
  bool answer(uint32_t slot, int error, std::span<const std::byte> body) {
    return session_.answer(slot, error, body);
  }
  void locked(uint64_t ino, bool has_locks) { session_.locked(ino, has_locks); }
  void session_put(uint64_t session) noexcept { cluster_session_ = session; }
  std::vector<std::pair<std::string, uint64_t>> counters();

 private:
  void upcall_interrupted(uint32_t slot) override;
  void called(uint32_t slot, const fuse::RequestHead& head, uint32_t opcode,
              std::span<const std::byte> body, int outcome) override;
  void unmounted() override;
  void notified(uint64_t token) override;
  void log(int level, std::string_view text) override;

  std::atomic<uint64_t> cluster_session_;
  std::atomic<bool> refusal_told_ = false;
  Core core_;
  fuse::FuseSession session_;  // after core_, so that it goes first: its lanes use core_'s loops
  names::Names names_;
};

}  // namespace braidfs::client
