#include "fuse/ring.h"

#include <linux/io_uring.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

// linux/fuse.h of Linux 6.14.
constexpr uint32_t kRegister = 1, kCommitAndFetch = 2;
constexpr size_t kPart = 128;

struct EntryState {
  uint64_t flags;
  uint64_t commit;
  uint32_t payload_size;
  uint32_t padding;
  uint64_t reserved;
};

struct RequestHeader {
  std::array<std::byte, kPart> in_out;  // the header of the request, then of the answer
  std::array<std::byte, kPart> fixed;   // of the request
  EntryState state;
};

struct Command {
  uint64_t flags;
  uint64_t commit;
  uint16_t queue;
  std::array<uint8_t, 6> padding;
};

static_assert(sizeof(RequestHeader) == 288 && sizeof(Command) == 24);

constexpr unsigned kEntriesMax = 256;  // of a lane
constexpr unsigned kEntriesOfQueue = 16;

struct Unmap {
  size_t size;
  void operator()(std::byte* start) const noexcept { ::munmap(start, size); }
};
using Pages = std::unique_ptr<std::byte, Unmap>;

Pages map_pages(size_t size) {
  void* start = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return {start == MAP_FAILED ? nullptr : static_cast<std::byte*>(start), Unmap{size}};
}

}  // namespace

struct Ring::Entry {
  unsigned queue;
  Pages payload;
  std::array<iovec, 2> places{};
  RequestHeader header{};
  uint64_t unique = 0;
  bool has_come = false;  // anything; until then the kernel may still refuse it
};

unsigned ring_queue_count() {
  std::string text;  // such as 0-127
  std::getline(std::ifstream("/sys/devices/system/cpu/possible"), text);
  const size_t last = text.find_last_of("-,");
  const std::string number = last == std::string::npos ? text : text.substr(last + 1);
  const bool is_number =
      !number.empty() && number.size() < 6 &&
      std::ranges::all_of(number, [](char one) { return one >= '0' && one <= '9'; });
  return is_number ? static_cast<unsigned>(std::stoul(number)) + 1 : 0;
}

Ring::Ring(unsigned first, unsigned step, unsigned count, size_t payload_size, int& error)
    : payload_size_(payload_size) {
  const unsigned queues = (count - first + step - 1) / step;
  const unsigned each = std::clamp(kEntriesMax / queues, 1u, kEntriesOfQueue);
  for (unsigned queue = first; queue < count; queue += step) {
    for (unsigned index = 0; index < each; ++index) {
      auto entry =
          std::make_unique<Entry>(Entry{.queue = queue, .payload = map_pages(payload_size)});
      error = entry->payload ? 0 : -ENOMEM;
      if (error != 0) return;
      entry->places = {iovec{&entry->header, sizeof(entry->header)},
                       iovec{entry->payload.get(), payload_size}};
      entries_.push_back(std::move(entry));
    }
  }
  open_.reserve(entries_.size());
  done_.reserve(entries_.size());
  io_uring_params parameters{};
  parameters.flags = IORING_SETUP_SQE128 | IORING_SETUP_COOP_TASKRUN;
  error = io_uring_queue_init_params(static_cast<unsigned>(entries_.size()), &ring_, &parameters);
  is_made_ = error == 0;
}

Ring::~Ring() {
  if (is_made_) io_uring_queue_exit(&ring_);
}

void Ring::start(net::EventLoop& loop, int device, Take take, Lost lost) {
  loop_ = &loop;
  device_ = device;
  take_ = std::move(take);
  lost_ = std::move(lost);
  thread_ = std::this_thread::get_id();
  loop.watch(weak_from_this());
  for (const auto& entry : entries_) submit(*entry, kRegister, 0);
}

void Ring::submit(Entry& entry, uint32_t operation, uint64_t commit) {
  io_uring_sqe* const one = io_uring_get_sqe(&ring_);
  if (one == nullptr) return lost_(ENOBUFS);  // never: there are as many as entries
  std::memset(one, 0, 2 * sizeof(*one));
  one->opcode = IORING_OP_URING_CMD;
  one->fd = device_;
  one->cmd_op = operation;
  one->user_data = reinterpret_cast<uint64_t>(&entry);
  one->addr = reinterpret_cast<uint64_t>(entry.places.data());
  one->len = static_cast<uint32_t>(entry.places.size());
  const Command command{
      .flags = 0, .commit = commit, .queue = static_cast<uint16_t>(entry.queue), .padding = {}};
  std::memcpy(one->cmd, &command, sizeof(command));
  if (std::exchange(to_submit_, true)) return;
  loop_->defer([this] {
    to_submit_ = false;
    io_uring_submit(&ring_);
  });
}

