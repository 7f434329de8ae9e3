// Counters of the server in the text format of Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "serve/engine.h"

namespace halflife::serve {

class Histogram {
 public:
  void Add(double seconds);
  std::string Text(const std::string& name, const std::string& help) const;

 private:
  static constexpr std::array<double, 12> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                     0.5,   1,    2.5,   10,   60,  600};
  std::array<int64_t, kBounds.size() + 1> counts_ = {};
  double sum_ = 0;
};

// Thread-safe.
class Metrics {
 public:
  void CountRequest(const std::string& path, int status, double seconds);
  void CountFirstToken(double seconds);
  std::string Text(const EngineStats& stats) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;  // By path and status.
  Histogram request_seconds_, first_token_seconds_;
};

}  // namespace halflife::serve
