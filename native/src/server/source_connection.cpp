#include "server/source_connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace braidfs::server {

namespace {

constexpr uint32_t kBodyBytesMax = 64u << 10;

std::string reason(int error) { return std::strerror(error); }

}  // namespace

SourceConnection::SourceConnection(net::Socket socket, std::chrono::milliseconds patience)
    : socket_(std::move(socket)),
      patience_(patience),
      parser_(kBodyBytesMax, kPieceBytes),
      done_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!done_event_) fail(reason(errno));
  if (const int error = socket_.start(); error != 0) fail(reason(-error));
}

void SourceConnection::choose(const RemoteObject& object) {
  object_ = object;
  incarnation_ = 0;
  serves_clients_ = false;
}

void SourceConnection::cut() noexcept { (void)::shutdown(socket_.get(), SHUT_RDWR); }

// ---- requests -------------------------------------------------------------------------

Status SourceConnection::ask(const Question& question, std::span<const std::byte>& body) {
  asked_ = submit(question, 0);
  answer_ = Status::kOk;
  while (asked_ != 0) {
    if (!turn()) return Status::kEio;
  }
  body = answer_body_;
  return answer_;
}

Status SourceConnection::read(uint64_t begin, uint64_t end, const Take& take) {
  take_ = &take;
  read_status_ = Status::kOk;
  uint64_t next = begin;
  while (true) {
    collect_done();
    ask_for_more(next, end);
    if (asked_pieces_ + taken_pieces_ == 0) break;
    if (turn()) continue;
    if (read_status_ == Status::kOk) read_status_ = Status::kEio;
    if (taken_pieces_ == 0) break;
    wait();  // for what was taken: it uses the buffers
  }
  take_ = nullptr;
  return read_status_;
}

// After a failure nothing more is asked for, and what was is waited for.
void SourceConnection::ask_for_more(uint64_t& next, uint64_t end) {
  for (Piece& piece : pieces_) {
    if (next >= end || read_status_ != Status::kOk || !fault_.empty()) return;
    if (piece.lease) continue;
    piece.lease = pool_.lease();
    if (!piece.lease) {
      if (asked_pieces_ + taken_pieces_ == 0) fail("memory is short");
      return;  // the others come first
    }
    piece.offset = next;
    piece.length = static_cast<uint32_t>(std::min<uint64_t>(kPieceBytes, end - next));
    piece.is_raw = true;
    submit(piece);
    ++asked_pieces_;
    next += piece.length;
  }
}

// Without kFlagRaw the other server compares the bytes with their sums, and reports damage.
void SourceConnection::submit(Piece& piece) {
  const uint16_t flags = kFlagMustExist | (piece.is_raw ? kFlagRaw : 0);
  piece.request = submit({.op = Op::kRead, .offset = piece.offset, .length = piece.length}, flags);
}

uint64_t SourceConnection::submit(const Question& question, uint16_t flags) {
  FrameHeader header{.op = static_cast<uint8_t>(question.op),
                     .flags = flags,
                     .request_id = ++last_request_,
                     .file_id = object_.file_id,
                     .stripe_index = object_.number,
                     .target = object_.target,
                     .offset = question.offset,
                     .length = question.length,
                     .epoch = question.epoch};
  seal(header);
  const auto bytes = std::as_bytes(std::span(&header, 1));
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
  return last_request_;
}

// ---- answers --------------------------------------------------------------------------

SourceConnection::Piece* SourceConnection::piece_of(uint64_t request) noexcept {
  const auto found = std::ranges::find(pieces_, request, &Piece::request);
  return request == 0 || found == pieces_.end() ? nullptr : &*found;
}

net::PayloadPlace SourceConnection::payload_buffer(const FrameHeader& header,
                                                   std::span<const std::byte> body) {
  (void)body;
  const Piece* const piece = piece_of(header.request_id);
  if (piece == nullptr || header.payload_length > piece->length) return {};
  return {.verdict = net::Verdict::kTake,
          .bytes = piece->lease.span().first(header.payload_length)};
}

bool SourceConnection::frame(const FrameHeader& header, std::span<const std::byte> body,
                             std::span<std::byte> payload) {
  if ((header.flags & kFlagReply) == 0 || header.request_id == 0) return false;
  if (header.request_id == asked_) {
    asked_ = 0;
    answer_ = status_of(header);
    answer_body_.assign(body.begin(), body.end());
    return payload.empty();
  }
  Piece* const piece = piece_of(header.request_id);
  if (piece == nullptr) return false;
  const Status status = check(*piece, header, body, payload);
  if (status == Status::kChecksum && piece->is_raw && read_status_ == Status::kOk) {
    piece->is_raw = false;
    submit(*piece);
    return true;
  }
  piece->request = 0;
  --asked_pieces_;
  if (status == Status::kOk && read_status_ == Status::kOk)
    take(static_cast<size_t>(piece - pieces_.data()), payload);
  else
    free(*piece, status);
  return true;
}