void Ring::commit(Entry& entry) { submit(entry, kCommitAndFetch, entry.header.state.commit); }

void Ring::commit_done() {
  std::vector<Entry*> done;
  {
    const std::scoped_lock lock(mu_);
    done.swap(done_);
  }
  for (Entry* entry : done) commit(*entry);
}

bool Ring::take() {
  if (loop_ == nullptr) return false;
  commit_done();
  bool any = false;
  while (!held_ && take_one()) any = true;
  return any;
}

bool Ring::take_one() {
  io_uring_cqe* one = nullptr;
  if (loop_ == nullptr || io_uring_peek_cqe(&ring_, &one) != 0) return false;
  auto& entry = *reinterpret_cast<Entry*>(one->user_data);
  const int result = one->res;
  io_uring_cqe_seen(&ring_, one);
  return completed(entry, result);
}

// An entry that comes back with an error takes no more requests: the file system is unmounted, or,
// at the first time, the kernel does not want it.
bool Ring::completed(Entry& entry, int result) {
  if (result < 0) {
    if (!entry.has_come) lost_(-result);
    return true;
  }
  entry.has_come = true;
  return deliver(entry);
}

bool Ring::deliver(Entry& entry) {
  const auto head = load<fuse_in_header>(entry.header.in_out);
  const size_t payload = entry.header.state.payload_size;
  const size_t fixed = head->len - sizeof(*head) - payload;
  entry.unique = head->unique;
  {
    const std::scoped_lock lock(mu_);
    open_.push_back(&entry);
  }
  if (head->len < sizeof(*head) + payload || fixed > kPart || payload > payload_size_) {
    reply(head->unique, EIO, {});
    return true;
  }
  std::array<std::byte, sizeof(fuse_in_header) + kPart> bytes;
  std::memcpy(bytes.data(), &*head, sizeof(*head));
  std::memcpy(bytes.data() + sizeof(*head), entry.header.fixed.data(), fixed);
  return take_(std::span(bytes).first(sizeof(*head) + fixed), {entry.payload.get(), payload});
}

bool Ring::arm() { return loop_ != nullptr && !held_ && io_uring_cq_ready(&ring_) > 0; }

// The entry whose request that is, which is its answerer's from now on.
Ring::Entry* Ring::answered(uint64_t unique, bool& is_closed) {
  const std::scoped_lock lock(mu_);
  is_closed = closed_;
  const auto found = std::ranges::find(open_, unique, &Entry::unique);
  if (found == open_.end()) return nullptr;
  Entry* entry = *found;
  *found = open_.back();
  open_.pop_back();
  return entry;
}

bool Ring::reply(uint64_t unique, int error, std::span<const iovec> pieces) {
  bool is_closed = false;
  Entry* entry = answered(unique, is_closed);
  if (is_closed || entry == nullptr) return is_closed;
  size_t size = 0;
  for (const iovec& piece : pieces) {
    if (size + piece.iov_len > payload_size_) {
      error = EIO;
      break;
    }
    std::memcpy(entry->payload.get() + size, piece.iov_base, piece.iov_len);
    size += piece.iov_len;
  }
  if (error != 0) size = 0;
  const fuse_out_header header = answer_header(unique, error, size);
  std::memcpy(entry->header.in_out.data(), &header, sizeof(header));
  entry->header.state.payload_size = static_cast<uint32_t>(size);
  if (std::this_thread::get_id() == thread_) {
    commit(*entry);
    return true;
  }
  const std::scoped_lock lock(mu_);
  done_.push_back(entry);
  // Where the loop takes no task it has others to do, and looks at its queues afterwards.
  if (done_.size() == 1) (void)loop_->post([ring = shared_from_this()] { ring->commit_done(); });
  return true;
}

void Ring::close() {
  const std::scoped_lock lock(mu_);
  closed_ = true;
}

}  // namespace braidfs::fuse
