#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "whole_file.h"

namespace braidfs::reader {
namespace {

constexpr auto kLookAround = std::chrono::milliseconds(50);

// Threads that are made in its scope take no signals: these are Python's.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Batch::Batch(Task task, std::span<const char* const> names, std::span<Row> rows, std::byte* arena)
    : task_(task), names_(names), rows_(rows), arena_(arena) {
  for (Row& row : rows_) row.result = -ECANCELED;
}

void Batch::work() noexcept {
  for (;;) {
    std::size_t index = next_.load();
    do {
      if (index >= rows_.size()) return;
    } while (!next_.compare_exchange_weak(index, index + 1));
    Row& row = rows_[index];
    row.result =
        task_ == Task::kSizes
            ? size_of(names_[index])
            : read_whole(names_[index], {arena_ + row.place, static_cast<std::size_t>(row.room)});
  }
}

Pool::Pool() : state_(new State), pid_(::getpid()) {}

Pool::~Pool() {
  if (!is_of_this_process()) return;  // its mutex may be locked by a thread that is not here
  {
    const std::lock_guard lock(state_->mu);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  for (std::thread& one : state_->threads) one.join();
  delete state_;
}

bool Pool::is_of_this_process() const noexcept { return ::getpid() == pid_; }

bool Pool::run(Batch& batch, int threads, const std::function<bool()>& go_on) {
  State& state = *state_;
  std::unique_lock lock(state.mu);
  start_threads(threads);
  if (state.threads.empty()) {
    lock.unlock();
    batch.work();
    return true;
  }
  batch.threads_max = std::max(threads, 1);
  state.batches.push_back(&batch);
  const auto useful = std::min(batch.size(), static_cast<std::size_t>(batch.threads_max));
  for (std::size_t i = 0; i < useful; ++i) state.wake.notify_one();
  bool goes_on = true;
  const auto is_over = [&] { return batch.threads == 0 && !batch.has_work(); };
  while (!state.done.wait_for(lock, kLookAround, is_over)) {
    lock.unlock();
    goes_on = goes_on && go_on();
    if (!goes_on) batch.cancel();
    lock.lock();
  }
  std::erase(state.batches, &batch);
  return goes_on;
}

void Pool::start_threads(int wanted) {
  State& state = *state_;
  const NoSignals scope;
  while (static_cast<int>(state.threads.size()) < wanted) {
    try {
      state.threads.emplace_back(&Pool::serve, std::ref(state));
    } catch (const std::system_error&) {
      return;  // a limit of the machine: fewer do as well
    }
  }
}

void Pool::serve(State& state) {
  std::unique_lock lock(state.mu);
  while (!state.stopping) {
    Batch* batch = next(state);
    if (batch == nullptr) {
      state.wake.wait(lock);
      continue;
    }
    ++batch->threads;
    lock.unlock();
    batch->work();
    lock.lock();
    if (--batch->threads == 0) state.done.notify_all();
  }
}

Batch* Pool::next(State& state) {
  const auto found = std::find_if(state.batches.begin(), state.batches.end(), [](Batch* one) {
    return one->has_work() && one->threads < one->threads_max;
  });
  return found == state.batches.end() ? nullptr : *found;
}

}  // namespace braidfs::reader
