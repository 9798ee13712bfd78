// One clone of /dev/fuse in one event loop: reads requests, parses them and hands each to the half
// that answers it. LANE ONLY, except construction.
//
// A readable fd is read a bounded number of times, then the loop sees to its network events; as
// long as requests keep coming the bound is kRequestsPerTurn, else 1 (a read that finds nothing
// costs as much as one that finds something).
// While the other half has no room for more bytes the fd is left alone (the kernel keeps the
// requests, their callers wait) and looked at again every kRoomLook; when there is a little room,
// one request is read every kTrickle: INTERRUPTs come first in the kernel's queue.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "fuse/attribute_table.h"
#include "fuse/births.h"
#include "fuse/channels.h"
#include "fuse/child_table.h"
#include "fuse/closing_table.h"
#include "fuse/cut_reads.h"
#include "fuse/dentry_table.h"
#include "fuse/interruptions.h"
#include "fuse/known.h"
#include "fuse/lister.h"
#include "fuse/parse.h"
#include "fuse/request.h"
#include "net/event_loop.h"

namespace braidfs::fuse {

// Where requests go that are not answered natively. ANY LANE calls; must not block.
class UpcallSink {
 public:
  virtual ~UpcallSink() = default;
  // Sees to it that the request is answered once.
  virtual void upcall(const UpcallRequest& request) = 0;
  virtual void forget(const ForgetRequest& request) = 0;
  // A handle of an inode with locks is closed; only told, answered elsewhere.
  virtual void released(const ReleaseRequest&) {}
  // As in DataHandler.
  virtual std::optional<Waiting> waiting(uint64_t unique) = 0;
  virtual bool interrupt(uint64_t unique) = 0;
};

struct LaneParts {
  Channels& channels;
  DataHandler& data;
  UpcallSink& upcalls;
  AttributeTable& attributes;
  DentryTable& dentries;
  ChildTable& children;
  ClosingTable& closing;
  CutReads& cut_reads;
  Lister& lister;
  Births& births;
  std::function<void()> births_wait;  // called on the lane for the first change that is to be taken
  uint64_t root_ino;                  // what Python calls nodeid 1
  bool sealed;                        // sealed.cpp
  bool passes;                        // files may pass through (docs/decisions/0041-passthrough.md)
  std::function<void()> unmounted;    // called on the lane, once for each lane
};

// What a SETATTR sets (FATTR_*) is the size of an open file, and nothing else.
bool cuts_alone(uint32_t valid) noexcept;

class Lane {
 public:
  static constexpr int kRequestsPerTurn = 16;
  static constexpr auto kRoomLook = std::chrono::milliseconds(5);
  static constexpr auto kTrickle = std::chrono::seconds(1);

  Lane(Channel channel, uint32_t max_write, LaneParts parts);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Before the loop runs. 0 or -errno.
  int attach(net::EventLoop& loop);

  // Called by the loop; also the way in for tests.
  void readable();
  // One request as it was read; `payload`: that of a WRITE, if it was read apart.
  void handle(std::span<const std::byte> bytes, std::span<const std::byte> payload = {});

  // ANY THREAD, while the loop runs. Nothing more is read from the kernel, or again; what was read
  // is dealt with as ever. `done` is called on the lane. False: the loop takes no task.
  bool pause(bool paused, std::function<void()> done);
  // ANY THREAD. How many requests were read that are to be answered.
  uint64_t asked() const noexcept { return asked_.load(std::memory_order_acquire); }
  // A READ that sealed.cpp had Python open its file for.
  void read_again(const RequestHead& head, std::span<const std::byte> opened);

  uint64_t malformed() const noexcept { return malformed_.load(std::memory_order_relaxed); }

 private:
  struct PageDeleter {
    void operator()(std::byte* pages) const noexcept { ::operator delete[](pages, kAlignment); }
  };
  static constexpr std::align_val_t kAlignment{4096};

  bool read_one();
  void arrived(size_t length, std::span<std::byte> landing);
  int watch();  // 0 or -errno
  // ring_lane.cpp
  bool join_ring();  // false: the loop takes no task
  bool came_by_ring(std::span<const std::byte> head, std::span<const std::byte> payload);
  void hold_ring(bool held) noexcept;
  void rest();
  void turn(bool paused);
  void look_for_room();
  void lost(int error);
  Known known() const noexcept { return {parts_.attributes, parts_.children}; }
  Opening open_child(uint64_t ino, uint64_t fh, uint32_t open_flags);
  // sealed.cpp
  bool refused_when_sealed(const RequestHead& head, uint32_t opcode);
  bool read_unopened(const ReadRequest& request);
  bool open_sealed_child(uint64_t ino, uint64_t fh);

  // True when a table knew the answer and it was sent.
  bool answered(const UpcallRequest& request);
  bool getattr_answered(const RequestHead& head, uint64_t ino);
  bool getxattr_answered(const UpcallRequest& request, uint64_t ino);
  bool lookup_answered(const UpcallRequest& request, uint64_t parent);
  bool readdir_answered(const UpcallRequest& request, uint64_t directory);
  bool open_answered(const UpcallRequest& request, uint64_t ino);
  bool create_answered(const UpcallRequest& request, uint64_t parent);
  // The inode of the new file, after the kernel was answered; 0: it could not be made here.
  uint64_t give_birth(const UpcallRequest& request, const fuse_create_in& in, uint64_t parent,
                      std::string_view name, std::chrono::nanoseconds valid);
  bool may_be_set(const record::Record& record, const Setting& setting) const;
  bool setattr_answered(const UpcallRequest& request, uint64_t ino);
  // cutting.cpp
  bool cut_answered(const RequestHead& head, uint64_t ino, const fuse_setattr_in& in);
  template <typename Ahead>
  bool take_setting(const UpcallRequest& request, Setting setting,
                    AttributeTable::Clock::time_point now, Ahead ahead);
  bool unlink_answered(const UpcallRequest& request, uint64_t parent);
  // False: the name cannot be taken away here.
  bool take_name(uint64_t parent, std::string_view name, uint64_t ino);
  bool rename_answered(const UpcallRequest& request, uint64_t parent);
  bool take_move(Move move);
  bool let_go(uint64_t ino, AttributeTable::Clock::time_point now);
  template <typename Make>
  bool with_room(Make make);
  void push(Change change);
  bool answer_name(const RequestHead& head, const DentryTable::Found& found,
                   AttributeTable::Clock::time_point now);

  LaneContext context_;
  LaneParts parts_;
  uint32_t max_write_;
  size_t size_;  // of the part of pages_ that is read into
  std::unique_ptr<std::byte[], PageDeleter> pages_;
  std::byte* start_;  // the payload of a WRITE that is read here begins on a page
  net::EventLoop* loop_ = nullptr;
  int budget_ = 1;
  net::Clock::time_point trickled_{};
  bool paused_ = false;
  bool resting_ = false;
  Interruptions interruptions_;
  std::atomic<uint64_t> asked_{0};
  std::atomic<uint64_t> malformed_{0};
};

}  // namespace braidfs::fuse
