#include "serve/engine.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace halflife::serve {

std::optional<TextEvent> Mailbox::Wait(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (!arrived_.wait_until(lock, deadline, [&] { return !events_.empty(); })) return std::nullopt;
  TextEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Mailbox::Post(TextEvent event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  arrived_.notify_one();
}

Engine::Engine(const model::LanguageModel& model, const EngineConfig& config)
    : config_(config), decoder_(model, config.batch) {}

std::shared_ptr<Mailbox> Engine::Submit(std::vector<EngineText> texts) {
  auto mailbox = std::make_shared<Mailbox>();
  {
    const std::lock_guard lock(mutex_);
    // A request that finds an empty queue is accepted whatever its size, so that no size is always
    // refused.
    const auto queued = std::ssize(waiting_) + std::ssize(texts);
    if (stopping_ || (!waiting_.empty() && queued > config_.max_queued)) return nullptr;
    for (size_t i = 0; i < texts.size(); ++i)
      waiting_.push_back({.text = std::move(texts[i]), .index = i, .mailbox = mailbox});
    stats_.queued = std::ssize(waiting_);
  }
  changed_.notify_all();
  return mailbox;
}

void Engine::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void Engine::CancelAll() { cancel_all_ = true; }

bool Engine::stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Engine::Run() {
  bool busy = false;
  while (true) {
    if (!busy) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
    }
    DropCancelled();
    for (Waiting& waiting : TakeWaiting()) Start(std::move(waiting));
    try {
      busy = decoder_.Advance();
    } catch (...) {
      FailAll();
      throw;
    }
    PublishStats();
  }
}

std::vector<Engine::Waiting> Engine::TakeWaiting() {
  const std::lock_guard lock(mutex_);
  std::vector<Waiting> taken;
  const int64_t room = config_.batch.max_texts - decoder_.num_texts();
  while (!waiting_.empty() && std::ssize(taken) < room) {
    taken.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return taken;
}

void Engine::Start(Waiting waiting) {
  const auto active = std::make_shared<Active>(Active{.stream = std::move(waiting.text.stream),
                                                      .index = waiting.index,
                                                      .mailbox = waiting.mailbox});
  const size_t index = waiting.index;
  infer::TextRequest request = std::move(waiting.text.request);
  request.on_prompt = [active, index](std::vector<infer::ScoredToken> tokens) {
    active->mailbox->Post({.text = index, .prompt = std::move(tokens)});
  };
  request.on_token = [active, index](const infer::ScoredToken& token) {
    TextEvent event = {.text = index, .token = token};
    if (!token.is_end) event.added = active->stream.Push(token.id);
    active->mailbox->Post(std::move(event));
    return !active->stream.stopped();
  };
  request.on_end = [active, index](const infer::TextResult& result) {
    TextEvent event = {.text = index, .ended = true, .result = result};
    event.added = active->stream.Finish();
    event.stopped = result.end == infer::TextEnd::kStop || active->stream.stopped();
    active->mailbox->Post(std::move(event));
  };
  const auto on_end = request.on_end;
  try {
    active_.emplace(decoder_.Add(std::move(request)), active);
  } catch (const Error& error) {
    on_end({.end = infer::TextEnd::kFailed, .error = error.message()});
  } catch (const std::exception& error) {  // for example too little memory for a state
    HL_ERROR("serve", "a text could not start: ", error.what());
    on_end({.end = infer::TextEnd::kNoMemory});
  }
}

void Engine::DropCancelled() {
  for (const auto& [number, active] : active_)
    if (active->mailbox->cancelled() || cancel_all_) decoder_.Cancel(number);
  std::erase_if(active_, [&](const auto& item) { return !decoder_.Contains(item.first); });
  const std::lock_guard lock(mutex_);
  const auto cancelled = [&](const Waiting& waiting) {
    return cancel_all_ || waiting.mailbox->cancelled();
  };
  if (std::ranges::none_of(waiting_, cancelled)) return;
  std::deque<Waiting> kept;  // Texts can be moved, but not assigned.
  for (Waiting& waiting : waiting_) {
    if (!cancelled(waiting)) {
      kept.push_back(std::move(waiting));
      continue;
    }
    waiting.mailbox->Post(
        {.text = waiting.index, .ended = true, .result = {.end = infer::TextEnd::kCancelled}});
  }
  waiting_.swap(kept);
}

void Engine::FailAll() {
  const infer::TextResult failed = {.end = infer::TextEnd::kFailed,
                                    .error = "the server failed, and its log has the cause"};
  for (const auto& [number, active] : active_)
    active->mailbox->Post({.text = active->index, .ended = true, .result = failed});
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  for (const Waiting& waiting : waiting_)
    waiting.mailbox->Post({.text = waiting.index, .ended = true, .result = failed});
  waiting_.clear();
}

void Engine::PublishStats() {
  const std::lock_guard lock(mutex_);
  stats_ = {.batch = decoder_.stats(),
            .active = decoder_.num_texts(),
            .queued = std::ssize(waiting_),
            .state_bytes = decoder_.state_bytes(),
            .prefix_bytes = decoder_.prefixes().bytes(),
            .prefixes = decoder_.prefixes().size()};
}

}  // namespace halflife::serve