Status SourceConnection::check(Piece& piece, const FrameHeader& header,
                               std::span<const std::byte> body,
                               std::span<const std::byte> payload) {
  if (const Status status = status_of(header); status != Status::kOk) return status;
  serves_clients_ = header.epoch != 0;
  if (payload.size() != piece.length) return Status::kStaleTruncateEpoch;
  const uint32_t count = blocks_touched(piece.offset, piece.length);
  if (body.size() != count * sizeof(uint64_t)) return Status::kChecksum;
  piece.sums.resize(count);
  std::memcpy(piece.sums.data(), body.data(), body.size());
  return first_mismatch(piece.offset, payload, piece.sums) ? Status::kChecksum : Status::kOk;
}

void SourceConnection::take(size_t index, std::span<const std::byte> payload) {
  const Piece& piece = pieces_[index];
  ++taken_pieces_;
  (*take_)({.offset = piece.offset,
            .bytes = payload,
            .sums = piece.sums,
            .done = [this, index](Status status) {
              const std::scoped_lock lock(mu_);
              done_.push_back({index, status});
              const uint64_t one = 1;
              (void)::write(done_event_.get(), &one, sizeof one);
            }});
}

void SourceConnection::collect_done() {
  uint64_t count = 0;
  (void)::read(done_event_.get(), &count, sizeof count);
  std::vector<Done> done;
  {
    const std::scoped_lock lock(mu_);
    done.swap(done_);
  }
  taken_pieces_ -= done.size();
  for (const Done& one : done) free(pieces_[one.piece], one.status);
}

void SourceConnection::free(Piece& piece, Status status) {
  if (read_status_ == Status::kOk) read_status_ = status;
  piece.lease.reset();
}

Status SourceConnection::status_of(const FrameHeader& header) {
  if (header.status != 0) return static_cast<Status>(header.status);
  if (incarnation_ == 0) incarnation_ = header.offset;
  return header.offset == incarnation_ ? Status::kOk : Status::kStaleIncarnation;
}

// ---- the socket -----------------------------------------------------------------------

bool SourceConnection::fail(std::string fault) {
  if (fault_.empty()) fault_ = std::move(fault);
  return false;
}

// Sends, waits, and receives something.
bool SourceConnection::turn() {
  if (!fault_.empty() || !send()) return false;
  if (!socket_.has_more() && !wait()) return false;
  return receive_some();
}

bool SourceConnection::send() {
  while (sent_ < outgoing_.size()) {
    iovec place{outgoing_.data() + sent_, outgoing_.size() - sent_};
    const ssize_t count = socket_.send({&place, 1});
    if (count == -EAGAIN) return true;
    if (count < 0) return fail(reason(static_cast<int>(-count)));
    sent_ += static_cast<size_t>(count);
  }
  outgoing_.clear();
  sent_ = 0;
  const int error = socket_.flush();
  return error == 0 || error == -EAGAIN || fail(reason(-error));
}

// For the socket, as long as it is used, or for something that is done. False: the socket has
// failed, or the other server has sent nothing for too long.
bool SourceConnection::wait() {
  const bool sends = socket_.unsent() || !outgoing_.empty();
  const bool uses_socket = fault_.empty();
  std::array<pollfd, 2> awaited{pollfd{.fd = done_event_.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = uses_socket ? socket_.get() : -1,
                                       .events = static_cast<short>(POLLIN | (sends ? POLLOUT : 0)),
                                       .revents = 0}};
  const bool is_patient = uses_socket && taken_pieces_ == 0;
  int ready = 0;
  do {
    const int wait_ms = is_patient ? static_cast<int>(patience_.count()) : -1;
    ready = ::poll(awaited.data(), awaited.size(), wait_ms);
  } while (ready < 0 && errno == EINTR);
  if (ready < 0) return fail(reason(errno));
  if (ready > 0) return true;
  return fail("it sent nothing for " + std::to_string(patience_.count() / 1000) + " s");
}

bool SourceConnection::receive_some() {
  std::array<iovec, 2> places;
  const size_t count = parser_.wanted(places);
  const ssize_t received = socket_.receive(std::span(places).first(count));
  if (received == -EAGAIN) return true;
  if (received == 0) return fail("it was closed");
  if (received < 0) return fail(reason(static_cast<int>(-received)));
  if (parser_.received(static_cast<size_t>(received), *this) == net::ParseResult::kMore)
    return true;
  return fail("it does not keep to the protocol");
}

}  // namespace braidfs::server
