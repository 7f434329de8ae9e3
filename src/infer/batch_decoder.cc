#include "infer/batch_decoder.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/topk.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "infer/generator.h"
#include "ops/out_of_memory.h"

namespace halflife::infer {
namespace {

uint64_t KeyOf(std::span<const int32_t> tokens) {
  return HashBytes(tokens.data(), tokens.size_bytes()).lo;
}

// Copies tensors that are views of a larger storage. For example, the keys and values of a first
// chunk are views of the joined projection, which also has the queries.
model::ModelState WithOwnStorage(model::ModelState state) {
  for (model::MixerState& layer : state.layers)
    for (at::Tensor& tensor : layer.tensors)
      if (tensor.defined() && tensor.storage().nbytes() > tensor.nbytes())
        tensor = tensor.clone(at::MemoryFormat::Contiguous);
  return state;
}

}  // namespace

bool PrefixStore::Wants(int64_t length, int64_t prompt_tokens) const {
  if (config_.max_bytes == 0 || length % config_.chunk != 0 || length >= prompt_tokens)
    return false;
  return prompt_tokens - length <= config_.chunk ||
         std::has_single_bit(static_cast<uint64_t>(length / config_.chunk));
}

PrefixStore::Entries::iterator PrefixStore::Lookup(uint64_t key, std::span<const int32_t> prefix) {
  const auto [first, last] = by_key_.equal_range(key);
  const auto found = std::find_if(first, last, [&](const auto& item) {
    return std::ranges::equal(item.second->tokens, prefix);
  });
  return found == last ? entries_.end() : found->second;
}

model::ModelState PrefixStore::Find(std::span<const int32_t> prompt) {
  tokens_sought_ += std::ssize(prompt);
  if (entries_.empty() || prompt.empty()) return {};
  // The hashes of all beginnings, in one pass over the prompt.
  const int64_t chunk = config_.chunk, num_chunks = (std::ssize(prompt) - 1) / chunk;
  std::vector<uint64_t> keys;
  StreamHash hash;
  for (int64_t i = 0; i < num_chunks; ++i) {
    hash.Update(prompt.data() + i * chunk, static_cast<size_t>(chunk) * sizeof(int32_t));
    keys.push_back(hash.Digest().lo);
  }
  for (int64_t i = num_chunks; i > 0; --i) {
    const auto found = Lookup(keys[i - 1], prompt.first(i * chunk));
    if (found == entries_.end()) continue;
    entries_.splice(entries_.begin(), entries_, found);
    tokens_found_ += i * chunk;
    return found->state;
  }
  return {};
}

void PrefixStore::Keep(std::span<const int32_t> prefix, const model::ModelState& state) {
  const int64_t bytes = state.bytes() + static_cast<int64_t>(prefix.size_bytes());
  if (bytes > config_.max_bytes) return;
  const uint64_t key = KeyOf(prefix);
  if (const auto found = Lookup(key, prefix); found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return;
  }
  entries_.push_front({.tokens = {prefix.begin(), prefix.end()},
                       .state = WithOwnStorage(state),
                       .bytes = bytes,
                       .key = key});
  by_key_.emplace(key, entries_.begin());
  bytes_ += bytes;
  while (bytes_ > config_.max_bytes) {
    const auto oldest = std::prev(entries_.end());
    const auto [first, last] = by_key_.equal_range(oldest->key);
    by_key_.erase(
        std::find_if(first, last, [&](const auto& item) { return item.second == oldest; }));
    bytes_ -= oldest->bytes;
    entries_.erase(oldest);
  }
}

namespace {

// Scores ids[i] by logits [n, vocab], row i. Alternatives are ids below `vocab`.
std::vector<ScoredToken> ScoreTokens(const at::Tensor& logits, std::span<const int32_t> ids,
                                     const TextRequest& request) {
  const at::Tensor rows = logits.cpu().contiguous();
  const int64_t width = rows.size(1);
  const int64_t vocab = request.vocab_size > 0 ? std::min(request.vocab_size, width) : width;
  const at::Tensor norms = at::logsumexp(rows, 1).contiguous();
  const auto* logit = rows.const_data_ptr<float>();
  const auto* norm = norms.const_data_ptr<float>();
  std::vector<ScoredToken> scored(ids.size());
  for (size_t i = 0; i < ids.size(); ++i)
    scored[i] = {.id = ids[i], .logprob = logit[i * width + ids[i]] - norm[i], .top = {}};
  const int64_t top = std::min<int64_t>(request.top_logprobs, vocab);
  if (top <= 0) return scored;
  auto [values, indices] = at::topk(rows.narrow(1, 0, vocab), top, 1);
  values = values.contiguous(), indices = indices.contiguous();
  for (size_t i = 0; i < ids.size(); ++i)
    for (int64_t j = 0; j < top; ++j) {
      const auto at = static_cast<int64_t>(i) * top + j;
      scored[i].top.push_back({.id = static_cast<int32_t>(indices.const_data_ptr<int64_t>()[at]),
                               .logprob = values.const_data_ptr<float>()[at] - norm[i]});
    }
  return scored;
}

// Finds out whether the bits of a row depend on the number of rows. On a GPU, groups always compute
// the same number of rows. On a CPU, a comparison decides.
RowBits BitsOfRows(const model::LanguageModel& model) {
  RequireNextTokens(model);
  if (!model.device().is_cpu()) return {.same_for_index = true, .same_for_count = false};
  const RowBits bits = CompareRows(model, BatchDecoder::kGroupRows);
  if (bits.same_for_index) return bits;
  HL_WARN("infer",
          "matrix products on this CPU round differently by row. Texts are therefore "
          "decoded one by one, which is slower. Another number of --threads may avoid it.");
  return bits;
}

}  // namespace

BatchDecoder::BatchDecoder(const model::LanguageModel& model, const BatchConfig& config)
    : model_(model), config_(config), row_bits_(BitsOfRows(model)), prefixes_(config.prefix) {
  HL_CHECK(config.max_texts > 0 && config.prefix.chunk > 0, "a batch of ", config.max_texts,
           " texts in chunks of ", config.prefix.chunk);
}

int64_t BatchDecoder::Add(TextRequest request) {
  HL_CHECK(has_room(), "there is no room for another text");
  RequirePrompt(model_, request.prompt);
  const Sampler sampler(request.sampler);
  Text text = {.request = std::move(request), .sampler = sampler};
  text.tokens = text.request.prompt;
  text.result.prompt_tokens = std::ssize(text.tokens);
  stats_.prompt_tokens += text.result.prompt_tokens;
  // Scores need the logits of the whole prompt.
  if (!text.request.score_prompt)
    for (const int64_t other : reading_)
      if (other > text.same_prompt && texts_.at(other).request.prompt == text.tokens)
        text.same_prompt = other;
  if (text.same_prompt < 0) BeginReading(text);
  const int64_t number = next_number_++;
  texts_.emplace(number, std::move(text));
  reading_.push_back(number);
  return number;
}

void BatchDecoder::Cancel(int64_t number) {
  if (texts_.contains(number)) End(number, TextEnd::kCancelled);
}

void BatchDecoder::End(int64_t number, TextEnd end, const std::string& error) {
  const auto found = texts_.find(number);
  Text text = std::move(found->second);
  texts_.erase(found);
  std::erase(reading_, number);
  if (text.group != nullptr) text.group->Clear(text.row);
  text.result.end = end;
  text.result.error = error;
  if (text.request.on_end) text.request.on_end(text.result);
}

bool BatchDecoder::Advance() {
  const c10::InferenceMode inference;
  if (!reading_.empty()) {
    const int64_t number = NextToRead();
    try {
      ReadChunk(number);
    } catch (const Error& error) {
      if (texts_.contains(number)) End(number, TextEnd::kFailed, error.message());
    } catch (const c10::Error& error) {
      if (!ops::IsOutOfMemory(error)) throw;
      HL_ERROR("infer", "a prompt could not be read: ", error.what_without_backtrace());
      if (texts_.contains(number)) End(number, TextEnd::kNoMemory);
    }
  }
  std::vector<RowGroup*> failed;
  for (const auto& group : groups_)
    if (group->num_occupied() > 0 && !DecodeOrFail(*group)) failed.push_back(group.get());
  std::erase_if(groups_, [&](const std::unique_ptr<RowGroup>& group) {
    return std::ranges::count(failed, group.get()) > 0;
  });
  return !texts_.empty();
}

bool BatchDecoder::DecodeOrFail(RowGroup& group) {
  try {
    DecodeGroup(group);
    return true;
  } catch (const c10::Error& error) {
    if (!ops::IsOutOfMemory(error)) throw;
    HL_ERROR("infer", "texts could not be decoded: ", error.what_without_backtrace());
  }
  std::vector<int64_t> numbers;
  for (auto& [number, text] : texts_) {
    if (text.group != &group) continue;
    numbers.push_back(number);
    text.group = nullptr;  // Its rows may be incomplete and are not touched again.
  }
  for (const int64_t number : numbers) End(number, TextEnd::kNoMemory);
  return false;
}

int64_t BatchDecoder::NextToRead() {
  // The text with the lowest number does not wait.
  while (true) {
    const int64_t number = reading_.front();
    reading_.pop_front();
    reading_.push_back(number);
    if (std::ranges::count(reading_, texts_.at(number).same_prompt) == 0) return number;
  }
}

void BatchDecoder::BeginReading(Text& text) {
  if (!text.request.score_prompt) text.state = prefixes_.Find(text.tokens);
  text.num_read = text.result.kept_tokens = text.state.num_tokens;
  stats_.kept_tokens += text.result.kept_tokens;
  if (text.num_read == 0) text.state = model_.EmptyState(1);
  text.begun = true;
}

void BatchDecoder::ReadChunk(int64_t number) {
  Text& text = texts_.at(number);
  if (!text.begun) BeginReading(text);
  const std::span<const int32_t> prompt = text.request.prompt;
  const int64_t length = std::min(config_.prefix.chunk, std::ssize(prompt) - text.num_read);
  const at::Tensor tokens =
      at::from_blob(const_cast<int32_t*>(prompt.data() + text.num_read), {1, length}, at::kInt)
          .to(model_.device(), at::kLong);
  const auto slice = model::SequenceSlice::Contiguous(1, length, text.num_read, model_.device());
  const at::Tensor hidden = model_.Hidden(tokens, {.slice = &slice}, &text.state);
  if (text.request.score_prompt) ScorePrompt(text, model_.Logits(hidden.select(0, 0)));
  text.num_read += length;
  if (prefixes_.Wants(text.num_read, std::ssize(prompt)))
    prefixes_.Keep(prompt.first(text.num_read), text.state);
  if (text.num_read < std::ssize(prompt)) return;
  std::erase(reading_, number);
  if (text.request.max_tokens == 0) return End(number, TextEnd::kLength);
  BeginDecoding(number, model_.Logits(hidden.select(1, length - 1)));
}

void BatchDecoder::ScorePrompt(Text& text, const at::Tensor& logits) {
  const std::span<const int32_t> prompt = text.request.prompt;
  // The first token of the chunk is predicted by the last position of the chunk before.
  const at::Tensor all = text.num_read == 0 ? logits : at::cat({text.last_logits, logits});
  const int64_t first = text.num_read == 0 ? 1 : text.num_read;
  const int64_t end = std::min(std::ssize(prompt), text.num_read + logits.size(0));
  text.last_logits = logits.narrow(0, logits.size(0) - 1, 1).clone();
  if (first >= end) return;
  std::vector<ScoredToken> scored =
      ScoreTokens(all.narrow(0, 0, end - first), prompt.subspan(first, end - first), text.request);
  if (text.request.on_prompt) text.request.on_prompt(std::move(scored));
}

void BatchDecoder::BeginDecoding(int64_t number, const at::Tensor& logits) {
  if (!TakeToken(number, logits)) return;
  Text& text = texts_.at(number);
  for (const auto& group : groups_) {
    for (int64_t row = 0; row < group->num_rows() && text.group == nullptr; ++row)
      if (!group->occupied(row)) text.group = group.get(), text.row = row;
  }
  if (text.group == nullptr) {
    groups_.push_back(std::make_unique<RowGroup>(model_, row_bits_.same_for_index ? kGroupRows : 1,
                                                 /*always_all=*/!row_bits_.same_for_count));
    text.group = groups_.back().get();
  }
  text.group->Place(text.row, std::move(text.state));
}

void BatchDecoder::DecodeGroup(RowGroup& group) {
  std::vector<int32_t> tokens(static_cast<size_t>(group.num_rows()), 0);
  std::vector<int64_t> numbers;
  for (const auto& [number, text] : texts_) {
    if (text.group != &group) continue;
    numbers.push_back(number);
    tokens[static_cast<size_t>(text.row)] = text.tokens.back();
  }
  const at::Tensor logits = group.Step(tokens).cpu();
  ++stats_.steps;
  for (const int64_t number : numbers)
    TakeToken(number, logits.narrow(0, texts_.at(number).row, 1));
}

bool BatchDecoder::TakeToken(int64_t number, const at::Tensor& logits) {
  Text& text = texts_.at(number);
  const TextRequest& request = text.request;
  const at::Tensor row = logits.cpu().contiguous();
  const int64_t vocab =
      request.vocab_size > 0 ? std::min(request.vocab_size, row.numel()) : row.numel();
  ScoredToken token;
  try {
    token.id = text.sampler.Sample({row.const_data_ptr<float>(), static_cast<size_t>(vocab)},
                                   text.tokens.size(), text.tokens, request.prompt.size());
  } catch (const Error& error) {
    End(number, TextEnd::kFailed, error.message());
    return false;
  }
  if (request.top_logprobs >= 0) {
    const int32_t id = token.id;
    token = ScoreTokens(row, {&id, 1}, request).front();
  }
  token.is_end = std::ranges::count(request.end_ids, token.id) > 0;
  ++text.result.new_tokens;
  ++stats_.new_tokens;
  const auto limit = model_.max_positions();
  const bool goes_on = !request.on_token || request.on_token(token);
  if (!goes_on || token.is_end) return End(number, TextEnd::kStop), false;
  if (text.result.new_tokens == request.max_tokens) return End(number, TextEnd::kLength), false;
  if (std::ssize(text.tokens) == limit) return End(number, TextEnd::kPositions), false;
  text.tokens.push_back(token.id);
  return true;
}

int64_t BatchDecoder::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& group : groups_) bytes += group->state_bytes();
  for (const int64_t number : reading_) bytes += texts_.at(number).state.bytes();
  return bytes;
}

}  // namespace halflife::infer
