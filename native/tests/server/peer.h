// The other end of a connection to a ChunkServer under test, and a server over a directory of its
// own: blocking sockets, every wait bounded by kPatience. TEST THREAD ONLY.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/chunk_server.h"

namespace braidfs::server {

using Bytes = std::vector<std::byte>;
inline constexpr std::chrono::seconds kPatience{20};
inline constexpr uint64_t kSession = 0xfeed0001;
inline constexpr uint32_t kTarget = 5;
inline constexpr uint64_t kFile = 77;

inline Bytes key_bytes() { return Bytes(32, std::byte{0x5a}); }

inline Bytes pattern(size_t size, uint8_t seed = 1) {
  Bytes bytes(size);
  uint32_t state = seed * 2654435761u + 1;
  for (auto& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

inline Capability capability_for(uint64_t file_id, uint64_t session = kSession,
                                 uint32_t rights = kRightRead | kRightWrite,
                                 std::span<const uint32_t> targets = {}, uint32_t epoch = 0) {
  Capability capability;
  capability.stripe_width = static_cast<uint16_t>(targets.size());
  capability.truncate_epoch = epoch;
  for (size_t stripe = 0; stripe < targets.size(); ++stripe) {
    const uint64_t mark = target_mark(targets[stripe], capability.stripe_width);
    capability.target_marks |= mark << (stripe * target_mark_width(capability.stripe_width));
  }
  capability.file_id = file_id;
  capability.session = session;
  capability.rights = rights;
  const Bytes key = key_bytes();
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned int length = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(&capability), 48, mac.data(), &length);
  std::memcpy(capability.mac, mac.data(), sizeof capability.mac);
  return capability;
}

struct Reply {
  FrameHeader header;
  Bytes body;
  Bytes payload;
  Status status() const { return static_cast<Status>(header.status); }
};

struct Frame {
  FrameHeader header;
  Bytes body;
  Bytes payload;

  // Fills in lengths and checksums as a correct peer does; tests break them afterwards.
  Frame& seal() {
    header.body_length = static_cast<uint32_t>(body.size());
    header.payload_length = static_cast<uint32_t>(payload.size());
    header.body_checksum = body.empty() ? 0 : xxh3(body);
    braidfs::seal(header);
    return *this;
  }
  Bytes raw() const {
    Bytes all(kHeaderSize);
    std::memcpy(all.data(), &header, kHeaderSize);
    all.insert(all.end(), body.begin(), body.end());
    all.insert(all.end(), payload.begin(), payload.end());
    return all;
  }
};

inline Frame request(Op op, uint64_t file_id = kFile) {
  static std::atomic<uint64_t> next_id{0};
  Frame frame;
  frame.header.op = static_cast<uint8_t>(op);
  frame.header.request_id = ++next_id;
  frame.header.file_id = file_id;
  frame.header.target = kTarget;
  return frame;
}

inline void put_capability(Frame& frame, const Capability& capability) {
  frame.header.flags |= kFlagCapability;
  const auto raw = std::as_bytes(std::span(&capability, 1));
  frame.body.insert(frame.body.begin(), raw.begin(), raw.end());
}

inline Frame bare_write(uint64_t offset, const Bytes& payload, uint64_t file_id = kFile) {
  Frame frame = request(Op::kWrite, file_id);
  frame.header.flags = kFlagSums;
  frame.header.offset = offset;
  frame.header.length = static_cast<uint32_t>(payload.size());
  std::vector<uint64_t> sums(blocks_touched(offset, frame.header.length));
  hash_blocks(offset, payload, sums);
  const auto raw = std::as_bytes(std::span(sums));
  frame.body.assign(raw.begin(), raw.end());
  frame.payload = payload;
  return frame;
}

inline Frame write(uint64_t offset, const Bytes& payload, uint64_t file_id = kFile) {
  Frame frame = bare_write(offset, payload, file_id);
  put_capability(frame, capability_for(file_id));
  return frame.seal();
}

// A DELETE_ALL or DROP_NAMES.
inline Frame naming(Op op, const std::vector<ObjectName>& names) {
  Frame frame = request(op, 0);
  frame.header.length = static_cast<uint32_t>(names.size());
  const auto raw = std::as_bytes(std::span(names));
  frame.body.assign(raw.begin(), raw.end());
  return frame.seal();
}

inline Frame delete_all(const std::vector<ObjectName>& names) {
  return naming(Op::kDeleteAll, names);
}

inline Frame drop_names(const std::vector<ObjectName>& names) {
  return naming(Op::kDropNames, names);
}

struct Named {
  uint64_t file_id = kFile;
  uint32_t length = 4096;
  uint32_t stripe_index = 0;
  uint64_t session = kSession;
};

inline Frame fetch(const std::vector<Named>& names) {
  Frame frame = request(Op::kFetch, 0);
  frame.header.length = static_cast<uint32_t>(names.size());
  for (const Named& name : names) {
    const FetchedObject object{capability_for(name.file_id, name.session, kRightRead),
                               name.stripe_index, name.length};
    const auto raw = std::as_bytes(std::span(&object, 1));
    frame.body.insert(frame.body.end(), raw.begin(), raw.end());
  }
  return frame.seal();
}

inline Frame ranged(Op op, uint64_t offset, uint32_t length, uint64_t file_id = kFile) {
  Frame frame = request(op, file_id);
  frame.header.offset = offset;
  frame.header.length = length;
  put_capability(frame, capability_for(file_id));
  return frame.seal();
}

// A copy from one object of the target to another one.
inline Frame copy(const CopySource& source, uint64_t offset, uint32_t length, uint64_t sink,
                  const Capability& reading) {
  Frame frame = request(Op::kCopy, sink);
  frame.header.offset = offset;
  frame.header.length = length;
  const auto named = std::as_bytes(std::span(&source, 1));
  frame.body.assign(named.begin(), named.end());
  const auto right = std::as_bytes(std::span(&reading, 1));
  frame.body.insert(frame.body.end(), right.begin(), right.end());
  put_capability(frame, capability_for(sink));
  return frame.seal();
}

inline CopySource source_at(uint64_t file_id, uint64_t offset) {
  return {.file_id = file_id, .offset = offset, .target = kTarget};
}

inline Frame copy(uint64_t from, uint64_t offset, uint32_t length, uint64_t sink,
                  uint64_t file_id = kFile) {
  return copy(source_at(file_id, from), offset, length, sink, capability_for(file_id));
}

inline Frame read(uint64_t offset, uint32_t length, uint64_t file_id = kFile) {
  return ranged(Op::kRead, offset, length, file_id);
}

inline Frame plain(Op op, uint64_t file_id = kFile) { return request(op, file_id).seal(); }

class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {
    const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }

  // False when the server closed the connection.
  bool send(const Bytes& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const auto count = ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;  // the end of a probed io_uring interrupts
      if (count <= 0) return false;
      sent += static_cast<size_t>(count);
    }
    return true;
  }
  bool send(const Frame& frame) { return send(frame.raw()); }

