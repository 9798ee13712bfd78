// The seam between the FUSE half (this folder) and the file-byte half (src/client) of the datapath:
// the five requests that native parses and answers, who answers them, and how answers go back.
//
// Every lane has its own clone of /dev/fuse. The lane thread reads a request, parses it and calls
// the DataHandler; the handler answers at once or later through the Replier, naming the channel
// (lane index) that the request came in on: an answer written to another clone is refused by the
// kernel. Each request is answered exactly once. Parsing is in parse.h, upcalls are in bridge.h.
#pragma once
#include <fcntl.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace braidfs::fuse {

// Index of the lane whose clone read the request.
using Channel = uint32_t;

// What the handler learns about the thread that calls it.
struct LaneContext {
  uint32_t index = 0;  // of the lane; equals the channel of its requests
};

// A request that is not answered yet.
struct Waiting {
  enum class Ends : uint8_t {
    kByFatalSignal,
    kWhenAsked,  // also by a signal that people send to end a program, when it takes long
    kByAnySignal,
  };
  uint32_t pid = 0;  // of the thread that waits
  Ends ends = Ends::kByFatalSignal;
};

// Who sent a request and where the answer goes. pid 0: the kernel itself (write-back, read-ahead).
struct RequestHead {
  Channel channel = 0;
  uint64_t unique = 0;
  uint64_t nodeid = 0;  // the inode number; 1 is the root of the mount
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t pid = 0;
};

inline constexpr uint32_t kReadLockOwner = 1u << 1;  // a read(2) on a direct handle: fills no page

// A handle that can only write goes past the kernel's page cache
// (docs/decisions/0029-write-only-handles.md).
inline bool writes_only(uint32_t open_flags) noexcept {
  return (open_flags & O_ACCMODE) == O_WRONLY;
}

struct ReadRequest {
  RequestHead head;
  uint64_t fh = 0;
  uint64_t offset = 0;  // offset + size never exceeds 2^63 - 1
  uint32_t size = 0;    // at most the negotiated max_write
  uint32_t open_flags = 0;
  uint32_t read_flags = 0;
  uint64_t lock_owner = 0;
  bool closes = false;  // its handle, a lane's own, is closed when it was answered
};

inline constexpr uint32_t kWriteFromCache =
    1u << 0;  // write-back of a shared mapping: any fh of the inode
inline constexpr uint32_t kWriteLockOwner = 1u << 1;
inline constexpr uint32_t kWriteKillSuidgid = 1u << 2;  // drop set-user-ID and set-group-ID bits

struct WriteRequest {
  RequestHead head;
  uint64_t fh = 0;
  uint64_t offset = 0;  // offset + payload.size() never exceeds 2^63 - 1
  uint32_t open_flags = 0;
  uint32_t write_flags = 0;  // kWrite*
  uint64_t lock_owner = 0;
  std::span<const std::byte> payload;  // lent for the duration of the call: copy what is kept
};

struct FlushRequest {
  RequestHead head;
  uint64_t fh = 0;
  uint64_t lock_owner = 0;
};

inline constexpr uint32_t kReleaseFlush = 1u << 0;
inline constexpr uint32_t kReleaseFlockUnlock = 1u << 1;

struct ReleaseRequest {
  RequestHead head;
  uint64_t fh = 0;
  uint32_t open_flags = 0;
  uint32_t release_flags = 0;  // kRelease*
  uint64_t lock_owner = 0;
};

struct FsyncRequest {
  RequestHead head;
  uint64_t fh = 0;
  bool bytes_only = false;  // fdatasync
};

// How much room there is for the bytes of further requests.
enum class Room : uint8_t {
  kPlenty,
  kLittle,  // only now and then one, so that signals and closes get through
  kNone,
};

// What becomes of an OPEN for reading at a lane.
enum class Opening : uint8_t {
  kRefused,     // it is Python's
  kKeepsPages,  // the kernel's pages of the file are right
  kDropsPages,
};

