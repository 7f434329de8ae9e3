#include "data/manifest.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>
#include <halflife/dataset.pb.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "core/error.h"
#include "core/files.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic("HLDATA\x01\n", 8);
constexpr size_t kFrameBytes = 8 + 8 + 16;

void AppendBigEndian(uint64_t value, std::string& bytes) {
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
}

uint64_t ReadBigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes.substr(0, 8)) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

std::string ToBytes(Hash128 hash) {
  std::string bytes;
  AppendBigEndian(hash.hi, bytes);
  AppendBigEndian(hash.lo, bytes);
  return bytes;
}

Hash128 FromBytes(std::string_view bytes) {
  return {ReadBigEndian(bytes), ReadBigEndian(bytes.substr(8))};
}

// Returns the hashes of a column's blocks in formats 1 to 3.
std::vector<BlockRecord> SplitHashes(std::string_view bytes) {
  std::vector<BlockRecord> blocks;
  for (size_t at = 0; at + 16 <= bytes.size(); at += 16)
    blocks.push_back({.hash = FromBytes(bytes.substr(at, 16))});
  return blocks;
}

bool IsHash(const std::string& hex) {
  return hex.size() == 32 && hex.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// `hex` must satisfy IsHash.
Hash128 FromHex(const std::string& hex) {
  return {std::stoull(hex.substr(0, 16), nullptr, 16), std::stoull(hex.substr(16), nullptr, 16)};
}

void ToProto(const FileRecord& file, proto::DatasetFile* out) {
  out->set_name(file.name);
  out->set_bytes(file.bytes);
  out->set_xxh3_128(ToHex(file.hash));
}

FileRecord FromProto(const proto::DatasetFile& file) {
  return {file.name(), file.bytes(), FromHex(file.xxh3_128())};
}

void ToProto(Split split, const SplitRecord& record, proto::DatasetSplit* out) {
  out->set_name(Name(split));
  out->set_num_tokens(record.info.num_tokens);
  out->set_num_documents(record.info.num_documents);
  out->set_num_bytes(record.info.num_bytes);
  for (const Segment& segment : record.info.segments) {
    proto::DatasetSegment* one = out->add_segments();
    one->set_name(segment.name);
    one->set_num_rows(segment.num_rows);
    one->set_seed(segment.seed);
  }
  for (const Source& source : record.info.sources) {
    proto::DatasetSource* one = out->add_sources();
    one->set_name(source.name);
    one->set_num_tokens(source.num_tokens);
    one->set_num_documents(source.num_documents);
  }
  proto::DatasetShardTable* table = out->mutable_shard_table();
  for (const ShardRecord& shard : record.shards) {
    HL_CHECK(shard.index == nullptr, shard.file.name, " has no index file");
    table->add_bytes(shard.file.bytes);
    table->add_num_tokens(shard.num_tokens);
    table->add_num_documents(shard.num_documents);
    table->mutable_hashes()->append(ToBytes(shard.file.hash));
    table->mutable_index_hashes()->append(ToBytes(shard.index_hash));
  }
}

// Converts a shard record of formats 1 to 3.
ShardRecord FromProto(const proto::DatasetShard& shard) {
  auto index = std::make_shared<ShardIndex>();
  index->header_bytes = shard.header_bytes();
  index->header_hash = FromHex(shard.header_xxh3_128());
  index->tokens = SplitHashes(shard.token_hashes());
  index->labels = SplitHashes(shard.label_hashes());
  index->starts = SplitHashes(shard.start_hashes());
  index->first_starts = {shard.first_starts().begin(), shard.first_starts().end()};
  return {.file = FromProto(shard.file()),
          .num_tokens = shard.num_tokens(),
          .num_documents = shard.num_documents(),
          .index = std::move(index)};
}

// Converts the shard records of format 4. The caller has checked that the lists have equal lengths.
std::vector<ShardRecord> FromProto(const proto::DatasetShardTable& table, Split split) {
  std::vector<ShardRecord> shards;
  shards.reserve(static_cast<size_t>(table.bytes_size()));
  for (int i = 0; i < table.bytes_size(); ++i) {
    const auto hash = [at = static_cast<size_t>(16 * i)](const std::string& hashes) {
      return FromBytes(std::string_view(hashes).substr(at, 16));
    };
    shards.push_back({.file = {ShardFileName(split, static_cast<size_t>(i)), table.bytes(i),
                               hash(table.hashes())},
                      .num_tokens = table.num_tokens(i),
                      .num_documents = table.num_documents(i),
                      .index_hash = hash(table.index_hashes())});
  }
  return shards;
}

SplitRecord FromProto(const proto::DatasetSplit& in, Split split) {
  SplitRecord record;
  record.info = {in.num_tokens(), in.num_documents(), in.num_bytes()};
  for (const proto::DatasetSegment& segment : in.segments())
    record.info.segments.push_back({segment.name(), segment.num_rows(), segment.seed()});
  for (const proto::DatasetSource& source : in.sources())
    record.info.sources.push_back({source.name(), source.num_tokens(), source.num_documents()});
  record.shards = FromProto(in.shard_table(), split);
  for (const proto::DatasetShard& shard : in.shards()) record.shards.push_back(FromProto(shard));
  record.info.num_shards = static_cast<int>(record.shards.size());
  return record;
}

void ToProto(const Manifest& manifest, proto::DatasetRows* out) {
  out->set_seq_len(manifest.row_len);
  out->set_generator(manifest.generator);
  out->set_generator_version(manifest.generator_version);
  for (const auto& [name, value] : manifest.parameters) {
    proto::DatasetParameter* one = out->add_parameters();
    one->set_name(name);
    one->set_value(value);
  }
  if (manifest.labels == RowLabels::kTask) return;  // implied
  out->set_labels(Name(manifest.labels));
  out->mutable_classes()->Assign(manifest.classes.begin(), manifest.classes.end());
}

// Returns nothing for an unknown name.
std::optional<RowLabels> LabelsOf(const proto::DatasetRows& rows) {
  if (rows.labels().empty()) return RowLabels::kTask;
  for (const RowLabels labels : {RowLabels::kAnswers, RowLabels::kClasses, RowLabels::kPreferences})
    if (rows.labels() == Name(labels)) return labels;
  return std::nullopt;
}

void ToProto(const Manifest& manifest, proto::DatasetPreparation* out) {
  out->set_documents(manifest.documents);
  out->set_field(manifest.field);
  out->set_validation_fraction(manifest.validation_fraction);
  out->set_split_seed(manifest.split_seed);
  out->set_replace_invalid_utf8(manifest.replace_invalid_utf8);
  out->set_validation_input(manifest.validation_input);
  out->set_validation_tail(manifest.validation_tail);
}

proto::DatasetManifest ToProto(const Manifest& manifest) {
  proto::DatasetManifest out;
  out.set_format_version(manifest.in_place ? kInPlaceVersion : kIndexedVersion);
  proto::DatasetTokenizer* tokenizer = out.mutable_tokenizer();
  tokenizer->set_kind(manifest.tokenizer_kind);
  tokenizer->set_vocab_size(manifest.vocab_size);
  tokenizer->set_eos_id(manifest.eos_id);
  for (const FileRecord& file : manifest.tokenizer_files) ToProto(file, tokenizer->add_files());
  out.set_token_bytes(TokenBytes(manifest.vocab_size));
  out.set_block_tokens(kBlockTokens);
  out.set_block_starts(kBlockStarts);
  ToProto(Split::kTrain, manifest.train, out.add_splits());
  ToProto(Split::kValidation, manifest.validation, out.add_splits());
  if (manifest.has_rows()) {
    ToProto(Split::kTest, manifest.test, out.add_splits());
    ToProto(manifest, out.mutable_rows());
  } else {
    ToProto(manifest, out.mutable_preparation());
  }
  return out;
}

Manifest FromProto(const proto::DatasetManifest& in) {
  Manifest manifest;
  manifest.in_place = in.format_version() == kInPlaceVersion;
  manifest.tokenizer_kind = in.tokenizer().kind();
  manifest.vocab_size = in.tokenizer().vocab_size();
  manifest.eos_id = in.tokenizer().eos_id();
  for (const auto& file : in.tokenizer().files())
    manifest.tokenizer_files.push_back(FromProto(file));
  manifest.train = FromProto(in.splits(0), Split::kTrain);
  manifest.validation = FromProto(in.splits(1), Split::kValidation);
  if (in.has_rows()) {
    manifest.test = FromProto(in.splits(2), Split::kTest);
    manifest.row_len = in.rows().seq_len();
    manifest.generator = in.rows().generator();
    manifest.generator_version = in.rows().generator_version();
    for (const auto& one : in.rows().parameters())
      manifest.parameters.emplace_back(one.name(), one.value());
    manifest.labels = LabelsOf(in.rows()).value();
    manifest.classes = {in.rows().classes().begin(), in.rows().classes().end()};
  }
  manifest.documents = in.preparation().documents();
  manifest.field = in.preparation().field();
  manifest.validation_fraction = in.preparation().validation_fraction();
  manifest.split_seed = in.preparation().split_seed();
  manifest.replace_invalid_utf8 = in.preparation().replace_invalid_utf8();
  manifest.validation_input = in.preparation().validation_input();
  manifest.validation_tail = in.preparation().validation_tail();
  return manifest;
}

// Returns true if the sources add up to the split. An empty list is always valid.
bool MakeUp(const std::vector<Source>& sources, const SplitInfo& split) {
  int64_t tokens = 0, documents = 0;
  for (const Source& source : sources) {
    if (source.num_tokens <= 0 || source.num_documents < 0) return false;
    tokens += source.num_tokens;
    documents += source.num_documents;
  }
  return sources.empty() || (tokens == split.num_tokens && documents == split.num_documents);
}

// Returns true if the index of a shard of formats 1 to 3 has as many blocks as the shard.
bool Consistent(const ShardRecord& shard, int64_t row_len) {
  const auto token_blocks = static_cast<size_t>(NumBlocks(shard.num_tokens, kBlockTokens));
  const auto start_blocks = static_cast<size_t>(NumBlocks(shard.num_documents, kBlockStarts));
  const ShardIndex& index = *shard.index;
  return index.header_bytes <= shard.file.bytes && index.tokens.size() == token_blocks &&
         index.labels.size() == (row_len > 0 ? token_blocks : 0) &&
         index.starts.size() == start_blocks && index.first_starts.size() == start_blocks;
}

// Returns true if the counts agree with each other. Code that uses them as indices runs only after
// this check.
bool Consistent(const SplitRecord& split, const Manifest& manifest) {
  const int64_t row_len = manifest.row_len;
  int64_t tokens = 0, documents = 0;
  for (const ShardRecord& shard : split.shards) {
    if (shard.num_tokens <= 0 || shard.num_tokens > kMaxShardTokens || shard.num_documents < 0 ||
        shard.num_documents > shard.num_tokens || shard.file.name.empty() ||
        shard.file.name.find('/') != std::string::npos ||
        (shard.index != nullptr && !Consistent(shard, row_len))) {
      return false;
    }
    tokens += shard.num_tokens;
    documents += shard.num_documents;
  }
  int64_t rows = 0;
  for (const Segment& segment : split.info.segments) rows += segment.num_rows;
  const bool whole_rows =
      manifest.labels == RowLabels::kTask ? rows == documents : rows <= documents;
  return tokens == split.info.num_tokens &&
         documents == (manifest.in_place ? 0 : split.info.num_documents) &&
         MakeUp(split.info.sources, split.info) &&
         (row_len == 0 || (whole_rows && tokens == rows * row_len));
}

// Returns true if the split lists its shards in the way of its format, with one entry per shard in
// every list.
bool HasShardLists(const proto::DatasetSplit& split, bool indexed) {
  const proto::DatasetShardTable& table = split.shard_table();
  const int count = table.bytes_size();
  const auto hashes = 16 * static_cast<size_t>(count);
  return (indexed ? split.shards().empty() : count == 0) && table.num_tokens_size() == count &&
         table.num_documents_size() == count && table.hashes().size() == hashes &&
         table.index_hashes().size() == hashes;
}

bool HasHashes(const proto::DatasetManifest& in) {
  const auto file_has_hash = [](const proto::DatasetFile& file) { return IsHash(file.xxh3_128()); };
  const auto shard_has_hashes = [&](const proto::DatasetShard& shard) {
    return file_has_hash(shard.file()) && IsHash(shard.header_xxh3_128());
  };
  return std::ranges::all_of(in.tokenizer().files(), file_has_hash) &&
         std::ranges::all_of(in.splits(), [&](const proto::DatasetSplit& split) {
           return std::ranges::all_of(split.shards(), shard_has_hashes);
         });
}

bool Consistent(const proto::DatasetManifest& in) {
  const bool indexed = in.format_version() >= kIndexedVersion;
  const bool rows = indexed ? in.has_rows() : in.format_version() != kTextVersion;
  const std::optional<RowLabels> labels = rows ? LabelsOf(in.rows()) : RowLabels::kNone;
  const bool of_task = indexed ? labels == RowLabels::kTask : in.format_version() == kRowsVersion;
  const auto has_lists = [&](const proto::DatasetSplit& split) {
    return HasShardLists(split, indexed);
  };
  const int eos = in.tokenizer().eos_id(), vocab_size = in.tokenizer().vocab_size();
  return HasHashes(in) && std::ranges::all_of(in.splits(), has_lists) &&
         in.block_tokens() == kBlockTokens && in.block_starts() == kBlockStarts && vocab_size > 0 &&
         in.token_bytes() == static_cast<uint32_t>(TokenBytes(vocab_size)) &&
         in.splits_size() == (rows ? 3 : 2) && in.has_rows() == rows && labels.has_value() &&
         of_task == (labels == RowLabels::kTask) &&
         (labels == RowLabels::kClasses) == (in.rows().classes_size() > 1) &&
         (!rows || (in.rows().seq_len() > 0 && in.format_version() != kInPlaceVersion)) &&
         (of_task ? eos == -1 : eos >= 0 && eos < vocab_size);
}

}  // namespace

