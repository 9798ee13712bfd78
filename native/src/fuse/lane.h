// One clone of /dev/fuse in one event loop: reads requests, parses them and passes each to the part
// that answers it. LANE ONLY, except construction.
//
// A readable fd is read a bounded number of times, then the loop handles its network events. The
// bound is kRequestsPerTurn as long as requests keep coming, else 1 (a read that finds nothing
// costs as much as one that finds a request). While the DataHandler has no room for more bytes, the
// fd is not read (the kernel keeps the requests, and their callers wait), and the room is checked
// every kRoomLook. When there is little room, one request is read every kTrickle, as INTERRUPTs
// come first in the kernel's queue.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "fuse/channels.h"
#include "fuse/closing_table.h"
#include "fuse/interruptions.h"
#include "fuse/name_handler.h"
#include "fuse/parse.h"
#include "fuse/request.h"
#include "fuse/upcall_sink.h"
#include "net/event_loop.h"

namespace braidfs::fuse {

struct LaneParts {
  Channels& channels;
  DataHandler& data;
  NameHandler& names;
  UpcallSink& upcalls;
  ClosingTable& closing;
  bool sealed;                      // sealed.cpp
  std::function<void()> unmounted;  // called on the lane, once for each lane
};

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

  // Called by the loop, and by tests.
  void readable();
  // Handles one request as it was read; `payload`: of a WRITE, if it was read separately.
  void handle(std::span<const std::byte> bytes, std::span<const std::byte> payload = {});

  // ANY THREAD, while the loop runs. The lane stops or resumes reading; requests that it has read
  // are handled as usual. `done` is called on the lane. False: the loop takes no task.
  bool pause(bool paused, std::function<void()> done);
  // ANY THREAD. How many requests the lane has read that need an answer.
  uint64_t requests() const noexcept { return requests_.load(std::memory_order_acquire); }
  // A READ for which Python has opened the file (sealed.cpp).
  void read_again(const RequestHead& head, std::span<const std::byte> opened);

  uint64_t malformed() const noexcept { return malformed_.load(std::memory_order_relaxed); }

 private:
  struct PageDeleter {
    void operator()(std::byte* pages) const noexcept { ::operator delete[](pages, kAlignment); }
  };
  static constexpr std::align_val_t kAlignment{4096};

  bool read_one();
  void arrived(size_t length, std::span<std::byte> receive_buffer);
  int watch();  // 0 or -errno
  void rest();
  void turn(bool paused);
  void look_for_room();
  void lost(int error);
  // sealed.cpp
  bool refused_when_sealed(const RequestHead& head, uint32_t opcode);

  // True: the NameHandler answered the request.
  bool answered(const UpcallRequest& request);
  bool open_answered(const UpcallRequest& request, std::span<const std::byte> body);
  bool create_answered(const UpcallRequest& request, std::span<const std::byte> body);
  bool rename_answered(const UpcallRequest& request, std::span<const std::byte> body);

  LaneContext context_;
  LaneParts parts_;
  uint32_t max_write_;
  size_t size_;  // of the part of pages_ into which requests are read
  std::unique_ptr<std::byte[], PageDeleter> pages_;
  std::byte* start_;  // chosen so that the payload of a WRITE begins on a page
  net::EventLoop* loop_ = nullptr;
  int budget_ = 1;
  net::Clock::time_point trickled_{};
  bool paused_ = false;
  bool resting_ = false;
  Interruptions interruptions_;
  std::atomic<uint64_t> requests_{0};
  std::atomic<uint64_t> malformed_{0};
};

}  // namespace braidfs::fuse
