#include "data/bpe/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "data/utf8.h"

namespace halflife::data {
namespace {

// Unicode White_Space, which is Oniguruma's \s, and its complement.
constexpr char kSpace[] =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F})"
    R"(\x{3000})";
constexpr char kNotSpace[] =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF})"
    R"(\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

constexpr std::array<std::string_view, 36> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co"};
constexpr std::array<std::string_view, 17> kScripts = {
    "Han",        "Hiragana", "Katakana", "Hangul",   "Latin",   "Greek",
    "Cyrillic",   "Arabic",   "Hebrew",   "Thai",     "Lao",     "Khmer",
    "Devanagari", "Bengali",  "Tamil",    "Georgian", "Armenian"};

// Since PCRE2 10.40, a bare script name means Script_Extensions, which is a larger set.
constexpr bool kScriptNeedsPrefix = PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40;

// In Oniguruma, case folding also joins these pairs: U+FB01 matches "fi" case-insensitively there,
// but not in PCRE2.
constexpr std::array<std::string_view, 5> kLigatures = {"ff", "fi", "fl", "st", "ss"};

bool IsAsciiPunctuation(char c) { return static_cast<uint8_t>(c) < 0x80 && std::ispunct(c) != 0; }

std::string CodePointText(uint32_t code_point) {
  char hex[16];
  const auto end = std::to_chars(hex, hex + sizeof hex, code_point, 16).ptr;
  return Concat("\\x{", std::string_view(hex, static_cast<size_t>(end - hex)), "}");
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string Run() {
    const size_t bad = FindInvalidUtf8(in_);
    HL_CHECK_AS(ExitCode::kData, bad == std::string_view::npos, "a pattern is not UTF-8 at byte ",
                bad);
    HL_CHECK_AS(ExitCode::kData, !in_.empty(), "an empty pattern");
    while (at_ < in_.size()) Item();
    Require(groups_.empty(), "a group without its ')'");
    return std::move(out_);
  }

 private:
  // The kind of the previous item: a quantifier needs an atom before it.
  enum class Last { kNothing, kAtom, kLookAhead, kQuantifier };
  struct Group {
    bool caseless = false;  // the surrounding state, restored at the end of the group
    bool look_ahead = false;
  };

  void Require(bool condition, std::string_view what) const {
    HL_CHECK_AS(ExitCode::kData, condition, "the pattern '", in_, "' contains ", what,
                " before byte ", at_,
                ", which is not supported. Use characters, classes, \\s \\d \\p{..}, "
                "groups (?: (?i: (?= (?!, | and quantifiers.");
  }

  bool Take(std::string_view text) {
    if (!in_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  char Next() {
    Require(at_ < in_.size(), "an unfinished part");
    return in_[at_++];
  }

  void Item() {
    const char c = in_[at_];
    if (c == '(') return OpenGroup();
    if (c == ')') return CloseGroup();
    if (c == '[') return Class();
    if (c == '\\') return Escape();
    if (c == '?' || c == '*' || c == '+' || c == '{') return Quantifier();
    Require(c != '^' && c != '$', "^ or $");
    if (c == '|' || c == '.') {
      ++at_;
      out_ += c == '|' ? "|" : "[^\\x{A}]";
      last_ = c == '|' ? Last::kNothing : Last::kAtom;
      literal_.clear();
      return;
    }
    Literal(TakeCodePoint());
  }

  void OpenGroup() {
    ++at_;
    Group group{.caseless = caseless_};
    if (!Take("?")) {
      out_ += "(?:";  // patterns never refer to a captured group
    } else if (Take(":")) {
      out_ += "(?:";
    } else if (Take("i:")) {
      out_ += "(?i:";
      caseless_ = true;
    } else if (Take("=")) {
      out_ += "(?=";
      group.look_ahead = true;
    } else {
      Require(Take("!"), "a group other than ( (?: (?i: (?= (?!");
      out_ += "(?!";
      group.look_ahead = true;
    }
    groups_.push_back(group);
    last_ = Last::kNothing;
    literal_.clear();
  }

  void CloseGroup() {
    ++at_;
    Require(!groups_.empty(), "a ')' without its group");
    out_ += ")";
    caseless_ = groups_.back().caseless;
    last_ = groups_.back().look_ahead ? Last::kLookAhead : Last::kAtom;
    groups_.pop_back();
    literal_.clear();
  }

  void Quantifier() {
    Require(last_ == Last::kAtom, "a quantifier with nothing to repeat");
    const char kind = in_[at_++];
    bool exact = false;
    if (kind != '{') {
      out_ += kind;
    } else {
      exact = Interval();
    }
    if (at_ < in_.size() && in_[at_] == '?') {
      Require(!exact, "{n}?, an optional repetition");
      out_ += in_[at_++];
    } else if (at_ < in_.size() && in_[at_] == '+') {
      Require(kind != '{', "{..}+, a repetition of a repetition");
      out_ += in_[at_++];
    }
    last_ = Last::kQuantifier;
    literal_.clear();
  }

  // After '{', parses "n}", "n,}" or "n,m}". Returns true if it was "n}".
  bool Interval() {
    constexpr uint32_t kMaxCount = 1000;
    const auto count = [&] {
      uint32_t value = 0;
      const auto [end, error] = std::from_chars(in_.data() + at_, in_.data() + in_.size(), value);
      Require(error == std::errc() && value <= kMaxCount, "a count in {} that is not in [0, 1000]");
      at_ = static_cast<size_t>(end - in_.data());
      return value;
    };
    const uint32_t low = count();
    if (Take("}")) {
      out_ += Concat("{", low, "}");
      return true;
    }
    Require(Take(","), "a { that is not a repetition");
    if (Take("}")) {
      out_ += Concat("{", low, ",}");
      return false;
    }
    const uint32_t high = count();
    Require(Take("}") && low <= high, "a { that is not a repetition");
    out_ += Concat("{", low, ",", high, "}");
    return false;
  }

  uint32_t TakeCodePoint() {
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(in_[i])); };
    const uint32_t lead = byte(at_);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint32_t code_point = length == 1 ? lead : lead & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; ++i) code_point = code_point << 6 | (byte(at_ + i) & 0x3F);
    at_ += length;
    return code_point;
  }

  void Literal(uint32_t code_point) {
    if (caseless_) {
      Require(code_point < 0x80, "a character outside ASCII in (?i:");
      literal_ += static_cast<char>(code_point | (code_point >= 'A' && code_point <= 'Z' ? 32 : 0));
      const std::string_view end =
          std::string_view(literal_).substr(literal_.size() - std::min<size_t>(2, literal_.size()));
      Require(std::find(kLigatures.begin(), kLigatures.end(), end) == kLigatures.end(),
              "letters in (?i: that also stand for one ligature");
    }
    out_ += CodePointText(code_point);
    last_ = Last::kAtom;
  }

  // An element of a class: a single character or a set.
  struct Element {
    bool is_set = false;
    uint32_t code_point = 0;
    std::string set;  // text for use inside [ ]
  };

  Element EscapedElement() {
    ++at_;
    const char c = Next();
    if (c == 's') return {true, 0, kSpace};
    if (c == 'S') return {true, 0, kNotSpace};
    if (c == 'd') return {true, 0, "\\p{Nd}"};
    if (c == 'D') return {true, 0, "\\P{Nd}"};
    if (c == 'p' || c == 'P') return {true, 0, Property(c == 'P')};
    static constexpr std::string_view kControls = "r\rn\nt\tf\fv\va\ae\x1B";
    for (size_t i = 0; i < kControls.size(); i += 2) {
      if (kControls[i] == c) return {false, static_cast<uint32_t>(kControls[i + 1]), ""};
    }
    if (c == 'x' && Take("{")) return {false, Hex(1, 6, '}'), ""};
    if (c == 'x') {
      const uint32_t value = Hex(2, 2, 0);
      Require(value < 0x80, "\\x with a byte of a longer character");
      return {false, value, ""};
    }
    if (c == 'u') return {false, Hex(4, 4, 0), ""};
    Require(IsAsciiPunctuation(c) || c == ' ', Concat("\\", c));
    return {false, static_cast<uint32_t>(c), ""};
  }

  uint32_t Hex(size_t min_digits, size_t max_digits, char end) {
    uint32_t value = 0;
    size_t digits = 0;
    for (; digits < max_digits && at_ < in_.size(); ++digits, ++at_) {
      const char c = in_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    Require(digits >= min_digits && (end == 0 || Take("}")) && value <= 0x10FFFF &&
                (value < 0xD800 || value > 0xDFFF),
            "an escape that is not a code point");
    return value;
  }

  std::string Property(bool negated) {
    Require(Take("{"), "\\p without {");
    if (Take("^")) negated = !negated;
    const size_t end = in_.find('}', at_);
    Require(end != std::string_view::npos, "\\p{ without }");
    const std::string_view name = in_.substr(at_, end - at_);
    at_ = end + 1;
    const bool category =
        std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end();
    Require(category || std::find(kScripts.begin(), kScripts.end(), name) != kScripts.end(),
            Concat("\\p{", name, "}"));
    Require(!caseless_, "\\p{..} in (?i:");
    return Concat(negated ? "\\P{" : "\\p{", category || !kScriptNeedsPrefix ? "" : "sc:", name,
                  "}");
  }

  void Escape() {
    const Element element = EscapedElement();
    if (!element.is_set) return Literal(element.code_point);
    out_ += Concat("[", element.set, "]");
    last_ = Last::kAtom;
    literal_.clear();
  }

  Element ClassElement() {
    Require(at_ < in_.size(), "a class without its ]");
    Require(in_[at_] != '[', "a class inside a class");
    Require(!in_.substr(at_).starts_with("&&"), "&& in a class");
    if (in_[at_] == '\\') return EscapedElement();
    return {false, TakeCodePoint(), ""};
  }

  void Class() {
    ++at_;
    const bool negated = Take("^");
    Require(!negated || !caseless_, "a negated class in (?i:");
    Require(!in_.substr(at_).starts_with("]"), "an empty class");
    out_ += negated ? "[^" : "[";
    while (!Take("]")) {
      const Element first = ClassElement();
      Require(first.is_set || !caseless_ || first.code_point < 0x80,
              "a character outside ASCII in (?i:");
      const std::string_view rest = in_.substr(at_);
      if (first.is_set) {
        Require(!rest.starts_with("-") || rest.starts_with("-]"), "a range from a set");
        out_ += first.set;
        continue;
      }
      out_ += CodePointText(first.code_point);
      if (!rest.starts_with("-") || rest.starts_with("-]")) continue;
      ++at_;
      const Element last = ClassElement();
      Require(!last.is_set && first.code_point <= last.code_point, "a reversed range");
      Require(!caseless_ || last.code_point < 0x80, "a character outside ASCII in (?i:");
      out_ += Concat("-", CodePointText(last.code_point));
    }
    out_ += "]";
    last_ = Last::kAtom;
    literal_.clear();
  }

  const std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  std::vector<Group> groups_;
  bool caseless_ = false;
  Last last_ = Last::kNothing;
  std::string literal_;  // only in (?i: : the literal characters that end here, in lower case
};

}  // namespace

std::string TranslatePattern(std::string_view pattern) { return Translator(pattern).Run(); }

}  // namespace halflife::data
