// Runs a BatchDecoder on one thread for requests of many threads.
//
//   Engine engine(model, {.batch = {.max_texts = 32}});
//   std::thread reader([&] {
//     const auto mailbox = engine.Submit(std::move(texts));  // On any thread.
//     while (mailbox != nullptr && !mailbox->Wait(deadline)->ended) {
//     }
//     engine.Stop();
//   });
//   engine.Run();  // On the thread that computes.
//   reader.join();
//
// A text waits in a queue until the decoder has room. Texts start in the order of their requests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "infer/batch_decoder.h"
#include "infer/text_stream.h"
#include "serve/server_config.h"

namespace halflife::serve {

// An event of one text of a request.
struct TextEvent {
  size_t text = 0;  // Its index in the request.
  // Scores of prompt tokens, or one new token.
  std::vector<infer::ScoredToken> prompt = {};
  std::optional<infer::ScoredToken> token = {};
  std::string added;  // Text that is final now that this token is known.
  // The last event of the text.
  bool ended = false;
  bool stopped = false;  // By the eos token or a stop string.
  infer::TextResult result = {};
};

// The events of one request: the engine writes them and one thread reads them.
class Mailbox {
 public:
  using Clock = std::chrono::steady_clock;

  // Waits for the next event. Returns nothing at the deadline.
  std::optional<TextEvent> Wait(Clock::time_point deadline);
  // Ends the texts of the request. Further events may still arrive.
  void Cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }
  void Post(TextEvent event);

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<TextEvent> events_;
  std::atomic<bool> cancelled_ = false;
};

// A text of a request. The callbacks of `request` are set by the engine.
struct EngineText {
  infer::TextRequest request;
  infer::TextStream stream;
};

struct EngineStats {
  infer::BatchStats batch;
  int64_t active = 0, queued = 0;
  int64_t state_bytes = 0, prefix_bytes = 0, prefixes = 0;
};

class Engine {
 public:
  // Borrows `model`. Throws the errors of BatchDecoder.
  Engine(const model::LanguageModel& model, const EngineConfig& config);

  // Queues the texts of a request. Returns null if the queue has no room for them, or after Stop().
  std::shared_ptr<Mailbox> Submit(std::vector<EngineText> texts);
  // Computes until Stop() was called and all texts have ended. An error of the model itself fails
  // all texts and is thrown.
  void Run();
  // Ends Run() once the accepted texts have ended.
  void Stop();
  // Cancels all texts.
  void CancelAll();
  bool stopping() const;
  EngineStats stats() const;

 private:
  struct Waiting {
    EngineText text;
    size_t index = 0;
    std::shared_ptr<Mailbox> mailbox;
  };
  struct Active {
    infer::TextStream stream;
    size_t index = 0;
    std::shared_ptr<Mailbox> mailbox;
  };

  std::vector<Waiting> TakeWaiting();
  void Start(Waiting waiting);
  // Ends cancelled texts, also those that wait, so that they keep neither a row nor a place in the
  // queue.
  void DropCancelled();
  // Ends every text with kFailed.
  void FailAll();
  void PublishStats();

  EngineConfig config_;
  infer::BatchDecoder decoder_;
  std::map<int64_t, std::shared_ptr<Active>> active_;  // By the decoder's number.

  mutable std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  std::deque<Waiting> waiting_;
  EngineStats stats_;
  bool stopping_ = false;
  std::atomic<bool> cancel_all_ = false;
};

}  // namespace halflife::serve
