#include "fuse/bridge.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <string>

#include "fuse/init.h"
#include "fuse/open_reply.h"
#include "fuse/protocol.h"
#include "fuse/reply_sizes.h"

namespace braidfs::fuse {

namespace {

constexpr int kAnswersPerTurn = 64;
constexpr size_t kAnswerBytesMax = kUpcallBytesMax;  // extended attributes stay below
// A whole SEQPACKET message has to fit into the sender's buffer (else EMSGSIZE).
constexpr int kSocketBytesNeeded = static_cast<int>(2 * kUpcallBytesMax);

int grow_buffer(int socket, int bytes) {
  if (::setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)) != 0 &&
      ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) != 0) {
    return -errno;
  }
  int granted = 0;
  socklen_t length = sizeof(granted);
  if (::getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &granted, &length) != 0) return -errno;
  return granted >= kSocketBytesNeeded ? 0 : -ENOBUFS;
}

int make_pair(net::UniqueFd& own, net::UniqueFd& other) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return -errno;
  own.reset(ends[0]);
  other.reset(ends[1]);
  for (const int end : ends) {
    const int grown = grow_buffer(end, Bridge::kSocketBytes);
    if (grown != 0) return grown;
  }
  return 0;
}

// The error for a request that nobody will answer. When a name is looked up again and the error is
// neither ENOMEM nor EINTR, Linux drops the name with all that is mounted below it.
constexpr int error_of_none(uint32_t opcode) noexcept {
  return opcode == FUSE_LOOKUP ? ENOMEM : EIO;
}

}  // namespace

// A request on its way to pyfuse3: its head, with what native changes in it, then the unchanged
// rest.
struct Bridge::Message {
  static constexpr size_t kHead = sizeof(fuse_in_header) + sizeof(fuse_read_in);

  Message(const UpcallRequest& request, uint32_t slot)
      : head_size(std::min(kHead, request.bytes.size())), rest(request.bytes.subspan(head_size)) {
    std::memcpy(head.data(), request.bytes.data(), head_size);
    std::memcpy(head.data() + offsetof(fuse_in_header, pid), &slot, sizeof(slot));
  }

  size_t size() const { return head_size + rest.size(); }

  Bytes copy() const {
    Bytes bytes(head.begin(), head.begin() + static_cast<ptrdiff_t>(head_size));
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    return bytes;
  }

  // 0 or -errno.
  int send(int socket) const {
    std::array<iovec, 2> pieces{{{const_cast<std::byte*>(head.data()), head_size},
                                 {const_cast<std::byte*>(rest.data()), rest.size()}}};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = rest.empty() ? 1 : 2;
    return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : -errno;
  }

  std::array<std::byte, kHead> head;
  size_t head_size;
  std::span<const std::byte> rest;
};

Bridge::Bridge(Channels& channels, Notifier& notifier, SessionObserver& observer,
               const ClosingTable& closing, EofPages& eof_pages, ReadAgain read_again,
               ChoosePassthrough choose)
    : channels_(channels),
      notifier_(notifier),
      observer_(observer),
      closing_(closing),
      eof_pages_(eof_pages),
      read_again_(std::move(read_again)),
      choose_(std::move(choose)),
      answer_(kAnswerBytesMax + 1) {}

int Bridge::start(std::span<const std::byte> init, net::UniqueFd& python_end) {
  const int made = make_pair(socket_, python_end);
  if (made != 0) return made;
  wakeup_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup_) return -errno;
  if (::send(socket_.get(), init.data(), init.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    return -errno;
  }
  stopping_ = false;
  thread_ = std::thread([this] { run(); });
  return 0;
}

void Bridge::stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  wake();
  thread_.join();
  for (const Upcall& left : slots_.take_all()) {
    channels_.reply_error(left.channel, left.unique, error_of_none(left.opcode));
  }
  socket_.reset();
}

void Bridge::wake() noexcept {
  const uint64_t one = 1;
  (void)!::write(wakeup_.get(), &one, sizeof(one));
}

