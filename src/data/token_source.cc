#include "data/token_source.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/threads.h"
#include "data/shard_layout.h"

namespace halflife::data {
namespace {

// Appends the document starts of row `row` to those of the batch.
void AppendStarts(const TokenView& view, int64_t row, Batch& batch) {
  const auto place = static_cast<int64_t>(batch.inputs.size());  // start of the row in the batch
  const int64_t begin = row * batch.seq_len;
  const std::vector<int64_t> starts = view.document_starts
                                          ? view.document_starts(begin, begin + batch.seq_len)
                                          : std::vector<int64_t>{begin};
  HL_CHECK_AS(ExitCode::kData, !starts.empty() && starts.front() == begin, view.name, ": row ", row,
              " does not begin with a document: the dataset contradicts itself; ", kDamageRemedy);
  for (const int64_t start : starts)
    batch.cu_seqlens.push_back(static_cast<int32_t>(place + start - begin));
}

// Appends row `row` of a dataset of labelled rows.
void AppendLabelledRow(const TokenView& view, int64_t row, Batch& batch) {
  AppendStarts(view, row, batch);
  const size_t begin = batch.inputs.size();
  batch.inputs.resize(begin + static_cast<size_t>(batch.seq_len));
  batch.targets.resize(batch.inputs.size());
  const std::span<int32_t> labels = std::span(batch.targets).subspan(begin);
  view.read(row * batch.seq_len, std::span(batch.inputs).subspan(begin));
  view.read_labels(row * batch.seq_len, labels);
  batch.num_targets += std::ranges::count_if(labels, [](int32_t label) { return label >= 0; });
}

// Appends a row without targets, so that a short step has the same shape as all others.
void AppendPadding(Batch& batch) {
  batch.cu_seqlens.push_back(static_cast<int32_t>(batch.inputs.size()));
  batch.inputs.resize(batch.inputs.size() + static_cast<size_t>(batch.seq_len), 0);
  batch.targets.resize(batch.inputs.size(), kNoTarget);
  batch.samples.push_back(kNoSample);
}

// Reads tokens [begin, begin + T] and appends them to `batch` as its next row.
void AppendText(const TokenView& view, int64_t begin, Batch& batch) {
  const int64_t seq_len = batch.seq_len;
  std::vector<int32_t> tokens(static_cast<size_t>(seq_len + 1));
  view.read(begin, tokens);
  const int32_t eos = view.eos_id;
  const auto row_start = static_cast<int32_t>(batch.inputs.size());
  batch.cu_seqlens.push_back(row_start);
  for (int64_t t = 0; t < seq_len; ++t) {
    const int32_t token = tokens[static_cast<size_t>(t)];
    // With resets, the token after eos begins another sequence, so eos has no target.
    const bool ends = view.reset_at_documents && token == eos;
    batch.inputs.push_back(token);
    batch.targets.push_back(ends ? kNoTarget : tokens[static_cast<size_t>(t + 1)]);
    batch.num_targets += !ends;
    if (ends && t + 1 < seq_len)
      batch.cu_seqlens.push_back(row_start + static_cast<int32_t>(t) + 1);
  }
}

void AppendRow(const TokenView& view, int64_t window, uint64_t sample, Batch& batch) {
  if (view.row_len > 0) {
    AppendLabelledRow(view, window, batch);
  } else {
    AppendText(view, window * batch.seq_len, batch);
  }
  batch.samples.push_back(sample);
}

Batch MakeBatch(int64_t batch_size, int64_t seq_len) {
  Batch batch{.batch_size = batch_size,
              .seq_len = seq_len,
              .inputs = {},
              .targets = {},
              .cu_seqlens = {},
              .samples = {}};
  batch.inputs.reserve(static_cast<size_t>(batch_size * seq_len));
  batch.targets.reserve(static_cast<size_t>(batch_size * seq_len));
  return batch;
}

void CheckConfig(const TokenSourceConfig& config) {
  HL_CHECK_AS(ExitCode::kUsage,
              config.seq_len > 0 && config.micro_batch > 0 && config.prefetch >= 0, "seq_len ",
              config.seq_len, " and micro_batch ", config.micro_batch,
              " must be positive, prefetch ", config.prefetch, " at least 0");
  HL_CHECK_AS(ExitCode::kUsage,
              config.dp_size > 0 && config.dp_rank >= 0 && config.dp_rank < config.dp_size,
              "dp rank ", config.dp_rank, " is not below the dp size ", config.dp_size);
  const int64_t rows = config.micro_batch * config.dp_size;
  HL_CHECK_AS(ExitCode::kUsage, config.global_batch > 0 && config.global_batch % rows == 0,
              "global_batch ", config.global_batch, " is not a multiple of micro_batch ",
              config.micro_batch, " x dp size ", config.dp_size, " = ", rows, ". Use ",
              (config.global_batch / rows + 1) * rows, ".");
}

}  // namespace

int64_t NumWindows(const SplitInfo& split, int64_t row_len, int64_t seq_len) {
  return row_len > 0 ? split.num_tokens / row_len
                     : std::max<int64_t>(split.num_tokens - 1, 0) / seq_len;
}

int64_t NumWindows(const TokenView& tokens, int64_t seq_len) {
  HL_CHECK_AS(ExitCode::kUsage, tokens.row_len == 0 || seq_len == tokens.row_len, "seq_len ",
              seq_len, ": ", tokens.name, " has labelled rows of ", tokens.row_len,
              " tokens, which cannot be split. Set data.seq_len (`eval --seq-len`) to ",
              tokens.row_len);
  return NumWindows(tokens.info, tokens.row_len, seq_len);
}

TokenView ViewOf(const Dataset& dataset, Split split, bool reset_at_documents) {
  TokenView view = {
      .name = Concat("the ", Name(split), " split"),
      .info = dataset.split(split),
      .eos_id = dataset.info().eos_id,
      .read = [&dataset, split](int64_t begin,
                                std::span<int32_t> ids) { dataset.Read(split, begin, ids); },
      .reset_at_documents = reset_at_documents};
  const DatasetInfo& info = dataset.info();
  if (info.has_rows()) {
    view.row_len = info.row_len;
    view.labels = info.labels;
    view.classes = info.classes;
    if (info.labels != RowLabels::kTask) {
      view.document_starts = [&dataset, split](int64_t begin, int64_t end) {
        return dataset.DocumentStarts(split, begin, end);
      };
    }
    view.read_labels = [&dataset, split](int64_t begin, std::span<int32_t> labels) {
      dataset.ReadLabels(split, begin, labels);
    };
  }
  return view;
}

Batch ReadWindows(const TokenView& tokens, int64_t seq_len, std::span<const int64_t> windows) {
  Batch batch = MakeBatch(std::ssize(windows), seq_len);
  for (const int64_t window : windows) {
    AppendRow(tokens, window, static_cast<uint64_t>(window), batch);
  }
  batch.cu_seqlens.push_back(static_cast<int32_t>(batch.inputs.size()));
  return batch;
}

Batch ReadWindows(const TokenView& tokens, int64_t seq_len, int64_t first, int64_t count) {
  std::vector<int64_t> windows(static_cast<size_t>(count));
  std::iota(windows.begin(), windows.end(), first);
  return ReadWindows(tokens, seq_len, windows);
}

Batch ReadSlidingWindows(const TokenView& tokens, int64_t seq_len, int64_t stride,
                         std::span<const int64_t> windows) {
  HL_CHECK(tokens.row_len == 0 && stride > 0, "sliding by ", stride, " over ", tokens.name);
  Batch batch = MakeBatch(std::ssize(windows), seq_len);
  for (const int64_t window : windows) {
    AppendText(tokens, window * stride, batch);
    batch.samples.push_back(static_cast<uint64_t>(window));
  }
  batch.cu_seqlens.push_back(static_cast<int32_t>(batch.inputs.size()));
  return batch;
}

Batch ReadWindows(const Dataset& dataset, Split split, int64_t seq_len, int64_t first,
                  int64_t count) {
  return ReadWindows(ViewOf(dataset, split), seq_len, first, count);
}

class TokenSource::Impl {
 public:
  Impl(const Dataset& dataset, Split split, const TokenSourceConfig& config)
      : views_{ViewOf(dataset, split, config.reset_at_documents)}, config_(config) {
    CheckConfig(config);
    const int64_t num_tokens = dataset.split(split).num_tokens;
    order_ = {.num_windows = NumWindows(views_[0], config.seq_len),
              .global_batch = config.global_batch,
              .epoch_end = config.epoch_end};
    HL_CHECK_AS(ExitCode::kData, order_.num_windows > 0, "the ", Name(split), " split of ",
                dataset.folder().string(), " has ", num_tokens,
                " tokens, fewer than seq_len + 1 = ", config.seq_len + 1, ". Prepare more text",
                num_tokens < 2 ? "." : Concat(", or set seq_len to ", num_tokens - 1, " or less."));
    HL_CHECK_AS(ExitCode::kUsage, config.epoch_end != EpochEnd::kDrop || order_.StepsPerEpoch() > 0,
                "the ", Name(split), " split of ", dataset.folder().string(), " has ",
                order_.num_windows, " rows, fewer than the global_batch of ", config.global_batch,
                ", and data.epoch_end drop omits incomplete steps. Use a global_batch of at most ",
                order_.num_windows, ", or data.epoch_end short.");
    Start();
  }
  Impl(std::vector<TokenView> views, Blend blend, const TokenSourceConfig& config)
      : views_(std::move(views)),
        blend_(std::move(blend)),
        config_(config),
        order_{.num_windows = blend_->num_windows(),
               .global_batch = config.global_batch,
               .epoch_end = EpochEnd::kFill} {
    CheckConfig(config);
    HL_CHECK(config.epoch_end == EpochEnd::kFill && views_.size() == blend_->sources().size() &&
                 order_.num_windows > 0,
             "a blend of ", blend_->sources().size(), " sources");
    Start();
  }
  ~Impl() { Stop(); }

