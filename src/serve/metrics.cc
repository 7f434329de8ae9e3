#include "serve/metrics.h"

#include <algorithm>
#include <iterator>

#include "core/concat.h"

namespace halflife::serve {
namespace {

std::string Headline(const std::string& name, const std::string& help, const char* type) {
  return Concat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}
std::string Single(const std::string& name, const std::string& help, const char* type,
                   int64_t value) {
  return Concat(Headline(name, help, type), name, " ", value, "\n");
}

}  // namespace

void Histogram::Add(double seconds) {
  ++counts_[std::distance(kBounds.begin(), std::ranges::lower_bound(kBounds, seconds))];
  sum_ += seconds;
}

std::string Histogram::Text(const std::string& name, const std::string& help) const {
  std::string text = Headline(name, help, "histogram");
  int64_t total = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    total += counts_[i];
    text += Concat(name, "_bucket{le=\"", kBounds[i], "\"} ", total, "\n");
  }
  total += counts_.back();
  return text + Concat(name, "_bucket{le=\"+Inf\"} ", total, "\n", name, "_sum ", sum_, "\n", name,
                       "_count ", total, "\n");
}

void Metrics::CountRequest(const std::string& path, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
  request_seconds_.Add(seconds);
}

void Metrics::CountFirstToken(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_seconds_.Add(seconds);
}

std::string Metrics::Text(const EngineStats& stats) const {
  const std::lock_guard lock(mutex_);
  std::string text = Headline("halflife_requests_total", "Answered requests", "counter");
  for (const auto& [key, count] : requests_)
    text += Concat("halflife_requests_total{path=\"", key.first, "\",status=\"", key.second, "\"} ",
                   count, "\n");
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    text += Single(name, help, "counter", value);
  };
  const auto gauge = [&](const char* name, const char* help, int64_t value) {
    text += Single(name, help, "gauge", value);
  };
  counter("halflife_prompt_tokens_total", "Tokens of prompts", stats.batch.prompt_tokens);
  counter("halflife_kept_prompt_tokens_total", "Tokens of prompts that a kept prefix saved",
          stats.batch.kept_tokens);
  counter("halflife_generated_tokens_total", "New tokens", stats.batch.new_tokens);
  counter("halflife_decode_steps_total", "Decoding steps of a group of rows", stats.batch.steps);
  gauge("halflife_texts_active", "Texts that are read or continued", stats.active);
  gauge("halflife_texts_queued", "Texts that wait", stats.queued);
  gauge("halflife_state_bytes", "Bytes of the states of active texts", stats.state_bytes);
  gauge("halflife_prefix_bytes", "Bytes of kept prefixes", stats.prefix_bytes);
  gauge("halflife_prefixes", "Kept prefixes", stats.prefixes);
  text += first_token_seconds_.Text("halflife_first_token_seconds",
                                    "Seconds from a request to its first token");
  return text + request_seconds_.Text("halflife_request_seconds",
                                      "Seconds until an answer or the beginning of its stream");
}

}  // namespace halflife::serve
