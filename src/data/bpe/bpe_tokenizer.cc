#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "data/bpe/merger.h"
#include "data/bpe/regex.h"
#include "data/bpe/special_tokens.h"
#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer.h"
#include "data/tokenizer_folder.h"
#include "data/utf8.h"

namespace halflife::data {
namespace {

// A cache of the ids of recent words. Text repeats itself, and finding a short word here is several
// times faster than merging it. The size is fixed: a word replaces another with the same hash.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 30;
  static constexpr size_t kMaxIds = 8;

  // `word` has 1 to kMaxWordBytes bytes. Returns an empty span if it is not cached.
  std::span<const int32_t> Find(std::string_view word) const {
    const Slot& slot = slots_[Index(word)];
    if (slot.num_bytes != word.size() || std::memcmp(slot.bytes.data(), word.data(), word.size())) {
      return {};
    }
    return {slot.ids.data(), slot.num_ids};
  }

  void Put(std::string_view word, std::span<const int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    Slot& slot = slots_[Index(word)];
    slot.num_bytes = static_cast<uint8_t>(word.size());
    slot.num_ids = static_cast<uint8_t>(ids.size());
    std::memcpy(slot.bytes.data(), word.data(), word.size());
    std::memcpy(slot.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr size_t kNumSlots = 1 << 15;  // 2 MiB
  struct alignas(64) Slot {                     // one cache line
    std::array<int32_t, kMaxIds> ids = {};
    uint8_t num_bytes = 0;
    uint8_t num_ids = 0;
    std::array<char, kMaxWordBytes> bytes = {};
  };
  static_assert(sizeof(Slot) == 64);
  static size_t Index(std::string_view word) { return HashBytes(word).lo & (kNumSlots - 1); }

  std::vector<Slot> slots_ = std::vector<Slot>(kNumSlots);
};

// Normalizes valid UTF-8 to Unicode normalization form C.
std::string NormalizeNfc(std::string_view text);

// Returns true only if `text` is certainly in form C: all its characters are below U+0300, the
// first character that composition can affect.
bool IsPlainlyNfc(std::string_view text);

std::string NormalizeNfc(std::string_view text) {
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &bytes,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, &std::free);
  HL_CHECK(size >= 0, "cannot normalise a text of ", text.size(),
           " bytes: ", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)};
}

bool IsPlainlyNfc(std::string_view text) {
  constexpr uint8_t kLeadOf0300 = 0xCC;
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<uint8_t>(c) >= kLeadOf0300; });
}

// Scratch memory of one call of Encode.
struct Workspace {
  RegexScratch regex;
  Merger::Scratch merge;
  WordCache cache;
};

