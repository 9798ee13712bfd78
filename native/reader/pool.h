// Threads that work off batches of files. A batch belongs to the caller of run(), who waits for it.
//
// Invariant: when run() returns, no thread touches its batch any more.
// Threads: run() from any; several batches may be under way at once. After a fork the child has no
// threads of the pool: it must not use it, and its destructor only forgets them.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace braidfs::reader {

// A row of a batch's table, laid out as Python gives it.
struct Row {
  std::int64_t place;   // offset in the arena
  std::int64_t room;    // count of bytes there
  std::int64_t result;  // of the file: a count of bytes, or -errno
};

enum class Task { kSizes, kRead };

class Batch {
 public:
  // All three are parallel to each other or outlive the batch. arena: unused for sizes.
  Batch(Task task, std::span<const char* const> names, std::span<Row> rows, std::byte* arena);

  std::size_t size() const noexcept { return rows_.size(); }
  // ANY THREAD. Works off files until none is left or the batch was cancelled.
  void work() noexcept;
  // ANY THREAD. No file is begun from now on; those left have -ECANCELED.
  void cancel() noexcept { next_.store(rows_.size()); }
  bool has_work() const noexcept { return next_.load() < rows_.size(); }

  int threads = 0;      // that work at it now; guarded by the pool's mutex
  int threads_max = 1;  // guarded by the pool's mutex

 private:
  Task task_;
  std::span<const char* const> names_;
  std::span<Row> rows_;
  std::byte* arena_;
  std::atomic<std::size_t> next_{0};
};

class Pool {
 public:
  Pool();
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Works the batch off by up to that many threads, which are started when they are first needed;
  // without any (the machine refuses more) the caller does it all. go_on is called every 50 ms:
  // when it returns false the batch is cancelled, and run() returns after the reads under way.
  // False: it was cancelled.
  bool run(Batch& batch, int threads, const std::function<bool()>& go_on);
  // True in the process that made the pool.
  bool is_of_this_process() const noexcept;

 private:
  struct State {
    std::mutex mu;
    std::condition_variable wake;      // a batch came, or the end
    std::condition_variable done;      // a thread left a batch
    std::deque<Batch*> batches;        // guarded by mu
    bool stopping = false;             // guarded by mu
    std::vector<std::thread> threads;  // guarded by mu
  };

  static void serve(State& state);
  static Batch* next(State& state);
  void start_threads(int wanted);

  State* state_;  // owned, unless this is the child of a fork
  pid_t pid_;
};

}  // namespace braidfs::reader