void SaveTokenizer(const Tokenizer& tokenizer, const fs::path& folder, Manifest& manifest) {
  const fs::path below = folder / kTokenizerFolder;
  fs::create_directory(below);
  tokenizer.Save(below);
  manifest.tokenizer_files.clear();
  for (const auto& entry : fs::recursive_directory_iterator(below)) {
    if (entry.is_directory()) continue;
    const std::string bytes = ReadFile(entry.path(), ExitCode::kData);
    manifest.tokenizer_files.push_back(
        {entry.path().lexically_relative(below).string(), bytes.size(), HashBytes(bytes)});
  }
  std::ranges::sort(manifest.tokenizer_files, {}, &FileRecord::name);
  manifest.tokenizer_kind = tokenizer.kind();
  manifest.vocab_size = tokenizer.vocab_size();
  manifest.eos_id = tokenizer.eos_id();
}

std::string FrameManifest(const Manifest& manifest) {
  std::string payload;
  {
    google::protobuf::io::StringOutputStream stream(&payload);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    HL_CHECK(ToProto(manifest).SerializeToCodedStream(&coded), "the manifest does not serialise");
  }
  std::string framed(kMagic);
  for (int shift = 0; shift < 64; shift += 8) framed += static_cast<char>(payload.size() >> shift);
  framed += payload;
  return framed + ToBytes(HashBytes(framed));
}

