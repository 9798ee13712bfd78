// braidfs-transport-bench measures the data path's streams, TCP against RDMA, between two machines
// or processes.
//
// - serve [--listen HOST] [--tcp-port N] [--device D [--port N] [--gid-index N]]
//   [--busy-poll-us N] [--once]
// - run HOST [--tcp-port N] [--device D ...] [--busy-poll-us N] [--write] [--size N] [--count N]
//   [--depth N]
//
// With --device on both sides frames go over queue pairs, otherwise over the socket. It prints
// JSON. There is no authentication: use it on a network of your own, and only while you measure.
#include <arpa/inet.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "transport_ends.h"

namespace {

using namespace std::string_literals;
using braidfs::bench::Load;
using braidfs::net::UniqueFd;

constexpr uint64_t kMemory = 256u << 20;
constexpr uint16_t kPort = 7599;

struct Arguments {
  std::string host = "127.0.0.1";
  uint16_t tcp_port = kPort;
  braidfs::rdma::DeviceAddress device{.device = "", .port = 1, .gid_index = 1};
  Load load;
  uint32_t busy_poll_us = 0;
  bool once = false;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "braidfs-transport-bench: %s\n", what.c_str());
  std::exit(1);
}

bool send_all(int fd, const void* bytes, size_t length) {
  return ::send(fd, bytes, length, MSG_NOSIGNAL) == static_cast<ssize_t>(length);
}

bool receive_all(int fd, void* bytes, size_t length) {
  return ::recv(fd, bytes, length, MSG_WAITALL) == static_cast<ssize_t>(length);
}

sockaddr_storage resolve(const Arguments& arguments, socklen_t& length) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(arguments.tcp_port);
  if (getaddrinfo(arguments.host.c_str(), port.c_str(), &hints, &found) != 0) {
    fail("no such host: " + arguments.host);
  }
  sockaddr_storage address{};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  length = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

void no_delay(int fd) {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Opens one rail with one lane, when a device was named.
std::unique_ptr<braidfs::rdma::Rails> open_rails(const Arguments& arguments, bool is_acceptor) {
  auto rails = std::make_unique<braidfs::rdma::Rails>();
  std::string reason;
  if (!arguments.device.device.empty() &&
      rails->open(arguments.device, 1, kMemory, is_acceptor, reason) < 0) {
    fail(reason);
  }
  return rails;
}

void busy_poll(braidfs::net::EventLoop& loop, const Arguments& arguments) {
  loop.busy_poll(std::chrono::microseconds(arguments.busy_poll_us), [] { return true; });
}

std::span<const std::byte> bytes_of(const braidfs::rdma::Peer& peer) {
  return std::as_bytes(std::span(&peer, 1));
}

// Both ends say whether they want RDMA, and what the other end has to know. Returns the channel, or
// null.
std::shared_ptr<braidfs::rdma::Channel> agree(braidfs::rdma::Rails& rails, bool wanted, int fd) {
  uint64_t token = 0;
  braidfs::rdma::Peer mine, theirs;
  mine.magic = 0;
  if (wanted && rails.offer(0, 0, token, mine) != 0) fail("no queue pair");
  if (!send_all(fd, &mine, sizeof mine) || !receive_all(fd, &theirs, sizeof theirs)) {
    fail("the other end is gone");
  }
  if (theirs.magic == 0 && wanted) fail("the other end has no RDMA: name a --device there too");
  if (!wanted) return nullptr;
  if (const int error = rails.connect(token, bytes_of(theirs)); error != 0) {
    fail("the queue pair cannot be connected: "s + std::strerror(-error));
  }
  char ready = 1;  // nobody sends before the other end is connected
  if (!send_all(fd, &ready, 1) || !receive_all(fd, &ready, 1)) fail("the other end is gone");
  return rails.claim(token).channel;
}

void serve(const Arguments& arguments) {
  socklen_t length = 0;
  const sockaddr_storage address = resolve(arguments, length);
  UniqueFd listener(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  (void)setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), 4) != 0) {
    fail("cannot listen: "s + std::strerror(errno));
  }
  std::printf("{\"ready\": true, \"pid\": %d}\n", getpid());
  std::fflush(stdout);
  do {
    UniqueFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) fail("cannot accept: "s + std::strerror(errno));
    no_delay(socket.get());
    const auto rails = open_rails(arguments, true);  // outlives the loop to which it is attached
    braidfs::net::EventLoop loop;
    busy_poll(loop, arguments);
    auto channel = agree(*rails, !arguments.device.device.empty(), socket.get());
    braidfs::bench::Server server(loop);
    auto stream = braidfs::rdma::open_stream(loop, std::move(socket), std::move(channel), server);
    if (stream->start() != 0) fail("the stream cannot be started");
    const int64_t cpu_ns = server.run(std::move(stream));
    std::printf("{\"server_cpu_ns\": %lld}\n", static_cast<long long>(cpu_ns));
    std::fflush(stdout);
  } while (!arguments.once);
}

