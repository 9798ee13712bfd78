// An open file, which is closed at the end of the block.
// Threads: as its owner's.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace braidfs::reader {

class Descriptor {
 public:
  // Opens the file of that name. O_NONBLOCK: a FIFO in its place must not stop the thread for good.
  Descriptor(const char* name, int flags) noexcept {
    do {
      number_ = ::open(name, flags | O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (number_ < 0 && errno == EINTR);
    error_ = number_ < 0 ? errno : 0;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return number_; }
  // 0, or why the file is not open: an errno.
  int error() const noexcept { return error_; }

 private:
  int number_ = -1;
  int error_ = 0;
};

}  // namespace braidfs::reader