std::string ManifestText(const Manifest& manifest) {
  proto::DatasetManifest message = ToProto(manifest);
  for (proto::DatasetSplit& split : *message.mutable_splits()) {
    split.mutable_shard_table()->clear_hashes();  // binary, so unreadable as text
    split.mutable_shard_table()->clear_index_hashes();
  }
  std::string text;
  HL_CHECK(google::protobuf::TextFormat::PrintToString(message, &text));
  return text;
}

Hash128 WriteManifest(const Manifest& manifest, const fs::path& folder) {
  const std::string framed = FrameManifest(manifest);
  AtomicWriteFile(folder / kManifestTextName, ManifestText(manifest), ExitCode::kData);
  AtomicWriteFile(folder / kManifestName, framed, ExitCode::kData);
  return FrameHash(framed);
}

std::string ShardFileName(Split split, size_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "-%05zu.h5", number);
  return Name(split) + std::string(text);
}

Hash128 FrameHash(std::string_view framed) { return FromBytes(framed.substr(framed.size() - 16)); }

Manifest ReadManifest(const fs::path& path) {
  std::error_code unknown;  // Whether the file exists, for example in the folder of another user.
  HL_CHECK_AS(
      ExitCode::kData, fs::exists(path, unknown) || unknown, path.string(),
      " is missing: the folder is not a prepared dataset. Make one with `halflife prepare`.");
  const std::string framed = ReadFile(path, ExitCode::kData);
  const std::string_view bytes(framed);
  HL_CHECK_AS(ExitCode::kData, bytes.substr(0, 8) == kMagic, path.string(),
              " does not begin like a dataset manifest; ", kDamageRemedy);
  uint64_t length = 0;
  for (size_t i = 0; i < 8 && 8 + i < bytes.size(); ++i) {
    length |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[8 + i])) << 8 * i;
  }
  HL_CHECK_AS(ExitCode::kData, bytes.size() >= kFrameBytes && length == bytes.size() - kFrameBytes,
              path.string(), " has ", bytes.size(), " bytes, but its frame specifies ", length,
              " + ", kFrameBytes, ": it was truncated or overwritten; ", kDamageRemedy);
  HL_CHECK_AS(ExitCode::kData, HashBytes(bytes.substr(0, bytes.size() - 16)) == FrameHash(bytes),
              path.string(), " does not match its own xxh3-128: it is damaged; ", kDamageRemedy);

  proto::DatasetManifest message;
  const bool parsed =
      message.ParseFromArray(bytes.data() + 16, static_cast<int>(bytes.size() - kFrameBytes));
  HL_CHECK_AS(ExitCode::kData, parsed, path.string(), " is not a DatasetManifest; ", kDamageRemedy);
  HL_CHECK_AS(
      ExitCode::kData,
      message.format_version() >= kTextVersion && message.format_version() <= kInPlaceVersion,
      path.string(), " has dataset format ", message.format_version(),
      ", but this program reads formats ", kTextVersion, " to ", kInPlaceVersion,
      ". Use the program that wrote it, or run `halflife prepare` again.");
  HL_CHECK_AS(ExitCode::kData, Consistent(message), path.string(), " contradicts itself; ",
              kDamageRemedy);
  Manifest manifest = FromProto(message);
  HL_CHECK_AS(ExitCode::kData,
              Consistent(manifest.train, manifest) && Consistent(manifest.validation, manifest) &&
                  Consistent(manifest.test, manifest),
              path.string(), " has counts that contradict each other; ", kDamageRemedy);
  manifest.hash = FrameHash(bytes);
  return manifest;
}

}  // namespace halflife::data
