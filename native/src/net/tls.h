// TLS 1.3 over a connected socket, by OpenSSL: the handshake, then bytes in and out as over a
// socket.
//
// Many records are received and sent in one system call, through buffers in this class (OpenSSL's
// own read-ahead moves everything that it holds for each record). Both ends are BraidFS, so there
// are no session tickets, no renegotiation and no older version. A connection that ends without a
// TLS alert counts as closed: frames are whole or not, and every request has its answer. Keys
// change after kRecordsPerKey records, long before AES-GCM requires it (RFC 8446, 5.5).
//
// Threads: TlsContext is ANY THREAD; a Tls is used by one thread at a time. Not here: who must
// speak TLS, and with which files (fscommon/net/tls.py).
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

  // Makes a context from PEM files. Null when they cannot be used; then `fault` is a sentence that
  // says why.
  static std::shared_ptr<const TlsContext> server(const std::string& certificate_file,
                                                  const std::string& key_file, std::string& fault);
  static std::shared_ptr<const TlsContext> client(const std::string& authorities_file,
                                                  std::string& fault);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // Begins a connection; the socket still belongs to the caller. `peer_name` is the address or host
  // name that a client expects in the peer's certificate. Null when memory is short or the name is
  // not valid.
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

  // Continues the handshake. 0: it is done. -EAGAIN: call again when the socket can be read, or can
  // be written if unsent(). Any other -errno: it failed, and fault() says why.
  int shake();
  // Like recvmsg and sendmsg on a non-blocking socket: a count, 0 when the peer has closed, or
  // -errno. Bytes that send() took may wait in this object: then unsent() is true, and flush() must
  // be called when the socket can be written.
  ssize_t receive(std::span<const iovec> places);
  ssize_t send(std::span<const iovec> places);
  int flush();
  bool unsent() const noexcept { return sent_ < outgoing_.size(); }
  // True: receive() would return bytes now, even if the socket has none.
  bool has_more() const noexcept { return more_; }
  // Called after the handshake: replaces the receive buffer by one for large transfers.
  void grow_buffer();
  const std::string& fault() const noexcept { return fault_; }

  // The peer's certificate: subject, issuer, and end of validity in seconds since 1970 (0: there is
  // no certificate).
  struct Certificate {
    std::string subject;
    std::string issuer;
    int64_t ends_s = 0;
  };
  Certificate peer_certificate() const;
  std::string cipher() const;

  // Called by OpenSSL to read and to write. A count, or -1 with `again` set to whether to try
  // later.
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
  // Received bytes; those from taken_ to filled_ were not given to OpenSSL yet.
  std::vector<char> incoming_;
  size_t taken_ = 0;
  size_t filled_ = 0;
  // Encrypted bytes, of which the first sent_ were sent.
  std::vector<char> outgoing_;
  size_t sent_ = 0;
  std::vector<std::byte> small_;  // pieces that will share one record
  // This call has seen that the socket has no more bytes.
  bool drained_ = false;
  bool ended_ = false;  // the peer has closed
  bool more_ = false;
  int error_ = 0;  // errno of the socket
  std::string fault_;
};

}  // namespace braidfs::net