void Bridge::refuse(const RequestHead& head, int error) {
  slots_.take(head.unique);
  channels_.reply_error(head.channel, head.unique, error);
}

void Bridge::call(const RequestHead& head, uint32_t opcode, uint32_t bits,
                  std::span<const std::byte> body, int outcome) {
  const auto slot =
      calls_ < kCallsMax
          ? slots_.put({head.channel, head.unique, head.pid, opcode, bits, head.nodeid, true})
          : std::nullopt;
  {
    const std::scoped_lock lock(mu_);
    ++(slot ? counts_.calls : counts_.refused);
  }
  if (!slot) return channels_.reply_error(head.channel, head.unique, ENOMEM);
  ++calls_;
  if (python_gone_) {
    if (!slots_.take(head.unique)) return;
    --calls_;
    return channels_.reply_error(head.channel, head.unique, EIO);
  }
  observer_.called(*slot, head, opcode, body, outcome);
}

void Bridge::flushed(const FlushRequest& request, int error) {
  fuse_flush_in in{};
  in.fh = request.fh;
  in.lock_owner = request.lock_owner;
  call(request.head, FUSE_FLUSH, 0, std::as_bytes(std::span(&in, 1)), error);
}

void Bridge::released(const ReleaseRequest& request) {
  observer_.called(0, request.head, FUSE_RELEASE, std::as_bytes(std::span(&request.fh, 1)), 0);
}

bool Bridge::answer(uint32_t slot, int error, std::span<const std::byte> body) {
  const auto found = slots_.find(slot);
  if (!found || !found->is_call || !slots_.take(found->unique)) return false;
  --calls_;
  if (found->opcode == FUSE_READ && error == 0) {
    if (!read_again_(*found, body)) channels_.reply_error(found->channel, found->unique, EIO);
    return true;
  }
  const fuse_out_header header = answer_header(found->unique, error, error == 0 ? body.size() : 0);
  Bytes reply(header.len);
  std::memcpy(reply.data(), &header, sizeof(header));
  if (error == 0 && !body.empty())
    std::memcpy(reply.data() + sizeof(header), body.data(), body.size());
  improve_open_reply(*found, reply);
  send(*found, reply);
  return true;
}

void Bridge::upcall(const UpcallRequest& request) {
  const RequestHead& head = request.head;
  if (request.is_call) {
    const auto body = request.bytes.subspan(sizeof(fuse_in_header));
    return call(head, request.opcode, request.bits, body, 0);
  }
  const auto slot = slots_.put(
      {head.channel, head.unique, head.pid, request.opcode, request.bits, head.nodeid, false});
  if (!slot) {
    channels_.reply_error(head.channel, head.unique, ENOMEM);
    const std::scoped_lock lock(mu_);
    ++counts_.refused;
  } else if (!deliver(Message(request, *slot))) {
    refuse(head, error_of_none(request.opcode));
  }
}

// Sends to the socket, or queues if the socket is full. False when the queue is full, too, or
// pyfuse3 has closed its end.
bool Bridge::deliver(const Message& message) {
  const std::scoped_lock lock(mu_);
  ++counts_.upcalls;
  if (queue_.empty()) {
    const int sent = message.send(socket_.get());
    if (sent == 0) return true;
    if (sent != -EAGAIN && sent != -ENOBUFS && sent != -ENOMEM) return false;
  }
  if (queue_bytes_ + message.size() > kQueueBytesMax) {
    ++counts_.refused;
    return false;
  }
  queue_.push_back(message.copy());
  queue_bytes_ += message.size();
  ++counts_.queued;
  if (queue_.size() == 1) wake();
  return true;
}

