#include "data/bpe/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"

namespace halflife::data {
namespace {

// Real patterns need a few hundred bytes and a few steps per character of a word.
constexpr size_t kMaxPatternBytes = 8192;
constexpr uint32_t kMaxGroupNesting = 50;
constexpr uint32_t kMaxMatchSteps = 20'000'000;
constexpr uint32_t kMaxDepth = 1'000'000;
constexpr uint32_t kMaxHeapKib = 64 << 10;
constexpr size_t kFirstStackBytes = 32 << 10;
constexpr size_t kMaxStackBytes = 4 << 20;

std::string ErrorText(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct CompileContextDeleter {
  void operator()(pcre2_compile_context* context) const noexcept {
    pcre2_compile_context_free(context);
  }
};

}  // namespace

void RegexDeleter::operator()(pcre2_code* code) const noexcept { pcre2_code_free(code); }
void RegexDeleter::operator()(pcre2_match_data* data) const noexcept {
  pcre2_match_data_free(data);
}
void RegexDeleter::operator()(pcre2_match_context* context) const noexcept {
  pcre2_match_context_free(context);
}
void RegexDeleter::operator()(pcre2_jit_stack* stack) const noexcept {
  pcre2_jit_stack_free(stack);
}

RegexScratch::RegexScratch()
    : data_(pcre2_match_data_create(1, nullptr)),
      stack_(pcre2_jit_stack_create(kFirstStackBytes, kMaxStackBytes, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  HL_CHECK(data_ != nullptr && context_ != nullptr, "out of memory for a search");
  pcre2_set_match_limit(context_.get(), kMaxMatchSteps);
  pcre2_set_depth_limit(context_.get(), kMaxDepth);
  pcre2_set_heap_limit(context_.get(), kMaxHeapKib);
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
}

Regex Regex::Compile(const std::string& pattern) {
  HL_CHECK_AS(ExitCode::kData, pattern.size() <= kMaxPatternBytes, "a pattern of ", pattern.size(),
              " bytes, more than the limit of ", kMaxPatternBytes, " bytes");
  const std::string translated = TranslatePattern(pattern);
  const std::unique_ptr<pcre2_compile_context, CompileContextDeleter> context(
      pcre2_compile_context_create(nullptr));
  HL_CHECK(context != nullptr, "out of memory for a pattern");
  pcre2_set_parens_nest_limit(context.get(), kMaxGroupNesting);
  int error = 0;
  PCRE2_SIZE at = 0;
  Regex regex;
  regex.pattern_ = pattern;
  regex.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                  translated.size(), PCRE2_UTF | PCRE2_UCP, &error, &at,
                                  context.get()));
  HL_CHECK_AS(ExitCode::kData, regex.code_ != nullptr, "the pattern '", pattern,
              "' is malformed: ", ErrorText(error));
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(regex.code_.get(), PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  HL_CHECK_AS(ExitCode::kData, matches_nothing == 0, "the pattern '", pattern,
              "' can match an empty text. Use a pattern that matches at least one character.");
  regex.jit_ = pcre2_jit_compile(regex.code_.get(), PCRE2_JIT_COMPLETE) == 0;
  return regex;
}

std::optional<ByteSpan> Regex::Find(std::string_view text, size_t from,
                                    RegexScratch& scratch) const {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int result = jit_ ? pcre2_jit_match(code_.get(), subject, text.size(), from, 0,
                                            scratch.data_.get(), scratch.context_.get())
                          : pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                        scratch.data_.get(), scratch.context_.get());
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  HL_CHECK_AS(ExitCode::kData, result >= 0, "the tokenizer's pattern '", pattern_,
              "' cannot be matched within its limits on a text of ", text.size(),
              " bytes: ", ErrorText(result),
              ". Split the text into shorter documents, or use another tokenizer.");
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(scratch.data_.get());
  // Only \K in a look-around could make a match end before it begins, and TranslatePattern accepts
  // no \K.
  HL_CHECK(bounds[0] >= from && bounds[1] > bounds[0], "a match of nothing");
  return ByteSpan{bounds[0], bounds[1]};
}

WordSplitter::WordSplitter(const std::vector<SplitStep>& steps) {
  for (const SplitStep& step : steps) {
    Step& made = steps_.emplace_back();
    if (!step.pattern.empty()) made.regex = Regex::Compile(step.pattern);
    made.keep_between = step.keep_between;
    made.add_prefix_space = step.add_prefix_space;
  }
}

void WordSplitter::Split(std::string_view text, RegexScratch& scratch,
                         const std::function<void(std::string_view)>& on_word) const {
  Run(0, text, {scratch, on_word});
}

void WordSplitter::Run(size_t index, std::string_view text, const Sink& sink) const {
  if (text.empty()) return;
  if (index == steps_.size()) return sink.on_word(text);
  if (steps_[index].add_prefix_space && text.front() != ' ') {
    std::string with_space = " ";
    with_space += text;
    return Cut(index, with_space, sink);
  }
  Cut(index, text, sink);
}

void WordSplitter::Cut(size_t index, std::string_view text, const Sink& sink) const {
  const Step& step = steps_[index];
  if (!step.regex) return Run(index + 1, text, sink);
  size_t done = 0;
  while (done < text.size()) {
    const std::optional<ByteSpan> match = step.regex->Find(text, done, sink.scratch);
    const size_t begin = match ? match->begin : text.size();
    if (step.keep_between) Run(index + 1, text.substr(done, begin - done), sink);
    if (!match) break;
    Run(index + 1, text.substr(begin, match->end - begin), sink);
    done = match->end;
  }
}

}  // namespace halflife::data