  Batch Next() {
    const Stopwatch clock;
    Batch batch = config_.prefetch == 0 ? ReadMicroBatch(position_) : Take();
    ++position_;
    wait_seconds_ += clock.Seconds();
    return batch;
  }

  void Seek(uint64_t next_sample) {
    const uint64_t step = order_.StepAt(next_sample);
    Stop();
    position_ = step * micro_batches();
    Start();
  }

  // Returns the next sample of all ranks. They advance by one micro-batch at a time, and therefore
  // together by micro_batch * dp_size samples.
  uint64_t next_sample() const {
    return order_.FirstSample(position_ / micro_batches()) +
           position_ % micro_batches() *
               static_cast<uint64_t>(config_.micro_batch * config_.dp_size);
  }
  int64_t WindowOf(uint64_t sample) const {
    const auto num_windows = static_cast<uint64_t>(order_.num_windows);
    return static_cast<int64_t>(PermuteIndex(sample % num_windows, num_windows, config_.seed,
                                             /*epoch=*/sample / num_windows));
  }
  const SampleOrder& order() const { return order_; }
  const Blend* blend() const { return blend_ ? &*blend_ : nullptr; }
  double TakeWaitSeconds() { return std::exchange(wait_seconds_, 0.0); }

 private:
  // Returns the number of micro-batches of one rank in one step.
  uint64_t micro_batches() const {
    return static_cast<uint64_t>(config_.global_batch / (config_.micro_batch * config_.dp_size));
  }

