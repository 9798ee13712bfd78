// One mount, on the kernel's side: the device, what was negotiated at INIT, a lane in each loop,
// the bridge to pyfuse3 and the notifier. It only composes them and controls their life cycle.
//
// Order of calls: mount() or attach(), start() before the loops run, stop() after they have ended.
// The Replier works on any thread; before start() and after stop() it drops answers.
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
  // Makes another fd of the connection of `device`: clone_device(), or a substitute of a test.
  using CloneDevice = std::function<int(int device, net::UniqueFd& clone)>;

  FuseSession(const InitSettings& settings, SessionObserver& observer,
              CloneDevice clone = clone_device);
  ~FuseSession() override { stop(); }
  FuseSession(const FuseSession&) = delete;
  FuseSession& operator=(const FuseSession&) = delete;

  // Before start(): the kernel may read files of other file systems by itself.
  void use_passthrough() noexcept { settings_.passthrough = true; }
  bool has_passthrough() const noexcept { return (negotiated_.flags & kHasPassthrough) != 0; }
  // ANY THREAD, after start(). The kernel's id of this open file, or -errno.
  int backing_open(int file) noexcept;
  void backing_close(uint32_t id) noexcept;
  // Before start(): the tree is sealed and mounted read-only (sealed.cpp).
  void seal() noexcept { settings_.sealed = true; }

  // Before mount() or attach(): the metaserver checks permissions, not the kernel.
  void leave_permissions() noexcept { settings_.checks_elsewhere = true; }
  // Before start(): mounts may be idmapped. start() is -EOPNOTSUPP if the kernel lacks that.
  void allow_idmap() noexcept { settings_.idmap = true; }

  // 0 or -errno; -EALREADY when there is a device already.
  int mount(MountRequest request);
  int attach(net::UniqueFd device);

  // Answers INIT and adds a lane to each loop. pyfuse3 mounts `python_end` as /dev/fd/N.
  int start(DataHandler& data, NameHandler& names, std::span<net::EventLoop* const> loops,
            uint64_t root_ino, net::UniqueFd& python_end);
  // The same without pyfuse3: `upcalls` gets every request that lanes do not answer.
  int start_without_bridge(DataHandler& data, std::span<net::EventLoop* const> loops,
                           UpcallSink& upcalls);
  void stop();

  // ---- another process takes over the mount (docs/decisions/0032-restart.md) ----
  // What the next process needs: fds[0] is the connection, the others are its clones, none of them
  // closed by exec(2), and what was negotiated at INIT.
  struct Handed {
    std::vector<net::UniqueFd> fds;
    Negotiated agreed;
  };
  // ANY THREAD, after start(). Lanes stop, or resume, reading from the kernel. False: not all did
  // so in time.
  bool pause(bool paused);
  // How many requests were read and are not answered yet.
  uint64_t unanswered() const;
  // Fills `handed` for a process that holds the fds while this process lives. 0 or -errno.
  int share(Handed& handed) const;
  // While paused: like share(); later answers are dropped. 0, or -errno without any change.
  int hand_over(Handed& handed);
  // Called in place of mount() or attach(), before start().
  int take_over(Handed handed);
  // After start(), before the loops run (a request that they had read would come twice): gets the
  // unanswered requests of the former process. Does nothing if there was none.
  void go_on();

  void reply_error(Channel channel, uint64_t unique, int error) noexcept override;
  void reply_data(Channel channel, uint64_t unique,
                  std::span<const iovec> pieces) noexcept override;
  void reply_write(Channel channel, uint64_t unique, uint32_t count) noexcept override;
  void reply_open(Channel channel, uint64_t unique, uint64_t fh,
                  bool keeps_pages) noexcept override;
  bool store_pages(uint64_t nodeid, std::span<const std::byte> bytes) noexcept override;

  // ---- answers to requests about names (names/) ----
  // Answers with success and this body.
  void reply_body(Channel channel, uint64_t unique, std::span<const std::byte> body) noexcept;
  // Answers with the attributes of the inode attr.ino, and so with its size: it may be sent later,
  // after the invalidation of a page that was filled up to a former end of the file.
  void reply_attributes(Channel channel, uint64_t unique, const fuse_attr_out& out) noexcept;
  // The file size that an answer which cannot wait for that may contain.
  uint64_t size_to_tell(uint64_t nodeid, uint64_t size) noexcept;

  // ANY THREAD, after start(). The upcall with this slot, if there is one.
  std::optional<Upcall> upcall(uint32_t slot) const;

  // ANY THREAD, after start(). Answers a call. False: no call has that slot.
  bool answer(uint32_t slot, int error, std::span<const std::byte> body) {
    return bridge_ && bridge_->answer(slot, error, body);
  }
  // This client has locks on this inode from now on, or no longer (closing_table.h).
  void locked(uint64_t ino, bool has_locks) {
    if (has_locks) return closing_.put(nodeid(ino));
    closing_.drop(nodeid(ino));
  }

  // ANY THREAD, after start(). 0 or -EAGAIN (too many wait). Takes inode numbers of Python. length
  // <= 0: to the end of the file; offset < 0: attributes only.
  int invalidate_inode(uint64_t ino, int64_t offset, int64_t length);
  // The kernel looks these names up again. They reach it before the mark of a later lease_drop(). 0
  // or -EINVAL.
  int expire_names(uint64_t parent, std::span<const std::string_view> names);

  // ANY THREAD, after start(). Invalidates pages; then `read` of eof_pages() has ended (0: none),
  // and `then` is called, on another thread.
  void invalidate_pages(uint64_t ino, uint64_t offset, uint64_t length, uint64_t read,
                        std::function<void()> then);
  EofPages& eof_pages() noexcept { return eof_pages_; }

  // ANY THREAD, after start(). Sends these notifications, in this order, behind the answers of
  // Python that are on their way to the kernel. observer.notified() is called when a mark among
  // them is reached.
  void notify(std::vector<Notification> batch);
  // The notification that makes the kernel look that name up again.
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
  NameHandler no_names_;  // for start_without_bridge()
  std::unique_ptr<Bridge> bridge_;
  std::vector<net::EventLoop*> loops_;  // of the lanes
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace braidfs::fuse
