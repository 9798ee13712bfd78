// What tests need to play the kernel: requests as bytes, answers as structures, and sockets that
// stand for /dev/fuse (one message is one request or answer, as there).
#pragma once
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "fuse/protocol.h"
#include "net/unique_fd.h"

namespace braidfs::fuse::testing {

using Bytes = std::vector<std::byte>;

struct Sender {
  uint64_t unique = 2;
  uint64_t nodeid = 1;
  uint32_t pid = 4711;
};

inline void append(Bytes& bytes, const void* start, size_t size) {
  const auto* first = static_cast<const std::byte*>(start);
  bytes.insert(bytes.end(), first, first + size);
}

// A request with a right header; `tail` follows the fixed part.
template <typename Fixed>
requires(std::is_trivially_copyable_v<Fixed> &&
         !std::is_convertible_v<Fixed, std::string_view>) Bytes
    request(uint32_t opcode, const Sender& sender, const Fixed& fixed, std::string_view tail = {}) {
  fuse_in_header header{};
  header.len = static_cast<uint32_t>(sizeof(header) + sizeof(fixed) + tail.size());
  header.opcode = opcode;
  header.unique = sender.unique;
  header.nodeid = sender.nodeid;
  header.uid = 1000;
  header.gid = 100;
  header.pid = sender.pid;
  Bytes bytes;
  append(bytes, &header, sizeof(header));
  append(bytes, &fixed, sizeof(fixed));
  append(bytes, tail.data(), tail.size());
  return bytes;
}

inline Bytes request(uint32_t opcode, const Sender& sender, std::string_view tail = {}) {
  fuse_in_header header{};
  header.len = static_cast<uint32_t>(sizeof(header) + tail.size());
  header.opcode = opcode;
  header.unique = sender.unique;
  header.nodeid = sender.nodeid;
  header.pid = sender.pid;
  Bytes bytes;
  append(bytes, &header, sizeof(header));
  append(bytes, tail.data(), tail.size());
  return bytes;
}

inline Bytes lookup(const Sender& sender, std::string name) {
  name.push_back('\0');
  return request(FUSE_LOOKUP, sender, name);
}

inline Bytes answer(uint64_t unique, int error, std::string_view body = {}) {
  fuse_out_header header{};
  header.len = static_cast<uint32_t>(sizeof(header) + body.size());
  header.error = error;
  header.unique = unique;
  Bytes bytes;
  append(bytes, &header, sizeof(header));
  append(bytes, body.data(), body.size());
  return bytes;
}

struct SocketPair {
  net::UniqueFd ours;    // the test's end
  net::UniqueFd theirs;  // what stands for a clone of /dev/fuse

  SocketPair() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
      std::abort();
    }
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
};

// The next message, or empty after `wait_ms` without one.
inline Bytes receive(int fd, int wait_ms = 5000) {
  pollfd readable{fd, POLLIN, 0};
  if (::poll(&readable, 1, wait_ms) != 1) return {};
  Bytes bytes(8192);  // no test sends more
  const ssize_t length = ::recv(fd, bytes.data(), bytes.size(), 0);
  bytes.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return bytes;
}

inline bool send(int fd, const Bytes& bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

template <typename T>
T at(const Bytes& bytes, size_t offset) {
  T value{};
  if (bytes.size() >= offset + sizeof(T)) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

inline fuse_out_header out_header(const Bytes& bytes) { return at<fuse_out_header>(bytes, 0); }

// What follows an answer's header.
inline std::string text_of(const Bytes& bytes) {
  constexpr size_t kHead = sizeof(fuse_out_header);
  if (bytes.size() < kHead) return "";
  return {reinterpret_cast<const char*>(bytes.data()) + kHead, bytes.size() - kHead};
}

}  // namespace braidfs::fuse::testing