  // Reads the rank's micro-batch number `position` of the run. This is a pure function of the
  // position, so a cursor is the only state.
  Batch ReadMicroBatch(uint64_t position) const {
    const int64_t begin_us = UnixMicroseconds();
    const uint64_t step = position / micro_batches(), accumulation = position % micro_batches();
    const auto micro = static_cast<uint64_t>(config_.micro_batch);
    const auto dp_rank = static_cast<uint64_t>(config_.dp_rank);
    const uint64_t number = config_.in_turn
                                ? accumulation * static_cast<uint64_t>(config_.dp_size) + dp_rank
                                : dp_rank * micro_batches() + accumulation;
    const uint64_t first = number * micro;  // index in the rows of the step
    const auto num_rows = static_cast<uint64_t>(order_.NumSamples(step));
    Batch batch = MakeBatch(config_.micro_batch, config_.seq_len);
    for (uint64_t row = first; row < first + micro; ++row) {
      if (row >= num_rows) {
        AppendPadding(batch);
        continue;
      }
      const uint64_t sample = order_.FirstSample(step) + row;
      if (blend_) {
        const Blend::Row at = blend_->At(sample);
        AppendRow(views_[static_cast<size_t>(at.source)], at.window, sample, batch);
        continue;
      }
      AppendRow(views_[0], WindowOf(sample), sample, batch);
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.inputs.size()));
    if (config_.on_read) config_.on_read(begin_us, UnixMicroseconds());
    return batch;
  }