  std::optional<Reply> receive() {
    Bytes raw;
    if (!receive_bytes(raw, kHeaderSize)) return std::nullopt;
    const DecodedHeader decoded = decode_header(raw);
    EXPECT_EQ(decoded.fault, FrameFault::kOk);
    Reply reply{.header = decoded.header, .body = {}, .payload = {}};
    if (!receive_bytes(reply.body, decoded.header.body_length)) return std::nullopt;
    if (!receive_bytes(reply.payload, decoded.header.payload_length)) return std::nullopt;
    EXPECT_EQ(decoded.header.body_checksum, reply.body.empty() ? 0 : xxh3(reply.body));
    EXPECT_TRUE(decoded.header.flags & kFlagReply);
    return reply;
  }

  Reply ask(const Frame& frame) {
    EXPECT_TRUE(send(frame));
    auto reply = receive();
    EXPECT_TRUE(reply.has_value()) << "the connection ended instead of a reply";
    if (!reply) return {};
    EXPECT_EQ(reply->header.request_id, frame.header.request_id);
    return *std::move(reply);
  }
  Status status_of(const Frame& frame) { return ask(frame).status(); }

  // True when the server closed the connection; frames that it still sends are skipped.
  bool ends() {
    std::array<char, 65536> skipped;
    for (;;) {
      const auto count = ::recv(fd_.get(), skipped.data(), skipped.size(), 0);
      if (count == 0 || (count < 0 && errno == ECONNRESET)) return true;
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return false;
    }
  }
  void hang_up() { fd_.reset(); }
  int fd() const { return fd_.get(); }

 private:
  bool receive_bytes(Bytes& bytes, size_t count) {
    bytes.resize(count);
    size_t got = 0;
    while (got < count) {
      const auto more = ::recv(fd_.get(), bytes.data() + got, count - got, 0);
      if (more < 0 && errno == EINTR) continue;
      if (more <= 0) return false;
      got += static_cast<size_t>(more);
    }
    return true;
  }

  net::UniqueFd fd_;
};

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "braid-server-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
    launch(config_);
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  void launch(const ServerConfig& config, bool sessions = true) {
    server_.reset();
    server_ = std::make_unique<ChunkServer>(config);
    ASSERT_EQ(server_->fault(), 0);
    const auto opened = server_->target_open(
        {.path = directory_.string(), .cluster = {}, .uuid = {std::byte{9}}, .create = !created_});
    ASSERT_EQ(opened.status, Status::kOk) << opened.message;
    created_ = true;
    ASSERT_EQ(server_->target_assign(opened.index, kTarget), Status::kOk);
    server_->capability_key(key_bytes());
    server_->start();
    if (sessions) server_->sessions(std::array{kSession});
  }

  Peer connect(uint64_t session = kSession, uint64_t previous = 0,
               Purpose purpose = Purpose::kData) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    EXPECT_TRUE(server_->adopt({.socket = net::UniqueFd(ends[1]),
                                .purpose = purpose,
                                .session = session,
                                .connection = ++connection_,
                                .previous = previous}));
    return Peer(ends[0]);
  }
  Peer connect_metaserver() { return connect(0, 0, Purpose::kServer); }

  // The files of the target's objects, open for reading and writing.
  std::vector<net::UniqueFd> object_files() const {
    std::vector<net::UniqueFd> files;
    for (const auto& file : std::filesystem::recursive_directory_iterator(directory_ / "objects")) {
      if (file.is_regular_file())
        files.emplace_back(::open(file.path().c_str(), O_RDWR | O_CLOEXEC));
    }
    return files;
  }

  uint64_t counter(const std::string& name) { return server_->counters().at(name); }
  // Waits for a condition that other threads fulfil.
  static bool eventually(const std::function<bool()>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!holds()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  ServerConfig config_{.lane_count = 2, .io = IoEngine::kSyscall};
  std::filesystem::path directory_;
  bool created_ = false;
  uint64_t connection_ = 100;
  std::unique_ptr<ChunkServer> server_;
};

}  // namespace braidfs::server