void run(const Arguments& arguments) {
  const auto rails = open_rails(arguments, false);
  socklen_t length = 0;
  const sockaddr_storage address = resolve(arguments, length);
  UniqueFd socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    fail("cannot connect to " + arguments.host + ": " + std::strerror(errno));
  }
  no_delay(socket.get());
  braidfs::net::EventLoop loop;
  busy_poll(loop, arguments);
  auto channel = agree(*rails, !arguments.device.device.empty(), socket.get());
  braidfs::bench::Client client(loop, arguments.load);
  auto stream = braidfs::rdma::open_stream(loop, std::move(socket), std::move(channel), client);
  if (stream->start() != 0) fail("the stream cannot be started");
  auto figures = client.run(std::move(stream));
  if (!figures) fail("the connection broke");
  auto& latencies = figures->latencies_ns;
  std::sort(latencies.begin(), latencies.end());
  const auto count = static_cast<double>(latencies.size());
  const auto at = [&](double share) {
    return static_cast<double>(latencies[static_cast<size_t>(share * (count - 1))]) / 1000;
  };
  std::printf(
      "{\"transport\": \"%s\", \"op\": \"%s\", \"size\": %u, \"depth\": %u, \"count\": %.0f, "
      "\"seconds\": %.6f, \"ops_per_s\": %.1f, \"mb_per_s\": %.1f, \"p50_us\": %.2f, "
      "\"p99_us\": %.2f, \"client_cpu_ns\": %lld}\n",
      arguments.device.device.empty() ? "tcp" : "rdma", arguments.load.is_write ? "write" : "read",
      arguments.load.size, arguments.load.depth, count, figures->seconds, count / figures->seconds,
      count * arguments.load.size / figures->seconds / 1e6, at(0.5), at(0.99),
      static_cast<long long>(figures->cpu_ns));
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  static const option options[] = {{"listen", required_argument, nullptr, 'l'},
                                   {"tcp-port", required_argument, nullptr, 't'},
                                   {"device", required_argument, nullptr, 'd'},
                                   {"port", required_argument, nullptr, 'p'},
                                   {"gid-index", required_argument, nullptr, 'g'},
                                   {"write", no_argument, nullptr, 'w'},
                                   {"size", required_argument, nullptr, 's'},
                                   {"count", required_argument, nullptr, 'c'},
                                   {"depth", required_argument, nullptr, 'q'},
                                   {"busy-poll-us", required_argument, nullptr, 'b'},
                                   {"once", no_argument, nullptr, 'o'},
                                   {nullptr, 0, nullptr, 0}};
  for (int flag = 0; (flag = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    const auto number = [] { return std::strtoull(optarg, nullptr, 10); };
    switch (flag) {
      case 'l':
        arguments.host = optarg;
        break;
      case 't':
        arguments.tcp_port = static_cast<uint16_t>(number());
        break;
      case 'd':
        arguments.device.device = optarg;
        break;
      case 'p':
        arguments.device.port = static_cast<uint8_t>(number());
        break;
      case 'g':
        arguments.device.gid_index = static_cast<uint8_t>(number());
        break;
      case 'w':
        arguments.load.is_write = true;
        break;
      case 's':
        arguments.load.size = static_cast<uint32_t>(number());
        break;
      case 'c':
        arguments.load.count = number();
        break;
      case 'q':
        arguments.load.depth = static_cast<uint32_t>(number());
        break;
      case 'b':
        arguments.busy_poll_us = static_cast<uint32_t>(number());
        break;
      case 'o':
        arguments.once = true;
        break;
      default:
        std::exit(2);
    }
  }
  const Load& load = arguments.load;
  if (load.size == 0 || load.size > braidfs::limits::kFramePayloadLengthMax || load.count == 0 ||
      load.depth == 0 || load.depth > braidfs::limits::kRequestsInFlightMax) {
    fail("--size, --count or --depth is out of range");
  }
  if (arguments.busy_poll_us > braidfs::net::EventLoop::kBusyPollUsMax) {
    fail("--busy-poll-us is out of range");
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments = parse(argc, argv);
  const std::string verb = optind < argc ? argv[optind] : "";
  if (verb == "serve") {
    serve(arguments);
  } else if (verb == "run" && optind + 1 < argc) {
    arguments.host = argv[optind + 1];
    run(arguments);
  } else {
    fail("serve or run HOST is needed: see docs/operate/rdma.md");
  }
  return 0;
}
