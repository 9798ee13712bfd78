#include "net/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace braidfs::net {

namespace {

constexpr size_t kRecord = 16u << 10;   // the largest TLS record
constexpr size_t kSmallMax = 8u << 10;  // smaller pieces share a record, so they are copied
// Encrypted bytes that leave in one system call.
constexpr size_t kSendAt = 256u << 10;
// Bounds what waits for a peer that asks for new keys and does not read the answers.
constexpr size_t kOutgoingMax = 2u << 20;
// Room for received bytes during the handshake.
constexpr size_t kIncoming = 20u << 10;
constexpr size_t kIncomingOfFiles = 256u << 10;  // room for received bytes after it
constexpr const char* kCiphers =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

std::string library_error() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown error" : reason;
}

Tls& owner_of(BIO* bio) { return *static_cast<Tls*>(BIO_get_data(bio)); }

int bio_read(BIO* bio, char* place, int room) {
  BIO_clear_retry_flags(bio);
  bool again = false;
  const int count = owner_of(bio).take_in(place, room, again);
  if (again) BIO_set_retry_read(bio);
  return count;
}

int bio_write(BIO* bio, const char* bytes, int length) {
  BIO_clear_retry_flags(bio);
  bool again = false;
  const int count = owner_of(bio).put_out(bytes, length, again);
  if (again) BIO_set_retry_write(bio);
  return count;
}

long bio_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return owner_of(bio).is_ended() ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

int bio_create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

// The method lives as long as the process.
const BIO_METHOD* bio_method() {
  static BIO_METHOD* const made = [] {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "braidfs");
    if (method == nullptr) return method;
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_ctrl(method, bio_control);
    BIO_meth_set_create(method, bio_create);
    return method;
  }();
  return made;
}

SSL_CTX* new_context(const SSL_METHOD* method) {
  SSL_CTX* raw = SSL_CTX_new(method);
  if (raw == nullptr) return nullptr;
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CIPHER_SERVER_PREFERENCE |
                               SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_ciphersuites(raw, kCiphers);
  return raw;
}

bool is_address(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> place;
  return inet_pton(AF_INET, name.c_str(), place.data()) == 1 ||
         inet_pton(AF_INET6, name.c_str(), place.data()) == 1;
}

bool expect(SSL* raw, const std::string& peer_name) {
  if (is_address(peer_name)) {
    return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(raw), peer_name.c_str()) == 1;
  }
  SSL_set_hostflags(raw,
                    X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  return SSL_set1_host(raw, peer_name.c_str()) == 1 &&
         SSL_set_tlsext_host_name(raw, peer_name.c_str()) == 1;
}

std::string name_text(const X509_NAME* name) {
  std::array<char, 256> text{};
  X509_NAME_oneline(name, text.data(), text.size());
  return text.data();
}

}  // namespace

std::shared_ptr<const TlsContext> TlsContext::server(const std::string& certificate_file,
                                                     const std::string& key_file,
                                                     std::string& fault) {
  ERR_clear_error();
  SSL_CTX* raw = new_context(TLS_server_method());
  if (raw == nullptr) {
    fault = "OpenSSL: " + library_error();
    return nullptr;
  }
  std::shared_ptr<const TlsContext> made(new TlsContext(raw));
  if (SSL_CTX_use_certificate_chain_file(raw, certificate_file.c_str()) != 1) {
    fault = "the certificate " + certificate_file + " cannot be used: " + library_error();
  } else if (SSL_CTX_use_PrivateKey_file(raw, key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    fault = "the private key " + key_file + " cannot be used: " + library_error();
  } else if (SSL_CTX_check_private_key(raw) != 1) {
    fault = "the private key " + key_file + " is not that of " + certificate_file;
  } else {
    return made;
  }
  return nullptr;
}

std::shared_ptr<const TlsContext> TlsContext::client(const std::string& authorities_file,
                                                     std::string& fault) {
  ERR_clear_error();
  SSL_CTX* raw = new_context(TLS_client_method());
  if (raw == nullptr) {
    fault = "OpenSSL: " + library_error();
    return nullptr;
  }
  std::shared_ptr<const TlsContext> made(new TlsContext(raw));
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER, nullptr);
  if (SSL_CTX_load_verify_file(raw, authorities_file.c_str()) == 1) return made;
  fault = "the certificates in " + authorities_file + " cannot be used: " + library_error();
  return nullptr;
}

TlsContext::~TlsContext() { SSL_CTX_free(raw_); }

std::unique_ptr<Tls> TlsContext::open(int socket, const std::string& peer_name,
                                      uint64_t records_per_key) const {
  ERR_clear_error();
  SSL* raw = bio_method() == nullptr ? nullptr : SSL_new(raw_);
  if (raw == nullptr) return nullptr;
  std::unique_ptr<Tls> made(new Tls(raw, socket, records_per_key));
  BIO* bio = BIO_new(bio_method());
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, made.get());
  SSL_set_bio(raw, bio, bio);
  const bool is_server = SSL_is_server(raw) == 1;
  is_server ? SSL_set_accept_state(raw) : SSL_set_connect_state(raw);
  return is_server || expect(raw, peer_name) ? std::move(made) : nullptr;
}

Tls::Tls(ssl_st* raw, int socket, uint64_t records_per_key)
    : raw_(raw), socket_(socket), records_per_key_(records_per_key), incoming_(kIncoming) {}

Tls::~Tls() { SSL_free(raw_); }

int Tls::take_in(char* place, int room, bool& again) {
  again = taken_ == filled_ && !fill();
  if (again || error_ != 0) return -1;
  const size_t count = std::min(static_cast<size_t>(room), filled_ - taken_);
  std::memcpy(place, incoming_.data() + taken_, count);
  taken_ += count;
  return static_cast<int>(count);
}

