#include "net/uring.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

namespace braidfs::net {

int Uring::probe() {
  io_uring ring{};
  if (const int error = io_uring_queue_init(4, &ring, 0); error != 0) return error;
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  const int submitted = io_uring_submit_and_wait(&ring, 1);
  io_uring_queue_exit(&ring);
  return submitted < 0 ? submitted : 0;
}

int Uring::open() {
  if (const int error = io_uring_queue_init(kInFlightMax, &ring_, IORING_SETUP_CLAMP); error != 0) {
    return error;
  }
  open_ = true;
  slots_.resize(kInFlightMax);
  for (uint32_t slot = kInFlightMax; slot-- > 0;) free_.push_back(slot);
  return loop_.add(ring_.ring_fd, EPOLLIN, [this](uint32_t) { reap(); });
}

Uring::~Uring() {
  if (!open_) return;
  submit();
  while (in_flight_ > 0) {
    io_uring_cqe* cqe = nullptr;
    if (const int error = io_uring_wait_cqe(&ring_, &cqe); error != 0 && error != -EINTR) break;
    reap();
  }
  loop_.remove(ring_.ring_fd);
  io_uring_queue_exit(&ring_);
}

void Uring::start(const UringIo& io, Done done) {
  const uint32_t slot = free_.back();
  free_.pop_back();
  slots_[slot] = std::move(done);
  ++in_flight_;
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  const iovec& first = io.parts.front();
  const auto length = static_cast<unsigned>(first.iov_len);
  const auto count = static_cast<unsigned>(io.parts.size());
  if (count == 1 && io.write) io_uring_prep_write(sqe, io.fd, first.iov_base, length, io.offset);
  if (count == 1 && !io.write) io_uring_prep_read(sqe, io.fd, first.iov_base, length, io.offset);
  if (count > 1 && io.write) io_uring_prep_writev(sqe, io.fd, io.parts.data(), count, io.offset);
  if (count > 1 && !io.write) io_uring_prep_readv(sqe, io.fd, io.parts.data(), count, io.offset);
  sqe->user_data = slot;
  schedule_submit();
}

void Uring::schedule_submit() {
  if (submit_scheduled_) return;
  submit_scheduled_ = true;
  loop_.defer([this] { submit(); });
}

void Uring::submit() {
  submit_scheduled_ = false;
  const int submitted = io_uring_submit(&ring_);
  // The kernel is short of memory, or its completion queue is full: the next turn tries again.
  if (submitted == -EAGAIN || submitted == -EBUSY || submitted == -EINTR) schedule_submit();
}

void Uring::reap() {
  std::array<io_uring_cqe*, 64> cqes;
  const unsigned count = io_uring_peek_batch_cqe(&ring_, cqes.data(), cqes.size());
  std::array<std::pair<Done, int>, 64> ready;
  for (unsigned index = 0; index < count; ++index) {
    const auto slot = static_cast<uint32_t>(cqes[index]->user_data);
    ready[index] = {std::move(slots_[slot]), cqes[index]->res};
    slots_[slot] = nullptr;
    free_.push_back(slot);
  }
  io_uring_cq_advance(&ring_, count);
  in_flight_ -= count;
  for (unsigned index = 0; index < count; ++index) ready[index].first(ready[index].second);
}

}  // namespace braidfs::net