  Batch Take() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [this] { return !queue_.empty() || error_ != nullptr; });
    // error_ is kept, so every later call also throws.
    if (queue_.empty()) std::rethrow_exception(error_);
    Batch batch = std::move(queue_.front());
    queue_.pop_front();
    emptied_.notify_one();
    return batch;
  }

  void Prefetch(uint64_t position) {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        emptied_.wait(lock, [this] {
          return stop_ || queue_.size() < static_cast<size_t>(config_.prefetch);
        });
        if (stop_) return;
      }
      try {
        HL_FAULT_POINT("data.read", ExitCode::kData);
        Batch batch = ReadMicroBatch(position++);
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(batch));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
      }
      filled_.notify_one();
      const std::lock_guard lock(mutex_);
      if (error_ != nullptr) return;
    }
  }

  void Start() {
    if (config_.prefetch == 0) return;
    stop_ = false;
    error_ = nullptr;
    queue_.clear();
    thread_ = StartThread([this, position = position_, rank = log::RankOfThisThread()] {
      log::SpeakAsRank(rank);
      Prefetch(position);
    });
  }

  void Stop() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    emptied_.notify_one();
    thread_.join();
  }

  const std::vector<TokenView> views_;
  const std::optional<Blend> blend_;
  const TokenSourceConfig config_;
  SampleOrder order_;
  uint64_t position_ = 0;  // micro-batches that this rank has returned since the run began
  double wait_seconds_ = 0;

  std::mutex mutex_;
  std::condition_variable filled_, emptied_;
  std::deque<Batch> queue_;  // guarded by mutex_, like the next two members
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

TokenSource::TokenSource(const Dataset& dataset, Split split, const TokenSourceConfig& config)
    : impl_(std::make_unique<Impl>(dataset, split, config)) {}
TokenSource::TokenSource(std::vector<TokenView> views, Blend blend, const TokenSourceConfig& config)
    : impl_(std::make_unique<Impl>(std::move(views), std::move(blend), config)) {}
TokenSource::~TokenSource() = default;
Batch TokenSource::Next() { return impl_->Next(); }
int64_t TokenSource::num_windows() const { return impl_->order().num_windows; }
int64_t TokenSource::WindowOf(uint64_t sample) const { return impl_->WindowOf(sample); }
const SampleOrder& TokenSource::order() const { return impl_->order(); }
const Blend* TokenSource::blend() const { return impl_->blend(); }
uint64_t TokenSource::next_sample() const { return impl_->next_sample(); }
void TokenSource::Seek(uint64_t next_sample) { impl_->Seek(next_sample); }
double TokenSource::TakeWaitSeconds() { return impl_->TakeWaitSeconds(); }

}  // namespace halflife::data