void Bridge::forget(const ForgetRequest& request) {
  const std::scoped_lock lock(mu_);
  const size_t before = forgets_.size();
  if (before == 0) forgets_due_ = Clock::now() + kForgetsGather;
  if (request.entries.empty()) forgets_[request.nodeid] += request.lookups;
  for (auto rest = request.entries; !rest.empty();) {
    const auto one = load<fuse_forget_one>(rest);
    if (!one) break;
    forgets_[one->nodeid] += one->nlookup;
    rest = rest.subspan(sizeof(*one));
  }
  const bool is_full = before < kForgetsPerBatch && forgets_.size() >= kForgetsPerBatch;
  if (before == 0 || is_full) wake();
}

std::optional<Waiting> Bridge::waiting(uint64_t unique) {
  const auto slot = slots_.slot_of(unique);
  const auto upcall = slot ? slots_.find(*slot) : std::nullopt;
  if (!upcall) return std::nullopt;
  const bool is_lock = upcall->opcode == FUSE_SETLKW;
  return Waiting{upcall->pid,
                 is_lock ? Waiting::Ends::kByAnySignal : Waiting::Ends::kByFatalSignal};
}

bool Bridge::interrupt(uint64_t unique) {
  const auto slot = slots_.slot_of(unique);
  if (!slot) return false;
  observer_.upcall_interrupted(*slot);
  const std::scoped_lock lock(mu_);
  ++counts_.interrupts;
  return true;
}

BridgeCounts Bridge::counts() const {
  const std::scoped_lock lock(mu_);
  return counts_;
}

void Bridge::notify_behind(std::vector<Notification> batch) {
  const std::scoped_lock lock(mu_);
  std::move(batch.begin(), batch.end(), std::back_inserter(behind_));
  wake();
}

void Bridge::run() {
  bool connected = true;
  while (!stopping_) {
    bool waiting;
    int patience_ms;
    std::vector<Notification> behind;
    {
      const std::scoped_lock lock(mu_);
      waiting = !queue_.empty() || forgets_are_due();
      patience_ms = wait_ms();
      behind.swap(behind_);
    }
    if (!behind.empty()) {
      connected = receive_behind(std::move(behind)) && connected;
      continue;
    }
    std::array<pollfd, 2> fds{{{wakeup_.get(), POLLIN, 0},
                               {connected ? socket_.get() : -1,
                                static_cast<short>(waiting ? POLLIN | POLLOUT : POLLIN), 0}}};
    if (::poll(fds.data(), fds.size(), patience_ms) < 0) continue;
    uint64_t count;
    if (fds[0].revents != 0) (void)!::read(wakeup_.get(), &count, sizeof(count));
    if (fds[1].revents != 0 && !receive()) connected = false;
    if (connected) flush();
    if (!connected) python_gone();
  }
}

// Reads what pyfuse3 wrote. False when pyfuse3 has closed its end.
bool Bridge::receive() {
  for (int count = 0; count < kAnswersPerTurn; ++count) {
    const ssize_t length = ::recv(socket_.get(), answer_.data(), answer_.size(), MSG_DONTWAIT);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (length <= 0) return false;
    take_answer({answer_.data(), static_cast<size_t>(length)});
  }
  return true;
}

// Handles every answer that is in the socket, then pushes the notifications.
bool Bridge::receive_behind(std::vector<Notification> batch) {
  int bytes = 0;
  bool connected = ::ioctl(socket_.get(), FIONREAD, &bytes) == 0;
  while (connected && bytes > 0) {
    const ssize_t length = ::recv(socket_.get(), answer_.data(), answer_.size(), MSG_DONTWAIT);
    if (length < 0 && errno == EINTR) continue;
    connected = length > 0 || (length < 0 && errno == EAGAIN);
    if (length <= 0) break;
    take_answer({answer_.data(), static_cast<size_t>(length)});
    bytes -= static_cast<int>(length);
  }
  notifier_.push(std::move(batch));
  return connected;
}

