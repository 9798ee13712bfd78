#include "fuse/session.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <iterator>
#include <semaphore>

#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

constexpr int kInitWaitMs = 10'000;
constexpr int kNotifierWaitMs = 1'000;
constexpr auto kPauseWait = std::chrono::seconds(5);

// Waits for the first request of the kernel. Returns its length or -errno.
ssize_t read_first(int device, std::span<std::byte> buffer) {
  for (;;) {
    pollfd readable{device, POLLIN, 0};
    const int ready = ::poll(&readable, 1, kInitWaitMs);
    if (ready == 0) return -ETIMEDOUT;
    if (ready < 0 && errno != EINTR) return -errno;
    const ssize_t length = ::read(device, buffer.data(), buffer.size());
    if (length >= 0) return length;
    if (errno != EAGAIN && errno != EINTR) return -errno;
  }
}

int write_init(int device, uint64_t unique, const Negotiated& negotiated) {
  const bool refused = negotiated.error != 0;
  const fuse_out_header header =
      answer_header(unique, negotiated.error, refused ? 0 : sizeof(fuse_init_out));
  std::array<std::byte, sizeof(header) + sizeof(fuse_init_out)> bytes;
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), &negotiated.reply, sizeof(fuse_init_out));
  return ::write(device, bytes.data(), header.len) >= 0 ? 0 : -errno;
}

int set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return -errno;
  return ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? 0 : -errno;
}

}  // namespace

FuseSession::FuseSession(const InitSettings& settings, SessionObserver& observer, CloneDevice clone)
    : settings_(settings),
      observer_(observer),
      clone_(std::move(clone)),
      notifier_([this](uint64_t token) { observer_.notified(token); }),
      eof_pages_([this](Channel channel, std::span<const std::byte> reply) {
        channels_->send(channel, reply);
      }) {}

int FuseSession::mount(MountRequest request) {
  if (device_) return -EALREADY;
  request.checks_elsewhere = settings_.checks_elsewhere;
  const int mounted = mount_device(request, device_);
  if (mounted == 0) mountpoint_ = request.mountpoint;
  return mounted;
}

int FuseSession::attach(net::UniqueFd device) {
  if (device_) return -EALREADY;
  const int set = set_nonblocking(device.get());
  if (set == 0) device_ = std::move(device);
  return set;
}

int FuseSession::answer_init() {
  std::array<std::byte, FUSE_MIN_READ_BUFFER> buffer;
  const ssize_t length = read_first(device_.get(), buffer);
  if (length < 0) return static_cast<int>(length);
  const auto bytes = std::span<const std::byte>(buffer).first(static_cast<size_t>(length));
  const auto header = load<fuse_in_header>(bytes);
  if (!header || header->opcode != FUSE_INIT || header->len != bytes.size()) return -EPROTO;
  negotiated_ = negotiate(bytes.subspan(sizeof(*header)), settings_);
  const int written = write_init(device_.get(), header->unique, negotiated_);
  return negotiated_.error != 0 ? -negotiated_.error : written;
}

int FuseSession::prepare(size_t lane_count) {
  if (channels_) return -EALREADY;
  if (!device_) return -ENOTCONN;
  const int agreed = taken_over_ ? 0 : answer_init();
  if (agreed != 0) return agreed;
  if (settings_.passthrough && !has_passthrough()) {
    observer_.log(
        30, "the kernel offers no FUSE passthrough (Linux 6.9): lanes read from the local cache");
  }
  std::vector<net::UniqueFd> clones(lane_count);
  for (auto& clone : clones) {
    const int cloned = clone_(device_.get(), clone);
    if (cloned != 0) return cloned;
  }
  channels_ = std::make_unique<Channels>(std::move(clones));
  answers_.store(channels_.get(), std::memory_order_release);
  notifier_.start(std::move(device_));
  return 0;
}

int FuseSession::attach_lanes(DataHandler& data, NameHandler& names,
                              std::span<net::EventLoop* const> loops, UpcallSink& upcalls) {
  const auto unmounted = [this] {
    if (!unmounted_.exchange(true)) observer_.unmounted();
  };
  names.begin({root_ino_, has_passthrough()});
  loops_.assign(loops.begin(), loops.end());
  for (Channel channel = 0; channel < loops.size(); ++channel) {
    lanes_.push_back(std::make_unique<Lane>(
        channel, settings_.max_write,
        LaneParts{*channels_, data, names, upcalls, closing_, settings_.sealed, unmounted}));
    const int attached = lanes_.back()->attach(*loops[channel]);
    if (attached != 0) return attached;
  }
  return 0;
}

