// TLS 1.3 over a connected socket, by OpenSSL: handshake, and bytes in and out as of a socket.
//
// Many records come and go in one system call, through buffers here: OpenSSL's own read-ahead moves
// all that it holds for each record. Both ends are BraidFS: no session tickets, no renegotiation,
// no older version. A connection that ends without an alert is an end like any other: frames are
// whole or not, and requests have answers. Keys change after kRecordsPerKey records, long before
// AES-GCM asks for it (RFC 8446, 5.5).
//
// Threads: TlsContext ANY THREAD; a Tls is used by one thread at a time.
// Not here: who must speak TLS, and which files (fscommon/net/tls.py).
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct ssl_ctx_st;
struct ssl_st;
struct bio_st;

namespace braidfs::net {

class Tls;

class TlsContext {
 public:
  static constexpr uint64_t kRecordsPerKey = 1u << 22;

  // From PEM files. Null, with a sentence in `fault`, when they cannot be used.
  static std::shared_ptr<const TlsContext> server(const std::string& certificate_file,
                                                  const std::string& key_file, std::string& fault);
  static std::shared_ptr<const TlsContext> client(const std::string& authorities_file,
                                                  std::string& fault);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // The socket stays the caller's. peer_name: whom a client wants to have there, an address or the
  // name of a host. Null without memory, or for a name that is none.
  std::unique_ptr<Tls> open(int socket, const std::string& peer_name,
                            uint64_t records_per_key = kRecordsPerKey) const;

 private:
  explicit TlsContext(ssl_ctx_st* raw) : raw_(raw) {}
  ssl_ctx_st* const raw_;
};

class Tls {
 public:
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // 0: done; -EAGAIN: when the socket can be read, or written if unsent(); else -errno and fault().
  int shake();
  // As recvmsg and sendmsg of a non-blocking socket: a count, 0 at the peer's end, or -errno.
  // What was taken by send() may wait here: then unsent(), and flush() when the socket can be
  // written.
  ssize_t receive(std::span<const iovec> places);
  ssize_t send(std::span<const iovec> places);
  int flush();
  bool unsent() const noexcept { return sent_ < outgoing_.size(); }
  // receive() would give more now, though the socket may have nothing.
  bool has_more() const noexcept { return more_; }
  // The handshake is over, and much is to come: a buffer for that.
  void grow_buffer();
  const std::string& fault() const noexcept { return fault_; }

  // Of the peer's certificate: subject, issuer, and when it ends, in seconds since 1970 (0: none).
  struct Certificate {
    std::string subject;
    std::string issuer;
    int64_t ends_s = 0;
  };
  Certificate peer_certificate() const;
  std::string cipher() const;

  // For OpenSSL, which reads and writes by these. A count, or -1 with `again`.
  int take_in(char* place, int room, bool& again);
  int put_out(const char* bytes, int length, bool& again);
  bool is_ended() const noexcept { return ended_; }

 private:
  friend class TlsContext;
  Tls(ssl_st* raw, int socket, uint64_t records_per_key);
  int encrypt(const void* bytes, size_t length);
  int add_small(std::span<const std::byte> bytes);
  int encrypt_small();
  bool fill();
  bool holds_some() const;
  int change_key();
  int failed(const char* doing, int result);

  ssl_st* const raw_;
  const int socket_;
  const uint64_t records_per_key_;
  uint64_t records_ = 0;
  std::vector<char> incoming_;  // received; from taken_ to filled_ not given to OpenSSL yet
  size_t taken_ = 0;
  size_t filled_ = 0;
  std::vector<char> outgoing_;  // encrypted; sent_ of it is gone
  size_t sent_ = 0;
  std::vector<std::byte> small_;  // pieces that share a record
  bool drained_ = false;          // the socket has no more, as far as this call knows
  bool ended_ = false;            // the peer sends no more
  bool more_ = false;
  int error_ = 0;  // of the socket
  std::string fault_;
};

}  // namespace braidfs::net
