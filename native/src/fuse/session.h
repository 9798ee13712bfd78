// One mount, from the kernel's side: the device, what was agreed at INIT, a lane in each event
// loop, the bridge to pyfuse3 and the notifier. Composition and life cycle only.
//
// Order: mount() or attach(), start() before the loops run, stop() after they ended. The Replier
// works from construction on, in any thread; before start() and after stop() answers go nowhere.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fuse/bridge.h"
#include "fuse/channels.h"
#include "fuse/closing_table.h"
#include "fuse/eof_pages.h"
#include "fuse/init.h"
#include "fuse/lane.h"
#include "fuse/mount.h"
#include "fuse/name_handler.h"
#include "fuse/notifier.h"
#include "fuse/request.h"
#include "net/event_loop.h"
#include "net/unique_fd.h"

namespace braidfs::fuse {

class FuseSession final : public Replier {
 public:
  // Makes another fd of the connection of `device`: clone_device(), or what a test puts in its
  // place.
  using CloneDevice = std::function<int(int device, net::UniqueFd& clone)>;

  FuseSession(const InitSettings& settings, SessionObserver& observer,
              CloneDevice clone = clone_device);
  ~FuseSession() override { stop(); }
  FuseSession(const FuseSession&) = delete;
  FuseSession& operator=(const FuseSession&) = delete;

  // Before start(): the kernel may be told to read files of other file systems by itself.
  void use_passthrough() noexcept { settings_.passthrough = true; }
  bool has_passthrough() const noexcept { return (negotiated_.flags & kPassthrough) != 0; }
  // ANY THREAD, after start(). The id under which the kernel knows this open file; or -errno.
  int backing_open(int file) noexcept;
  void backing_close(uint32_t id) noexcept;
  // Before start(): the tree is sealed and mounted read-only (sealed.cpp).
  void seal() noexcept { settings_.sealed = true; }

  // Before mount() or attach(): permissions are the metaserver's to check.
  void leave_permissions() noexcept { settings_.checks_elsewhere = true; }
  // Before start(), which is -EOPNOTSUPP where the kernel cannot: mounts may be idmapped.
  void allow_idmap() noexcept { settings_.idmap = true; }

  // 0 or -errno. -EALREADY when there is a device.
  int mount(MountRequest request);
  int attach(net::UniqueFd device);

  // Answers INIT and puts a lane into each loop. `python_end` is what pyfuse3 mounts as /dev/fd/N.
  int start(DataHandler& data, NameHandler& names, std::span<net::EventLoop* const> loops,
            uint64_t root_ino, net::UniqueFd& python_end);
  // The same without pyfuse3: every other request goes to `upcalls`.
  int start_without_bridge(DataHandler& data, std::span<net::EventLoop* const> loops,
                           UpcallSink& upcalls);
  void stop();

  // ---- another process goes on with the mount (docs/decisions/0032-restart.md) ----
  // What the next process needs to go on: fds[0] the connection, then its clones, none of them
  // closed by exec(2), and what was agreed at INIT.
  struct Handed {
    std::vector<net::UniqueFd> fds;
    Negotiated agreed;
  };
  // ANY THREAD, after start(). Lanes read nothing more from the kernel, or go on. False: not all in
  // time.
  bool pause(bool paused);
  // Requests that were read and are not answered yet.
  uint64_t unanswered() const;
  // The same for whoever is to hold it while this process lives. 0 or -errno.
  int share(Handed& handed) const;
  // Paused. Answers go nowhere from now on. 0 or -errno, and nothing was changed.
  int hand_over(Handed& handed);
  // In place of mount() or attach(), before start().
  int take_over(Handed handed);
  // After start(), before the loops run (what they had read would come once more): unanswered
  // requests of the former process come to this one. Does nothing where there was none.
  void go_on();

