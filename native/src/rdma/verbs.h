// The narrow waist to RDMA hardware: exactly what the transport needs of verbs, and no more.
//
// There are two implementations: ibverbs.h over libibverbs (loaded when it is first needed), and
// the fake of tests/rdma, which loses peers, reorders and breaks on demand. Connections are
// reliable; receives come from a queue that the connections of one thread share. Functions return 0
// or -errno.
//
// Memory: after fail() a queue pair allows its peer no more access; after its destructor it touches
// no memory. Work completes in the order in which it was posted; work posted to a failed queue pair
// completes as flushed.
//
// Threads: Device is ANY THREAD (take_events(): one thread at a time); the others are used by one
// thread at a time.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace braidfs::rdma {

// How one end describes its queue pair to the other, as it travels (packed, little endian).
struct Peer {
  uint32_t magic = kMagic;
  uint32_t queue_pair = 0;
  uint32_t sequence = 0;  // number of the first packet
  uint16_t lid = 0;       // used by InfiniBand
  uint8_t mtu = 0;        // in the numbering of verbs: 1 = 256 ... 5 = 4096
  uint8_t reads_max = 0;  // RDMA READs that it can serve at a time
  std::array<uint8_t, 16> gid{};
  // Messages that it can take before it returns credits.
  uint32_t credits = 0;
  uint32_t slot_size = 0;                         // size of the slot of one message
  static constexpr uint32_t kMagic = 0x31414452;  // "RDA1"
};
static_assert(sizeof(Peer) == 40);

struct Completion {
  uint64_t id = 0;
  uint32_t queue_pair = 0;
  uint32_t length = 0;  // of a received message
  int status = 0;       // 0: success; else a number of the implementation
};

struct Work {
  enum class Kind : uint8_t { kSend, kWrite, kRead };
  Kind kind = Kind::kSend;
  uint64_t id = 0;
  std::span<std::byte> local{};
  uint32_t local_key = 0;
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  bool signalled = false;
};

struct Receive {
  uint64_t id = 0;
  std::span<std::byte> local{};
  uint32_t local_key = 0;
};

// Registered memory. The memory belongs to the caller and outlives the Region.
class Region {
 public:
  virtual ~Region() = default;
  virtual uint32_t local_key() const noexcept = 0;
  virtual uint32_t remote_key() const noexcept = 0;
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  virtual int fd() const noexcept = 0;  // readable when something completed after arm()
  // Takes the event that made fd() readable. -errno: the device is gone.
  virtual int acknowledge() = 0;
  virtual int arm() = 0;
  virtual int poll(std::span<Completion> into) = 0;  // count, or -errno
};

class ReceiveQueue {
 public:
  virtual ~ReceiveQueue() = default;
  virtual int post(std::span<const Receive> receives) = 0;
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual Peer local() const noexcept = 0;  // without credits and slot size
  virtual int connect(const Peer& peer) = 0;
  virtual int post(std::span<const Work> chain) = 0;  // rings the doorbell once
  virtual void fail() noexcept = 0;
};

struct QueuePairSpec {
  CompletionQueue* completions = nullptr;
  ReceiveQueue* receives = nullptr;
  uint32_t work_max = 0;
  bool remote_access = false;  // the peer may read and write regions that allow it
};

// Memory that does not belong to this process: a dmabuf, such as memory of a GPU. Remote addresses
// in it begin at `address`.
struct Dmabuf {
  int fd = -1;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t address = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  // -EOPNOTSUPP: the device, its driver or libibverbs does not support it.
  virtual int register_dmabuf(const Dmabuf& memory, bool remote_access,
                              std::unique_ptr<Region>& region) = 0;
  virtual int register_memory(std::span<std::byte> memory, bool remote_access,
                              std::unique_ptr<Region>& region) = 0;
  virtual int make_completion_queue(uint32_t depth, std::unique_ptr<CompletionQueue>& made) = 0;
  virtual int make_receive_queue(uint32_t depth, std::unique_ptr<ReceiveQueue>& made) = 0;
  virtual int make_queue_pair(const QueuePairSpec& spec, std::unique_ptr<QueuePair>& made) = 0;
  virtual std::string describe(int status) const = 0;
  // Takes the events that the device reported since the last call. True: the device cannot be used
  // any more. Appends the queue pairs that the device gave up, as it does when a peer accesses
  // memory without a right.
  virtual bool take_events(std::vector<uint32_t>& failed_pairs) = 0;
};

}  // namespace braidfs::rdma