// Receives into incoming_. False when nothing has arrived. True with no bytes at the peer's end and
// after an error.
bool Tls::fill() {
  if (drained_) return false;
  ssize_t count;
  do {
    count = recv(socket_, incoming_.data(), incoming_.size(), MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  drained_ = count < static_cast<ssize_t>(incoming_.size());
  if (count < 0 && errno == EAGAIN) return false;
  error_ = count < 0 ? errno : 0;
  ended_ = count == 0;
  taken_ = 0;
  filled_ = count > 0 ? static_cast<size_t>(count) : 0;
  return true;
}

bool Tls::holds_some() const { return taken_ < filled_ || SSL_has_pending(raw_) == 1; }

int Tls::put_out(const char* bytes, int length, bool& again) {
  again = outgoing_.size() - sent_ > kOutgoingMax;
  if (again) return -1;
  outgoing_.insert(outgoing_.end(), bytes, bytes + length);
  return length;
}

int Tls::flush() {
  while (unsent()) {
    const ssize_t count = ::send(socket_, outgoing_.data() + sent_, outgoing_.size() - sent_,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -errno;
    sent_ += static_cast<size_t>(count);
  }
  outgoing_.clear();
  sent_ = 0;
  return 0;
}

// Translates what OpenSSL says of `result`: -errno, or 0 when the peer has closed.
int Tls::failed(const char* doing, int result) {
  switch (SSL_get_error(raw_, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SYSCALL:
      fault_ = std::string(doing) + " ended";
      return error_ != 0 ? -error_ : -ECONNRESET;
    default: {
      const long verdict = SSL_get_verify_result(raw_);
      fault_ = verdict == X509_V_OK ? library_error() : X509_verify_cert_error_string(verdict);
      return -EPROTO;
    }
  }
}

int Tls::shake() {
  ERR_clear_error();
  drained_ = false;
  const int result = SSL_do_handshake(raw_);
  const int error = result == 1 ? 0 : failed("the handshake", result);
  const int sending = flush();  // sends an alert as well
  if (error == 0 && result != 1) return -ECONNRESET;
  return error == 0 ? sending : error;
}

ssize_t Tls::receive(std::span<const iovec> places) {
  ERR_clear_error();
  drained_ = false;
  size_t got = 0;
  for (const iovec& place : places) {
    size_t filled = 0;
    while (filled < place.iov_len) {
      size_t count = 0;
      const int result = SSL_read_ex(raw_, static_cast<char*>(place.iov_base) + filled,
                                     place.iov_len - filled, &count);
      if (result != 1) {
        const int error = failed("the connection", result);
        more_ = error != -EAGAIN && got > 0;  // the next call reports the end
        return got > 0 ? static_cast<ssize_t>(got) : error;
      }
      filled += count;
      got += count;
    }
  }
  more_ = holds_some();
  return static_cast<ssize_t>(got);
}

int Tls::encrypt(const void* bytes, size_t length) {
  if (records_ >= records_per_key_) {
    if (const int error = change_key(); error != 0) return error;
  }
  size_t written = 0;
  const int result = SSL_write_ex(raw_, bytes, length, &written);
  if (result != 1 || written != length) {
    const int error = failed("the connection", result);
    return error == 0 ? -EPIPE : error;
  }
  ++records_;
  return 0;
}

int Tls::change_key() {
  if (SSL_key_update(raw_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return -EPROTO;
  records_ = 0;
  return 0;
}

int Tls::encrypt_small() {
  if (small_.empty()) return 0;
  const int error = encrypt(small_.data(), small_.size());
  small_.clear();
  return error;
}

int Tls::add_small(std::span<const std::byte> bytes) {
  if (small_.size() + bytes.size() > kRecord) {
    if (const int error = encrypt_small(); error != 0) return error;
  }
  small_.insert(small_.end(), bytes.begin(), bytes.end());
  return 0;
}

// When it returns, everything that it took is encrypted. outgoing_ never holds much more than
// kSendAt.
ssize_t Tls::send(std::span<const iovec> places) {
  if (const int error = flush(); error != 0) return error;
  ERR_clear_error();
  size_t taken = 0;
  int error = 0;
  for (const iovec& place : places) {
    std::span<const std::byte> rest(static_cast<const std::byte*>(place.iov_base), place.iov_len);
    while (!rest.empty() && error == 0) {
      const auto piece = rest.first(std::min(rest.size(), kRecord));
      if (piece.size() <= kSmallMax) {
        error = add_small(piece);
      } else {
        error = encrypt_small();
        if (error == 0) error = encrypt(piece.data(), piece.size());
      }
      if (error != 0) break;
      taken += piece.size();
      rest = rest.subspan(piece.size());
      if (outgoing_.size() >= kSendAt) error = flush();
    }
    if (error != 0) break;
  }
  const int ending = encrypt_small();
  if (ending != 0 && (error == 0 || error == -EAGAIN)) error = ending;
  if (error == 0) error = flush();
  if (error != 0 && error != -EAGAIN) return error;
  return static_cast<ssize_t>(taken);
}

void Tls::grow_buffer() {
  more_ = holds_some();
  incoming_.resize(kIncomingOfFiles);
}

Tls::Certificate Tls::peer_certificate() const {
  const X509* raw = SSL_get0_peer_certificate(raw_);
  if (raw == nullptr) return {};
  std::tm end{};
  ASN1_TIME_to_tm(X509_get0_notAfter(raw), &end);
  return {.subject = name_text(X509_get_subject_name(raw)),
          .issuer = name_text(X509_get_issuer_name(raw)),
          .ends_s = timegm(&end)};
}

std::string Tls::cipher() const { return SSL_get_cipher_name(raw_); }

}  // namespace braidfs::net