int FuseSession::start(DataHandler& data, NameHandler& names,
                       std::span<net::EventLoop* const> loops, uint64_t root_ino,
                       net::UniqueFd& python_end) {
  root_ino_ = root_ino;
  const int prepared = prepare(loops.size());
  if (prepared != 0) return prepared;
  ChoosePassthrough choose;
  if (has_passthrough()) {
    choose = [&data](uint64_t nodeid, uint64_t fh) {
      return data.choose_passthrough(nodeid, fh, Sealing::kAsOpened);
    };
  }
  bridge_ = std::make_unique<Bridge>(
      *channels_, notifier_, observer_, closing_, eof_pages_,
      [this](const Upcall& read, std::span<const std::byte> body) {
        return read_again(read, body);
      },
      std::move(choose));
  const int bridged = bridge_->start(upcall_init(negotiated_), python_end);
  return bridged != 0 ? bridged : attach_lanes(data, names, loops, *bridge_);
}

// Lanes are attached by now, and stay as long as their loops run.
bool FuseSession::read_again(const Upcall& read, std::span<const std::byte> body) {
  const RequestHead head{
      .channel = read.channel, .unique = read.unique, .nodeid = read.nodeid, .pid = read.pid};
  return loops_[read.channel]->post(
      [lane = lanes_[read.channel].get(), head, kept = std::vector(body.begin(), body.end())] {
        lane->read_again(head, kept);
      });
}

int FuseSession::start_without_bridge(DataHandler& data, std::span<net::EventLoop* const> loops,
                                      UpcallSink& upcalls) {
  const int prepared = prepare(loops.size());
  return prepared != 0 ? prepared : attach_lanes(data, no_names_, loops, upcalls);
}

// A notification may wait in the kernel for a page whose READ nobody will answer, as the lanes are
// gone; its thread would keep the process from ending.
void FuseSession::stop_notifier() {
  if (!notifier_.stop_within(kNotifierWaitMs) && !mountpoint_.empty()) {
    const int aborted = abort_connection(connection_number(mountpoint_));
    observer_.log(aborted == 0 ? 30 : 40, "aborted the connection: a notification was stuck");
  }
  notifier_.stop();
}

void FuseSession::stop() {
  if (bridge_) bridge_->stop();
  if (channels_) channels_->close();
  stop_notifier();
  device_.reset();
}

bool FuseSession::pause(bool paused) {
  const auto left = std::make_shared<std::counting_semaphore<>>(0);
  for (const auto& lane : lanes_) {
    if (!lane->pause(paused, [left] { left->release(); })) return false;
  }
  const auto until = std::chrono::steady_clock::now() + kPauseWait;
  for (size_t count = 0; count < lanes_.size(); ++count) {
    if (!left->try_acquire_until(until)) return false;
  }
  return true;
}

uint64_t FuseSession::unanswered() const {
  uint64_t requests = 0;
  for (const auto& lane : lanes_) requests += lane->requests();
  const uint64_t answered = channels_ ? channels_->sent() : 0;
  return requests > answered ? requests - answered : 0;
}

int FuseSession::share(Handed& handed) const {
  if (!channels_) return -ENOTCONN;
  handed.fds.emplace_back(::fcntl(notifier_.device(), F_DUPFD, 3));
  if (!handed.fds.back()) return -errno;
  if (const int error = channels_->duplicate(handed.fds); error != 0) return error;
  handed.agreed = negotiated_;
  return 0;
}

int FuseSession::hand_over(Handed& handed) {
  if (const int error = share(handed); error != 0) return error;
  mountpoint_.clear();  // this process must no longer abort it
  channels_->close();
  return 0;
}

int FuseSession::take_over(Handed handed) {
  if (device_) return -EALREADY;
  if (handed.fds.empty()) return -EINVAL;
  device_ = std::move(handed.fds.front());
  handed.fds.erase(handed.fds.begin());
  former_ = std::move(handed.fds);
  negotiated_ = handed.agreed;
  taken_over_ = true;
  return set_nonblocking(device_.get());
}

void FuseSession::go_on() {
  if (!taken_over_) return;
  if ((negotiated_.flags & kHasResend) != 0) (void)notifier_.resend();
  former_.clear();
}

void FuseSession::reply_error(Channel channel, uint64_t unique, int error) noexcept {
  if (const auto flush = closing_.take(unique); flush && bridge_) {
    return bridge_->flushed(*flush, error);
  }
  Channels* channels = answers_.load(std::memory_order_acquire);
  if (channels != nullptr) channels->reply_error(channel, unique, error);
}

void FuseSession::reply_data(Channel channel, uint64_t unique,
                             std::span<const iovec> pieces) noexcept {
  Channels* channels = answers_.load(std::memory_order_acquire);
  if (channels != nullptr) channels->reply_data(channel, unique, pieces);
}

void FuseSession::reply_write(Channel channel, uint64_t unique, uint32_t count) noexcept {
  Channels* channels = answers_.load(std::memory_order_acquire);
  if (channels != nullptr) channels->reply_write(channel, unique, count);
}

