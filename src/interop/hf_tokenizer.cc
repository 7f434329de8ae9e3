#include "interop/hf_tokenizer.h"

#include <halflife/sentencepiece_model.pb.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "data/bpe/merger.h"
#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer_folder.h"
#include "data/utf8.h"

namespace halflife::interop {
namespace {

namespace pb = ::halflife::proto::sentencepiece;
using nlohmann::ordered_json;

enum PieceType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
enum ModelType { kUnigram = 1, kBpe, kWord, kChar };

constexpr char kSpaceMark[] = "\xE2\x96\x81";  // U+2581: the visible space of sentencepiece.
constexpr size_t kMaxModelBytes = 128 << 20;
// The limit of sentencepiece itself is 16 characters by default.
constexpr size_t kMaxPieceBytes = 512;

template <typename... Pieces>
void Require(bool condition, const Pieces&... problem) {
  HL_CHECK_AS(ExitCode::kData, condition, "the sentencepiece model ", problem...,
              ", so it cannot be expressed exactly as tokenizer.json");
}

// Encodes `bytes` as in RFC 4648.
std::string Base64(std::string_view bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < count ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) text += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

class Converter {
 public:
  explicit Converter(std::string_view bytes) {
    HL_CHECK_AS(ExitCode::kData,
                bytes.size() <= kMaxModelBytes &&
                    model_.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())),
                "not a sentencepiece model (", bytes.size(), " bytes)");
    CheckModel();
    CheckPieces();
  }

  SentencePieceJson Convert(const data::SpecialIds& ids, bool begins_with_bos,
                            data::PrefixSpace prefix_space) const {
    const ordered_json tokenizer = {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", Added()},
        {"normalizer", Normalizer(prefix_space)},
        {"pre_tokenizer", PreTokenizer(prefix_space)},
        {"post_processor", begins_with_bos ? BosTemplate(ids.bos) : ordered_json()},
        {"decoder", Decoder(prefix_space)},
        {"model", Model()}};
    // Other tokenizer classes rebuild the tokenizer from its vocabulary and lose its rules.
    ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
    const auto add = [&](const char* key, int id) {
      if (id < 0) return;
      Require(id < model_.pieces_size() && IsSpecial(id), "has no special piece ", id);
      config[key] = model_.pieces(id).piece();
    };
    add("bos_token", ids.bos);
    add("eos_token", ids.eos);
    add("pad_token", ids.pad);
    add("unk_token", ids.unk);
    return {tokenizer.dump() + "\n", config.dump(2) + "\n"};
  }

 private:
  bool IsSpecial(int id) const {
    const int type = model_.pieces(id).type();
    return type == kUnknown || type == kControl;
  }
  bool byte_fallback() const { return model_.trainer_spec().byte_fallback(); }

  void CheckModel() const {
    const int type = model_.trainer_spec().model_type();
    Require(type == kUnigram || type == kBpe, "is of type ",
            type == kWord   ? "word"
            : type == kChar ? "char"
                            : "unknown",
            ", neither unigram nor bpe");
    Require(!model_.trainer_spec().treat_whitespace_as_suffix(), "writes spaces as suffixes");
    Require(model_.normalizer_spec().escape_whitespaces(), "does not escape spaces");
  }