// What is known of a file as it is opened.
enum class Sealing : uint8_t {
  kUnknown,  // by a lane, whose attributes of it are not leased
  kMutable,
  kImmutable,  // under a lease
  kAsOpened,   // as the metaserver just said: its record is with its inode
};

// How the kernel reads with a handle that it is about to be told
// (docs/decisions/0041-passthrough.md).
struct Passing {
  enum class Way : uint8_t {
    kByRequests,
    kByItself,  // from the file behind it
    kAsk,       // to be decided by Python; the handle is closed
    kStale,     // other bytes than those of the handles that are open; it is closed
  };
  Way way = Way::kByRequests;
  uint32_t backing = 0;
};

// How a new file is opened. size_limit: what it may grow to before quotas are asked.
struct NewHandle {
  uint64_t fh = 0;
  uint32_t open_flags = 0;
  uint64_t size_limit = ~uint64_t{0};
};

// A file is to have this size, and was changed at that time.
struct CutRequest {
  uint64_t ino = 0;
  uint64_t fh = 0;
  uint64_t size = 0;
  int64_t time_ns = 0;
};

// The half that owns file bytes. Every call comes on the lane thread named by the context and must
// not block; two lanes call at the same time. Requests of directories never come here (RELEASEDIR
// and FSYNCDIR are upcalls).
class DataHandler {
 public:
  virtual ~DataHandler() = default;
  virtual void read(LaneContext& lane, const ReadRequest& request) = 0;
  virtual void write(LaneContext& lane, const WriteRequest& request) = 0;
  virtual void flush(LaneContext& lane, const FlushRequest& request) = 0;
  virtual void release(LaneContext& lane, const ReleaseRequest& request) = 0;
  virtual void fsync(LaneContext& lane, const FsyncRequest& request) = 0;

  // A new file, which only this client may read and write (docs/INTERFACES.md section 1 has the
  // records), is opened with this handle. False when there is no room for it. Any lane.
  virtual bool born(std::span<const std::byte> /*attributes*/,
                    std::span<const std::byte> /*layout*/,
                    std::span<const std::byte> /*capability*/, const NewHandle& /*handle*/) {
    return false;
  }

  // Opens a file for reading with this handle, if that needs nobody's leave. Any lane.
  virtual Opening open(uint64_t /*ino*/, uint64_t /*fh*/, uint32_t /*open_flags*/) {
    return Opening::kRefused;
  }

  // The same of a file that is not known yet, whose bytes are leased by its directory's grant: its
  // records (docs/INTERFACES.md section 1).
  virtual bool open_granted(std::span<const std::byte> /*attributes*/,
                            std::span<const std::byte> /*layout*/,
                            std::span<const std::byte> /*capability*/, uint64_t /*fh*/,
                            uint32_t /*open_flags*/) {
    return false;
  }

  // Whether it answers the OPEN itself (Replier::reply_open), when the file's bytes are in the
  // kernel's pages: the first one of a file that is small and likely to be read whole. `fh`: as
  // open_granted() opened it.
  virtual bool fetch_opened(LaneContext& /*lane*/, const RequestHead& /*head*/, uint64_t /*fh*/) {
    return false;
  }

  // The kernel is about to be told of this handle; nothing may fail from here on. Asked where files
  // pass through alone. ANY THREAD.
  virtual Passing pass(uint64_t /*ino*/, uint64_t /*fh*/, Sealing /*sealing*/) { return {}; }

  // Lanes know more of this file's size and times than what was told of it last. ANY THREAD.
  virtual bool is_ahead(uint64_t /*ino*/) { return false; }

  // The file's attributes are about to be set by a lane, mtime too or not: its size and when it was
  // written last, nothing of which is committed before. Nothing: only Python may set them (this
  // client is not the only one that may write, or a commit is on its way). ANY THREAD.
  struct Ahead {
    uint64_t size = 0;
    int64_t mtime_ns = 0;  // 0: nothing was written that the metaserver has not been told of
  };
  virtual std::optional<Ahead> before_setting(uint64_t /*ino*/, bool /*sets_mtime*/) {
    return std::nullopt;
  }

