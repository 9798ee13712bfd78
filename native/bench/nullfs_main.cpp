// braidfs-nullfs MOUNTPOINT [--files N] [--size BYTES] [--lanes L] [--passthrough DIR]
// [--ready-fd N]
//
// Serves nullfs.h in the foreground until it is unmounted, or gets SIGINT or SIGTERM.
#include <getopt.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "nullfs.h"

namespace {

using braidfs::bench::NullFileSystem;
using braidfs::bench::NullShape;
using braidfs::fuse::FuseSession;
using braidfs::net::EventLoop;

struct Arguments {
  std::string mountpoint;
  NullShape shape;
  unsigned lanes = std::max(1u, std::min(8u, std::thread::hardware_concurrency()));
  int ready_fd = STDOUT_FILENO;
};

class Loops final : public braidfs::fuse::SessionObserver {
 public:
  explicit Loops(unsigned count) {
    for (unsigned index = 0; index < count; ++index) {
      loops_.push_back(std::make_unique<EventLoop>());
      pointers_.push_back(loops_.back().get());
    }
  }
  std::span<EventLoop* const> pointers() const { return pointers_; }
  void run() {
    std::vector<std::thread> threads;
    for (auto* loop : pointers_) threads.emplace_back([loop] { loop->run(); });
    for (auto& thread : threads) thread.join();
  }
  void upcall_interrupted(uint32_t) override {}
  void called(uint32_t, const braidfs::fuse::RequestHead&, uint32_t, std::span<const std::byte>,
              int) override {}
  void unmounted() override {
    for (auto* loop : pointers_) loop->stop();
  }
  void log(int, std::string_view text) override {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  }

 private:
  std::vector<std::unique_ptr<EventLoop>> loops_;
  std::vector<EventLoop*> pointers_;
};

[[noreturn]] void usage() {
  std::fputs(
      "usage: braidfs-nullfs MOUNTPOINT [--files N] [--size BYTES] [--lanes L] "
      "[--passthrough DIR] [--ready-fd N]\n",
      stderr);
  std::exit(2);
}

Arguments parse_arguments(int argc, char** argv) {
  static const option kOptions[] = {{"files", required_argument, nullptr, 'f'},
                                    {"size", required_argument, nullptr, 's'},
                                    {"lanes", required_argument, nullptr, 'l'},
                                    {"passthrough", required_argument, nullptr, 'p'},
                                    {"ready-fd", required_argument, nullptr, 'r'},
                                    {nullptr, 0, nullptr, 0}};
  Arguments arguments;
  for (int found; (found = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    switch (found) {
      case 'f':
        arguments.shape.file_count = std::strtoull(optarg, nullptr, 10);
        break;
      case 's':
        arguments.shape.file_size = std::strtoull(optarg, nullptr, 10);
        break;
      case 'l':
        arguments.lanes = static_cast<unsigned>(std::strtoul(optarg, nullptr, 10));
        break;
      case 'p':
        arguments.shape.backing = optarg;
        break;
      case 'r':
        arguments.ready_fd = static_cast<int>(std::strtol(optarg, nullptr, 10));
        break;
      default:
        usage();
    }
  }
  if (optind + 1 != argc || arguments.lanes < 1 || arguments.lanes > 64) usage();
  arguments.mountpoint = argv[optind];
  return arguments;
}

int fail(const char* what, const std::string& where, int error) {
  std::fprintf(stderr, "braidfs-nullfs: cannot %s %s: %s\n", what, where.c_str(),
               std::strerror(-error));
  return 1;
}

// On SIGINT or SIGTERM, unmounts, which ends the lanes.
void unmount_on_signal(const std::string& mountpoint) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, mountpoint] {
    int number = 0;
    sigwait(&signals, &number);
    umount2(mountpoint.c_str(), MNT_DETACH);
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse_arguments(argc, argv);
  Loops loops(arguments.lanes);
  FuseSession session({}, loops);
  if (!arguments.shape.backing.empty()) session.use_passthrough();
  const int mounted = session.mount({arguments.mountpoint, "nullfs", "", false});
  if (mounted != 0) return fail("mount", arguments.mountpoint, mounted);
  unmount_on_signal(arguments.mountpoint);
  NullFileSystem files(arguments.shape, session);
  const int started = session.start_without_bridge(files, loops.pointers(), files);
  if (started != 0) {
    umount2(arguments.mountpoint.c_str(), MNT_DETACH);
    return fail("serve", arguments.mountpoint, started);
  }
  if (!arguments.shape.backing.empty()) {
    FuseSession::Handed shared;
    const int error = session.share(shared);
    if (error != 0 || !session.has_passthrough())
      return fail("pass through to", arguments.shape.backing, -ENOTSUP);
    files.device(std::move(shared.fds.front()));
  }
  if (::write(arguments.ready_fd, "READY\n", 6) < 0) return fail("report to", "--ready-fd", -errno);
  loops.run();
  session.stop();
  return 0;
}