// Lends a workspace to each call and keeps it for later calls. There are as many workspaces as
// calls that ran at once.
class WorkspacePool {
 public:
  class Lease {
   public:
    Lease(WorkspacePool& pool, std::unique_ptr<Workspace> workspace)
        : pool_(pool), workspace_(std::move(workspace)) {}
    ~Lease() {
      const std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(workspace_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace& operator*() const { return *workspace_; }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<Workspace> workspace_;
  };

  Lease Take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Workspace> workspace = std::move(free_.back());
        free_.pop_back();
        return {*this, std::move(workspace)};
      }
    }
    return {*this, std::make_unique<Workspace>()};
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

struct WordHash {
  using is_transparent = void;
  size_t operator()(std::string_view word) const { return HashBytes(word).lo; }
};

std::array<int32_t, 256> ByteIds(const BpeSpec& spec) {
  std::array<int32_t, 256> ids{};
  for (int32_t id = 0; id < spec.num_model_tokens; ++id) {
    const auto bytes = BytesOfToken(spec.tokens[static_cast<size_t>(id)]);
    if (bytes && bytes->size() == 1) ids[static_cast<uint8_t>(bytes->front())] = id;
  }
  return ids;
}

std::string ContentToFind(const AddedToken& token, const BpeSpec& spec) {
  return token.normalized && spec.nfc ? NormalizeNfc(token.content) : token.content;
}

// Returns the added tokens to find before (`normalized` false) or after (true) normalization,
// without the token `left_out` (-1: none).
std::vector<AddedToken> TokensToFind(const BpeSpec& spec, bool normalized, int left_out,
                                     const std::string& name) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : spec.added) {
    if (token.id == left_out || token.normalized != normalized) continue;
    token.content = ContentToFind(token, spec);
    for (const AddedToken& other : tokens) {
      HL_CHECK_AS(ExitCode::kData, !normalized || other.content != token.content, name,
                  " has two added tokens that are equal once normalised: '", token.content, "'");
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// transformers also adds the eos token if it is not among the file's added tokens.
BpeSpec WithAddedEos(BpeSpec spec, int eos) {
  const auto is_eos = [&](const AddedToken& token) { return token.id == eos; };
  if (std::none_of(spec.added.begin(), spec.added.end(), is_eos)) {
    spec.added.push_back(
        {.content = spec.tokens[static_cast<size_t>(eos)], .id = eos, .special = true});
  }
  return spec;
}

// The tokens at which a text is split first.
struct NamedTokens {
  NamedTokens(const BpeSpec& spec, int left_out, const std::string& name)
      : raw(TokensToFind(spec, false, left_out, name)),
        normalized(TokensToFind(spec, true, left_out, name)) {}
  const AddedTokenMatcher raw, normalized;  // matched before and after normalization
};

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(std::string json, BpeSpec spec, const SpecialIds& special, const std::string& name)
      : json_(std::move(json)),
        config_(TokenizerConfigJson(spec, special)),
        special_(special),
        nfc_(spec.nfc),
        merger_(ByteIds(spec), spec.merges),
        splitter_(spec.splits),
        eos_name_(spec.tokens[static_cast<size_t>(special.eos)]),
        plain_(spec, special.eos, name),
        parsed_(spec, -1, name) {
    text_.reserve(spec.tokens.size());
    for (const std::string& token : spec.tokens)
      text_.push_back(BytesOfToken(token).value_or(token));
    if (spec.ignore_merges) {
      for (int32_t id = 0; id < spec.num_model_tokens; ++id) {
        const bool writes_bytes = BytesOfToken(spec.tokens[static_cast<size_t>(id)]).has_value();
        if (!writes_bytes || id == special.eos) continue;
        whole_words_.emplace(text_[static_cast<size_t>(id)], id);
      }
    }
    for (const AddedToken& token : spec.added) {
      std::string& text = text_[static_cast<size_t>(token.id)];
      // An added token that is not in the model's vocabulary is plain text, even if its characters
      // are in the byte alphabet.
      if (token.id >= spec.num_model_tokens) text = ContentToFind(token, spec);
      if (token.special) text.clear();
    }
    text_[static_cast<size_t>(special.eos)].clear();
  }

  const std::string& kind() const override { return kind_; }
  int vocab_size() const override { return static_cast<int>(text_.size()); }
  SpecialIds special_ids() const override { return special_; }
  bool keeps_invalid_bytes() const override { return false; }

  std::vector<NameRange> SpecialNames(std::string_view text) const override {
    if (FindInvalidUtf8(text) != std::string_view::npos) return {};  // it is repaired as a whole
    return parsed_.raw.FindAll(text);
  }

  void CountSpecialNames(std::string_view text, NameCounts& counts) const override {
    for (size_t at = 0; (at = text.find(eos_name_, at)) != std::string_view::npos;
         at += eos_name_.size())
      ++counts[eos_name_];
  }

  void EncodeAppend(std::string_view text, SpecialTokens special,
                    std::vector<int32_t>& ids) const override {
    std::string repaired;
    if (FindInvalidUtf8(text) != std::string_view::npos) {
      repaired = ReplaceInvalidUtf8(text);
      text = repaired;
    }
    const WorkspacePool::Lease lease = pool_.Take();
    Workspace& work = *lease;
    const auto on_token = [&](int32_t id) { ids.push_back(id); };
    const std::function<void(std::string_view)> on_word = [&](std::string_view word) {
      AppendWord(word, work, ids);
    };
    const auto on_plain = [&](std::string_view piece) {
      splitter_.Split(piece, work.regex, on_word);
    };
    const NamedTokens& names = special == SpecialTokens::kPlain ? plain_ : parsed_;
    names.raw.Split(
        text,
        [&](std::string_view piece) {
          if (!nfc_ || IsPlainlyNfc(piece)) {
            names.normalized.Split(piece, on_plain, on_token);
          } else {
            names.normalized.Split(NormalizeNfc(piece), on_plain, on_token);
          }
        },
        on_token);
  }

  bool AppendBytes(int32_t id, bool, std::string& bytes) const override {
    HL_CHECK(id >= 0 && id < vocab_size(), "token id ", id, " of a vocabulary of ", vocab_size());
    const std::string& text = text_[static_cast<size_t>(id)];
    bytes += text;
    return !text.empty();
  }

 protected:
  std::map<std::string, std::string> FilesOfKind() const override {
    return {{kTokenizerJsonFile, json_}, {kTokenizerConfigFile, config_}};
  }

 private:
  void AppendWord(std::string_view word, Workspace& work, std::vector<int32_t>& ids) const {
    const bool cached = word.size() <= WordCache::kMaxWordBytes;
    if (cached) {
      const std::span<const int32_t> known = work.cache.Find(word);
      if (!known.empty()) {
        ids.insert(ids.end(), known.begin(), known.end());
        return;
      }
    }
    const size_t old_size = ids.size();
    const auto whole = whole_words_.find(word);
    if (whole != whole_words_.end()) {
      ids.push_back(whole->second);
    } else {
      merger_.Append(word, work.merge, ids);
    }
    if (cached) work.cache.Put(word, std::span<const int32_t>(ids).subspan(old_size));
  }

  const std::string kind_ = kBpeKind;
  const std::string json_, config_;  // as written by Save
  const SpecialIds special_;
  const bool nfc_;
  const Merger merger_;
  const WordSplitter splitter_;
  const std::string eos_name_;
  const NamedTokens plain_, parsed_;  // plain_ excludes the eos token
  std::vector<std::string> text_;     // bytes by id; empty for special ids
  std::unordered_map<std::string, int32_t, WordHash, std::equal_to<>> whole_words_;
  mutable WorkspacePool pool_;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeBpeTokenizer(std::map<std::string, std::string> files,
                                            const std::string& name) {
  std::string& json = files[kTokenizerJsonFile];
  BpeSpec spec = ReadTokenizerJson(json, name);
  const SpecialIds special = FindSpecialTokens(spec, name, files);
  const bool begins_with_bos =
      special.bos >= 0 && spec.tokens[static_cast<size_t>(special.bos)] == spec.template_begin;
  auto tokenizer = std::make_unique<BpeTokenizer>(
      std::move(json), WithAddedEos(std::move(spec), special.eos), special, name);
  tokenizer->set_begins_with_bos(begins_with_bos);
  return tokenizer;
}

}  // namespace halflife::data
