#include "data/small_bpe.h"

#include "data/bpe/merger.h"

namespace halflife::data::test {

using nlohmann::ordered_json;

const char kWordPattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr char kBeginName[] = "<|begin|>";

ordered_json SmallBpeJson() {
  const std::string space = AlphabetCharacter(' ');
  ordered_json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[AlphabetCharacter(static_cast<uint8_t>(byte))] = byte;
  }
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"h", "e"},   {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {space, "hello"},
      {space, "1"}, {"a", "b"}, {"ab", "c"},  {"b", "c"}};
  ordered_json merges = ordered_json::array();
  for (const auto& [left, right] : pairs) {
    vocab[left + right] = vocab.size();
    merges.push_back(ordered_json::array({left, right}));
  }
  ordered_json added = ordered_json::array();
  for (const auto& [name, special] :
       {std::pair("<|end|>", true), std::pair("<|pad|>", true), std::pair("<tool>", false)}) {
    added.push_back({{"id", vocab.size() + added.size()},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  const ordered_json split = {{"type", "Split"},
                              {"pattern", {{"Regex", kWordPattern}}},
                              {"behavior", "Isolated"},
                              {"invert", false}};
  const ordered_json byte_level = {{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", true},
                                   {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, byte_level})}}},
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
            {"vocab", vocab},
            {"merges", merges}}}};
}

ordered_json SmallBpeWithBosJson() {
  ordered_json json = SmallBpeJson();
  ordered_json begin = json["added_tokens"][0];
  begin["id"] = kBegin;
  begin["content"] = kBeginName;
  json["added_tokens"].push_back(begin);
  const ordered_json special = {{"SpecialToken", {{"id", kBeginName}, {"type_id", 0}}}};
  const ordered_json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", ordered_json::array({special, text})}};
  return json;
}

std::map<std::string, std::string> BpeFiles(const ordered_json& json) {
  ordered_json config = {{"eos_token", "<|end|>"}, {"pad_token", "<|pad|>"}};
  const std::string text = json.dump();
  if (text.find(kBeginName) != std::string::npos) config["bos_token"] = kBeginName;
  return {{"tokenizer.json", text}, {"tokenizer_config.json", config.dump()}};
}

std::unique_ptr<Tokenizer> MakeBpe(const ordered_json& json) {
  return MakeBpeTokenizer(BpeFiles(json), "tokenizer.json");
}

}  // namespace halflife::data::test