  // The file, which is open by this handle, gets another size. False: only Python may see to that.
  // Any lane.
  virtual bool cut(LaneContext& /*lane*/, const CutRequest& /*request*/) { return false; }

  // The kernel may believe from now on that the file has this mode and group. What it writes takes
  // set-id bits away, which it is to be told then. ANY THREAD.
  virtual void set_ids_put(uint64_t /*ino*/, uint32_t /*mode*/, uint32_t /*gid*/) {}

  // The file is open here, or the metaserver is still to be told of what was written. ANY THREAD.
  virtual bool is_busy(uint64_t /*ino*/) { return false; }

  // Whether that request waits here, on whichever lane. ANY THREAD.
  virtual std::optional<Waiting> waiting(uint64_t unique) = 0;
  // Nobody is to wait for it any more (interruptions.h): it is answered EINTR, or done already.
  // False: it does not wait here. ANY THREAD.
  virtual bool interrupt(uint64_t unique) = 0;

  // Asked before each request is read.
  virtual Room room() const noexcept { return Room::kPlenty; }

  // Where the payload of the next WRITE may be read, `size` bytes that begin on a page; empty:
  // anywhere. What write() is lent then lies there, and the handler may keep the memory if it gives
  // other memory the next time.
  virtual std::span<std::byte> receive_buffer(LaneContext& /*lane*/, size_t /*size*/) { return {}; }
};

// Sends answers to the kernel. ANY THREAD. Nothing is reported to the caller: a request that the
// kernel gave up (ENOENT) or a connection that ended (ENODEV) makes its answer void.
class Replier {
 public:
  virtual ~Replier() = default;
  // error: a positive errno; 0 means success without a body (FLUSH, RELEASE, FSYNC).
  virtual void reply_error(Channel channel, uint64_t unique, int error) noexcept = 0;
  // The bytes of a READ, in order; at most kPiecesMax pieces; shorter than asked means end of file.
  virtual void reply_data(Channel channel, uint64_t unique,
                          std::span<const iovec> pieces) noexcept = 0;
  // A WRITE took `count` bytes.
  virtual void reply_write(Channel channel, uint64_t unique, uint32_t count) noexcept = 0;

  // An OPEN for reading has this handle.
  virtual void reply_open(Channel channel, uint64_t unique, uint64_t fh,
                          bool keeps_pages) noexcept = 0;
  // The first bytes of a file become its first pages in the kernel (FUSE_NOTIFY_STORE). It waits
  // for pages that a READ has locked: nobody may have the file open but by an OPEN that is not
  // answered yet. False: they are not all there.
  virtual bool store_pages(uint64_t nodeid, std::span<const std::byte> bytes) noexcept = 0;

  static constexpr size_t kPiecesMax = 512;
};

// What the FUSE half has to tell: turned into events 3, 6, 7 and 11 of docs/INTERFACES.md. ANY
// THREAD; must not block.
class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  virtual void upcall_interrupted(uint32_t slot) = 0;
  // A request that pyfuse3 does not know; Bridge::answer(slot) must follow. `body`: what is behind
  // its header, lent. `outcome`: for FLUSH, the errno it has come to so far.
  // RELEASE is told with slot 0 and its fh as body, and is not answered by it.
  virtual void called(uint32_t slot, const RequestHead& head, uint32_t opcode,
                      std::span<const std::byte> body, int outcome) = 0;
  virtual void unmounted() = 0;
  // A mark among the notifications was reached: all before it have reached the kernel.
  virtual void notified(uint64_t /*token*/) {}
  virtual void log(int level,
                   std::string_view text) = 0;  // 10 debug, 20 info, 30 warning, 40 error
};

}  // namespace braidfs::fuse