void FuseSession::reply_open(Channel channel, uint64_t unique, uint64_t fh,
                             bool keeps_pages) noexcept {
  Channels* channels = answers_.load(std::memory_order_acquire);
  if (channels != nullptr) channels->reply_open(channel, unique, fh, keeps_pages);
}

bool FuseSession::store_pages(uint64_t nodeid, std::span<const std::byte> bytes) noexcept {
  Channels* channels = answers_.load(std::memory_order_acquire);
  return channels != nullptr && channels->store_pages(nodeid, bytes);
}

void FuseSession::reply_body(Channel channel, uint64_t unique,
                             std::span<const std::byte> body) noexcept {
  Channels* channels = answers_.load(std::memory_order_acquire);
  if (channels != nullptr) channels->reply_body(channel, unique, body);
}

void FuseSession::reply_attributes(Channel channel, uint64_t unique,
                                   const fuse_attr_out& out) noexcept {
  Channels* channels = answers_.load(std::memory_order_acquire);
  if (channels == nullptr) return;
  struct {
    fuse_out_header header;
    fuse_attr_out body;
  } const reply{{sizeof(reply), 0, unique}, out};
  const auto bytes = std::as_bytes(std::span(&reply, 1));
  if (eof_pages_.keeps(out.attr.ino, out.attr.size, channel, bytes)) return;
  channels->send(channel, bytes);
}

uint64_t FuseSession::size_to_tell(uint64_t nodeid, uint64_t size) noexcept {
  return eof_pages_.clip(nodeid, size);
}

int FuseSession::backing_open(int file) noexcept {
  BackingMap map{.fd = file};
  const int id = channels_ ? ::ioctl(notifier_.device(), kBackingOpen, &map) : -1;
  return id >= 0 ? id : -errno;
}

void FuseSession::backing_close(uint32_t id) noexcept {
  if (channels_) (void)::ioctl(notifier_.device(), kBackingClose, &id);
}

std::optional<Upcall> FuseSession::upcall(uint32_t slot) const {
  return bridge_ ? bridge_->slots().find(slot) : std::nullopt;
}

int FuseSession::invalidate_inode(uint64_t ino, int64_t offset, int64_t length) {
  return notifier_.invalidate_inode(nodeid(ino), offset, length);
}

void FuseSession::invalidate_pages(uint64_t ino, uint64_t offset, uint64_t length, uint64_t read,
                                   std::function<void()> then) {
  const auto done = [this, ino, read, then = std::move(then)] {
    if (read != 0) eof_pages_.end(nodeid(ino), read);
    if (then) then();
  };
  const int pushed = notifier_.invalidate_inode(nodeid(ino), static_cast<int64_t>(offset),
                                                static_cast<int64_t>(length), done);
  if (pushed != 0) done();
}

// Linux before 6.2 cannot expire a name: it drops the name, with what is mounted below.
Notification FuseSession::name_expiry(uint64_t parent, std::string_view name) const {
  return Notification::of_entry(nodeid(parent), name, (negotiated_.flags & kHasExpireOnly) != 0);
}

int FuseSession::expire_names(uint64_t parent, std::span<const std::string_view> names) {
  std::vector<Notification> batch;
  for (const std::string_view name : names) {
    if (name.empty() || name.size() > NAME_MAX) return -EINVAL;
    batch.push_back(name_expiry(parent, name));
  }
  notifier_.push(std::move(batch));
  return 0;
}

void FuseSession::notify(std::vector<Notification> batch) {
  if (bridge_) return bridge_->notify_behind(std::move(batch));
  notifier_.push(std::move(batch));
}

std::vector<std::pair<std::string, uint64_t>> FuseSession::counters() const {
  std::vector<std::pair<std::string, uint64_t>> all{
      {"fuse_notifications", notifier_.sent()},
      {"fuse_notifications_failed", notifier_.failed()},
  };
  uint64_t malformed = 0;
  for (const auto& lane : lanes_) malformed += lane->malformed();
  all.emplace_back("fuse_requests_malformed", malformed);
  if (channels_) {
    all.emplace_back("fuse_answers", channels_->sent());
    all.emplace_back("fuse_answers_void", channels_->void_answers());
  }
  if (!bridge_) return all;
  const BridgeCounts counts = bridge_->counts();
  all.insert(all.end(), {{"upcalls", counts.upcalls},
                         {"calls", counts.calls},
                         {"upcalls_answered", counts.answers},
                         {"upcalls_queued", counts.queued},
                         {"upcalls_refused", counts.refused},
                         {"upcalls_unknown_answers", counts.unknown},
                         {"upcalls_waiting", bridge_->slots().count()},
                         {"fuse_forgets", counts.forgets},
                         {"fuse_interrupts", counts.interrupts}});
  return all;
}

}  // namespace braidfs::fuse
