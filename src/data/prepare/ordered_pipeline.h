// A pipeline read -> map -> write. `map` runs on several threads, and results are written in
// reading order, so that the output does not depend on the number of threads. At most `2 threads +
// 2` items exist at a time.
//
//   RunOrdered<TextChunk, EncodedChunk>(
//       threads, [&] { return chunker.Next(); },
//       [&](TextChunk chunk) { return encoder.Encode(std::move(chunk)); },
//       [&](EncodedChunk chunk) { writer.Append(chunk.ids); });
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/threads.h"

namespace halflife::data {

// Only one thread at a time calls `read`, and only the caller's thread calls `write`. An exception
// in any of them ends the run and is rethrown here; if there are several, the first in reading
// order is. If some threads cannot be started, the pipeline continues with fewer. Throws Error
// kEnvironment if none can.
template <typename In, typename Out>
class OrderedPipeline {
 public:
  using Read = std::function<std::optional<In>()>;
  using Map = std::function<Out(In)>;
  using Write = std::function<void(Out)>;

  OrderedPipeline(int threads, Read read, Map map)
      : window_(2 * static_cast<uint64_t>(threads) + 2),
        read_(std::move(read)),
        map_(std::move(map)) {
    try {
      for (int i = 0; i < threads; ++i) workers_.push_back(StartThread([this] { Work(); }));
    } catch (const Error& error) {
      if (workers_.empty()) throw;
      HL_WARN("data", "continues with ", workers_.size(), " threads instead of ", threads, ": ",
              error.message());
    }
  }
  ~OrderedPipeline() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    room_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  // Returns the next result in reading order, or nothing after the last.
  std::optional<Out> Next() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return done_.contains(taken_) || (ended_ && taken_ == started_); });
    const auto found = done_.find(taken_);
    if (found == done_.end()) return std::nullopt;
    Result result = std::move(found->second);
    done_.erase(found);
    ++taken_;
    room_.notify_one();
    lock.unlock();
    if (auto* error = std::get_if<std::exception_ptr>(&result)) std::rethrow_exception(*error);
    return std::get<Out>(std::move(result));
  }

 private:
  using Result = std::variant<Out, std::exception_ptr>;

  void Work() {
    while (true) {
      uint64_t number = 0;
      std::optional<In> item = ReadNext(number);
      if (!item) return;
      try {
        Finish(number, map_(*std::move(item)));
      } catch (...) {
        Finish(number, std::current_exception());
      }
    }
  }

  // Reads the next input and sets its number. Only one worker reads at a time, so the numbers
  // follow the order of the input.
  std::optional<In> ReadNext(uint64_t& number) {
    const std::lock_guard turn(read_mutex_);
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [this] { return stop_ || ended_ || started_ < taken_ + window_; });
      if (stop_ || ended_) return std::nullopt;
      number = started_;
    }
    std::optional<In> item;
    std::exception_ptr error;
    try {
      item = read_();
    } catch (...) {
      error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      if (item || error) ++started_;
      if (!item) ended_ = true;
      if (error) done_.emplace(number, error);
    }
    if (!item) {
      ready_.notify_one();
      room_.notify_all();
    }
    return item;
  }

  void Finish(uint64_t number, Result result) {
    {
      const std::lock_guard lock(mutex_);
      done_.emplace(number, std::move(result));
    }
    ready_.notify_one();
  }

  const uint64_t window_;
  const Read read_;
  const Map map_;
  std::mutex read_mutex_;  // acquired before mutex_
  std::mutex mutex_;
  std::condition_variable room_, ready_;
  std::map<uint64_t, Result> done_;  // guarded by mutex_, like all members below
  uint64_t started_ = 0;             // items read
  uint64_t taken_ = 0;               // results returned by Next
  bool ended_ = false;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

template <typename In, typename Out>
void RunOrdered(int threads, typename OrderedPipeline<In, Out>::Read read,
                typename OrderedPipeline<In, Out>::Map map,
                const typename OrderedPipeline<In, Out>::Write& write) {
  if (threads == 1) {  // use only the caller's thread: one core means one core
    while (std::optional<In> item = read()) write(map(*std::move(item)));
    return;
  }
  OrderedPipeline<In, Out> pipeline(threads, std::move(read), std::move(map));
  while (std::optional<Out> result = pipeline.Next()) write(*std::move(result));
}

}  // namespace halflife::data
