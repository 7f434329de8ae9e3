#include "train/config/parse_errors.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>

#include "core/concat.h"

namespace halflife::train {
namespace {

namespace pb = google::protobuf;
using Type = pb::FieldDescriptor::CppType;

constexpr char kRecipeExample[] = "\n  optimizer { lr: 3e-4 }\n  train { steps: 1000 }";
constexpr char kSweepExample[] =
    "\n  recipe: \"mine.textproto\"\n  axis { field: \"train.seed\" value: [\"1\", \"2\"] }";

bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool IsWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// A block that is open at some position of a text, and where each name in it first occurs.
struct OpenBlock {
  std::string name;
  std::map<std::string, size_t> places;
};

size_t EndOfString(const std::string& text, size_t begin) {
  size_t end = begin + 1;
  while (end < text.size() && text[end] != text[begin] && text[end] != '\n')
    end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

// Returns the blocks that are open at `end`, outermost first. The first is the text itself.
std::vector<OpenBlock> FindOpenBlocks(const std::string& text, size_t end) {
  std::vector<OpenBlock> open(1);
  std::string last;
  for (size_t i = 0; i < end;) {
    const char c = text[i];
    const size_t begin = i++;
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if (c == '"' || c == '\'') {
      i = EndOfString(text, begin);
    } else if (IsWordCharacter(c)) {
      while (i < text.size() && IsWordCharacter(text[i])) ++i;
      const size_t next = text.find_first_not_of(" \t\r\n", i);
      if (next == std::string::npos || std::string(":{<[").find(text[next]) == std::string::npos)
        continue;
      last = text.substr(begin, i - begin);
      open.back().places.emplace(last, begin);
    } else if (c == '{' || c == '<') {
      open.push_back({.name = last, .places = {}});
    } else if ((c == '}' || c == '>') && open.size() > 1) {
      last = open.back().name;
      open.pop_back();
    }
  }
  return open;
}

size_t OffsetOf(const std::string& text, int line, int column) {
  constexpr int kTabWidth = 8;  // The tab width of protobuf's tokenizer.
  size_t offset = 0;
  for (; line > 0 && offset < text.size(); --line)
    offset = std::min(text.find('\n', offset), text.size() - 1) + 1;
  for (int at = 0; at < column && offset < text.size(); ++offset)
    at += text[offset] == '\t' ? kTabWidth - at % kTabWidth : 1;
  return offset;
}

std::string Unquoted(const std::string& token) {
  const bool quoted = token.size() >= 2 && (token.front() == '"' || token.front() == '\'');
  return quoted ? token.substr(1, token.size() - 2) : token;
}

class Explainer {
 public:
  Explainer(const ParsedText& parsed, const ParserError& error)
      : parsed_(parsed),
        text_(parsed.text),
        words_(error.words),
        at_(OffsetOf(text_, error.line, error.column)),
        open_(FindOpenBlocks(text_, at_)) {
    ResolveBlock();
  }

  std::string Explain() {
    using Step = std::string (Explainer::*)();
    for (const Step step :
         {&Explainer::Name, &Explainer::GivenTwice, &Explainer::Value, &Explainer::OtherFormat,
          &Explainer::ValueOfBlock, &Explainer::Punctuation})
      if (const std::string text = (this->*step)(); !text.empty()) return Concat(Place(), text);
    return Concat(Place(), words_);
  }

 private:
  // Sets the message and the path of the innermost open block, or null if the text names no such
  // block.
  void ResolveBlock() {
    block_ = &parsed_.message;
    path_ = parsed_.path;
    for (size_t i = 1; i < open_.size() && block_ != nullptr; ++i) {
      const pb::FieldDescriptor* field = block_->FindFieldByName(open_[i].name);
      block_ = field == nullptr ? nullptr : field->message_type();
      path_ = PathBelow(path_, open_[i].name);
    }
  }

  bool Match(const char* pattern) { return std::regex_search(words_, match_, std::regex(pattern)); }

  // Returns "2:3: " for a file and "" for --set, which is one line.
  std::string Place() const {
    if (parsed_.form == RecipeForm::kSet) return "";
    const size_t line_begin = at_ == 0 ? 0 : text_.rfind('\n', at_ - 1) + 1;
    return Concat(LineOf(at_), ":", at_ - line_begin + 1, ": ");
  }
  int64_t LineOf(size_t offset) const {
    return std::count(text_.begin(), text_.begin() + static_cast<int64_t>(offset), '\n') + 1;
  }
  // Returns for example ", on lines 1 and 3".
  std::string OnLines(size_t first, size_t second) const {
    if (parsed_.form == RecipeForm::kSet) return "";
    if (LineOf(first) == LineOf(second)) return Concat(", on line ", LineOf(first));
    return Concat(", on lines ", LineOf(first), " and ", LineOf(second));
  }

  // protobuf may report a position after a word. Moves to the beginning of the word.
  void MoveTo(const std::string& name) {
    const size_t found = at_ == 0 ? std::string::npos : text_.rfind(name, at_ - 1);
    if (found != std::string::npos) at_ = found;
  }

  std::string Name() {
    if (!Match(R"re(has no field named "(\w+)")re") || block_ == nullptr) return "";
    const std::string name = match_[1];
    MoveTo(name);
    return DescribeUnknownName({.root = parsed_.root,
                                .block = *block_,
                                .path = path_,
                                .name = name,
                                .last = "",
                                .form = parsed_.form});
  }

  std::string GivenTwice() {
    const auto place = [&](const std::string& name) { return open_.back().places[name]; };
    if (Match(R"re(^Non-repeated field "(\w+)" is specified multiple times)re")) {
      const std::string name = match_[1];
      MoveTo(name);
      const pb::FieldDescriptor* field =
          block_ == nullptr ? nullptr : block_->FindFieldByName(name);
      const bool is_block = field != nullptr && field->message_type() != nullptr;
      return Concat(is_block ? "the block " : "", PathBelow(path_, name), " is given twice",
                    OnLines(place(name), at_), ". ",
                    is_block ? "Merge them into one block." : "Keep one of them.");
    }
    if (!Match(R"re(^Field "(\w+)" is specified along with field "(\w+)", another member)re"))
      return "";
    const std::string second = match_[1], first = match_[2];
    MoveTo(second);
    return Concat(path_, " has two variants, '", first, "' and '", second, "'",
                  OnLines(place(first), at_), ". Keep one of them.");
  }

  // Returns the end of the text before at_. Only the end, because std::regex needs stack for each
  // character.
  std::string Before() const {
    const size_t begin = at_ - std::min<size_t>(at_, 200);
    return text_.substr(begin, at_ - begin);
  }

  // Returns the name of the field whose value, or part of a list of values, begins at at_.
  std::string NameBefore() const {
    const std::string before = Before();
    std::smatch match;
    return std::regex_search(before, match, std::regex(R"((\w+)\s*:\s*(\[[^\[\]{}]*)?$)"))
               ? match[1].str()
               : "";
  }

  // Returns the value at at_: a string with its quotes, or the characters up to a space or bracket.
  std::string Token() const {
    if (at_ >= text_.size()) return "";
    if (text_[at_] == '"' || text_[at_] == '\'')
      return text_.substr(at_, EndOfString(text_, at_) - at_);
    if (text_[at_] == '[') return "[";
    size_t end = at_;
    while (end < text_.size() && !IsSpace(text_[end]) &&
           std::string(",;}]#").find(text_[end]) == std::string::npos)
      ++end;
    return text_.substr(at_, end - at_);
  }

  // Explains a value of the wrong type for a field with one value or a list.
  std::string Value() {
    if (words_.starts_with("String literals")) return "";
    if (Match(R"re(^Invalid value for boolean field "\w+"\. Value: "(\w+)")re")) MoveTo(match_[1]);
    if (words_.starts_with("Need space between number"))
      while (at_ > 0 && (IsWordCharacter(text_[at_ - 1]) || text_[at_ - 1] == '.')) --at_;
    if (at_ > 0 && text_[at_ - 1] == '-') --at_;
    const pb::FieldDescriptor* field =
        block_ == nullptr ? nullptr : block_->FindFieldByName(NameBefore());
    if (field == nullptr || field->message_type() != nullptr) return "";
    const std::string path = PathBelow(path_, field->name()), token = Token();
    if (token.empty()) return Concat(path, " has no value. Write ", field->name(), ": VALUE.");
    if (token == "[") return Concat(path, " takes one value. Write it without brackets.");
    switch (field->cpp_type()) {
      case Type::CPPTYPE_STRING:
        return Concat(path, " is text. Write it in quotes: ", field->name(), ": \"", token, "\".");
      case Type::CPPTYPE_BOOL:
        return Concat(path, " must be true or false, not ", token, ".");
      default:
        return Concat(path, NumberProblem(*field, token));
    }
  }

  static std::string NumberProblem(const pb::FieldDescriptor& field, const std::string& token) {
    const bool is_integer = field.cpp_type() != Type::CPPTYPE_DOUBLE;
    const char* const wanted = is_integer ? " must be an integer" : " must be a number";
    std::string digits = Unquoted(token);
    std::erase(digits, '_');
    char* end = nullptr;
    const double number = std::strtod(digits.c_str(), &end);
    const bool is_number = !digits.empty() && *end == '\0' && std::isfinite(number);
    const bool fits = is_number && std::abs(number) < 1e15;
    if (field.cpp_type() == Type::CPPTYPE_UINT64 && is_number && number < 0)
      return Concat(" must be 0 or more, not ", token, ".");
    if (is_number && token.find_first_not_of("-0123456789") == std::string::npos)
      return Concat(" is ", token, ", which is too large for it.");
    if (is_integer && fits && number == std::floor(number))
      return Concat(wanted, ". Write ", static_cast<int64_t>(number), ".");
    if (!is_integer && is_number) return Concat(wanted, ". Write ", digits, ".");
    return Concat(wanted, ", not ", token, ".");
  }

  // Explains JSON, YAML and TOML.
  std::string OtherFormat() {
    const char* const example =
        parsed_.root.GetDescriptor()->name() == "Sweep" ? kSweepExample : kRecipeExample;
    const size_t first = text_.find_first_not_of(" \t\r\n");
    const bool is_file = parsed_.form == RecipeForm::kFile;
    if (Match(R"(^Expected identifier, got: ["'])") ||
        (is_file && first != std::string::npos && text_[first] == '{'))
      return Concat("this is JSON, not protobuf text. Write names without quotes",
                    is_file ? " and no braces around the whole file" : "",
                    ". For example:", example);
    const std::string rest = text_.substr(at_, 3);
    const bool indented = words_.starts_with("Expected \"{\"") &&
                          std::regex_search(Before(), std::regex(R"(:[ \t]*(#[^\n]*)?\r?\n\s*$)"));
    if (indented || rest == "---" || rest.starts_with("- "))
      return Concat(
          "this is YAML, not protobuf text. Write the fields of a block in braces, and a "
          "list in brackets. For example:",
          example);
    if (Match(R"re(^Extension "([\w.]+)" is not defined)re"))
      return Concat("this is TOML, not protobuf text. Write ", match_[1].str(),
                    " { ... } instead of a section. For example:", example);
    return "";
  }

  // Explains a value in place of a block: `mixer: "gla"`, `optimizer: 3`.
  std::string ValueOfBlock() {
    if (!Match(R"re(^Expected "\{", found "([^]*)"\.$)re") || block_ == nullptr) return "";
    const std::string found = match_[1], value = Unquoted(found);
    const std::string name = NameOfBlock();
    const pb::FieldDescriptor* field = block_->FindFieldByName(name);
    if (field == nullptr || field->message_type() == nullptr) return "";
    const pb::Descriptor& wanted = *field->message_type();
    const std::string path = PathBelow(path_, name);
    const bool is_choice = VariantsOf(wanted) != nullptr;
    if (is_choice && wanted.FindFieldByName(value) != nullptr)
      return Concat(path, " is a block. Write ", name, " { ", value, " {} }.");
    std::string text = wanted.field_count() == 0
                           ? Concat(path, " is a block. Write ", name, " {}.")
                           : Concat(path, " is a block. Write ", name, " { ",
                                    wanted.field(0)->name(), is_choice ? " {}" : ": VALUE", " }.");
    if (const ForeignName* foreign = FindForeignName(path, value); foreign && foreign->is_missing())
      text += Concat(" About ", found, ": ", AnswerTo(*foreign, parsed_.form));
    return text;
  }

  // Returns the name that ends before at_, with or without a colon.
  std::string NameOfBlock() const {
    size_t end = at_;
    while (end > 0 && (IsSpace(text_[end - 1]) || text_[end - 1] == ':')) --end;
    size_t begin = end;
    while (begin > 0 && IsWordCharacter(text_[begin - 1])) --begin;
    return text_.substr(begin, end - begin);
  }

  std::string Punctuation() {
    if (Match(R"re(^Expected ":", found "([^]*)"\.$)re")) {
      const bool equals = match_[1] == "=";
      return Concat("write a colon ", equals ? "instead of '='" : "between a name and its value",
                    ", for example ", NameOfBlock(), ": VALUE.");
    }
    if (words_.starts_with("String literals"))
      return "the text that begins on this line has no closing quote. Add it on the same line.";
    if (!Match(R"(^Expected identifier, got: ([^]*)$)")) return "";
    const std::string found = match_[1];
    if (found.empty())
      return path_.empty() ? "" : Concat("the block ", path_, " is not closed. Add a '}'.");
    if (found == "}") return "this '}' closes no block. Remove it.";
    if (found == "/") return "a comment begins with '#', not with '/'.";
    if (std::isdigit(static_cast<unsigned char>(found.front())) != 0)
      return "a name is expected here, not a number. Write a list in brackets, as in [1, 2].";
    return "";
  }

  const ParsedText& parsed_;
  const std::string& text_;
  const std::string& words_;  // The message of protobuf.
  size_t at_;                 // The position of the error.
  std::vector<OpenBlock> open_;
  const pb::Descriptor* block_;  // The message of the innermost open block.
  std::string path_;
  std::smatch match_;
};

}  // namespace

std::string ExplainParserError(const ParsedText& parsed, const ParserError& error) {
  return Explainer(parsed, error).Explain();
}

}  // namespace halflife::train