  void CheckPieces() {
    Require(model_.pieces_size() > 0, "has no pieces");
    int num_bytes = 0;
    for (int id = 0; id < model_.pieces_size(); ++id) {
      const pb::Piece& piece = model_.pieces(id);
      const std::string& text = piece.piece();
      Require(!text.empty() && text.size() <= kMaxPieceBytes &&
                  data::FindInvalidUtf8(text) == std::string::npos,
              "has a piece ", id, " that is empty, too long or not UTF-8");
      Require(ids_.emplace(text, id).second, "has the piece '", text, "' twice");
      Require(std::isfinite(piece.score()), "has no finite score for the piece '", text, "'");
      const int type = piece.type();
      Require(type != kUserDefined && type != kUnused, "has a ",
              type == kUnused ? "unused" : "user-defined", " piece, '", text, "'");
      Require(type >= kNormal && type <= kByte, "has a piece of type ", type);
      if (type == kUnknown) {
        Require(unk_id_ < 0, "has two unknown pieces");
        unk_id_ = id;
      }
      if (type == kByte) ++num_bytes;
    }
    Require(unk_id_ >= 0, "has no unknown piece");
    Require(num_bytes == (byte_fallback() ? 256 : 0), "has ", num_bytes, " byte pieces");
    for (int byte = 0; byte_fallback() && byte < 256; ++byte) {
      static constexpr char kHex[] = "0123456789ABCDEF";
      const std::string name = {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
      const auto found = ids_.find(name);
      Require(found != ids_.end() && model_.pieces(found->second).type() == kByte,
              "has no byte piece ", name);
    }
  }

  ordered_json Added() const {
    ordered_json added = ordered_json::array();
    for (int id = 0; id < model_.pieces_size(); ++id) {
      if (!IsSpecial(id)) continue;
      added.push_back({{"id", id},
                       {"content", model_.pieces(id).piece()},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
    return added;
  }

  ordered_json BosTemplate(int bos) const {
    Require(bos >= 0 && bos < model_.pieces_size(), "has no bos");
    const std::string& name = model_.pieces(bos).piece();
    const auto special = [&](int type) {
      return ordered_json{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
    };
    const auto text = [](const char* id, int type) {
      return ordered_json{{"Sequence", {{"id", id}, {"type_id", type}}}};
    };
    return {{"type", "TemplateProcessing"},
            {"single", {special(0), text("A", 0)}},
            {"pair", {special(0), text("A", 0), special(1), text("B", 1)}},
            {"special_tokens",
             {{name,
               {{"id", name},
                {"ids", ordered_json::array({bos})},
                {"tokens", ordered_json::array({name})}}}}}};
  }

  ordered_json Normalizer(data::PrefixSpace prefix_space) const {
    const pb::NormalizerSpec& spec = model_.normalizer_spec();
    ordered_json steps = ordered_json::array();
    const auto replace = [](const char* kind, const char* pattern, const char* content) {
      return ordered_json{
          {"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
    };
    if (!spec.precompiled_charsmap().empty()) {
      steps.push_back(
          {{"type", "Precompiled"}, {"precompiled_charsmap", Base64(spec.precompiled_charsmap())}});
    }
    if (spec.remove_extra_whitespaces()) {
      steps.push_back(replace("Regex", " {2,}", " "));
      // Not ^ and $, which also match at line ends in that library.
      steps.push_back(replace("Regex", R"(\A +| +\z)", ""));
    }
    if (prefix_space != data::PrefixSpace::kModel) {  // Metaspace adds and replaces spaces
      return steps.empty() ? ordered_json()
                           : ordered_json{{"type", "Sequence"}, {"normalizers", steps}};
    }
    if (spec.add_dummy_prefix()) steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
    steps.push_back(replace("String", " ", kSpaceMark));
    return {{"type", "Sequence"}, {"normalizers", steps}};
  }

  static ordered_json PreTokenizer(data::PrefixSpace prefix_space) {
    if (prefix_space == data::PrefixSpace::kModel) return nullptr;
    return {{"type", "Metaspace"},
            {"replacement", kSpaceMark},
            {data::kPrependScheme, data::PrependScheme(prefix_space)},
            {"split", false}};
  }

  ordered_json Decoder(data::PrefixSpace prefix_space) const {
    ordered_json steps = {
        {{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
        {{"type", "ByteFallback"}},
        {{"type", "Fuse"}}};
    const bool adds = prefix_space == data::PrefixSpace::kModel
                          ? model_.normalizer_spec().add_dummy_prefix()
                          : prefix_space != data::PrefixSpace::kNever;
    if (adds) {
      steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    return {{"type", "Sequence"}, {"decoders", steps}};
  }

  ordered_json Model() const {
    if (model_.trainer_spec().model_type() == kUnigram) {
      ordered_json vocab = ordered_json::array();
      for (const pb::Piece& piece : model_.pieces())
        vocab.push_back({piece.piece(), piece.score()});
      return {{"type", "Unigram"},
              {"unk_id", unk_id_},
              {"vocab", vocab},
              {"byte_fallback", byte_fallback()}};
    }
    ordered_json vocab = ordered_json::object();
    for (int id = 0; id < model_.pieces_size(); ++id) {
      // Keeps this order. Using operator[] would look up every key first and take quadratic time.
      vocab.get_ref<ordered_json::object_t&>().emplace_back(model_.pieces(id).piece(), id);
    }
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", model_.pieces(unk_id_).piece()},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", byte_fallback()},
            {"ignore_merges", false},
            {"vocab", std::move(vocab)},
            {"merges", Merges()}};
  }

  // sentencepiece merges the two neighbours whose joint piece has the highest score, regardless of
  // what the neighbours are. So every split of a piece into two pieces is a merge, ranked by the
  // score of the whole piece.
  ordered_json Merges() const {
    std::vector<std::tuple<float, int, int>> merges;  // -score, left, right
    const auto normal = [&](std::string_view text) {
      const auto found = ids_.find(std::string(text));
      return found != ids_.end() && model_.pieces(found->second).type() == kNormal ? found->second
                                                                                   : -1;
    };
    for (const pb::Piece& piece : model_.pieces()) {
      if (piece.type() != kNormal) continue;
      const std::string_view text = piece.piece();
      for (size_t cut = 1; cut < text.size(); ++cut) {
        if ((static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) continue;
        const int left = normal(text.substr(0, cut)), right = normal(text.substr(cut));
        if (left >= 0 && right >= 0) merges.emplace_back(-piece.score(), left, right);
      }
    }
    std::sort(merges.begin(), merges.end());
    ordered_json list = ordered_json::array();
    for (const auto& [score, left, right] : merges) {
      list.push_back({model_.pieces(left).piece(), model_.pieces(right).piece()});
    }
    return list;
  }

  pb::ModelProto model_;
  std::unordered_map<std::string, int> ids_;
  int unk_id_ = -1;
};

}  // namespace

SentencePieceJson ConvertSentencePiece(std::string_view model_bytes, const data::SpecialIds& ids,
                                       bool begins_with_bos, data::PrefixSpace prefix_space) {
  return Converter(model_bytes).Convert(ids, begins_with_bos, prefix_space);
}

namespace {

using Files = std::map<std::string, std::string>;

Files ByT5Files() {
  // Without extra_ids, the tokenizer would append 125 sentinels to the bytes.
  const nlohmann::ordered_json config = {{"tokenizer_class", "ByT5Tokenizer"},
                                         {"extra_ids", 0},
                                         {"pad_token", "<pad>"},
                                         {"eos_token", "</s>"},
                                         {"unk_token", "<unk>"}};
  return {{data::kTokenizerConfigFile, config.dump(2) + "\n"}};
}

// The names of the ids before those of bytes.
constexpr const char* kByteSpecials[] = {"<pad>", "</s>", "<unk>"};

ordered_json AddedByteSpecials() {
  ordered_json added = ordered_json::array();
  for (int id = 0; id < 3; ++id)
    added.push_back({{"id", id},
                     {"content", kByteSpecials[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  return added;
}

// Returns tokenizer.json of a byte-level BPE without merges, whose text is one word. It has one id
// for each byte.
std::string ByteTokenizerJson() {
  ordered_json vocab = ordered_json::object();
  for (int id = 0; id < 3; ++id) vocab[kByteSpecials[id]] = id;
  for (int byte = 0; byte < 256; ++byte)
    vocab[data::AlphabetCharacter(static_cast<uint8_t>(byte))] = byte + 3;
  const ordered_json byte_level = {{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", true},
                                   {"use_regex", false}};
  const ordered_json tokenizer = {{"version", "1.0"},
                                  {"truncation", nullptr},
                                  {"padding", nullptr},
                                  {"added_tokens", AddedByteSpecials()},
                                  {"normalizer", nullptr},
                                  {"pre_tokenizer", byte_level},
                                  {"post_processor", nullptr},
                                  {"decoder", byte_level},
                                  {"model",
                                   {{"type", "BPE"},
                                    {"dropout", nullptr},
                                    {"unk_token", nullptr},
                                    {"continuing_subword_prefix", nullptr},
                                    {"end_of_word_suffix", nullptr},
                                    {"fuse_unk", false},
                                    {"byte_fallback", false},
                                    {"ignore_merges", false},
                                    {"vocab", std::move(vocab)},
                                    {"merges", ordered_json::array()}}}};
  return tokenizer.dump() + "\n";
}

Files ByteLevelFiles() {
  const ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                               {"pad_token", kByteSpecials[0]},
                               {"eos_token", kByteSpecials[1]},
                               {"unk_token", kByteSpecials[2]}};
  return {{data::kTokenizerJsonFile, ByteTokenizerJson()},
          {data::kTokenizerConfigFile, config.dump(2) + "\n"}};
}

Files ByteFiles(const data::Tokenizer&, BytesForm form) {
  return form == BytesForm::kByT5 ? ByT5Files() : ByteLevelFiles();
}

Files SentencePieceFiles(const data::Tokenizer& tokenizer, BytesForm) {
  const std::string model = tokenizer.Files().at(data::kSentencePieceFile);
  const SentencePieceJson json = ConvertSentencePiece(
      model, tokenizer.special_ids(), tokenizer.begins_with_bos(), tokenizer.prefix_space());
  return {{data::kTokenizerJsonFile, json.tokenizer},
          {data::kTokenizerConfigFile, json.config},
          {data::kHfSentencePieceFile, model}};
}

Files BpeFiles(const data::Tokenizer& tokenizer, BytesForm) { return tokenizer.Files(); }

// Warns if AutoTokenizer will put a token in front of texts that texts of this tokenizer lack.
void WarnOfTemplate(const data::Tokenizer& tokenizer) {
  if (tokenizer.kind() != data::kBpeKind || tokenizer.begins_with_bos()) return;
  const auto json =
      nlohmann::json::parse(tokenizer.Files().at(data::kTokenizerJsonFile), nullptr, false);
  if (!json.is_object() || !json.contains("post_processor")) return;
  const std::string begin = data::BeginOfTemplate(json.at("post_processor"));
  if (!begin.empty())
    HL_WARN("interop", "transformers will put ", begin,
            " in front of texts, but the model's texts do not begin with it. Pass "
            "add_special_tokens=False to the tokenizer.");
}

struct Format {
  const char* kind;
  Files (*make)(const data::Tokenizer&, BytesForm);
};
constexpr Format kFormats[] = {{data::kBytesKind, &ByteFiles},
                               {data::kSentencePieceKind, &SentencePieceFiles},
                               {data::kBpeKind, &BpeFiles}};

}  // namespace

Files HfTokenizerFiles(const data::Tokenizer& tokenizer, BytesForm bytes) {
  for (const Format& format : kFormats) {
    if (tokenizer.kind() == format.kind) return format.make(tokenizer, bytes);
  }
  HL_FAIL(ExitCode::kInternal, "no Hugging Face form of the tokenizer kind ", tokenizer.kind());
}

void WriteHfTokenizer(const data::Tokenizer& tokenizer, const std::filesystem::path& folder,
                      BytesForm bytes) {
  for (const auto& [name, content] : HfTokenizerFiles(tokenizer, bytes)) {
    AtomicWriteFile(folder / name, content, ExitCode::kEnvironment);
  }
  data::WriteChatTemplates(tokenizer.chat_templates(), folder);
  WarnOfTemplate(tokenizer);
}

std::unique_ptr<data::Tokenizer> LoadHfTokenizer(const std::filesystem::path& folder) {
  std::unique_ptr<data::Tokenizer> tokenizer = data::FindTokenizer(folder);
  const bool is_bytes = tokenizer != nullptr && tokenizer->kind() == data::kBpeKind &&
                        tokenizer->Files().at(data::kTokenizerJsonFile) == ByteTokenizerJson();
  if (!is_bytes) return tokenizer;
  std::unique_ptr<data::Tokenizer> bytes = data::MakeByteTokenizer();
  // tokenizer_config.json may name other special tokens.
  if (tokenizer->special_ids() != bytes->special_ids()) return tokenizer;
  bytes->set_chat_templates(tokenizer->chat_templates());
  return bytes;
}

}  // namespace halflife::interop
