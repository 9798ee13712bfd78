// Requests about one object to another storage server, over a connection that is used for nothing
// else: one at a time, or several READs.
//
// Payloads are compared with the sums that came with them. Every answer names the target's
// incarnation, which must stay as it was in the first one: otherwise the target may have lost some
// of the bytes. Everything that the other server sends is checked; what breaks the protocol ends
// the connection.
//
// Threads: calls block, and are made by one thread at a time; cut() is ANY THREAD. Not here: the
// connection's handshake (fscommon/net), what is copied (remote_copy.h).
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "braidfs/frame.h"
#include "net/buffer_pool.h"
#include "net/frame_parser.h"
#include "net/socket.h"
#include "net/unique_fd.h"

namespace braidfs::server {

// Where an object of another server is.
struct RemoteObject {
  uint32_t target = 0;
  uint64_t file_id = 0;
  uint32_t number = 0;
};

class SourceConnection final : net::FrameSink {
 public:
  static constexpr uint32_t kPieceBytes = 1u << 20;  // of one READ
  static constexpr size_t kPieces = 4;               // READs at a time

  // What a READ has brought; `done` is called once, by any thread, when it is not needed any more.
  struct Arrived {
    uint64_t offset = 0;
    std::span<const std::byte> bytes{};
    std::span<const uint64_t> sums{};
    std::function<void(Status)> done;  // not kOk: the READs end with this status
  };
  using Take = std::function<void(Arrived)>;

  // patience: how long the other server may send nothing while it is waited for.
  SourceConnection(net::Socket socket, std::chrono::milliseconds patience);
  ~SourceConnection() override = default;
  SourceConnection(const SourceConnection&) = delete;
  SourceConnection& operator=(const SourceConnection&) = delete;

  // The next requests are about this object.
  void choose(const RemoteObject& object);

  // Returns the answer's status; `body` is valid until the next call. kEio: there was no answer,
  // and fault() says why. kStaleIncarnation: the target lost power.
  struct Question {
    Op op;
    uint64_t offset = 0;
    uint32_t length = 0;
    uint32_t epoch = 0;
  };
  Status ask(const Question& question, std::span<const std::byte>& body);
  // Reads what is between these offsets, `begin` at the beginning of a block, in any order. When it
  // returns, all that was taken is done.
  // kStaleTruncateEpoch: there was less; kNoObject, kCorrupt, kChecksum; otherwise as ask().
  Status read(uint64_t begin, uint64_t end, const Take& take);

  void cut() noexcept;
  // "": the connection can be used, also for another object.
  const std::string& fault() const noexcept { return fault_; }
  uint64_t incarnation() const noexcept { return incarnation_; }  // 0: nothing was answered yet
  // The target had requests of clients when it was last read.
  bool serves_clients() const noexcept { return serves_clients_; }
  // Gives memory back that only read() needs.
  void rest() noexcept { pool_.shrink(kPieces); }

 private:
  struct Piece {
    uint64_t request = 0;  // 0: none
    uint64_t offset = 0;
    uint32_t length = 0;
    bool is_raw = false;
    net::BufferPool::Lease lease{};  // empty: the piece is free
    std::vector<uint64_t> sums;
  };
  struct Done {
    size_t piece;
    Status status;
  };

  net::PayloadPlace payload_buffer(const FrameHeader& header,
                                   std::span<const std::byte> body) override;
  bool frame(const FrameHeader& header, std::span<const std::byte> body,
             std::span<std::byte> payload) override;
  Piece* piece_of(uint64_t request) noexcept;
  Status check(Piece& piece, const FrameHeader& header, std::span<const std::byte> body,
               std::span<const std::byte> payload);
  void take(size_t index, std::span<const std::byte> payload);
  void free(Piece& piece, Status status);
  void collect_done();
  Status status_of(const FrameHeader& header);
  uint64_t submit(const Question& question, uint16_t flags);
  void submit(Piece& piece);
  void ask_for_more(uint64_t& next, uint64_t end);
  bool turn();
  bool send();
  bool wait();
  bool receive_some();
  bool fail(std::string fault);

  net::Socket socket_;
  const std::chrono::milliseconds patience_;
  net::FrameParser parser_;
  net::BufferPool pool_{kPieceBytes, kPieces, kPieces};
  std::string fault_;
  RemoteObject object_;
  uint64_t incarnation_ = 0;
  bool serves_clients_ = false;

  std::vector<std::byte> outgoing_;
  size_t sent_ = 0;
  uint64_t last_request_ = 0;

  uint64_t asked_ = 0;  // the request of ask(); 0: it is answered
  Status answer_ = Status::kOk;
  std::vector<std::byte> answer_body_;

  std::array<Piece, kPieces> pieces_;
  size_t asked_pieces_ = 0;  // of which the READ is not answered
  size_t taken_pieces_ = 0;
  const Take* take_ = nullptr;
  Status read_status_ = Status::kOk;  // of the first READ that failed
  net::UniqueFd done_event_;
  std::mutex mu_;
  std::vector<Done> done_;  // guarded by mu_
};

}  // namespace braidfs::server