  void reply_error(Channel channel, uint64_t unique, int error) noexcept override;
  void reply_data(Channel channel, uint64_t unique,
                  std::span<const iovec> pieces) noexcept override;
  void reply_write(Channel channel, uint64_t unique, uint32_t count) noexcept override;
  void reply_open(Channel channel, uint64_t unique, uint64_t fh,
                  bool keeps_pages) noexcept override;
  bool store_pages(uint64_t nodeid, std::span<const std::byte> bytes) noexcept override;

  // ---- answers to requests about names (names/) ----
  // A success with these bytes behind the header.
  void reply_body(Channel channel, uint64_t unique, std::span<const std::byte> body) noexcept;
  // A success that tells the attributes of the inode attr.ino, and so its size. It may leave later:
  // behind the invalidation of a page that was filled up to a former end of the file.
  void reply_attributes(Channel channel, uint64_t unique, const fuse_attr_out& out) noexcept;
  // The size of a file that an answer may tell which cannot wait for that.
  uint64_t size_to_tell(uint64_t nodeid, uint64_t size) noexcept;

  // ANY THREAD, after start(). Nothing: no request of Python's has that slot.
  std::optional<Upcall> upcall(uint32_t slot) const;

  // ANY THREAD, after start(). False: no call has that slot.
  bool answer(uint32_t slot, int error, std::span<const std::byte> body) {
    return bridge_ && bridge_->answer(slot, error, body);
  }
  // From now on, or no longer, this inode has locks of this client's (closing_table.h).
  void locked(uint64_t ino, bool has_locks) {
    if (has_locks) return closing_.put(nodeid(ino));
    closing_.drop(nodeid(ino));
  }

  // ANY THREAD, after start(). 0 or -EAGAIN (too many waiting); inode numbers as Python
  // knows them. length <= 0: to the end of the file; offset < 0: attributes only.
  int invalidate_inode(uint64_t ino, int64_t offset, int64_t length);
  // The kernel asks for these names again; before a lease_drop() that comes later is told. 0 or
  // -EINVAL.
  int expire_names(uint64_t parent, std::span<const std::string_view> names);

  // ANY THREAD, after start(). Pages that are not to be kept; then `read` of eof_pages() has ended
  // (0: none), and `then` is called, on another thread.
  void invalidate_pages(uint64_t ino, uint64_t offset, uint64_t length, uint64_t read,
                        std::function<void()> then);
  EofPages& eof_pages() noexcept { return eof_pages_; }

  // ANY THREAD, after start(). The kernel is told these, in this order, behind the answers of
  // Python's that are on their way to it. observer.notified() tells when a mark among them is
  // reached.
  void notify(std::vector<Notification> batch);
  // What makes the kernel ask for that name again, or for the attributes of that inode.
  Notification name_expiry(uint64_t parent, std::string_view name) const;
  uint64_t nodeid(uint64_t ino) const noexcept { return ino == root_ino_ ? FUSE_ROOT_ID : ino; }

  const Negotiated& negotiated() const noexcept { return negotiated_; }
  std::vector<std::pair<std::string, uint64_t>> counters() const;

 private:
  int prepare(size_t lane_count);
  int answer_init();
  bool read_again(const Upcall& read, std::span<const std::byte> body);
  int attach_lanes(DataHandler& data, NameHandler& names, std::span<net::EventLoop* const> loops,
                   UpcallSink& upcalls);
  void stop_notifier();
  InitSettings settings_;
  SessionObserver& observer_;
  CloneDevice clone_;
  std::string mountpoint_;  // empty after attach()
  net::UniqueFd device_;
  bool taken_over_ = false;
  std::vector<net::UniqueFd> former_;  // clones of the former process
  uint64_t root_ino_ = FUSE_ROOT_ID;
  Negotiated negotiated_;
  std::atomic<Channels*> answers_{nullptr};
  std::atomic<bool> unmounted_{false};
  std::unique_ptr<Channels> channels_;
  Notifier notifier_;
  ClosingTable closing_;
  EofPages eof_pages_;
  NameHandler no_names_;  // start_without_bridge() has no names of its own
  std::unique_ptr<Bridge> bridge_;
  std::vector<net::EventLoop*> loops_;  // the lanes'
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace braidfs::fuse