// An answer with a file's size may have to wait for EOF pages (eof_pages.h). An answer under a
// directory's lock must not wait: its size is clipped to what the kernel knows.
void Bridge::send(const Upcall& upcall, std::span<std::byte> answer) {
  if (!eof_pages_.empty()) {
    if (const auto size = reply_size(upcall, answer)) {
      if (eof_pages_.keeps(upcall.nodeid, *size, upcall.channel, answer)) return;
    } else {
      clip_sizes(upcall, answer, eof_pages_);
    }
  }
  channels_.send(upcall.channel, answer);
}

void Bridge::take_answer(std::span<std::byte> answer) {
  const auto header = load<fuse_out_header>(answer);
  if (!header || header->len > answer.size()) return;
  if (header->unique == kUpcallInitUnique) {
    if (header->error != 0) observer_.log(40, "pyfuse3 refused the INIT that it was sent");
    return;
  }
  if (header->unique == 0) {
    if (notifier_.forward(answer) != 0) observer_.log(30, "a notification of pyfuse3 was dropped");
    return;
  }
  auto upcall = slots_.take(header->unique);
  if (upcall) {
    if (closing_.holds(upcall->nodeid)) upcall->bits &= ~kUpcallOpenReadOnly;
    improve_open_reply(*upcall, answer);
    send(*upcall, apply_choice(*upcall, answer, choose_));
  }
  const std::scoped_lock lock(mu_);
  ++(upcall ? counts_.answers : counts_.unknown);
}

// mu_ is held.
bool Bridge::forgets_are_due() const {
  return !forgets_.empty() && (forgets_.size() >= kForgetsPerBatch || Clock::now() >= forgets_due_);
}

// mu_ is held. The time until the forgets are due; once they are, poll() waits for room in the
// socket.
int Bridge::wait_ms() const {
  if (forgets_.empty() || forgets_are_due()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(forgets_due_ - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

void Bridge::flush() {
  const std::scoped_lock lock(mu_);
  while (!queue_.empty()) {
    const Bytes& next = queue_.front();
    const ssize_t sent =
        ::send(socket_.get(), next.data(), next.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return;
    queue_bytes_ -= next.size();
    queue_.pop_front();
  }
  while (forgets_are_due() && flush_forgets()) {
  }
}

// mu_ is held. Sends one batch. False when the socket is full.
bool Bridge::flush_forgets() {
  const size_t count = std::min(forgets_.size(), kForgetsPerBatch);
  const fuse_batch_forget_in batch{static_cast<uint32_t>(count), 0};
  fuse_in_header header{};
  header.len =
      static_cast<uint32_t>(sizeof(header) + sizeof(batch) + count * sizeof(fuse_forget_one));
  header.opcode = FUSE_BATCH_FORGET;
  Bytes bytes(header.len);
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), &batch, sizeof(batch));
  std::byte* out = bytes.data() + sizeof(header) + sizeof(batch);
  auto end = forgets_.begin();
  for (size_t index = 0; index < count; ++index, ++end) {
    const fuse_forget_one one{end->first, end->second};
    std::memcpy(out + index * sizeof(one), &one, sizeof(one));
  }
  if (::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
    return false;
  forgets_.erase(forgets_.begin(), end);
  counts_.forgets += count;
  return true;
}

// Python is gone: all waiting requests get an error, and nothing is kept for later. The socket
// refuses later upcalls, and python_gone_ later calls.
void Bridge::python_gone() {
  python_gone_ = true;  // before the slots are emptied: call() checks it after it took one
  {
    const std::scoped_lock lock(mu_);
    queue_.clear();
    queue_bytes_ = 0;
    forgets_.clear();
  }
  const auto waiting = slots_.take_all();
  for (const Upcall& upcall : waiting) {
    if (upcall.is_call) --calls_;
    channels_.reply_error(upcall.channel, upcall.unique, error_of_none(upcall.opcode));
  }
  if (!waiting.empty()) {
    observer_.log(
        40, "pyfuse3 closed its end; EIO for " + std::to_string(waiting.size()) + " requests");
  }
}

}  // namespace braidfs::fuse
